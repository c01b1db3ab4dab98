"""Reading objects out of pack files, and appending them.

A pack that disappears while it is read was removed by a collection; the reader
says so with FileNotFoundError, and the store looks for the object elsewhere.

Packs are read, never mapped: a writer without room truncates what it appended, and a process
that touches a mapping behind the end of its file is killed, as it is for a disk error.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from treesnap.codec.compress import OBJECT_SIZE_MAX, decompress
from treesnap.codec.envelope import HEADER_SIZE, FileKind, check_header, header
from treesnap.codec.index import PACK_ID_SIZE, IndexEntry
from treesnap.codec.pack import (
    PACK_SIZE_MAX,
    PACK_SIZE_TARGET,
    RECORD_HEADER_SIZE,
    TRAILER_SIZE,
    RecordHeader,
    decode_footer,
    decode_object,
    decode_record_header,
    encode_footer,
    encode_record_header,
    footer_offset,
    scan_records,
)
from treesnap.errors import Corrupt, UnsupportedFormat
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import closed, open_regular, sync_directory, write_all, write_all_at
from treesnap.model import ObjectId
from treesnap.store.layout import Layout, is_hex

_OPEN_PACKS_MAX = 64
_WINDOW_SIZE = 32 << 10
"""Bytes of a pack that are read at once to look at record headers."""


class Inventory(NamedTuple):
    """What is in a pack."""

    entries: list[IndexEntry]
    end: int
    """How many bytes of the pack the entries account for, damage included."""
    damaged_at: int | None
    """Where something is damaged that was once whole, or None."""
    torn_at: int | None
    """Where bytes begin, behind all records, that are not a record; None without such bytes."""


class _OpenPack:
    """The bytes of an open pack, read in windows; a codec's :class:`Sliced`."""

    def __init__(self, fs: FileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self._size = fs.fstat(fd).st_size
        self._window = b""
        self._start = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        if not self._start <= start <= stop <= self._start + len(self._window):
            size = stop - start
            if size > _WINDOW_SIZE:
                return self._fs.read_at(self._fd, size, start)
            self._start, self._window = start, self._fs.read_at(self._fd, _WINDOW_SIZE, start)
        return self._window[start - self._start : stop - self._start]


class PackReader:
    """Reads records by position; keeps the most recently used packs open."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def close(self) -> None:
        """Closes all packs."""
        while self._open:
            self._fs.close(self._open.popitem()[1])

    def _descriptor(self, pack_id: bytes) -> int:
        fd = self._open.get(pack_id)
        if fd is not None:
            self._open.move_to_end(pack_id)
            return fd
        fd = open_regular(self._fs, self._layout.pack(pack_id))
        self._open[pack_id] = fd
        if len(self._open) > _OPEN_PACKS_MAX:
            self._fs.close(self._open.popitem(last=False)[1])
        return fd

    def has_record(self, entry: IndexEntry) -> bool:
        """Returns whether the record that the index promises is really there. Costs one read."""
        try:
            data = self._fs.read_at(
                self._descriptor(entry.pack_id), RECORD_HEADER_SIZE, entry.offset
            )
        except (FileNotFoundError, PermissionError, Corrupt):
            return False
        found = decode_record_header(data, entry.offset)
        return (
            found is not None
            and found.id == entry.id
            and found.kind == entry.kind
            and found.stored_size == entry.stored_size
        )

    def read(self, entry: IndexEntry) -> bytes:
        """Returns an object's verified bytes; raises Corrupt or FileNotFoundError."""
        size = RECORD_HEADER_SIZE + min(entry.stored_size, OBJECT_SIZE_MAX)
        try:
            fd = self._descriptor(entry.pack_id)
        except PermissionError as error:
            raise closed(self._layout.pack(entry.pack_id)) from error
        data = self._fs.read_at(fd, size, entry.offset)
        found = decode_record_header(data[:RECORD_HEADER_SIZE], entry.offset)
        if (
            found is None
            or found.id != entry.id
            or found.kind != entry.kind
            or found.end != entry.offset + len(data)
        ):
            raise Corrupt(
                f"Pack {entry.pack_id.hex()} does not hold object {entry.id.hex()} "
                f"at {entry.offset}",
                path=self._layout.pack(entry.pack_id),
            )
        return decode_object(found, data[RECORD_HEADER_SIZE:])

    def read_unchecked(self, entry: IndexEntry) -> bytes:
        """Returns the bytes of a damaged object as far as there are any; raises OSError.

        For a caller that looks for ids in them and relies on nothing.
        """
        size = RECORD_HEADER_SIZE + min(entry.stored_size, OBJECT_SIZE_MAX)
        try:
            data = self._fs.read_at(self._descriptor(entry.pack_id), size, entry.offset)
        except FileNotFoundError:
            return b""
        found = decode_record_header(data[:RECORD_HEADER_SIZE], entry.offset)
        stored = data[RECORD_HEADER_SIZE:]
        if found is None:
            return stored
        try:
            return decompress(found.compression, stored, found.raw_size)
        except Corrupt:
            return stored

    def sizes(self) -> dict[bytes, int]:
        """Returns the size in bytes of every pack."""
        found: dict[bytes, int] = {}
        with self._fs.scan(self._layout.packs) as entries:
            for entry in entries:
                if is_hex(entry.name, 2 * PACK_ID_SIZE):
                    try:
                        size = entry.stat(follow_symlinks=False).st_size
                    except FileNotFoundError:
                        continue
                    found[bytes.fromhex(entry.name)] = size
        return found

    def scan(self, pack_id: bytes, start: int = 0) -> tuple[list[RecordHeader], int]:
        """Returns the records from ``start`` on, and where the last whole one ends.

        Reads record headers only. A damaged one ends the scan, unless the pack is
        sealed: then its footer says what lies behind.
        """
        records, end = self._scan(pack_id, start)
        footer, rows = self._footer(pack_id)
        if footer is not None and end < footer:
            records += [row for row in rows or () if row.offset >= end]
            end = records[-1].end if records else end
        return records, end

    def _scan(self, pack_id: bytes, start: int) -> tuple[list[RecordHeader], int]:
        """Returns the records from ``start`` on, up to the first that is damaged, and its place."""
        path = self._layout.pack(pack_id)
        try:
            fd = open_regular(self._fs, path)
        except Corrupt:
            return [], 0
        try:
            pack = _OpenPack(self._fs, fd)
            if len(pack) < HEADER_SIZE or len(pack) > PACK_SIZE_MAX:
                return [], 0
            first = max(start, HEADER_SIZE)
            if start < HEADER_SIZE:
                try:
                    check_header(pack[:HEADER_SIZE], FileKind.PACK, path)
                except (Corrupt, UnsupportedFormat):
                    return [], 0
            records = list(scan_records(pack, first))
            return records, records[-1].end if records else first
        finally:
            self._fs.close(fd)

    def inventory(
        self, pack_id: bytes, covered: int, known: Callable[[], Iterable[IndexEntry]]
    ) -> Inventory:
        """Returns all records of a pack whose headers are whole, those behind damage too.

        ``covered`` is how much of the pack was once whole, and ``known`` gives what
        the index knows of it. The index and the footer are used only where the chain of
        records breaks off. Raises FileNotFoundError.
        """
        try:
            size = self._fs.fstat(self._descriptor(pack_id)).st_size
        except Corrupt:
            return Inventory([], covered, 0, None)
        records, end = self._scan(pack_id, 0)
        footer, rows = self._footer(pack_id)
        limit = footer if footer is not None else covered
        damaged_at = end if end < limit else None
        if footer is not None and rows is None and damaged_at is None:
            damaged_at = footer
        if damaged_at is not None:
            hints = {row.offset for row in rows or ()} | {entry.offset for entry in known()}
            for offset in sorted(hints):
                if offset >= end:
                    more, end = self._scan(pack_id, offset)
                    records += more
        entries = [record.entry_in(pack_id) for record in records]
        if footer is not None:
            return Inventory(entries, size, damaged_at, end if end < footer else None)
        return Inventory(entries, max(end, limit), damaged_at, end if end < size else None)

    def _footer(self, pack_id: bytes) -> tuple[int | None, list[RecordHeader] | None]:
        """Returns where the footer of a sealed pack begins, and its rows, or None if damaged."""
        path = self._layout.pack(pack_id)
        try:
            fd = self._descriptor(pack_id)
        except Corrupt:
            return None, []
        pack = _OpenPack(self._fs, fd)
        offset = footer_offset(pack[-TRAILER_SIZE:])
        if offset is None or len(pack) > PACK_SIZE_MAX:
            return None, []
        try:
            return offset, sorted(decode_footer(pack, path), key=_by_offset)
        except Corrupt:
            return offset, None

    def sync(self, pack_id: bytes) -> None:
        """Makes everything durable that any process appended to a pack."""
        self._fs.sync_data(self._descriptor(pack_id))


def _has_header(fs: FileSystem, fd: int, path: str) -> bool:
    try:
        check_header(fs.read_at(fd, HEADER_SIZE, 0), FileKind.PACK, path)
    except (Corrupt, UnsupportedFormat):
        return False
    return True


def _by_offset(record: RecordHeader) -> int:
    return record.offset


class PackAppender:
    """Appends records to one pack, to which no other process appends.

    Nothing is durable before :meth:`sync`. The caller holds the slot that owns
    the pack.
    """

    def __init__(
        self, fs: FileSystem, layout: Layout, pack_id: bytes, fd: int, end: int, covered: int = 0
    ) -> None:
        self._fs = fs
        self._layout = layout
        self.pack_id = pack_id
        self._fd = fd
        self.end = end
        """Position at which the next record goes."""
        self._position = end
        self._is_new = end <= HEADER_SIZE
        self._dirty = end > covered
        self._has_durable_name = covered > 0
        """An index part comes after the pack's name: it proves that the name was synced."""
        self._records: list[RecordHeader] | None = [] if self._is_new else None
        """All records of the pack, or None when some were there before."""

    @classmethod
    def create(cls, fs: FileSystem, layout: Layout) -> PackAppender:
        """Makes a new, empty pack."""
        pack_id = os.urandom(PACK_ID_SIZE)
        fd = fs.open(layout.pack(pack_id), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            write_all(fs, fd, header(FileKind.PACK))
        except BaseException:
            fs.close(fd)
            fs.unlink(layout.pack(pack_id))
            raise
        return cls(fs, layout, pack_id, fd, HEADER_SIZE)

    @classmethod
    def resume(
        cls, fs: FileSystem, layout: Layout, pack_id: bytes, covered: int
    ) -> tuple[PackAppender, list[RecordHeader]] | None:
        """Opens a pack that is not sealed, to append to it; returns None where that is not safe.

        Also returns the records behind ``covered``, which no index part knows yet.
        A pack whose header or tail is not whole is never appended to: what looks like a
        torn tail may be damage in front of good records, and what is appended behind a
        torn header is not found without the index.
        """
        try:
            fd = open_regular(fs, layout.pack(pack_id), os.O_RDWR)
        except (FileNotFoundError, PermissionError, Corrupt):
            return None
        try:
            size = fs.fstat(fd).st_size
            is_open = max(HEADER_SIZE, covered) <= size < PACK_SIZE_TARGET
            if is_open and _has_header(fs, fd, layout.pack(pack_id)):
                records: list[RecordHeader] = []
                end = max(covered, HEADER_SIZE)
                if end < size:
                    records = list(scan_records(_OpenPack(fs, fd), end))
                    end = records[-1].end if records else end
                if end == size:
                    return cls(fs, layout, pack_id, fd, size, covered), records
        except BaseException:
            fs.close(fd)
            raise
        fs.close(fd)
        return None

    def append(
        self, kind: int, compression: int, raw_size: int, stored: bytes, object_id: ObjectId
    ) -> tuple[bytes, IndexEntry]:
        """Returns the bytes to write for a record and where it will lie.

        The caller collects many and hands them to :meth:`write` in one go.
        """
        record = RecordHeader(kind, compression, self.end, raw_size, len(stored), object_id)
        data = encode_record_header(kind, compression, raw_size, len(stored), object_id) + stored
        if self._records is not None:
            self._records.append(record)
        self.end += len(data)
        return data, record.entry_in(self.pack_id)

    def write(self, data: bytes) -> None:
        """Writes collected records; truncates what arrived of them when that fails."""
        self._dirty = True
        try:
            write_all_at(self._fs, self._fd, data, self._position)
        except BaseException:
            with suppress(OSError):
                self._fs.truncate(self._fd, self._position)
            raise
        self._position += len(data)

    @property
    def is_full(self) -> bool:
        """Whether the pack has reached the size at which it is sealed."""
        return self.end >= PACK_SIZE_TARGET

    def seal(self) -> None:
        """Adds the footer; nothing may be appended afterwards."""
        records = self._records
        if records is None:
            records = list(scan_records(_OpenPack(self._fs, self._fd)))
        footer = encode_footer(records, self.end)
        self.write(footer)
        self.end += len(footer)

    def sync(self) -> None:
        """Makes everything appended durable. Costs one sync, two for a pack not covered yet."""
        if self._dirty:
            self._fs.sync_data(self._fd)
            if not self._has_durable_name:
                sync_directory(self._fs, self._layout.packs)
                self._has_durable_name = True
            self._is_new = False
            self._dirty = False

    def close(self) -> None:
        """Closes the file."""
        self._fs.close(self._fd)

    def discard_if_empty(self) -> None:
        """Removes a new pack to which nothing was appended."""
        if self._is_new and self.end <= HEADER_SIZE:
            self._fs.unlink(self._layout.pack(self.pack_id))
