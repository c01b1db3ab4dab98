"""How the history of a sandbox comes to the host: the files of a remote, copied and then fetched.

The sandbox pushes to a directory of its own, a remote without a server. Its files never change,
so the host copies those that it lacks into a directory, what others refer to first, and fetches
from there. So a copy may be cut off anywhere, and goes on where it was. What a file is worth is
decided by the fetch: it checks each object by its hash and each snapshot by its id, and what it
brings is from elsewhere, as of any stranger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from treesnap.core.fs.durable import ensure_directories
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, InvalidArgument, Refused, quoted
from treesnap.core.model.presentation import Record
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.ops.trust import refuse_foreign_remote
from treesnap.remote import Remotes
from treesnap.remote.blobs.base import BLOB_SIZE_MAX, BlobMissing, is_name, too_large
from treesnap.remote.blobs.directory import DirectoryBlobs
from treesnap.remote.registry import check_remote_name

FORMAT = "format"
"""The file of a remote that says which one it is."""
_KINDS = ("packs", "index", "commits", "deletions", "catalog", "state")
"""The files of a remote in the order in which they refer to those before."""

Read = Callable[[str], Iterable[bytes]]
"""Yields the bytes of one of the files in the sandbox."""


class HandedOut(Record):
    """What was handed out of a sandbox."""

    newest_id: SnapshotId
    ref: str
    """What names that snapshot in commands on the host."""
    snapshots: int
    """How many snapshots are new in the store of the host."""
    files: int
    size_bytes: int
    """How much came from the sandbox."""


class Receiver:
    """Where the history of one sandbox goes: a directory of the host, and the store of a handle."""

    def __init__(self, handle: Handle, directory: str | os.PathLike[str]) -> None:
        self._handle = handle
        self.directory = os.path.abspath(directory)
        self.name = os.path.basename(self.directory)
        """The remote, as the store calls it."""
        check_remote_name(self.name)
        if os.path.commonpath([os.path.realpath(self.directory), handle.root]) == handle.root:
            raise InvalidArgument(
                f"The directory {quoted(self.directory)} lies in the root {quoted(handle.root)}, "
                "whose snapshots would hold it"
            )

    def receive(self, history_id: str, names: Iterable[str], read: Read) -> HandedOut:
        """Brings a history of the sandbox here, durably, and returns what came.

        ``names`` are the files of its remote, listed after the push. What is here already is not
        read again. Raises Refused where the directory holds the history of another sandbox, or the
        store has another remote of its name, Corrupt for what is not what it says, RemoteFailed,
        and what the provider raises.
        """
        remotes = Remotes(self._handle)
        place = {remote.name: remote.url for remote in remotes.list()}.get(self.name)
        if place not in (None, self.directory):
            raise Refused(
                f"The store has a remote {quoted(self.name)} already, {quoted(place)}",
                code=ErrorCode.REMOTE_NAME_TAKEN,
            )
        files, size_bytes = self._copy(names, read)
        if place is None:
            remotes.add(self.name, self.directory, encrypted=False)
        fetched = remotes.fetch(self.name, history_id)
        return HandedOut(
            fetched.newest_id, fetched.ref, fetched.fetched.snapshots, files, size_bytes
        )

    def _copy(self, names: Iterable[str], read: Read) -> tuple[int, int]:
        """Copies the files that are not here; returns how many, and their bytes."""
        fs = self._handle.context.fs
        with translating_os_errors("make the directory of a sandbox's history"):
            ensure_directories(fs, os.path.dirname(self.directory))
        refuse_foreign_remote(self.directory)
        wanted = sorted(filter(_is_of_remote, names), key=_rank)
        format_ = _whole(FORMAT, read(FORMAT))
        blobs = DirectoryBlobs(fs, self.directory, make=True)
        files = size_bytes = 0
        try:
            if (known := _known_format(blobs)) not in (None, format_):
                raise Refused(
                    f"The directory {quoted(self.directory)} holds the history of another sandbox",
                    code=ErrorCode.REMOTE_NAME_TAKEN,
                    path=self.directory,
                )
            here = {info.name for kind in _KINDS for info in blobs.list(f"{kind}/")}
            for name in wanted:
                if name not in here:
                    data = _whole(name, read(name))
                    blobs.put(name, data)
                    files += 1
                    size_bytes += len(data)
            if known is None:
                blobs.put(FORMAT, format_)
        finally:
            blobs.close()
        return files, size_bytes


def _known_format(blobs: DirectoryBlobs) -> bytes | None:
    try:
        return blobs.get(FORMAT)
    except BlobMissing:
        return None


def _is_of_remote(name: str) -> bool:
    return is_name(name) and name.partition("/")[0] in _KINDS


def _rank(name: str) -> tuple[int, str]:
    return _KINDS.index(name.partition("/")[0]), name


def _whole(name: str, chunks: Iterable[bytes]) -> bytes:
    """Returns a file; raises RemoteFailed for one that is larger than any of a remote."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > BLOB_SIZE_MAX:
            raise too_large(name, len(data), BLOB_SIZE_MAX, "the sandbox")
    return bytes(data)
