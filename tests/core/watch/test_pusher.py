"""Pushes beside a watcher: one at a time, again after a failure, and never in its way."""

from __future__ import annotations

import subprocess
import sys
import threading

from treesnap.core.model.results import PushFailure, PushStatus
from treesnap.core.watch.follower import Pusher

DEADLINE_S = 60.0


class Launched:
    """Starts programs instead of pushes; the test says what each of them does."""

    def __init__(self, *programs: str) -> None:
        self._programs = list(programs)
        self.words: list[list[str]] = []
        self.running = threading.Semaphore(0)

    def __call__(self, words: list[str]) -> subprocess.Popen[bytes]:
        self.words.append(words)
        program = self._programs.pop(0)
        if program == "missing":
            raise FileNotFoundError(2, "No such file or directory")
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.process = process
        self.running.release()
        return process

    def end(self) -> None:
        """Lets the running one go on, which waits for its input to end."""
        assert self.running.acquire(timeout=DEADLINE_S)
        self.process.stdin.close()


WAIT = "import sys; sys.stdin.read()"


def failing(message: str) -> str:
    text = f'{{"code": "remote-full", "message": "{message}"}}'
    return f"import sys; print('{text}'); sys.exit(1)"


def clock_ns() -> int:
    return 7_000_000_000


def test_one_push_at_a_time_and_another_one_for_what_came_meanwhile():
    launched = Launched(WAIT, WAIT)

    with Pusher(launched, "disk", lambda _: None, clock_ns) as pusher:
        assert launched.running.acquire(timeout=DEADLINE_S)
        pusher.wake()
        pusher.wake()
        assert launched.words == [["push", "disk", "--all"]]
        launched.running.release()
        launched.end()
        launched.end()

    assert launched.words == [["push", "disk", "--all"]] * 2


def test_what_failed_is_said_and_tried_again():
    problems: list[str] = []
    launched = Launched(failing("The disk is full"), "missing", "import sys; sys.exit(9)", WAIT)

    with Pusher(launched, "disk", problems.append, clock_ns, again_s=0.0):
        for _ in range(2):
            assert launched.running.acquire(timeout=DEADLINE_S)
        launched.end()

    assert [problem.partition(": ")[2] for problem in problems] == [
        "The disk is full",
        "no process can be started (No such file or directory)",
        "the process ended without a word",
    ]


def test_its_status_says_what_became_of_the_last_push():
    launched = Launched(failing("The disk is full"), WAIT, WAIT)
    found: list[PushStatus] = []
    pusher = Pusher(launched, "disk", lambda _: found.append(pusher.status()), clock_ns, again_s=0)
    assert pusher.status() == PushStatus("disk", None, None)

    with pusher:
        for _ in range(2):
            assert launched.running.acquire(timeout=DEADLINE_S)
        found.append(pusher.status())
        pusher.wake()
        launched.running.release()
        launched.end()
        assert launched.running.acquire(timeout=DEADLINE_S)  # of the push after the one that ended
        found.append(pusher.status())
        launched.running.release()
        launched.end()

    failed = PushStatus("disk", None, PushFailure("remote-full", "The disk is full"))
    assert found == [failed, failed, PushStatus("disk", clock_ns(), None)]


def test_the_end_does_not_wait_for_a_push():
    launched = Launched(WAIT)

    with Pusher(launched, "disk", lambda _: None, clock_ns):
        assert launched.running.acquire(timeout=DEADLINE_S)
        launched.running.release()

    assert launched.process.poll() is None
    launched.end()
    assert launched.process.wait(DEADLINE_S) == 0
