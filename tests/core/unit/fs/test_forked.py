"""Work in other processes: all of it is done, whatever becomes of them."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from typing import Any

import pytest

from helping import die, fork_in_turn, refuse
from treesnap.core.fs import forked
from treesnap.core.fs.forked import Helper, Work, helper_count, share_out

pytestmark = pytest.mark.needs("helpers")

TIMEOUT_S = 60


class Shared:
    """Work that says what is done where."""

    def __init__(self) -> None:
        self.done_here: list[str] = []
        self.taken: list[tuple[str, bytes]] = []
        self.done_again: list[str] = []

    def out(self, shares: list[str], helpers: int, **options: Any) -> None:
        share_out(
            shares,
            lambda share: 1,
            helpers,
            Work(
                here=self.done_here.append,
                there=self.help,
                take=lambda share, result: self.taken.append((share, result)),
                again=self.done_again.append,
                **options,
            ),
        )

    def help(self, share: str) -> bytes:
        if share == "deadly":
            die()
        if share == "endless":
            signal.pause()
        return share.encode()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_each_share_is_done_once():
    shared = Shared()

    shared.out(["a", "b", "c", "d", "e", "f", "g"], 2)

    taken = [share for share, _ in shared.taken]
    assert sorted([*shared.done_here, *taken]) == ["a", "b", "c", "d", "e", "f", "g"]
    assert all(result == share.encode() for share, result in shared.taken)
    assert shared.done_here[0] == "a"
    assert {"b", "c"} <= set(taken)
    assert shared.done_again == []


def test_a_process_that_is_free_takes_what_is_left(monkeypatch):
    monkeypatch.setattr(os, "fork", fork_in_turn())
    shared = Shared()

    shared.out(["a", "b", "c", "d", "e"], 2)

    assert shared.done_here == ["a"]
    assert shared.taken == [("b", b"b"), ("d", b"d"), ("e", b"e"), ("c", b"c")]


def test_more_shares_than_the_queue_has_entries_are_done_once(monkeypatch):
    monkeypatch.setattr(forked, "_QUEUE_LENGTH", 4)
    shares = [str(number) for number in range(103)]
    shared = Shared()

    shared.out(shares, 2)

    taken = [share for share, _ in shared.taken]
    assert sorted([*shared.done_here, *taken], key=int) == shares


def test_all_is_done_here_where_there_is_no_pipe(monkeypatch):
    monkeypatch.setattr(os, "pipe", refuse)
    shared = Shared()

    shared.out(["a", "b"], 1)

    assert shared.done_here == ["a", "b"]


@pytest.mark.parametrize(
    ("last", "is_accepted", "again"),
    [("done", True, []), ("done", False, ["b", "c"]), ("deadly", True, ["b", "c"])],
)
def test_what_a_helper_did_counts_when_it_finished(monkeypatch, last, is_accepted, again):
    monkeypatch.setattr(os, "fork", fork_in_turn())
    shared = Shared()
    accepted = []

    def accept(done, finished):
        accepted.append((done, finished))
        return is_accepted

    shared.out(["a", "b", "c"], 1, finish=lambda: shared.help(last), accept=accept)

    assert shared.done_here == ["a"]
    assert shared.done_again == again
    assert [share for share, _ in shared.taken] == ([] if again else ["b", "c"])
    everything = ([("b", b"b"), ("c", b"c")], b"done")
    assert accepted == ([everything] if last == "done" else [])


def test_a_helper_does_not_wait_for_room_while_there_is_work_here():
    done_fd, begun_fd = os.pipe()
    shares = [str(number) for number in range(40)]
    taken: list[str] = []
    done_here: list[str] = []

    def help_with(share: str) -> bytes:
        os.write(begun_fd, b"x")
        return bytes(1 << 18)  # four fill the pipe

    def here(share: str) -> None:
        if not done_here:
            os.close(begun_fd)
        done_here.append(share)
        select.select([done_fd], [], [], TIMEOUT_S)
        os.read(done_fd, 1)  # goes on for each share that the helper begins, and at its end

    share_out(
        shares,
        lambda share: 1,
        1,
        Work(
            here=here,
            there=help_with,
            take=lambda share, result: taken.append(share),
            again=done_here.append,
        ),
    )

    os.close(done_fd)
    assert sorted([*taken, *done_here]) == sorted(shares)
    assert len(taken) >= len(done_here) - 1


def test_equal_shares_are_done_as_often_as_they_are_there():
    shared = Shared()

    shared.out(["same", "same"], 1)

    assert shared.done_here == ["same"]
    assert shared.taken == [("same", b"same")]


def test_what_no_process_can_be_started_for_is_done_here(monkeypatch):
    """The second one is refused; nothing of it stays."""
    fork, answers = os.fork, iter([True, False])
    monkeypatch.setattr(os, "fork", lambda: fork() if next(answers) else refuse())
    shared = Shared()
    before = open_files(), signal.pthread_sigmask(signal.SIG_BLOCK, [])

    shared.out(["a", "b", "c"], 2)

    assert shared.done_here == ["a", "c"]
    assert shared.taken == [("b", b"b")]
    assert (open_files(), signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before


def test_of_a_helper_that_is_killed_is_taken_what_it_reported(monkeypatch):
    monkeypatch.setattr(os, "fork", fork_in_turn())
    shared = Shared()

    shared.out(["a", "done", "too", "deadly", "b", "left"], 1)

    assert shared.done_here == ["a", "b", "left"]
    assert shared.taken == [("done", b"done"), ("too", b"too")]
    assert shared.done_again == ["deadly"]


def test_when_the_work_here_fails_the_helpers_end_first():
    read_fd, write_fd = os.pipe()

    def fail(share):
        os.close(write_fd)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        share_out(
            ["a", "endless"],
            lambda share: 1,
            1,
            Work(here=fail, there=Shared().help, take=lambda share, result: None, again=fail),
        )

    os.set_blocking(read_fd, False)
    assert os.read(read_fd, 1) == b""  # or another process still had it open
    os.close(read_fd)


def test_a_helper_whose_parent_is_gone_before_it_begins_does_nothing():
    """The first thing that the forked process does is to kill the other one."""
    program = (
        "import os, signal; from treesnap.core.fs.forked import Helper; fork = os.fork\n"
        "def killing():\n"
        "    process, parent = fork(), os.getppid()\n"
        "    if process == 0:\n"
        "        os.kill(parent, signal.SIGKILL)\n"
        "        while os.getppid() == parent: os.sched_yield()\n"
        "        print('begins', flush=True)\n"
        "    else:\n"
        "        signal.pause()\n"
        "    return process\n"
        "os.fork = killing\n"
        "Helper(lambda report: print('works', flush=True))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, check=False, timeout=TIMEOUT_S
    )

    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"begins\n")


def test_there_are_no_helpers_where_the_kernel_would_not_end_them(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(forked, "HAS_HELPERS", False)

    assert helper_count() == 0


@pytest.mark.needs("helpers")
def test_there_are_no_helpers_beside_threads():
    program = (
        "import os, threading; from treesnap.core.fs.forked import helper_count\n"
        "os.sched_getaffinity = lambda _: {0, 1}\n"
        "wait = threading.Event(); thread = threading.Thread(target=wait.wait)\n"
        "print(helper_count()); thread.start(); print(helper_count()); wait.set(); thread.join()"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert result.stdout.split() == [b"1", b"0"]


def test_a_helper_reports_until_it_ends():
    with Helper(lambda report: [report(number) for number in range(3)]) as helper:
        assert helper.results() == [0, 1, 2]


def test_a_report_that_is_cut_is_left_out(monkeypatch):
    """The helper dies when the kernel has taken a part of its second report."""
    write, sizes = os.write, iter([100, 7])

    def write_and_die(fd, data):
        size = next(sizes)
        write(fd, data[:size])
        return len(data) if size > len(data) else die()

    monkeypatch.setattr(os, "write", write_and_die)
    with Helper(lambda report: [report([b"whole"]), report([b"cut"])]) as helper:
        assert helper.results() == [[b"whole"]]


def test_a_helper_that_is_not_done_ends_with_the_block():
    read_fd, write_fd = os.pipe()

    with Helper(lambda _: signal.pause()):
        os.close(write_fd)

    with os.fdopen(read_fd, "rb") as pipe:
        assert pipe.read() == b""


def test_a_helper_ends_with_its_parent():
    program = (
        "import signal, sys; from treesnap.core.fs.forked import Helper\n"
        "def work(report): print('ready', flush=True); signal.pause()\n"
        "with Helper(work) as helper: helper.results()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"

    process.kill()

    assert process.communicate(timeout=TIMEOUT_S)[0] == b""  # until no process has it open


def test_one_core_has_no_helpers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    assert helper_count() == 0
