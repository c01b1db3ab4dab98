"""The stat cache of a root: rows of directories as they were last captured.

Every row belongs to the snapshot that the file names, and the trees that the
rows name are below its root tree, which the file names too. The cache may be
used while a snapshot with that root tree exists, because then the trees do. A
file that is missing, damaged or not whole costs one full reading of the root,
nothing else.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left

from treesnap.codec.envelope import HEADER_SIZE, FileKind, check_header, header
from treesnap.codec.statcache import (
    FRAME_SIZE,
    TRAILER,
    TRAILER_MAGIC,
    Row,
    decode_meta,
    decode_row,
    encode_meta,
    encode_row,
    frame,
    path_hash,
    unframe,
)
from treesnap.errors import Corrupt, UnsupportedFormat
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import Temporary, write_all
from treesnap.model import ObjectId

_BUFFER_SIZE = 1 << 20


class StatCache:
    """Reads rows in place, by path."""

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
        self.snapshot_id, self.tree_id = decode_meta(meta)
        hashes_end = table + 8 * self.count
        self._hashes = array("Q", bytes(data[table:hashes_end]))
        self._offsets = array("Q", bytes(data[hashes_end : hashes_end + 8 * self.count]))
        if struct.pack("=H", 1) != struct.pack("<H", 1):
            self._hashes.byteswap()
            self._offsets.byteswap()

    def find(self, path: bytes) -> tuple[Row, int, int] | None:
        """Returns a directory's row and the place of its frame, or None."""
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


def load(fs: FileSystem, path: str) -> StatCache | None:
    """Returns the stat cache in a file, or None when there is none that can be used."""
    try:
        fd = fs.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        if fs.fstat(fd).st_size < HEADER_SIZE:
            return None
        return StatCache(memoryview(fs.map(fd)), path)
    except (Corrupt, UnsupportedFormat):
        return None
    finally:
        fs.close(fd)


class StatCacheBuilder:
    """Writes the next stat cache while a walk goes on.

    Rows that did not change are noted by place and copied at the end; nothing is
    written at all when every row was kept and none is left over.
    """

    def __init__(self, fs: FileSystem, temporary: str, old: StatCache | None) -> None:
        self._fs = fs
        self._directory = temporary
        self._old = old
        self._file: Temporary | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._position = HEADER_SIZE
        self._table: list[tuple[int, int]] = []
        self._kept = array("Q")

    def keep(self, path: bytes, offset: int, size: int) -> None:
        """Takes over a row of the old cache."""
        self._kept.extend((path_hash(path), offset, size))

    def add(self, row: Row) -> None:
        """Adds a new row."""
        self._table.append((path_hash(row.path), self._position))
        self._write(frame(encode_row(row)))

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = Temporary(self._fs, self._directory)
            self._buffer.append(header(FileKind.STAT_CACHE))
        self._buffer.append(data)
        self._buffered += len(data)
        self._position += len(data)
        if self._buffered >= _BUFFER_SIZE:
            self._flush()

    def _flush(self) -> None:
        if self._file is not None:
            write_all(self._fs, self._file.fd, b"".join(self._buffer))
        self._buffer, self._buffered = [], 0

    def publish(self, path: str, snapshot_id: str, tree_id: ObjectId) -> None:
        """Replaces the stat cache; all rows belong to ``snapshot_id`` from now on.

        When every row was kept, the old file stays, and with it the snapshot that
        it names; the new snapshot has the same tree. Not synced: see the format.
        """
        kept = len(self._kept) // 3
        if not self._table and self._old is not None and kept == self._old.count:
            return
        for number in range(kept):
            hashed, offset, size = self._kept[3 * number : 3 * number + 3]
            self._table.append((hashed, self._position))
            assert self._old is not None
            self._write(bytes(self._old.bytes_at(offset, size)))
        self._finish(path, encode_meta(snapshot_id, tree_id))

    def _finish(self, path: str, meta: bytes) -> None:
        meta_offset = self._position
        self._write(frame(meta))
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
