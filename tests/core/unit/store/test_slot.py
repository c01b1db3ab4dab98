"""Writer slots."""

from __future__ import annotations

import os

import pytest

from treesnap.core.store.writer_slot import NO_PACK, acquire, sweep_pending, try_acquire
from treesnap.testing.children import in_child


@pytest.fixture
def layout(store):
    return store.layout


def slot_names(layout) -> list[str]:
    return os.listdir(layout.slots)


def test_a_released_slot_is_taken_again(fs, layout):
    first = acquire(fs, layout)
    first.release()

    second = acquire(fs, layout)

    second.release()
    assert first.name == second.name
    assert slot_names(layout) == [first.name]


def test_two_writers_at_once_have_two_slots(fs, layout):
    first, second = acquire(fs, layout), acquire(fs, layout)

    assert sorted(slot_names(layout)) == sorted([first.name, second.name])
    first.release()
    second.release()


def test_the_slot_of_a_dead_writer_is_free(fs, layout):
    def die_writing() -> None:
        acquire(fs, layout).write(3, b"p" * 16)
        os._exit(0)

    in_child(die_writing)

    slot = acquire(fs, layout)

    assert slot_names(layout) == [slot.name]
    assert slot.read() == (3, b"p" * 16)
    slot.release()


def test_a_child_gets_a_slot_of_its_own(fs, layout):
    """A lock that was inherited by fork is not taken for one's own."""
    mine = acquire(fs, layout)

    ended = in_child(lambda: acquire(fs, layout).release())

    assert ended.error is None
    assert len(slot_names(layout)) == 2
    mine.release()


def test_epoch_and_pack_are_remembered(fs, layout):
    slot = acquire(fs, layout)

    slot.write(7, b"p" * 16)

    assert slot.read() == (7, b"p" * 16)
    slot.release()


def test_a_new_slot_has_no_pack(fs, layout):
    slot = acquire(fs, layout)

    assert slot.read() == (0, NO_PACK)
    slot.release()


@pytest.mark.parametrize("content", [b"", b"short", bytes(44), bytes(45), b"TREESNAP" + bytes(36)])
def test_a_slot_that_cannot_be_read_counts_as_new(fs, layout, content):
    slot = acquire(fs, layout)
    with open(os.path.join(layout.slots, slot.name), "wb") as file:
        file.write(content)

    assert slot.read() == (0, NO_PACK)
    slot.release()


def test_a_slot_with_one_wrong_bit_counts_as_new(fs, layout):
    slot = acquire(fs, layout)
    slot.write(7, b"p" * 16)
    path = os.path.join(layout.slots, slot.name)
    with open(path, "r+b") as file:
        file.seek(20)
        file.write(b"\x01")

    assert slot.read() == (0, NO_PACK)
    slot.release()


def test_foreign_files_are_no_slots(fs, layout):
    with open(os.path.join(layout.slots, "README"), "w") as file:
        file.write("not a slot")

    assert try_acquire(fs, layout, "README") is None


def test_a_slot_that_is_gone_is_not_acquired(fs, layout):
    assert try_acquire(fs, layout, "0" * 16) is None


def test_what_is_pending_goes_with_its_writer(fs, layout):
    """One writer lives, one has died, and of one the slot was lost."""
    dead, alive = acquire(fs, layout), acquire(fs, layout)
    lost = os.path.join(layout.pending, "0" * 16)
    for path in (dead.pending_path, alive.pending_path, lost):
        with open(path, "wb") as file:
            file.write(b"pending")
    dead.release()

    sweep_pending(fs, layout)

    assert os.listdir(layout.pending) == [alive.name]
    alive.release()
