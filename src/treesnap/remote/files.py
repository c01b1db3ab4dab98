"""The files of a remote as its protocol sees them: blobs, opened and sealed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from treesnap.core.model.errors import Corrupt, ErrorCode
from treesnap.remote.blobs.base import BlobMissing, Blobs
from treesnap.remote.cache import FileCache
from treesnap.remote.records import Folder, RemoteName
from treesnap.remote.sealing import Sealer

_STATES = "state/"
_NEVER_CHANGED = tuple(
    f"{folder}/" for folder in (Folder.COMMITS, Folder.DELETIONS, Folder.INDEX, Folder.CATALOG)
)
"""Their names are random, and are never given again."""


class SealedFiles:
    """Files of a remote; a :class:`treesnap.remote.protocol.RemoteFiles`."""

    def __init__(self, blobs: Blobs, sealer: Sealer, cache: FileCache | None = None) -> None:
        self._blobs = blobs
        self._sealer = sealer
        self._cache = cache
        self._tags: dict[str, str] = {}
        """Tags of the states that were listed."""
        self._read: tuple[str, bytes, str] | None = None
        """The file that was read last, as it is on the server, with its tag."""
        self._takes_kept = True

    def read_anew(self) -> None:
        """Takes no file that was kept for one that is on the server, from now on."""
        self._takes_kept = False

    def put(self, folder: Folder, number: int, content: bytes) -> RemoteName:
        """Writes a file under a new name; durable and listed when it returns.

        What is sent again after a failure has the same bytes: it was sealed once.
        """
        file = self._sealer.seal(f"{folder}/{number:016x}-", content)
        name = RemoteName.parse(file.name)
        assert name is not None
        self._blobs.put(file.name, file.data)
        if self._cache is not None and file.name.startswith(_NEVER_CHANGED):
            self._cache.put(file.name, file.data)
        return name

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file if there is none; returns whether it did. Raises RemoteFailed."""
        return self._blobs.create(name, self._sealer.seal_as(name, content))

    def get(self, name: str) -> bytes | None:
        """Returns a file, or None when there is none; raises Corrupt and RemoteFailed."""
        tag = self._tags.get(name, "")
        is_kept = self._takes_kept and (tag or name.startswith(_NEVER_CHANGED))
        kept = self._cache.get(name, tag) if self._cache is not None and is_kept else None
        if kept is not None:
            with suppress(Corrupt):  # read it again
                return self._sealer.open(name, kept)
        try:
            data = self._blobs.get(name)
        except BlobMissing:
            return None
        self._read = name, data, tag
        return self._sealer.open(name, data)

    def keep(self, name: str) -> None:
        """Keeps the file that was read last, which proved to be whole."""
        if self._cache is not None and self._read is not None and self._read[0] == name:
            _, data, tag = self._read
            if tag or name.startswith(_NEVER_CHANGED):
                self._cache.put(name, data, tag)
        self._read = None

    def get_kept(self, name: str) -> bytes | None:
        """Returns a file as it was when it was kept, or None."""
        kept = self._cache.get(name, None) if self._cache is not None else None
        if kept is not None:
            with suppress(Corrupt):
                return self._sealer.open(name, kept)
        return None

    def get_ranges(
        self, name: str, size_bytes: int, ranges: Sequence[tuple[int, int]]
    ) -> list[bytes] | None:
        """Returns parts of a file of a size, each as (start, size), or None without such a file.

        Raises Corrupt for a file that is shorter or was changed, and RemoteFailed.
        """
        try:
            fetched = self._blobs.get_ranges(name, self._sealer.ranges(name, size_bytes, ranges))
        except BlobMissing:
            return None
        parts = self._sealer.open_ranges(name, size_bytes, ranges, fetched)
        if any(len(part) != size for part, (_, size) in zip(parts, ranges, strict=True)):
            raise Corrupt(
                f"Remote file {name!r} does not have a part that its index names",
                code=ErrorCode.REMOTE_DAMAGED,
                path=name,
            )
        return parts

    def list(self, prefix: str) -> Iterator[str]:
        """Yields the names that begin so, in their order."""
        for blob in self._blobs.list(prefix):
            if blob.tag and blob.name.startswith(_STATES):
                self._tags[blob.name] = blob.tag
            yield blob.name

    def kept(self, folder: str) -> Collection[str]:
        """Returns the names of the files of a folder that were read before, and are needed."""
        return self._cache.names(folder) if self._cache is not None else []

    def keep_only(self, folders: Collection[str], names: Collection[str]) -> None:
        """Lets go of the files of some folders that are not needed again but for these."""
        if self._cache is not None:
            self._cache.keep_only(folders, names)

    def delete(self, names: Iterable[str]) -> None:
        """Removes files; one that is gone is not a failure, and one that is locked stays."""
        self._blobs.delete(list(names))

    def give_up(self) -> None:
        """Lets the requests that other threads repeat fail now."""
        self._blobs.give_up()

    def sweep_unfinished(self) -> None:
        """Removes what writers that are gone left unfinished."""
        self._blobs.sweep_unfinished()
