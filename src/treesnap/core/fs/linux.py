"""The file system of Linux: what :mod:`treesnap.core.fs.posix` does, and what only Linux has.

``renameat2``, ``syncfs`` and ``statx`` have no counterpart in Python's ``os`` and are
called in the C library; see section 2 of the manual. The library is loaded on first use,
because a capture needs none of them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache

from treesnap.core.fs import native, posix
from treesnap.core.fs.base import Name, NoAttribute, Place, Unsupported
from treesnap.core.fs.posix import ALWAYS, PosixFileSystem, open_whole
from treesnap.core.model.type_names import Any

assert sys.platform == "linux"  # or a type checker for another system looks at what follows

_AT_FDCWD = -100
_AT_SYMLINK_NOFOLLOW = 0x100
_AT_EMPTY_PATH = 0x1000
_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE = 0x1
_STATX_INO = 0x100
_MODE_AT = 28
_INODE_AT = 32
_DEVICE_AT = 136
_STATX_SIZE = 256
_MASK, _ATTRIBUTES, _BIRTH, _MOUNT = 0, 8, 80, 144
"""Offsets in the struct: which fields were filled in, attributes, birth time, mount."""
_PROTECTED = 0x10 | 0x20
"""STATX_ATTR_IMMUTABLE and STATX_ATTR_APPEND."""
_STATX_BTIME = 0x800
_STATX_MNT_ID = 0x1000
_FICLONE = 0x40049409
"""The request to share blocks, from linux/fs.h."""
_MADV_POPULATE_READ = 22
_EHWPOISON = 133
_LOADED_SIZE_MAX = 16 << 20
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
"""Flags of fallocate(2)."""
_STATUS_SIZE_MAX = 1 << 16
_NO_RENAME = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
"""What renameat2(2) raises where the kernel or the file system does not know a flag."""
_NO_HOLES = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})
_NO_SHARING = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS})
_NO_XATTRS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


def _path_of(place: Place) -> str:
    """Returns a path that leads to an open file, even if its name is now another file's.

    A descriptor that was opened with O_PATH, because no more was permitted, cannot be
    used to change metadata, but its entry in /proc can; see open(2). For a name in an open
    directory, the path that calls take which take no directory.
    """
    if isinstance(place, int):
        return f"/proc/self/fd/{place}"
    dir_fd, name = place
    return f"/proc/self/fd/{dir_fd}/{os.fsdecode(name)}"


def _raised(error: OSError, numbers: Collection[int]) -> OSError:
    """Returns an error as it is raised here, by the numbers that say that a call is not there."""
    if error.errno in numbers:
        return Unsupported(error.errno, error.strerror, error.filename)
    return error


def _of_attribute(error: OSError) -> OSError:
    if error.errno == errno.ENODATA:
        return NoAttribute(error.errno, error.strerror, error.filename)
    return _raised(error, _NO_XATTRS)


def _changed_by_descriptor(change: Callable[..., None], fd: int, *values: Any) -> bool:
    """Changes metadata through a descriptor; returns False for one that is for no such call.

    Costs one call, while the kernel walks a path in /proc component by component.
    """
    try:
        change(fd, *values)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return False
    return True


def _utime(fd: int, times: tuple[int, int]) -> None:
    os.utime(fd, ns=times)


def current_umask() -> int:
    """Returns the permissions that new files of this process lack."""
    with suppress(OSError, ValueError):
        for line in _read_status().splitlines():
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return posix.current_umask()


def unnamed_file(purpose: str) -> int:
    """Returns a descriptor of an empty file without a name, in memory, to be read and written."""
    return os.memfd_create(purpose)


def _read_status() -> bytes:
    fd = open_whole("/proc/self/status", os.O_RDONLY | ALWAYS)
    try:
        return os.read(fd, _STATUS_SIZE_MAX)
    finally:
        os.close(fd)


@cache
def _c_library() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _call(function_name: str, *arguments: int | bytes | bytearray) -> None:
    """Makes a system call, which may fill a bytearray: by the module in C, or by the C library."""
    number = getattr(native.module, function_name.upper(), None)
    if native.module is not None and number is not None:
        native.module.call(number, *arguments)
    else:
        _call_library(function_name, *arguments)


def _call_library(function_name: str, *arguments: Any) -> None:
    """Calls a C function that returns -1 and sets errno when it fails."""
    import ctypes

    function = getattr(_c_library(), function_name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    values = [
        (ctypes.c_char * len(value)).from_buffer(value) if isinstance(value, bytearray) else value
        for value in arguments
    ]
    if function(*values) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def open_file_identity(link: str) -> tuple[int, int, int]:
    """Returns type and permissions, device and inode of what a link in /proc leads to.

    As the kernel knows them: no server of the file system is asked, which may not answer. Raises
    OSError. Costs some 2 microseconds more than stat(2).
    """
    facts = _statx(link, None, _STATX_TYPE | _STATX_INO, _AT_STATX_DONT_SYNC)
    if facts is None:  # before Linux 4.11
        status = os.stat(link)
        return status.st_mode, status.st_dev, status.st_ino
    device = os.makedev(_number(facts, _DEVICE_AT, 4), _number(facts, _DEVICE_AT + 4, 4))
    return _number(facts, _MODE_AT, 2), device, _number(facts, _INODE_AT, 8)


def _statx(
    name: Name | int, dir_fd: int | None, mask: int, flags: int = _AT_SYMLINK_NOFOLLOW
) -> bytes | None:
    """Returns the struct that statx(2) fills in, or None if the system has no such call."""
    facts = bytearray(_STATX_SIZE)
    directory = _AT_FDCWD if dir_fd is None else dir_fd
    if isinstance(name, int):
        directory, name, flags = name, b"", _AT_EMPTY_PATH
    try:
        _call("statx", directory, os.fsencode(name), flags, mask, facts)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return None
        raise
    return bytes(facts)


def _number(facts: bytes, offset: int, size_bytes: int) -> int:
    return int.from_bytes(facts[offset : offset + size_bytes], sys.byteorder)


def load_pages(mapping: mmap.mmap) -> None:
    """Loads the pages of a mapping of at most 16 MiB; raises OSError with EIO for a bad sector.

    So it does for a page behind the end of a file that another process has cut. To touch either
    would be SIGBUS, which ends the process. Does nothing on kernels before Linux 5.14.
    """
    if len(mapping) > _LOADED_SIZE_MAX:  # loading more than is looked at would take its time
        return
    try:
        mapping.madvise(_MADV_POPULATE_READ)
    except OSError as error:
        if error.errno in {errno.EFAULT, _EHWPOISON}:
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from error


@native.kernels_own
class LinuxFileSystem(PosixFileSystem):
    """Implements :class:`treesnap.core.fs.base.FileSystem` with the kernel's own."""

    _umask = staticmethod(current_umask)
    _absent_flag, _exchange_flag = 1, 2  # RENAME_NOREPLACE, RENAME_EXCHANGE

    def open_any(self, name: Name, *, dir_fd: int | None = None, is_directory: bool = False) -> int:
        kind = os.O_DIRECTORY if is_directory else 0
        return open_whole(name, os.O_PATH | kind | ALWAYS, dir_fd=dir_fd)

    def open_unnamed(self, directory: Name) -> int:
        try:
            return open_whole(directory, os.O_RDWR | os.O_TMPFILE | ALWAYS)
        except OSError as error:
            raise _raised(error, {errno.EOPNOTSUPP, errno.EISDIR}) from None

    def allocate(self, fd: int, size_bytes: int) -> None:
        os.posix_fallocate(fd, 0, size_bytes)

    def punch_hole(self, fd: int, offset: int, size_bytes: int) -> None:
        import ctypes

        start, length = ctypes.c_int64(offset), ctypes.c_int64(size_bytes)
        try:
            _call_library("fallocate64", fd, _PUNCH_HOLE | _KEEP_SIZE, start, length)
        except OSError as error:
            raise _raised(error, _NO_HOLES) from None

    def share_content(self, fd: int, source_fd: int, place: Place, /) -> None:
        del place
        try:
            fcntl.ioctl(fd, _FICLONE, source_fd)
        except OSError as error:
            raise _raised(error, _NO_SHARING) from None

    def map(self, fd: int) -> mmap.mmap:
        mapping = super().map(fd)
        try:
            load_pages(mapping)
        except BaseException:
            mapping.close()
            raise
        return mapping

    def sync_file_system(self, fd: int) -> None:
        try:
            _call("syncfs", fd)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            super().sync_file_system(fd)

    def is_protected(self, name: Name | int, *, dir_fd: int | None = None) -> bool:
        facts = _statx(name, dir_fd, 0)
        return facts is not None and bool(_number(facts, _ATTRIBUTES, 8) & _PROTECTED)

    def mount_id(self, fd: int) -> int | None:
        facts = _statx(fd, None, _STATX_MNT_ID)
        if facts is None or not _number(facts, _MASK, 4) & _STATX_MNT_ID:
            return None
        return _number(facts, _MOUNT, 8)

    def birth_time_ns(self, name: Name | int) -> int | None:
        facts = _statx(name, None, _STATX_BTIME)
        if facts is None or not _number(facts, _MASK, 4) & _STATX_BTIME:
            return None
        seconds = facts[_BIRTH : _BIRTH + 8]
        whole_s = int.from_bytes(seconds, sys.byteorder, signed=True)
        return whole_s * 10**9 + _number(facts, _BIRTH + 8, 4)

    def make_directory(self, name: Name, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        os.mkdir(name, mode, dir_fd=dir_fd)
        if self._is_owner_masked:
            fd = self.open_any(name, dir_fd=dir_fd, is_directory=True)
            try:
                self._give_owner(fd, mode)
            finally:
                os.close(fd)

    def _rename_with(
        self, flag: int, source: Name, target: Name, source_dir_fd: int, target_dir_fd: int
    ) -> None:
        try:
            _call(
                "renameat2",
                source_dir_fd,
                os.fsencode(source),
                target_dir_fd,
                os.fsencode(target),
                flag,
            )
        except OSError as error:
            error.filename = os.fsdecode(target)
            raise _raised(error, _NO_RENAME) from None

    def change_mode(self, place: Place, mode: int, /) -> None:
        if not isinstance(place, int):
            fd = self.open_any(place[1], dir_fd=place[0])
            try:
                self.change_mode(fd, mode)
            finally:
                os.close(fd)
        elif not _changed_by_descriptor(os.fchmod, place, mode):
            os.chmod(_path_of(place), mode, follow_symlinks=True)

    def change_owner(
        self, name: Name | int, uid: int, gid: int, *, dir_fd: int | None = None
    ) -> None:
        if not isinstance(name, int):
            os.chown(name, uid, gid, dir_fd=dir_fd, follow_symlinks=False)
        elif not _changed_by_descriptor(os.fchown, name, uid, gid):
            os.chown(_path_of(name), uid, gid, follow_symlinks=True)

    def change_times(self, name: Name | int, mtime_ns: int, *, dir_fd: int | None = None) -> None:
        times = (mtime_ns, mtime_ns)
        if not isinstance(name, int):
            os.utime(name, ns=times, dir_fd=dir_fd, follow_symlinks=False)
        elif not _changed_by_descriptor(_utime, name, times):
            os.utime(_path_of(name), ns=times, follow_symlinks=True)

    def current_path(self, fd: int) -> str | None:
        try:
            return os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return None

    def list_xattrs(self, place: Place) -> list[str]:
        try:
            if isinstance(place, int):
                try:
                    return os.listxattr(place)
                except OSError as error:
                    if error.errno != errno.EBADF:
                        raise
            return os.listxattr(_path_of(place), follow_symlinks=isinstance(place, int))
        except OSError as error:
            raise _of_attribute(error) from None

    def get_xattr(self, place: Place, attribute: str) -> bytes:
        follows = isinstance(place, int)
        try:
            return os.getxattr(_path_of(place), attribute, follow_symlinks=follows)
        except OSError as error:
            raise _of_attribute(error) from None

    def set_xattr(self, place: Place, attribute: str, value: bytes) -> None:
        follows = isinstance(place, int)
        try:
            os.setxattr(_path_of(place), attribute, value, follow_symlinks=follows)
        except OSError as error:
            raise _of_attribute(error) from None

    def remove_xattr(self, place: Place, attribute: str) -> None:
        follows = isinstance(place, int)
        try:
            os.removexattr(_path_of(place), attribute, follow_symlinks=follows)
        except OSError as error:
            raise _of_attribute(error) from None
