"""Running one attempt of a step: its output in a file, a time limit, and nothing left over.

The output goes straight into a file of the store, so that it survives whoever reads it,
and a process that a step leaves behind keeps nobody waiting. What an attempt started is
known by two marks, whatever has become of process numbers since:

- the file of its output, which is locked. Every process of the attempt inherits it and
  with it the lock, so that nobody gets the lock while one of them lives and has the file.
- a variable of its environment, which names the attempt. Processes that close all files
  keep that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from treesnap.errors import Busy, ErrorCode, NotFound, OperationFailed
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import unlink_if_present, write_all
from treesnap.fs.failure import error_text, reported

VARIABLE = "SNAP_STEP"
"""Names the attempt that a process belongs to; where plans run plans, all of them."""

_PAUSE_MIN_S = 0.001
_PAUSE_MAX_S = 0.05
_PIECE_SIZE = 1 << 16
_PIECES_MAX = 16
"""So many pieces are passed on between two looks at the clock."""
_ACCESS_MODE = 0o3
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
    marks = " ".join([*os.environ.get(VARIABLE, "").split(), work.mark])
    try:
        return subprocess.Popen(  # noqa: S603 - running it is the job
            work.command,
            cwd=work.directory,
            env={**os.environ, VARIABLE: marks},
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


def end_leftovers(fs: FileSystem, log_path: str, mark: str, wait_s: float) -> None:
    """Kills what an attempt left running, and waits until it is gone.

    Raises Busy when something is left that is not ours to kill, or cannot be found.
    """
    with reported("end what an interrupted step left running"):
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
            found = list(_processes(fs, fd, mark))
            if is_free and not found:
                return
            for process_id in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process_id, signal.SIGKILL)
            if time.monotonic() >= deadline:
                raise Busy("What an interrupted step started is still running", path=log_path)
            time.sleep(_PAUSE_MAX_S)
    finally:
        fs.close(fd)


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
            fd = fs.open(log_path, os.O_RDONLY)
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


def _processes(fs: FileSystem, fd: int, mark: str) -> Iterator[int]:
    """Yields the other processes of an attempt, as Linux lists them."""
    wanted = fs.fstat(fd)
    with suppress(OSError):
        for name in fs.list_names("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                directory = f"/proc/{name}"
                if _has_mark(fs, directory, mark) or _writes(fs, directory, wanted):
                    yield int(name)


def _has_mark(fs: FileSystem, directory: str, mark: str) -> bool:
    start = f"{VARIABLE}=".encode()
    variables = _content(fs, f"{directory}/environ").split(b"\0")
    return any(
        item.startswith(start) and mark.encode() in item.removeprefix(start).split()
        for item in variables
    )


def _writes(fs: FileSystem, directory: str, wanted: os.stat_result) -> bool:
    """Returns whether a process may write to a file. Those that only read it are left alone."""
    with suppress(OSError):
        for name in fs.list_names(f"{directory}/fd"):
            with suppress(OSError):
                link = fs.read_link(f"{directory}/fd/{name}".encode())
                if not os.path.samestat(fs.lstat(link), wanted):
                    continue
                if _may_write(fs, f"{directory}/fdinfo/{name}"):
                    return True
    return False


def _may_write(fs: FileSystem, path: str) -> bool:
    lines = _content(fs, path).decode().splitlines()
    flags = next((line.split()[1] for line in lines if line.startswith("flags")), "0")
    return int(flags, 8) & _ACCESS_MODE != os.O_RDONLY


def _content(fs: FileSystem, path: str) -> bytes:
    """Returns a file of the kernel's, or nothing where it may not be read."""
    pieces = []
    with suppress(OSError):
        fd = fs.open(path, os.O_RDONLY)
        try:
            while piece := fs.read(fd, _PIECE_SIZE):
                pieces.append(piece)
        finally:
            fs.close(fd)
    return b"".join(pieces)
