"""What the file system of a directory does: found out by trying it there, in a new directory.

What it says is a forecast for people and tests. No operation asks: it makes the call, and falls
back where that raises Unsupported, because a file system may refuse for one file what it did for
another.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.fs.base import FileSystem, Unsupported
from treesnap.core.fs.durable import opened_file
from treesnap.core.fs.os_errors import is_full
from treesnap.core.model.results import FileSystemCapabilities
from treesnap.core.worktree.apply.stage import (
    make_private_directory,
    new_stage_name,
    open_stage,
    remove_stage,
)
from treesnap.core.worktree.directory import NO_DIRECTORY

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL
_NAME_PREFIX = STAGE_PREFIX + b"doctor-"
_NAME, _OTHER_CASE = b"Name", b"nAME"
_COMPOSED, _DECOMPOSED = "caf\u00e9".encode(), "cafe\u0301".encode()
_NOT_TEXT = b"\xff"
_HOLE_SIZE = 1 << 20
_MODE = 0o640
_TIME_NS = 1_000_000_001_123_456_789
_TIME_STEPS_NS = (1, 100, 1_000, 10_000_000, 1_000_000_000)
_FAT_STEP_NS = 2_000_000_000


def capabilities_of(fs: FileSystem, directory_fd: int) -> FileSystemCapabilities:
    """Returns what the file system of a directory does; leaves it as it was.

    Makes a directory as a restore does, which no capture includes. Raises OSError where that may
    not be made, or has no room.
    """
    mtime_ns = fs.fstat(directory_fd).st_mtime_ns
    name = _unused_name(fs, directory_fd)
    fd = make_private_directory(fs, directory_fd, name)
    try:
        with suppress(OSError):
            fs.lock(fd, exclusive=True)
        return _tried(fs, fd)
    finally:
        fs.close(fd)
        remove_stage(fs, directory_fd, name)
        fs.change_times(directory_fd, mtime_ns)


def _unused_name(fs: FileSystem, directory_fd: int) -> bytes:
    """Returns the user's name for such a directory; removes one that a killed process left.

    Another one where a process works in that now, or something else has the name.
    """
    name = _NAME_PREFIX + b"%d" % os.geteuid()
    fd = None
    try:
        fd = open_stage(fs, directory_fd, name)
    except OSError as error:
        if error.errno not in NO_DIRECTORY:  # a file or a link, as in what comes from elsewhere
            raise
    if fd is None:
        return new_stage_name() if _works(fs.lstat, name, dir_fd=directory_fd) else name
    try:
        if not fs.lock(fd, exclusive=True):
            return new_stage_name()
        remove_stage(fs, directory_fd, name)
    except Unsupported:
        return new_stage_name()
    finally:
        fs.close(fd)
    return name


def _tried(fs: FileSystem, fd: int) -> FileSystemCapabilities:
    with (
        opened_file(fs, _NAME, _CREATE, fd) as one,
        opened_file(fs, _COMPOSED, _CREATE, fd) as other,
    ):
        names = [os.fsencode(text) for text in fs.list_names(fd)]
        return FileSystemCapabilities(
            folds_case=_works(fs.lstat, _OTHER_CASE, dir_fd=fd),
            folds_accents=_works(fs.lstat, _DECOMPOSED, dir_fd=fd),
            keeps_spelling=_NAME in names and _COMPOSED in names,
            any_bytes=_works(lambda: fs.close(fs.open(_NOT_TEXT, _CREATE, dir_fd=fd))),
            name_size_max=fs.name_size_max(fd),
            modes=_works(fs.change_mode, one, _MODE)
            and stat_module.S_IMODE(fs.fstat(one).st_mode) == _MODE,
            attributes=_works(fs.set_xattr, one, "user.treesnap", b"1"),
            hard_links=_works(fs.link, _NAME, b"link", source_dir_fd=fd, target_dir_fd=fd),
            symlinks=_works(fs.make_symlink, _NAME, b"symlink", dir_fd=fd),
            fifos=_works(fs.make_node, b"fifo", stat_module.S_IFIFO | 0o600, 0, dir_fd=fd),
            holes=_works(fs.truncate, one, _HOLE_SIZE) and fs.next_data(one, 0) is None,
            clones=_works(fs.share_content, other, one, (fd, _COMPOSED)),
            birth_times=fs.birth_time_ns(one) is not None,
            time_step_ns=_time_step_ns(fs, one),
            exchange=_works(fs.exchange, _NAME, _COMPOSED, source_dir_fd=fd, target_dir_fd=fd),
            rename_to_absent=_works(
                partial(fs.rename_to_absent, or_fail=True),
                _NAME,
                b"absent",
                source_dir_fd=fd,
                target_dir_fd=fd,
            ),
            locks=_works(fs.lock, one, exclusive=True),
            directory_sync=_works(fs.sync, fd),
        )


def _works(call: Callable[..., object], *arguments: object, **options: object) -> bool:
    try:
        call(*arguments, **options)
    except OSError as error:
        if is_full(error):
            raise
        return False
    return True


def _time_step_ns(fs: FileSystem, fd: int) -> int:
    fs.change_times(fd, _TIME_NS)
    kept_ns = fs.fstat(fd).st_mtime_ns
    steps_ns = (step for step in _TIME_STEPS_NS if _TIME_NS // step * step == kept_ns)
    return next(steps_ns, _FAT_STEP_NS)
