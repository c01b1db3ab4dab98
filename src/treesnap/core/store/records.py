"""Record files: small sealed files of a store, each read and replaced whole.

A record that says what a process is doing is locked while that process lives, so a process
that gets the lock knows that the writer is gone.
"""

from __future__ import annotations

import os
from contextlib import suppress

from treesnap.core.codec.changes import has_changes, next_change
from treesnap.core.codec.envelope import Format
from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.fs.durable import (
    create_locked,
    open_regular,
    read_file,
    read_opened,
    replace_file,
    sync_directory,
    unlink_if_present,
    unreadable,
    write_all_at,
)
from treesnap.core.fs.os_errors import is_unreadable
from treesnap.core.model.errors import Corrupt, NewerVersion, UnsupportedFormat
from treesnap.core.model.type_names import Generic, Self, TypeVar
from treesnap.core.store.layout import Layout

T = TypeVar("T")


def read_record(fs: ReadingFileSystem, path: str, format_: Format[T]) -> T | None:
    """Returns the record in a file, or None when there is no file.

    Raises Corrupt, for an error of the disk too; NewerVersion for a whole file of a newer
    version. What has an unknown version otherwise is damaged: the store's format file admitted us.
    """
    try:
        return format_.unseal(read_file(fs, path, format_.size_max), path)
    except FileNotFoundError:
        return None
    except NewerVersion as error:
        raise NewerVersion(error.message, path=path) from error
    except UnsupportedFormat as error:
        raise Corrupt(error.message, path=path) from error
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise unreadable(path, error) from error


def write_record(
    fs: FileSystem,
    layout: Layout,
    path: str,
    format_: Format[T],
    record: T,
    *,
    durable: bool = True,
    durable_name: bool = True,
) -> None:
    """Replaces the record in a file; durable as :func:`replace_file` says."""
    replace_file(
        fs,
        path,
        format_.seal(record),
        temporary=layout.temporary,
        durable=durable,
        durable_name=durable_name,
    )


def write_change(fs: FileSystem, layout: Layout, path: str, format_: Format[T], record: T) -> None:
    """Makes a record durable by what changed, behind what its file holds.

    The caller holds the lock of all who write the file; readers need none: they see the record
    before or after. So do those that come after a crash. Costs one sync, and one more for the first
    change: a process that was killed may have given the file its name and not synced that. Replaces
    the file where a change is not possible, which costs two syncs.
    """
    payload = format_.payload(record)
    try:
        fd = open_regular(fs, path, os.O_RDWR, by_one_name=True)
    except (FileNotFoundError, PermissionError, Corrupt):
        fd = None
    if fd is not None:
        try:
            if _is_appended(fs, path, fd, format_, payload):
                return
        finally:
            fs.close(fd)
    replace_file(fs, path, format_.frame(payload), temporary=layout.temporary)


def _is_appended(fs: FileSystem, path: str, fd: int, format_: Format[T], payload: bytes) -> bool:
    """Appends a change to an open file, durably; returns False where that is not possible."""
    try:
        data = read_opened(fs, fd, format_.size_max)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return False
    change = next_change(data, format_.kind, payload, path)
    is_whole = fs.fstat(fd).st_size == len(data)  # of holes a part alone is read
    if change is None or not is_whole or len(data) + len(change) > format_.size_max:
        return False
    if not has_changes(data):  # before the change, whose presence proves it
        sync_directory(fs, os.path.dirname(path))
    try:
        write_all_at(fs, fd, change, len(data))
        fs.sync_data(fd)
    except BaseException:
        with suppress(OSError):  # what was not acknowledged must not come before what will be
            fs.truncate(fd, len(data))
        raise
    return True


class LockedRecord(Generic[T]):
    """A record of what a process is doing, and its lock. A context manager that closes it."""

    def __init__(self, fs: FileSystem, path: str, fd: int, format_: Format[T]) -> None:
        self._fs = fs
        self._fd = fd
        self._format = format_
        self.path = path
        self.is_abandoned = False
        """Whether its writer is gone; this process has the lock then."""

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        layout: Layout,
        path: str,
        format_: Format[T],
        record: T,
        *,
        durable: bool = True,
    ) -> Self:
        """Writes a record, locked; see :func:`create_locked`."""
        content = format_.seal(record)
        fd = create_locked(fs, path, content, temporary=layout.temporary, durable=durable)
        return cls(fs, path, fd, format_)

    @classmethod
    def open(
        cls, fs: FileSystem, path: str, format_: Format[T], *, exclusive: bool = True
    ) -> Self | None:
        """Returns the record in a file, locked if its writer is gone; None without a file.

        Also None where the writer removed the file before it let go: it has ended as it should.
        Without ``exclusive`` several processes may look at once, and none takes another one that
        looks for the writer.
        """
        try:
            fd = fs.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        record = cls(fs, path, fd, format_)
        try:
            record.is_abandoned = fs.lock(fd, exclusive=exclusive)
            is_removed = record.is_abandoned and not fs.fstat(fd).st_nlink
        except BaseException:
            fs.close(fd)
            raise
        if is_removed:
            record.close()
            return None
        return record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Unlocks and closes the file."""
        try:
            self._fs.unlock(self._fd)
        finally:
            self._fs.close(self._fd)

    def read(self) -> T:
        """Returns the record, or raises Corrupt or UnsupportedFormat."""
        try:
            data = self._fs.read_at(self._fd, self._format.size_max, 0)
        except OSError as error:
            if not is_unreadable(error):
                raise
            raise unreadable(self.path, error) from error
        return self._format.unseal(data, self.path)

    def remove(self) -> bool:
        """Removes the record; returns whether it was there.

        Not synced: a record that comes back says that a process works which does not live.
        """
        return unlink_if_present(self._fs, self.path)

    def replace(self, layout: Layout, record: T) -> None:
        """Puts another record in its place, which no process has locked; raises OSError."""
        write_record(self._fs, layout, self.path, self._format, record)

    def release(self) -> None:
        """Removes the record if that is possible, and closes it."""
        with self, suppress(OSError):
            self.remove()
