"""The file system by what every Unix has. With ``linux``, the only modules that make such calls.

What only some systems have is missing here, and says so by Unsupported: exchanges of names,
extended attributes, shared blocks. ``local`` picks the file system of this system.

The locks that this process holds are known here, so that a forked child does not share them.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat as stat_module
from _thread import get_ident
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property, partial

from treesnap.core.fs.base import Name, Place, Unsupported

ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW
OWNER = 0o700
_SEEK_DATA, _SEEK_HOLE = getattr(os, "SEEK_DATA", None), getattr(os, "SEEK_HOLE", None)
_PROTECTED = (
    stat_module.UF_IMMUTABLE
    | stat_module.UF_APPEND
    | stat_module.SF_IMMUTABLE
    | stat_module.SF_APPEND
    | stat_module.SF_NOUNLINK
    | 0x80000  # SF_RESTRICTED of a Mac, for which Python has a name from 3.13 on
)
_NO_LOCKS = frozenset(
    {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL, errno.EBADF}
)
"""What flock(2) raises on file systems without locks, such as NFS without its lock service. NFS
raises EBADF for an exclusive lock of what is not open for writing, as no directory can be."""
_NO_CALL = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_FILE = frozenset(
    {errno.ELOOP, errno.EMLINK, getattr(errno, "EFTYPE", errno.ELOOP)}
    | {errno.ENXIO, errno.EOPNOTSUPP, errno.ENODEV}
)
"""What open(2) raises for a link and for a socket."""
_PIECE = bytes(1 << 16)


def core_count() -> int:
    """Returns how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def unsupported(number: int, name: Name | None = None) -> Unsupported:
    """Returns the error of a call that is not there."""
    return Unsupported(number, os.strerror(number), *([] if name is None else [name]))


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
    mask = os.umask(0o077)  # no other way; the moment between is a strict one
    os.umask(mask)
    return mask


def unnamed_file(purpose: str) -> int:  # noqa: ARG001 - Linux shows it
    """Returns a descriptor of an empty file without a name, to be read and written."""
    import tempfile

    with tempfile.TemporaryFile(buffering=0) as file:
        return fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)


class PosixFileSystem:
    """Implements :class:`treesnap.core.fs.base.FileSystem` with what every Unix has.

    What is made keeps the permissions of its owner that were asked for, whatever the umask: a
    store whose owner could not open its files again would be lost.
    """

    @cached_property
    def _is_owner_masked(self) -> bool:
        return bool(self._umask() & OWNER)

    _umask = staticmethod(current_umask)
    _absent_flag, _exchange_flag = 0, 0
    """What a system calls a rename to a name that must be absent, and an exchange of two."""

    close: staticmethod[[int], None] = staticmethod(os.close)
    read: staticmethod[[int, int], bytes] = staticmethod(os.read)
    read_at: staticmethod[[int, int, int], bytes] = staticmethod(os.pread)
    write: staticmethod[[int, bytes | memoryview], int] = staticmethod(os.write)
    write_at: staticmethod[[int, bytes | memoryview, int], int] = staticmethod(os.pwrite)
    truncate: staticmethod[[int, int], None] = staticmethod(os.ftruncate)
    sync: staticmethod[[int], None] = staticmethod(os.fsync)
    fstat: staticmethod[[int], os.stat_result] = staticmethod(os.fstat)
    lstat: staticmethod[..., os.stat_result] = staticmethod(os.lstat)
    read_link: staticmethod[..., bytes] = staticmethod(os.readlink)
    remove_directory: staticmethod[..., None] = staticmethod(os.rmdir)
    unlink: staticmethod[..., None] = staticmethod(os.unlink)
    make_symlink: staticmethod[..., None] = staticmethod(os.symlink)
    make_node: staticmethod[..., None] = staticmethod(os.mknod)

    def open(self, name: Name, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
        fd = open_whole(name, flags | ALWAYS, mode, dir_fd)
        if flags & os.O_CREAT and self._is_owner_masked:
            try:
                self._give_owner(fd, mode)
            except BaseException:
                os.close(fd)
                raise
        return fd

    def _give_owner(self, fd: int, mode: int) -> None:
        """Adds the permissions of the owner that a mode has to those of an open file."""
        current_mode = os.fstat(fd).st_mode
        if mode & OWNER & ~current_mode:
            with suppress(PermissionError):  # another user's, which was there before
                self.change_mode(fd, current_mode & 0o7777 | mode & OWNER)

    def open_any(self, name: Name, *, dir_fd: int | None = None, is_directory: bool = False) -> int:
        if is_directory:
            return open_whole(name, os.O_RDONLY | os.O_DIRECTORY | ALWAYS, dir_fd=dir_fd)
        kind = stat_module.S_IFMT(os.lstat(name, dir_fd=dir_fd).st_mode)
        if kind in {stat_module.S_IFCHR, stat_module.S_IFBLK}:  # to open one may do something
            raise unsupported(errno.EOPNOTSUPP, name)
        try:
            return open_whole(name, os.O_RDONLY | os.O_NONBLOCK | ALWAYS, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise unsupported(errno.EOPNOTSUPP, name) from error
            raise

    def open_unnamed(self, directory: Name) -> int:
        raise unsupported(errno.EOPNOTSUPP, directory)

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Writes zeros behind the end of the file, because to make it longer reserves nothing."""
        end = os.fstat(fd).st_size
        while end < size_bytes:
            end += os.pwrite(fd, _PIECE[: size_bytes - end], end)

    def punch_hole(self, fd: int, offset: int, size_bytes: int) -> None:
        raise unsupported(errno.EOPNOTSUPP)

    def share_content(self, fd: int, source_fd: int, place: Place, /) -> None:
        raise unsupported(errno.EOPNOTSUPP)

    def next_data(self, fd: int, offset: int) -> int | None:
        if _SEEK_DATA is None:
            return offset if offset < os.fstat(fd).st_size else None
        try:
            return os.lseek(fd, offset, _SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def next_hole(self, fd: int, offset: int) -> int:
        if _SEEK_HOLE is None:
            return max(offset, os.fstat(fd).st_size)
        try:
            return os.lseek(fd, offset, _SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return offset
            raise

    def map(self, fd: int) -> mmap.mmap:
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)

    def sync_data(self, fd: int, /) -> None:
        getattr(os, "fdatasync", os.fsync)(fd)

    def sync_file_system(self, fd: int) -> None:
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
        status = os.fstat(name) if isinstance(name, int) else os.lstat(name, dir_fd=dir_fd)
        return bool(getattr(status, "st_flags", 0) & _PROTECTED)

    def file_system_id(self, place: Name | int, /) -> int:
        return os.statvfs(place).f_fsid or os.stat(place).st_dev

    def mount_id(self, fd: int) -> int | None:
        return os.fstat(fd).st_dev  # which tells file systems apart, and not two mounts of one

    def birth_time_ns(self, name: Name | int) -> int | None:
        status = os.fstat(name) if isinstance(name, int) else os.lstat(name)
        born_s: float | None = getattr(status, "st_birthtime", None)  # a Mac and the BSDs have it
        return round(born_s * 10**9) if born_s is not None else None

    def make_directory(self, name: Name, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        if not self._is_owner_masked:
            os.mkdir(name, mode, dir_fd=dir_fd)
            return
        before = os.umask(self._umask() & ~OWNER)  # it could not be opened to be changed
        try:
            os.mkdir(name, mode, dir_fd=dir_fd)
        finally:
            os.umask(before)

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
            self._rename_with(self._absent_flag, source, target, source_dir_fd, target_dir_fd)
        except Unsupported:
            if or_fail:
                raise
            self._rename_after_look(source, target, source_dir_fd, target_dir_fd)

    def _rename_after_look(
        self, source: Name, target: Name, source_dir_fd: int, target_dir_fd: int
    ) -> None:
        if self._exists(target, target_dir_fd):
            number = errno.EEXIST
            raise FileExistsError(number, os.strerror(number), os.fsdecode(target)) from None
        self.rename(source, target, source_dir_fd=source_dir_fd, target_dir_fd=target_dir_fd)

    def exchange(
        self, source: Name, target: Name, *, source_dir_fd: int, target_dir_fd: int
    ) -> None:
        self._rename_with(self._exchange_flag, source, target, source_dir_fd, target_dir_fd)

    def _rename_with(
        self, flag: int, source: Name, target: Name, source_dir_fd: int, target_dir_fd: int
    ) -> None:
        """Renames in a way that some systems have a call for; raises Unsupported."""
        del flag, source, source_dir_fd, target_dir_fd
        raise unsupported(errno.EOPNOTSUPP, target)

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
        try:
            os.link(
                source,
                target,
                src_dir_fd=source_dir_fd,
                dst_dir_fd=target_dir_fd,
                follow_symlinks=False,
            )
        except OSError as error:
            if error.errno in _NO_CALL:
                raise unsupported(error.errno, target) from error
            raise

    def change_mode(self, place: Place, mode: int, /) -> None:
        if isinstance(place, int):
            os.fchmod(place, mode)
        elif os.chmod in os.supports_follow_symlinks:
            dir_fd, name = place
            os.chmod(name, mode, dir_fd=dir_fd, follow_symlinks=False)
        else:
            raise unsupported(errno.EOPNOTSUPP, place[1])

    def change_owner(
        self, name: Name | int, uid: int, gid: int, *, dir_fd: int | None = None
    ) -> None:
        if isinstance(name, int):
            os.fchown(name, uid, gid)
        else:
            os.chown(name, uid, gid, dir_fd=dir_fd, follow_symlinks=False)

    def change_times(self, name: Name | int, mtime_ns: int, *, dir_fd: int | None = None) -> None:
        times = (mtime_ns, mtime_ns)
        follows = isinstance(name, int)
        os.utime(name, ns=times, dir_fd=dir_fd, follow_symlinks=follows)

    def current_path(self, fd: int) -> str | None:
        return None

    def list_xattrs(self, place: Place) -> list[str]:
        raise unsupported(errno.EOPNOTSUPP)

    def get_xattr(self, place: Place, attribute: str) -> bytes:
        raise unsupported(errno.EOPNOTSUPP)

    def set_xattr(self, place: Place, attribute: str, value: bytes) -> None:
        raise unsupported(errno.EOPNOTSUPP)

    def remove_xattr(self, place: Place, attribute: str) -> None:
        raise unsupported(errno.EOPNOTSUPP)

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
            if error.errno in _NO_LOCKS:
                raise unsupported(error.errno) from error
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
