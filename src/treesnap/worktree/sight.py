"""Looking at paths before and after a step, so that no change by others is missed."""

from __future__ import annotations

import os
import stat as stat_module
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from treesnap import treepath
from treesnap.errors import Conflict, shown
from treesnap.fs.base import FileSystem
from treesnap.worktree.directory import NO_DIRECTORY, OPEN_DIRECTORY, DirectoryChain
from treesnap.worktree.protection import protected, refuse_protected_below
from treesnap.worktree.step import Action, FileKey, Step, aside_name, key_of

UnchangedBelow = Callable[[int, bytes], bool]
"""Whether an open directory still holds what was seen at a path."""


class Sight:
    """What is at the paths of some steps, and in the staging directory."""

    def __init__(
        self,
        fs: FileSystem,
        chain: DirectoryChain,
        stage_fd: int,
        steps: Sequence[Step],
        unchanged_below: UnchangedBelow,
    ) -> None:
        self._fs = fs
        self._chain = chain
        self._stage_fd = stage_fd
        self._unchanged_below = unchanged_below
        inodes = Counter(step.before.inode for step in steps if step.before is not None)
        self._shared_inodes = {inode for inode, count in inodes.items() if count > 1}
        """Inodes of which several names are concerned: a step on one changes the ctime of all."""
        self._open_directories: set[bytes] = set()
        """Directories that were found to be neither immutable nor append-only."""

    def staged(self, name: bytes) -> os.stat_result | None:
        """Returns what has a name in the staging directory, or None."""
        try:
            return self._fs.lstat(name, dir_fd=self._stage_fd)
        except FileNotFoundError:
            return None

    def look(self, step: Step) -> tuple[int, bytes, os.stat_result | None]:
        """Returns the directory of a path, its name there, and what is at it."""
        directory, name = treepath.split(step.path)
        try:
            fd = self._chain.open(directory)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                raise conflict(step.path) from error
            raise
        try:
            return fd, name, self._fs.lstat(name, dir_fd=fd)
        except FileNotFoundError:
            return fd, name, None

    def is_done(self, step: Step) -> bool:
        """Returns whether a step that moves something was done.

        What is put is no longer staged; what is removed is kept aside.
        """
        staged = self.staged(step.staged)
        if step.action == Action.PUT:
            return staged is None or staged.st_ino != step.inode
        return staged is not None

    def expect(self, step: Step, *, with_ctime: bool) -> tuple[int, bytes, os.stat_result | None]:
        """Returns what :meth:`look` does; raises Conflict unless it is what the plan saw.

        ``with_ctime`` holds for files with several names too, as long as no step
        was done.
        """
        fd, name, found = self.look(step)
        seen = key_of(found) if found is not None else None
        expected = step.before
        if (
            seen is not None
            and expected is not None
            and not with_ctime
            and expected.inode in self._shared_inodes
        ):
            seen = seen._replace(ctime_ns=expected.ctime_ns)
        if seen != expected:
            raise conflict(step.path)
        return fd, name, found

    def refuse_protected(
        self, step: Step, fd: int, name: bytes, found: os.stat_result | None
    ) -> None:
        """Raises OperationFailed for what is immutable or append-only at a path or below it.

        The last three are what :meth:`look` has just returned. Each directory is asked for once.
        """
        directory = treepath.split(step.path)[0]
        if directory not in self._open_directories:
            if self._fs.is_protected(fd):
                raise protected(directory)
            self._open_directories.add(directory)
        if found is None:
            return
        if self._fs.is_protected(name, dir_fd=fd):
            raise protected(step.path)
        if stat_module.S_ISDIR(found.st_mode):
            below = self._fs.open(name, OPEN_DIRECTORY, dir_fd=fd)
            try:
                refuse_protected_below(self._fs, below, step.path)
            finally:
                self._fs.close(below)

    def check_aside(self, step: Step) -> None:
        """Raises Conflict if what was moved aside is not what was seen."""
        before = step.before
        assert before is not None
        aside = step.staged
        found = self.staged(aside)
        if found is None:
            aside = aside_name(step.staged)
            found = self.staged(aside)
        same = found is not None and _moved(key_of(found)) == _moved(before)
        if same and stat_module.S_ISDIR(before.mode):
            moved = self._fs.open(aside, OPEN_DIRECTORY, dir_fd=self._stage_fd)
            try:
                same = self._unchanged_below(moved, step.path)
            finally:
                self._fs.close(moved)
        if not same:
            raise conflict(step.path)


def _moved(key: FileKey) -> FileKey:
    """Returns what moving leaves as it was.

    A directory may have got permissions for it, and its size is that of its names,
    which are compared on their own. XFS changes its time when it is exchanged.
    """
    if stat_module.S_ISDIR(key.mode):
        return key._replace(mode=key.mode | 0o700, size=0, mtime_ns=0, ctime_ns=0)
    return key._replace(ctime_ns=0)


@contextmanager
def blaming(path: bytes) -> Iterator[None]:
    """Lets an error of the system name the path in the tree, not one on the way."""
    try:
        yield
    except OSError as error:
        error.filename = os.fsdecode(path)
        raise


def conflict(path: bytes) -> Conflict:
    """Returns the error for a path that somebody else changed."""
    return Conflict(f"{shown(path)!r} was changed by somebody else meanwhile", path=path)
