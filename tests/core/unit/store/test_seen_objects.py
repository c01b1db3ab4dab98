"""The objects that a walk met, against a dictionary."""

from __future__ import annotations

import tracemalloc
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.ids import object_id
from treesnap.core.store.index import ObjectIndex
from treesnap.core.store.layout import Layout
from treesnap.core.store.maintenance.reachability import SeenObjects
from treesnap.core.store.store import Store

PACK = bytes(16)
IDS = [
    ObjectId(first * 8 + rest * 24)
    for first in (b"\0", b"\1", b"\xff")
    for rest in (b"\0", b"\1", b"\xff")
]
"""Of three each, an index compares the first eight bytes only to find that they are equal."""
KINDS = (ObjectKind.CHUNK, ObjectKind.TREE, ObjectKind.CHUNK_LIST)
numbers = count()


def index_of(path, *parts: list[ObjectId]) -> ObjectIndex:
    """Returns the index of a store with the given parts, which only they make."""
    Store.open(LocalFileSystem(), str(path), create=True)
    index = ObjectIndex(LocalFileSystem(), Layout(str(path)))
    for ids in parts:
        places = [IndexEntry(each, Block(PACK, 16, 99, 50), 0, 9, 1) for each in ids]
        index.write_part(places, {PACK: 1000})
    return index


@given(
    parts=st.lists(st.lists(st.sampled_from(IDS), unique=True), max_size=3),
    met=st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(KINDS))),
)
def test_every_object_is_new_once_whatever_the_index_has(tmp_path_factory, parts, met):
    seen = SeenObjects(index_of(tmp_path_factory.getbasetemp() / f"seen-{next(numbers)}", *parts))
    expected: dict[ObjectId, ObjectKind] = {}

    for identity, kind in met:
        assert seen.add(identity, kind) is (identity not in expected)
        expected.setdefault(identity, kind)

    assert len(seen) == len(expected)
    found = {each: seen.number_of(each) for each in IDS}
    kinds = {each: None if n is None else seen.kind_of(n) for each, n in found.items()}
    assert kinds == {each: expected.get(each) for each in IDS}
    given_numbers = [number for number in found.values() if number is not None]
    assert len(set(given_numbers)) == len(given_numbers)
    assert all(0 <= number < seen.number_end for number in given_numbers)


@pytest.mark.parametrize("is_indexed", [True, False])
def test_an_object_of_the_index_takes_a_byte(tmp_path, is_indexed):
    ids = [object_id(ObjectKind.CHUNK, b"%d" % number) for number in range(2000)]
    index = index_of(tmp_path / "store", ids if is_indexed else [])
    tracemalloc.start()
    try:
        seen = SeenObjects(index)
        before = tracemalloc.get_traced_memory()[0]
        for identity in ids:
            seen.add(identity, ObjectKind.CHUNK)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert (grown < len(ids)) is is_indexed
