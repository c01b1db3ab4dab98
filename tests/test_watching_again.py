"""A watcher that cannot begin and one that is over."""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from treesnap.fs.durable import sweep_abandoned
from treesnap.fs.local import LocalFileSystem
from treesnap.testing.wrapped import Call, WrappedFileSystem
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


class Swept(WrappedFileSystem):
    """Where another watcher, which begins too, finds each file that is not locked yet."""

    def __init__(self, *, is_finished: bool) -> None:
        super().__init__()
        self._is_finished = is_finished
        self._left = 2

    def around(self, call: Call) -> Any:
        if call.method != "lock" or self._left == 0:
            return call.proceed()
        self._left -= 1
        if self._is_finished:
            sweep_abandoned(LocalFileSystem(), os.path.dirname(call.path), lambda _: True)
            return call.proceed()
        with open(call.path, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            got = call.proceed()
            with suppress(FileNotFoundError):
                os.unlink(call.path)
            return got


@pytest.mark.parametrize("is_finished", [True, False])
def test_can_be_asked_although_another_one_swept_when_it_began(world, is_finished):
    world.watch(fs=Swept(is_finished=is_finished))

    (world.root / "d0" / "other").write_text("edited")

    assert world.listed_by_create() == 0
    assert len(list(world.store.glob("roots/*/watch/cookie-*"))) == 1
