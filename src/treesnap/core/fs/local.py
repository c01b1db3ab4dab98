"""The real file system. The only module that makes system calls on files.

``renameat2``, ``syncfs`` and ``statx`` have no counterpart in Python's ``os`` and are
called in the C library; see section 2 of the manual. The library is loaded on first use,
because a capture needs none of them.

The locks that this process holds are known here, so that a forked child does not share them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, cached_property, partial

from treesnap.core.fs import native
from treesnap.core.fs.base import Name
from treesnap.core.model.type_names import Any

_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW
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
_MADV_POPULATE_READ = 22
_EHWPOISON = 133
_LOADED_SIZE_MAX = 16 << 20
"""The request to share blocks, from linux/fs.h."""
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


def _reachable(name: Name | int) -> Name:
    """Returns a path that leads to an open file, even if its name is now another file's.

    A descriptor that was opened with O_PATH, because no more was permitted, cannot be
    used to change metadata, but its entry in /proc can; see open(2).
    """
    return f"/proc/self/fd/{name}" if isinstance(name, int) else name


def _changed_by_descriptor(change: Callable[..., None], name: Name | int, *values: Any) -> bool:
    """Changes metadata through a descriptor; returns False for a name and for O_PATH.

    Costs one call, while the kernel walks a path in /proc component by component.
    """
    if not isinstance(name, int):
        return False
    try:
        change(name, *values)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return False
    return True


def _utime(fd: int, times: tuple[int, int]) -> None:
    os.utime(fd, ns=times)


_OWNER = 0o700
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
_STATUS_SIZE_MAX = 1 << 16
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
"""Flags of fallocate(2)."""


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


def open_whole(name: Name, flags: int, mode: int = 0o600, dir_fd: int | None = None) -> int:
    """Opens a file, or raises and leaves no descriptor behind.

    A signal that arrives during the call is handled when it has returned, and its handler may
    raise, as that of Ctrl-C does, before the number is noted anywhere. So it is called by ``map``:
    handlers run after a call of Python code, and unpacking is none. Costs 0.8 microseconds.
    """
    call = os.open if dir_fd is None else partial(os.open, dir_fd=dir_fd)
    (fd,) = map(call, (name,), (flags,), (mode,))
    return fd


def current_umask() -> int:
    """Returns the permissions that new files of this process lack."""
    with suppress(OSError, ValueError):
        status = _read_status()
        for line in status.splitlines():
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    mask = os.umask(0o077)  # no other way without /proc; the moment between is a strict one
    os.umask(mask)
    return mask


def _read_status() -> bytes:
    fd = open_whole("/proc/self/status", os.O_RDONLY | _ALWAYS)
    try:
        return os.read(fd, _STATUS_SIZE_MAX)
    finally:
        os.close(fd)


def _give_owner(fd: int, mode: int) -> None:
    """Adds the permissions of the owner that a mode has to those of an open file."""
    current_mode = os.fstat(fd).st_mode
    if mode & _OWNER & ~current_mode:
        with suppress(PermissionError):  # another user's, which was there before
            os.chmod(_reachable(fd), current_mode & 0o7777 | mode & _OWNER)


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
class LocalFileSystem:
    """Implements :class:`treesnap.core.fs.base.FileSystem` with the kernel's own.

    What is made keeps the permissions of its owner that were asked for, whatever the umask: a
    store whose owner could not open its files again would be lost.
    """

    @cached_property
    def _is_owner_masked(self) -> bool:
        return bool(current_umask() & _OWNER)

    close = staticmethod(os.close)
    read = staticmethod(os.read)
    read_at = staticmethod(os.pread)
    write = staticmethod(os.write)
    write_at = staticmethod(os.pwrite)
    truncate = staticmethod(os.ftruncate)
    sync = staticmethod(os.fsync)
    fstat = staticmethod(os.fstat)
    lstat = staticmethod(os.lstat)
    read_link = staticmethod(os.readlink)
    remove_directory = staticmethod(os.rmdir)
    unlink = staticmethod(os.unlink)
    make_symlink = staticmethod(os.symlink)
    make_node = staticmethod(os.mknod)

    def open(self, name: Name, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
        fd = open_whole(name, flags | _ALWAYS, mode, dir_fd)
        if flags & os.O_CREAT and self._is_owner_masked:
            try:
                _give_owner(fd, mode)
            except BaseException:
                os.close(fd)
                raise
        return fd

    def allocate(self, fd: int, size_bytes: int) -> None:
        os.posix_fallocate(fd, 0, size_bytes)

    def punch_hole(self, fd: int, offset: int, size_bytes: int) -> None:
        import ctypes

        start, length = ctypes.c_int64(offset), ctypes.c_int64(size_bytes)
        _call_library("fallocate64", fd, _PUNCH_HOLE | _KEEP_SIZE, start, length)

    def share_content(self, fd: int, source_fd: int, /) -> None:
        fcntl.ioctl(fd, _FICLONE, source_fd)

    def next_data(self, fd: int, offset: int) -> int | None:
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def next_hole(self, fd: int, offset: int) -> int:
        try:
            return os.lseek(fd, offset, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return offset
            raise

    def map(self, fd: int) -> mmap.mmap:
        mapping = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        try:
            load_pages(mapping)
        except BaseException:
            mapping.close()
            raise
        return mapping

    def sync_data(self, fd: int, /) -> None:
        getattr(os, "fdatasync", os.fsync)(fd)

    def sync_file_system(self, fd: int) -> None:
        try:
            _call("syncfs", fd)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            os.sync()

    def scan(self, directory: int | Name) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        return os.scandir(directory)  # type: ignore[arg-type]  # bytes paths are not used

    def list_names(self, directory: int | str, /) -> list[str]:
        return os.listdir(directory)

    def free_bytes(self, fd: int) -> int:
        numbers = os.fstatvfs(fd)
        return numbers.f_bavail * numbers.f_frsize

    def name_size_max(self, fd: int) -> int:
        return os.fstatvfs(fd).f_namemax

    def is_read_only(self, fd: int) -> bool:
        return bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)

    def is_protected(self, name: Name | int, *, dir_fd: int | None = None) -> bool:
        facts = _statx(name, dir_fd, 0)
        return facts is not None and bool(_number(facts, _ATTRIBUTES, 8) & _PROTECTED)

    def file_system_id(self, place: Name | int, /) -> int:
        return os.statvfs(place).f_fsid or os.stat(place).st_dev

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
            fd = open_whole(name, _PATH_ONLY | os.O_DIRECTORY | _ALWAYS, dir_fd=dir_fd)
            try:
                _give_owner(fd, mode)
            finally:
                os.close(fd)

    def rename(
        self,
        source: Name,
        target: Name,
        *,
        source_dir_fd: int | None = None,
        target_dir_fd: int | None = None,
    ) -> None:
        os.rename(source, target, src_dir_fd=source_dir_fd, dst_dir_fd=target_dir_fd)

    def rename_to_absent(
        self,
        source: Name,
        target: Name,
        *,
        source_dir_fd: int,
        target_dir_fd: int,
        or_fail: bool = False,
    ) -> None:
        try:
            self._rename_with(_RENAME_NOREPLACE, source, target, source_dir_fd, target_dir_fd)
        except OSError as error:
            if or_fail or error.errno not in (errno.ENOSYS, errno.EINVAL):
                raise
            if self._exists(target, target_dir_fd):
                raise FileExistsError(
                    errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(target)
                ) from None
            self.rename(source, target, source_dir_fd=source_dir_fd, target_dir_fd=target_dir_fd)

    def exchange(
        self, source: Name, target: Name, *, source_dir_fd: int, target_dir_fd: int
    ) -> None:
        self._rename_with(_RENAME_EXCHANGE, source, target, source_dir_fd, target_dir_fd)

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
            raise OSError(error.errno, error.strerror, os.fsdecode(target)) from None

    def _exists(self, name: Name, dir_fd: int) -> bool:
        try:
            self.lstat(name, dir_fd=dir_fd)
        except FileNotFoundError:
            return False
        return True

    def link(
        self,
        source: Name,
        target: Name,
        *,
        source_dir_fd: int | None = None,
        target_dir_fd: int | None = None,
    ) -> None:
        os.link(
            source,
            target,
            src_dir_fd=source_dir_fd,
            dst_dir_fd=target_dir_fd,
            follow_symlinks=False,
        )

    def change_mode(self, fd: int, mode: int, /) -> None:
        if not _changed_by_descriptor(os.fchmod, fd, mode):
            os.chmod(_reachable(fd), mode)

    def change_owner(
        self, name: Name | int, uid: int, gid: int, *, dir_fd: int | None = None
    ) -> None:
        if not _changed_by_descriptor(os.fchown, name, uid, gid):
            follow = isinstance(name, int)
            os.chown(_reachable(name), uid, gid, dir_fd=dir_fd, follow_symlinks=follow)

    def change_times(self, name: Name | int, mtime_ns: int, *, dir_fd: int | None = None) -> None:
        times = (mtime_ns, mtime_ns)
        if not _changed_by_descriptor(_utime, name, times):
            follow = isinstance(name, int)
            os.utime(_reachable(name), ns=times, dir_fd=dir_fd, follow_symlinks=follow)

    def list_xattrs(self, path: str | int) -> list[str]:
        if isinstance(path, int):
            try:
                return os.listxattr(path)
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
        return os.listxattr(_reachable(path), follow_symlinks=isinstance(path, int))

    def get_xattr(self, path: str | int, attribute: str) -> bytes:
        return os.getxattr(_reachable(path), attribute, follow_symlinks=isinstance(path, int))

    def set_xattr(self, path: str | int, attribute: str, value: bytes) -> None:
        os.setxattr(_reachable(path), attribute, value, follow_symlinks=isinstance(path, int))

    def remove_xattr(self, path: str | int, attribute: str) -> None:
        os.removexattr(_reachable(path), attribute, follow_symlinks=isinstance(path, int))

    def lock(self, fd: int, *, exclusive: bool) -> bool:
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        status = os.fstat(fd)
        _locked[fd] = status.st_dev, status.st_ino  # first: another thread may fork at any moment
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            _locked.pop(fd, None)
            if isinstance(error, BlockingIOError):
                return False
            raise
        return True

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)
        _locked.pop(fd, None)


# A child inherits the descriptors of its parent, and the locks with them. When the parent is
# killed, its locks would stay held in a child that another thread forked for a purpose of its own.
# So each child starts by replacing these descriptors with /dev/null. Unlocking or closing one in
# the child then leaves the parent's lock as it is.

_locked: dict[int, tuple[int, int]] = {}
"""Device and inode of the file by the descriptor that holds its lock. A descriptor may have been
closed since; if its number is in use again, it is of another file."""
_sharing_threads: set[int] = set()


@contextmanager
def shared_with_children() -> Iterator[None]:
    """Lets children that this thread forks in the body keep the locks: they work for it."""
    identity = get_ident()
    _sharing_threads.add(identity)
    try:
        yield
    finally:
        _sharing_threads.discard(identity)


def _drop_in_child() -> None:
    if get_ident() in _sharing_threads:
        return
    null = -1
    for fd, identity in list(_locked.items()):
        with suppress(OSError):
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == identity:
                if null < 0:
                    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(null, fd, inheritable=False)
    if null >= 0:
        os.close(null)
    _locked.clear()
    _sharing_threads.clear()


os.register_at_fork(after_in_child=_drop_in_child)
