"""What is relied on of watchdog's layer for inotify, which its documentation says little about.

Of the library alone, so that a version that breaks one of these is found here, and not by a
watcher that misses a change.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from watchdog.observers.inotify_c import InotifyConstants, InotifyEvent, InotifyFD

from treesnap.core.fs import notifier
from treesnap.core.fs.notifier import (
    CHANGED,
    CLOSED,
    CREATED,
    DELETED,
    IGNORED,
    IS_DIRECTORY,
    MOVED_FROM,
    MOVED_TO,
    NAMES,
    OVERFLOWED,
    SELF_GONE,
    UNMOUNTED,
)

DEADLINE_S = 30.0
ONLY_DIRECTORIES = notifier._ONLY_DIRECTORIES
READ_SIZE = notifier._READ_SIZE


class Callback:
    """Is called with nothing as long as events are only read."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def on_event(self, event: InotifyEvent) -> None:
        raise AssertionError("only handle_event calls it")

    def on_watch_deleted(self, wd: int) -> None:
        self.ended.append(wd)

    def on_queue_overflow(self) -> None:
        raise AssertionError("only handle_event calls it")


CALLBACK = Callback()
Watch = Callable[..., int]
Read = Callable[[int], list[tuple[int, int, bytes]]]


@pytest.fixture
def queue() -> Iterator[InotifyFD]:
    made = InotifyFD()
    yield made
    made.close()


@pytest.fixture
def watch(queue) -> Watch:
    def add(path: Path, mask: int = NAMES, number: int = 0) -> int:
        return queue.add_callback(os.fsencode(path), mask | ONLY_DIRECTORIES, CALLBACK, number)

    return add


@pytest.fixture
def read(queue) -> Read:
    """Reads until so many reports have come; nothing waits, because they are there."""

    def read_some(count: int) -> list[tuple[int, int, bytes]]:
        found: list[tuple[int, int, bytes]] = []
        while len(found) < count:
            found += [(item.wd, item.mask, item.name) for item in queue.read_events()]
        return found

    return read_some


def test_its_constants_are_the_kernels():
    ours = [CLOSED, MOVED_FROM, MOVED_TO, CREATED, DELETED, UNMOUNTED, OVERFLOWED, IGNORED]
    names = ["CLOSE_WRITE", "MOVED_FROM", "MOVED_TO", "CREATE", "DELETE", "UNMOUNT", "Q_OVERFLOW"]
    theirs = [getattr(InotifyConstants, f"IN_{name}") for name in [*names, "IGNORED"]]

    assert ours == theirs
    assert (CHANGED & ~CLOSED) == InotifyConstants.IN_MODIFY | InotifyConstants.IN_ATTRIB
    assert SELF_GONE == InotifyConstants.IN_DELETE_SELF | InotifyConstants.IN_MOVE_SELF
    assert IS_DIRECTORY == InotifyConstants.IN_ISDIR
    assert ONLY_DIRECTORIES == InotifyConstants.IN_ONLYDIR


def test_reports_come_in_the_order_of_the_changes(tmp_path, watch, read):
    """Those of all directories in one queue, and the halves of a move where they belong."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    first, second = watch(one), watch(other)

    (one / "a").mkdir()
    (other / "b").mkdir()
    (one / "a").rename(other / "moved")
    (other / "moved").rename(tmp_path / "away")
    (tmp_path / "away").rename(one / "back")
    (other / "b").rmdir()

    assert read(7) == [
        (first, CREATED | IS_DIRECTORY, b"a"),
        (second, CREATED | IS_DIRECTORY, b"b"),
        (first, MOVED_FROM | IS_DIRECTORY, b"a"),
        (second, MOVED_TO | IS_DIRECTORY, b"moved"),
        (second, MOVED_FROM | IS_DIRECTORY, b"moved"),
        (first, MOVED_TO | IS_DIRECTORY, b"back"),
        (second, DELETED | IS_DIRECTORY, b"b"),
    ]


def test_half_a_move_is_not_held_back(tmp_path, watch, read):
    """The next read has it, although its other half, which was not watched, never comes."""
    inside = tmp_path / "inside"
    (inside / "directory").mkdir(parents=True)
    number = watch(inside)

    (inside / "directory").rename(tmp_path / "away")

    assert read(1) == [(number, MOVED_FROM | IS_DIRECTORY, b"directory")]


@pytest.mark.parametrize(
    "name", [b"a", b"\xff\xfe", b"new\nline", b"n" * 255, "ü\u0308".encode(), b"sixteen bytes ex"]
)
def test_names_are_the_bytes_that_the_kernel_has(tmp_path, watch, read, name):
    number = watch(tmp_path)

    os.mkdir(os.fsencode(tmp_path) + b"/" + name)

    assert read(1) == [(number, CREATED | IS_DIRECTORY, name)]


def test_what_concerns_the_directory_itself_has_no_name(tmp_path, watch, read):
    number = watch(tmp_path)

    tmp_path.chmod(0o700)

    assert read(1) == [(number, InotifyConstants.IN_ATTRIB | IS_DIRECTORY, b"")]


@pytest.mark.needs("linux")
def test_an_overflow_is_reported(tmp_path, watch, queue):
    """More files are made than reports fit. Its own report comes last, of no watch."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    watch(tmp_path, CREATED)
    for number in range(limit + 1):
        os.mknod(tmp_path / str(number))

    found: list[InotifyEvent] = []
    while not found or found[-1].mask != OVERFLOWED:
        found += queue.read_events(event_buffer_size=READ_SIZE)

    assert [item.name for item in found[:-1]] == [b"%d" % number for number in range(limit)]
    assert (found[-1].wd, found[-1].name) == (-1, b"")


def test_a_full_read_returns_more_than_a_few(tmp_path, watch, queue):
    watch(tmp_path)
    for number in range(500):
        (tmp_path / f"{number:0255}").mkdir()

    assert len(queue.read_events(event_buffer_size=READ_SIZE)) > notifier._FEW


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("absent", FileNotFoundError),
        ("file", NotADirectoryError),
        ("file/below", NotADirectoryError),
    ],
)
def test_a_watch_that_is_refused_raises(tmp_path, watch, name, error):
    (tmp_path / "file").touch()

    with pytest.raises(error):
        watch(tmp_path / name)


def test_a_watch_too_many_raises(tmp_path):
    """In a namespace in which a user may have one."""
    program = (
        "import os, sys; from watchdog.observers.inotify_c import InotifyFD\n"
        "queue = InotifyFD(); queue.add_callback(b'/', 0x100, None, 0)\n"
        "try: queue.add_callback(os.fsencode(sys.argv[1]), 0x100, None, 0)\n"
        "except OSError as error: print(error.errno)\n"
    )
    limited = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    limited += ['echo 1 > /proc/sys/user/max_inotify_watches && exec "$0" "$@"']
    words = [*limited, sys.executable, "-c", program, str(tmp_path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("no limits of one's own here")

    assert done.stdout == f"{errno.ENOSPC}\n"


def test_a_directory_has_one_watch_wherever_it_is(tmp_path, watch, queue, read):
    """It ends with the last callback."""
    (tmp_path / "a").mkdir()
    number = watch(tmp_path / "a", number=1)
    (tmp_path / "a").rename(tmp_path / "b")
    again = watch(tmp_path / "b", number=2)
    queue.remove_callbacks([(number, 1)])
    (tmp_path / "b" / "new").mkdir()
    queue.remove_callbacks([(number, 2)])

    assert again == number
    assert read(2) == [(number, CREATED | IS_DIRECTORY, b"new"), (number, IGNORED, b"")]


@pytest.mark.needs("linux")
def test_a_watch_of_an_open_directory_follows_it(tmp_path, watch, read):
    (tmp_path / "a").mkdir()
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    (tmp_path / "a").rename(tmp_path / "b")
    number = watch(Path(f"/proc/self/fd/{fd}"))
    os.close(fd)

    (tmp_path / "b" / "new").mkdir()

    assert read(1) == [(number, CREATED | IS_DIRECTORY, b"new")]


def test_the_end_of_a_watch_is_reported_and_its_number_not_given_again(tmp_path, watch, queue):
    ended = Callback()
    (tmp_path / "a").mkdir()
    number = queue.add_callback(os.fsencode(tmp_path / "a"), NAMES, ended, 0)
    (tmp_path / "a").rmdir()
    (report,) = [item for item in queue.read_events() if item.is_ignored]
    queue.handle_event(report)
    queue.remove_callbacks([(number, 0)])  # of which nothing is known any more
    (tmp_path / "a").mkdir()

    assert (report.wd, ended.ended) == (number, [number])
    assert watch(tmp_path / "a") != number


def test_two_queues_have_nothing_in_common(tmp_path, queue, watch, read):
    other = InotifyFD()
    other.add_callback(os.fsencode(tmp_path), NAMES, CALLBACK, 0)
    number = watch(tmp_path)
    (tmp_path / "first").mkdir()
    found = [item.name for item in other.read_events()]
    other.close()

    (tmp_path / "second").mkdir()

    assert found == [b"first"]
    assert read(2) == [
        (number, CREATED | IS_DIRECTORY, b"first"),
        (number, CREATED | IS_DIRECTORY, b"second"),
    ]


def test_closing_wakes_a_thread_that_reads(tmp_path, queue, watch):
    watch(tmp_path)
    found: list[list[InotifyEvent]] = []
    (tmp_path / "new").mkdir()
    queue.read_events()
    thread = threading.Thread(target=lambda: found.append(queue.read_events()), daemon=True)
    thread.start()

    queue.close()
    thread.join(DEADLINE_S)

    assert not thread.is_alive()
    assert [item for events in found for item in events if not item.is_ignored] == []
    assert queue.read_events() == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        watch(tmp_path)


def test_a_forked_child_that_ends_leaves_the_parents_queue_as_it_is(tmp_path):
    program = (
        "import os, sys; from watchdog.observers.inotify_c import InotifyFD\n"
        "queue = InotifyFD(); queue.add_callback(os.fsencode(sys.argv[1]), 0x100, None, 0)\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit()\n"
        "os.waitpid(child, 0); os.mkdir(sys.argv[1] + '/new')\n"
        "print([event.name for event in queue.read_events()])\n"
    )

    words = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=DEADLINE_S)

    assert done.stdout == "[b'new']\n"
