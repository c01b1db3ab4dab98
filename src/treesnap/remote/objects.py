"""Objects of a remote: found through a view, read in few requests, verified."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby, islice
from operator import itemgetter
from typing import Protocol, TypeVar

from treesnap.core.codec.pack import Block, BlockTable, IndexEntry, OpenBlock, decode_table
from treesnap.core.codec.reader import (
    CheckedBlock,
    Reference,
    TreeReader,
    checked_block,
    root_references,
)
from treesnap.core.codec.snapshot import decode_snapshot
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt, ErrorCode
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.protocol import Missing, RemoteFiles, View
from treesnap.remote.records import RemoteName

TREES_AT_ONCE = 256
_OPEN_BLOCKS_SIZE_MAX = 16 << 20
"""Bytes of blocks that are kept decompressed."""
OBJECTS_AT_ONCE = 1 << 16
"""Objects that wait for the rest of their blocks."""
_READ_SIZE_MAX = 8 << 20
"""Bytes of blocks that are read at once, as they are stored."""

Place = tuple[RemoteName, IndexEntry]
_Key = TypeVar("_Key", bound=Hashable)
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


class Objects(Protocol):
    """Objects by id. ``prefetch`` says which ones will be asked for next."""

    def get(self, kind: ObjectKind, object_id: ObjectId) -> bytes:
        """Returns the verified bytes of an object; raises Corrupt when there are none."""

    def prefetch(self, objects: Iterable[ObjectId]) -> None:
        """Reads what is asked for next in as few requests as possible."""


class RemoteObjects:
    """Reads what a view names. Raises Missing for what is not there.

    An object that is damaged in one pack is read from another one that has it: any writer can say
    that a pack of its own has an object. With ``packs`` an object is read from that pack alone.
    """

    def __init__(
        self, files: RemoteFiles, view: View, packs: Mapping[ObjectId, RemoteName] | None = None
    ) -> None:
        self._files = files
        self.view = view
        self._packs = packs or {}
        self._failures: dict[tuple[RemoteName, Block], Corrupt | Missing] = {}
        """Blocks that could not be read, and why."""
        self._blocks: OrderedDict[tuple[RemoteName, Block], OpenBlock] = OrderedDict()
        self._size = 0

    def place(self, object_id: ObjectId) -> Place:
        """Returns where an object is; raises Missing when no pack has it."""
        if not self._failures and not self._packs:
            first = self.view.first(object_id)
            if first is not None:
                return first
        failed: Place | None = None
        for name, entry in self._places(object_id):
            if (name, entry.block) not in self._failures:
                return name, entry
            failed = failed or (name, entry)
        if failed is None:
            raise Missing.object(object_id)
        return failed

    def _places(self, object_id: ObjectId) -> Iterator[Place]:
        pack = self._packs.get(object_id)
        return (place for place in self.view.find(object_id) if pack in (None, place[0]))

    def get(self, kind: ObjectKind, object_id: ObjectId) -> bytes:
        """Returns the verified bytes of an object; raises Corrupt and Missing."""
        failures: list[Corrupt | Missing] = []
        for name, entry in self._places(object_id):
            try:
                return self._get(kind, name, entry)
            except (Corrupt, Missing) as error:
                failures.append(error)
        if not failures:
            raise Missing.object(object_id)
        # Of a pack that is gone, a newer view may know where its objects are.
        gone = [failure for failure in failures if isinstance(failure, Missing)]
        raise (gone or failures)[0]

    def _get(self, kind: ObjectKind, name: RemoteName, entry: IndexEntry) -> bytes:
        """Returns the verified bytes of an object at a place; raises Corrupt and Missing."""
        if entry.kind != kind:
            raise _damaged(name, f"Object {entry.id.hex()} of the remote is of another kind")
        key = name, entry.block
        if key in self._failures:
            raise self._failures[key]
        if key not in self._blocks:
            try:
                self._read(name, [entry])
            except (Corrupt, Missing) as error:
                self._failures[key] = error
                raise
        self._blocks.move_to_end(key)
        try:
            return self._blocks[key].find(entry)
        except Corrupt as error:
            raise _damaged(name, error.message) from error

    def prefetch(self, objects: Iterable[ObjectId]) -> None:
        """Reads the blocks of objects, those of a pack together.

        What is wrong with one of them, :meth:`get` says.
        """
        by_pack: dict[RemoteName, dict[int, IndexEntry]] = defaultdict(dict)
        for object_id in objects:
            name, entry = self.place(object_id)
            if (name, entry.block) not in self._blocks:
                by_pack[name][entry.offset] = entry
        for name, entries in by_pack.items():
            with suppress(Corrupt, Missing):
                self._read(name, sorted(entries.values(), key=lambda entry: entry.offset))

    def blocks(
        self,
        objects: Iterable[ObjectId],
        jobs: int = 1,
        tell_totals: Callable[[int, int], None] | None = None,
        takes_whole: Callable[[BlockTable], bool] = lambda _: False,
    ) -> Iterator[FoundBlock]:
        """Yields the blocks that hold objects, each with those of the objects.

        Of a block of which a part was asked for, ``takes_whole`` tells whether all of it is taken.
        So many requests as ``jobs`` says are under way at the same time, each for 8 MiB or one
        block. If all objects are known before the first block is read, as it is with fewer than
        ``OBJECTS_AT_ONCE``, ``tell_totals`` gets their number and bytes.
        """
        are_all_known = False

        def places() -> Iterator[tuple[tuple[RemoteName, Block], IndexEntry]]:
            nonlocal are_all_known
            for object_id in objects:
                name, entry = self.place(object_id)
                yield (name, entry.block), entry
            are_all_known = True

        for number, by_block in enumerate(in_blocks(places(), OBJECTS_AT_ONCE)):
            if number == 0 and are_all_known and tell_totals is not None:
                ids = [object_id for of_block in by_block.values() for object_id in of_block]
                tell_totals(len(ids), sum(self.place(item)[1].raw_size for item in ids))
            yield from self._blocks_of(by_block, jobs, takes_whole)

    def _blocks_of(
        self,
        by_block: Mapping[tuple[RemoteName, Block], Mapping[ObjectId, int]],
        jobs: int,
        takes_whole: Callable[[BlockTable], bool],
    ) -> Iterator[FoundBlock]:
        parts = (
            (name, blocks)
            for name, places in groupby(sorted(by_block), key=itemgetter(0))
            for blocks in _parts((block for _, block in places), _READ_SIZE_MAX)
        )

        def read(part: tuple[RemoteName, Sequence[Block]]) -> Iterator[FoundBlock]:
            name, blocks = part
            stored: Sequence[tuple[BlockTable, bytes] | None] = [None] * len(blocks)
            with suppress(Corrupt, Missing):
                stored = self._stored(name, blocks)
            # Verified when it is asked for: in several threads hashing takes a fifth longer.
            pairs = zip(blocks, stored, strict=True)
            return (
                _found(by_block[name, block].keys(), each, takes_whole) for block, each in pairs
            )

        for pairs in _ahead(read, parts, jobs, self._files.give_up):
            yield from pairs

    def by_block(self, objects: Iterable[ObjectId]) -> Iterator[list[ObjectId]]:
        """Yields objects in the order of their places, as many at once as are kept open."""
        places = [(self.place(object_id), object_id) for object_id in objects]
        places.sort(key=lambda item: (item[0][0], item[0][1].offset))
        group: list[ObjectId] = []
        last, size = None, 0
        for (name, entry), object_id in places:
            if (name, entry.offset) != last:
                last, size = (name, entry.offset), size + entry.block.raw_size
                if size > _OPEN_BLOCKS_SIZE_MAX and group:
                    yield group
                    group, size = [], entry.block.raw_size
            group.append(object_id)
        if group:
            yield group

    def _read(self, name: RemoteName, entries: Sequence[IndexEntry]) -> None:
        for blocks in _parts((entry.block for entry in entries), _READ_SIZE_MAX):
            for block, (table, data) in zip(blocks, self._stored(name, blocks), strict=True):
                self._blocks[name, block] = OpenBlock(table, data)
                self._size += block.raw_size
        while self._size > _OPEN_BLOCKS_SIZE_MAX and len(self._blocks) > len(entries):
            (_, block), _ = self._blocks.popitem(last=False)
            self._size -= block.raw_size

    def _stored(self, name: RemoteName, blocks: Sequence[Block]) -> list[tuple[BlockTable, bytes]]:
        """Returns blocks of a pack in one request; raises Corrupt and Missing."""
        ranges = [(block.offset, block.size) for block in blocks]
        pieces = self._files.get_ranges(str(name), self.view.sizes[name], ranges)
        if pieces is None:
            raise Missing.pack(name)
        tables = []
        for block, data in zip(blocks, pieces, strict=True):
            table = decode_table(data, block.pack_id, block.offset)
            if table is None or table.block != block or len(data) != block.size:
                raise _damaged(name, f"There is no whole block at {block.offset}")
            tables.append((table, data))
        return tables


def _damaged(name: RemoteName, problem: str) -> Corrupt:
    """Returns the error for a pack; of many with an object, it has to be known which one it is."""
    return Corrupt(f"{problem} ({name})", code=ErrorCode.REMOTE_DAMAGED, path=str(name))


def in_blocks(
    places: Iterable[tuple[_Key, IndexEntry]], objects_max: int = OBJECTS_AT_ONCE
) -> Iterator[dict[_Key, dict[ObjectId, int]]]:
    """Yields objects by the blocks that they lie in, each with its kind; many blocks at once.

    A walk asks for the objects of a block at different times, because it does not go the way in
    which they were captured. So a block of which something was not asked for waits, as long as no
    more than ``objects_max`` objects do: about 20 MB.
    """
    waiting: dict[_Key, dict[ObjectId, int]] = {}
    left_bytes: dict[_Key, int] = {}
    count = 0
    for key, entry in places:
        objects = waiting.get(key)
        if objects is None:
            objects = waiting[key] = {}
            left_bytes[key] = entry.block.raw_size
        if entry.id in objects:
            continue
        objects[entry.id] = entry.kind
        left_bytes[key] -= 1 + entry.raw_size
        count += 1
        if count >= objects_max:
            group = {key: waiting[key] for key, size in left_bytes.items() if not size}
            left = count - sum(map(len, group.values()))
            for oldest, objects in waiting.items():
                if left <= objects_max // 2:
                    break
                if oldest not in group:
                    group[oldest] = objects
                    left -= len(objects)
            for done in group:
                del waiting[done], left_bytes[done]
            count = left
            yield group
    yield waiting


def _ahead(
    read: Callable[[_Part], _Result],
    parts: Iterable[_Part],
    jobs: int,
    give_up: Callable[[], None],
) -> Iterator[_Result]:
    """Yields what is read of each part, in order; so many are being read meanwhile.

    Where it ends before, ``give_up`` is called, and what is being read is waited for.
    """
    if jobs < 2:
        yield from map(read, parts)
        return
    parts = iter(parts)
    with ThreadPoolExecutor(jobs, "treesnap-fetch") as threads:
        try:
            reading = deque(threads.submit(read, part) for part in islice(parts, jobs))
            while reading:
                result = reading.popleft().result()
                reading.extend(threads.submit(read, part) for part in islice(parts, 1))
                yield result
        except BaseException:
            give_up()
            raise


def _parts(blocks: Iterable[Block], size_bytes_max: int) -> Iterator[list[Block]]:
    """Yields blocks, as many at once as take up some bytes, but at least one."""
    part, size_bytes = list[Block](), 0
    for block in blocks:
        if part and size_bytes + block.size > size_bytes_max:
            yield part
            part, size_bytes = [], 0
        part.append(block)
        size_bytes += block.size
    if part:
        yield part


class FoundBlock(NamedTuple):
    """Objects that were asked for, and the block that holds them."""

    ids: AbstractSet[ObjectId]
    whole: CheckedBlock | None = None
    """The block, where all of it was asked for or is taken, and nothing is wrong with it."""
    opened: OpenBlock | None = None
    """The block, where a part of it was asked for. Where there is neither, it could not be read:
    :meth:`RemoteObjects.get` says why, or finds the objects elsewhere."""


def _found(
    ids: AbstractSet[ObjectId],
    stored: tuple[BlockTable, bytes] | None,
    takes_whole: Callable[[BlockTable], bool],
) -> FoundBlock:
    if stored is None:
        return FoundBlock(ids)
    is_asked_for = ids == set(stored[0].ids)
    if is_asked_for or takes_whole(stored[0]):
        with suppress(Corrupt):
            return FoundBlock(ids, whole=checked_block(*stored))
        if is_asked_for:
            return FoundBlock(ids)
    return FoundBlock(ids, opened=OpenBlock(*stored))


class Seen:
    """Tells which objects were asked for before, and with them those that are ``known``."""

    def __init__(self, known: AbstractSet[ObjectId] = frozenset()) -> None:
        self._known = known
        self._seen: set[ObjectId] = set()

    def __call__(self, reference: Reference) -> bool:
        """Returns whether an object is not new, and takes note of it."""
        if reference.id in self._seen or reference.id in self._known:
            return True
        self._seen.add(reference.id)
        return False


def needed_objects(
    objects: Objects,
    snapshots: Iterable[bytes],
    is_known: Callable[[Reference], bool],
) -> Iterator[Reference]:
    """Yields what snapshots need, without what ``is_known`` and what lies below that.

    ``is_known`` is asked once or more for each object, and is true for one that it was asked
    before; a chunk for which it is not comes again. A level of directories is read before the one
    below it, many in one request. Raises Corrupt.
    """
    trees = TreeReader(objects.get)
    frontier: list[Reference] = []

    def sort_out(references: Iterable[Reference]) -> Iterator[Reference]:
        """Yields what is new; what has something below it is walked next."""
        for reference in references:
            if not is_known(reference):
                yield reference
                if reference.kind is not ObjectKind.CHUNK and not reference.is_page:
                    frontier.append(reference)

    for payload in snapshots:
        record = decode_snapshot(payload)
        yield from sort_out(root_references(record.root, record.links))
    while frontier:
        level, frontier = frontier, []
        for start in range(0, len(level), TREES_AT_ONCE):
            group = level[start : start + TREES_AT_ONCE]
            objects.prefetch(reference.id for reference in group)
            directories = (item.id for item in group if item.kind is ObjectKind.TREE)
            objects.prefetch([page.id for each in directories for page in trees.tree(each).pages])
            for reference in group:
                yield from sort_out(trees.references(reference))


def complete_trees(
    parents: Iterable[bytes],
    get: Callable[[ObjectKind, ObjectId], bytes],
    snapshots: Iterable[bytes],
) -> set[ObjectId]:
    """Returns directories of ``parents``, as far as the walk of ``snapshots`` meets them.

    Where the parents are whole, what is below these directories is there. Both are payloads of
    records; they are walked level by level, and only where they differ.
    """
    trees = TreeReader(get)

    def below(directories: set[ObjectId]) -> set[ObjectId]:
        return {
            entry.tree_id
            for directory in directories
            for entry in trees.entries(directory)
            if entry.is_directory
        }

    new = {decode_snapshot(payload).root.tree_id for payload in snapshots}
    old = {decode_snapshot(payload).root.tree_id for payload in parents}
    complete = set(old)
    try:
        while (new := new - complete) and (old := old - new):
            new_below, old = below(new), below(old)
            complete |= old
            new, old = new_below, old - new_below
    except (Corrupt, Missing):
        # A parent that is not here any more: its objects are looked up one by one.
        pass
    return complete
