"""The processes that a command started: the ends of children, and what they started themselves.

What a command started is found by two marks, even if process ids were reused:

- a variable of its environment, which names the command. It survives closing all files.
- a file that all of them inherit, open for writing. It survives clearing the environment.

A process that changes its program, by execve(2), shows no environment for a moment; it is
looked at again. Where no process is shown, none is found.
"""

from __future__ import annotations

import errno
import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from treesnap.core.fs import processes
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.processes import open_file_identity, read_shown
from treesnap.core.model.type_names import Any

_EXEC_LOOKS_MAX = 100
_EXEC_PAUSE_S = 0.002
_ACCESS_MODE = 0o3
_LOOK_S = 1.0
"""How long a signal may go unnoticed while nothing but the end of a child is waited for."""


def require_exit_codes() -> None:
    """Raises Unsupported where :func:`exit_code_of` can tell none: before a command is started."""
    if not hasattr(os, "waitid"):
        message = "On this system, commands of plans need Python 3.13 or later"
        raise Unsupported(errno.ENOSYS, message)


def exit_code_of(process_id: int) -> int | None:
    """Returns the exit code of a child that has ended, negative for a signal; None while it runs.

    Its process id stays reserved. Raises ChildProcessError where this process ignores SIGCHLD, and
    Unsupported where the system does not tell without giving the id away.
    """
    require_exit_codes()
    look: Any = getattr(os, "waitid", None)
    status = look(os.P_PID, process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return None
    code: int = status.si_status
    return code if status.si_code == os.CLD_EXITED else -code


def pause_for(process_id: int, pause_s: float) -> None:
    """Waits for a time, or until a child has ended where the system tells that."""
    with _descriptor(process_id) as fd:
        if fd is None:
            time.sleep(pause_s)
        else:
            _wait_for(fd, pause_s)


def wait_for_end(child: subprocess.Popen[bytes]) -> int:
    """Waits for the end of a child; returns its exit code, negative for a signal.

    A handler runs within a second of its signal. During a plain wait it may not run before the
    end: not for a signal that comes between Python's last look and the call, and not for one that
    the system gave to another thread.
    """
    with _descriptor(child.pid) as fd:
        while child.poll() is None:
            if fd is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_LOOK_S)
            else:
                _wait_for(fd, _LOOK_S)
    code: int = child.returncode
    return code


@contextmanager
def _descriptor(process_id: int) -> Iterator[int | None]:
    """Yields a descriptor of a process, or None where there are none, or a sandbox forbids it."""
    opened = getattr(os, "pidfd_open", None)
    try:
        fd: int | None = opened(process_id) if opened is not None else None
    except OSError:
        fd = None
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _wait_for(process_fd: int, pause_s: float) -> None:
    poll = select.poll()
    poll.register(process_fd, select.POLLIN)
    poll.poll(pause_s * 1000)


def marked_processes(variable: str, mark: str, mark_file: os.stat_result | None) -> Iterator[int]:
    """Yields the other processes of a command.

    Its ``mark`` is one of the words of the ``variable``; ``mark_file`` is the status of the file.
    """
    with suppress(OSError):
        for name in processes.process_names():
            if int(name) != os.getpid():
                directory = _live_task(f"/proc/{name}")
                if _has_mark(directory, variable, mark) or (
                    mark_file is not None and _writes(directory, mark_file)
                ):
                    yield int(name)


def _live_task(process: str) -> str:
    """Returns the directory in /proc that shows what a process has.

    That is a thread's where the first one has ended and others go on.
    """
    with suppress(OSError):
        if not _memory_bytes(_status(process)):
            for thread in os.listdir(f"{process}/task"):
                task = f"{process}/task/{thread}"
                if _memory_bytes(_status(task)):
                    return task
    return process


def _status(directory: str) -> list[bytes]:
    """Returns the fields of proc_pid_stat(5), from the third one on."""
    return read_shown(f"{directory}/stat").rpartition(b")")[2].split()


def _memory_bytes(status: Sequence[bytes]) -> int:
    return int(status[20])


def _has_mark(directory: str, variable: str, mark: str) -> bool:
    _, *values = (b"\0" + _environment(directory)).split(f"\0{variable}=".encode())
    return any(mark.encode() in value.partition(b"\0")[0].split() for value in values)


def _environment(directory: str) -> bytes:
    """Returns a process's environment; waits up to 0.2 seconds while it changes its program."""
    with suppress(OSError):
        for _ in range(_EXEC_LOOKS_MAX):
            shown = read_shown(f"{directory}/environ")
            if shown or not _changes_program(directory):
                return shown
            time.sleep(_EXEC_PAUSE_S)
    return b""


def _changes_program(directory: str) -> bool:
    """Returns whether a process that showed no environment has one, or will, by proc_pid_stat(5).

    Its memory is replaced first; where the environment lies in it is known only later.
    """
    status = _status(directory)
    start, end = int(status[47]), int(status[48])
    return _memory_bytes(status) > 0 and (end == 0 or start < end)


def _writes(directory: str, directory_status: os.stat_result) -> bool:
    """Returns whether a process can write to a file; having it open for reading is not enough."""
    with suppress(OSError):
        for name in os.listdir(f"{directory}/fd"):
            with suppress(OSError):
                _, device, inode = open_file_identity(f"{directory}/fd/{name}")
                if (device, inode) != (directory_status.st_dev, directory_status.st_ino):
                    continue
                if _may_write(f"{directory}/fdinfo/{name}"):
                    return True
    return False


def _may_write(path: str) -> bool:
    lines = _content(path).decode().splitlines()
    flags = next((line.split()[1] for line in lines if line.startswith("flags")), "0")
    return int(flags, 8) & _ACCESS_MODE != os.O_RDONLY


def _content(path: str) -> bytes:
    """Returns a file in /proc, or nothing where it cannot be read."""
    with suppress(OSError):
        return read_shown(path)
    return b""
