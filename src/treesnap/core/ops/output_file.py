"""A file that a command writes where the user says: its directory is opened once.

A user who may rename things above that directory can have its path lead elsewhere at any moment. So
everything about the file, from the first look to its last rename, is done below the open directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from stat import S_ISLNK, S_ISREG

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import replace_file, write_all
from treesnap.core.fs.pinned import pinned
from treesnap.core.fs.real_path import open_real, resolved
from treesnap.core.model.errors import Conflict, ErrorCode, NotFound, OperationFailed, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.trust import real_target, refuse_owner

_INTO = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
"""Opens a pipe without waiting for its other end, and no terminal as that of the process."""


class OutputPlace(NamedTuple):
    """The place of a file: a name in an open directory."""

    fs: FileSystem
    """For it, the directory's path means the open directory, wherever that path leads by now."""
    fd: int
    directory: str
    name: str

    @property
    def path(self) -> str:
        """The real path of the file."""
        return os.path.join(self.directory, self.name)

    def look(self) -> os.stat_result | None:
        """Returns what is at the name, or None."""
        try:
            return self.fs.lstat(self.path)
        except FileNotFoundError:
            return None


@contextmanager
def opened_place(fs: FileSystem, target: str) -> Iterator[OutputPlace]:
    """Yields the place of a file by its absolute path. Raises NotFound, Refused, OSError."""
    above, name = os.path.split(target)
    directory = real_target(above)
    try:
        fd = open_real(fs, directory)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"There is no directory {quoted(above)}", code=ErrorCode.PATH_NOT_FOUND, path=above
        ) from None
    try:
        yield OutputPlace(pinned(fs, directory, fd), fd, directory, name)
    finally:
        fs.close(fd)


def write_output(fs: FileSystem, target: str, content: bytes) -> None:
    """Writes a file whole or not at all; into a device or a pipe that is there.

    Follows a link at the name, as a shell does. Raises Refused if another user put that there, or
    the device, or the pipe, and OSError.
    """
    with opened_place(fs, target) as place:
        status = place.look()
        if status is not None and S_ISLNK(status.st_mode):
            _write_at(fs, _linked(place), content)
        else:
            _write(place, status, content)


def _linked(place: OutputPlace) -> str:
    """Returns where a link leads; raises Refused if any of the links there is another user's."""
    real, links = resolved(place.path)
    for link in links:
        refuse_owner("target", link.path, link.owner_id)
    return real


def _write_at(fs: FileSystem, real: str, content: bytes) -> None:
    with opened_place(fs, real) as place:
        _write(place, place.look(), content)


def _write(place: OutputPlace, status: os.stat_result | None, content: bytes) -> None:
    if status is None or S_ISREG(status.st_mode):
        replace_file(place.fs, place.path, content, temporary=place.directory, durable=False)
    else:
        _write_into(place, status, content)


def _write_into(place: OutputPlace, status: os.stat_result, content: bytes) -> None:
    fs = place.fs
    refuse_owner("target", place.path, status.st_uid)
    try:
        fd = fs.open(place.path, _INTO)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OperationFailed(
            f"No process reads {quoted(place.path)}; start one that does first", path=place.path
        ) from error
    try:
        if not os.path.samestat(fs.fstat(fd), status):
            raise Conflict(f"Another process replaced {quoted(place.path)}", path=place.path)
        os.set_blocking(fd, True)
        write_all(fs, fd, content)
    finally:
        fs.close(fd)
