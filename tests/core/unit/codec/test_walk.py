"""A walk of stored directories comes to no more paths than the store is worth.

What it costs to say so is counted in directories that are read.
"""

from __future__ import annotations

from collections import Counter

import pytest

from treesnap.core.codec.message import pack
from treesnap.core.codec.reader import TreeReader
from treesnap.core.codec.tree import decode_tree
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, ObjectKind, Totals
from treesnap.core.model.errors import Corrupt, ErrorCode, OperationFailed
from treesnap.core.model.ids import object_id

MISSING = ObjectId(b"\xee" * 32)


class Trees:
    """Directories in memory, which count how often each is read."""

    def __init__(self) -> None:
        self.reads: Counter[ObjectId] = Counter()
        self._objects: dict[ObjectId, bytes] = {}

    def get(self, _kind: ObjectKind, identity: ObjectId) -> bytes:
        self.reads[identity] += 1
        if identity not in self._objects:
            raise Corrupt("It is missing")
        return self._objects[identity]

    def tree(self, *below: ObjectId, files: int = 0, sums: Totals | None = None) -> ObjectId:
        """Adds a directory with so many empty files, and with some directories below it."""
        rows = [
            Entry(b"%04d" % n, EntryKind.DIRECTORY, 0o755, 0, 0, 0, 0, tree_id, None)
            for n, tree_id in enumerate(below)
        ]
        rows += [
            Entry(b"f%04d" % n, EntryKind.FILE, 0o644, 0, 0, 0, 0, (0,), None) for n in range(files)
        ]
        if sums is None:
            sums = Totals(files=files, directories=len(below))
            for tree_id in below:
                sums = sums.plus(decode_tree(self._objects[tree_id]).totals)
        data = pack((1, sums, 0, tuple(rows)))
        identity = object_id(ObjectKind.TREE, data)
        self._objects[identity] = data
        return identity

    def doubled(self, levels: int, sums: Totals | None = None) -> ObjectId:
        """Adds a directory that is named twice on each of some levels."""
        top = self.tree(files=1)
        for _ in range(levels):
            top = self.tree(top, top, sums=sums)
        return top

    def reader(self, stored_bytes: int | None = 0) -> TreeReader:
        if stored_bytes is None:
            return TreeReader(self.get)
        return TreeReader(self.get, stored_bytes=lambda: stored_bytes)


@pytest.fixture
def trees() -> Trees:
    return Trees()


def all_below(reader: TreeReader, top: ObjectId) -> int:
    """Walks through everything; returns how many paths there are."""
    walk = reader.walk()
    pending, count = [top], 0
    while pending:
        for entry in walk.entries(pending.pop()):
            count += 1
            if entry.is_directory:
                pending.append(entry.tree_id)
    return count


@pytest.mark.parametrize("sums", [None, Totals(), Totals(files=7)], ids=["true", "none", "false"])
def test_too_many_paths_are_refused_once_each_directory_was_read(trees, sums):
    top = trees.doubled(40, sums)

    with pytest.raises(OperationFailed, match="has 3,298,534,883,326 paths") as caught:
        all_below(trees.reader(), top)

    assert caught.value.code == ErrorCode.TOO_MANY_PATHS
    assert trees.reads.total() <= 41


def test_what_is_walked_as_a_whole_is_refused_before_it_begins(trees):
    top = trees.doubled(40)

    with pytest.raises(OperationFailed, match="3,298,534,883,326"):
        trees.reader().walk().begin(top, is_whole=True)


def test_ten_million_files_in_few_directories_are_no_matter(trees):
    leaf = trees.tree(files=1000)
    for _ in range(2):
        leaf = trees.tree(*[leaf] * 100)
    reader = trees.reader()

    reader.walk().begin(leaf, is_whole=True)

    assert reader.path_count(leaf) == 10_010_100
    assert trees.reads.total() == 3


def test_a_larger_store_may_have_more_paths(trees):
    top = trees.doubled(25)
    count = trees.reader().path_count(top)
    assert count is not None

    trees.reader(8 * count).walk().begin(top, is_whole=True)
    with pytest.raises(OperationFailed):
        trees.reader(1 << 20).walk().begin(top, is_whole=True)


def test_false_sums_alone_refuse_nothing(trees):
    huge = Totals(*[(1 << 63) - 1] * 6)
    top = trees.tree(trees.tree(files=3, sums=Totals()), sums=huge)
    walk = trees.reader().walk()

    walk.begin(top, is_whole=True)

    assert all_below(trees.reader(), top) == 4


def test_parts_that_have_more_than_the_whole_says_are_counted_from_the_top(trees):
    part = trees.doubled(10)
    top = trees.doubled(40, Totals(files=5000))
    walk = trees.reader().walk(top)
    walk.begin(part)

    with pytest.raises(OperationFailed, match="3,298,534,883,326"):
        walk.expect(5001)


def test_a_live_tree_has_no_bound(trees):
    top = trees.doubled(40)
    walk = trees.reader(None).walk()

    walk.begin(top, is_whole=True)
    walk.expect(1 << 60)

    assert len(list(walk.entries(top))) == 2


def test_what_is_damaged_elsewhere_stops_no_walk(trees):
    lost = trees.tree(MISSING, sums=Totals())
    top = trees.tree(trees.tree(files=2, sums=Totals()), lost)
    walk = trees.reader().walk()

    entries = list(walk.entries(top))

    assert len(list(walk.entries(entries[0].tree_id))) == 2
    assert trees.reader().path_count(top) == 5
