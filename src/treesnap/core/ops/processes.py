"""The processes of a command: how they are found, and how all of them are ended.

What a command started is found by two marks, even if process ids were reused:

- a variable of its environment, which names the command. It survives closing all files.
- a file that all of them inherit, open for writing. It survives clearing the environment.

A process that changes its program, by execve(2), shows no environment for a moment; it is
looked at again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress

from treesnap.core.fs import process_files
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import read_file
from treesnap.core.fs.local import open_file_identity
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
_PROC_FILE_SIZE_MAX = 1 << 24
_EXEC_LOOKS_MAX = 100
_EXEC_PAUSE_S = 0.002
_ACCESS_MODE = 0o3
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
        return self._process.wait()

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
        left = _killed(fs, self._mark, mark_file, max(context.wait_s, ENDING_MIN_S))
        if own is not None:
            with suppress(subprocess.TimeoutExpired):
                own.wait(ENDING_MIN_S)
        if left:
            numbers = ", ".join(map(str, left))
            context.monitor.warn(
                WarningCode.PROCESSES_LEFT, f"Processes of the command cannot be ended: {numbers}"
            )


def _killed(
    fs: FileSystem, mark: str, mark_file: os.stat_result | None, wait_s: float
) -> list[int]:
    """Kills all processes with a mark, and what they start meanwhile; returns those that remain."""
    deadline = time.monotonic() + wait_s
    while process_ids := list(processes_of(fs, mark, mark_file)):
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
            process_ids = list(processes_of(fs, mark, fs.fstat(fd)))
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


def processes_of(fs: FileSystem, mark: str, mark_file: os.stat_result | None) -> Iterator[int]:
    """Yields the other processes of a command, as Linux lists them."""
    with suppress(OSError):
        for name in process_files.process_names():
            if int(name) != os.getpid():
                directory = _live_task(fs, f"/proc/{name}")
                if _has_mark(fs, directory, mark) or (
                    mark_file is not None and _writes(fs, directory, mark_file)
                ):
                    yield int(name)


def _live_task(fs: FileSystem, process: str) -> str:
    """Returns the directory in /proc that shows what a process has.

    That is a thread's where the first one has ended and others go on.
    """
    with suppress(OSError):
        if not _memory_bytes(_status(fs, process)):
            for thread in fs.list_names(f"{process}/task"):
                task = f"{process}/task/{thread}"
                if _memory_bytes(_status(fs, task)):
                    return task
    return process


def _status(fs: FileSystem, directory: str) -> list[bytes]:
    """Returns the fields of proc_pid_stat(5), from the third one on."""
    return read_file(fs, f"{directory}/stat", _PROC_FILE_SIZE_MAX).rpartition(b")")[2].split()


def _memory_bytes(status: Sequence[bytes]) -> int:
    return int(status[20])


def _has_mark(fs: FileSystem, directory: str, mark: str) -> bool:
    start = f"{MARKS_VARIABLE}=".encode()
    variables = _environment(fs, directory).split(b"\0")
    return any(
        item.startswith(start) and mark.encode() in item.removeprefix(start).split()
        for item in variables
    )


def _environment(fs: FileSystem, directory: str) -> bytes:
    """Returns a process's environment; waits up to 0.2 seconds while it changes its program."""
    with suppress(OSError):
        for _ in range(_EXEC_LOOKS_MAX):
            shown = read_file(fs, f"{directory}/environ", _PROC_FILE_SIZE_MAX)
            if shown or not _changes_program(fs, directory):
                return shown
            time.sleep(_EXEC_PAUSE_S)
    return b""


def _changes_program(fs: FileSystem, directory: str) -> bool:
    """Returns whether a process that showed no environment has one, or will, by proc_pid_stat(5).

    Its memory is replaced first; where the environment lies in it is known only later.
    """
    status = _status(fs, directory)
    start, end = int(status[47]), int(status[48])
    return _memory_bytes(status) > 0 and (end == 0 or start < end)


def _writes(fs: FileSystem, directory: str, wanted: os.stat_result) -> bool:
    """Returns whether a process can write to a file; having it open for reading is not enough."""
    with suppress(OSError):
        for name in fs.list_names(f"{directory}/fd"):
            with suppress(OSError):
                _, device, inode = open_file_identity(f"{directory}/fd/{name}")
                if (device, inode) != (wanted.st_dev, wanted.st_ino):
                    continue
                if _may_write(fs, f"{directory}/fdinfo/{name}"):
                    return True
    return False


def _may_write(fs: FileSystem, path: str) -> bool:
    lines = _content(fs, path).decode().splitlines()
    flags = next((line.split()[1] for line in lines if line.startswith("flags")), "0")
    return int(flags, 8) & _ACCESS_MODE != os.O_RDONLY


def _content(fs: FileSystem, path: str) -> bytes:
    """Returns a file in /proc, or nothing where it cannot be read."""
    with suppress(OSError):
        return read_file(fs, path, _PROC_FILE_SIZE_MAX)
    return b""


def check_line(context: Context, line: str) -> tuple[int, str]:
    """Runs a line of the shell in the root; returns its exit code and its last line of output.

    The line gets no standard input. What it leaves running in the background is not waited for.
    Blank lines do not count.
    """
    output = os.memfd_create("output")  # a pipe would be open as long as the background is
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
