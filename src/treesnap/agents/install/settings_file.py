"""Files of hosts: read with care, replaced as a whole or not at all.

A file keeps its mode, its owner and its attributes, a link its target. What could not be replaced
so is refused before anything is written. All errors say that nothing was changed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import Temporary, read_file, sync_directory, write_all
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.fs.pinned import pinned
from treesnap.core.fs.real_path import opened_real
from treesnap.core.fs.record_locks import opened_any
from treesnap.core.model.errors import Conflict, ErrorCode, NotFound, OperationFailed, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.trust import real_target, refuse_foreign_place

SIZE_MAX_BYTES = 1 << 20
"""Settings that people write are a thousandth of this."""
_HOLDS_SOMETHING = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY})
"""What removing a directory raises that is in use."""


class HostFile(NamedTuple):
    """A file of a host, as it was when it was looked at."""

    path: str
    """Where it is, after all links."""
    content: bytes | None
    """None if the file is absent."""
    status: os.stat_result | None


def look(fs: FileSystem, path: str, *, project: str | None = None) -> HostFile:
    """Returns what is at a path; raises OperationFailed for what must not be replaced.

    In a project, which may be a stranger's, no link leads to a file outside of it. Raises Refused
    for the superuser where a link of another user leads there.
    """
    with translating_os_errors("look at the settings of a host"):
        for above in (Path(path), *Path(path).parents):
            if above.is_symlink() and not os.path.exists(above):
                raise _unusable(str(above), "is a link that leads nowhere")
        real = real_target(path)
        if project is not None and not _is_below(real, real_target(project)):
            raise _unusable(path, f"leads out of the project, to {quoted(real)}: remove the link")
        try:
            status = fs.lstat(real)
        except FileNotFoundError:
            return HostFile(real, None, None)
        except NotADirectoryError as error:
            raise _unusable(os.path.dirname(real), "is not a directory") from error
        if not stat.S_ISREG(status.st_mode):
            raise _unusable(path, "is not a regular file")
        if status.st_size > SIZE_MAX_BYTES:
            raise _unusable(path, f"is larger than {SIZE_MAX_BYTES >> 20} MiB")
        return HostFile(real, read_file(fs, real, SIZE_MAX_BYTES), status)


def require_replaceable(file: HostFile, base: str) -> None:
    """Raises OperationFailed or NotFound where a file could not be replaced as it should.

    Raises Refused for the superuser where another user could put something else in its place.
    ``base`` is the directory that has to be there; others are made in it.
    """
    if not os.path.isdir(base):
        raise NotFound(
            f"There is no directory {quoted(base)}", code=ErrorCode.ROOT_NOT_FOUND, path=base
        )
    refuse_foreign_place("file", file.path)
    path, status = file.path, file.status
    if status is not None and not status.st_mode & 0o222:
        raise _unusable(path, "is read-only")
    if status is not None and status.st_nlink > 1:
        raise _unusable(path, "has another name, which would keep the old content")
    if status is not None and os.geteuid() not in (0, status.st_uid):
        raise _unusable(path, "belongs to another user")
    nearest = next(above for above in Path(path).parents if above.is_dir())
    is_writable = os.access(nearest, os.W_OK | os.X_OK)
    if not is_writable or (status is not None and not os.access(path, os.W_OK)):
        raise _unusable(path, "cannot be written to")


def missing_directories(file: HostFile) -> list[str]:
    """Returns the directories that :func:`replace` will make, the deepest first."""
    return [str(above) for above in Path(file.path).parents if not above.is_dir()]


def replace(fs: FileSystem, file: HostFile, content: bytes, *, executable: bool) -> None:
    """Puts content into the place of a file, durably; makes the directories above it.

    After a crash the file has the old content or the new. Raises Conflict if it is no longer what
    it was when it was looked at. After an error all is as before.
    """
    missing, directory = missing_directories(file), os.path.dirname(file.path)
    with translating_os_errors("change the settings of a host"):
        try:
            _make_directories(fs, missing)
            with opened_real(fs, directory) as fd:
                fixed = pinned(fs, directory, fd)
                _publish(fixed, directory, file, content, executable=executable)
        except BaseException:
            with suppress(OSError):
                remove_directories(fs, missing)
            raise


def remove(fs: FileSystem, file: HostFile) -> None:
    """Removes a file; raises Conflict if it is no longer what it was when it was looked at."""
    with translating_os_errors("remove the hooks of a host"):
        directory = os.path.dirname(file.path)
        with opened_real(fs, directory) as fd:
            fixed = pinned(fs, directory, fd)
            _require_unchanged(fixed, file)
            fixed.unlink(file.path)
            fixed.sync(fd)


def remove_directories(fs: FileSystem, made: Iterable[str]) -> list[str]:
    """Removes directories that are empty; returns the others. Raises OSError."""
    left = []
    for directory in sorted(set(made), key=len, reverse=True):
        try:
            fs.remove_directory(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in _HOLDS_SOMETHING:
                raise
            left.append(directory)
        else:
            sync_directory(fs, os.path.dirname(directory))
    return left


def _publish(
    fs: FileSystem, directory: str, old: HostFile, content: bytes, *, executable: bool
) -> None:
    above = fs.lstat(directory)
    file = Temporary(fs, directory)
    try:
        write_all(fs, file.fd, content)
        if old.status is not None:
            _give(fs, file.fd, old.status)
            if fs.fstat(file.fd).st_gid != old.status.st_gid:
                with suppress(PermissionError):  # a group that the user is no longer in
                    fs.change_owner(file.fd, -1, old.status.st_gid)
            _copy_attributes(fs, old.path, file.fd)
            fs.change_mode(file.fd, stat.S_IMODE(old.status.st_mode))
        else:
            _give(fs, file.fd, above)
            fs.change_mode(file.fd, above.st_mode & (0o777 if executable else 0o666))
        _require_unchanged(fs, old)
    except BaseException:
        file.discard()
        raise
    file.publish(old.path, synced=True)
    sync_directory(fs, directory)


def _require_unchanged(fs: FileSystem, file: HostFile) -> None:
    try:
        now: bytes | None = read_file(fs, file.path, SIZE_MAX_BYTES)
    except FileNotFoundError:
        now = None
    if now != file.content:
        message = f"Another program changed {quoted(file.path)} at the same time"
        raise Conflict(message, path=file.path)


def _make_directories(fs: FileSystem, missing: Sequence[str]) -> None:
    for directory in reversed(missing):
        above = os.path.dirname(directory)
        with suppress(FileExistsError):
            fs.make_directory(directory, 0o777)  # as mkdir(1) does
            _give(fs, directory, fs.lstat(above))
        sync_directory(fs, above)


def _give(fs: FileSystem, name: str | int, status: os.stat_result) -> None:
    """As root: gives a new file the owner of the file it replaces, or of its directory."""
    if os.geteuid() == 0 and (status.st_uid, status.st_gid) != (0, 0):
        fs.change_owner(name, status.st_uid, status.st_gid)


def _copy_attributes(fs: FileSystem, path: str, fd: int) -> None:
    with suppress(OSError), opened_any(fs, path) as source:  # no attributes here
        for name in fs.list_xattrs(source):
            with suppress(OSError):  # those of the system are not the user's to set
                fs.set_xattr(fd, name, fs.get_xattr(source, name))


def _is_below(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory


def _unusable(path: str, problem: str) -> OperationFailed:
    return OperationFailed(f"{quoted(path)} {problem}; nothing was changed", path=path)
