"""The stat cache of a root: rows of directories as they were last captured.

The file names the snapshot to which all of its rows belong, and that snapshot's root tree. The
trees of the rows are below it, so they exist as long as a snapshot with that root tree does, and
only then is the cache used. A missing, damaged or incomplete file only means that the next
capture reads the whole root.

In a large cache few rows change from one capture to the next. They go into a second file of the
same form, whose rows replace those of the first. When the second file would become larger than a
part of the first, both become one again, so the amount that is written follows what changed. The
second file names the snapshot of the first, and the directories that were removed since: an old row
must not come back with a new directory of the same name, because its tree may be deleted by then.
Nor must one come back in place of a damaged newer one, because its tree holds what was below it
then: the second file is used as a whole, or not at all.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from stat import S_ISDIR

from treesnap.core.codec.envelope import HEADER_SIZE, FileKind, check_header, header
from treesnap.core.codec.statcache import (
    FRAME_SIZE,
    TRAILER,
    TRAILER_MAGIC,
    VERSION,
    Meta,
    Row,
    decode_meta,
    decode_observations,
    decode_row,
    encode_meta,
    encode_row,
    frame,
    path_hash,
    path_of_row,
    unframe,
)
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import Temporary, open_regular, unlink_if_present, write_all
from treesnap.core.fs.os_errors import is_unreadable
from treesnap.core.model import treepath
from treesnap.core.model.entries import ObjectId, SkipReason
from treesnap.core.model.errors import Corrupt, UnsupportedFormat
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treesnap.core.codec.watch import WatchNote

RECENT = "-recent"
"""The suffix of the second file's name."""
BASE_ROWS_MIN = 128
"""A smaller cache is always written as one file, which costs little."""
RECENT_ROWS_MIN = 128
"""A smaller second file is never merged into the first because of its size."""
RECENT_SHARE_MAX = 8
"""The second file has at most one row for this many rows of the first."""
MARKS_MAX = 32
"""How many questions to a watcher may follow a mark before a newer mark is written."""
PATH_SIZE_MAX = 4096
"""Directories with a longer path have no row, and a walk keeps no such path: no program can name
them, and in a tree of some thousand levels all paths together take gigabytes."""
_BUFFER_SIZE = 1 << 20


def observed_key(path: bytes) -> bytes:
    """Returns under which key the observations of a directory without a row are kept.

    That is its path, or where this is too long for a row a checksum of it.
    """
    return path if len(path) <= PATH_SIZE_MAX else b"/" + checksum(path, 32)


class RowPlace(NamedTuple):
    """Where a row's frame is."""

    offset: int
    size: int
    is_recent: bool


class CacheFile:
    """One file, read in place; finds rows by path."""

    def __init__(self, data: memoryview, where: str) -> None:
        check_header(data, FileKind.STAT_CACHE, where, VERSION)
        self._data = data
        if len(data) < HEADER_SIZE + TRAILER.size:
            raise Corrupt(f"Stat cache {where} is cut short", path=where)
        self.count: int
        self._check: int
        trailer_at = len(data) - TRAILER.size
        meta_offset, self.count, self._check, magic = TRAILER.unpack_from(data, trailer_at)
        table = trailer_at - 16 * self.count
        meta = unframe(data, meta_offset)
        if magic != TRAILER_MAGIC or meta is None or meta_offset + FRAME_SIZE + len(meta) != table:
            raise Corrupt(f"Stat cache {where} is incomplete", path=where)
        self.meta: Meta = decode_meta(meta)
        self.is_recent: bool = self.meta.base_id is not None
        self.table: tuple[memoryview, int, int] = data, table, self.count
        """The file, where its table begins, and how many rows it has."""
        hashes_end = table + 8 * self.count
        self._hashes = _numbers(data[table:hashes_end])
        self._offsets = _numbers(data[hashes_end : hashes_end + 8 * self.count])

    def find(self, path: bytes) -> tuple[Row, RowPlace] | None:
        """Returns a directory's row and where it is, or None."""
        hashed = path_hash(path)
        position = bisect_left(self._hashes, hashed)
        while position < self.count and self._hashes[position] == hashed:
            offset = self._offsets[position]
            payload = unframe(self._data, offset)
            if payload is not None:
                try:
                    row = decode_row(payload)
                except Corrupt:
                    return None
                if row.path == path:
                    return row, RowPlace(offset, FRAME_SIZE + len(payload), self.is_recent)
            position += 1
        return None

    def is_whole(self) -> bool:
        """Returns whether every byte is as it was written; costs 1 ms for each MiB."""
        return zlib.crc32(self._data[: -TRAILER.size]) == self._check

    def bytes_at(self, offset: int, size: int) -> memoryview:
        """Returns the bytes of a frame, to be copied to another file."""
        return self._data[offset : offset + size]

    def rows(self) -> Iterator[tuple[int, int, memoryview]]:
        """Yields the hash, offset and payload of every row that is complete."""
        for hashed, offset in zip(self._hashes, self._offsets, strict=True):
            payload = unframe(self._data, offset)
            if payload is not None:
                yield hashed, offset, payload


def _numbers(data: memoryview) -> Sequence[int]:
    """Returns the little-endian numbers of eight bytes, without a copy where possible."""
    if sys.byteorder == "little":
        return data.cast("Q")
    numbers = array("Q", bytes(data))
    numbers.byteswap()
    return numbers


class StatCache:
    """The rows of a root, from one or two files."""

    def __init__(self, base: CacheFile, recent: CacheFile | None = None) -> None:
        self.base = base
        self.recent = recent
        meta = recent.meta if recent is not None else base.meta
        self.snapshot_id: str = meta.snapshot_id
        self.tree_id: ObjectId = meta.tree_id
        self.removed: frozenset[bytes] = meta.removed
        self.watch: WatchNote | None = meta.watch
        """What the last walk noted of its watcher, or None when it had none."""

    def find(self, path: bytes) -> tuple[Row, RowPlace] | None:
        """Returns a directory's row and where it is, or None."""
        if len(path) > PATH_SIZE_MAX:
            return None
        if self.recent is not None:
            recent = self.recent.find(path)
            if recent is not None:
                return recent
            if self.removed and _is_removed(path, self.removed):
                return None
        return self.base.find(path)

    def bytes_at(self, place: RowPlace) -> memoryview:
        """Returns the bytes of a frame, to be copied to another file."""
        file = self.recent if place.is_recent else self.base
        assert file is not None
        return file.bytes_at(place.offset, place.size)


def _is_removed(path: bytes, removed: AbstractSet[bytes]) -> bool:
    return path in removed or not removed.isdisjoint(treepath.parents(path))


def load(fs: FileSystem, path: str) -> StatCache | None:
    """Returns the stat cache at a path, or None when it is missing or cannot be used."""
    base = _load_file(fs, path)
    if base is None or base.is_recent:
        return None
    recent = _load_file(fs, path + RECENT)
    if recent is not None and not (
        recent.meta.base_id == base.meta.snapshot_id and recent.is_whole()
    ):
        recent = None
    return StatCache(base, recent)


def _load_file(fs: FileSystem, path: str) -> CacheFile | None:
    try:
        fd = open_regular(fs, path)
    except (FileNotFoundError, PermissionError, Corrupt):
        return None
    try:
        if fs.fstat(fd).st_size < HEADER_SIZE:
            return None
        return CacheFile(memoryview(fs.map(fd)), path)
    except (Corrupt, UnsupportedFormat):
        return None
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None
    finally:
        fs.close(fd)


Rows = tuple[bytes, list[int], list[int], list[bytes]]
"""New rows on their way to another process: their bytes; the hash of each, and where it begins
in them; and the directories in which a watcher does not learn of every change."""


class StatCacheBuilder:
    """Writes the next stat cache during a walk.

    Of rows that did not change it notes where they are, and copies them at the end. Without a new
    row it writes nothing. A partial walk looks only at what may have changed; all rows stay that
    it neither replaces nor removes.
    """

    def __init__(
        self, fs: FileSystem, temporary: str, old: StatCache | None, *, is_partial: bool = False
    ) -> None:
        self._fs = fs
        self._directory = temporary
        self._old = old
        self._file: Temporary | None = None
        self._buffer = bytearray()
        self._position = HEADER_SIZE
        self._check = zlib.crc32(header(FileKind.STAT_CACHE, VERSION))
        self._table: list[tuple[int, int]] = []
        self._kept = (array("Q"), array("Q"))
        """Hash, offset and size of each kept row of the old cache, for each of its files."""
        self._removed: set[bytes] = set()
        self._is_partial = is_partial and old is not None
        self._listed: list[bytes] = []

    @property
    def listed(self) -> tuple[bytes, ...]:
        """The directories in which a watcher does not learn of every change, sorted.

        They hold files that have other links, that could not be read, perhaps for want of a
        privilege, or that are mapped for writing, perhaps under a name that is gone; or
        directories whose paths are too long for a row, which would say the same of what they hold.
        """
        return tuple(sorted(self._listed))

    def keep_unseen(self) -> None:
        """Makes the walk a partial one: rows of which it says nothing stay."""
        self._is_partial = self._old is not None

    def keep(self, row: Row, place: RowPlace, *, is_listed: bool = False) -> None:
        """Keeps a row of the old cache; ``is_listed`` as in :meth:`add`."""
        self._kept[place.is_recent].extend((path_hash(row.path), place.offset, place.size))
        self._note_if_listed(row, is_listed=is_listed)

    def add(self, row: Row, *, is_listed: bool = False) -> None:
        """Adds a new row; with ``is_listed`` the next walk looks at the directory in any case.

        Where the path is longer than :data:`PATH_SIZE_MAX` it is always looked at, without a row.
        """
        if len(row.path) > PATH_SIZE_MAX:
            return
        self._note_if_listed(row, is_listed=is_listed)
        self._table.append((path_hash(row.path), self._position))
        self._write(frame(encode_row(row, is_listed=is_listed)))

    def _note_if_listed(self, row: Row, *, is_listed: bool) -> None:
        is_unread = any(reason == SkipReason.UNREADABLE for _, reason in row.skipped)
        if is_listed or row.linked or is_unread:
            self._listed.append(row.path)

    def take(self, rows: Rows) -> None:
        """Adds rows that another process gathered."""
        data, hashes, offsets, listed = rows
        begin = self._position
        self._table += [(hashed, begin + at) for hashed, at in zip(hashes, offsets, strict=True)]
        self._listed += listed
        self._write(data)

    def remove(self, path: bytes) -> None:
        """Removes the old rows of a directory and of everything below it.

        New rows of these paths stay, whenever they are added.
        """
        if self._old is not None and len(path) <= PATH_SIZE_MAX:
            self._removed.add(path)

    def _write(self, data: bytes | memoryview) -> None:
        if self._file is None:
            self._file = Temporary(self._fs, self._directory)
            self._buffer += header(FileKind.STAT_CACHE, VERSION)
        self._buffer += data
        self._position += len(data)
        self._check = zlib.crc32(data, self._check)
        if len(self._buffer) >= _BUFFER_SIZE:
            write_all(self._fs, self._file.fd, memoryview(self._buffer))
            self._buffer = bytearray()

    def publish(
        self, path: str, snapshot_id: str, tree_id: ObjectId, watch: WatchNote | None = None
    ) -> None:
        """Replaces the stat cache; all rows belong to ``snapshot_id`` from now on.

        When neither a row nor the watcher's note is new, the old files stay and name the old
        snapshot, which has the same tree. Not synced: see the format.
        """
        old = self._old
        if old is not None and not self._table and not _is_new(watch, old.watch):
            return
        if old is not None and self._is_partial:
            self._copy_unseen(old.recent, self._removed)
        else:
            self._copy_kept(is_recent=True)
        if old is not None and self._is_small_beside(old):
            removed = old.removed | self._removed
            base_id = old.base.meta.snapshot_id
            meta = Meta(snapshot_id, tree_id, base_id, frozenset(removed), watch)
            # A file that is replaced gets its blocks at once on ext4, and 3 ms are lost with them.
            unlink_if_present(self._fs, path + RECENT)
            self._finish(path + RECENT, meta)
            return
        if old is not None and self._is_partial:
            self._copy_unseen(old.base, old.removed | self._removed)
        else:
            self._copy_kept(is_recent=False)
        self._finish(path, Meta(snapshot_id, tree_id, watch=watch))
        unlink_if_present(self._fs, path + RECENT)

    def _is_small_beside(self, old: StatCache) -> bool:
        """Returns whether the rows that are written so far go into a second file."""
        rows: int = old.base.count
        recent = len(self._table) + len(old.removed | self._removed)
        if self._is_partial and recent <= RECENT_ROWS_MIN:
            return True
        return rows >= BASE_ROWS_MIN and recent * RECENT_SHARE_MAX <= rows

    def _copy_unseen(self, old: CacheFile | None, removed: AbstractSet[bytes]) -> None:
        """Copies the rows of an old file that were neither replaced nor removed."""
        if old is None:
            return
        replaced = {hashed for hashed, _ in self._table}
        for hashed, offset, payload in old.rows():
            if hashed in replaced or (removed and _is_lost(payload, removed)):
                continue
            self._table.append((hashed, self._position))
            self._write(old.bytes_at(offset, FRAME_SIZE + len(payload)))

    def _copy_kept(self, *, is_recent: bool) -> None:
        kept = self._kept[is_recent]
        for start in range(0, len(kept), 3):
            hashed, offset, size = kept[start : start + 3]
            self._table.append((hashed, self._position))
            assert self._old is not None
            self._write(self._old.bytes_at(RowPlace(offset, size, is_recent=is_recent)))

    def _finish(self, path: str, meta: Meta) -> None:
        meta_offset = self._position
        self._write(frame(encode_meta(meta)))
        self._table.sort()
        hashes = struct.pack(f"<{len(self._table)}Q", *(item[0] for item in self._table))
        offsets = struct.pack(f"<{len(self._table)}Q", *(item[1] for item in self._table))
        self._write(hashes + offsets)
        self._write(TRAILER.pack(meta_offset, len(self._table), self._check, TRAILER_MAGIC))
        assert self._file is not None
        write_all(self._fs, self._file.fd, memoryview(self._buffer))
        file, self._file = self._file, None
        file.publish(path, synced=False)

    def discard(self) -> None:
        """Removes the unfinished file."""
        if self._file is not None:
            self._file.discard()
            self._file = None


def _is_lost(payload: memoryview, removed: AbstractSet[bytes]) -> bool:
    try:
        return _is_removed(path_of_row(payload), removed)
    except Corrupt:
        return True


class RowGatherer(StatCacheBuilder):
    """Keeps new rows in memory, for :meth:`StatCacheBuilder.take` in another process."""

    def __init__(self, fs: FileSystem) -> None:
        super().__init__(fs, "", None)
        self._position = 0

    def _write(self, data: bytes | memoryview) -> None:
        self._buffer += data
        self._position += len(data)

    @property
    def rows(self) -> Rows:
        """All rows that were added."""
        hashes, offsets = [item[0] for item in self._table], [item[1] for item in self._table]
        return bytes(self._buffer), hashes, offsets, self._listed


def _is_new(watch: WatchNote | None, old: WatchNote | None) -> bool:
    """Returns whether a watcher's note has to be written although no row is new.

    An older mark of the same watcher still works, but the changes since it become more.
    """
    return watch is not None and (
        old is None
        or old.mark.watcher != watch.mark.watcher
        or old.walked_ns != watch.walked_ns
        or watch.mark.number - old.mark.number >= MARKS_MAX
    )


def subdirectories(row: Row, observations: Iterable[Any] | None = None) -> list[bytes]:
    """Returns the names of a row's subdirectories that were captured, in the order of observations.

    A caller that has the row's ``observations`` passes them. Raises Corrupt when those in the row
    are damaged.
    """
    if observations is None:
        observations = decode_observations(row.observations).values()
    left_out = {name for name, _ in row.skipped}
    return [item[0] for item in observations if S_ISDIR(item[1]) and item[0] not in left_out]
