"""Reading trees and contents through a function that returns objects.

Pages of large directories and lists of long contents are followed here, so that
callers see entries and segments only. Everything is checked while it is read.

:meth:`TreeReader.references` is the one place that knows which objects an object names.
"""

from __future__ import annotations

from _thread import allocate_lock  # as in threading, which takes longer to import
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator

from treesnap.core.codec.chunklist import decode_list
from treesnap.core.codec.message import require
from treesnap.core.codec.pack import BlockTable, verified_objects
from treesnap.core.codec.tree import check_tree, decode_tree, decode_xattrs
from treesnap.core.model import treepath
from treesnap.core.model.entries import (
    Entry,
    EntryKind,
    FileContent,
    ObjectId,
    ObjectKind,
    Segment,
    Totals,
    Tree,
    Xattrs,
)
from treesnap.core.model.errors import Corrupt, InvalidArgument
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.path_budget import paths_max, refuse_paths
from treesnap.core.model.type_names import Any

_CHECKS: dict[ObjectKind, Callable[[bytes], object]] = {
    ObjectKind.TREE: check_tree,
    ObjectKind.CHUNK_LIST: decode_list,
}

Get = Callable[[ObjectKind, ObjectId], bytes]

_CACHED_TREES = 512
_CACHED_ENTRIES = 1 << 15
"""Bounds the memory where directories are large: some 15 MB."""
KEPT_ENTRIES_MAX = 1 << 16
"""Entries kept for a caller that reads the same directories again: some 30 MB."""
_UNCOUNTED_PATHS = 1 << 18
"""A walk passes so many before all are counted, which reads each directory once more."""
_COUNTED_TREES = 1 << 17
"""Of more different directories the paths are not counted: some 30 MB."""


def check_object(kind: ObjectKind, data: bytes) -> None:
    """Raises InvalidArgument for an object that a reader would not accept.

    What is stored passes this first, as a file passes its ``Format``. Costs as much as
    decoding; a chunk is any bytes.
    """
    check = _CHECKS.get(kind)
    if check is not None:
        try:
            check(data)
        except Corrupt as error:
            raise InvalidArgument(f"Not written, for no reader would accept it: {error}") from error


class CheckedBlock(NamedTuple):
    """A block as it is stored, of which each object was verified; see :func:`checked_block`."""

    table: BlockTable
    data: bytes


def checked_block(table: BlockTable, data: bytes) -> CheckedBlock:
    """Returns a block from elsewhere, to be stored as it is.

    Raises Corrupt unless each object has its id and is one that a reader accepts.
    """
    objects = verified_objects(table, data)
    if not table.is_content:
        for entry in table.entries:
            check = _CHECKS.get(ObjectKind(entry.kind))
            if check is not None:
                check(bytes(objects[entry.start + 1 : entry.start + 1 + entry.raw_size]))
    return CheckedBlock(table, data)


class Reference(NamedTuple):
    """An object that a snapshot, a directory or a chunk list names."""

    kind: ObjectKind
    id: ObjectId
    name: bytes = b""
    """Name of the directory's entry that needs it; empty where none does."""
    level: int | None = None
    """Level of the content that names a chunk list; None where that is unknown."""
    is_page: bool = False
    """Whether it is a page of the directory that names it, and read with it."""


class TreeCache:
    """The newest decoded directories, a few hundred. Threads and readers may share one.

    Objects never change under their id, so nothing in it gets out of date.
    """

    def __init__(self, trees_max: int = _CACHED_TREES) -> None:
        self._trees_max = trees_max
        self._trees: OrderedDict[ObjectId, Tree] = OrderedDict()
        self._entries = 0
        self._lock = allocate_lock()
        self.get: Callable[[ObjectId], Tree | None] = self._trees.get

    def add(self, tree_id: ObjectId, tree: Tree) -> None:
        """Takes a directory, and lets the oldest ones go."""
        with self._lock:
            if tree_id in self._trees:
                return
            self._trees[tree_id] = tree
            self._entries += len(tree.entries)
            while len(self._trees) > self._trees_max or self._entries > _CACHED_ENTRIES:
                _, oldest = self._trees.popitem(last=False)
                self._entries -= len(oldest.entries)


class TreeReader:
    """Reads directories; caches the newest ones, and the first ones where asked to.

    ``stored_bytes`` returns what the store takes on disk, which bounds walks of its trees. Live
    trees are really there, so a walk of one has no bound.
    """

    def __init__(
        self,
        get: Get,
        cache: TreeCache | None = None,
        *,
        stored_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._get = get
        self.stored_bytes = stored_bytes
        self._cache = cache if cache is not None else TreeCache()
        self._first: dict[ObjectId, Tree] = {}
        self._room = 0

    def keep_first(self, entries_max: int = KEPT_ENTRIES_MAX) -> None:
        """Keeps the first directories from now on, of so many entries together."""
        self._room = entries_max

    def keep(self, tree_id: ObjectId, tree: Tree, new_count: int | None = None) -> None:
        """Caches a directory that the caller has already decoded.

        All but ``new_count`` of its entries are those of another one that is kept, and take no
        memory again.
        """
        self._cache.add(tree_id, tree)
        count = len(tree.entries) if new_count is None else new_count
        if count < self._room and tree_id not in self._first:
            self._room -= count + 1
            self._first[tree_id] = tree

    def share(self, other: TreeReader) -> None:
        """Takes over what another reader has kept first: equal ids are equal directories."""
        self._first = other._first

    def tree(self, tree_id: ObjectId) -> Tree:
        """Returns one stored tree, pages not followed; raises Corrupt."""
        tree = self._first.get(tree_id) or self._cache.get(tree_id)
        if tree is None:
            tree = decode_tree(self._get(ObjectKind.TREE, tree_id))
            self.keep(tree_id, tree)
        return tree

    def totals(self, tree_id: ObjectId) -> Totals:
        """Returns the sums over everything below a directory."""
        return self.tree(tree_id).totals

    def entries(self, tree_id: ObjectId) -> Iterator[Entry]:
        """Returns the entries of a directory in the order of their raw names."""
        tree = self.tree(tree_id)
        return self._entries_of_pages(tree) if tree.pages else iter(tree.entries)

    def _entries_of_pages(self, tree: Tree) -> Iterator[Entry]:
        previous = b""
        for page in tree.pages:
            below = self.tree(page.id)
            require(not below.pages, "tree", "a page has pages")
            entries = below.entries
            require(len(entries) == page.entry_count, "tree", "a page has a wrong count")
            first_name = entries[0].name
            require(first_name == page.first_name, "tree", "a page begins with another name")
            require(first_name > previous, "tree", "its pages overlap")
            previous = entries[-1].name
            yield from entries

    def walk(self, whole_id: ObjectId | None = None) -> Walk:
        """Returns a new walk, for a reader that may visit all paths below a directory."""
        return Walk(self, whole_id)

    def entry_count(self, tree_id: ObjectId) -> int:
        """Returns how many entries a directory has."""
        tree = self.tree(tree_id)
        return sum(page.entry_count for page in tree.pages) if tree.pages else len(tree.entries)

    def path_count(self, top_id: ObjectId) -> int | None:
        """Returns how many paths are below a directory, or None for too many directories.

        Reads each directory once, in however many places it is, and relies on no stored sums.
        What is damaged counts as empty.
        """
        counts: dict[ObjectId, int] = {}
        opened: dict[ObjectId, Counter[ObjectId]] = {}
        pending = [top_id]
        while pending:
            tree_id = pending[-1]
            if tree_id in counts:
                pending.pop()
                continue
            below = opened.pop(tree_id, None)
            if below is None:
                try:
                    entries = self.entries(tree_id)
                    below = Counter(entry.tree_id for entry in entries if entry.is_directory)
                except Corrupt:  # told by the walk, if it comes there
                    counts[tree_id] = 0
                    continue
                opened[tree_id] = below
                pending += [child for child in below if child not in counts]
                continue
            pending.pop()
            inner = sum(counts[child] * number for child, number in below.items())
            counts[tree_id] = self.entry_count(tree_id) + inner
            if len(counts) > _COUNTED_TREES:
                return None
        return counts[top_id]

    def lookup(self, tree_id: ObjectId, name: bytes) -> Entry | None:
        """Returns one entry of a directory, or None. Reads one page."""
        tree = self.tree(tree_id)
        if tree.pages:
            pages = [page for page in tree.pages if page.first_name <= name]
            if not pages:
                return None
            tree = self.tree(pages[-1].id)
            require(not tree.pages, "tree", "a page has pages")
        return next((entry for entry in tree.entries if entry.name == name), None)

    def find(self, root: Entry, path: bytes) -> Entry | None:
        """Returns the entry at a path below a directory, or None."""
        entry: Entry | None = root
        for name in treepath.components(path):
            if entry is None or not entry.is_directory:
                return None
            entry = self.lookup(entry.tree_id, name)
        return entry

    def references(self, of: Reference) -> Iterator[Reference]:
        """Yields the objects that an object names itself; raises Corrupt.

        A directory's pages come first, before any of them is read. What several entries need is
        yielded for each.
        """
        if of.kind == ObjectKind.CHUNK_LIST:
            yield from content_references(_read_list(self._get, of.id, of.level))
        elif of.kind == ObjectKind.TREE and not of.is_page:
            for page in self.tree(of.id).pages:
                yield Reference(ObjectKind.TREE, page.id, is_page=True)
            content: Any
            file, directory = EntryKind.FILE, EntryKind.DIRECTORY
            for entry in self.entries(of.id):
                name, kind, _, _, _, _, _, content, xattrs = entry
                if type(xattrs) is bytes:
                    yield Reference(ObjectKind.CHUNK, ObjectId(xattrs), name)
                if kind == file:
                    # Not through content_references: the whole walk would take a quarter longer.
                    level = content[0]
                    named = ObjectKind.CHUNK_LIST if level else ObjectKind.CHUNK
                    for identity in content[1::2]:
                        if identity is not None:
                            yield Reference(named, identity, name, level)
                elif kind == directory:
                    yield Reference(ObjectKind.TREE, content, name)

    def xattrs(self, entry: Entry) -> Xattrs:
        """Returns an entry's extended attributes, wherever they are stored."""
        xattrs_id = entry.xattrs_id
        if xattrs_id is not None:
            return decode_xattrs(self._get(ObjectKind.CHUNK, xattrs_id))
        return entry.xattrs or ()


class Walk:
    """The directories that one walk comes to, which are not more than the store is worth.

    A directory that is named twice on each of thirty levels makes a thousand million paths of
    a few kilobytes. So all paths below the first directory are counted, each directory once, as
    soon as the walk passed some, or more than the sums of that directory say. Thus a small walk
    costs nothing, and false sums hide nothing.

    Of a walk that is part of another one, ``whole_id`` is where the other one began.
    """

    def __init__(self, trees: TreeReader, whole_id: ObjectId | None = None) -> None:
        self._trees = trees
        self._stored_bytes = trees.stored_bytes
        self._whole_id = whole_id
        self._passed = 0
        self._uncounted: int | None = None
        """How many may be passed before all are counted; None before the beginning."""
        self._most: int | None = None
        """How many may be passed at all; None before they were counted."""

    def begin(self, top_id: ObjectId, *, is_whole: bool = False) -> None:
        """Begins at a directory; with ``is_whole`` all below it will be passed.

        Raises OperationFailed (``too-many-paths``) as far as that is known beforehand.
        """
        if self._stored_bytes is None:
            return
        self._whole_id = self._whole_id or top_id
        top = self._trees.totals(top_id)
        sums = top.files + top.directories + top.others + top.skipped
        self._uncounted = min(sums, _UNCOUNTED_PATHS)
        if is_whole:
            self.expect(sums)

    def entries(self, tree_id: ObjectId) -> Iterator[Entry]:
        """Returns the entries of a directory in the order of their raw names.

        Raises OperationFailed (``too-many-paths``).
        """
        if self._stored_bytes is not None:
            if self._uncounted is None:
                self.begin(tree_id)
            self._passed += self._trees.entry_count(tree_id)
            self.expect(self._passed)
        return self._trees.entries(tree_id)

    def expect(self, count: int) -> None:
        """Raises OperationFailed (``too-many-paths``) if so many paths in all are too many."""
        if self._stored_bytes is None or self._uncounted is None or count <= self._uncounted:
            return
        if self._most is None:
            assert self._whole_id is not None
            self._most = paths_max(self._stored_bytes())
            counted = self._trees.path_count(self._whole_id)
            if counted is not None and counted > self._most:
                refuse_paths(counted, self._most)
            count = self._passed  # sums may be false
        if count > self._most:
            refuse_paths(None, self._most)


def root_references(root: Entry, links: FileContent | None) -> Iterator[Reference]:
    """Yields the objects that a captured root names: its links, its attributes and its tree."""
    if links is not None:
        yield from content_references(links)
    if root.xattrs_id is not None:
        yield Reference(ObjectKind.CHUNK, root.xattrs_id)
    yield Reference(ObjectKind.TREE, root.tree_id)


def content_references(content: FileContent, name: bytes = b"") -> Iterator[Reference]:
    """Yields the chunks or lists that a content names, lists not followed."""
    level = content.level
    kind = ObjectKind.CHUNK_LIST if level else ObjectKind.CHUNK
    for identity in content.ids():
        yield Reference(kind, identity, name, level)


def _read_list(get: Get, list_id: ObjectId, level: int | None) -> FileContent:
    """Returns the content of a chunk list that a content of some level names; raises Corrupt."""
    content = decode_list(get(ObjectKind.CHUNK_LIST, list_id))
    require(level is None or content.level == level - 1, "chunk list", "its level does not fit")
    return content


def read_segments(content: FileContent, get: Get) -> Iterator[Segment]:
    """Yields the chunks and holes of a content, chunk lists followed; raises Corrupt.

    There are none where the content is bytes. Depth is bounded by the level, which falls with
    every list.
    """
    if content.level == 0:
        yield from content.segments()
        return
    for segment in content.segments():
        assert segment.id is not None
        below = _read_list(get, segment.id, content.level)
        covered = 0
        for inner in read_segments(below, get):
            covered += inner.size
            yield inner
        require(covered == segment.size, "chunk list", "its size does not fit")


def read_content(
    content: FileContent, get: Get, hole_size: Callable[[int], int] = lambda size: size
) -> Iterator[bytes]:
    """Yields the bytes of a content in pieces, holes as zeros of at most 1 MiB each.

    ``hole_size`` says of how many zeros a hole of some size is read; a hole may be larger than
    any disk.
    """
    if content.data is not None:
        yield content.data
    for segment in read_segments(content, get):
        if segment.id is not None:
            data = get(ObjectKind.CHUNK, segment.id)
            require(len(data) == segment.size, "content", "a chunk has a wrong size")
            yield data
        else:
            left = hole_size(segment.size)
            while left:
                step = min(left, 1 << 20)
                yield bytes(step)
                left -= step


def segments_from(content: FileContent, get: Get, offset: int) -> Iterator[tuple[int, Segment]]:
    """Yields the chunks and holes of a content from the one at an offset on, each with its own.

    Reads no list that lies before. Raises Corrupt, as :func:`read_segments` does.
    """
    start = 0
    for segment in content.segments():
        end = start + segment.size
        if end > offset:
            if content.level == 0:
                yield start, segment
            else:
                assert segment.id is not None
                below = _read_list(get, segment.id, content.level)
                require(below.size_bytes == segment.size, "chunk list", "its size does not fit")
                for inner, part in segments_from(below, get, offset - start):
                    yield start + inner, part
        start = end


def read_range(content: FileContent, get: Get, offset: int, size: int) -> bytes:
    """Returns some bytes of a content, fewer at its end, holes as zeros; raises Corrupt.

    Reads the chunks that hold them, and the lists that lead there.
    """
    if content.data is not None:
        return content.data[offset : offset + size]
    end = min(offset + size, content.size_bytes)
    pieces: list[bytes] = []
    for start, segment in segments_from(content, get, offset) if offset < end else ():
        if start >= end:
            break
        part = slice(max(offset - start, 0), min(end - start, segment.size))
        if segment.id is None:
            pieces.append(bytes(part.stop - part.start))
        else:
            data = get(ObjectKind.CHUNK, segment.id)
            require(len(data) == segment.size, "content", "a chunk has a wrong size")
            pieces.append(data[part])
    return b"".join(pieces)


_PAGE_SIZE = 4096
"""Restores leave pages of zeros out, so at the edges of holes they count as holes."""


def next_data(content: FileContent, get: Get, offset: int) -> int | None:
    """Returns where data begins, at an offset or behind it; None if there is none.

    Costs a chunk: at its beginning, pages of zeros are a part of the hole.
    """
    for start, data in _data_from(content, get, offset):
        skipped = max(offset - start, 0)
        zeros = len(data) - len(data[skipped:].lstrip(b"\0"))
        if zeros < len(data):
            return max((start + zeros) // _PAGE_SIZE * _PAGE_SIZE, offset)
    return None


def next_hole(content: FileContent, get: Get, offset: int) -> int:
    """Returns where a hole begins, at an offset or behind it, or else the end of the content.

    Costs a chunk: at its end, pages of zeros are a part of the hole. Zeros between other data
    are data, or a large file would have to be read for them.
    """
    end = content.size_bytes
    last: tuple[int, ObjectId] | None = None
    if content.data is None:
        for start, segment in segments_from(content, get, offset):
            if segment.id is None:
                end = start
                break
            last = start, segment.id
    if content.data is not None:
        begin, data = 0, content.data
    elif last is not None:
        begin, data = last[0], get(ObjectKind.CHUNK, last[1])
    else:
        return max(end, offset)
    used = begin + len(data.rstrip(b"\0"))
    return max(min(-(-used // _PAGE_SIZE) * _PAGE_SIZE, end), offset)


def _data_from(content: FileContent, get: Get, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yields the data from an offset on, each piece with its position; skips holes."""
    if content.data is not None:
        if offset < len(content.data):
            yield 0, content.data
        return
    for start, segment in segments_from(content, get, offset):
        if segment.id is not None:
            yield start, get(ObjectKind.CHUNK, segment.id)


def data_size(content: FileContent, get: Get) -> int:
    """Returns the bytes of a content without its holes. Reads all lists."""
    if content.data is not None:
        return len(content.data) if any(content.data) else 0
    return sum(segment.size for segment in read_segments(content, get) if segment.id is not None)
