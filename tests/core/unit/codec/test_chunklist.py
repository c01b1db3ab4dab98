"""Contents: runs of chunks and holes, folded into lists and read again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treesnap.core.codec.chunklist import (
    INLINE_SIZE_MAX,
    LIST_SIZE_MAX,
    check_content,
    decode_list,
    fold,
)
from treesnap.core.codec.message import pack
from treesnap.core.codec.reader import (
    Reference,
    TreeReader,
    content_references,
    read_content,
    read_segments,
)
from treesnap.core.model.entries import FileContent, ObjectId, ObjectKind, Segment
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.ids import object_id

ID = ObjectId(b"\x01" * 32)


class Objects(dict[ObjectId, bytes]):
    """Keeps objects in memory."""

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        identity = object_id(kind, data)
        self[identity] = data
        return identity

    def read(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        return self[identity]


def chunks(count: int) -> list[Segment]:
    return [Segment(object_id(ObjectKind.CHUNK, b"%d" % n), n + 1) for n in range(count)]


def references_below(objects: Objects, content: FileContent) -> list[Reference]:
    """Returns what a content names, the lists in it followed."""
    trees = TreeReader(objects.read)
    found: list[Reference] = []
    pending = list(content_references(content))
    while pending:
        reference = pending.pop()
        found.append(reference)
        pending += trees.references(reference)
    return found


@pytest.mark.parametrize("count", [0, 1, 16, 17, 64, 1025, 20_000])
def test_segments_come_back_from_any_depth(count):
    objects = Objects()
    segments = chunks(count)

    content = fold(segments, objects.put)

    assert list(read_segments(content, objects.read)) == segments
    assert len(content) <= 33
    assert check_content(tuple(content)) == sum(segment.size for segment in segments)
    found = references_below(objects, content)
    assert {item.id for item in found if item.kind == ObjectKind.CHUNK_LIST} == set(objects)
    named = {item.id for item in found if item.kind == ObjectKind.CHUNK}
    assert named == {segment.id for segment in segments}
    assert all(len(data) <= LIST_SIZE_MAX for data in objects.values())


def test_twenty_thousand_segments_make_two_levels():
    assert fold(chunks(20_000), Objects().put)[0] == 2


def test_equal_segments_make_the_longest_lists():
    objects = Objects()

    content = fold([Segment(ID, 5)] * (17 * 1024), objects.put)

    assert content[0] == 2
    assert len(objects) == 2


def test_an_insertion_makes_few_lists_anew():
    objects = Objects()
    segments = chunks(20_000)
    fold(segments, objects.put)
    before = len(objects)

    fold([*segments[:10_000], Segment(ID, 9), *segments[10_000:]], objects.put)

    assert len(objects) - before <= 4


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 1 << 30), max_size=200),
    holes=st.sets(st.integers(0, 199)),
    ends=st.sets(st.integers(0, 199)),
)
def test_folding_loses_nothing(sizes, holes, ends):
    objects = Objects()
    segments = [
        Segment(None if n in holes else ObjectId(bytes([n not in ends]) * 32), size)
        for n, size in enumerate(sizes)
    ]

    content = fold(segments, objects.put)

    assert list(read_segments(content, objects.read)) == segments


@pytest.mark.parametrize(
    "value",
    [
        (),
        (0, ID),
        (0, ID, 0),
        (0, ID, -1),
        (0, ID, True),
        (0, ID, 1 << 63),
        (0, ID, (1 << 63) - 1, ID, 1),
        (-1, ID, 1),
        (9, ID, 1),
        (False, ID, 1),
        (1, None, 1),
        (0, b"short", 1),
        (b"bytes of a file",),
        (0, "text", 1),
        (0, *(ID, 1) * 1025),
        7,
        None,
    ],
)
def test_a_list_that_breaks_a_rule_is_refused(value):
    with pytest.raises(Corrupt):
        decode_list(pack(value))


@pytest.mark.parametrize(
    "value", [(b"",), (b"a" * (INLINE_SIZE_MAX + 1),), (b"a", 1), (b"a", ID, 1), ("a",), b"a"]
)
def test_bytes_in_place_that_break_a_rule_are_refused(value):
    with pytest.raises(Corrupt):
        check_content(value)


@pytest.mark.parametrize("size", [1, INLINE_SIZE_MAX])
def test_bytes_in_place_are_all_there_is(size):
    content = FileContent((b"a" * size,))

    assert check_content(tuple(content)) == content.size_bytes == size
    assert list(read_content(content, Objects().read)) == [b"a" * size]
    assert list(read_segments(content, Objects().read)) == []
    assert list(content_references(content)) == []


def test_a_list_that_is_too_large_is_refused_before_it_is_decoded():
    with pytest.raises(Corrupt, match="too large"):
        decode_list(bytes(LIST_SIZE_MAX + 1))


def test_a_list_of_another_level_is_refused():
    objects = Objects()
    below = objects.put(ObjectKind.CHUNK_LIST, pack((1, ID, 5)))

    with pytest.raises(Corrupt, match="level"):
        list(read_segments(FileContent((1, below, 5)), objects.read))
    with pytest.raises(Corrupt, match="level"):
        references_below(objects, FileContent((1, below, 5)))


def test_a_list_whose_sizes_do_not_add_up_is_refused():
    objects = Objects()
    below = objects.put(ObjectKind.CHUNK_LIST, pack((0, ID, 5)))

    with pytest.raises(Corrupt, match="size"):
        list(read_segments(FileContent((1, below, 6)), objects.read))


def test_a_chunk_of_another_size_is_refused():
    objects = Objects()
    chunk = objects.put(ObjectKind.CHUNK, b"12345")

    with pytest.raises(Corrupt, match="size"):
        list(read_content(FileContent((0, chunk, 4)), objects.read))


def test_holes_are_read_as_zeros_in_small_pieces():
    objects = Objects()
    chunk = objects.put(ObjectKind.CHUNK, b"end")

    pieces = list(read_content(FileContent((0, None, (1 << 20) + 5, chunk, 3)), objects.read))

    assert [len(piece) for piece in pieces] == [1 << 20, 5, 3]
    assert b"".join(pieces) == bytes((1 << 20) + 5) + b"end"
