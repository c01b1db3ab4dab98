"""The file system as treesnap uses it: one method per system call.

Everything that reads or writes files takes a :class:`FileSystem`, so that tests
can count calls, make any of them fail, record them, and replay every prefix of
a recording with effects dropped that were not synced yet.

Names are relative to ``dir_fd`` where one is given. No method follows a
symbolic link in the last component. All methods raise OSError; two of its subclasses stand for
what has another number on each system. :mod:`treesnap.core.fs.os_errors` turns it into errors for
callers at the border of each operation.

Durability, method by method: data written by ``write``, ``write_at``, ``truncate``,
``punch_hole`` and ``share_content`` survives a power cut only after ``sync`` or
``sync_data`` of that file, or ``sync_file_system``. Names made, changed or removed survive
only after ``sync`` of the directory, or ``sync_file_system``. Until then any subset of the
effects may be lost, in any order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from mmap import mmap

from treesnap.core.model.type_names import Protocol

Name = str | bytes
Place = int | tuple[int, bytes]
"""An open file, or a name in an open directory, which is not followed if it is a link."""


class Unsupported(OSError):
    """The system or the file system has no such call, whatever is asked of it."""


class NoAttribute(OSError):
    """There is no extended attribute of that name, or none any more."""


class ReadingFileSystem(Protocol):
    """System calls that take nothing away and change nothing, with descriptors for handles.

    Readers take this, so that a type checker refuses the rest.
    """

    def open(self, name: Name, flags: int, mode: int = 0o600, *, dir_fd: int | None = None) -> int:
        """Opens a file or directory; adds O_CLOEXEC and O_NOFOLLOW."""

    def open_any(self, name: Name, *, dir_fd: int | None = None, is_directory: bool = False) -> int:
        """Opens what has a name, for its metadata alone, also where it may not be read.

        With ``is_directory`` raises NotADirectoryError for anything else. Raises Unsupported for
        what only its name leads to: on Linux nothing, elsewhere a link, a socket or a device. There
        it may not be what must not be read, either.
        """

    def close(self, fd: int, /) -> None:
        """Closes a descriptor."""

    def read(self, fd: int, size_bytes: int, /) -> bytes:
        """Returns at most ``size_bytes`` bytes from the current position."""

    def read_at(self, fd: int, size_bytes: int, offset: int, /) -> bytes:
        """Returns at most ``size_bytes`` bytes from a position."""

    def next_data(self, fd: int, offset: int) -> int | None:
        """Returns the start of the next data at or after ``offset``, or None at the end."""

    def next_hole(self, fd: int, offset: int) -> int:
        """Returns the start of the next hole at or after ``offset``; past the end is a hole."""

    def map(self, fd: int) -> mmap:
        """Returns a read-only mapping of a whole file that is not empty.

        Of one of at most 16 MiB all pages are loaded where the system can: a bad sector is EIO
        then. Elsewhere it ends the process that touches its page.
        """

    def sync(self, fd: int, /) -> None:
        """Makes a file's data and metadata, or a directory's names, durable."""

    def sync_data(self, fd: int, /) -> None:
        """Makes a file's data and size durable."""

    def sync_file_system(self, fd: int) -> None:
        """Makes everything written to the file system that holds ``fd`` durable."""

    def scan(self, directory: int | Name) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """Lists a directory by descriptor or path."""

    def list_names(self, directory: int | str, /) -> list[str]:
        """Returns the names in a directory, unordered."""

    def lstat(self, name: Name, /, *, dir_fd: int | None = None) -> os.stat_result:
        """Returns metadata of a name."""

    def fstat(self, fd: int, /) -> os.stat_result:
        """Returns metadata of an open file."""

    def free_bytes(self, fd: int) -> int:
        """Returns how many bytes an unprivileged writer may still add to the file system."""

    def name_size_max(self, fd: int) -> int:
        """Returns how many bytes a name in an open directory may have at most."""

    def file_system_id(self, place: Name | int, /) -> int:
        """Returns the id of a file system, which stays the same over mounts.

        That is f_fsid of statfs(2), or the device number where that is 0. Device numbers of btrfs
        and overlayfs may change at each mount. Overlays on one file system may have the same id.
        """

    def is_read_only(self, fd: int) -> bool:
        """Returns whether the file system is mounted read-only."""

    def is_protected(self, name: Name | int, *, dir_fd: int | None = None) -> bool:
        """Returns whether a file is immutable or append-only, so that not even its owner
        may move or remove it; False if that cannot be known. See chattr(1).

        On a Mac an access control list may deny this user the same: of an open directory, to change
        names in it.
        """

    def mount_id(self, fd: int) -> int | None:
        """Returns through which mount a file was opened, or None if that cannot be known.

        Where the system numbers no mounts, two of one file system have the same number. Numbers
        are used again after an unmount. See statx(2).
        """

    def birth_time_ns(self, name: Name | int) -> int | None:
        """Returns when a file or directory was made, or None if the file system does not tell.

        A renamed directory keeps it. See statx(2).
        """

    def read_link(self, name: bytes, /, *, dir_fd: int | None = None) -> bytes:
        """Returns the target of a symbolic link."""

    def current_path(self, fd: int) -> str | None:
        """Returns the path of an open directory, for messages; None if that cannot be known."""

    def list_xattrs(self, place: Place) -> list[str]:
        """Returns the names of extended attributes; raises Unsupported where there are none."""

    def get_xattr(self, place: Place, attribute: str) -> bytes:
        """Returns one extended attribute; raises NoAttribute and Unsupported."""

    def lock(self, fd: int, *, exclusive: bool) -> bool:
        """Takes a ``flock`` if it is free; returns whether it was.

        Raises Unsupported where the file system has no locks.
        """

    def unlock(self, fd: int) -> None:
        """Releases a ``flock``, for every descriptor that shares it."""


class FileSystem(ReadingFileSystem, Protocol):
    """All system calls."""

    def write(self, fd: int, data: bytes | memoryview, /) -> int:
        """Writes at the current position; returns how many bytes were written."""

    def write_at(self, fd: int, data: bytes | memoryview, offset: int, /) -> int:
        """Writes at a position; returns how many bytes were written."""

    def truncate(self, fd: int, size_bytes: int, /) -> None:
        """Sets the size of an open file; a growing file gets a hole."""

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Allocates space for the first bytes of an open file, which grows if it is shorter."""

    def punch_hole(self, fd: int, offset: int, size_bytes: int) -> None:
        """Gives back the blocks of a range of an open file, which reads as zeros then.

        The size stays. Raises Unsupported where that cannot be done. See fallocate(2).
        """

    def share_content(self, fd: int, source_fd: int, place: Place, /) -> None:
        """Gives an open file the content of another, holes too, without a copy of any block.

        ``place`` is its only name, in a directory in which no other process works, or the
        descriptor again where it has none: a Mac makes a new file of that name, to which the
        descriptor leads then. The two share blocks until one of them is written to. Of a source
        that is written to meanwhile it is the content of one moment. Raises Unsupported where no
        two files of these places can, and OSError with EINVAL for two files that cannot. See
        ioctl_ficlone(2).
        """

    def open_unnamed(self, directory: Name) -> int:
        """Makes a file without a name where a directory is, for reading and writing.

        Raises Unsupported where that cannot be done.
        """

    def make_directory(self, name: Name, mode: int = 0o700, *, dir_fd: int | None = None) -> None:
        """Makes a directory."""

    def remove_directory(self, name: Name, /, *, dir_fd: int | None = None) -> None:
        """Removes an empty directory."""

    def unlink(self, name: Name, /, *, dir_fd: int | None = None) -> None:
        """Removes a name that is not a directory."""

    def rename(
        self,
        source: Name,
        target: Name,
        *,
        source_dir_fd: int | None = None,
        target_dir_fd: int | None = None,
    ) -> None:
        """Renames atomically; an existing file at the target is replaced."""

    def rename_to_absent(
        self,
        source: Name,
        target: Name,
        *,
        source_dir_fd: int,
        target_dir_fd: int,
        or_fail: bool = False,
    ) -> None:
        """Renames atomically; raises FileExistsError when the target exists.

        Where the kernel or the file system cannot, looks the target up first, which leaves a
        moment for a race. With ``or_fail`` it raises Unsupported instead.
        """

    def exchange(
        self, source: Name, target: Name, *, source_dir_fd: int, target_dir_fd: int
    ) -> None:
        """Swaps two names of any types atomically.

        Raises Unsupported if the kernel or the file system cannot.
        """

    def link(
        self,
        source: Name,
        target: Name,
        *,
        source_dir_fd: int | None = None,
        target_dir_fd: int | None = None,
    ) -> None:
        """Adds a name to a file; raises Unsupported where files have one name each."""

    def make_symlink(self, target: bytes, name: bytes, /, *, dir_fd: int) -> None:
        """Makes a symbolic link."""

    def make_node(self, name: bytes, mode: int, device: int = 0, /, *, dir_fd: int) -> None:
        """Makes a FIFO or a device; ``mode`` holds the type."""

    def change_mode(self, place: Place, mode: int, /) -> None:
        """Sets the permission bits of what a descriptor leads to, also one of ``open_any``.

        Raises Unsupported for a name where the system would follow a link that another process
        puts there. See chmod(2).
        """

    def change_owner(
        self, name: Name | int, uid: int, gid: int, *, dir_fd: int | None = None
    ) -> None:
        """Sets owner and group of an open file or a name."""

    def change_times(self, name: Name | int, mtime_ns: int, *, dir_fd: int | None = None) -> None:
        """Sets the modification time, and the access time to the same."""

    def set_xattr(self, place: Place, attribute: str, value: bytes) -> None:
        """Sets one extended attribute; raises Unsupported."""

    def remove_xattr(self, place: Place, attribute: str) -> None:
        """Removes one extended attribute; raises NoAttribute and Unsupported."""
