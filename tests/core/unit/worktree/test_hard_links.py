"""Hard-link groups: collected, stored as a table, read again, and refused when impossible."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.codec.message import pack
from treesnap.core.model.entries import FileContent, ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.ids import object_id
from treesnap.core.ops.tree_state import subset_groups
from treesnap.core.worktree.scan.hard_links import (
    Groups,
    LinkGroups,
    distinct_groups,
    load_groups,
    relinked_paths,
)


class Objects(dict[ObjectId, bytes]):
    """Keeps objects in memory."""

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        identity = object_id(kind, data)
        self[identity] = data
        return identity

    def read(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        return self[identity]


def loaded(data: bytes) -> Any:
    """Returns the groups of a table that is one chunk."""
    objects = Objects()
    return load_groups(
        FileContent((0, objects.put(ObjectKind.CHUNK, data), len(data))), objects.read
    )


def test_groups_come_back_sorted():
    objects, groups = Objects(), LinkGroups()
    for path, inode in [(b"b", 1), (b"d", 2), (b"a", 1), (b"c/e", 2), (b"alone", 3)]:
        groups.add(9, inode, 2, path)

    content = groups.store(objects.put)

    assert load_groups(content, objects.read) == {
        b"a": (b"a", b"b"),
        b"b": (b"a", b"b"),
        b"c/e": (b"c/e", b"d"),
        b"d": (b"c/e", b"d"),
    }


def test_names_on_other_devices_are_other_files():
    groups = LinkGroups()
    groups.add(1, 7, 1, b"a")
    groups.add(2, 7, 1, b"b")

    assert groups.store(Objects().put) is None
    assert load_groups(None, Objects().read) == {}


def test_a_large_table_comes_back_from_many_chunks():
    objects, groups = Objects(), LinkGroups()
    for number in range(30_000):
        groups.add(1, number // 3, 3, b"directory/%06d" % number)

    content = groups.store(objects.put)

    assert content is not None
    assert len(content) > 3
    found = load_groups(content, objects.read)
    assert len(found) == 30_000
    assert found[b"directory/000004"] == tuple(b"directory/%06d" % n for n in (3, 4, 5))


@pytest.mark.parametrize(
    "groups",
    [
        [[]],
        [[b"a"]],
        [[b"a", b"a"]],
        [[b"b", b"a"]],
        [[b"", b"a"]],
        [[b"a", b"b/../c"]],
        [[b"/a", b"b"]],
        [[b"a", "b"]],
        [[b"a", [b"b"]]],
        [[b"a", {}]],
        [[b"a", None]],
        [[b"c", b"d"], [b"a", b"b"]],
        [[b"a", b"b"], [b"a", b"b"]],
        [[b"a", b"c"], [b"b", b"c"]],
        [{}],
        [7],
        [b"a"],
    ],
    ids=repr,
)
def test_a_table_that_breaks_a_rule_is_refused(groups):
    with pytest.raises(Corrupt):
        loaded(b"".join(map(pack, groups)))


def test_a_table_that_is_cut_short_is_refused_at_every_byte():
    data = b"".join(map(pack, [[b"a", b"b"], [b"c", b"d" * 40]]))
    boundaries = {len(pack([b"a", b"b"]))}

    for size in range(1, len(data)):
        if size not in boundaries:
            with pytest.raises(Corrupt):
                loaded(data[:size])


def test_a_table_has_no_holes_and_chunks_of_the_size_stated():
    objects = Objects()
    chunk = objects.put(ObjectKind.CHUNK, pack([b"a", b"b"]))

    with pytest.raises(Corrupt, match="hole"):
        load_groups(FileContent((0, None, 1 << 40)), objects.read)
    with pytest.raises(Corrupt, match="size"):
        load_groups(FileContent((0, chunk, 3)), objects.read)


def test_a_path_of_absurd_length_is_refused():
    with pytest.raises(Corrupt):
        loaded(pack([b"a/" * (3 << 20), b"b"]))


NAMES = tuple(bytes([letter]) for letter in b"abcdef")


class Counted(tuple[bytes, ...]):
    """A group that counts how often it is compared or hashed, as a whole."""

    __slots__ = ()
    looks = 0

    def __eq__(self, other: object) -> bool:
        type(self).looks += 1
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        type(self).looks += 1
        return super().__ne__(other)

    def __hash__(self) -> int:
        type(self).looks += 1
        return super().__hash__()


def grouped(inodes: tuple[int, ...]) -> Groups:
    """Returns the groups of names of which each has an inode."""
    groups: Groups = {}
    for inode in set(inodes):
        group = tuple(name for name, own in zip(NAMES, inodes, strict=True) if own == inode)
        if len(group) > 1:
            groups |= dict.fromkeys(group, group)
    return groups


INODES = st.tuples(*[st.integers(1, 4)] * len(NAMES))


@given(old=INODES, new=INODES)
def test_names_are_relinked_whose_other_names_are_others(old, new):
    before, after = grouped(old), grouped(new)

    found = relinked_paths(before, after)

    assert found == {name for name in NAMES if before.get(name) != after.get(name)}
    assert {*distinct_groups(after).values()} == {*after.values()}
    wanted = {after[name] for name in found if name in after}
    assert {*distinct_groups(after, found).values()} == wanted


@pytest.mark.parametrize("count", [100, 10_000])
def test_a_group_is_looked_at_a_few_times_however_many_names_it_has(count):
    names = [b"%d" % number for number in range(count)]
    before, after = (dict.fromkeys(names, Counted(names)) for _ in range(2))
    Counted.looks = 0

    assert relinked_paths(before, after) == set()
    assert len(subset_groups(before, lambda _: True)) == count
    assert distinct_groups(after, names) == {names[0]: tuple(names)}

    assert Counted.looks < 10
