"""Which objects a push and a fetch take together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.remote.objects import in_blocks

SIZE = 10
"""Bytes of each object, with its kind byte."""


def entry(block: int, object_number: int, objects: int) -> IndexEntry:
    place = Block(b"p" * 16, block * 1000, 500, objects * SIZE)
    identity = ObjectId(bytes([block, object_number]) * 16)
    return IndexEntry(identity, place, object_number * SIZE, SIZE - 1, ObjectKind.CHUNK)


@st.composite
def walks(draw) -> tuple[list[int], list[IndexEntry]]:
    """Blocks of so many objects, and some of these in any order, some of them twice."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=8))
    every = [entry(block, n, size) for block, size in enumerate(sizes) for n in range(size)]
    return sizes, draw(st.lists(st.sampled_from(every), max_size=60))


@given(walk=walks(), objects_max=st.integers(1, 40))
def test_every_object_comes_in_its_block(walk, objects_max):
    _, entries = walk

    groups = list(in_blocks(((item.block, item) for item in entries), objects_max))

    found = {identity for group in groups for ids in group.values() for identity in ids}
    assert found == {item.id for item in entries}
    for group in groups:
        assert sum(map(len, group.values())) <= objects_max
        for block, ids in group.items():
            assert {identity[0] * 1000 for identity in ids} == {block.offset}


@given(walk=walks())
def test_a_block_that_is_wanted_whole_comes_whole_while_there_is_room(walk):
    sizes, entries = walk
    wanted = {item.id for item in entries}

    (group,) = in_blocks(((item.block, item) for item in entries), 1000)

    for block, size in enumerate(sizes):
        ids = {entry(block, number, size).id for number in range(size)}
        got = {identity for held in group.values() for identity in held if identity in ids}
        assert got == ids & wanted


def test_what_is_whole_goes_first():
    """Two blocks, one after the other, and one object of a third in between."""
    early, late = [[entry(block, number, 3) for number in range(3)] for block in (0, 1)]
    lonely = entry(2, 0, 3)

    first, second = in_blocks(
        ((item.block, item) for item in [*early[:2], lonely, early[2], *late]), 5
    )

    assert [block.offset for block in first] == [0]
    assert {block.offset: len(ids) for block, ids in second.items()} == {1000: 3, 2000: 1}
