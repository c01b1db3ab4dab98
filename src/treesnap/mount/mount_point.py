"""Where a history is mounted: which directories are refused, and how a mount ends.

The kernel keeps a mount whose process was killed: each access to it says "Transport endpoint is
not connected" (ENOTCONN). The next mount there, or :func:`unmount`, clears it.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable

from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.os_errors import reported
from treesnap.core.model.errors import ErrorCode, NotFound, OperationFailed, Refused, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.context import Context, absolute
from treesnap.core.ops.trust import real_target
from treesnap.core.worktree.mounts import Mounts
from treesnap.mount.fuse import load_binding

FILE_SYSTEM = "treesnap"
"""What the kernel's list of mounts says: the type is ``fuse.treesnap``."""
_KIND = f"fuse.{FILE_SYSTEM}"
_DEVICE = "/dev/fuse"
_HELPERS = ("fusermount3", "fusermount")


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
    directory that is not empty, or in the root or the store; NotFound, StoreMissing;
    OperationFailed without FUSE. Then nothing was changed.
    """
    path = real_target(absolute(directory))
    is_dead = _is_dead(path)
    if is_dead:
        if Mounts(context.fs).kind(path) != _KIND:
            raise Refused(
                f"A program that is gone has left a mount at {quoted(path)}",
                code=ErrorCode.NOT_MOUNTABLE,
                path=path,
            )
    else:
        _check(context, path)
    _refuse_inside(context, path)
    _require_fuse()
    from treesnap.mount.adapter import serve
    from treesnap.mount.view import HistoryView

    with HistoryView(context, report) as view:
        if is_dead:
            _unmount(path, lazily=True)
            _check(context, path)
        mounted = MountedHistory(context.root, path, is_dead)
        serve(view, path, FILE_SYSTEM, ready=lambda: ready(mounted), report=report)


def unmount(directory: str) -> str:
    """Ends a mount, also one whose process was killed; returns its real path.

    Raises NotFound where no history is mounted, OperationFailed while a program uses it.
    """
    path = os.path.realpath(absolute(directory))
    mounts = Mounts(LocalFileSystem())
    if not mounts.is_point(os.fsencode(path)) or mounts.kind(path) != _KIND:
        raise NotFound(
            f"No history is mounted at {quoted(path)}", code=ErrorCode.NOT_MOUNTED, path=path
        )
    _unmount(path, lazily=_is_dead(path))
    return path


def _is_dead(path: str) -> bool:
    """Returns whether the process that serves a mount is gone."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def _check(context: Context, path: str) -> None:
    """Raises Refused unless a path is an empty directory."""
    why = None
    if not os.path.lexists(path):
        why = "does not exist"
    elif not os.path.isdir(path):
        why = "is not a directory"
    elif Mounts(context.fs).kind(path) == _KIND:
        why = "is in a history that is mounted already"
    else:
        with reported("look at the directory"):
            if os.listdir(path):
                why = "is not empty"
    if why is not None:
        raise Refused(
            f"The directory {quoted(path)} {why}", code=ErrorCode.NOT_MOUNTABLE, path=path
        )


def _refuse_inside(context: Context, path: str) -> None:
    places = {"the root": context.root, "the store": os.path.realpath(context.store_path)}
    for what, place in places.items():
        if os.path.commonpath([place, path]) == place:
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


def _unmount(path: str, *, lazily: bool) -> None:
    helper = _helper()
    if helper is not None:
        command = [helper, "-u", *(["-z"] if lazily else []), path]
    else:
        command = ["umount", *(["-l"] if lazily else []), path]
    with reported("unmount the history"):
        done = subprocess.run(  # noqa: S603 - a fixed program; the path is absolute
            command, check=False, capture_output=True
        )
    if done.returncode != 0:
        said = os.fsdecode(done.stderr).strip()
        raise OperationFailed(f"Could not unmount {quoted(path)}: {said}", path=path)
