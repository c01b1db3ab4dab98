"""Running one attempt of a step: its output kept, a time limit, and nothing left over.

A process that a step leaves behind delays nothing. The processes of an attempt are found by
the marks of :mod:`treesnap.core.ops.processes`. The file with its output is locked; every process
of the attempt inherits the file and the lock, so the lock is held while one of them lives and
has the file open.

The command writes into a pipe, which the runner empties: it passes everything on and
keeps the beginning and the end. The file never holds more than :data:`HEAD_BYTES` and twice
:data:`TAIL_BYTES`, however long the step runs; a line in between says how much was left out.

    head | "[... N bytes left out ...]" | what came last

A step that has succeeded may leave processes in the background that continue to write. None
of that is kept, but a full pipe must not block them and a closed one must not kill them. So
a process is started that reads and discards what they write, until the last writer ends.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Self

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.children import exit_code_of, require_exit_codes
from treesnap.core.fs.durable import open_regular, unlink_if_present
from treesnap.core.fs.os_errors import error_text, translating_os_errors
from treesnap.core.model.errors import ErrorCode, NotFound, OperationFailed
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.processes import end_leftovers, marked_environment

HEAD_BYTES = 256 << 10
TAIL_BYTES = 256 << 10

_PIECE_SIZE = 1 << 16
_PIECES_MAX = 16
"""The most pieces that are passed on between two looks at the clock."""
_REST_BYTES_MAX = 1 << 20
"""The most that a pipe may hold; later output was written after the command ended."""
_DOING = "keep the output of a step"
_INTO_NOTHING = "exec 3<&0; cat <&3 >/dev/null 2>&1 3<&- &"
"""A shell line. A background command has no standard input, so it reads a copy: 3."""
_PAUSE_MIN_S = 0.001
_PAUSE_MAX_S = 0.05
_NOT_THERE = (FileNotFoundError, PermissionError, NotADirectoryError)

Listener = Callable[[bytes], None]
"""Receives output as it comes."""


class Ended(NamedTuple):
    """How an attempt ended."""

    exit_code: int | None
    """The command's exit code, negative for a signal; None after the time limit."""

    @property
    def is_success(self) -> bool:
        """Whether the command succeeded."""
        return self.exit_code == 0


class StepWork(NamedTuple):
    """One attempt: what is run, and where."""

    command: Sequence[str]
    directory: str
    log_path: str
    """The file that keeps the output."""
    mark: str
    """Names the attempt; no other attempt ever has the same mark."""
    timeout_s: int | None


def attempt(fs: FileSystem, work: StepWork, listener: Listener, wait_s: float) -> Ended:
    """Runs a command and returns how it ended; no process of a failed command is left.

    Background processes of a successful command continue. If this raises, on an interruption
    too, everything that was started is dead. Raises NotFound for a command that does not
    exist, OperationFailed if the system refuses to start it, and Busy if a process cannot be
    killed within ``wait_s``.
    """
    log = Log(fs, work.log_path)
    ended = Ended(None)
    try:
        fs.lock(log.fd, exclusive=True)
        with Pipe(log, listener) as output:
            ended = _carry_out(work, log.fd, output)
            if ended.is_success:
                output.leave_open()
    finally:
        log.close()  # keeps the lock, which the command's background processes hold too
        if not ended.is_success:
            end_leftovers(fs, work.log_path, work.mark, wait_s)
    return ended


def _carry_out(work: StepWork, log_fd: int, output: Pipe) -> Ended:
    require_exit_codes()
    process = _start(work, log_fd, output.write_fd)
    output.close_write_end()
    ended = Ended(None)
    try:
        ended = _wait(process, output, work.timeout_s)
    finally:
        if not ended.is_success:
            _kill_group(process)
        process.wait()
    return ended


def _start(work: StepWork, log_fd: int, write_fd: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(  # noqa: S603 - running it is the job
            work.command,
            cwd=work.directory,
            env=marked_environment(work.mark),
            stdin=subprocess.DEVNULL,
            stdout=write_fd,
            stderr=write_fd,
            pass_fds=(log_fd,),  # and with it its lock
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
    """Returns how a command ended, or failed at its limit; its process id stays reserved."""
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
    """Returns the exit code of a process that has ended; its process id stays reserved."""
    try:
        return exit_code_of(process.pid)
    except ChildProcessError as error:  # our parent ignores SIGCHLD
        raise OperationFailed(
            "The exit code of the command is lost, because SIGCHLD is ignored", errno=error.errno
        ) from error


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a command's process group. Our child leads it, so the id cannot be another group's."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class Log:
    """The file with an attempt's output. It is locked while a process of the attempt lives.

    Output that cannot be written, on a full disk say, counts as left out: the step matters
    more than its output.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        """Creates a new file: processes of an earlier attempt may still hold the old one."""
        with translating_os_errors(_DOING):
            unlink_if_present(fs, path)
            self.fd: int = fs.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._fs = fs
        self._head_bytes = 0
        self._tail = bytearray()
        self._left_out_bytes = 0
        self._marker = b""

    def add(self, data: bytes) -> None:
        """Keeps some output."""
        room = HEAD_BYTES - self._head_bytes
        if room > 0:
            self._write(data[:room], self._head_bytes)
            self._head_bytes += len(data[:room])
            data = data[room:]
        if not data:
            return
        position = self._head_bytes + len(self._marker) + len(self._tail)
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            self._cut()
        else:
            self._write(data, position)

    def close(self) -> None:
        """Finishes the file. Its lock ends with the last process that has it open."""
        try:
            if len(self._tail) > TAIL_BYTES:
                self._cut()
        finally:
            self._fs.close(self.fd)

    def _cut(self) -> None:
        """Replaces all but the end of the tail by a line that says how much was left out.

        After a crash in the middle some output is in the file twice, but none is missing.
        """
        self._left_out_bytes += len(self._tail) - TAIL_BYTES
        del self._tail[:-TAIL_BYTES]
        self._marker = b"\n[... %d bytes left out ...]\n" % self._left_out_bytes
        self._write(self._marker + self._tail, self._head_bytes)
        with suppress(OSError):
            length = self._head_bytes + len(self._marker) + len(self._tail)
            self._fs.truncate(self.fd, length)

    def _write(self, data: bytes, place: int) -> None:
        view = memoryview(data)
        with suppress(OSError):
            while view:
                done = self._fs.write_at(self.fd, view, place)
                place += done
                view = view[done:]


class Pipe:
    """Takes a command's output to its log and its listener. Use as a context manager."""

    def __init__(self, log: Log, listener: Listener) -> None:
        self._log = log
        self._listener = listener
        self.write_fd: int
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._is_at_end = False
        self._poll = select.poll()
        self._poll.register(self._read_fd, select.POLLIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close_write_end()
        os.close(self._read_fd)

    def close_write_end(self) -> None:
        """Leaves the command and its children as the only writers."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def follow(self, wait_s: float) -> None:
        """Passes on some new output; waits for it up to ``wait_s``."""
        if self._is_at_end:
            time.sleep(wait_s)
        elif self._poll.poll(max(1, int(wait_s * 1000))):
            self._pass_on(_PIECES_MAX * _PIECE_SIZE)

    def follow_to_end(self) -> None:
        """Passes on everything written until now, even if a process continues to write."""
        self._pass_on(_REST_BYTES_MAX)

    def leave_open(self) -> None:
        """Starts a process that discards what background processes write from now on."""
        if self._is_at_end or any(event & select.POLLHUP for _, event in self._poll.poll(0)):
            return
        os.set_blocking(self._read_fd, True)
        with suppress(OSError):
            subprocess.run(  # noqa: S602 - a constant
                _INTO_NOTHING,
                shell=True,
                stdin=self._read_fd,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
                check=False,
            )

    def _pass_on(self, size_bytes_max: int) -> None:
        left_bytes = size_bytes_max
        while left_bytes > 0 and not self._is_at_end:
            try:
                piece = os.read(self._read_fd, min(_PIECE_SIZE, left_bytes))
            except BlockingIOError:
                return
            if not piece:
                self._is_at_end = True
                return
            left_bytes -= len(piece)
            self._log.add(piece)
            self._listener(piece)


def keep_output(fs: FileSystem, log_path: str, data: bytes) -> None:
    """Keeps the output of an attempt that is not a process."""
    log = Log(fs, log_path)
    try:
        log.add(data)
    finally:
        log.close()


def read_output(fs: FileSystem, log_path: str) -> Iterator[bytes]:
    """Yields the output of an attempt, or nothing if it was not kept."""
    with translating_os_errors("read the output of a step"):
        try:
            fd = open_regular(fs, log_path)
        except FileNotFoundError:
            return
    try:
        position = 0
        while True:
            with translating_os_errors("read the output of a step"):
                piece = fs.read_at(fd, _PIECE_SIZE, position)
            if not piece:
                return
            position += len(piece)
            yield piece
    finally:
        fs.close(fd)
