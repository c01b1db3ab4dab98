"""Blobs as files of a plain directory: a second disk, a USB stick, a NAS.

    DIRECTORY/
        format
        packs/0000000000000001-3f...           blobs, under their names
        packs/.unfinished-91b0c2...            being written, or left by a writer that was killed

A blob is written under a temporary name beside its place, synced, and published with one call:
``put`` renames it there, ``create`` adds a hard link, which fails where there is a name already.
File systems without hard links (FAT, exFAT, some of FUSE) get a rename that replaces nothing; where
that is impossible too, ``create`` fails and nothing is written. Then the directory is synced. So a
blob's name has all of its bytes or does not exist, whenever its writer is killed.

Writers hold a lock (``flock``) on their temporary file, and :meth:`DirectoryBlobs.sweep_unfinished`
removes those without one. Locks may not reach from one machine to another. Then a sweep may take
the file from a writer, which finds it gone when it publishes, and writes it again.

The directory is opened once and all else relative to it, without following links. A disk that is
unplugged and whose mount point is an empty directory is not written to: a directory is a remote if
it holds ``format``, and only ``make=True`` opens another one.

Listings are as current as the file system's: a client of NFS may see names late.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from treesnap.core.fs.base import FileSystem, Unsupported
from treesnap.core.fs.durable import ensure_directories, read_all, unlink_if_present, write_all
from treesnap.core.fs.os_errors import is_full
from treesnap.core.fs.real_path import opened_real
from treesnap.core.model.errors import ErrorCode, RemoteFailed, quoted
from treesnap.remote.blobs.base import (
    BLOB_SIZE_MAX,
    KIND,
    MARKERS,
    BlobInfo,
    BlobMissing,
    Data,
    Facts,
    Range,
    check_listing,
    check_name,
    check_names,
    check_ranges,
    cut_ranges,
    is_name,
    is_unfinished,
    merged_ranges,
    split_name,
    too_large,
    unfinished_name,
)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_FORMAT = "format"
_ATTEMPTS = 3
"""Attempts to write a blob when others remove its temporary file."""

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EINVAL, errno.EMLINK, errno.EXDEV})
"""What link(2) raises where there are none, beside Unsupported. EPERM may also be a directory that
is immutable: then the rename says so."""
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_GONE = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENODEV,
        errno.ENOTCONN,
        errno.ENXIO,
        errno.ESHUTDOWN,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
"""What remains of a disk that was unplugged, or of a server that does not answer."""


class DirectoryBlobs:
    """Implements :class:`treesnap.remote.blobs.base.Blobs`.

    With ``make`` the directory is made if need be, but not its parent, and may be empty. New files
    and directories get the permissions of the directory, less the umask.
    """

    def __init__(self, fs: FileSystem, path: str, *, make: bool = False) -> None:
        self._fs = fs
        self.path: str = os.path.realpath(path)
        self._durable_kinds: set[str] = set()
        with self._reported("open a remote"):
            if make:
                fs.lstat(os.path.dirname(self.path))
                ensure_directories(fs, self.path)
            self._fd = fs.open(self.path, _DIRECTORY)
            try:
                self._mode = fs.fstat(self._fd).st_mode & 0o777
                if not make:
                    self._require_format()
            except BaseException:
                self.close()
                raise

    def _require_format(self) -> None:
        for name in MARKERS:
            with suppress(FileNotFoundError):
                self._fs.lstat(name, dir_fd=self._fd)
                return
        raise self._failed(
            "it holds no file 'format', so it is not a remote, or its disk is not mounted",
            ErrorCode.REMOTE_MISSING,
        )

    def give_up(self) -> None:
        """Does nothing: a disk is not waited for."""

    def close(self) -> None:
        """Closes the directory."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _close(self._fs, fd)

    # ------------------------------------------------------------------- writing

    def put(self, name: str, data: Data, /) -> None:
        """Writes a blob, whether or not there is one. Costs two syncs."""
        check_name(name)
        self._write(name, data, self._replace)

    def create(self, name: str, data: Data, /) -> bool:
        """Writes a blob if there is none; returns whether it did. Costs two syncs."""
        check_name(name)
        return self._write(name, data, self._add)

    def _write(self, name: str, data: Data, publish: Callable[[_Unfinished, str], bool]) -> bool:
        kind, base = split_name(name)
        with self._reported(f"write blob {name!r}"), self._kind_to_write(kind) as directory:
            return self._publish(directory, base, data, publish)

    def _publish(
        self, directory: int, base: str, data: Data, publish: Callable[[_Unfinished, str], bool]
    ) -> bool:
        for attempt in range(1, _ATTEMPTS + 1):
            file = _Unfinished(self._fs, directory, self._mode & 0o666)
            try:
                write_all(self._fs, file.fd, memoryview(data))
                self._fs.sync_data(file.fd)
                try:
                    is_written = publish(file, base)
                except FileNotFoundError:
                    if attempt == _ATTEMPTS:
                        raise
                    continue  # another machine's sweep took it
                if is_written:
                    with self._reported(f"sync {base!r}", is_unclear=True):
                        self._fs.sync(directory)
                return is_written
            finally:
                file.discard()
        raise AssertionError("the last attempt returns or raises")

    def _replace(self, file: _Unfinished, base: str) -> bool:
        error = file.give_name(self._fs.rename, base)
        if error is not None:
            raise self._unclear(error) from error
        file.is_moved = True
        return True

    def _add(self, file: _Unfinished, base: str) -> bool:
        """Gives a file the name of its blob; returns False if another file has it."""
        error = file.give_name(self._fs.link, base)
        if isinstance(error, Unsupported) or (error and error.errno in _NO_HARD_LINKS):
            error = file.give_name(partial(self._fs.rename_to_absent, or_fail=True), base)
            if isinstance(error, Unsupported):
                raise self._failed(
                    "its file system has neither hard links nor a rename that replaces nothing, "
                    "so no blob can be created there atomically",
                    ErrorCode.REMOTE_FAILED,
                ) from error
            file.is_moved = error is None
        if isinstance(error, FileExistsError):
            return False
        if error is not None:
            raise self._unclear(error) from error
        return True

    @contextmanager
    def _kind_to_write(self, kind: str) -> Iterator[int]:
        """Yields a descriptor of the directory of a kind, whose name is durable."""
        if kind and kind not in self._durable_kinds:
            with suppress(FileExistsError):
                self._fs.make_directory(kind, self._mode, dir_fd=self._fd)
            self._fs.sync(self._fd)  # its maker may have been killed before
            self._durable_kinds.add(kind)
        with self._kind_opened(kind) as directory:
            yield directory

    # ------------------------------------------------------------------- reading

    def get(self, name: str, /, size_bytes_max: int = BLOB_SIZE_MAX) -> bytes:
        """Returns a blob; raises BlobMissing, and RemoteFailed for a larger one."""
        check_name(name)
        with self._blob_opened(name) as (fd, size_bytes):
            if size_bytes <= size_bytes_max:
                data = read_all(self._fs, fd, size_bytes_max)
                if len(data) <= size_bytes_max:
                    return data
            raise too_large(name, max(size_bytes, size_bytes_max + 1), size_bytes_max, self.path)

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        """Returns parts of a blob; raises BlobMissing."""
        check_name(name)
        check_ranges(ranges)
        requests = merged_ranges(ranges)
        with self._blob_opened(name) as (fd, size_bytes):
            parts = [self._read_range(fd, size_bytes, *request) for request in requests]
        return cut_ranges(ranges, requests, parts)

    def _read_range(self, fd: int, size_bytes: int, start: int, size: int) -> bytes:
        pieces = []
        size = max(min(size, size_bytes - start), 0)  # Python allocates what is asked for
        while size and (piece := self._fs.read_at(fd, size, start)):
            pieces.append(piece)
            start += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def size_bytes(self, name: str, /) -> int:
        """Returns the size of a blob; raises BlobMissing."""
        check_name(name)
        with self._blob_opened(name) as (_, size_bytes):
            return size_bytes

    def list(self, prefix: str, /, after: str = "") -> Iterator[BlobInfo]:
        """Yields the blobs whose names begin with ``prefix``, as they were at the call."""
        check_listing(prefix, after)
        kind, start = split_name(prefix)
        blobs = []
        with (
            self._reported(f"list {prefix!r}"),
            suppress(FileNotFoundError),
            self._kind_opened(kind) as directory,
        ):
            for base in sorted(self._fs.list_names(directory)):
                name = f"{kind}/{base}"
                if base.startswith(start) and name > after and is_name(name):
                    with suppress(FileNotFoundError):
                        status = self._fs.lstat(base, dir_fd=directory)
                        if stat_module.S_ISREG(status.st_mode):
                            tag = f"{status.st_ino}-{status.st_ctime_ns}"
                            blobs.append(BlobInfo(name, status.st_size, tag))
        return iter(blobs)

    @contextmanager
    def _blob_opened(self, name: str) -> Iterator[tuple[int, int]]:
        """Yields a descriptor of a blob and its size."""
        kind, base = split_name(name)
        with self._reported(f"read blob {name!r}"):
            try:
                with self._kind_opened(kind) as directory:
                    fd = self._fs.open(base, os.O_RDONLY | os.O_NONBLOCK, dir_fd=directory)
            except FileNotFoundError:
                raise BlobMissing(name) from None
            try:
                status = self._fs.fstat(fd)
                if not stat_module.S_ISREG(status.st_mode):
                    raise self._failed(f"{name!r} is not a regular file", ErrorCode.REMOTE_FAILED)
                yield fd, status.st_size
            finally:
                _close(self._fs, fd)

    @contextmanager
    def _kind_opened(self, kind: str) -> Iterator[int]:
        """Yields a descriptor of the directory of a kind, or of the remote for no kind."""
        if not kind:
            yield self._fd
            return
        try:
            fd = self._fs.open(kind, _DIRECTORY, dir_fd=self._fd)
        except FileNotFoundError:
            if self._fs.fstat(self._fd).st_nlink == 0:
                raise self._failed("it was removed", ErrorCode.REMOTE_MISSING) from None
            raise
        except NotADirectoryError as error:
            raise self._failed(f"{kind!r} is not a directory", ErrorCode.REMOTE_FAILED) from error
        try:
            yield fd
        finally:
            _close(self._fs, fd)

    # ------------------------------------------------------------------ removing

    def delete(self, names: Sequence[str], /) -> Sequence[str]:
        """Removes blobs; returns those that may not be removed. Costs a sync for each kind."""
        check_names(names)
        by_kind: dict[str, list[str]] = {}
        for name in names:
            kind, base = split_name(name)
            by_kind.setdefault(kind, []).append(base)
        refused = []
        with self._reported("remove blobs"):
            for kind, bases in by_kind.items():
                with suppress(FileNotFoundError), self._kind_opened(kind) as directory:
                    kept = [base for base in bases if not self._remove(directory, base)]
                    refused += [f"{kind}/{base}" if kind else base for base in kept]
                    self._fs.sync(directory)
        return refused

    def _remove(self, directory: int, base: str) -> bool:
        try:
            unlink_if_present(self._fs, base, dir_fd=directory)
        except PermissionError:
            return False
        return True

    def sweep_unfinished(self) -> int:
        """Removes temporary files whose writers are gone; returns how many.

        Where the file system has no locks, none is removed.
        """
        with self._reported("remove unfinished files"):
            count = self._sweep(self._fd)
            for kind in self._fs.list_names(self._fd):
                if KIND.fullmatch(kind) and self._is_directory(kind):
                    with suppress(FileNotFoundError), self._kind_opened(kind) as directory:
                        count += self._sweep(directory)
        return count

    def _is_directory(self, kind: str) -> bool:
        try:
            return stat_module.S_ISDIR(self._fs.lstat(kind, dir_fd=self._fd).st_mode)
        except FileNotFoundError:
            return False

    def _sweep(self, directory: int) -> int:
        names = filter(is_unfinished, self._fs.list_names(directory))
        return sum(self._remove_abandoned(directory, name) for name in names)

    def _remove_abandoned(self, directory: int, name: str) -> bool:
        """Removes a temporary file unless it is locked; returns whether it did."""
        try:
            fd = self._fs.open(name, os.O_RDWR | os.O_NONBLOCK, dir_fd=directory)
        except OSError as error:
            if error.errno in _GONE or error.errno == errno.EROFS:
                raise
            return False  # another sweep removed it, or it is another user's
        try:
            if not self._fs.lock(fd, exclusive=True):
                return False
            try:
                return unlink_if_present(self._fs, name, dir_fd=directory)
            finally:
                self._fs.unlock(fd)
        except (Unsupported, PermissionError):
            return False
        finally:
            _close(self._fs, fd)

    def facts(self) -> Facts:
        """Returns how much room there is."""
        with self._reported("look for room"):
            return Facts(free_bytes=self._fs.free_bytes(self._fd))

    # ------------------------------------------------------------------- failing

    @contextmanager
    def _reported(self, doing: str, *, is_unclear: bool = False) -> Iterator[None]:
        """Re-raises OSError as RemoteFailed. ``doing`` completes the sentence "Could not ..."."""
        try:
            yield
        except OSError as error:
            raise RemoteFailed(
                f"Could not {doing} in directory {quoted(self.path)}: {error.strerror or error}",
                code=_code_of(error),
                path=self.path,
                errno=error.errno,
                endpoint=self.path,
                is_unclear=is_unclear,
            ) from error

    def _unclear(self, error: OSError) -> RemoteFailed:
        """Returns the error for a call that should have published a blob.

        A file server may still do what it reported as failed, unless it said that it will not.
        """
        code = _code_of(error)
        return RemoteFailed(
            f"Could not publish a blob in directory {quoted(self.path)}: {error.strerror or error}",
            code=code,
            path=self.path,
            errno=error.errno,
            endpoint=self.path,
            is_unclear=code not in {ErrorCode.REMOTE_DENIED, ErrorCode.REMOTE_FULL},
        )

    def _failed(self, why: str, code: ErrorCode) -> RemoteFailed:
        return RemoteFailed(
            f"Directory {quoted(self.path)} cannot be used as a remote: {why}",
            code=code,
            path=self.path,
            endpoint=self.path,
        )


@contextmanager
def removed_if_unused(fs: FileSystem, path: str) -> Iterator[None]:
    """When the body fails to set a remote up in a directory, removes the empty ones that it made.

    Those are for kinds of blobs, and the directory itself.
    """
    before: Sequence[str] | None = None
    with suppress(OSError):
        before = fs.list_names(path)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _remove_unused(fs, path, before)
        raise


def _remove_unused(fs: FileSystem, path: str, before: Sequence[str] | None) -> None:
    with opened_real(fs, path) as fd:
        names = fs.list_names(fd)
        if _FORMAT in names:
            return
        for kind in filter(KIND.fullmatch, set(names).difference(before or ())):
            with suppress(OSError):  # it holds something, or is not a directory
                fs.remove_directory(kind, dir_fd=fd)
    if before is None:
        fs.remove_directory(path)


class _Unfinished:
    """A file under a temporary name, locked until its blob is published or given up."""

    def __init__(self, fs: FileSystem, directory: int, mode: int) -> None:
        self._fs = fs
        self.directory = directory
        self.name = unfinished_name()
        self.is_moved = False
        """Whether the temporary name is gone because the blob has its own."""
        self.fd = fs.open(self.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode, dir_fd=directory)
        self._is_locked = False
        try:
            self._is_locked = fs.lock(self.fd, exclusive=True)
        except Unsupported:
            pass  # without locks, a sweep leaves it
        except OSError:
            self.discard()
            raise

    def give_name(self, call: Callable[..., None], base: str) -> OSError | None:
        """Publishes the file with one call; returns the error of the call, if it had no effect.

        A file server may repeat a request whose answer was lost, and tell of the second one. Raises
        FileNotFoundError when the temporary name is gone.
        """
        try:
            call(self.name, base, source_dir_fd=self.directory, target_dir_fd=self.directory)
        except OSError as error:
            if self._has_name(base):
                return None
            if isinstance(error, FileNotFoundError):
                raise
            return error
        return None

    def _has_name(self, base: str) -> bool:
        try:
            status = self._fs.lstat(base, dir_fd=self.directory)
            own = self._fs.fstat(self.fd)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino)

    def discard(self) -> None:
        """Removes the temporary name, or leaves it to a sweep, and closes the file."""
        try:
            if not self.is_moved:
                with suppress(OSError):
                    self._fs.unlink(self.name, dir_fd=self.directory)
        finally:
            if self._is_locked:
                with suppress(OSError):
                    self._fs.unlock(self.fd)
            _close(self._fs, self.fd)


def _close(fs: FileSystem, fd: int) -> None:
    """Closes a descriptor; what was written was synced before, so an error means nothing."""
    with suppress(OSError):
        fs.close(fd)


def _code_of(error: OSError) -> ErrorCode:
    if is_full(error):
        return ErrorCode.REMOTE_FULL
    if error.errno in _DENIED:
        return ErrorCode.REMOTE_DENIED
    if error.errno in _GONE:
        return ErrorCode.REMOTE_UNREACHABLE
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ErrorCode.REMOTE_MISSING
    return ErrorCode.REMOTE_FAILED
