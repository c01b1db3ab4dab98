"""Notes: small files that an operation leaves in the root for other programs to read.

They are reached as everything in a root is, never through a link, and replaced
atomically. A note is no part of the state that snapshots hold: whoever writes one
excludes it from his captures.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from treesnap import treepath
from treesnap.errors import ErrorCode, Refused, printable
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import write_all
from treesnap.fs.record_locks import close_after_reading, open_for_reading
from treesnap.model import Change, ChangeKind
from treesnap.ops.access import locked_root, opened
from treesnap.worktree.directory import NO_DIRECTORY, OPEN_DIRECTORY, DirectoryChain

if TYPE_CHECKING:
    from treesnap.ops.context import Context

SIZE_BYTES_MAX = 64 << 20
KEPT_SUFFIX = b".before-treesnap"
"""What is added to the name of another program's file that was in the note's place."""


class SidecarPlace:
    """Where notes of one sort lie: below a root, at a path with one part that varies.

    ``pattern`` is relative to the root, and has ``*`` for that part.
    """

    def __init__(self, pattern: str) -> None:
        self._parts = pattern.encode().split(b"/")
        self._writing = [*self._parts[:-1], _writing_name(self._parts[-1])]
        self.excluded = tuple(
            "/" + b"/".join(parts).decode() for parts in (self._parts, self._writing)
        )
        """Patterns that keep the notes out of captures."""

    def path(self, varying: str) -> bytes:
        """Returns the path of one note."""
        return b"/".join(varying.encode() if part == b"*" else part for part in self._parts)

    def holds(self, change: Change) -> bool:
        """Returns whether a change is that of a note, or a new directory on the way to one."""
        names = treepath.components(change.path)
        if any(_fit(names, parts) for parts in (self._parts, self._writing)):
            return True
        is_new_directory = (
            change.change == ChangeKind.ADDED and change.new is not None and change.new.is_directory
        )
        return is_new_directory and _fit(names, self._parts[: len(names)])


def _fit(names: list[bytes], parts: list[bytes]) -> bool:
    return len(names) == len(parts) and all(
        part in (b"*", name) for name, part in zip(names, parts, strict=True)
    )


def _writing_name(name: bytes) -> bytes:
    """Returns the name that a note has before it is whole."""
    return b"." + name + b".writing"


def write_note(
    context: Context,
    path: bytes,
    content: Callable[[], bytes],
    *,
    is_note: Callable[[bytes], bool],
) -> None:
    """Writes ``content()`` to a file of the root, durably, and makes its directories.

    The root is locked meanwhile, so that of several writers the last one has seen the
    newest history. What is there and is no note is kept beside it under
    :data:`KEPT_SUFFIX`. A kill leaves the old note or the new one. Raises Refused where
    a link or a file stands in the place of a directory.
    """
    with (
        opened(context, "write a note", recover=False) as session,
        locked_root(session, "write a note"),
    ):
        data = content()
        root_fd = context.fs.open(context.root, OPEN_DIRECTORY)
        try:
            with DirectoryChain(context.fs, root_fd) as chain:
                directory, name = treepath.split(path)
                _replace(context.fs, _made(context.fs, chain, directory), name, data, is_note)
        finally:
            context.fs.close(root_fd)


def read_note(context: Context, path: bytes) -> bytes | None:
    """Returns what a note holds; None where none is, or something else. Follows no link."""
    found: list[bytes | None] = []
    _beside(
        context, path, lambda directory, name: found.append(_content(context.fs, directory, name))
    )
    return found[0] if found else None


def remove_note(context: Context, path: bytes) -> None:
    """Removes a note if it is there. Follows no link; raises OSError."""
    _beside(context, path, lambda directory, name: context.fs.unlink(name, dir_fd=directory))


def _beside(context: Context, path: bytes, act: Callable[[int, bytes], None]) -> None:
    """Calls ``act`` with the directory of a note and its name, if there is such a directory."""
    above, name = treepath.split(path)
    try:
        root_fd = context.fs.open(context.root, OPEN_DIRECTORY)
        try:
            with DirectoryChain(context.fs, root_fd) as chain:
                act(chain.open(above), name)
        finally:
            context.fs.close(root_fd)
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise


def _made(fs: FileSystem, chain: DirectoryChain, path: bytes) -> int:
    """Returns a descriptor of a directory, which is made with those above it when absent."""
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
                f"{printable(where)!r} is no directory", code=ErrorCode.NOT_A_DIRECTORY, path=where
            ) from error
    return chain.open_names(names)


def _replace(
    fs: FileSystem, directory: int, name: bytes, data: bytes, is_note: Callable[[bytes], bool]
) -> None:
    writing = _writing_name(name)
    with suppress(FileNotFoundError):  # of a writer that was killed, or of whoever knew the name
        fs.unlink(writing, dir_fd=directory)
    fd = fs.open(writing, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=directory)
    try:
        write_all(fs, fd, data)
        fs.sync_data(fd)
    finally:
        fs.close(fd)
    found = _content(fs, directory, name)
    if found is None or not is_note(found):
        _keep(fs, directory, name)
    fs.rename(writing, name, source_dir_fd=directory, target_dir_fd=directory)
    fs.sync(directory)


def _content(fs: FileSystem, directory: int, name: bytes) -> bytes | None:
    """Returns a small regular file's content, or None for anything else."""
    try:
        found = fs.lstat(name, dir_fd=directory)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_size > SIZE_BYTES_MAX:
        return None
    fd = open_for_reading(fs, name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=directory)
    try:
        return fs.read_at(fd, SIZE_BYTES_MAX, 0)
    finally:
        close_after_reading(fs, fd)


def _keep(fs: FileSystem, directory: int, name: bytes) -> None:
    """Moves what has a name aside, if anything has it."""
    try:
        fs.rename_to_absent(
            name, name + KEPT_SUFFIX, source_dir_fd=directory, target_dir_fd=directory
        )
    except FileNotFoundError:
        return
    except FileExistsError as error:
        raise Refused(
            f"{printable(name)!r} is another program's, and {printable(name + KEPT_SUFFIX)!r} is "
            "there",
            code=ErrorCode.NAME_TAKEN,
            path=name,
        ) from error
