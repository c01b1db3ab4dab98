"""Pushes new snapshots to a remote while a root is watched: a process for each push.

Watching never waits for a remote, and a remote that cannot be reached costs nothing but another
try later. A push that is killed goes on where it was with the next one.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from typing import Self

from treesnap.core.model.errors import ErrorCode, printable
from treesnap.core.model.results import PushFailure, PushStatus
from treesnap.core.ops.context import Context
from treesnap.core.watch.control import launched

AGAIN_S = 60.0
"""How long after a failed push the next one is tried."""

Launch = Callable[[list[str]], subprocess.Popen[bytes]]


class Pusher:
    """Pushes to one remote, one push at a time. Use as a context manager.

    The end of the context does not wait for a push that is under way: it goes on by itself.
    """

    def __init__(
        self,
        launch: Launch,
        remote: str,
        on_error: Callable[[str], None],
        clock_ns: Callable[[], int],
        again_s: float = AGAIN_S,
    ) -> None:
        self._launch = launch
        self._remote = remote
        self._on_error = on_error
        self._clock_ns = clock_ns
        self._again_s = again_s
        self._status = PushStatus(remote, None, None)
        self._is_wanted = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="treesnap-push", daemon=True)

    def __enter__(self) -> Self:
        """Pushes what the remote lacks, and then whatever is new."""
        self.wake()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._is_wanted.set()

    def wake(self) -> None:
        """Has what is new pushed; returns at once."""
        self._is_wanted.set()

    def status(self) -> PushStatus:
        """Returns what became of the last push. May be called from any thread."""
        return self._status

    def _run(self) -> None:
        while self._is_wanted.wait() and not self._is_over.is_set():
            self._is_wanted.clear()
            failure = self._push()
            if failure is None:
                self._status = PushStatus(self._remote, self._clock_ns(), None)
                continue
            self._status = self._status._replace(failure=failure)
            if not self._is_over.is_set():
                self._on_error(
                    f"The push to {self._remote} failed, and is tried again: {failure.message}"
                )
                self._is_over.wait(self._again_s)
                self._is_wanted.set()

    def _push(self) -> PushFailure | None:
        """Pushes everything that the remote lacks; returns why that failed, or None."""
        try:
            process = self._launch(["push", self._remote, "--all"])
        except OSError as error:
            return _failure(f"no process can be started ({error.strerror})")
        output, _ = process.communicate()
        return None if process.returncode == 0 else _told(output)


def _told(output: bytes) -> PushFailure:
    """Returns the error that a command printed as JSON."""
    try:
        told = json.loads(output)
        return _failure(told["message"], told["code"])
    except (ValueError, KeyError, TypeError):
        return _failure("the process ended without a word")


def _failure(message: str, code: str = ErrorCode.OPERATION_FAILED.value) -> PushFailure:
    return PushFailure(printable(code), printable(message))


def pusher(context: Context, remote: str, on_error: Callable[[str], None]) -> Pusher:
    """Returns what pushes the snapshots of a root."""

    def launch(words: list[str]) -> subprocess.Popen[bytes]:
        return launched(context, words, subprocess.PIPE)

    return Pusher(launch, remote, on_error, context.clock_ns)
