"""When a watcher makes a snapshot by itself: times are given, nothing waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.model.requests import WatchRequest
from treesnap.core.watch.service import AGAIN_S, LATEST_S, QUIET_S, Schedule

START_S = 1000.0


def schedule(*, every_s: float | None = None, on_change: bool = False) -> Schedule:
    return Schedule(WatchRequest(every_s=every_s, on_change=on_change), now_s=START_S)


def test_without_a_wish_nothing_is_ever_due():
    none = schedule()
    none.noticed(START_S)

    assert none.due_in_s(START_S) is None
    assert none.due_in_s(START_S + 1e9) is None


@pytest.mark.parametrize("wish", [{"every_s": 60.0}, {"on_change": True}])
def test_the_first_one_is_due_at_once(wish):
    assert schedule(**wish).due_in_s(START_S) == 0.0


def test_by_time_it_is_due_whether_something_changed_or_not():
    timed = schedule(every_s=60.0)
    timed.done(START_S)
    assert timed.due_in_s(START_S) == 60.0
    timed.noticed(START_S + 1)
    assert timed.due_in_s(START_S + 59) == 1.0
    assert timed.due_in_s(START_S + 61) == 0.0


def test_after_a_change_it_is_due_when_nothing_more_happened():
    changing = schedule(on_change=True)
    changing.done(START_S)
    assert changing.due_in_s(START_S) is None

    changing.noticed(START_S + 10)
    assert changing.due_in_s(START_S + 10) == QUIET_S
    changing.noticed(START_S + 10.5)
    assert changing.due_in_s(START_S + 10.5) == QUIET_S
    assert changing.due_in_s(START_S + 10.5 + QUIET_S) == 0.0

    changing.done(START_S + 12)
    assert changing.due_in_s(START_S + 12) is None


def test_both_reasons_together_take_the_earlier_one():
    both = schedule(every_s=20.0, on_change=True)
    both.done(START_S)
    both.noticed(START_S + 5)
    assert both.due_in_s(START_S + 5) == QUIET_S
    both.done(START_S + 6)
    both.noticed(START_S + 6 + 20.0 - QUIET_S / 2)
    assert both.due_in_s(START_S + 6 + 20.0 - QUIET_S / 2) == QUIET_S / 2


@given(st.lists(st.floats(0.01, QUIET_S * 0.99), min_size=1, max_size=200))
def test_changes_without_an_end_do_not_put_it_off_for_ever(pauses):
    busy = schedule(on_change=True)
    busy.done(START_S)
    now_s = START_S
    busy.noticed(now_s)
    for pause_s in pauses:
        now_s += pause_s
        busy.noticed(now_s)
        due_in_s = busy.due_in_s(now_s)
        assert due_in_s is not None
        assert due_in_s <= QUIET_S
        assert now_s + due_in_s <= max(START_S + LATEST_S, now_s) + 1e-6


@pytest.mark.parametrize("wish", [{"every_s": 600.0}, {"on_change": True}])
def test_one_that_failed_is_due_again_although_nothing_changes(wish):
    failing = schedule(**wish)
    failing.failed(START_S)
    assert failing.due_in_s(START_S) == AGAIN_S

    failing.failed(START_S + AGAIN_S)
    assert failing.due_in_s(START_S + AGAIN_S) == AGAIN_S
    failing.done(START_S + 2 * AGAIN_S)
    assert failing.due_in_s(START_S + 2 * AGAIN_S) in {None, 600.0}


def test_one_that_failed_is_due_before_if_there_is_another_reason():
    failing = schedule(every_s=2.0, on_change=True)
    failing.failed(START_S)
    assert failing.due_in_s(START_S) == 2.0
    failing.noticed(START_S)
    assert failing.due_in_s(START_S) == QUIET_S
