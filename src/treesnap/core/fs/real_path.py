"""Reaching a directory by its real path, through no symbolic link.

The path of a root is resolved once, when an operation begins. After that, a user who may write in
a directory above the root can put a link there at any moment. So each component is opened below
the one before it, and a link anywhere is an error instead of another directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ELOOP, ENOENT
from stat import S_ISLNK

from treesnap.core.fs import IS_LINUX
from treesnap.core.fs.base import FileSystem
from treesnap.core.model.named_tuple import NamedTuple

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_SEARCH = (getattr(os, "O_PATH", os.O_RDONLY) if IS_LINUX else os.O_RDONLY) | os.O_DIRECTORY
"""Opens a directory of which only the names below it are wanted: that takes no right to read it."""
_LINKS_MAX = 40
"""As of Linux, see path_resolution(7)."""


_SHORT_NAME_BYTES = 100
"""Names of so many bytes fit on every file system."""


def path_beside(path: str, suffix: str, *, prefix: str = "") -> str:
    """Returns a path in the same directory that fits wherever the given one does."""
    directory, name = os.path.split(os.fsencode(path))
    begin, end = prefix.encode(), suffix.encode()
    room = max(len(name), _SHORT_NAME_BYTES) - len(begin) - len(end)
    if len(name) > room:
        with suppress(UnicodeDecodeError):  # it is cut between characters, where it has some
            name.decode()
            name = name[:room].decode(errors="ignore").encode()
        name = name[:room]
    return os.fsdecode(os.path.join(directory, begin + name + end))


class Link(NamedTuple):
    """A symbolic link that was followed."""

    path: str
    owner_id: int


class PathLookup(NamedTuple):
    """What was met on the way to a path: one look at each name, from the root directory down.

    A user may change a name who may write in the directory above it, which was looked at
    before. So if no other user may change any of the directories, what was seen stays so. Only
    where a name was absent can another user make something, if the sticky bit lets all do that.
    """

    real: str
    """The real path; from what is absent or cannot be looked at on, as it was given."""
    links: tuple[Link, ...]
    above: tuple[tuple[str, os.stat_result], ...]
    """Each directory in which a name was looked up, outermost first, with its status."""
    status: os.stat_result | None
    """Of what is at the real path; None if it was not seen."""
    error: OSError | None
    """Why not everything was seen; FileNotFoundError where something is absent."""
    is_dangling: bool
    """Whether what is absent is what a link leads to."""


def looked_up(path: str) -> PathLookup:
    """Returns what is met on the way to an absolute path; a link at its end is followed too."""
    pending = path.split("/")[::-1]
    outer = len(pending)
    """How many of the pending names do not come from a link; more are pending inside of one."""
    real, links, above = "/", list[Link](), dict[str, os.stat_result]()
    error: OSError | None = None
    status: os.stat_result | None
    is_dangling = False
    try:
        status = os.stat(real)
    except OSError as failed:
        status, error = None, failed.with_traceback(None)  # or it keeps all frames, in a circle
    while pending:
        name = pending.pop()
        is_inside = len(pending) >= outer
        if not is_inside:
            outer = len(pending)
        if name in {"", "."}:
            continue
        if name == "..":
            real = os.path.dirname(real)
            status = above.get(real, status)
            continue
        if status is not None:
            above[real] = status
        here = os.path.join(real, name)
        target = None
        try:
            status = os.lstat(here)
            if S_ISLNK(status.st_mode):
                if len(links) == _LINKS_MAX:
                    raise OSError(ELOOP, os.strerror(ELOOP), here)
                target = os.readlink(here)
        except OSError as failed:
            if error is None:
                error = failed.with_traceback(None)
                is_dangling = is_inside and failed.errno == ENOENT
            status = None
        if target is None or status is None:
            real = here
            continue
        links.append(Link(here, status.st_uid))
        if target.startswith("/"):
            real = "/"
        status = above.get(real)
        pending.extend(target.split("/")[::-1])
    return PathLookup(real, tuple(links), tuple(above.items()), status, error, is_dangling)


def resolved(path: str) -> tuple[str, tuple[Link, ...]]:
    """Returns the real path of an absolute one, and the links that led there, from one look.

    What is absent or cannot be looked at is taken as it stands, as by os.path.realpath.
    """
    return looked_up(path)[:2]


def open_real(fs: FileSystem, path: str | bytes) -> int:
    """Returns a descriptor of a directory by its real, absolute path.

    Raises OSError: NotADirectoryError or ELOOP where a component is a link. Costs an open for
    each component, about a microsecond.
    """
    return _opened(fs, os.fsdecode(path))


Judge = Callable[[str, os.stat_result], None]
"""Raises for a directory, by its path and the status of its descriptor."""


def ensure_real(
    fs: FileSystem, path: str | bytes, judge: Judge, *, gives_owner: bool = False
) -> int:
    """Like :func:`open_real`, but makes what is missing; all of it is durable after return.

    Each directory is judged once it is open, before anything is looked up or made in it: in a
    directory that every user may write to, one that was absent may be another user's by now. With
    ``gives_owner`` a new one belongs to the owner of the directory in which it is made.
    """
    return _opened(fs, os.fsdecode(path), _Making(judge, gives_owner))


@contextmanager
def opened_real(fs: FileSystem, path: str | bytes) -> Iterator[int]:
    """Yields a descriptor of :func:`open_real`, closed afterwards; raises OSError."""
    fd = open_real(fs, path)
    try:
        yield fd
    finally:
        fs.close(fd)


class _Making(NamedTuple):
    """How missing directories are made."""

    judge: Judge
    gives_owner: bool


def _opened(fs: FileSystem, path: str, making: _Making | None = None) -> int:
    names = [name for name in path.split("/") if name]
    here = "/"
    fd = fs.open(here, _SEARCH if names else OPEN_DIRECTORY)
    try:
        if making is not None:
            making.judge(here, fs.fstat(fd))
        for position, name in enumerate(names, 1):
            flags = OPEN_DIRECTORY if position == len(names) else _SEARCH
            is_made = False
            try:
                below = fs.open(name, flags, dir_fd=fd)
            except FileNotFoundError:
                if making is None:
                    raise
                is_made = _make(fs, name, fd)
                below = fs.open(name, flags, dir_fd=fd)
            above, fd = fd, below
            try:
                if making is not None:
                    here = os.path.join(here, name)
                    making.judge(here, fs.fstat(fd))
                    if is_made and making.gives_owner:
                        _give(fs, fd, fs.fstat(above))
            finally:
                fs.close(above)
    except OSError as error:
        fs.close(fd)
        error.filename = path  # a component alone does not say where it is
        raise
    except BaseException:
        fs.close(fd)
        raise
    return fd


def _give(fs: FileSystem, fd: int, above: os.stat_result) -> None:
    """Gives a directory that was made to the owner of the one in which it is."""
    if fs.fstat(fd).st_uid != above.st_uid:
        with suppress(OSError):  # some file systems and containers refuse it
            fs.change_owner(fd, above.st_uid, above.st_gid)


def _make(fs: FileSystem, name: str, above_fd: int) -> bool:
    """Makes a directory, durably; returns False where another process made it meanwhile."""
    is_made = False
    with suppress(FileExistsError):
        fs.make_directory(name, dir_fd=above_fd)
        is_made = True
    fd = fs.open(".", OPEN_DIRECTORY, dir_fd=above_fd)  # one for search alone cannot be synced
    try:
        fs.sync(fd)
    finally:
        fs.close(fd)
    return is_made
