"""Running one attempt of a step: its output in a file, a time limit, and nothing left over.

The output goes straight into a file of the store, so that it survives its readers, and a
process that a step leaves behind keeps nothing waiting. What an attempt started is known by
the marks of :mod:`treesnap.ops.processes`; the file is that of its output, which is locked.
Every process of the attempt inherits it and with it the lock, so that the lock is taken while
one of them lives and has the file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from treesnap.errors import ErrorCode, NotFound, OperationFailed
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import open_regular, unlink_if_present, write_all
from treesnap.fs.failure import error_text, reported
from treesnap.ops.processes import end_leftovers, marked_environment

_PAUSE_MIN_S = 0.001
_PAUSE_MAX_S = 0.05
_PIECE_SIZE = 1 << 16
_PIECES_MAX = 16
"""So many pieces are passed on between two looks at the clock."""
_DOING = "keep the output of a step"
_NOT_THERE = (FileNotFoundError, PermissionError, NotADirectoryError)

Listener = Callable[[bytes], None]
"""Gets output as it comes."""


class Ended(NamedTuple):
    """How an attempt ended."""

    exit_code: int | None
    """The command's own, negative for a signal; None after the time limit."""

    @property
    def is_success(self) -> bool:
        """Whether the command did what it should."""
        return self.exit_code == 0


class Work(NamedTuple):
    """One attempt: what is run, and where."""

    command: Sequence[str]
    directory: str
    log_path: str
    """The file that keeps the output."""
    mark: str
    """Names the attempt, unlike every other one that ever was."""
    timeout_s: int | None


class _Output:
    """The file of an attempt's output, followed as it grows."""

    def __init__(self, fs: FileSystem, fd: int, listener: Listener) -> None:
        self._fs = fs
        self._fd = fd
        self._listener = listener
        self._position = 0

    def follow(self) -> bool:
        """Passes on some of what is new; returns whether there may be more."""
        return self._pass_on(self._position + _PIECES_MAX * _PIECE_SIZE)

    def follow_to_end(self) -> None:
        """Passes on what there is now, though somebody may go on writing."""
        self._pass_on(self._fs.fstat(self._fd).st_size)

    def _pass_on(self, end: int) -> bool:
        while self._position < end:
            size = min(_PIECE_SIZE, end - self._position)
            with reported(_DOING):
                piece = self._fs.read_at(self._fd, size, self._position)
            if not piece:
                return False
            self._position += len(piece)
            self._listener(piece)
        return True


def attempt(fs: FileSystem, work: Work, listener: Listener, wait_s: float) -> Ended:
    """Runs a command and returns how it ended, with nothing of a failed one left running.

    What a successful command leaves in the background goes on. When this raises, for an
    interruption too, everything that was started is dead. Raises NotFound for a command
    that cannot be started, OperationFailed when the system refuses, Busy when something
    cannot be killed within ``wait_s``.
    """
    fd = _anew(fs, work.log_path)
    ended = Ended(None)
    try:
        fs.lock(fd, exclusive=True)
        ended = _carried_out(work, fd, _Output(fs, fd, listener))
    finally:
        fs.close(fd)  # not unlocked: what the command left running holds it too
        if not ended.is_success:
            end_leftovers(fs, work.log_path, work.mark, wait_s)
    return ended


def _carried_out(work: Work, fd: int, output: _Output) -> Ended:
    process = _started(work, fd)
    ended = Ended(None)
    try:
        ended = _wait(process, output, work.timeout_s)
    finally:
        if not ended.is_success:
            _kill_group(process)
        process.wait()
    return ended


def _started(work: Work, fd: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - running it is the job
            work.command,
            cwd=work.directory,
            env=marked_environment(work.mark),
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            pass_fds=(fd,),  # for commands that send their output elsewhere
            start_new_session=True,
        )
    except OSError as error:
        message = f"The command {work.command[0]!r} cannot be started: {error_text(error)}"
        if isinstance(error, _NOT_THERE) and error.filename != work.directory:
            raise NotFound(
                message, code=ErrorCode.COMMAND_NOT_FOUND, path=work.command[0]
            ) from error
        raise OperationFailed(message, errno=error.errno) from error


def _wait(process: subprocess.Popen[bytes], output: _Output, timeout_s: int | None) -> Ended:
    """Returns how a command ended, without taking its number away, or None after a limit."""
    deadline = time.monotonic() + timeout_s if timeout_s is not None else None
    pause_s = _PAUSE_MIN_S
    while (exit_code := _exit_code(process)) is None:
        if deadline is not None and time.monotonic() >= deadline:
            break
        if not output.follow():
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
    output.follow_to_end()
    return Ended(exit_code)


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit code of a process that has ended; its number stays taken."""
    try:
        status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError as error:  # whoever started us ignores the end of children
        raise OperationFailed("Nobody knows how the command ended", errno=error.errno) from error
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a command's process group at once. It is our child's, so the number is its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def keep_output(fs: FileSystem, log_path: str, data: bytes) -> None:
    """Keeps what an attempt says that is no process."""
    fd = _anew(fs, log_path)
    try:
        with reported(_DOING):
            write_all(fs, fd, data)
    finally:
        fs.close(fd)


def kept_output(fs: FileSystem, log_path: str) -> Iterator[bytes]:
    """Yields what an attempt wrote, or nothing where it was not kept."""
    with reported("read the output of a step"):
        try:
            fd = open_regular(fs, log_path)
        except FileNotFoundError:
            return
    try:
        position = 0
        while True:
            with reported("read the output of a step"):
                piece = fs.read_at(fd, _PIECE_SIZE, position)
            if not piece:
                return
            position += len(piece)
            yield piece
    finally:
        fs.close(fd)


def _anew(fs: FileSystem, path: str) -> int:
    """Makes a file of its own: what an earlier attempt left running may hold another one."""
    with reported(_DOING):
        unlink_if_present(fs, path)
        return fs.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND)
