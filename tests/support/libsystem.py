"""A Mac's volumes, by a double of its C library that lies below ``fs/darwin.py``.

:class:`SystemDouble` makes the calls of that library by those of Linux, with the arguments, the
buffers and the errors of a Mac, so the code under test is what runs there. A :class:`Volume` says
what a file system does; what needs no call of that library, such as which names are one name, is
in :class:`MacFileSystem` above it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unicodedata import normalize

from folding import Fold, FoldingFileSystem, without_case_or_form, without_form
from treesnap.core.fs import darwin
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.darwin import DarwinFileSystem
from treesnap.core.fs.posix import open_whole
from treesnap.testing.children import KILLED_CODE
from treesnap.testing.doubles import Call, Fault, FaultyFileSystem

_NUMBERS = {
    errno.ENODATA: darwin.ENOATTR,
    errno.ENOSYS: darwin.ENOSYS,
    errno.EOPNOTSUPP: darwin.ENOTSUP,
}
"""Of errors that Linux numbers otherwise, as far as these calls raise them."""
_EILSEQ = 92
_C_LIBRARY = ctypes.CDLL(None, use_errno=True)
_RENAMES = {darwin.RENAME_EXCL: 1, darwin.RENAME_SWAP: 2}
"""The flags of renameat2(2)."""
Identity = tuple[int, int]
"""Device and inode of a file."""
_PROTECTED = 0x2 | 0x4 | 0x20000 | 0x40000
"""Flags of a file that may not be changed; a clone has all flags of its source but two others."""
_RESOURCE_FORK = b"com.apple.ResourceFork"
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""Flags of fallocate(2)."""
USER, STAFF = 501, 20
"""Who works, and the group of all who do."""
_FAT_STEP_NS = 2 * 10**9


@dataclass(frozen=True)
class Volume:
    """What a file system of a Mac does."""

    fold: Fold
    swaps: bool = False
    excludes: bool = False
    """A rename may be one that replaces nothing."""
    flushes: bool = True
    """F_FULLFSYNC, and the sync of a directory."""
    clones: bool = False
    holes: bool = False
    """Blocks in the middle of a file are given back."""
    reserves: bool = True
    """Blocks behind the end of a file are allocated."""
    links: bool = True
    attributes: bool = True
    respells: bool = True
    """A rename to another spelling of the same name does something."""
    decomposes: bool = False
    """Names are stored in one form, whatever is written."""
    time_step_ns: int = 1


VOLUMES = {
    "APFS": Volume(without_case_or_form, swaps=True, excludes=True, clones=True, holes=True),
    "case-sensitive APFS": Volume(
        without_form, swaps=True, excludes=True, clones=True, holes=True, respells=False
    ),
    "HFS+": Volume(without_case_or_form, excludes=True, decomposes=True, time_step_ns=10**9),
    "exFAT": Volume(
        str.casefold,
        flushes=False,
        reserves=False,
        links=False,
        attributes=False,
        time_step_ns=10**7,
    ),
    "SMB": Volume(
        str.casefold,
        flushes=False,
        reserves=False,
        links=False,
        attributes=False,
        time_step_ns=_FAT_STEP_NS,
    ),
}


class SystemDouble:
    """The calls of ``LibSystem``, on a volume; notes the names of those that were made."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self.made: list[str] = []
        self.flags: dict[Identity, int] = {}
        self.lists: dict[Identity, bytes] = {}
        """Access control lists."""
        self.allocated: dict[int, Any] = {}
        """What the library has allocated, by its address: lists and their texts."""
        self.uuid = bytes(range(1, 17)) if volume.attributes else bytes(16)
        self.refused: set[bytes] = set()
        """Attributes that the system keeps to itself."""
        self.dataless: set[Identity] = set()
        """Files and directories that lie with a service alone."""
        self.downloads = True
        self.flushed: list[tuple[str, int]] = []
        """What reached the medium since it was last asked: each by what the seam calls that."""

    def _answer(self, name: str, call: Callable[[], int | None]) -> int:
        """Makes a call; returns -1 and sets the number of a Mac's error where it fails."""
        self.made.append(name)
        try:
            return call() or 0
        except OSError as error:
            number = error.errno or 0
            ctypes.set_errno(_NUMBERS.get(number, number))
            return -1

    def open(self, name: Any, flags: int, mode: int = 0o600, dir_fd: int | None = None) -> int:
        assert not (flags & darwin.O_SYMLINK and flags & os.O_NOFOLLOW)
        if flags & darwin.O_SYMLINK:
            flags = flags & ~darwin.O_SYMLINK | os.O_PATH | os.O_NOFOLLOW
        return open_whole(name, flags, mode, dir_fd)

    def fcntl(self, fd: int, command: int, argument: int | bytes = 0) -> int | bytes:
        self.made.append(f"fcntl {command}")
        if command == darwin.F_GETPATH:
            assert isinstance(argument, bytes)
            path = os.fsencode(os.readlink(f"/proc/self/fd/{fd}"))
            return path.ljust(len(argument), b"\0")
        if command in {darwin.F_PREALLOCATE, darwin.F_PUNCHHOLE}:
            assert isinstance(argument, bytes)
            return self._change_blocks(fd, command, argument)
        assert command == darwin.F_FULLFSYNC
        os.fstat(fd)
        if not self._volume.flushes:
            raise OSError(darwin.ENOTSUP, os.strerror(darwin.ENOTSUP))
        self.flushed.append(("sync", fd))
        return 0

    def _change_blocks(self, fd: int, command: int, argument: bytes) -> bytes:
        """Allocates blocks behind the end, which stays, or gives back whole ones."""
        is_reserving = command == darwin.F_PREALLOCATE
        if not (self._volume.reserves if is_reserving else self._volume.holes):
            raise OSError(darwin.ENOTSUP, os.strerror(darwin.ENOTSUP))
        if is_reserving:
            flags, position, offset, size, _ = darwin.PREALLOCATE.unpack(argument)
            assert (flags, position, offset) == (4, 3, 0)
            start, mode = os.fstat(fd).st_size, _KEEP_SIZE
        else:
            flags, reserved, start, size = darwin.PUNCH_HOLE.unpack(argument)
            assert (flags, reserved, start % 4096, size % 4096) == (0, 0, 0, 0)
            mode = _KEEP_SIZE | _PUNCH_HOLE
        begin, length = ctypes.c_int64(start), ctypes.c_int64(size)
        if _C_LIBRARY.fallocate64(fd, mode, begin, length) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if is_reserving:
            return darwin.PREALLOCATE.pack(flags, position, offset, size, size)
        return argument

    def fclonefileat(self, source_fd: int, dir_fd: int, name: bytes, flags: int) -> int:
        assert flags == darwin.CLONE_NOFOLLOW | darwin.CLONE_NOOWNERCOPY

        def clone() -> None:
            if not self._volume.clones:
                raise OSError(errno.EOPNOTSUPP, "")
            source = os.fstat(source_fd)
            mode = stat.S_IMODE(source.st_mode) & 0o777
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=dir_fd)
            try:
                os.sendfile(fd, source_fd, 0, source.st_size)
                os.truncate(fd, source.st_size)
                for attribute in self._attributes(source_fd):
                    os.setxattr(fd, attribute, os.getxattr(_itself(source_fd), attribute))
                os.utime(fd, ns=(source.st_atime_ns, source.st_mtime_ns))
                os.fchmod(fd, mode)
                self.flags[_identity(fd)] = self.flags.get(_identity(source_fd), 0)
                inherited = self.lists.get(_identity(dir_fd), b"")
                if b"file_inherit" in inherited:
                    self.lists[_identity(fd)] = inherited
            finally:
                os.close(fd)

        return self._answer("fclonefileat", clone)

    def fsync(self, fd: int) -> None:
        """Leaves everything in the drive's own memory, but where nothing else is to be had."""
        self.made.append("fsync")
        if os.path.isdir(f"/proc/self/fd/{fd}") and not self._volume.flushes:
            raise OSError(darwin.ENOTTY, os.strerror(darwin.ENOTTY))
        if not self._volume.flushes:
            self.flushed.append(("sync", fd))

    def ffsctl(self, fd: int, request: int, data: Any, options: int) -> int:
        assert (request, options) == (0x80044101, 0)
        if data._obj.value == darwin.SYNC_FULL | darwin.SYNC_WAIT:
            self.flushed.append(("sync_file_system", fd))
        return self._answer("ffsctl", lambda: os.fstat(fd) and 0)

    def renameatx_np(self, fd: int, name: bytes, to_fd: int, to: bytes, flags: int) -> int:
        is_known = self._volume.swaps if flags == darwin.RENAME_SWAP else self._volume.excludes

        def rename() -> int:
            if not is_known:
                raise OSError(errno.EOPNOTSUPP, "")
            done: int = _C_LIBRARY.renameat2(fd, name, to_fd, to, _RENAMES[flags])
            if done < 0:
                raise OSError(ctypes.get_errno(), "")
            return done

        return self._answer("renameatx_np", rename)

    def flistxattr(self, fd: int, buffer: Any, size: int, options: int) -> int:
        assert options == 0

        def listed() -> int:
            names = [name.removeprefix("user.") for name in self._attributes(fd)]
            return _fill(buffer, size, b"".join(os.fsencode(name) + b"\0" for name in names))

        return self._answer("flistxattr", listed)

    def fgetxattr(
        self, fd: int, name: bytes, buffer: Any, size: int, position: int, options: int
    ) -> int:
        assert (position, options) == (0, 0)
        return self._answer("fgetxattr", lambda: _fill(buffer, size, self._value(fd, name)))

    def fsetxattr(
        self, fd: int, name: bytes, value: bytes, size: int, position: int, options: int
    ) -> int:
        assert (size, position, options) == (len(value), 0, 0)

        def set_value() -> None:
            self._require_change(fd)
            if name in self.refused:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            kept = value
            if name == _RESOURCE_FORK:  # a file in the file, which is written to at its start
                with suppress(OSError):
                    kept = value + self._value(fd, name)[size:]
            os.setxattr(_itself(fd), _as_linux(name), kept)

        return self._answer("fsetxattr", set_value)

    def fremovexattr(self, fd: int, name: bytes, options: int) -> int:
        assert options == 0

        def remove() -> None:
            self._require_change(fd)
            os.removexattr(_itself(fd), _as_linux(name))

        return self._answer("fremovexattr", remove)

    def fchflags(self, fd: int, flags: int) -> int:
        def change() -> None:
            self.flags[_identity(fd)] = flags

        return self._answer("fchflags", change)

    def fgetattrlist(self, fd: int, asked: bytes, buffer: Any, size: int, options: int) -> int:
        assert asked == bytes.fromhex("0500000000000000000004800000000000000000") + bytes(4)
        assert (size, options) == (20, 0)

        def answer() -> None:
            os.fstat(fd)
            _fill(buffer, size, size.to_bytes(4, sys.byteorder) + self.uuid)

        return self._answer("fgetattrlist", answer)

    def fstat(self, fd: int) -> Any:
        flags = self.flags.get(_identity(fd), 0)
        return SimpleNamespace(
            st_flags=flags | (darwin.DATALESS if _identity(fd) in self.dataless else 0)
        )

    @staticmethod
    def geteuid() -> int:
        return USER

    @staticmethod
    def getgroups() -> list[int]:
        return [STAFF]

    def acl_get_fd_np(self, fd: int, kind: int) -> int | None:
        assert kind == 0x100
        if _identity(fd) not in self.lists:
            ctypes.set_errno(darwin.ENOENT)
            return None
        return self._allocate(self.lists[_identity(fd)])

    def acl_set_fd_np(self, fd: int, address: int, kind: int) -> int:
        """A list without entries is one all the same, unlike what stands for none."""
        assert kind == 0x100

        def set_list() -> None:
            if not self._volume.attributes:
                raise OSError(errno.EOPNOTSUPP, "")
            if address == 1:  # _FILESEC_REMOVE_ACL
                self.lists.pop(_identity(fd), None)
            else:
                self.lists[_identity(fd)] = self.allocated[address].value

        return self._answer("acl_set_fd_np", set_list)

    def acl_to_text(self, address: int, length: None) -> int:
        assert length is None
        return self._allocate(self.allocated[address].value)

    def acl_from_text(self, text: bytes) -> int | None:
        if not text.startswith(b"!#acl 1"):
            ctypes.set_errno(darwin.EINVAL)
            return None
        return self._allocate(text)

    def acl_free(self, address: int) -> int:
        del self.allocated[address]  # a second time is an error, as with free(3)
        return 0

    def _allocate(self, text: bytes) -> int:
        buffer = ctypes.create_string_buffer(text)
        self.allocated[ctypes.addressof(buffer)] = buffer
        return ctypes.addressof(buffer)

    def setiopolicy_np(self, kind: int, scope: int, policy: int) -> int:
        assert (kind, scope) == (3, 1)
        self.downloads = policy != 1
        return 0

    def read_dataless(self, fd: int) -> None:
        """Brings a file here that lies with a service, unless the process said no."""
        if _identity(fd) not in self.dataless:
            return
        if not self.downloads:
            raise OSError(darwin.EDEADLK, os.strerror(darwin.EDEADLK))
        self.dataless.discard(_identity(fd))

    def _require_change(self, fd: int) -> None:
        """Raises where attributes may not be changed: of what its owner may not write to, too."""
        self._attributes(fd)
        if self.flags.get(_identity(fd), 0) & _PROTECTED:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        if not os.fstat(fd).st_mode & stat.S_IWUSR:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def _attributes(self, fd: int) -> list[str]:
        if stat.S_ISFIFO(os.fstat(fd).st_mode):  # before macOS 15
            raise OSError(errno.EPERM, "")
        if not self._volume.attributes:
            raise OSError(errno.EOPNOTSUPP, "")
        return [name for name in os.listxattr(_itself(fd)) if name.startswith("user.")]

    def _value(self, fd: int, name: bytes) -> bytes:
        self._attributes(fd)
        return os.getxattr(_itself(fd), _as_linux(name))


def _identity(fd: int) -> Identity:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _itself(fd: int) -> str:
    """Returns what leads to an open link too."""
    return f"/proc/self/fd/{fd}"


def _as_linux(name: bytes) -> str:
    """Returns a name under which a user may keep an attribute on Linux."""
    return f"user.{os.fsdecode(name)}"


def _fill(buffer: Any, size: int, data: bytes) -> int:
    if buffer is not None:
        if size < len(data):
            raise OSError(errno.ERANGE, "")
        ctypes.memmove(buffer, data, len(data))
    return len(data)


class MacFileSystem(FoldingFileSystem):
    """``DarwinFileSystem`` on a volume below a directory; kills this process at a fault."""

    def __init__(self, base: str | os.PathLike[str], volume: Volume, *faults: Fault) -> None:
        self.libc = SystemDouble(volume)
        inner = FaultyFileSystem(
            *faults, inner=DarwinFileSystem(self.libc), on_kill=lambda: os._exit(KILLED_CODE)
        )
        super().__init__(base, inner, fold=volume.fold, exchanges=True)
        self._volume = volume

    def flushed(self) -> list[tuple[str, int]]:
        """Returns what reached the medium since it was last asked."""
        done, self.libc.flushed = self.libc.flushed, []
        return done

    def around(self, call: Call) -> Any:
        """Makes the call where the volume can, with the names and times that it keeps."""
        volume = self._volume
        if call.method == "link" and not volume.links:
            raise Unsupported(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if call.method in {"read", "read_at", "map", "scan", "list_names"} and isinstance(
            call.arguments[0], int
        ):
            self.libc.read_dataless(call.arguments[0])
        if call.method in {"rename", "rename_to_absent", "exchange", "unlink", "remove_directory"}:
            self._require_removal(call)
        if volume.decomposes and call.method == "rename":
            source, target = call.arguments
            call.arguments = source, self._stored(target)
        if call.method == "rename" and not volume.respells:
            # The kernel takes the two for links of one file, and has nothing to do.
            source, target = (
                self._there(name, call.options.get(f"{which}_dir_fd"))
                for name, which in zip(call.arguments, ("source", "target"), strict=True)
            )
            directories = {call.options.get(f"{which}_dir_fd") for which in ("source", "target")}
            if source == target and len(directories) == 1:
                return None
        if call.method == "change_times":
            name, time_ns = call.arguments
            call.arguments = name, time_ns // volume.time_step_ns * volume.time_step_ns
        if call.method in {"change_owner", "change_times"} and isinstance(call.arguments[0], int):
            # Of a link that is open: on Linux by /proc alone.
            fd, *values = call.arguments
            if call.method == "change_owner":
                return os.chown(_itself(fd), *values)
            return os.utime(_itself(fd), ns=(values[0], values[0]))
        return super().around(call)

    def _require_removal(self, call: Call) -> None:
        """Raises where a list denies deletion, as each rename is one as well."""
        options = call.options
        removed = [(call.arguments[0], options.get("source_dir_fd", options.get("dir_fd")))]
        if len(call.arguments) > 1:
            removed.append((call.arguments[1], options.get("target_dir_fd")))
        for name, dir_fd in removed:
            with suppress(FileNotFoundError):
                found = os.lstat(self._there(name, dir_fd), dir_fd=dir_fd)
                text = self.libc.lists.get((found.st_dev, found.st_ino), b"")
                if b":everyone:12:deny:delete" in text:
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    def _there(self, name: str | bytes, dir_fd: int | None) -> str | bytes:
        try:
            os.fsencode(name).decode()
        except UnicodeDecodeError:
            raise OSError(_EILSEQ, os.strerror(_EILSEQ), name) from None
        return super()._there(self._stored(name), dir_fd)

    def _stored(self, name: str | bytes) -> str | bytes:
        """Returns a name as the volume keeps it."""
        if not self._volume.decomposes:
            return name
        above, last = os.path.split(os.fsdecode(name))
        text = os.path.join(above, normalize("NFD", last))
        return text if isinstance(name, str) else text.encode()
