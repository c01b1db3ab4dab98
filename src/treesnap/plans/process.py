"""Running one attempt of a step: a process group, its output in a file, a time limit.

The output goes straight into a file of the store, so that it survives whoever reads it,
and a process that a step leaves behind keeps nobody waiting. That file is locked, and
the lock is inherited: as long as anything that the attempt started is alive and has
its output, the file cannot be locked by anybody else. So an interrupted attempt is
known to be over when its file can be locked, whatever has become of process numbers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from treesnap.errors import Busy, ErrorCode, NotFound
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import read_file

_PAUSE_S = 0.05
_PIECE_SIZE = 1 << 16
_ACCESS_MODE = 0o3

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


class _Output:
    """The file of an attempt's output, followed as it grows."""

    def __init__(self, fs: FileSystem, fd: int, listener: Listener) -> None:
        self._fs = fs
        self._fd = fd
        self._listener = listener
        self._position = 0

    def follow(self) -> None:
        """Passes on what is new."""
        while piece := self._fs.read_at(self._fd, _PIECE_SIZE, self._position):
            self._position += len(piece)
            self._listener(piece)


def attempt(
    fs: FileSystem,
    command: Sequence[str],
    *,
    directory: str,
    log_path: str,
    timeout_s: int | None,
    listener: Listener,
) -> Ended:
    """Runs a command and returns how it ended, with nothing of a failed one left running.

    What a successful command leaves in the background goes on. When this raises, for an
    interruption too, the whole group was killed. Raises NotFound for a command that
    cannot be started, OSError when the output cannot be kept.
    """
    fd = fs.open(log_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    try:
        fs.lock(fd, exclusive=True)
        try:
            process = subprocess.Popen(  # noqa: S603 - running it is the job
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise NotFound(
                f"The command {command[0]!r} cannot be started: {error.strerror}",
                code=ErrorCode.COMMAND_NOT_FOUND,
                path=command[0],
            ) from error
        try:
            ended = _wait(process, _Output(fs, fd, listener), timeout_s)
        except BaseException:
            _kill(process)
            raise
        if not ended.is_success:
            _kill(process)
        return ended
    finally:
        fs.close(fd)  # not unlocked: what the command left running holds it too


def _wait(process: subprocess.Popen[bytes], output: _Output, timeout_s: int | None) -> Ended:
    deadline = time.monotonic() + timeout_s if timeout_s is not None else None
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PAUSE_S)
        output.follow()
        if process.returncode is not None:
            return Ended(process.returncode)
        if deadline is not None and time.monotonic() >= deadline:
            return Ended(None)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a command's whole process group. It is our child's, so the number is still its."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_leftovers(fs: FileSystem, log_path: str, wait_s: float) -> None:
    """Kills what an interrupted attempt left running, and waits until it is gone.

    Known by its output: a process that may write to the attempt's file is of the attempt.
    Raises Busy when something is left that is not ours to kill, or cannot be found.
    """
    try:
        fd = fs.open(log_path, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        deadline = time.monotonic() + wait_s
        while not fs.lock(fd, exclusive=True):
            for process_id in _writers(fs, fd):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process_id, signal.SIGKILL)
            if time.monotonic() >= deadline:
                raise Busy("What an interrupted step started is still running", path=log_path)
            time.sleep(_PAUSE_S)
        fs.unlock(fd)
    finally:
        fs.close(fd)


def _writers(fs: FileSystem, fd: int) -> list[int]:
    """Returns the other processes that have a file open for writing, as Linux lists them."""
    wanted = fs.fstat(fd)
    try:
        names = fs.list_names("/proc")
    except OSError:
        return []
    others = (name for name in names if name.isdigit() and int(name) != os.getpid())
    return [int(name) for name in others if _writes(fs, name, wanted)]


def _writes(fs: FileSystem, process_name: str, wanted: os.stat_result) -> bool:
    directory = f"/proc/{process_name}/fd"
    with suppress(OSError):
        for name in fs.list_names(directory):
            link = fs.read_link(f"{directory}/{name}".encode())
            status = fs.lstat(link)
            if os.path.samestat(status, wanted) and _may_write(fs, process_name, name):
                return True
    return False


def _may_write(fs: FileSystem, process_name: str, name: str) -> bool:
    text = read_file(fs, f"/proc/{process_name}/fdinfo/{name}", 1 << 12).decode()
    flags = next((line.split()[1] for line in text.splitlines() if line.startswith("flags")), "0")
    return int(flags, 8) & _ACCESS_MODE != os.O_RDONLY
