"""Trees for several processes, and file systems that tell which process does what."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treesnap.core.fs.local import LocalFileSystem
from treesnap.testing.doubles import Call, WrappedFileSystem

CORES = {0, 1, 2}


def fill(root: Path, count: int, *, tops: int, inners: int) -> None:
    """Makes files of 0, 1, 2 ... numbers, spread over directories of two levels."""
    for number in range(count):
        path = root / f"top-{number % tops}" / f"inner-{number % inners}" / f"file-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * number)


class Noting(WrappedFileSystem):
    """Notes which process makes one kind of call, and of what."""

    def __init__(self, method: str) -> None:
        super().__init__(LocalFileSystem())
        self._read_fd, self._notes = os.pipe()
        self._process = os.getpid()
        self._method = method

    def around(self, call: Call) -> Any:
        if call.method == self._method:
            os.write(self._notes, b"%d %s\n" % (os.getpid(), os.fsencode(call.path)))
        return call.proceed()

    def noted(self) -> dict[int, list[str]]:
        """Returns the paths by process; this one is always there. To be asked once."""
        os.close(self._notes)
        found: dict[int, list[str]] = {self._process: []}
        with os.fdopen(self._read_fd, "rb") as pipe:
            for line in pipe.read().splitlines():
                process, path = line.split(b" ", 1)
                found.setdefault(int(process), []).append(os.fsdecode(path))
        return found


class InHelpers(WrappedFileSystem):
    """Does something else at a call of helpers, and nothing else in this process."""

    def __init__(
        self, method: str, instead: Callable[[], None], *, number: int = 1, at: str = ""
    ) -> None:
        """Prepares for the call with a number, of those with ``at`` in their path."""
        super().__init__(LocalFileSystem())
        self._process = os.getpid()
        self._method = method
        self._instead = instead
        self._left = number
        self._at = at

    def around(self, call: Call) -> Any:
        if os.getpid() != self._process and call.method == self._method and self._at in call.path:
            self._left -= 1
            if self._left == 0:
                self._instead()
        return call.proceed()


def die() -> None:
    """Ends this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> int:
    """Takes the place of ``fork`` where the user may have no more processes."""
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def fork_in_turn(before: Callable[[], None] = lambda: None) -> Callable[[], int]:
    """Returns what takes the place of ``fork``: each child ends before its parent goes on.

    So the first helper does all that no other has to begin with. What it reports has to fit into
    the pipe. ``before`` is called in the parent before each fork.
    """
    fork = os.fork

    def fork_and_wait() -> int:
        before()
        process = fork()
        if process:
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        return process

    return fork_and_wait
