"""Ticks: that they come, and that no thread and no call is there while a process is forked."""

from __future__ import annotations

import os
import threading

import pytest

from treesnap.core.fs.forked import Helper, helper_count
from treesnap.core.fs.ticker import Ticker


@pytest.fixture
def ticked():
    return threading.Semaphore(0)


@pytest.fixture
def ticker(ticked):
    ticker = Ticker(ticked.release, 0.001)
    yield ticker
    ticker.stop()


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "treesnap-ticker"]


def test_ticks_until_it_is_stopped(ticker, ticked):
    ticker.start()
    ticker.start()
    assert all(ticked.acquire(timeout=60) for _ in range(3))
    assert len(threads()) == 1

    ticker.stop()
    ticker.stop()

    assert threads() == []


def test_helpers_are_useful_beside_a_ticker(ticker):
    alone = helper_count()
    ticker.start()

    assert helper_count() == alone


@pytest.mark.needs("helpers")
def test_a_fork_happens_without_the_thread_which_goes_on_in_the_parent(ticker, ticked):
    ticker.start()

    def work(report):
        ticker.start()  # does nothing: this process did not make it
        report((len(threads()), len(os.listdir("/proc/self/task"))))

    with Helper(work) as helper:
        found = helper.results()

    assert found == [(0, 1)]
    assert len(threads()) == 1
    while ticked.acquire(blocking=False):
        pass
    assert ticked.acquire(timeout=60)


@pytest.mark.needs("helpers")
def test_a_fork_waits_for_the_call_under_way():
    begun, may_end, ended = threading.Event(), threading.Event(), []

    def tick():
        begun.set()
        may_end.wait()
        ended.append(True)

    ticker = Ticker(tick, 0.001)
    ticker.start()
    begun.wait()
    threading.Thread(target=may_end.set).start()
    with Helper(lambda report: report(len(ended))) as helper:
        found = helper.results()
    ticker.stop()

    assert found[0] >= 1
