"""The file system of a Mac: what :mod:`treesnap.core.fs.posix` does, and what its own library has.

Numbers of errors, requests and flags are those of a Mac, from the headers of its kernel. So this
module means the same on each system, and is tested where none of its calls are, over a double of
the library (``tests/support/libsystem.py``).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import c_char_p, c_int, c_size_t, c_ssize_t, c_uint, c_uint32, c_ulong, c_void_p
from functools import cached_property
from stat import S_ISDIR, S_ISFIFO, S_ISLNK

from treesnap.core import own_program
from treesnap.core.fs.base import Name, NoAttribute, Place, Unsupported
from treesnap.core.fs.posix import PosixFileSystem, open_whole, unsupported
from treesnap.core.fs.record_locks import opened_any
from treesnap.core.model.type_names import Any

RENAME_SWAP, RENAME_EXCL = 2, 4
O_SYMLINK = 0x200000
"""Opens a link itself; not with O_NOFOLLOW, which refuses it."""
F_PREALLOCATE, F_GETPATH, F_FULLFSYNC, F_PUNCHHOLE = 42, 50, 51, 99
F_ALLOCATEALL, F_PEOFPOSMODE = 4, 3
PREALLOCATE = struct.Struct("Iiqqq")
"""fstore of sys/fcntl.h: flags, from where, offset, size, and how much was allocated."""
PUNCH_HOLE = struct.Struct("IIqq")
"""fpunchhole: flags, nothing, offset and size, both in whole blocks."""
CLONE_NOFOLLOW, CLONE_NOOWNERCOPY = 1, 2
CLONE_PREFIX = b".treesnap-clone-"
"""Of the name that a clone has for a moment: no name of the tree, and short in each of them."""
DATALESS_POLICY, OF_THREAD, NO_DOWNLOAD = 3, 1, 1
"""For setiopolicy_np(3): whether reading a file that lies with a service alone brings it here.

Of a thread, because the policy of a process goes on to the commands that it starts.
"""
DATALESS = 0x40000000
"""SF_DATALESS, among the flags of such a file or directory."""
FLAGS, ACL = "treesnap.darwin.flags", "treesnap.darwin.acl"
"""Under these names flags and the access control list of a file are among its attributes."""
_OWN = frozenset({FLAGS, ACL})
KEPT_FLAGS = 0x1 | 0x8 | 0x8000
"""UF_NODUMP, UF_OPAQUE, UF_HIDDEN. With one that protects a file it could not be put in place, and
others say what the system has made of it."""
CLONED_FLAGS = 0x2 | 0x4 | 0x20000 | 0x40000 | 0x100000
"""UF_IMMUTABLE, UF_APPEND, SF_IMMUTABLE, SF_APPEND, SF_NOUNLINK: a clone has them as well, and
could be neither changed nor removed."""
RESOURCE_FORK = "com.apple.ResourceFork"
_SYSTEMS_OWN = ("com.apple.system.", "com.apple.macl", "com.apple.provenance", "com.apple.rootless")
"""Attributes that the system gives to files by itself, and keeps others from changing: with an
entitlement for the first, and else by its integrity protection."""
SYNC_VOLUME = 0x80044101
"""FSIOC_SYNC_VOLUME, for ffsctl(2)."""
SYNC_FULL, SYNC_WAIT = 1, 2
VOLUME_UUID = 0x80000000 | 0x40000
"""ATTR_VOL_INFO and ATTR_VOL_UUID of sys/attr.h."""
_ASKING_UUID = struct.pack("HHIIIII", 5, 0, 0, VOLUME_UUID, 0, 0, 0)
_UUID_ANSWER = struct.Struct("I8s8s")
"""How long the answer is, and both halves of it."""
EDEADLK = 11
"""What reading a file is that lies with a service alone, such as iCloud."""
EPERM, ENOENT, EXDEV, EINVAL, ENOTTY, ERANGE = 1, 2, 18, 22, 25, 34
ENOTSUP, ENOSYS, ENOATTR, EOPNOTSUPP = 45, 78, 93, 102
_PATH_SIZE_MAX = 1024
_READ_SIZE_MAX = 16 << 20
"""A flush of the drive takes as long as reading some of this."""
_NO_CALL = frozenset({ENOTSUP, EOPNOTSUPP, ENOSYS})
_NO_RENAME = _NO_CALL | {EINVAL}
_NO_SYNC = _NO_CALL | {EINVAL, ENOTTY}
"""What shares and FUSE raise where the drive's own memory cannot be flushed."""
_NO_DIRECTORY_SYNC = _NO_SYNC | {ENOENT}
_NO_CLONE = _NO_CALL | {EXDEV}
_ACL_EXTENDED, NO_ACL = 0x100, 1
"""The kind of list, and what stands for none where one is set: _FILESEC_REMOVE_ACL."""
_NO_ACL = _NO_CALL | {ENOENT, EINVAL}
_MOVING, _MOVING_DIRECTORY = frozenset({b"delete"}), frozenset({b"delete", b"append"})
"""The rights that renaming takes to a file, and to a directory that gets another one above it."""
_CHANGING_NAMES = frozenset({b"write", b"append", b"delete_child"})
"""The rights that it takes to a directory, as a list calls them for files and directories."""
_AFTER_LIST = frozenset({b"writeattr", b"writeextattr"})
"""The rights to what a restore gives a file after its list."""
_EVERYONE = b"12"
"""The number of the group in which all users are."""
_PROTECTED_FOLDER = (
    "Operation not permitted; if macOS protects it, give the terminal Full Disk Access"
)


_Call = Callable[..., int]
"""A function of C: its arguments are checked by ctypes."""


class LibSystem:
    """The C library of a Mac, as far as Python does not make its calls, with the types of C.

    What takes a varying number of arguments is called by Python: ctypes would pass them where a
    function on arm64 does not look for them.
    """

    fcntl: staticmethod[..., Any] = staticmethod(fcntl.fcntl)
    fstat: staticmethod[[int], Any] = staticmethod(os.fstat)
    geteuid: staticmethod[[], int] = staticmethod(os.geteuid)
    getgroups: staticmethod[[], list[int]] = staticmethod(os.getgroups)
    fsync: staticmethod[[int], None] = staticmethod(os.fsync)
    open: staticmethod[..., int] = staticmethod(open_whole)

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        value = (c_char_p, c_size_t)
        self.renameatx_np: _Call = _typed(
            library.renameatx_np, c_int, c_int, c_char_p, c_int, c_char_p, c_uint
        )
        self.fclonefileat: _Call = _typed(
            library.fclonefileat, c_int, c_int, c_int, c_char_p, c_uint32
        )
        self.ffsctl: _Call = _typed(library.ffsctl, c_int, c_int, c_ulong, c_void_p, c_uint)
        self.flistxattr: _Call = _typed(library.flistxattr, c_ssize_t, c_int, *value, c_int)
        self.fgetxattr: _Call = _typed(
            library.fgetxattr, c_ssize_t, c_int, c_char_p, *value, c_uint32, c_int
        )
        self.fsetxattr: _Call = _typed(
            library.fsetxattr, c_int, c_int, c_char_p, *value, c_uint32, c_int
        )
        self.fremovexattr: _Call = _typed(library.fremovexattr, c_int, c_int, c_char_p, c_int)
        self.fgetattrlist: _Call = _typed(
            library.fgetattrlist, c_int, c_int, c_char_p, c_char_p, c_size_t, c_uint
        )
        self.fchflags: _Call = _typed(library.fchflags, c_int, c_int, c_uint)
        self.setiopolicy_np: _Call = _typed(library.setiopolicy_np, c_int, c_int, c_int, c_int)
        self.acl_get_fd_np: _Call = _typed(library.acl_get_fd_np, c_void_p, c_int, c_int)
        self.acl_set_fd_np: _Call = _typed(library.acl_set_fd_np, c_int, c_int, c_void_p, c_int)
        self.acl_to_text: _Call = _typed(library.acl_to_text, c_void_p, c_void_p, c_void_p)
        self.acl_from_text: _Call = _typed(library.acl_from_text, c_void_p, c_char_p)
        self.acl_free: _Call = _typed(library.acl_free, c_int, c_void_p)


def _typed(function: Any, result: type, *arguments: type) -> _Call:
    function.restype, function.argtypes = result, arguments
    call: _Call = function
    return call


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return (Unsupported if number in _NO_CALL else OSError)(number, os.strerror(number))


def _checked(result: int, unsupported: Collection[int], name: Name | None = None) -> int:
    """Returns what a call returned; raises what it failed with."""
    if result >= 0:
        return result
    number = ctypes.get_errno()
    kind = Unsupported if number in unsupported else NoAttribute if number == ENOATTR else OSError
    raise kind(number, os.strerror(number), *([] if name is None else [os.fsdecode(name)]))


class DarwinFileSystem(PosixFileSystem):
    """Implements :class:`treesnap.core.fs.base.FileSystem` with what a Mac has."""

    _absent_flag, _exchange_flag = RENAME_EXCL, RENAME_SWAP
    _given: LibSystem | None = None

    def __init__(self, libc: LibSystem | None = None) -> None:
        self._given = libc

    @cached_property
    def _unwritten(self) -> set[int]:
        """Descriptors of which the kernel may still hold what was written to them."""
        return set()

    @cached_property
    def _libc(self) -> LibSystem:
        libc = self._given or LibSystem()
        if own_program.is_own:  # a program that has treesnap as a library may want downloads
            libc.setiopolicy_np(DATALESS_POLICY, OF_THREAD, NO_DOWNLOAD)
        return libc

    def open(self, name: Name, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
        """Downloads nothing: what lies with a service alone is closed again."""
        try:
            fd = super().open(name, flags, mode, dir_fd=dir_fd)
        except PermissionError as error:
            if error.errno != EPERM:
                raise
            raise PermissionError(EPERM, _PROTECTED_FOLDER, os.fsdecode(name)) from None
        if not flags & os.O_CREAT and self._flags(fd) & DATALESS:
            os.close(fd)
            raise OSError(EDEADLK, os.strerror(EDEADLK), os.fsdecode(name))
        return fd

    def _flags(self, fd: int) -> int:
        flags: int = self._libc.fstat(fd).st_flags
        return flags

    def open_any(self, name: Name, *, dir_fd: int | None = None, is_directory: bool = False) -> int:
        try:
            return super().open_any(name, dir_fd=dir_fd, is_directory=is_directory)
        except Unsupported:
            if not S_ISLNK(os.lstat(name, dir_fd=dir_fd).st_mode):
                raise
        flags = os.O_RDONLY | os.O_CLOEXEC | O_SYMLINK
        return self._libc.open(name, flags, dir_fd=dir_fd)

    def file_system_id(self, place: Name | int, /) -> int:
        """Half of what names the volume: a restart may give its device another number."""
        if not isinstance(place, int):
            fd = open_whole(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return self.file_system_id(fd)
            finally:
                os.close(fd)
        answer = ctypes.create_string_buffer(_UUID_ANSWER.size)
        done = self._libc.fgetattrlist(place, _ASKING_UUID, answer, len(answer), 0)
        uuid = _UUID_ANSWER.unpack(answer.raw)[1] if done == 0 else b""
        return int.from_bytes(uuid, "big") or super().file_system_id(place)

    def is_protected(self, name: Name | int, *, dir_fd: int | None = None) -> bool:
        """Also by its access control list: of a descriptor, names in the directory; else a file."""
        if super().is_protected(name, dir_fd=dir_fd):
            return True
        if isinstance(name, int):
            return self._is_denied(self._acl_text(name), _CHANGING_NAMES)
        with ExitStack() as stack:
            try:
                fd = stack.enter_context(opened_any(self, name, dir_fd))
            except OSError:  # what may not be read, or is none of what has lists
                return False
            rights = _MOVING
            if S_ISDIR(os.fstat(fd).st_mode):
                rights = _MOVING_DIRECTORY | _CHANGING_NAMES
            return self._is_denied(self._acl_text(fd), rights)

    def _is_denied(self, text: bytes | None, rights: frozenset[bytes]) -> bool:
        """Returns whether an access control list denies this user one of some rights.

        Its first entry that names the user and a right decides. The superuser is denied nothing.
        """
        user = self._libc.geteuid()
        if text is None or user == 0:
            return False
        groups = {b"%d" % number for number in self._libc.getgroups()} | {_EVERYONE}
        for line in text.splitlines()[1:]:
            if line.count(b":") < 2:  # no entry, so that the system refuses the list
                continue
            subject, kind, named = line.rsplit(b":", 2)
            who, flags = subject.rpartition(b":")[2], kind.split(b",")
            if b"only_inherit" in flags:
                continue
            if who in groups if subject.startswith(b"group:") else who == b"%d" % user:
                found = rights & {*named.split(b",")}
                if found and flags[0] == b"deny":
                    return True
                rights -= found
        return False

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        self._unwritten.add(fd)
        return os.write(fd, data)

    def write_at(self, fd: int, data: bytes | memoryview, offset: int, /) -> int:
        self._unwritten.add(fd)
        return os.pwrite(fd, data, offset)

    def close(self, fd: int, /) -> None:
        """Hands what was written to the drive first, and raises OSError where that fails.

        A sync of the volume, which comes later, tells no error of a single file.
        """
        try:
            if fd in self._unwritten:
                self._unwritten.discard(fd)
                self._libc.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise
        finally:
            os.close(fd)

    def allocate(self, fd: int, size_bytes: int) -> None:
        """What is written there may still need room, where blocks are shared with a snapshot."""
        missing = size_bytes - os.fstat(fd).st_size
        if missing <= 0:
            return
        asked = PREALLOCATE.pack(F_ALLOCATEALL, F_PEOFPOSMODE, 0, missing, 0)
        try:
            self._libc.fcntl(fd, F_PREALLOCATE, asked)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise
            super().allocate(fd, size_bytes)
        else:
            os.ftruncate(fd, size_bytes)

    def punch_hole(self, fd: int, offset: int, size_bytes: int) -> None:
        """Gives back whole blocks; the rest of the range is written."""
        block = os.fstatvfs(fd).f_frsize
        end = min(offset + size_bytes, os.fstat(fd).st_size)
        first, last = -(-offset // block) * block, end // block * block
        if first >= last:
            raise unsupported(EINVAL)
        try:
            self._libc.fcntl(fd, F_PUNCHHOLE, PUNCH_HOLE.pack(0, 0, first, last - first))
        except OSError as error:
            if error.errno in _NO_SYNC:
                raise unsupported(error.errno) from error
            raise
        for start, stop in ((offset, first), (last, end)):
            self.write_at(fd, bytes(stop - start), start)

    def share_content(self, fd: int, source_fd: int, place: Place, /) -> None:
        """Makes a clone under another name, which then takes the place of the open file.

        A clone has the attributes, permissions and flags of its source.
        """
        if isinstance(place, int):
            raise unsupported(EINVAL)
        if self._flags(source_fd) & CLONED_FLAGS:
            raise OSError(EINVAL, os.strerror(EINVAL))
        dir_fd, name = place
        new = CLONE_PREFIX + b"%x" % os.fstat(fd).st_ino
        flags = CLONE_NOFOLLOW | CLONE_NOOWNERCOPY
        _checked(self._libc.fclonefileat(source_fd, dir_fd, new, flags), _NO_CLONE, new)
        try:
            self._make_plain(new, dir_fd)
            clone_fd = self.open(new, os.O_RDWR, dir_fd=dir_fd)
            try:
                self.rename(new, name, source_dir_fd=dir_fd, target_dir_fd=dir_fd)
                os.dup2(clone_fd, fd, inheritable=False)
            finally:
                os.close(clone_fd)
        except OSError:
            with suppress(FileNotFoundError):
                self.unlink(new, dir_fd=dir_fd)
            raise

    def _make_plain(self, name: bytes, dir_fd: int) -> None:
        """Takes from a clone all that is not content, and lets its owner write to it.

        What it has inherited from the directory, too.
        """
        fd = self.open(name, os.O_RDONLY, dir_fd=dir_fd)
        try:
            os.fchmod(fd, 0o600)
            with suppress(Unsupported):
                for attribute in self.list_xattrs(fd):
                    self.remove_xattr(fd, attribute)
        finally:
            os.close(fd)

    def make_node(self, name: bytes, mode: int, device: int = 0, /, *, dir_fd: int) -> None:
        """Before macOS 13 no call makes one in an open directory, so it is made by a path."""
        if os.mknod in os.supports_dir_fd:
            os.mknod(name, mode, device, dir_fd=dir_fd)
            return
        directory = self.current_path(dir_fd)
        if directory is None:
            raise unsupported(ENOSYS, name)
        os.mknod(os.path.join(os.fsencode(directory), name), mode, device)

    def map(self, fd: int) -> mmap.mmap:
        """Reads what is not large: Python has the drive flushed before it maps a file on a Mac."""
        size = os.fstat(fd).st_size
        if not 0 < size <= _READ_SIZE_MAX:
            return super().map(fd)
        mapping, end = mmap.mmap(-1, size), 0
        try:
            while end < size:
                piece = self.read_at(fd, size - end, end)
                if not piece:  # another process has cut it
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                mapping[end : end + len(piece)] = piece
                end += len(piece)
        except BaseException:
            mapping.close()
            raise
        return mapping

    def sync(self, fd: int, /) -> None:
        """Flushes the drive's own memory too, in which fsync(2) leaves everything on a Mac."""
        self._unwritten.discard(fd)
        try:
            self._libc.fcntl(fd, F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise
            try:
                self._libc.fsync(fd)
            except OSError as refused:  # a directory of a file system that syncs none alone
                if refused.errno not in _NO_DIRECTORY_SYNC:
                    raise
                self.sync_file_system(fd)

    def sync_data(self, fd: int, /) -> None:
        self.sync(fd)

    def sync_file_system(self, fd: int) -> None:
        """The kernel tells no error of a file that could not be written, unlike syncfs(2).

        Files that were closed have told theirs by then.
        """
        flags = c_uint32(SYNC_FULL | SYNC_WAIT)
        try:
            _checked(self._libc.ffsctl(fd, SYNC_VOLUME, ctypes.byref(flags), 0), _NO_SYNC)
        except Unsupported:
            super().sync_file_system(fd)

    def _rename_with(
        self, flag: int, source: Name, target: Name, source_dir_fd: int, target_dir_fd: int
    ) -> None:
        names = os.fsencode(source), os.fsencode(target)
        done = self._libc.renameatx_np(source_dir_fd, names[0], target_dir_fd, names[1], flag)
        _checked(done, _NO_RENAME, target)

    def current_path(self, fd: int) -> str | None:
        try:
            path: bytes = self._libc.fcntl(fd, F_GETPATH, bytes(_PATH_SIZE_MAX))
        except OSError:
            return None
        return os.fsdecode(path.partition(b"\0")[0])

    def list_xattrs(self, place: Place) -> list[str]:
        """Flags and the access control list are among them, as far as there are any."""
        with self._opened(place) as fd:
            try:
                listed = _filled(lambda *buffer: self._libc.flistxattr(fd, *buffer, 0))
            except PermissionError as error:  # of a pipe, before macOS knew attributes of those
                if not S_ISFIFO(os.fstat(fd).st_mode):
                    raise
                raise unsupported(EPERM) from error
            names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
            names = [name for name in names if not name.startswith(_SYSTEMS_OWN)]
            return names + [name for name in (FLAGS, ACL) if self._own_value(fd, name) is not None]

    def _own_value(self, fd: int, attribute: str) -> bytes | None:
        """Returns what is kept as an attribute and is none, or None where there is nothing."""
        if attribute == ACL:
            return self._acl_text(fd)
        flags = self._flags(fd) & KEPT_FLAGS
        return b"%#x" % flags if flags else None

    def _acl_text(self, fd: int) -> bytes | None:
        """Returns the access control list of an open file; None for one without entries too."""
        libc = self._libc
        acl = libc.acl_get_fd_np(fd, _ACL_EXTENDED)
        if not acl:
            if ctypes.get_errno() in _NO_ACL:
                return None
            raise _last_error()
        try:
            address = libc.acl_to_text(acl, None)
            if not address:
                raise _last_error()
            text = ctypes.string_at(address)
            libc.acl_free(address)
        finally:
            libc.acl_free(acl)
        return text if text.strip().count(b"\n") else None  # the first line begins each list

    def _set_acl_text(self, fd: int, text: bytes | None) -> None:
        """Gives an open file an access control list, or none.

        A list without entries would stay, and keep the file from being as it was without. One with
        which the file could not be put in place is refused.
        """
        libc = self._libc
        moving = _MOVING_DIRECTORY if S_ISDIR(os.fstat(fd).st_mode) else _MOVING
        if self._is_denied(text, moving | _AFTER_LIST):
            raise unsupported(EPERM)
        if text is None:
            _checked(libc.acl_set_fd_np(fd, NO_ACL, _ACL_EXTENDED), _NO_CALL)
            return
        made = libc.acl_from_text(text)
        if not made:
            raise _last_error()
        try:
            _checked(libc.acl_set_fd_np(fd, made, _ACL_EXTENDED), _NO_CALL)
        finally:
            libc.acl_free(made)

    def _set_own_value(self, fd: int, attribute: str, value: bytes | None) -> None:
        if attribute == ACL:
            self._set_acl_text(fd, value)
            return
        try:
            flags = int(value or b"0", 16) & KEPT_FLAGS
        except ValueError:
            raise OSError(EINVAL, os.strerror(EINVAL), attribute) from None
        others = self._flags(fd) & ~KEPT_FLAGS
        _checked(self._libc.fchflags(fd, others | flags), _NO_CALL)

    def get_xattr(self, place: Place, attribute: str) -> bytes:
        name = os.fsencode(attribute)
        with self._opened(place) as fd:
            if attribute in _OWN:
                value = self._own_value(fd, attribute)
                if value is None:
                    raise NoAttribute(ENOATTR, os.strerror(ENOATTR), attribute)
                return value
            return _filled(lambda *buffer: self._libc.fgetxattr(fd, name, *buffer, 0, 0))

    def set_xattr(self, place: Place, attribute: str, value: bytes) -> None:
        name = os.fsencode(attribute)
        if attribute.startswith(_SYSTEMS_OWN):
            raise unsupported(EPERM, attribute)
        with self._opened(place) as fd:
            if attribute in _OWN:
                self._set_own_value(fd, attribute, value)
                return
            if attribute == RESOURCE_FORK:  # it is written over, and what was longer stays so
                with suppress(NoAttribute):
                    self.remove_xattr(fd, attribute)
            _checked(self._libc.fsetxattr(fd, name, value, len(value), 0, 0), _NO_CALL)

    def remove_xattr(self, place: Place, attribute: str) -> None:
        if attribute.startswith(_SYSTEMS_OWN):
            raise unsupported(EPERM, attribute)
        with self._opened(place) as fd:
            if attribute in _OWN:
                self._set_own_value(fd, attribute, None)
                return
            _checked(self._libc.fremovexattr(fd, os.fsencode(attribute), 0), _NO_CALL)

    @contextmanager
    def _opened(self, place: Place) -> Iterator[int]:
        if isinstance(place, int):
            yield place
            return
        fd = self.open_any(place[1], dir_fd=place[0])
        try:
            yield fd
        finally:
            os.close(fd)


def _filled(call: Callable[..., int]) -> bytes:
    """Returns what a call fills a buffer with that is as long as it says; raises OSError."""
    while True:
        size = _checked(call(None, 0), _NO_CALL)
        buffer = ctypes.create_string_buffer(size)
        try:
            size = _checked(call(buffer, size), _NO_CALL)
            return buffer.raw[:size]
        except OSError as error:
            if error.errno != ERANGE:  # it has grown meanwhile
                raise
