"""Reaching a directory by its real path, through no symbolic link.

The path of a root is resolved once, when an operation begins. After that, a user who may write in
a directory above the root can put a link there at any moment. So each component is opened below
the one before it, and a link anywhere is an error instead of another directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from stat import S_ISLNK

from treesnap.fs.base import FileSystem
from treesnap.named_tuple import NamedTuple

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
"""Opens a directory of which only the names below it are wanted: that takes no right to read it."""
_LINKS_MAX = 40
"""As of Linux, see path_resolution(7)."""


class Link(NamedTuple):
    """A symbolic link that was followed."""

    path: str
    owner_id: int


def resolved(path: str) -> tuple[str, tuple[Link, ...]]:
    """Returns the real path of an absolute one, and the links that led there, from one look.

    What is absent or cannot be looked at is taken as it stands, as by os.path.realpath.
    """
    pending = path.split("/")[::-1]
    real, links = "/", list[Link]()
    while pending:
        name = pending.pop()
        if name in {"", "."}:
            continue
        if name == "..":
            real = os.path.dirname(real)
            continue
        here = os.path.join(real, name)
        try:
            found = os.lstat(here)
            target = os.readlink(here) if S_ISLNK(found.st_mode) else None
        except OSError:
            target = None
        if target is None or len(links) == _LINKS_MAX:
            real = here
            continue
        links.append(Link(here, found.st_uid))
        if target.startswith("/"):
            real = "/"
        pending.extend(target.split("/")[::-1])
    return real, tuple(links)


def open_real(fs: FileSystem, path: str | bytes) -> int:
    """Returns a descriptor of a directory by its real, absolute path.

    Raises OSError: NotADirectoryError or ELOOP where a component is a link. Costs an open for
    each component, about a microsecond.
    """
    return _opened(fs, os.fsdecode(path), makes=False)


def ensure_real(fs: FileSystem, path: str | bytes) -> int:
    """Like :func:`open_real`, but makes what is missing; all of it is durable after return."""
    return _opened(fs, os.fsdecode(path), makes=True)


@contextmanager
def opened_real(fs: FileSystem, path: str | bytes) -> Iterator[int]:
    """Yields a descriptor of :func:`open_real`, closed afterwards; raises OSError."""
    fd = open_real(fs, path)
    try:
        yield fd
    finally:
        fs.close(fd)


def _opened(fs: FileSystem, path: str, *, makes: bool) -> int:
    names = [name for name in path.split("/") if name]
    fd = fs.open("/", _SEARCH if names else OPEN_DIRECTORY)
    try:
        for position, name in enumerate(names, 1):
            flags = OPEN_DIRECTORY if position == len(names) else _SEARCH
            try:
                below = fs.open(name, flags, dir_fd=fd)
            except FileNotFoundError:
                if not makes:
                    raise
                _make(fs, name, fd)
                below = fs.open(name, flags, dir_fd=fd)
            above, fd = fd, below
            fs.close(above)
    except OSError as error:
        fs.close(fd)
        error.filename = path  # a component alone does not say where it is
        raise
    except BaseException:
        fs.close(fd)
        raise
    return fd


def _make(fs: FileSystem, name: str, above_fd: int) -> None:
    """Makes a directory, durably; one that another process makes meanwhile serves as well."""
    with suppress(FileExistsError):
        fs.make_directory(name, dir_fd=above_fd)
    fd = fs.open(".", OPEN_DIRECTORY, dir_fd=above_fd)  # one for search alone cannot be synced
    try:
        fs.sync(fd)
    finally:
        fs.close(fd)
