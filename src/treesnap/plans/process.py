"""Running one attempt of a step: its output kept, a time limit, and nothing left over.

A process that a step leaves behind delays nothing. What an attempt started is known by the
marks of :mod:`treesnap.ops.processes`; the file is that of its output, which is locked. Every
process of the attempt inherits it and with it the lock, so that the lock is taken while one
of them lives and has the file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from treesnap.errors import ErrorCode, NotFound, OperationFailed
from treesnap.fs.base import FileSystem
from treesnap.fs.os_errors import error_text
from treesnap.ops.processes import end_leftovers, marked_environment
from treesnap.plans.output import Listener, Log, Pipe

_PAUSE_MIN_S = 0.001
_PAUSE_MAX_S = 0.05
_PIECE_SIZE = 1 << 16
_NOT_THERE = (FileNotFoundError, PermissionError, NotADirectoryError)


class Ended(NamedTuple):
    """How an attempt ended."""

    exit_code: int | None
    """The command's own, negative for a signal; None after the time limit."""

    @property
    def is_success(self) -> bool:
        """Whether the command did what it should."""
        return self.exit_code == 0


class StepWork(NamedTuple):
    """One attempt: what is run, and where."""

    command: Sequence[str]
    directory: str
    log_path: str
    """The file that keeps the output."""
    mark: str
    """Names the attempt, unlike every other one that ever was."""
    timeout_s: int | None


def attempt(fs: FileSystem, work: StepWork, listener: Listener, wait_s: float) -> Ended:
    """Runs a command and returns how it ended, with nothing of a failed one left running.

    What a successful command leaves in the background goes on. When this raises, for an
    interruption too, everything that was started is dead. Raises NotFound for a command
    that cannot be started, OperationFailed when the system refuses, Busy when something
    cannot be killed within ``wait_s``.
    """
    log = Log(fs, work.log_path)
    ended = Ended(None)
    try:
        fs.lock(log.fd, exclusive=True)
        with Pipe(log, listener) as output:
            ended = _carried_out(work, log.fd, output)
            if ended.is_success:
                output.leave_open()
    finally:
        log.close()  # not unlocked: what the command left running holds it too
        if not ended.is_success:
            end_leftovers(fs, work.log_path, work.mark, wait_s)
    return ended


def _carried_out(work: StepWork, log_fd: int, output: Pipe) -> Ended:
    process = _started(work, log_fd, output.write_fd)
    output.close_write_end()
    ended = Ended(None)
    try:
        ended = _wait(process, output, work.timeout_s)
    finally:
        if not ended.is_success:
            _kill_group(process)
        process.wait()
    return ended


def _started(work: StepWork, log_fd: int, write_fd: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - running it is the job
            work.command,
            cwd=work.directory,
            env=marked_environment(work.mark),
            stdin=subprocess.DEVNULL,
            stdout=write_fd,
            stderr=write_fd,
            pass_fds=(log_fd,),  # and with it the lock
            start_new_session=True,
        )
    except OSError as error:
        message = f"The command {work.command[0]!r} cannot be started: {error_text(error)}"
        if isinstance(error, _NOT_THERE) and error.filename != work.directory:
            raise NotFound(
                message, code=ErrorCode.COMMAND_NOT_FOUND, path=work.command[0]
            ) from error
        raise OperationFailed(message, errno=error.errno) from error


def _wait(process: subprocess.Popen[bytes], output: Pipe, timeout_s: int | None) -> Ended:
    """Returns how a command ended, without taking its number away, or None after a limit."""
    deadline = time.monotonic() + timeout_s if timeout_s is not None else None
    pause_s = _PAUSE_MIN_S
    while (exit_code := _exit_code(process)) is None:
        if deadline is not None and time.monotonic() >= deadline:
            break
        output.follow(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S)
    output.follow_to_end()
    return Ended(exit_code)


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code of a process that has ended; its number stays taken."""
    try:
        status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError as error:  # our parent ignores the end of children
        raise OperationFailed(
            "The system does not say how the command ended", errno=error.errno
        ) from error
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a command's process group at once. It is our child's, so the number is its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
