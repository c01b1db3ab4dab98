"""How the history of a sandbox comes to the host: the files of a remote, copied and then fetched.

The sandbox pushes to a directory of its own, a remote without a server. Its files never change,
so the host copies those that it lacks into a directory, what others refer to first, and fetches
from there. So a copy may be cut off anywhere, and goes on where it was. Once it is whole, only what
a push adds is copied: what is deleted in the sandbox stays here. What a file is worth is decided by
the fetch: it checks each object by its hash and each snapshot by its id, and what it
brings is from elsewhere, as of any stranger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable

from treesnap.core.fs.durable import ensure_directories
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.handle import Handle
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    quoted,
)
from treesnap.core.model.presentation import Record
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.ops.trust import refuse_foreign_remote
from treesnap.remote import Remotes
from treesnap.remote.blobs.base import BLOB_SIZE_MAX, BlobMissing, is_name, too_large
from treesnap.remote.blobs.directory import DirectoryBlobs
from treesnap.remote.registry import check_remote_name

FORMAT = "format"
"""The file of a remote that says which one it is."""
_ADDED = ("members", "packs", "commits")
"""What a push adds, in the order in which it refers to what was before."""
_KINDS = ("members", "packs", "index", "commits", "deletions", "catalog", "state")
"""All files of a remote, likewise."""

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
        self.directory: str = os.path.abspath(directory)
        self.name: str = os.path.basename(self.directory)
        """The remote, as the store calls it."""
        check_remote_name(self.name)
        if os.path.commonpath([os.path.realpath(self.directory), handle.root]) == handle.root:
            raise InvalidArgument(
                f"The directory {quoted(self.directory)} lies in the root {quoted(handle.root)}, "
                "whose snapshots would hold it"
            )

    def receive(
        self, history_id: str, pushed: Collection[str], names: Iterable[str], read: Read
    ) -> HandedOut:
        """Brings a history of the sandbox here, durably, and returns what came.

        ``pushed`` are ids of snapshots that have to be in it. ``names`` are the files of its
        remote, listed after the push. What is here already is not read again; what is not what it
        says is not kept. Raises Refused where the directory holds the history of another sandbox,
        the store has another remote of its name, or garbage was collected in the sandbox; Corrupt,
        NotFound, RemoteFailed, and what the provider raises.
        """
        remotes = Remotes(self._handle)
        place = {remote.name: remote.url for remote in remotes.list()}.get(self.name)
        if place not in (None, self.directory):
            raise Refused(
                f"The store has a remote {quoted(self.name)} already, {quoted(place)}",
                code=ErrorCode.REMOTE_NAME_TAKEN,
            )
        fs = self._handle.context.fs
        with translating_os_errors("make the directory of a sandbox's history"):
            ensure_directories(fs, os.path.dirname(self.directory))
        refuse_foreign_remote(self.directory)
        blobs = DirectoryBlobs(fs, self.directory, make=True)
        try:
            copied = self._copy(blobs, set(filter(is_name, names)), read)
            try:
                if place is None:
                    remotes.add(self.name, self.directory, encrypted=False)
                done = remotes.fetch(self.name, history_id)
                if missing := set(pushed) - set(done.fetched.ids):
                    raise Corrupt(
                        f"Snapshot {min(missing)[:12]} did not come whole out of the sandbox",
                        code=ErrorCode.REMOTE_DAMAGED,
                        path=self.directory,
                    )
            except (Corrupt, NotFound):
                blobs.delete([*reversed(copied)])  # it may come whole the next time
                raise
        finally:
            blobs.close()
        size_bytes = sum(copied.values())
        return HandedOut(done.newest_id, done.ref, done.fetched.snapshots, len(copied), size_bytes)

    def _copy(self, blobs: DirectoryBlobs, names: set[str], read: Read) -> dict[str, int]:
        """Copies the files that are not here; returns their sizes, in the order of the copies."""
        format_ = _whole(FORMAT, read(FORMAT))
        format_there = _known_format(blobs)
        if format_there not in (None, format_):
            raise Refused(
                f"The directory {quoted(self.directory)} holds the history of another sandbox",
                code=ErrorCode.REMOTE_NAME_TAKEN,
                path=self.directory,
            )
        kinds = _KINDS if format_there is None else _ADDED
        here = {info.name for kind in _KINDS for info in blobs.list(f"{kind}/")}
        if format_there is not None and any(name.startswith("state/") for name in names - here):
            raise Refused(
                "Garbage was collected where the sandbox hands its history out, so what comes now "
                f"does not fit to what is in {quoted(self.directory)}; that stays as it is",
                code=ErrorCode.REMOTE_REPLACED,
                path=self.directory,
            )
        copied: dict[str, int] = {}
        for kind in kinds:
            for name in sorted(names - here):
                if name.startswith(f"{kind}/"):
                    data = _whole(name, read(name))
                    blobs.put(name, data)
                    copied[name] = len(data)
        if format_there is None:
            blobs.put(FORMAT, format_)
            copied[FORMAT] = len(format_)
        return copied


def _known_format(blobs: DirectoryBlobs) -> bytes | None:
    try:
        return blobs.get(FORMAT)
    except BlobMissing:
        return None


def _whole(name: str, chunks: Iterable[bytes]) -> bytes:
    """Returns a file; raises RemoteFailed for one that is larger than any of a remote."""
    data = bytearray()
    for chunk in chunks:
        data += chunk
        if len(data) > BLOB_SIZE_MAX:
            raise too_large(name, len(data), BLOB_SIZE_MAX, "the sandbox")
    return bytes(data)
