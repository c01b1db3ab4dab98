"""Where a history is mounted: which directories are refused, and how a mount ends.

The kernel keeps a mount whose process was killed: each access to it says "Transport endpoint is
not connected" (ENOTCONN). The next mount there, or :func:`unmount`, clears it.

While that process is stopped, each access waits, and a signal may not end it. So this process
makes none: the kernel's list says where a history is mounted, and a process that can be left
behind asks whether it is dead.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from treesnap.core.fs import LISTS_MOUNTS
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.mounts import Mounts
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.errors import (
    ErrorCode,
    MountStopped,
    NotFound,
    OperationFailed,
    Refused,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.context import WAIT_DEFAULT_S, Context, absolute
from treesnap.core.ops.trust import real_target
from treesnap.core.own_program import python_words
from treesnap.mount.fuse import load_binding

FILE_SYSTEM = "treesnap"
"""What the kernel's list of mounts says: the type is ``fuse.treesnap``."""
_KIND = f"fuse.{FILE_SYSTEM}"
_DEVICE = "/dev/fuse"
_HELPERS = ("fusermount3", "fusermount")
_LINKS_MAX = 40
_ANSWER_S = 1.0
"""So long an answer is waited for at least."""
_DEAD = 3
_ASK = f"""
import os, sys
try:
    os.stat(sys.argv[1])
except OSError as error:
    sys.exit({_DEAD} if error.errno == {errno.ENOTCONN} else 0)
"""


class MountedHistory(NamedTuple):
    """A history that is mounted."""

    root: str
    path: str
    """Real path of the directory where it is mounted."""
    cleared: bool
    """Whether a mount of a killed process was cleared there first."""


def mount(
    context: Context,
    directory: str,
    *,
    ready: Callable[[MountedHistory], None] = lambda _: None,
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Mounts the history of a root, read-only, until it is unmounted or a signal ends it.

    The signals are SIGINT, SIGTERM and SIGHUP, so this belongs into the main thread. ``ready`` is
    called once paths below the directory can be read, ``report`` with a line for each problem that
    makes a path unreadable. Only the user who mounts it can look into it. Raises Refused for a
    directory that is not empty, or in the root or the store; NotFound, StoreMissing; Busy where
    the process that serves another mount there does not answer; OperationFailed without FUSE.
    Then nothing was changed.
    """
    if not LISTS_MOUNTS:  # a look at a mount whose process is stopped would never end
        raise OperationFailed(
            "This system does not say what is mounted where, so nothing can be mounted safely"
        )
    mounted_at = _mounted_at(absolute(directory))
    is_dead = mounted_at is not None and _is_dead(mounted_at, context.wait_s)
    path = real_target(absolute(directory))
    if not is_dead:
        _check(context, path)
    _refuse_inside(context, path)
    _require_fuse()
    from treesnap.mount.adapter import serve
    from treesnap.mount.view import HistoryView

    with HistoryView(context, report) as view:
        if is_dead:
            _unmount(path, context.wait_s, lazily=True)
            _check(context, path)
        mounted = MountedHistory(context.root, path, is_dead)
        serve(view, path, FILE_SYSTEM, ready=lambda: ready(mounted), report=report)


def unmount(directory: str, wait_s: float = WAIT_DEFAULT_S) -> str:
    """Ends a mount, also one whose process was killed or stopped; returns its real path.

    Raises NotFound where no history is mounted, OperationFailed while a program uses it, and Busy
    when a stopped process keeps it from being unmounted for longer than ``wait_s``.
    """
    path = _mounted_at(absolute(directory))
    if path is None:
        raise NotFound(
            f"No history is mounted at {quoted(directory)}",
            code=ErrorCode.NOT_MOUNTED,
            path=os.fsdecode(directory),
        )
    began = time.monotonic()
    try:
        _unmount(path, wait_s, lazily=False)
    except OperationFailed:
        # A program has something open there; that of a dead mount fails anyway.
        if not _is_dead(path, wait_s - (time.monotonic() - began)):
            raise
        _unmount(path, wait_s, lazily=True)
    return path


def _mounted_at(directory: str) -> str | None:
    """Returns the real path of an absolute path where a history is mounted, or None.

    Looks at nothing that is below such a path, or at it.
    """
    if not LISTS_MOUNTS:
        return None
    mounts = Mounts(LocalFileSystem())
    path, left, links = "/", deque(directory.split("/")), 0
    while left:
        name = left.popleft()
        if name in {"", "."}:
            continue
        path = os.path.dirname(path) if name == ".." else os.path.join(path, name)
        if mounts.is_point(os.fsencode(path)) and mounts.kind(path) == _KIND:
            return path if {*left} <= {"", "."} else None
        with suppress(OSError):  # it is not a link
            target = os.readlink(path)
            links += 1
            if links > _LINKS_MAX:
                return None
            left.extendleft(reversed(target.split("/")))
            path = "/" if target.startswith("/") else os.path.dirname(path)
    return None


def _is_dead(path: str, wait_s: float) -> bool:
    """Returns whether the process that serves a mount is gone; raises Busy without an answer."""
    with translating_os_errors("look at the mount"):
        return _run(python_words("-I", "-S", "-c", _ASK, path), path, wait_s)[0] == _DEAD


def _run(command: Sequence[str], path: str, wait_s: float) -> tuple[int, str]:
    """Runs a program that may access a mount; returns its exit code and what it complains of.

    Raises Busy when it does not end within ``wait_s``. Then it is killed; where that does not end
    it, it is left behind until the process that serves the mount goes on.
    """
    process = subprocess.Popen(  # noqa: S603 - a fixed program; the path is absolute
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        _, said = process.communicate(timeout=max(wait_s, _ANSWER_S))
    except subprocess.TimeoutExpired:
        process.kill()
        process.stderr.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ANSWER_S)
        raise MountStopped(
            f"The process that serves the history at {quoted(path)} does not answer; it may be "
            "suspended",
            path=path,
        ) from None
    return process.returncode, os.fsdecode(said).strip()


def _check(context: Context, path: str) -> None:
    """Raises Refused unless a path is an empty directory."""
    why = None
    with translating_os_errors("look at the directory"):
        try:
            os.lstat(path)
        except FileNotFoundError:
            why = "does not exist"
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
            why = "is where a program that is gone has left a mount"
        else:
            if not os.path.isdir(path):
                why = "is not a directory"
            elif Mounts(context.fs).kind(path) == _KIND:
                why = "is in a history that is mounted already"
            elif os.listdir(path):
                why = "is not empty"
    if why is not None:
        raise Refused(
            f"The directory {quoted(path)} {why}", code=ErrorCode.NOT_MOUNTABLE, path=path
        )


def _refuse_inside(context: Context, path: str) -> None:
    places = {"the root": context.root, "the store": os.path.realpath(context.store_path)}
    for what, directory in places.items():
        if os.path.commonpath([directory, path]) == directory:
            raise Refused(
                f"The directory {quoted(path)} is inside {what}",
                code=ErrorCode.NOT_MOUNTABLE,
                path=path,
            )


def _require_fuse() -> None:
    """Raises OperationFailed where nothing can be mounted, with what to do."""
    load_binding()
    try:
        os.close(os.open(_DEVICE, os.O_RDWR))
    except OSError as error:
        raise OperationFailed(
            f"This machine offers no FUSE ({_DEVICE}: {error.strerror}); load the kernel's module "
            "'fuse', or give the container that device",
            errno=error.errno,
        ) from error
    if os.geteuid() != 0 and _helper() is None:
        raise OperationFailed(
            "The program fusermount3 is missing; install the package fuse3 of this system"
        )


def _helper() -> str | None:
    return next(filter(None, map(shutil.which, _HELPERS)), None)


def _unmount(path: str, wait_s: float, *, lazily: bool) -> None:
    helper = _helper()
    if helper is not None:
        command = [helper, "-u", *(["-z"] if lazily else []), path]
    else:
        command = ["umount", *(["-l"] if lazily else []), path]
    with translating_os_errors("unmount the history"):
        code, said = _run(command, path, wait_s)
    if code != 0:
        raise OperationFailed(f"Could not unmount {quoted(path)}: {said}", path=path)
