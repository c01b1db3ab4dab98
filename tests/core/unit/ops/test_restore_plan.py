"""What planning a restore costs, counted in objects that are read."""

from __future__ import annotations

from collections import Counter

import pytest

from treesnap.core.codec.reader import TreeCache, TreeReader
from treesnap.core.codec.tree import put_tree
from treesnap.core.model.entries import Entry, EntryKind, Totals
from treesnap.core.model.ids import object_id
from treesnap.core.model.path_budget import PathBudget
from treesnap.core.ops.restore.plan import make_plan
from treesnap.core.ops.tree_state import State

DIRECTORIES = 20


class Objects:
    """Trees in memory; counts how often each is read."""

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = {}
        self.reads: Counter[bytes] = Counter()

    def put(self, kind, data):
        identity = object_id(kind, data)
        self._data[identity] = data
        return identity

    def get(self, kind, identity):
        self.reads[identity] += 1
        return self._data[identity]

    def directory(self, name: bytes, *entries: Entry) -> Entry:
        tree_id = put_tree(entries, Totals(files=len(entries)), self.put)
        return Entry(name, EntryKind.DIRECTORY, 0o755, 0, 0, 7, 0, tree_id, None)

    def state(self, root: Entry) -> State:
        return State(root=root, trees=TreeReader(self.get, TreeCache(1)), groups={})


def file(name: bytes, number: int) -> Entry:
    content = (0, bytes([number]) * 32, 3)
    return Entry(name, EntryKind.FILE, 0o644, 0, 0, 7, 3, content, None)


@pytest.fixture
def objects():
    return Objects()


def tree(objects: Objects, number: int) -> State:
    """A state whose directories all hold one file with its own content for each number."""
    names = [b"%02d" % position for position in range(DIRECTORIES)]
    below = [objects.directory(name, file(b"changed", number), file(b"same", 9)) for name in names]
    return objects.state(objects.directory(b"", *below))


def test_each_directory_is_read_once_on_each_side(objects):
    current, target = tree(objects, 1), tree(objects, 2)

    plan = make_plan(current, target, budget=PathBudget(lambda: 0))

    assert len(plan.puts) == len(plan.changes) == DIRECTORIES
    assert set(plan.directories) == {b"", *(path.partition(b"/")[0] for path in plan.puts)}
    assert set(objects.reads.values()) == {1}


def test_what_is_put_as_a_whole_is_listed_path_by_path(objects):
    current = objects.state(objects.directory(b"", file(b"here", 1)))
    below = objects.directory(b"new", file(b"a", 1), file(b"b", 2))
    target = objects.state(objects.directory(b"", below, file(b"newer", 3)))

    plan = make_plan(current, target, budget=PathBudget(lambda: 0))

    assert set(plan.puts) == {b"new", b"newer"}
    assert set(plan.removals) == {b"here"}
    assert [change.path for change in plan.changes] == [
        b"here",
        b"new",
        b"new/a",
        b"new/b",
        b"newer",
    ]
