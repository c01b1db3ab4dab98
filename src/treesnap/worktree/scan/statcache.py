"""The stat cache of a root: rows of directories as they were last captured.

Every row belongs to the snapshot that the file names, and the trees that the
rows name are below its root tree, which the file names too. The cache may be
used while a snapshot with that root tree exists, because then the trees do. A
file that is missing, damaged or not whole costs one full reading of the root,
nothing else.

In a large cache few rows change from one capture to the next. They go into a second
file of the same form, before which the rows of the first one do not count; when that has
grown to a part of the first, both become one again. So what is written follows what
changed. The second file names the first by its snapshot, and the directories that are
gone since: a row that is not there any more must not come back with a directory of the
same name, because nothing may need its tree by then.

The few rows that are written are compressed, so that the store grows by little. All of them
would take longer to read than a walk has time for.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from stat import S_ISDIR
from typing import NamedTuple

from treesnap import treepath
from treesnap.codec.envelope import HEADER_SIZE, FileKind, check_header, header
from treesnap.codec.statcache import (
    FRAME_SIZE,
    TRAILER,
    TRAILER_MAGIC,
    Meta,
    Row,
    compress_row,
    decode_meta,
    decode_observations,
    decode_row,
    encode_meta,
    encode_row,
    frame,
    path_hash,
    unframe,
)
from treesnap.codec.watch import WatchNote
from treesnap.errors import Corrupt, UnsupportedFormat
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import Temporary, open_regular, unlink_if_present, write_all
from treesnap.model import ObjectId, SkipReason

RECENT = "-recent"
"""What the name of the second file ends in."""
BASE_ROWS_MIN = 128
"""A cache of fewer rows is written whole: that costs little."""
RECENT_ROWS_MIN = 128
"""A second file of fewer rows is never too large beside the first one."""
RECENT_SHARE_MAX = 8
"""The second file has at most this part of the rows of the first."""
MARKS_MAX = 32
"""How many times a watcher is asked with the same mark before a new one is noted."""
_BUFFER_SIZE = 1 << 20


class RowPlace(NamedTuple):
    """Where a row's frame is."""

    offset: int
    size: int
    is_recent: bool


class CacheFile:
    """Reads the rows of one file in place, by path."""

    def __init__(self, data: memoryview, where: str) -> None:
        check_header(data, FileKind.STAT_CACHE, where)
        self._data = data
        if len(data) < HEADER_SIZE + TRAILER.size:
            raise Corrupt(f"Stat cache {where} is cut short", path=where)
        meta_offset, self.count, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
        table = len(data) - TRAILER.size - 16 * self.count
        meta = unframe(data, meta_offset)
        if magic != TRAILER_MAGIC or meta is None or meta_offset + FRAME_SIZE + len(meta) != table:
            raise Corrupt(f"Stat cache {where} is not whole", path=where)
        self.meta = decode_meta(meta)
        hashes_end = table + 8 * self.count
        self._hashes = _numbers(data[table:hashes_end])
        self._offsets = _numbers(data[hashes_end : hashes_end + 8 * self.count])

    def find(self, path: bytes) -> tuple[Row, int, int] | None:
        """Returns a directory's row with offset and size of its frame, or None."""
        wanted = path_hash(path)
        position = bisect_left(self._hashes, wanted)
        while position < self.count and self._hashes[position] == wanted:
            offset = self._offsets[position]
            payload = unframe(self._data, offset)
            if payload is not None:
                try:
                    row = decode_row(payload)
                except Corrupt:
                    return None
                if row.path == path:
                    return row, offset, FRAME_SIZE + len(payload)
            position += 1
        return None

    def bytes_at(self, offset: int, size: int) -> memoryview:
        """Returns the bytes of a frame, for copying."""
        return self._data[offset : offset + size]

    def rows(self) -> Iterator[tuple[int, int, memoryview]]:
        """Yields hash, offset and payload of every row that is whole."""
        for hashed, offset in zip(self._hashes, self._offsets, strict=True):
            payload = unframe(self._data, offset)
            if payload is not None:
                yield hashed, offset, payload


def _numbers(data: memoryview) -> Sequence[int]:
    """Returns little-endian numbers of eight bytes in place."""
    if sys.byteorder == "little":
        return data.cast("Q")
    numbers = array("Q", bytes(data))
    numbers.byteswap()
    return numbers


class StatCache:
    """The rows of a root, from one file or from two."""

    def __init__(self, base: CacheFile, recent: CacheFile | None = None) -> None:
        self.base = base
        self.recent = recent
        meta = recent.meta if recent is not None else base.meta
        self.snapshot_id = meta.snapshot_id
        self.tree_id = meta.tree_id
        self.removed = meta.removed
        self.watch = meta.watch
        """What the walk noted of its watcher, or None when there was none."""

    @property
    def is_grown(self) -> bool:
        """Returns whether the second file is so large that both should become one."""
        return self.recent is not None and (
            self.recent.count + len(self.removed)
            > max(self.base.count // RECENT_SHARE_MAX, RECENT_ROWS_MIN)
        )

    def find(self, path: bytes) -> tuple[Row, RowPlace] | None:
        """Returns a directory's row and its place, or None."""
        if self.recent is not None:
            found = self.recent.find(path)
            if found is not None:
                return found[0], RowPlace(found[1], found[2], is_recent=True)
            if self.removed and self._is_removed(path):
                return None
        found = self.base.find(path)
        return (found[0], RowPlace(found[1], found[2], is_recent=False)) if found else None

    def _is_removed(self, path: bytes) -> bool:
        return path in self.removed or not self.removed.isdisjoint(treepath.parents(path))

    def bytes_at(self, place: RowPlace) -> memoryview:
        """Returns the bytes of a frame, for copying."""
        file = self.recent if place.is_recent else self.base
        assert file is not None
        return file.bytes_at(place.offset, place.size)


def load(fs: FileSystem, path: str) -> StatCache | None:
    """Returns the stat cache in a file, or None when there is none that can be used."""
    base = _load_file(fs, path)
    if base is None or base.meta.base_id is not None:
        return None
    recent = _load_file(fs, path + RECENT)
    if recent is not None and recent.meta.base_id != base.meta.snapshot_id:
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
    finally:
        fs.close(fd)


class StatCacheBuilder:
    """Writes the next stat cache while a walk goes on.

    Rows that did not change are noted by place; nothing is written at all when there is
    no new one. A walk that looks at nothing but changes notes no others; then all rows stay
    of which nothing else is said.
    """

    def __init__(
        self, fs: FileSystem, temporary: str, old: StatCache | None, *, is_partial: bool = False
    ) -> None:
        self._fs = fs
        self._directory = temporary
        self._old = old
        self._file: Temporary | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._position = HEADER_SIZE
        self._table: list[tuple[int, int]] = []
        self._kept = (array("Q"), array("Q"))
        """Hash, offset and size of each row that is kept, of both files of the old cache."""
        self._removed: set[bytes] = set()
        self._is_partial = is_partial and old is not None
        self._listed: list[bytes] = []

    @property
    def listed(self) -> tuple[bytes, ...]:
        """The directories with names of which no watcher is told everything, in order.

        They have other links, could not be read, which may be for want of a privilege, or are
        mapped for writing, perhaps under a name that they have no more.
        """
        return tuple(sorted(self._listed))

    def keep_unseen(self) -> None:
        """Lets all rows stay of which nothing else is said."""
        self._is_partial = self._old is not None

    def keep(self, row: Row, place: RowPlace) -> None:
        """Takes over a row of the old cache."""
        self._kept[place.is_recent].extend((path_hash(row.path), place.offset, place.size))
        self._note_if_listed(row)

    def add(self, row: Row, *, is_listed: bool = False) -> None:
        """Adds a new row; ``is_listed`` says that the directory is to be looked at next time."""
        if is_listed:
            self._listed.append(row.path)
        else:
            self._note_if_listed(row)
        self._table.append((path_hash(row.path), self._position))
        payload = encode_row(row)
        if self._is_partial:
            payload = compress_row(payload)
        self._write(frame(payload))

    def _note_if_listed(self, row: Row) -> None:
        if row.linked or any(reason == SkipReason.UNREADABLE for _, reason in row.skipped):
            self._listed.append(row.path)

    def remove(self, path: bytes) -> None:
        """Lets the old rows of a directory, and of all below it, not count any more.

        New ones of the same paths do, whenever they are added.
        """
        if self._old is not None:
            self._removed.add(path)

    def _write(self, data: bytes | memoryview) -> None:
        if self._file is None:
            self._file = Temporary(self._fs, self._directory)
            self._buffer.append(header(FileKind.STAT_CACHE))
        self._buffer.append(bytes(data))
        self._buffered += len(data)
        self._position += len(data)
        if self._buffered >= _BUFFER_SIZE:
            self._flush()

    def _flush(self) -> None:
        if self._file is not None:
            write_all(self._fs, self._file.fd, b"".join(self._buffer))
        self._buffer, self._buffered = [], 0

    def publish(
        self, path: str, snapshot_id: str, tree_id: ObjectId, watch: WatchNote | None = None
    ) -> None:
        """Replaces the stat cache; all rows belong to ``snapshot_id`` from now on.

        Without a new row, and nothing new to note of a watcher, the old files stay, and with
        them the snapshot that they name; the new snapshot has the same tree. Not synced: see
        the format.
        """
        old = self._old
        if old is not None and not self._table and not _is_new(watch, old.watch):
            return
        if old is not None and self._is_partial:
            self._copy_unseen(old)
        else:
            self._copy_kept(is_recent=True)
        if old is not None and (self._is_partial or self._is_small_beside(old)):
            removed = old.removed | self._removed
            base_id = old.base.meta.snapshot_id
            meta = Meta(snapshot_id, tree_id, base_id, frozenset(removed), watch)
            self._finish(path + RECENT, meta)
            return
        self._copy_kept(is_recent=False)
        self._finish(path, Meta(snapshot_id, tree_id, watch=watch))
        unlink_if_present(self._fs, path + RECENT)

    def _is_small_beside(self, old: StatCache) -> bool:
        rows: int = old.base.count
        recent = len(self._table) + len(old.removed | self._removed)
        return rows >= BASE_ROWS_MIN and recent * RECENT_SHARE_MAX <= rows

    def _copy_unseen(self, old: StatCache) -> None:
        """Copies the recent rows that are neither replaced nor below a removed directory."""
        replaced = {hashed for hashed, _ in self._table}
        for hashed, offset, payload in old.recent.rows() if old.recent is not None else ():
            if hashed in replaced or (self._removed and self._is_lost(payload)):
                continue
            self._table.append((hashed, self._position))
            place = RowPlace(offset, FRAME_SIZE + len(payload), is_recent=True)
            self._write(old.bytes_at(place))

    def _is_lost(self, payload: memoryview) -> bool:
        try:
            path = decode_row(payload).path
        except Corrupt:
            return True
        return path in self._removed or not self._removed.isdisjoint(treepath.parents(path))

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
        self._write(TRAILER.pack(meta_offset, len(self._table), TRAILER_MAGIC))
        self._flush()
        assert self._file is not None
        file, self._file = self._file, None
        file.publish(path, synced=False)

    def discard(self) -> None:
        """Removes what was written."""
        if self._file is not None:
            self._file.discard()
            self._file = None


def _is_new(watch: WatchNote | None, old: WatchNote | None) -> bool:
    """Returns whether a note is worth a file although no row is new.

    An old mark of the same watcher does as well, but what changed since gets more.
    """
    return watch is not None and (
        old is None
        or old.mark.watcher != watch.mark.watcher
        or old.walked_ns != watch.walked_ns
        or watch.mark.number - old.mark.number >= MARKS_MAX
    )


def subdirectories(row: Row) -> list[bytes]:
    """Returns the names of a row's directories that are no others' business, in order.

    Raises Corrupt for a row that does not say it.
    """
    left_out = {name for name, _ in row.skipped}
    return [
        name
        for name, seen in decode_observations(row.observations).items()
        if S_ISDIR(seen.mode) and name not in left_out
    ]
