"""Identities: what they cover, and that they are the same everywhere."""

from __future__ import annotations

from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.ids import checksum, expanded, object_id, root_id


def test_the_same_bytes_of_another_kind_are_another_object():
    assert len({object_id(kind, b"treesnap") for kind in ObjectKind}) == len(ObjectKind)


def test_bytes_may_come_in_any_buffer():
    data = b"treesnap"

    assert object_id(ObjectKind.CHUNK, memoryview(data)) == object_id(ObjectKind.CHUNK, data)
    assert checksum(memoryview(data), 8) == checksum(data, 32)[:8]


def test_what_looks_random_is_the_same_everywhere():
    assert expanded(b"seed", 100)[:50] == expanded(b"seed", 50)
    assert expanded(b"seed", 50) != expanded(b"weed", 50)


def test_a_root_is_known_by_its_path():
    assert root_id(b"/srv/data") == "14420b3e72f42103171c569eb7126a98"
