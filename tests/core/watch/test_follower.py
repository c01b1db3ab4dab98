"""The command after snapshots: one run at a time, again after a failure, ended with the watcher.

Commands and tests wait for each other by named pipes.
"""

from __future__ import annotations

import os
import queue
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from command_line import wait_until
from treesnap.core.model.results import FollowFailure, FollowStatus
from treesnap.core.ops.context import context_at
from treesnap.core.ops.watching import watch_directory
from treesnap.core.watch.follower import PAUSE_MAX_S, PAUSE_MIN_S, Follower, pause_after_s
from treesnap.testing.doubles import UnsyncedFileSystem

pytestmark = pytest.mark.needs("notices")

DEADLINE_S = 60.0
NOW_NS = 7_000_000_000
SAID = "echo $SNAP_SNAPSHOT > {news}"
WAITS = "mkdir {busy} || echo twice > {news}; " + SAID + "; read word < {go}; rmdir {busy}"
"""A command that runs until it is let go, and that tells of another one beside it."""
ENDS = """
import signal, sys
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open(sys.argv[1], "w") as news:
    print("blocked:", blocked, file=news, flush=True)
    signal.sigwait([signal.SIGTERM])
    print("ended", file=news)
"""
KILLED_WATCHER = """
import sys
from treesnap.core.ops.context import context_at
from treesnap.core.watch.follower import Follower
root, store, directory, line = sys.argv[1:]
follower = Follower(context_at(root, store), line, print)
with follower.running(directory):
    follower.wake("first")
    sys.stdin.read()
"""


class Pipe:
    """A named pipe, which both sides can open without waiting for the other."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self.fd = os.open(path, os.O_RDWR)
        self._read = b""

    def next(self) -> str:
        """Waits for the next line."""
        while b"\n" not in self._read:
            assert select.select([self.fd], [], [], DEADLINE_S)[0]
            self._read += os.read(self.fd, 4096)
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def rest(self) -> list[str]:
        """Returns the lines that were not read."""
        while select.select([self.fd], [], [], 0)[0]:
            self._read += os.read(self.fd, 4096)
        return self._read.decode().splitlines()

    def send(self) -> None:
        """Sends a line."""
        os.write(self.fd, b"\n")


class Place:
    """A root, and what tells of the command that runs there."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "root"
        self.root.mkdir()
        self.store = tmp_path / "store"
        self.news, self.go = (Pipe(tmp_path / name) for name in ("news", "go"))
        self.words = {"news": self.news.path, "go": self.go.path, "busy": tmp_path / "busy"}
        self.done: queue.Queue[None] = queue.Queue()
        """Has an item for each success."""
        self.problems: queue.Queue[str] = queue.Queue()
        self.pauses: list[int] = []
        self.context = context_at(
            str(self.root), str(self.store), fs=UnsyncedFileSystem(), clock_ns=self._now_ns
        )
        self.directory = watch_directory(self.context)
        while not self.done.empty():
            self.done.get()

    def _now_ns(self) -> int:
        self.done.put(None)
        return NOW_NS

    def _pause_s(self, failures: int) -> float:
        self.pauses.append(failures)
        return 0.0

    @contextmanager
    def following(self, line: str, **options: Any) -> Iterator[Follower]:
        follower = Follower(
            self.context,
            line.format(**self.words),
            self.problems.put,
            **{"pause_s": self._pause_s, **options},
        )
        with follower.running(self.directory):
            yield follower

    def close(self) -> None:
        for pipe in (self.news, self.go):
            os.close(pipe.fd)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def test_one_run_at_a_time_and_another_one_for_what_came_meanwhile(place):
    with place.following(WAITS) as follower:
        assert follower.status() == FollowStatus(
            command=WAITS.format(**place.words),
            running=False,
            succeeded_at_ns=None,
            failures=0,
            failure=None,
        )
        follower.wake("first")
        assert place.news.next() == "first"
        assert follower.status().running
        follower.wake("second")
        follower.wake("third")
        place.go.send()
        assert place.news.next() == "third"
        place.go.send()
        for _ in range(2):
            place.done.get(timeout=DEADLINE_S)

    assert place.news.rest() == []
    assert follower.status()._replace(command="") == FollowStatus(
        command="", running=False, succeeded_at_ns=NOW_NS, failures=0, failure=None
    )


def test_a_run_that_fails_is_repeated_after_longer_and_longer_pauses(place):
    fails = "for n in 1 2 3; do test -e $n || {{ touch $n; echo off; echo; exit 7; }}; done; "

    with place.following(fails + SAID) as follower:
        follower.wake("first")
        assert place.news.next() == "first"
        place.done.get(timeout=DEADLINE_S)

    assert place.pauses == [1, 2, 3]
    problem = place.problems.get_nowait()
    assert problem.endswith(" failed with exit code 7: off; it is tried again")
    assert place.problems.empty()  # the same failure is said once
    assert (follower.status().failures, follower.status().failure) == (0, None)


def test_pauses_grow_up_to_a_limit():
    pauses_s = [pause_after_s(failures) for failures in (1, 2, 3, 6, 10_000)]

    assert pauses_s == [PAUSE_MIN_S, 2 * PAUSE_MIN_S, 4 * PAUSE_MIN_S, PAUSE_MAX_S, PAUSE_MAX_S]


def test_the_status_says_why_a_run_failed(place):
    with place.following(
        "printf 'snap: no\\033\\nhint: wait\\n' >&2; exit 5", pause_s=hours
    ) as found:
        found.wake("first")
        place.problems.get(timeout=DEADLINE_S)

    message = "failed with exit code 5: snap: no\\x1b; hint: wait"
    status = found.status()
    assert (status.failures, status.failure) == (1, FollowFailure(5, message))


def test_a_root_that_is_gone_is_a_failure(place):
    place.root.rmdir()

    with place.following(SAID, pause_s=hours) as follower:
        follower.wake("first")
        assert str(place.root) in place.problems.get(timeout=DEADLINE_S)

    assert place.news.rest() == []


def test_a_sandbox_without_process_descriptors_makes_no_run_fail(place, monkeypatch):
    def forbidden(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", forbidden, raising=False)

    with place.following(SAID) as follower:
        follower.wake("first")
        place.done.get(timeout=DEADLINE_S)

    assert follower.status().failure is None


def test_the_command_knows_the_root_the_store_and_the_snapshot(place):
    line = 'for word in "$PWD" "$SNAP_ROOT" "$SNAP_STORE" "$SNAP_SNAPSHOT"; do echo "$word"; done'

    with place.following(f"( {line}; cat ) > {{news}}") as follower:
        follower.wake("first")
        found = [place.news.next() for _ in range(4)]
        place.done.get(timeout=DEADLINE_S)  # its standard input has ended

    assert found == [str(place.root), str(place.root), str(place.store), "first"]


def test_the_command_ends_with_the_watcher(place):
    program = [sys.executable, "-c", ENDS, place.news.path]
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # as 'snap watch' does
    try:
        with place.following(shlex.join(map(str, program)), grace_s=DEADLINE_S) as follower:
            follower.wake("first")
            assert place.news.next() == "blocked: set()"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)

    assert place.news.rest() == ["ended"]
    assert place.problems.empty()


def test_a_command_that_does_not_end_is_killed(place):
    with place.following("trap '' TERM; " + WAITS + "; echo lived > {news}", grace_s=0.0) as it:
        it.wake("first")
        assert place.news.next() == "first"

    place.words["busy"].rmdir()
    with place.following(SAID) as follower:
        follower.wake("second")
        assert place.news.next() == "second"
        place.done.get(timeout=DEADLINE_S)
    assert place.news.rest() == []


def test_nothing_runs_beside_the_command_of_a_watcher_that_was_killed(place):
    words = [place.root, place.store, place.directory, WAITS.format(**place.words)]
    program = [sys.executable, "-c", KILLED_WATCHER, *words]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as watcher:
        assert place.news.next() == "first"
        watcher.kill()

    with place.following(WAITS) as follower:
        follower.wake("second")
        assert "has to wait" in place.problems.get(timeout=DEADLINE_S)
        assert place.news.rest() == []
        place.go.send()
        assert place.news.next() == "second"
        place.go.send()
        place.done.get(timeout=DEADLINE_S)

    assert place.news.rest() == []


def test_what_a_command_leaves_in_the_background_keeps_no_other_run_waiting(place):
    with place.following("{{ read word < {go}; }} & " + SAID) as follower:
        for snapshot_id in ("first", "second"):
            follower.wake(snapshot_id)
            assert place.news.next() == snapshot_id
            place.done.get(timeout=DEADLINE_S)

    for _ in range(2):
        place.go.send()
    assert place.problems.empty()


def hours(failures: int) -> float:
    return 3600.0 * failures


@pytest.mark.needs("holes")
def test_the_room_of_what_a_command_writes_is_given_back_while_it_runs(tmp_path):
    place = Place(tmp_path)
    line = "head -c 16000000 /dev/zero; echo $$ > {news}; read word < {go}; echo the end; false"
    with place.following(line) as follower:
        follower.wake("first")
        process_id = place.news.next()
        output = f"/proc/{process_id}/fd/2"
        wait_until(lambda: os.stat(output).st_blocks * 512 <= 1 << 20)
        assert os.stat(output).st_size == 16_000_000
        place.go.send()
        assert "the end" in place.problems.get(timeout=DEADLINE_S)
