"""A watcher that cannot begin, and one that is over."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from watching import WatchedWorld


@pytest.fixture
def world(tmp_path: Path):
    made = WatchedWorld(tmp_path)
    with made.stack:
        yield made


def test_nothing_is_left_when_its_thread_cannot_start(world, monkeypatch):
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)

    with pytest.raises(RuntimeError):
        world.watch()

    assert list(world.store.glob("roots/*/watch/cookie-*")) == []


def test_gives_no_answer_when_it_is_over(world):
    world.watch()
    world.stack.close()

    assert world.watcher.answer(None) is None
    assert world.watcher.directories == 0
