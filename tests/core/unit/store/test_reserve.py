"""Room that is kept for the collector."""

from __future__ import annotations

import errno
import os

import pytest

from treesnap.core.store.reserve import RESERVE_SIZE, Reserve
from treesnap.testing.doubles import Fault, FaultyFileSystem


def sizes(store) -> list[int]:
    """Returns the sizes of those files of the reserve that are there."""
    paths = store.layout.collector_reserves
    return [os.path.getsize(path) for path in paths if os.path.exists(path)]


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Action:
    """Finds no room the first so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        if self.count <= self.failures:
            raise full()
        return "done"


def test_where_there_is_no_room_nothing_is_left_and_nothing_is_said(store):
    fault = Fault(methods=frozenset({"allocate"}), errno=errno.ENOSPC)
    fs = FaultyFileSystem(fault)

    Reserve(fs, store.layout).fill()

    assert fs.hits_of(fault) == 1
    assert sizes(store) == []
    assert os.listdir(store.layout.temporary) == []


def test_it_is_given_up_for_what_finds_no_room(fs, store):
    reserve, action = Reserve(fs, store.layout), Action(1)
    reserve.fill()
    before = sizes(store)

    assert reserve.retry_without_reserve(action) == "done"

    assert before == [RESERVE_SIZE] * 2
    assert sizes(store) == []


def test_without_it_what_finds_no_room_is_tried_once(fs, store):
    action = Action(1)

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        Reserve(fs, store.layout).retry_without_reserve(action)

    assert action.count == 1


def test_other_errors_leave_it_alone(fs, store):
    def action() -> None:
        raise PermissionError

    reserve = Reserve(fs, store.layout)
    reserve.fill()

    with pytest.raises(PermissionError):
        reserve.retry_without_reserve(action)

    assert sizes(store) == [RESERVE_SIZE] * 2
