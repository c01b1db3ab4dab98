"""A watcher that cannot begin, one that has to begin anew, and one that is over."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from treesnap.core.fs.durable import sweep_abandoned
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.notifier import Notifier
from treesnap.core.worktree import watcher
from treesnap.testing.doubles import Call, WrappedFileSystem
from watching import DIRECTORIES

pytestmark = pytest.mark.sampled(10)

DEADLINE_S = 30.0


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
    """The directory of its cookies is removed, and made again later."""
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


def test_starts_again_without_a_question(world, monkeypatch):
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


@pytest.mark.needs("notices")
def test_starts_again_when_an_empty_root_was_made_anew(tmp_path, monkeypatch):
    """Nothing in it could be reported to go, and its own end is not reported while it is open."""
    monkeypatch.setattr(watcher, "PAUSE_S", 0.0)
    monkeypatch.setattr(watcher, "RETRY_S", 0.0)
    root, cookies = tmp_path / "root", tmp_path / "cookies"
    root.mkdir()
    cookies.mkdir()
    with watcher.Watcher(LocalFileSystem(), str(root), str(cookies)) as asked:
        root.rmdir()
        assert asked.changed.wait(DEADLINE_S)
        asked.changed.clear()
        root.mkdir()
        while not asked.directories:
            assert asked.changed.wait(DEADLINE_S)
            asked.changed.clear()
        (root / "file").write_text("new")

        assert asked.changed.wait(DEADLINE_S)


class AtOne(WrappedFileSystem):
    """Does something before the first call of one kind that is about one path."""

    def __init__(self, method: str, path: Path, action: Callable[[], None]) -> None:
        super().__init__()
        self._wanted: tuple[str, str] | None = (method, str(path))
        self._action = action

    def around(self, call: Call) -> Any:
        if (call.method, call.path) == self._wanted:
            self._wanted = None
            self._action()
        return call.proceed()


@pytest.mark.parametrize("method", ["open", "fstat", "scan"])
def test_a_directory_may_be_gone_when_it_is_looked_into(world, method):
    place = world.root / "new"
    world.watch(fs=AtOne(method, place, place.rmdir), reads_ahead=False)
    place.mkdir()

    assert world.listed_by_create() == 0
    place.mkdir()
    (place / "file").write_text("there again")
    world.listed_by_create()
    (place / "file").write_text("edited")
    assert world.listed_by_create() == 0


def run_out() -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("method", ["open", "fstat", "scan"])
def test_begins_anew_when_it_cannot_look_into_a_directory(world, method):
    place = world.root / "new"
    world.watch(fs=AtOne(method, place, run_out), reads_ahead=False)
    place.mkdir()
    (place / "file").write_text("new")

    assert world.listed_by_create() >= DIRECTORIES
    (place / "file").write_text("edited")
    assert world.listed_by_create() == 0
    assert "Too many open files" in world.watcher.why_lost


class Short(Notifier):
    """A queue that once has no memory for one more watch."""

    is_short = False

    def watch(self, fd: int, mask: int) -> int:
        if Short.is_short:
            Short.is_short = False
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return super().watch(fd, mask)


def test_begins_anew_when_a_watch_cannot_be_had_for_a_moment(world):
    world.watch(Short, reads_ahead=False)
    Short.is_short = True
    (world.root / "new").mkdir()
    (world.root / "new" / "file").write_text("new")

    assert world.listed_by_create() >= DIRECTORIES
    (world.root / "new" / "file").write_text("edited")
    assert world.listed_by_create() == 0
    assert "Cannot allocate memory" in world.watcher.why_lost


class Moving(WrappedFileSystem):
    """Moves the first of two directories that is looked into next to the other one."""

    def __init__(self, one: Path, other: Path) -> None:
        super().__init__()
        self._left = {str(one): other, str(other): one}

    def around(self, call: Call) -> Any:
        if call.method == "scan" and call.path in self._left:
            Path(call.path).rename(self._left[call.path].with_name("moved"))
            self._left = {}
        return call.proceed()


def test_a_directory_that_moves_while_it_is_found_is_watched_once(world):
    """It is found in its old place, and in its new one, too."""
    world.watch(
        fs=Moving(world.root / "d0" / "deep", world.root / "d1" / "deep"), reads_ahead=False
    )
    world.listed_by_create()
    (moved,) = world.root.glob("d*/moved")

    (moved / "file").write_text("edited")

    assert world.listed_by_create() == 0
    assert world.watcher.directories == DIRECTORIES


@pytest.mark.needs("notices")
def test_what_is_above_the_root_may_be_away_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "RETRY_S", 0.0)
    root, cookies, away = tmp_path / "above" / "root", tmp_path / "cookies", tmp_path / "away"
    root.mkdir(parents=True)
    cookies.mkdir()
    plain = LocalFileSystem()
    with watcher.Watcher(plain, str(root), str(cookies), reads_ahead=False) as asked:
        mark = asked.answer(None).mark
        (tmp_path / "above").rename(away)
        assert asked.answer(mark) is None
        (away / "root" / "file").write_text("edited")
        away.rename(tmp_path / "above")

        answer = asked.answer(mark)
        assert answer.paths is None
        assert asked.answer(answer.mark).paths == ()
