"""Sidecar files: small files that an operation leaves in the root for other programs to read.

They are reached as everything in a root is, never through a link, and replaced atomically. They
are not part of the state that snapshots hold: their writer excludes them from captures. All files
of one kind have the same name while they are written, so the next writer of any of them replaces
what a killed one left.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import write_all
from treesnap.core.fs.record_locks import close_after_reading, open_for_reading
from treesnap.core.model import treepath
from treesnap.core.model.entries import Change, ChangeKind
from treesnap.core.model.errors import ErrorCode, InvalidArgument, Refused, quoted
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.context import Context
from treesnap.core.worktree.directory import (
    NO_DIRECTORY,
    DirectoryChain,
    open_chain,
    open_directory,
)

SIZE_BYTES_MAX = 64 << 20
_WRITING = b".treesnap-writing"
OTHER_SUFFIX = b".before-treesnap"
"""Ends the new name of another program's file that was in the place of a sidecar file."""


class SidecarPlace:
    """Where sidecar files of one kind lie: below a root, at a path with one part that varies.

    ``pattern`` is relative to the root, and has ``*`` for that part, or at its beginning.
    """

    def __init__(self, pattern: str) -> None:
        self._parts = pattern.encode().split(b"/")
        (position,) = (at for at, part in enumerate(self._parts) if part.startswith(b"*"))
        self._writing = [*self._parts[:position], _WRITING]
        self.excluded: tuple[str, ...] = tuple(
            "/" + b"/".join(parts).decode() for parts in (self._parts, self._writing)
        )
        """Patterns that keep the files out of captures."""

    def path(self, varying: str) -> bytes:
        """Returns the path of one file; raises InvalidArgument for what is not part of a name."""
        if "/" in varying:
            raise InvalidArgument(f"{quoted(varying)} is not part of the name of a file")
        return treepath.parse(b"/".join(self._parts).replace(b"*", os.fsencode(varying)))

    @property
    def above(self) -> bytes:
        """The directory below which all of them lie."""
        return b"/".join(self._writing[:-1])

    def holds(self, change: Change) -> bool:
        """Returns whether a change is that of such a file, or of a new directory above one."""
        names = treepath.components(change.path)
        if any(_fit(names, parts) for parts in (self._parts, self._writing)):
            return True
        is_new_directory = (
            change.change == ChangeKind.ADDED and change.new is not None and change.new.is_directory
        )
        return is_new_directory and _fit(names, self._parts[: len(names)])


def _fit(names: list[bytes], parts: list[bytes]) -> bool:
    return len(names) == len(parts) and all(
        fnmatchcase(name, part) for name, part in zip(names, parts, strict=True)
    )


def write_sidecar(
    context: Context,
    place: SidecarPlace,
    varying: str,
    content: Callable[[], bytes],
    *,
    is_sidecar: Callable[[bytes], bool],
) -> None:
    """Writes ``content()`` to a file of a place, durably, and makes its directories.

    The root is locked meanwhile, so that of several writers the last one has seen the newest
    history. Another program's file in its place is moved aside: :data:`OTHER_SUFFIX` is added to
    its name. A kill leaves the old file or the new one, and may leave one that is half-written:
    the next writer replaces that. Raises Refused where a link or a file stands in the place of a
    directory.
    """
    with (
        opened(context, "write a sidecar file", recover=False) as session,
        locked_root(session, "write a sidecar file"),
        open_chain(context.fs, context.root) as chain,
    ):
        directory, name = treepath.split(place.path(varying))
        data = content()
        _make_directories(context.fs, chain, directory)
        parent, last = treepath.split(place.above)
        with open_directory(context.fs, last, dir_fd=chain.open(parent)) as above:
            target = chain.open(directory)
            with _written(context.fs, above, data):
                content_now = _content(context.fs, target, name)
                if content_now is None or not is_sidecar(content_now):
                    _move_aside(context.fs, target, name)
                context.fs.rename(_WRITING, name, source_dir_fd=above, target_dir_fd=target)
            context.fs.sync(target)


def read_sidecar(context: Context, path: bytes) -> bytes | None:
    """Returns a file's content, None where there is no regular file. Follows no link."""
    directory, name = treepath.split(path)
    try:
        with open_chain(context.fs, context.root) as chain:
            return _content(context.fs, chain.open(directory), name)
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        return None


def remove_sidecar(context: Context, path: bytes) -> None:
    """Removes a file if it is there. Follows no link; raises OSError."""
    directory, name = treepath.split(path)
    try:
        with open_chain(context.fs, context.root) as chain:
            context.fs.unlink(name, dir_fd=chain.open(directory))
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise


def _make_directories(fs: FileSystem, chain: DirectoryChain, path: bytes) -> None:
    """Makes a directory and those above it where they are absent, durably."""
    names = treepath.components(path)
    for length in range(1, len(names) + 1):
        try:
            chain.open_names(names[:length])
        except FileNotFoundError:
            above = chain.open_names(names[: length - 1])
            fs.make_directory(names[length - 1], 0o777, dir_fd=above)
            fs.sync(above)
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
            where = b"/".join(names[:length])
            raise Refused(
                f"{quoted(where)} is not a directory", code=ErrorCode.NOT_A_DIRECTORY, path=where
            ) from error


@contextmanager
def _written(fs: FileSystem, directory: int, data: bytes) -> Iterator[None]:
    """Holds a durable file under the name for writing; removes it when the body raises."""
    with suppress(FileNotFoundError):  # left by a writer that was killed
        fs.unlink(_WRITING, dir_fd=directory)
    fd = fs.open(_WRITING, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=directory)
    try:
        try:
            write_all(fs, fd, data)
            fs.sync_data(fd)
        finally:
            fs.close(fd)
        yield
    except BaseException:
        with suppress(OSError):
            fs.unlink(_WRITING, dir_fd=directory)
        raise


def _content(fs: FileSystem, directory: int, name: bytes) -> bytes | None:
    """Returns a small regular file's content, or None for anything else."""
    try:
        status = fs.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size > SIZE_BYTES_MAX:
        return None
    fd = open_for_reading(fs, name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=directory)
    try:
        return fs.read_at(fd, SIZE_BYTES_MAX, 0)
    finally:
        close_after_reading(fs, fd)


def _move_aside(fs: FileSystem, directory: int, name: bytes) -> None:
    """Renames another program's file, if there is one."""
    try:
        fs.rename_to_absent(
            name, name + OTHER_SUFFIX, source_dir_fd=directory, target_dir_fd=directory
        )
    except FileNotFoundError:
        return
    except FileExistsError as error:
        raise Refused(
            f"{quoted(name)} belongs to another program, and {quoted(name + OTHER_SUFFIX)} exists",
            code=ErrorCode.NOT_OURS,
            path=name,
        ) from error
