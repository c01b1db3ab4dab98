"""Reaching directories below a root safely, at any depth.

Every component is opened relative to the directory before it and never through
a symbolic link, so that whatever happens to the tree meanwhile, nothing outside
the root is reached. Paths longer than PATH_MAX and deeper than the limit on open
files work: only the last few directories stay open, the others are walked to
again when they are needed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import opened_file
from treesnap.core.fs.real_path import OPEN_DIRECTORY, open_real, opened_real
from treesnap.core.model import treepath
from treesnap.core.model.errors import ErrorCode, NotFound, Refused, quoted
from treesnap.core.model.type_names import Self

NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors that say that a path does not lead through directories alone."""
_OPEN_MAX = 48
_NEAREST_MAX = 24
"""Of those, directories right above the last one."""


def open_root(fs: FileSystem, root: str) -> int:
    """Returns a descriptor of a root, by its real path; raises NotFound, Refused, OSError."""
    try:
        return open_real(fs, root)
    except FileNotFoundError:
        raise NotFound(
            f"There is no directory {quoted(root)}", code=ErrorCode.ROOT_NOT_FOUND, path=root
        ) from None
    except NotADirectoryError:
        raise Refused(
            f"The root {quoted(root)} is not a directory",
            code=ErrorCode.NOT_A_DIRECTORY,
            path=root,
        ) from None


def is_left_by_others(fs: FileSystem, fd: int, status: os.stat_result) -> bool:
    """Returns whether a name in an open directory is another user's, and none of this user's.

    Only where the sticky bit says that many may make names there and each keeps its own, as in
    ``/tmp``. Elsewhere a user who may write to a directory may replace all that is in it. Costs
    nothing for what belongs to this user or to root.
    """
    if status.st_uid in {0, os.geteuid()}:
        return False
    own = fs.fstat(fd)
    return bool(own.st_mode & stat.S_ISVTX) and status.st_uid != own.st_uid


def open_directory(
    fs: FileSystem, path: str | bytes, dir_fd: int | None = None
) -> AbstractContextManager[int]:
    """Yields a descriptor of a directory, closed afterwards; raises OSError.

    A link above a path follows: for one below a root take :func:`opened_real`, or a ``dir_fd``.
    """
    return opened_file(fs, path, OPEN_DIRECTORY, dir_fd)


@contextmanager
def open_chain(fs: FileSystem, root: str | bytes) -> Iterator[DirectoryChain]:
    """Yields a chain of open directories that begins at a root; raises OSError."""
    with opened_real(fs, root) as root_fd, DirectoryChain(fs, root_fd) as chain:
        yield chain


def absent_paths(fs: FileSystem, root: str, paths: Iterable[bytes]) -> tuple[bytes, ...]:
    """Returns those of some tree paths at which nothing is now.

    A path through a link, or through what cannot be looked into, may hold something: it is not
    among them. Raises NotFound, Refused, OSError for the root itself.
    """
    root_fd = open_root(fs, root)
    try:
        with DirectoryChain(fs, root_fd) as chain:
            return tuple(path for path in paths if _is_absent(fs, chain, path))
    finally:
        fs.close(root_fd)


def _is_absent(fs: FileSystem, chain: DirectoryChain, path: bytes) -> bool:
    above = [parent for parent in treepath.parents(path) if parent]
    for each in [*reversed(above), path]:
        directory, name = treepath.split(each)
        try:
            if stat.S_ISLNK(fs.lstat(name, dir_fd=chain.open(directory)).st_mode):
                return False
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
    return False


def path_of_root(fs: FileSystem, root_fd: int, path: str) -> str:
    """Returns a path of an open root: the one given, or where it was moved since.

    Also the one given if the system cannot tell.
    """
    own = fs.fstat(root_fd)
    if _leads_to(fs, path, own):
        return path
    moved = fs.current_path(root_fd)
    return moved if moved and _leads_to(fs, moved, own) else path


def _leads_to(fs: FileSystem, path: str, own: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(fs.lstat(path), own)
    return False


class DirectoryChain:
    """Open directories from a root down to one path; moves from path to path.

    ``root_fd`` belongs to the caller. Moving to a sibling costs one open. Of a deep path the
    nearest directories stay open, and others at even distances: leaving it step by step would
    cost a way from the root again and again.
    """

    def __init__(self, fs: FileSystem, root_fd: int) -> None:
        self._fs = fs
        self._root_fd = root_fd
        self._names: list[bytes] = []
        self._fds: list[int | None] = []
        self._distance = 1
        """Between those that stay open farther above; a power of two."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._shorten(0)

    def open(self, path: bytes) -> int:
        """Returns a descriptor of a directory; valid until the next call.

        Raises NotADirectoryError or ELOOP (as OSError) for anything that is not a
        directory, FileNotFoundError for what is absent.
        """
        return self.open_names(treepath.components(path))

    def find(self, path: bytes) -> int | None:
        """Like :meth:`open`, but returns None where the path does not lead through directories."""
        try:
            return self.open(path)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                return None
            raise

    def open_names(self, names: Sequence[bytes]) -> int:
        """Returns a descriptor of a directory given by its components."""
        names = list(names)
        common = _common_length(self._names, names)
        self._shorten(common)
        while common and self._fds[common - 1] is None:
            common -= 1
            self._shorten(common)
        fd = self._fds[common - 1] if common else self._root_fd
        assert fd is not None
        for name in names[common:]:
            fd = self._fs.open(name, OPEN_DIRECTORY, dir_fd=fd)
            self._names.append(name)
            self._fds.append(fd)
            self._close_some()
        return fd

    def forget(self) -> None:
        """Closes everything, because directories were moved or replaced."""
        self._shorten(0)

    def _close_some(self) -> None:
        """Closes the farthest of the nearest directories, or several of those farther above."""
        level = len(self._fds) - _NEAREST_MAX - 1
        if level < 0:
            return
        if level % self._distance:
            self._close(level)
        elif level // self._distance >= _OPEN_MAX - _NEAREST_MAX:
            for other in range(self._distance, level + 1, 2 * self._distance):
                self._close(other)
            self._distance *= 2

    def _close(self, level: int) -> None:
        fd = self._fds[level]
        if fd is not None:
            self._fs.close(fd)
            self._fds[level] = None

    def _shorten(self, length: int) -> None:
        while len(self._fds) > length:
            self._names.pop()
            fd = self._fds.pop()
            if fd is not None:
                self._fs.close(fd)
        if not self._fds:
            self._distance = 1


def _common_length(mine: list[bytes], others: list[bytes]) -> int:
    """Returns how many names two paths begin with in common, by comparing runs of them."""
    least, most = 0, min(len(mine), len(others))
    while least < most:
        middle = (least + most + 1) // 2
        if mine[least:middle] == others[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
