"""The system calls with which a command writes, and strace to kill or fail it at one of them.

A point is the n-th call of one name. strace stops the command when it enters the
call, so that a call at which it is killed, or which fails, has no effect.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

NAMES = ("mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat")
NODES = ("symlink", "symlinkat", "mknod", "mknodat")
REMOVALS = ("unlink", "unlinkat", "rmdir")
CONTENT = ("write", "writev", "pwrite64", "pwritev", "ftruncate", "fallocate", "copy_file_range")
SYNCS = ("fsync", "fdatasync", "syncfs", "sync")
RIGHTS = ("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat")
TIMES = ("utimensat",)
ATTRIBUTES = (
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
)
METADATA = frozenset({*RIGHTS, *TIMES, *ATTRIBUTES})
OPEN = "openat"
"""Counted only where it may make a file, though strace knows it by its name alone."""
WRITING = (*NAMES, *NODES, *REMOVALS, *CONTENT, *SYNCS, *RIGHTS, *TIMES, *ATTRIBUTES, OPEN)

ERRORS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        (*NAMES, *NODES),
        (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT),
    ),
    **dict.fromkeys(REMOVALS, (errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS)),
    **dict.fromkeys(CONTENT, (errno.EIO, errno.ENOSPC, errno.EDQUOT)),
    **dict.fromkeys(SYNCS, (errno.EIO, errno.ENOSPC, errno.EDQUOT)),
    **dict.fromkeys((*RIGHTS, *TIMES), (errno.EIO, errno.EPERM, errno.EROFS)),
    **dict.fromkeys(ATTRIBUTES, (errno.EIO, errno.ENOSPC, errno.EPERM, errno.EROFS, errno.EDQUOT)),
    OPEN: (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EMFILE, errno.EROFS, errno.EDQUOT),
}
"""The errors with which each call may fail."""

STREAMS = ("1", "2")
"""Descriptors to which a command prints."""
_KILLED = 128 + signal.SIGKILL
"""What a shell says of a command that SIGKILL ended."""
_CALL = re.compile(r"^(?:\d+ +)?(\w+)\(([^,)]*)")


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One call of a command: the n-th of its name, from 1."""

    call: str
    number: int
    prints: bool = False
    """Whether the call writes to standard output or standard error."""

    def __str__(self) -> str:
        return f"{self.call}:{self.number}"

    def killing(self) -> str:
        """Returns what makes strace kill the command at this call."""
        return f"inject={self.call}:signal=KILL:when={self.number}"

    def failing(self, number: int, *, lasting: bool = False) -> str:
        """Returns what makes strace fail this call, or this one and all later ones of its name."""
        when = f"{self.number}+" if lasting else str(self.number)
        return f"inject={self.call}:error={errno.errorcode[number]}:when={when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    code: int
    """Its exit code; negative for the signal that killed it."""
    out: str
    err: str
    words: str
    """The command line without what traces it, for people."""
    failed_call: str = ""
    """The call that was made to fail first, with its arguments; empty if none was."""

    @property
    def was_killed(self) -> bool:
        """Whether it died by SIGKILL."""
        return self.code == -9


def has_strace() -> bool:
    """Returns whether strace is installed."""
    return shutil.which("strace") is not None


def run(command: Sequence[str], env: Mapping[str, str], injection: str | None = None) -> Ended:
    """Runs a command to its end, at an injection of strace if there is one.

    The working directory is the file system's root, which no test removes.
    """
    with NamedTemporaryFile("r", encoding="utf-8", errors="replace") as log:
        prefix = [] if injection is None else _strace("-o", log.name, "-e", injection)
        traced = [*prefix, *command]
        ended = subprocess.run(
            traced, env=dict(env), cwd="/", capture_output=True, timeout=120, check=False
        )
        failed_call = next((line for line in log if line.endswith(" (INJECTED)\n")), "")
    return Ended(
        code=-signal.SIGKILL if ended.returncode == _KILLED else ended.returncode,
        out=ended.stdout.decode("utf-8", "replace"),
        err=ended.stderr.decode("utf-8", "replace"),
        words=shlex.join([os.path.basename(command[0]), *command[1:]]),
        failed_call=failed_call,
    )


def points(command: Sequence[str], env: Mapping[str, str], log: Path) -> list[Point]:
    """Runs a command, which must succeed, and returns its writing calls in their order."""
    ended = run([*_strace("-o", str(log)), *command], env)
    assert ended.code == 0, ended.err
    counts: Counter[str] = Counter()
    found = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        call = _CALL.match(line)
        if call is None:
            continue
        counts[call[1]] += 1
        if is_writing(line):
            prints = call[1] in CONTENT and call[2] in STREAMS
            found.append(Point(call[1], counts[call[1]], prints))
    log.unlink()
    return found


def is_writing(line: str) -> bool:
    """Returns whether a call in strace's log may write: not one that opens what is there already.

    A line that says too little counts as a call that writes.
    """
    call = _CALL.match(line)
    return call is None or call[1] != OPEN or "O_CREAT" in line


def _strace(*options: str) -> list[str]:
    """Returns strace with the calls to look at; the question mark is for other processors.

    No filter in the kernel: with one, strace would kill only after the call. Where that is
    permitted, the command sees no process but its own: it looks into each one for mapped files,
    so that calls would have other numbers whenever something else starts or ends.
    """
    calls = ",".join(f"?{name}" for name in WRITING)
    return [*_alone(), "strace", "-f", "-qq", "-s", "0", "-e", f"trace={calls}", *options]


@cache
def _alone() -> tuple[str, ...]:
    """Returns what runs a command in a namespace of processes, below a shell that is its first."""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--")
    try:
        subprocess.run([*unshare, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return *unshare, "sh", "-c", '"$@"; exit $?', "sh"
