"""The collector's state."""

from __future__ import annotations

import os

import pytest

from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.message import pack
from treesnap.core.model.errors import Corrupt
from treesnap.core.store.collector import CollectorState, read_state, write_state
from treesnap.testing.doubles import FaultyFileSystem, Killed, kill_at


def test_a_store_that_never_collected_is_at_epoch_zero(fs, store):
    assert read_state(fs, store.layout) == CollectorState(epoch=0, condemned=frozenset())


def test_what_was_written_is_read(fs, store):
    state = CollectorState(epoch=7, condemned=frozenset([b"a" * 16, b"b" * 16]))

    write_state(fs, store.layout, state)

    assert read_state(fs, store.layout) == state


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_kill_leaves_the_old_state_or_the_new(fs, store, number):
    old, new = CollectorState(epoch=1), CollectorState(epoch=2, condemned=frozenset([b"a" * 16]))
    write_state(fs, store.layout, old)

    with pytest.raises(Killed):
        write_state(FaultyFileSystem(kill_at(number), inner=fs), store.layout, new)

    assert read_state(fs, store.layout) in {old, new}


@pytest.mark.parametrize(
    "value",
    [
        {"epoch": -1, "condemned": ()},
        {"epoch": 1, "condemned": (b"short",)},
        {"epoch": 1, "condemned": ("a" * 16,)},
        {"epoch": 1},
    ],
)
def test_an_impossible_state_is_damage(fs, store, value):
    with open(store.layout.collector_state, "wb") as file:
        file.write(seal(FileKind.COLLECTION, pack(value)))

    with pytest.raises(Corrupt):
        read_state(fs, store.layout)


def test_a_damaged_state_is_named(fs, store):
    write_state(fs, store.layout, CollectorState(epoch=1))
    os.truncate(store.layout.collector_state, 30)

    with pytest.raises(Corrupt, match="collector"):
        read_state(fs, store.layout)
