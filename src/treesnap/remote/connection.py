"""A remote that is open: its blobs, the keys that open its files, and its protocol.

A new remote is set up in this order: the key slot, ``format``, the first state. A slot is bound
to the remote's id, and ``format`` says which id holds. So of machines that set one up at
the same time one wins, and a slot that a killed or beaten one left opens nothing. Where only
the state is missing, the machine was killed before it: the next one that is added writes it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol, Self
from urllib.parse import unquote, urlsplit

from treesnap.blobs.base import BlobMissing, Blobs
from treesnap.codec.remote import FILE_ID_SIZE, RemoteState
from treesnap.errors import Corrupt, ErrorCode, InvalidArgument, Refused, RemoteFailed, quoted
from treesnap.fs.local import LocalFileSystem
from treesnap.remote.files import SealedFiles
from treesnap.remote.format import (
    NAME,
    SIZE_MAX,
    Collection,
    RemoteFormat,
    decode_format,
    encode_format,
)
from treesnap.remote.keys import SLOT_SIZE_MAX, MasterKeys, Secret, new_slot, open_slots
from treesnap.remote.protocol import Remote
from treesnap.remote.sealing import Encrypted, Plain, Sealer

SecretSource = Callable[[], Secret]
"""Returns the secret of a remote; asked only where one is needed, and only once."""
STATE_READS_MAX = 6
"""How often a state is read while a collector decides whether a push counts."""
_WAIT_S = 0.5
_SCHEMES = frozenset({"s3", "gs", "az"})


def directory_of(url: str) -> str | None:
    """Returns the directory that an address names, or None for a bucket.

    Raises InvalidArgument for any other address.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        if not url:
            raise InvalidArgument("The address of a remote is empty")
        return url
    if scheme in _SCHEMES:
        return None
    parts = urlsplit(url)
    if scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path:
        raise InvalidArgument(
            f"{quoted(url)} is neither a directory nor begins with s3://, gs://, az:// or file:///"
        )
    return unquote(parts.path)


class Opener(Protocol):
    """Connects to the place of an address."""

    def __call__(self, url: str, *, make: bool = False) -> Blobs:
        """Connects; with ``make`` to a directory that may be new. Raises RemoteFailed."""


def open_blobs(url: str, *, make: bool = False) -> Blobs:
    """Connects to the place of an address; with ``make`` to a directory that may be new.

    Raises InvalidArgument for what is no address, and RemoteFailed.
    """
    directory = directory_of(url)
    if directory is not None:
        from treesnap.blobs.directory import DirectoryBlobs

        return DirectoryBlobs(LocalFileSystem(), directory, make=make)
    from treesnap.blobs.bucket import BucketBlobs, parse_bucket_url

    blobs = BucketBlobs(parse_bucket_url(url))
    blobs.check()
    return blobs


class Connection:
    """An open remote. Use as a context manager; the end closes its blobs."""

    def __init__(self, url: str, blobs: Blobs, format_: RemoteFormat, sealer: Sealer) -> None:
        self.url = url
        self.format = format_
        self._blobs = blobs
        self.files = SealedFiles(blobs, sealer)
        self.protocol = Remote(self.files, _wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._blobs.close()


def _wait(count_read: int) -> bool:
    """Waits before a state is read again; returns whether it is worth it."""
    if count_read >= STATE_READS_MAX:
        return False
    time.sleep(_WAIT_S)
    return True


def connect(
    url: str, blobs: Blobs, secret: SecretSource, expected: RemoteFormat | None = None
) -> Connection:
    """Opens a remote that was set up; closes ``blobs`` when it fails.

    Raises Refused for another remote than the ``expected`` one: a new one in its place, or one that
    claims to be unencrypted. Raises RemoteFailed where there is none, RemoteLocked, Corrupt and
    UnsupportedFormat.
    """
    try:
        format_ = read_format(url, blobs)
        if format_ is None:
            raise _no_remote(url)
        if expected is not None:
            _require_same(url, format_, expected)
        return Connection(url, blobs, format_, _sealer(blobs, format_, secret))
    except BaseException:
        blobs.close()
        raise


def set_up(
    url: str,
    blobs: Blobs,
    secret: SecretSource | None,
    collection: Collection,
) -> Connection:
    """Opens a remote, and sets it up where there is none; closes ``blobs`` when it fails.

    With a secret a new remote is encrypted. One that exists is opened as it is. Durable after
    return. Raises what :func:`connect` does, and Refused for an encrypted remote without a secret.
    """
    try:
        if read_format(url, blobs) is None:
            _write_new(blobs, secret, collection)
        format_ = read_format(url, blobs)
        if format_ is None:
            raise _no_remote(url)
        if format_.is_encrypted and secret is None:
            raise Refused(
                f"The remote {quoted(url)} is encrypted, and no secret was given for it",
                code=ErrorCode.REMOTE_LOCKED,
            )
        connection = Connection(url, blobs, format_, _sealer(blobs, format_, secret or _no_secret))
        if not any(blobs.list("state/")) and not any(blobs.list("commits/")):
            connection.protocol.create_state(0, RemoteState())
        return connection
    except BaseException:
        blobs.close()
        raise


def _write_new(blobs: Blobs, secret: SecretSource | None, collection: Collection) -> None:
    """Writes the key slot and the format of a new remote, unless another machine just has."""
    format_ = RemoteFormat(os.urandom(FILE_ID_SIZE), secret is not None, collection)
    slot_name = None
    if secret is not None:
        slot = new_slot(MasterKeys.new(), secret(), format_.remote_id)
        slot_name = slot.name
        blobs.put(slot.name, slot.data)
    if not blobs.create(NAME, encode_format(format_)) and slot_name is not None:
        blobs.delete([slot_name])


def read_format(url: str, blobs: Blobs) -> RemoteFormat | None:
    """Returns what a place says of itself, or None where there is no remote; raises Corrupt."""
    try:
        return decode_format(blobs.get(NAME, SIZE_MAX), quoted(url))
    except BlobMissing:
        return None


def _sealer(blobs: Blobs, format_: RemoteFormat, secret: SecretSource) -> Sealer:
    if not format_.is_encrypted:
        return Plain()
    slots = {}
    for blob in blobs.list("keys/"):
        try:
            slots[blob.name] = blobs.get(blob.name, SLOT_SIZE_MAX)
        except BlobMissing:  # it was removed meanwhile
            continue
    if not slots:
        raise Corrupt("The remote has no key slot", code=ErrorCode.REMOTE_DAMAGED)
    return Encrypted(open_slots(slots, secret(), format_.remote_id).keys, format_.remote_id)


def _require_same(url: str, found: RemoteFormat, expected: RemoteFormat) -> None:
    if found.remote_id != expected.remote_id:
        raise Refused(
            f"Another remote is at {quoted(url)} now: it has the id {found.remote_id.hex()}, "
            f"not {expected.remote_id.hex()}",
            code=ErrorCode.REMOTE_REPLACED,
        )
    if found.is_encrypted != expected.is_encrypted:
        words = "is not encrypted" if expected.is_encrypted else "is encrypted"
        raise Refused(
            f"The remote {quoted(url)} says now that it {words}", code=ErrorCode.REMOTE_REPLACED
        )


def _no_remote(url: str) -> RemoteFailed:
    return RemoteFailed(
        f"There is no remote at {quoted(url)}", code=ErrorCode.REMOTE_MISSING, endpoint=url
    )


def _no_secret() -> Secret:
    raise InvalidArgument("The remote is not encrypted, and needs no secret")
