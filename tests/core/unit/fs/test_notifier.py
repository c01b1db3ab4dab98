"""The queue of reports: what it makes of watchdog's, and what it leaves behind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from treesnap.core.fs import notifier
from treesnap.core.fs.notifier import CREATED, IGNORED, IS_DIRECTORY, NAMES, OVERFLOWED, Notifier

pytestmark = pytest.mark.needs("notices")

DEADLINE_S = 30.0


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture
def queue() -> Iterator[Notifier]:
    made = Notifier()
    yield made
    made.close()


def watch(queue: Notifier, path: Path, mask: int = NAMES) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return queue.watch(fd, mask)
    finally:
        os.close(fd)


def take(queue: Notifier, count: int) -> list[notifier.Report]:
    found: list[notifier.Report] = []
    while len(found) < count:
        assert queue.wait(DEADLINE_S)
        found += queue.take()
    return found


def test_nothing_is_taken_when_nothing_is_there(queue, tmp_path):
    watch(queue, tmp_path)

    assert queue.take() == []
    assert not queue.wait(0.0)


def test_a_queue_is_made_beside_an_open_directory_of_a_path_that_no_call_takes(tmp_path):
    names = ["d" * 250] * 17
    fds = [os.open(tmp_path, os.O_RDONLY)]
    try:
        for name in names:
            os.mkdir(name, dir_fd=fds[-1])
            fds.append(os.open(name, os.O_RDONLY, dir_fd=fds[-1]))

        Notifier().close()
    finally:
        for name, fd in zip(reversed(names), reversed(fds[:-1]), strict=True):
            os.rmdir(name, dir_fd=fd)
        for fd in fds:
            os.close(fd)


def test_a_directory_that_is_watched_again_keeps_its_number(queue, tmp_path):
    number = watch(queue, tmp_path)

    assert watch(queue, tmp_path) == number
    queue.unwatch(number)
    queue.unwatch(number)
    assert take(queue, 1) == [(number, IGNORED, b"")]
    assert watch(queue, tmp_path) != number


def test_of_a_removed_directory_nothing_is_remembered(queue, tmp_path):
    (tmp_path / "a").mkdir()
    number = watch(queue, tmp_path / "a")
    (tmp_path / "a").rmdir()

    assert take(queue, 1)[-1] == (number, IGNORED, b"")
    assert queue._callbacks == {}
    queue.unwatch(number)


@pytest.mark.parametrize("is_read", [False, True])
def test_closing_leaves_no_descriptor_and_no_thread(tmp_path, is_read):
    before, threads = descriptors(), threading.active_count()
    queue = Notifier()
    watch(queue, tmp_path)
    if is_read:
        (tmp_path / "new").mkdir()
        take(queue, 1)

    queue.close()

    assert descriptors() == before
    assert threading.active_count() == threads


def test_a_thread_that_cannot_start_leaves_no_descriptor(monkeypatch):
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = descriptors()
    monkeypatch.setattr(threading.Thread, "start", fail)

    with pytest.raises(RuntimeError):
        Notifier()

    assert descriptors() == before


def test_no_program_inherits_a_queue():
    """``os.system`` closes nothing, other than the standard library's other ways."""
    program = (
        "import os; from treesnap.core.fs.notifier import Notifier; queue = Notifier()\n"
        "os.system('ls -l /proc/self/fd'); queue.close()\n"
    )

    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True)

    assert "0 -> " in done.stdout
    assert "inotify" not in done.stdout


def test_a_reader_that_fails_says_that_reports_are_lost(queue, tmp_path, monkeypatch):
    """As when the kernel has no memory: that nothing is reported must not look like peace."""

    def fail(*, event_buffer_size: int) -> list[object]:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    number = watch(queue, tmp_path, CREATED)
    monkeypatch.setattr(queue._queue, "read_events", fail)
    (tmp_path / "new").mkdir()

    assert take(queue, 2) == [
        (number, CREATED | IS_DIRECTORY, b"new"),
        (-1, OVERFLOWED, b""),
    ]


def test_a_queue_that_other_code_closed_says_that_reports_are_lost(queue, tmp_path):
    watch(queue, tmp_path, CREATED)

    queue._queue.close()

    assert take(queue, 1)[-1] == (-1, OVERFLOWED, b"")
