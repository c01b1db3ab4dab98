"""Publishing files so that a crash leaves either nothing or the whole file.

Invariant: a published name has complete, synced content. Temporary files have
random names in a directory of the caller's choice on the same file system. The
store sweeps those that no process has locked.

Not here: locking (store), formats (codec).
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from treesnap.core.fs.base import FileSystem, Name, ReadingFileSystem
from treesnap.core.fs.os_errors import is_unreadable
from treesnap.core.model.errors import Corrupt, quoted

_FIRST_READ_SIZE = 64 << 10
"""Python allocates this much before it reads; a larger block would cost a system call."""
_READ_SIZE = 1 << 20
_UNCHECKED_SIZE = 16 << 20
"""So many bytes are read of any file, and for each that it takes on the disk so many more:"""
_SIZE_PER_ALLOCATED = 32
_DISK_BLOCK_SIZE = 4096
"""What a disk gives back as a whole, or not."""
_NAME_LENGTH = 16
_OTHER_TYPE = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
"""What opening a link, a directory, a socket or a device without a driver raises."""
_DIGITS = frozenset("0123456789abcdef")
_CANNOT_BE_SYNCED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL})
"""What the sync of a directory raises that is not readable, not writable or has no sync. Nothing in
it was made here."""


def write_all(fs: FileSystem, fd: int, data: bytes | memoryview) -> None:
    """Writes everything at the current position, in as many calls as it takes."""
    view = memoryview(data)
    while view:
        view = view[fs.write(fd, view) :]


def write_all_at(fs: FileSystem, fd: int, data: bytes | memoryview, position: int) -> None:
    """Writes everything at a position, in as many calls as it takes."""
    while data:
        taken = fs.write_at(fd, data, position)
        if taken == len(data):
            return
        position += taken
        data = memoryview(data)[taken:]


@contextmanager
def opened_file(
    fs: ReadingFileSystem, name: Name, flags: int, dir_fd: int | None = None
) -> Iterator[int]:
    """Yields a descriptor of a file or directory, closed afterwards; raises OSError."""
    fd = fs.open(name, flags, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        fs.close(fd)


def sync_directory(fs: ReadingFileSystem, path: str) -> None:
    """Makes the names in a directory durable. Costs one sync.

    A link in its place is followed: a store that was moved is found by one.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY
    try:
        fd = fs.open(path, flags)
    except NotADirectoryError:
        fd = fs.open(os.path.join(path, "."), flags)
    try:
        fs.sync(fd)
    finally:
        fs.close(fd)


class Temporary:
    """A file under a random name, locked by its writer until it gets its real name.

    The lock tells :func:`sweep_temporary` that the writer is alive.
    """

    def __init__(
        self, fs: FileSystem, directory: str, *, prefix: str = "", mode: int = 0o600
    ) -> None:
        self._fs = fs
        self.path: str = os.path.join(directory, prefix + os.urandom(_NAME_LENGTH // 2).hex())
        self.fd: int = fs.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        try:
            self.is_held: bool = fs.lock(self.fd, exclusive=True)
        except BaseException:
            self.discard()
            raise

    def publish(self, path: str, *, synced: bool) -> None:
        """Renames the file into place and closes it, with ``synced`` after a sync of its data.

        Raises FileNotFoundError when a sweep took the file before it was locked.
        """
        self.rename(path, synced=synced)
        self.close()

    def rename(
        self, path: str, *, synced: bool, rename: Callable[[str, str], None] | None = None
    ) -> None:
        """Like :meth:`publish`, but leaves the file open and locked, and may rename otherwise."""
        rename = rename or self._fs.rename
        try:
            if synced:
                self._fs.sync_data(self.fd)
            try:
                rename(self.path, path)
            except IsADirectoryError:
                put_aside(self._fs, path)
                rename(self.path, path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes the file, or leaves it to a later sweep."""
        with suppress(OSError):
            unlink_if_present(self._fs, self.path)
        self.close()

    def close(self) -> None:
        """Unlocks and closes the file."""
        try:
            self._fs.unlock(self.fd)
        finally:
            self._fs.close(self.fd)


class Prepared:
    """Content that is durable under a temporary name and only has to be renamed.

    :meth:`publish` makes it visible, which needs no space for data.
    """

    def __init__(self, fs: FileSystem, path: str, content: bytes, *, temporary: str) -> None:
        self._fs = fs
        self._path = path
        self._content = content
        self._temporary = temporary
        self._file: Temporary | None = _written(fs, content, temporary)
        try:
            fs.sync_data(self._file.fd)
        except BaseException:
            self.discard()
            raise

    def publish(self) -> None:
        """Renames the content into place, durable after return. Costs one sync."""
        file, self._file = self._file, None
        assert file is not None
        try:
            file.publish(self._path, synced=False)
        except FileNotFoundError:  # a sweep took it before it was locked
            replace_file(self._fs, self._path, self._content, temporary=self._temporary)
            return
        sync_directory(self._fs, os.path.dirname(self._path))

    def discard(self) -> None:
        """Removes what was not published."""
        if self._file is not None:
            self._file.discard()
            self._file = None


def replace_file(
    fs: FileSystem,
    path: str,
    content: bytes | memoryview,
    *,
    temporary: str,
    durable: bool = True,
    durable_name: bool = True,
) -> None:
    """Puts content under a name, whether or not it exists.

    After a crash the name has the old content or the new. With ``durable`` the new
    one survives a power cut after return, which costs two syncs; without
    ``durable_name`` one, and a power cut may still bring back the old content.
    Without ``durable`` it costs none, and a power cut leaves the old content, the
    new, or content that the reader must recognise as damaged.
    """
    _create_held(fs, path, content, temporary, synced=durable).close()
    if durable and durable_name:
        sync_directory(fs, os.path.dirname(path))


def create_file(fs: FileSystem, path: str, content: bytes, *, temporary: str) -> bool:
    """Puts content under a name that is free, and returns whether it was; replaces nothing.

    After a power cut the file is whole or not there. Costs one sync.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY
    with (
        opened_file(fs, temporary, flags) as source_fd,
        opened_file(fs, os.path.dirname(path), flags) as target_fd,
    ):

        def rename(source: str, target: str) -> None:
            source, target = os.path.basename(source), os.path.basename(target)
            fs.rename_to_absent(source, target, source_dir_fd=source_fd, target_dir_fd=target_fd)

        try:
            _create_held(fs, path, content, temporary, synced=True, rename=rename).close()
        except FileExistsError:
            return False
    return True


def _written(fs: FileSystem, content: bytes | memoryview, temporary: str) -> Temporary:
    file = Temporary(fs, temporary)
    try:
        write_all(fs, file.fd, content)
    except BaseException:
        file.discard()
        raise
    return file


def _create_held(
    fs: FileSystem,
    path: str,
    content: bytes | memoryview,
    temporary: str,
    *,
    synced: bool,
    rename: Callable[[str, str], None] | None = None,
) -> Temporary:
    """Returns a new file with the content under its real name, still open and locked."""
    for attempt in (1, 2, 3):
        file = _written(fs, content, temporary)
        if file.is_held:
            try:
                file.rename(path, synced=synced, rename=rename)
                return file
            except FileNotFoundError:
                if attempt == 3:
                    raise
        else:  # a sweep has it, and is about to remove it
            file.discard()
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)


def create_locked(
    fs: FileSystem, path: str, content: bytes, *, temporary: str, durable: bool = True
) -> int:
    """Returns a descriptor that holds the lock of a new file with the content.

    A process that finds the name and gets its lock knows that the writer is gone.
    The caller has to unlock and close the descriptor. When this raises, no name is
    left; only a crash can leave one. Costs two syncs, or none without ``durable``.
    """
    file = _create_held(fs, path, content, temporary, synced=durable)
    try:
        if durable:
            sync_directory(fs, os.path.dirname(path))
    except BaseException:
        with suppress(OSError):
            unlink_if_present(fs, path)
        file.close()
        raise
    return file.fd


def sweep_temporary(fs: FileSystem, directory: str, *, prefix: str = "") -> None:
    """Removes temporary files whose writers are gone, and no file with another kind of name."""

    def is_ours(name: str) -> bool:
        rest = name.removeprefix(prefix)
        return name.startswith(prefix) and len(rest) == _NAME_LENGTH and not set(rest) - _DIGITS

    sweep_abandoned(fs, directory, is_ours)


def sweep_abandoned(fs: FileSystem, directory: str, is_ours: Callable[[str], bool]) -> None:
    """Removes the files with names of ours that no process has locked; raises OSError.

    Only regular files of this user, and of the owner of the directory, are opened: in a directory
    that all may write to, others could have put anything there. Does not wait: neither for the
    other end of a pipe, nor for the holder of a lease, who has 45 seconds to give that up.
    """
    names = [name for name in fs.list_names(directory) if is_ours(name)]
    if not names:
        return
    owner_ids = {os.geteuid(), fs.lstat(os.path.join(directory, ".")).st_uid}
    for name in names:
        path = os.path.join(directory, name)
        try:
            status = fs.lstat(path)
            if status.st_uid not in owner_ids or not stat_module.S_ISREG(status.st_mode):
                continue
            fd = fs.open(path, os.O_RDWR | os.O_NONBLOCK)
        except (FileNotFoundError, PermissionError, BlockingIOError):  # its writer may live
            continue
        except OSError as error:
            if error.errno in _OTHER_TYPE:
                continue
            raise
        try:
            if fs.lock(fd, exclusive=True):
                unlink_if_present(fs, path)
                fs.unlock(fd)
        finally:
            fs.close(fd)


def add_directory(fs: FileSystem, path: str) -> None:
    """Makes a directory in a durable one, if need be, and its name durable in any case.

    The process that made it earlier may have been killed before the sync. Costs one sync.
    """
    with suppress(FileExistsError):
        fs.make_directory(path)
    sync_directory(fs, os.path.dirname(path))


def ensure_directories(fs: FileSystem, path: str) -> None:
    """Makes a directory and its missing parents; all are durable after return.

    Nothing is made in a directory whose name is not durable yet. So if this function made a
    directory that exists, its parents are durable, and only its own name may not be. Costs a
    sync for each directory made, and one more.
    """
    try:
        fs.lstat(path)
    except FileNotFoundError:
        ensure_directories(fs, os.path.dirname(path))
        add_directory(fs, path)
        return
    try:
        sync_directory(fs, os.path.dirname(path))
    except OSError as error:
        if error.errno not in _CANNOT_BE_SYNCED:
            raise


def read_file(fs: ReadingFileSystem, path: str, size_bytes_max: int) -> bytes:
    """Returns a file's content, at most ``size_bytes_max + 1`` bytes of it.

    The extra byte tells the caller that the file is too long. A pipe, a link, a socket or a
    directory in its place reads as empty, like a damaged file, and without waiting. A large file
    is read as far as the room that it takes on the disk is worth: holes cost a stranger nothing.
    """
    try:
        fd = fs.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in _OTHER_TYPE:
            raise
        fs.lstat(path)  # raises when a directory on the path is of another type
        return b""
    try:
        return read_opened(fs, fd, size_bytes_max)
    except IsADirectoryError:
        return b""
    finally:
        fs.close(fd)


def read_opened(fs: ReadingFileSystem, fd: int, size_bytes_max: int) -> bytes:
    """Returns the content of an open file as :func:`read_file` does."""
    data = read_all(fs, fd, min(size_bytes_max, _UNCHECKED_SIZE))
    if _UNCHECKED_SIZE < len(data) <= size_bytes_max:
        left = min(size_bytes_max, _worth(fs, fd, data)) - len(data)
        data += read_all(fs, fd, left) if left >= 0 else b""
    return data


def _worth(fs: ReadingFileSystem, fd: int, data: bytes) -> int:
    """Returns how much of a file is read that begins with some bytes.

    A file system that compresses takes less room than the file has bytes; some say of every file
    that it takes none.
    """
    allocated_bytes = fs.fstat(fd).st_blocks * 512
    if allocated_bytes == 0 and data.count(0) < len(data):
        return sys.maxsize
    return _UNCHECKED_SIZE + _SIZE_PER_ALLOCATED * allocated_bytes


def read_all(fs: ReadingFileSystem, fd: int, size_bytes_max: int) -> bytes:
    """Returns the rest of an open file, at most ``size_bytes_max + 1`` bytes of it."""
    pieces = []
    left = size_bytes_max + 1
    size_bytes = _FIRST_READ_SIZE
    while left > 0 and (piece := fs.read(fd, min(left, size_bytes))):
        pieces.append(piece)
        left -= len(piece)
        if len(piece) == size_bytes:
            size_bytes = _READ_SIZE
    return b"".join(pieces)


def read_readable(fs: ReadingFileSystem, path: str, size_bytes_max: int) -> bytes:
    """Returns what :func:`read_file` does, with zeros for what the disk does not give back.

    For a caller that looks for remains, and relies on nothing. Raises OSError where the disk does
    not even give back the file's metadata.
    """
    try:
        return read_file(fs, path, size_bytes_max)
    except OSError as error:
        if not is_unreadable(error):
            raise
    with opened_file(fs, path, os.O_RDONLY | os.O_NONBLOCK) as fd:
        size = min(fs.fstat(fd).st_size, size_bytes_max + 1)
        return b"".join(
            read_readable_at(fs, fd, min(_READ_SIZE, size - start), start)
            for start in range(0, size, _READ_SIZE)
        )


def read_readable_at(fs: ReadingFileSystem, fd: int, size: int, offset: int) -> bytes:
    """Returns bytes of an open file, with zeros for what the disk does not give back."""
    try:
        return fs.read_at(fd, size, offset)
    except OSError as error:
        if not is_unreadable(error):
            raise
    if size <= _DISK_BLOCK_SIZE:
        return bytes(size)
    first = _DISK_BLOCK_SIZE - offset % _DISK_BLOCK_SIZE
    starts = [offset, *range(offset + first, offset + size, _DISK_BLOCK_SIZE)]
    ends = [*starts[1:], offset + size]
    return b"".join(
        read_readable_at(fs, fd, end - start, start)
        for start, end in zip(starts, ends, strict=True)
    )


def open_regular(
    fs: ReadingFileSystem, path: str, flags: int = os.O_RDONLY, *, by_one_name: bool = False
) -> int:
    """Returns a descriptor of a regular file of a store, without waiting.

    Raises Corrupt for anything else in its place: a pipe, a directory, a link, a device, a
    socket; and ``by_one_name``, for who is to write into it, for a file that has other names, too.
    """
    try:
        fd = fs.open(path, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _OTHER_TYPE:
            raise not_regular(path) from error
        raise
    status = fs.fstat(fd)
    if not stat_module.S_ISREG(status.st_mode) or (by_one_name and has_other_names(status)):
        fs.close(fd)
        raise not_regular(path)
    return fd


def has_other_names(status: os.stat_result) -> bool:
    """Returns whether a file of a store is one with a file elsewhere, so it is not written into.

    That may be another file of the user, to which a stranger made a link, or a copy of the store
    that was made of hard links.
    """
    return status.st_nlink > 1


def open_lock(fs: FileSystem, path: str) -> int:
    """Returns a descriptor of a lock file of a store, which is made if absent.

    A lock file has no content to lose, so anything else in its place is put aside. Raises
    Corrupt while another process is doing that.
    """
    flags = os.O_RDWR | os.O_CREAT
    try:
        return open_regular(fs, path, flags)
    except Corrupt:
        put_aside(fs, path)
        return open_regular(fs, path, flags)


def put_aside(fs: FileSystem, path: str) -> None:
    """Renames anything that is in the place of a regular file to a name that no reader knows.

    Processes take turns, by a lock on the directory, so that none moves away the regular file
    that another one has just put there. Does nothing while another process has that lock.
    """
    with opened_file(fs, os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY) as directory:
        if not fs.lock(directory, exclusive=True):
            return
        try:
            with suppress(FileNotFoundError):
                if not stat_module.S_ISREG(fs.lstat(path).st_mode):
                    fs.rename(path, f"{path}.aside-{os.urandom(4).hex()}")
        finally:
            fs.unlock(directory)


def refuse_link(fs: ReadingFileSystem, path: str) -> None:
    """Raises Corrupt for a link: a store of unknown origin must not lead to other places.

    Costs one look.
    """
    try:
        mode = fs.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat_module.S_ISLNK(mode):
        raise Corrupt(f"{quoted(path)} in the store is a symbolic link", path=path)


def not_regular(path: str) -> Corrupt:
    """Returns the error for anything else in the place of a store's regular file."""
    return Corrupt(f"File {quoted(path)} is not a regular file", path=path)


def closed(path: str) -> Corrupt:
    """Returns the error for a file of a store that exists and may not be opened."""
    return Corrupt(
        f"File {quoted(path)} cannot be opened: permission denied; it may belong to another user",
        path=path,
    )


def unreadable(path: str, error: OSError) -> Corrupt:
    """Returns the error for a file of a store of which the disk does not give back the bytes."""
    reason = os.strerror(error.errno or errno.EIO)
    return Corrupt(f"File {quoted(path)} cannot be read: {reason}", path=path)


def is_there(fs: ReadingFileSystem, path: str) -> bool:
    """Returns whether a name exists; raises OSError where that cannot be seen. Costs one look."""
    try:
        fs.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def unlink_if_present(fs: FileSystem, path: str, *, dir_fd: int | None = None) -> bool:
    """Removes a name if it exists; returns whether it did."""
    try:
        fs.unlink(path, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True
