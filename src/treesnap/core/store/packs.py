"""Reading objects out of pack files, and appending them.

A pack that disappears while it is read was removed by a collection; the reader
says so with FileNotFoundError, and the store looks for the object elsewhere.

Packs are read, never mapped: a writer without room truncates what it appended, and a process
that touches a mapping behind the end of its file is killed, as it is for a disk error. A disk
that does not give back a part of a pack has damaged it: that is Corrupt.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress

from treesnap.core.codec.compress import BLOCK_RAW_SIZE_MAX
from treesnap.core.codec.envelope import HEADER_SIZE, FileKind, check_header, header, is_newer
from treesnap.core.codec.pack import (
    PACK_ID_SIZE,
    PACK_SIZE_MAX,
    PACK_SIZE_TARGET,
    TABLE_SIZE_MAX,
    TRAILER_SIZE,
    Block,
    BlockTable,
    Encoded,
    IndexEntry,
    OpenBlock,
    decode_footer,
    decode_table,
    decode_unchecked,
    encode_footer,
    entries_of,
    footer_offset,
    scan_blocks,
    table_size,
    verified_objects,
)
from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.fs.durable import (
    closed,
    open_regular,
    sync_directory,
    unlink_if_present,
    unreadable,
    write_all,
    write_all_at,
)
from treesnap.core.fs.os_errors import is_unreadable
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt, NewerVersion, UnsupportedFormat, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.store.layout import Layout, is_hex

_OPEN_PACKS_MAX = 64
_OPEN_BLOCKS_SIZE_MAX = 4 << 20
"""Bytes of blocks that are kept decompressed."""
_KNOWN_TABLES_MAX = 64
_WINDOW_SIZE = 8 << 10
"""Bytes of a pack that are read at once to look at the tables of its blocks."""
_DISK_BLOCK_SIZE = 512
"""The unit of ``st_blocks``."""


class Inventory(NamedTuple):
    """What is in a pack."""

    tables: list[BlockTable]
    end: int
    """How many bytes of the pack the blocks account for, damage included."""
    damaged_at: int | None
    """Where data that was once whole is damaged, or None."""
    torn_at: int | None
    """Where bytes behind the last block begin that are not a block, or None."""

    @property
    def entries(self) -> list[IndexEntry]:
        """The objects of the pack, computed on each call."""
        return list(entries_of(self.tables))


class Sound(NamedTuple):
    """The reliable part of a pack."""

    tables: list[BlockTable]
    """Its blocks, those behind damage included."""
    torn: frozenset[IndexEntry]
    """Objects that were never synced, and do not match their ids."""
    covered: int
    """How many of its bytes an index part may cover: none that are torn."""
    is_whole: bool
    """Whether every byte is accounted for. Otherwise objects may be hidden in it."""

    @property
    def entries(self) -> Iterator[IndexEntry]:
        """Its objects, without those that are torn."""
        listed = entries_of(self.tables)
        return (entry for entry in listed if entry not in self.torn) if self.torn else listed

    @property
    def indexed(self) -> Iterator[IndexEntry]:
        """The objects that an index part may have."""
        return (entry for entry in self.entries if entry.offset < self.covered)


class _OpenPack:
    """The bytes of an open pack, read in windows; a codec's :class:`Sliced`.

    A part that the disk does not give back is empty.
    """

    def __init__(self, fs: ReadingFileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self._size = fs.fstat(fd).st_size
        self._window = b""
        self._start = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        if start >= stop:
            return b""
        if not self._start <= start <= stop <= self._start + len(self._window):
            size = stop - start
            if size > _WINDOW_SIZE:
                return self.read(size, start)
            self._start, self._window = start, self.read(_WINDOW_SIZE, start)
            if not self._window:  # the disk error may lie behind the part
                return self.read(size, start)
        return self._window[start - self._start : stop - self._start]

    def read(self, size: int, offset: int) -> bytes:
        """Returns just these bytes, without a window around them."""
        try:
            return self._fs.read_at(self._fd, size, offset)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return b""


class PackReader:
    """Reads objects by place; keeps the packs and blocks open that were used most recently."""

    def __init__(self, fs: ReadingFileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._open: OrderedDict[bytes, int] = OrderedDict()
        self._tables: OrderedDict[Block, dict[int, IndexEntry]] = OrderedDict()
        self._blocks: OrderedDict[Block, OpenBlock] = OrderedDict()
        self._blocks_size = 0
        self._last: dict[int, OpenBlock] = {}
        """For each kind, the block of which an object was read last."""
        self._near: dict[int, dict[ObjectId, IndexEntry]] = {}
        """The objects of that block by their ids, if more than one of them was read in turn."""

    def close(self) -> None:
        """Closes all packs, and forgets what was read of them."""
        self._last.clear()
        self._near.clear()
        self._tables.clear()
        self._blocks.clear()
        self._blocks_size = 0
        while self._open:
            self._fs.close(self._open.popitem()[1])

    def _descriptor(self, pack_id: bytes) -> int:
        fd = self._open.get(pack_id)
        if fd is not None:
            self._open.move_to_end(pack_id)
            return fd
        fd = _opened(self._fs, self._layout.pack(pack_id))
        self._open[pack_id] = fd
        if len(self._open) > _OPEN_PACKS_MAX:
            self._fs.close(self._open.popitem(last=False)[1])
        return fd

    def _read_at(self, pack_id: bytes, size: int, offset: int) -> bytes:
        """Returns bytes of a pack; raises Corrupt where the disk does not give them back."""
        fd = self._descriptor(pack_id)
        try:
            return self._fs.read_at(fd, size, offset)
        except OSError as error:
            if not is_unreadable(error):
                raise
            raise unreadable(self._layout.pack(pack_id), error) from error

    def has_object(self, entry: IndexEntry) -> bool:
        """Returns whether the object that the index promises is really there, with all its block.

        Costs three small reads for each block.
        """
        table = self._tables.get(entry.block)
        if table is None:
            try:
                table = self._read_table(entry.block)
                is_whole = self._read_at(entry.pack_id, 1, entry.offset + entry.block.size - 1)
            except (FileNotFoundError, PermissionError, Corrupt):
                return False
            if not is_whole:
                return False
            self._tables[entry.block] = table
            if len(self._tables) > _KNOWN_TABLES_MAX:
                self._tables.popitem(last=False)
        return table.get(entry.start) == entry

    def _read_table(self, block: Block) -> dict[int, IndexEntry]:
        """Returns the objects of a block by their starts; none if another one is there."""
        head = self._read_at(block.pack_id, _WINDOW_SIZE, block.offset)
        size = table_size(head)
        if size is not None and size > len(head):
            head = self._read_at(block.pack_id, size, block.offset)
        table = decode_table(head, block.pack_id, block.offset)
        if table is None or table.block != block:
            return {}
        return {entry.start: entry for entry in table.entries}

    def read(self, entry: IndexEntry) -> bytes:
        """Returns an object's verified bytes; raises Corrupt or FileNotFoundError."""
        try:
            block = self._block(entry.block)
            data = block.find(entry)
        except PermissionError as error:
            raise closed(self._layout.pack(entry.pack_id)) from error
        except Corrupt as error:
            raise Corrupt(error.message, path=self._layout.pack(entry.pack_id)) from error
        if self._last.get(entry.kind) is not block:
            self._last[entry.kind] = block
            self._near[entry.kind] = {}
        elif not self._near[entry.kind]:
            self._near[entry.kind] = {item.id: item for item in block.entries.values()}
        return data

    def read_near(self, kind: ObjectKind, identity: ObjectId) -> bytes | None:
        """Returns an object's verified bytes if it lies where the last of its kind was read.

        None if it does not, or cannot be read there. What is read in the order in which it was
        captured mostly does, and is found without the index.
        """
        near = self._near.get(kind)
        entry = near.get(identity) if near else None
        if entry is None or entry.kind != kind:
            return None
        try:
            return self._last[kind].find(entry)
        except Corrupt:
            return None

    def read_unchecked(self, entry: IndexEntry) -> bytes:
        """Returns the bytes of a damaged object as far as there are any.

        For a caller that looks for ids in them and relies on nothing. Raises OSError, for an error
        of the disk too: what it does not give back may be whole.
        """
        try:
            return self._block(entry.block).find_unchecked(entry)
        except FileNotFoundError:
            return b""
        except Corrupt:
            fd = self._descriptor(entry.pack_id)
            return decode_unchecked(self._fs.read_at(fd, _stored_size(entry.block), entry.offset))

    def _block(self, block: Block) -> OpenBlock:
        """Returns a block before compression; raises Corrupt where another one is."""
        opened = self._blocks.get(block)
        if opened is not None:
            self._blocks.move_to_end(block)
            return opened
        table, data = self._table_and_bytes(block)
        opened = self._blocks[block] = OpenBlock(table, data)
        self._blocks_size += block.raw_size
        while self._blocks_size > _OPEN_BLOCKS_SIZE_MAX and len(self._blocks) > 1:
            self._blocks_size -= self._blocks.popitem(last=False)[0].raw_size
        return opened

    def copied(self, block: Block, ids: AbstractSet[bytes]) -> Encoded | None:
        """Returns a block as it is stored, or None if it does not hold just these objects.

        Each object is verified. Raises Corrupt and FileNotFoundError.
        """
        table, data = self._table_and_bytes(block)
        if table.object_count != len(ids) or not ids >= set(table.ids):
            return None
        verified_objects(table, data)
        return Encoded.of_block(table, data)

    def _table_and_bytes(self, block: Block) -> tuple[BlockTable, bytes]:
        """Returns a whole block and its table; raises Corrupt where another block lies there."""
        data = self._stored(block)
        table = decode_table(data, block.pack_id, block.offset)
        if table is None or table.block != block or len(data) != block.size:
            raise Corrupt(f"Pack {block.pack_id.hex()} does not hold a block at {block.offset}")
        return table, data

    def _stored(self, block: Block) -> bytes:
        """Returns what lies at a place, no more than the largest block takes."""
        return self._read_at(block.pack_id, _stored_size(block), block.offset)

    def is_right(self, entry: IndexEntry) -> bool:
        """Returns whether an object is there and its content has its id. Reads it."""
        try:
            self.read(entry)
        except (Corrupt, FileNotFoundError):
            return False
        return True

    def allocated_bytes(self) -> int:
        """Returns the bytes that all packs take on disk, where holes take none."""
        total = 0
        with self._fs.scan(self._layout.packs) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_blocks * _DISK_BLOCK_SIZE
        return total

    def sizes(self) -> dict[bytes, int]:
        """Returns the size in bytes of every pack."""
        sizes: dict[bytes, int] = {}
        with self._fs.scan(self._layout.packs) as entries:
            for entry in entries:
                if is_hex(entry.name, 2 * PACK_ID_SIZE):
                    try:
                        size = entry.stat(follow_symlinks=False).st_size
                    except FileNotFoundError:
                        continue
                    sizes[bytes.fromhex(entry.name)] = size
        return sizes

    def inventory(
        self,
        pack_id: bytes,
        covered: int,
        known: Callable[[], Iterable[IndexEntry]],
        start: int = 0,
    ) -> Inventory:
        """Returns the objects of a pack whose tables are whole, those behind damage too.

        ``covered`` is how much of the pack was once whole, and ``known`` gives what
        the index knows of it. The index and the footer are used only where the chain of
        blocks breaks off. With ``start`` leaves out the blocks before it. Costs a table per
        block. Raises FileNotFoundError, and NewerVersion for a pack of a newer version.
        """
        path = self._layout.pack(pack_id)
        try:
            pack = _OpenPack(self._fs, self._descriptor(pack_id))
            size = len(pack)
            if size > PACK_SIZE_MAX:
                raise Corrupt(f"Pack {quoted(path)} is too large", path=path)
        except Corrupt:
            return Inventory([], covered, 0, None)
        tables: list[BlockTable] = []
        end = 0
        if start < HEADER_SIZE < size and _is_newer(pack, pack_id):
            raise NewerVersion(
                f"Pack {quoted(path)} is of a newer version than this treesnap reads", path=path
            )
        if start >= HEADER_SIZE or _is_header(pack[:HEADER_SIZE], path):
            tables, end = _chain(pack, pack_id, max(start, HEADER_SIZE))
        footer, offsets = _footer(pack, path)
        limit = footer if footer is not None else covered
        damaged_at = end if end < limit else None
        if footer is not None and offsets is None and damaged_at is None:
            damaged_at = footer
        if damaged_at is not None:
            hints = {*(offsets or ()), *(entry.offset for entry in known())}
            for offset in sorted(hints):
                if offset >= max(end, HEADER_SIZE):
                    more, end = _chain(pack, pack_id, offset)
                    tables += more
        if footer is not None:
            return Inventory(tables, size, damaged_at, end if end < footer else None)
        return Inventory(tables, max(end, limit), damaged_at, end if end < size else None)

    def sound(
        self, pack_id: bytes, covered: int, known: Callable[[], Iterable[IndexEntry]]
    ) -> Sound:
        """Returns the part of a pack that can be relied on; raises FileNotFoundError.

        Bytes that no index part covers may never have been synced, and may be torn: they are
        synced now, and count only where the content matches its id. Costs a table per block,
        and a sync and the content of what is not covered.
        """
        inventory = self.inventory(pack_id, covered, known)
        torn_at = inventory.torn_at
        if inventory.end > covered or torn_at is not None:
            self._fs.sync_data(self._descriptor(pack_id))
        uncovered = (table for table in inventory.tables if table.block.offset >= covered)
        torn = frozenset(entry for entry in entries_of(uncovered) if not self.is_right(entry))
        torn_at = min((entry.offset for entry in torn), default=torn_at)
        return Sound(
            inventory.tables,
            torn,
            max(covered, inventory.end if torn_at is None else torn_at),
            torn_at is None and inventory.damaged_at is None,
        )


def _opened(
    fs: ReadingFileSystem, path: str, flags: int = os.O_RDONLY, *, by_one_name: bool = False
) -> int:
    """Returns a descriptor of a pack; raises Corrupt for anything else, and for a disk error."""
    try:
        return open_regular(fs, path, flags, by_one_name=by_one_name)
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise unreadable(path, error) from error


def _stored_size(block: Block) -> int:
    """Returns how much of a block to read: at most the largest block, whatever an index says."""
    return min(block.size, TABLE_SIZE_MAX + BLOCK_RAW_SIZE_MAX)


def _chain(pack: _OpenPack, pack_id: bytes, start: int) -> tuple[list[BlockTable], int]:
    """Returns the blocks from ``start`` on up to the first damaged one, and its place."""
    tables = list(scan_blocks(pack, pack_id, start))
    return tables, tables[-1].end if tables else start


def _footer(pack: _OpenPack, path: str) -> tuple[int | None, list[int] | None]:
    """Returns where the footer of a sealed pack begins, and its offsets, or None if damaged."""
    offset = footer_offset(pack[-TRAILER_SIZE:])
    if offset is None:
        return None, []
    try:
        return offset, decode_footer(pack, path)
    except Corrupt:
        return offset, None


def _is_newer(pack: _OpenPack, pack_id: bytes) -> bool:
    """Returns whether a pack is of a newer version; one with blocks of ours is damaged instead."""
    is_said = is_newer(pack[:HEADER_SIZE], FileKind.PACK)
    return is_said and not _chain(pack, pack_id, HEADER_SIZE)[0]


def _is_header(data: bytes, path: str) -> bool:
    try:
        check_header(data, FileKind.PACK, path)
    except (Corrupt, UnsupportedFormat):
        return False
    return True


class PackAppender:
    """Appends blocks to one pack, to which no other process appends.

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
        self.end: int = end
        """Position at which the next block goes."""
        self._is_new = end <= HEADER_SIZE
        self._dirty = end > covered
        self._has_durable_name = covered > 0
        """An index part comes after the pack's name: it proves that the name was synced."""
        self._offsets: list[int] | None = [] if self._is_new else None
        """Those of all blocks of the pack, or None when some were there before."""

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
    ) -> tuple[PackAppender, list[BlockTable]] | None:
        """Opens a pack that is not sealed, to append to it; returns None where that is not safe.

        Also returns the blocks behind ``covered``, which no index part knows yet.
        A pack whose header or tail is not whole is never appended to: what looks like a
        torn tail may be damage in front of good blocks, and what is appended behind a
        torn header is not found without the index.
        """
        path = layout.pack(pack_id)
        try:
            fd = _opened(fs, path, os.O_RDWR, by_one_name=True)
        except (FileNotFoundError, PermissionError, Corrupt):
            return None
        try:
            pack = _OpenPack(fs, fd)
            size = len(pack)
            is_open = max(HEADER_SIZE, covered) <= size < PACK_SIZE_TARGET
            if is_open and _is_header(pack.read(HEADER_SIZE, 0), path):
                tables, end = _chain(pack, pack_id, max(covered, HEADER_SIZE))
                if end == size:
                    return cls(fs, layout, pack_id, fd, size, covered), tables
        except BaseException:
            fs.close(fd)
            raise
        fs.close(fd)
        return None

    def append(self, encoded: Encoded) -> list[BlockTable]:
        """Returns which objects lie where; on failure, truncates what it wrote."""
        tables = list(encoded.tables_at(self.pack_id, self.end))
        self._write(encoded.data)
        if self._offsets is not None:
            self._offsets += [table.block.offset for table in tables]
        return tables

    def _write(self, data: bytes) -> None:
        self._dirty = True
        try:
            write_all_at(self._fs, self._fd, data, self.end)
        except BaseException:
            with suppress(OSError):
                self._fs.truncate(self._fd, self.end)
            raise
        self.end += len(data)

    @property
    def is_full(self) -> bool:
        """Whether the pack has reached the size at which it is sealed."""
        return self.end >= PACK_SIZE_TARGET

    def seal(self) -> None:
        """Adds the footer; nothing may be appended afterwards."""
        offsets = self._offsets
        if offsets is None:
            tables = scan_blocks(_OpenPack(self._fs, self._fd), self.pack_id)
            offsets = [table.block.offset for table in tables]
        self._write(encode_footer(offsets, self.end))

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


def cut_back(fs: FileSystem, layout: Layout, pack_id: bytes, end: int) -> None:
    """Truncates a pack to where it ended before; removes one that was empty then."""
    path = layout.pack(pack_id)
    if end <= HEADER_SIZE:
        unlink_if_present(fs, path)
        return
    fd = fs.open(path, os.O_RDWR)
    try:
        fs.truncate(fd, end)
    finally:
        fs.close(fd)
