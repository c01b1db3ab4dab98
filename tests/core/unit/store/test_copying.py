"""Copying records to other packs, as the collector does."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from treesnap.core.model.errors import Corrupt
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer
from treesnap.testing.doubles import Fault, FaultMoment, FaultyFileSystem, UnsyncedFileSystem

CHUNKS = [Random(number).randbytes(1000) for number in range(4)]


@pytest.fixture
def places(open_store, put):
    """Four objects in a pack that is to go."""
    store = open_store()
    return [store.index.find(identity) for identity in put(*CHUNKS)]


def copied(store, places) -> list[bytes]:
    """Returns what is found outside the pack that is to go."""
    avoid = frozenset([places[0].pack_id])
    found = [store.index.find(entry.id, avoid) for entry in places]
    return [store.packs.read(place) for place in found if place is not None]


def others(store, places) -> list[bytes]:
    return [pack_id for pack_id in store.packs.sizes() if pack_id != places[0].pack_id]


def test_copies_are_verified_and_new(open_store, put):
    (identity,) = put(b"one")
    store = open_store()
    entry = store.index.find(identity)
    with Writer(open_store()) as writer:
        writer.copy([entry], frozenset([entry.pack_id]))

    again = open_store()
    place = again.index.find(identity, frozenset([entry.pack_id]))
    assert place is not None
    assert again.packs.read(place) == b"one"


def test_a_copy_fills_one_pack_after_the_other(open_store, places, monkeypatch):
    monkeypatch.setattr("treesnap.core.store.packs.PACK_SIZE_TARGET", 2 * len(CHUNKS[0]))
    monkeypatch.setattr("treesnap.core.store.writer.BATCH_OBJECTS_MAX", 1)
    with Writer(open_store()) as writer:
        writer.copy(places, frozenset([places[0].pack_id]))

    store = open_store()
    assert copied(store, places) == CHUNKS
    assert [len(store.inventory(item).entries) for item in others(store, places)] == [2, 2]


def test_a_copy_keeps_few_entries_in_memory_and_what_is_indexed_when_it_fails(
    open_store, places, monkeypatch
):
    """A part is written after two objects; the third is undone with the fourth."""
    monkeypatch.setattr("treesnap.core.store.writer._ENTRIES_MAX", 2)
    monkeypatch.setattr("treesnap.core.store.writer.BATCH_OBJECTS_MAX", 1)
    missing = places[3]._replace(start=places[3].start + 1)
    with Writer(open_store()) as writer, pytest.raises(Corrupt):
        writer.copy([*places[:3], missing], frozenset([places[0].pack_id]))

    store = open_store()
    assert copied(store, places) == CHUNKS[:2]
    (other,) = others(store, places)
    assert len(store.inventory(other).entries) == 2


def test_a_copy_that_fails_when_its_index_part_has_its_name_takes_nothing_back(
    open_store, places, store_path
):
    """An error may be reported for what was done, and others may have found the new places."""
    fault = Fault(
        methods=frozenset({"rename"}),
        where=lambda call: os.path.basename(os.path.dirname(call.paths[-1])) == "index",
        errno=errno.EIO,
        moment=FaultMoment.AFTER,
    )
    fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())
    with (
        Store.open(fs, store_path) as failing,
        Writer(failing) as writer,
        pytest.raises(OSError, match=os.strerror(errno.EIO)),
    ):
        writer.copy(places, frozenset([places[0].pack_id]))

    assert copied(open_store(), places) == CHUNKS
