"""A watcher that cannot begin, one that has to begin anew, and one that is over."""

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
from treesnap.worktree import watcher
from watching import DIRECTORIES, WatchedWorld

DEADLINE_S = 30.0


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


def test_begins_anew_at_once_when_its_cookie_is_gone(world):
    world.watch()
    for path in world.store.glob("roots/*/watch/cookie-*"):
        path.unlink()
    (world.root / "d0" / "other").write_text("edited")

    assert world.listed_by_create() >= DIRECTORIES
    (world.root / "d0" / "other").write_text("again")
    assert world.listed_by_create() == 0
    assert "No such file" in world.watcher.why_lost


def test_pauses_when_it_cannot_begin_anew(world):
    """Where its cookies were, there is no directory any more, and then there is one again."""
    world.watch(reads_ahead=False)
    (cookies,) = world.store.glob("roots/*/watch")
    cookies.rename(cookies.with_name("away"))
    (world.root / "d0" / "other").write_text("edited")

    assert world.watcher.answer(None) is None
    cookies.with_name("away").rename(cookies)
    assert world.watcher.answer(None) is None
    assert world.listed_by_create() >= DIRECTORIES
    assert "No such file" in world.watcher.why_lost


class Telling(WrappedFileSystem):
    """Tells when the root could not be opened."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = str(root)
        self.is_refused = threading.Event()

    def around(self, call: Call) -> Any:
        try:
            return call.proceed()
        except FileNotFoundError:
            if (call.method, call.path) == ("open", self._root):
                self.is_refused.set()
            raise


def test_begins_anew_although_nobody_asks(world, monkeypatch):
    """While the root is away it cannot; when it is back, it does by and by."""
    monkeypatch.setattr(watcher, "PAUSE_S", 0.0)
    monkeypatch.setattr(watcher, "RETRY_S", 0.0)
    fs = Telling(world.root)
    world.watch(fs=fs)
    away = world.root.with_name("away")

    world.root.rename(away)
    assert fs.is_refused.wait(DEADLINE_S)
    assert world.watcher.directories == 0
    assert "No such file" in world.watcher.why_lost
    away.rename(world.root)
    while not world.watcher.directories:
        assert world.watcher.changed.wait(DEADLINE_S)
        world.watcher.changed.clear()

    assert world.listed_by_create() >= DIRECTORIES
    assert world.listed_by_create() == 0
