"""The processes of a command: how they are found, and how all of them are ended.

What a command started is found by its mark, in a variable of the environment and as a file that all
of them inherit; see :mod:`treesnap.core.fs.children`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.children import marked_processes, wait_for_end
from treesnap.core.fs.local import unnamed_file
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.errors import (
    Busy,
    ErrorCode,
    InvalidArgument,
    NotFound,
    WarningCode,
    printable,
)
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.context import MARKS_VARIABLE, own_marks

if TYPE_CHECKING:
    from treesnap.core.ops.context import Context

ENDING_MIN_S = 10.0
"""How long killed processes may take to disappear, even if the caller waits less."""
_GRACE_S = 5.0
"""How long a command that is asked to end may take to clean up."""
_PAUSE_S = 0.05
_LAST_LINE_BYTES = 4096


def marked_environment(mark: str) -> dict[str, str]:
    """Returns this process's environment with one more mark."""
    return {**os.environ, MARKS_VARIABLE: " ".join([*own_marks(), mark])}


class Command:
    """A command that is run once in a root, with the standard streams of this process.

    It stays in the process group of this process, so that it can read from the terminal, and
    Ctrl-C and Ctrl-Z reach both.
    """

    def __init__(
        self, context: Context, words: Sequence[str], mark: str, mark_path: str | None
    ) -> None:
        """Prepares a command.

        ``mark`` is its unique name; ``mark_path`` is the file that its processes inherit, if any.
        """
        self._context = context
        self._words = words
        self._mark_path = mark_path
        self._mark = mark
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, starting: Callable[[], AbstractContextManager[None]]) -> int:
        """Returns the exit code, negative for a signal.

        The command is started within ``starting``. Raises NotFound or InvalidArgument for one
        that cannot be started. What it leaves in the background goes on.
        """
        fs = self._context.fs
        fd = fs.open(self._mark_path, os.O_RDWR) if self._mark_path is not None else None
        try:
            with starting():
                self._process = self._started(() if fd is None else (fd,))
        finally:
            if fd is not None:
                fs.close(fd)
        return wait_for_end(self._process)

    def _started(self, inherited: tuple[int, ...]) -> subprocess.Popen[bytes]:
        words = self._words
        try:
            return subprocess.Popen(  # noqa: S603 - running it is the job
                words,
                cwd=self._context.root,
                env=marked_environment(self._mark),
                pass_fds=inherited,
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise NotFound(
                f"The command {words[0]!r} cannot be started: {error.strerror}",
                code=ErrorCode.COMMAND_NOT_FOUND,
                path=words[0],
            ) from error
        except OSError as error:
            raise InvalidArgument(f"The command {words[0]!r} cannot be started: {error}") from error

    def ask_to_end(self, number: int, is_urgent: Callable[[], bool]) -> None:
        """Sends the command a signal, and waits briefly for its end, unless it is urgent."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            process.send_signal(number)
        deadline = time.monotonic() + _GRACE_S
        while process.poll() is None and time.monotonic() < deadline and not is_urgent():
            time.sleep(_PAUSE_S)

    def end(self) -> None:
        """Kills all that the command started; warns when some of it cannot be killed."""
        context = self._context
        own = self._process
        if own is not None and own.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                own.kill()
        fs = context.fs
        mark_file = None
        if self._mark_path is not None:
            with suppress(OSError):
                mark_file = fs.lstat(self._mark_path)
        left = _killed(self._mark, mark_file, max(context.wait_s, ENDING_MIN_S))
        if own is not None:
            with suppress(subprocess.TimeoutExpired):
                own.wait(ENDING_MIN_S)
        if left:
            numbers = ", ".join(map(str, left))
            context.monitor.warn(
                WarningCode.PROCESSES_LEFT, f"Processes of the command cannot be ended: {numbers}"
            )


def _killed(mark: str, mark_file: os.stat_result | None, wait_s: float) -> list[int]:
    """Kills all processes with a mark, and what they start meanwhile; returns those that remain."""
    deadline = time.monotonic() + wait_s
    while process_ids := list(marked_processes(MARKS_VARIABLE, mark, mark_file)):
        for process_id in process_ids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process_id, signal.SIGKILL)
        if time.monotonic() >= deadline:
            break
        time.sleep(_PAUSE_S)
    return process_ids


def end_leftovers(fs: FileSystem, log_path: str, mark: str, wait_s: float) -> None:
    """Kills what an attempt of a plan's step left running, and waits until it is gone.

    Its processes have inherited the lock of its log. Raises Busy when some are left that this
    process cannot kill or find.
    """
    with translating_os_errors("end what an interrupted step left running"):
        _end_leftovers(fs, log_path, mark, wait_s)


def _end_leftovers(fs: FileSystem, log_path: str, mark: str, wait_s: float) -> None:
    try:
        fd = fs.open(log_path, os.O_RDWR)
    except FileNotFoundError:  # it never began
        return
    try:
        deadline = time.monotonic() + wait_s
        while True:
            is_free = fs.lock(fd, exclusive=True)
            process_ids = list(marked_processes(MARKS_VARIABLE, mark, fs.fstat(fd)))
            if is_free and not process_ids:
                return
            for process_id in process_ids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process_id, signal.SIGKILL)
            if time.monotonic() >= deadline:
                raise Busy("What an interrupted step started is still running", path=log_path)
            time.sleep(_PAUSE_S)
    finally:
        fs.close(fd)


def check_line(context: Context, line: str) -> tuple[int, str]:
    """Runs a line of the shell in the root; returns its exit code and its last line of output.

    The line gets no standard input. What it leaves running in the background is not waited for.
    Blank lines do not count.
    """
    output = unnamed_file("output")  # a pipe would be open as long as the background is
    try:
        result = subprocess.run(  # noqa: S602 - the caller's own line
            line,
            shell=True,
            cwd=context.root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        start = max(0, os.fstat(output).st_size - _LAST_LINE_BYTES)
        lines = os.pread(output, _LAST_LINE_BYTES, start).strip().splitlines()
    finally:
        os.close(output)
    return result.returncode, printable(lines[-1] if lines else b"")
