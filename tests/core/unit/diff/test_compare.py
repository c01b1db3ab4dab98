"""Comparing two directories of entries, in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.diff.trees import changes, differing, kind_of_change, paired
from treesnap.core.model.entries import ChangeKind, Entry, EntryKind, ObjectId, SkipReason


def file(name: bytes, number: int = 1, **changes) -> Entry:
    identity = bytes([number]) * 32
    entry = Entry(name, EntryKind.FILE, 0o644, 0, 0, 7, 3, (0, identity, 3), None)
    return entry._replace(**changes)


def skipped(name: bytes) -> Entry:
    return Entry(name, EntryKind.SKIPPED, 0, 0, 0, 0, 0, int(SkipReason.EXCLUDED), None)


class Trees:
    """Makes directories, and reads them by id; counts how often."""

    def __init__(self) -> None:
        self.read = 0
        self._entries: dict[bytes, list[Entry]] = {}

    def directory(self, name: bytes, *entries: Entry, **changes) -> Entry:
        identity = b"%032d" % hash(entries)
        self._entries[identity] = sorted(entries)
        entry = Entry(name, EntryKind.DIRECTORY, 0o755, 0, 0, 7, 0, identity, None)
        return entry._replace(**changes)

    def entries(self, tree_id: ObjectId) -> list[Entry]:
        self.read += 1
        return self._entries[tree_id]

    def changes(self, old: Entry, new: Entry) -> list[tuple[bytes, ChangeKind]]:
        found = changes(old, new, self.entries, self.entries)
        return [(change.path, change.change) for change in found]


@pytest.fixture
def trees():
    return Trees()


def test_entries_are_paired_by_name():
    old, new = [file(b"a"), file(b"b")], [file(b"b"), file(b"c")]

    assert list(paired(old, new)) == [(old[0], None), (old[1], new[0]), (None, new[1])]


@given(
    old=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 2)),
    new=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 2)),
    part=st.integers(1, 9),
)
def test_what_differs_is_what_a_look_at_each_name_finds(old, new, part):
    trees = Trees()
    sides = [{name: file(name.encode(), number) for name, number in m.items()} for m in (old, new)]
    roots = [trees.directory(b"", *side.values()) for side in sides]
    expected = [
        (name.encode(), sides[0].get(name), sides[1].get(name))
        for name in sorted({*old, *new})
        if sides[0].get(name) != sides[1].get(name)
    ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treesnap.core.diff.trees._PART", part)
        found = list(differing(*roots, trees.entries, trees.entries))

    assert found[1:] == expected


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, None),
        ({"content": (0, b"2" * 32, 3)}, ChangeKind.MODIFIED),
        ({"size": 4}, ChangeKind.MODIFIED),
        ({"mode": 0o600}, ChangeKind.METADATA),
        ({"uid": 1}, ChangeKind.METADATA),
        ({"gid": 1}, ChangeKind.METADATA),
        ({"mtime_ns": 8}, ChangeKind.METADATA),
        ({"xattrs": ((b"user.a", b"1"),)}, ChangeKind.METADATA),
        ({"kind": EntryKind.FIFO}, ChangeKind.TYPE),
    ],
)
def test_every_field_of_a_file_counts(change, kind):
    assert kind_of_change(file(b"a"), file(b"a", **change)) == kind


def test_the_time_of_a_directory_alone_is_no_change(trees):
    old = trees.directory(b"d")

    assert kind_of_change(old, old._replace(mtime_ns=9)) is None
    assert kind_of_change(old, old._replace(mode=0o700)) == ChangeKind.METADATA


def test_equal_directories_are_not_read(trees):
    root = trees.directory(b"", file(b"a"))

    assert trees.changes(root, root) == []
    assert trees.read == 0


def test_everything_below_an_added_directory_is_added(trees):
    old = trees.directory(b"")
    new = trees.directory(b"", trees.directory(b"d", file(b"a"), trees.directory(b"e")))

    assert trees.changes(old, new) == [
        (b"d", ChangeKind.ADDED),
        (b"d/a", ChangeKind.ADDED),
        (b"d/e", ChangeKind.ADDED),
    ]


def test_everything_below_a_removed_directory_is_removed(trees):
    old = trees.directory(b"", trees.directory(b"d", file(b"a")))

    assert trees.changes(old, trees.directory(b"")) == [
        (b"d", ChangeKind.REMOVED),
        (b"d/a", ChangeKind.REMOVED),
    ]


def test_a_directory_that_becomes_a_file_loses_what_it_held(trees):
    old = trees.directory(b"", trees.directory(b"d", file(b"a")))
    new = trees.directory(b"", file(b"d"))

    assert trees.changes(old, new) == [(b"d", ChangeKind.TYPE), (b"d/a", ChangeKind.REMOVED)]


def test_a_change_deep_down_is_found_alone(trees):
    old = trees.directory(b"", trees.directory(b"d", file(b"a")), trees.directory(b"e"))
    new = trees.directory(b"", trees.directory(b"d", file(b"a", 2)), trees.directory(b"e"))

    assert trees.changes(old, new) == [(b"d/a", ChangeKind.MODIFIED)]


def test_the_root_itself_may_change(trees):
    root = trees.directory(b"")

    assert trees.changes(root, root._replace(mode=0o700)) == [(b"", ChangeKind.METADATA)]


def test_what_a_side_skipped_is_no_change(trees):
    old = trees.directory(b"", skipped(b"a"), file(b"b"))
    new = trees.directory(b"", file(b"a"), skipped(b"b"), skipped(b"c"))

    assert trees.changes(old, new) == []


def test_depth_costs_no_recursion(trees):
    old, new = trees.directory(b"d"), trees.directory(b"d", file(b"a"))
    for _ in range(3000):
        old, new = trees.directory(b"d", old), trees.directory(b"d", new)

    (change,) = trees.changes(old, new)

    assert change[1] == ChangeKind.ADDED
