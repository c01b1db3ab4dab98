"""Applying a restore: steps, each of which can be taken back.

What was at a path is kept aside in the staging directory until every step is done
and durable; until then all of it can be taken back. After a crash nothing here is
taken up again: the restore is planned anew (ops/recover.py).

Each path is looked at just before it is touched, and what was moved aside is
looked at again afterwards, so that a change by somebody else is noticed whenever
it comes. All moves are renames: a path has its old content or its new content at
every instant.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

from treesnap import treepath
from treesnap.codec.journal import Finish
from treesnap.errors import Conflict, shown
from treesnap.fs.base import FileSystem
from treesnap.model import Entry, EntryKind, Xattrs
from treesnap.worktree.attributes import apply_metadata, apply_owner, apply_xattrs, path_of
from treesnap.worktree.directory import NO_DIRECTORY, OPEN_DIRECTORY, DirectoryChain
from treesnap.worktree.finish import Finisher, opened_for_metadata
from treesnap.worktree.step import Action, Step, aside_name, key_of

_CANNOT_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
_DENIED = frozenset({errno.EACCES, errno.EPERM})

UnchangedBelow = Callable[[int, bytes], bool]
"""Whether an open directory still holds what was seen at a path."""


class Applier:
    """Carries out, or takes back, the steps of one restore. Use as a context manager.

    The descriptors belong to the caller. With ``touch`` the modification times of
    what changes become the present.
    """

    def __init__(
        self,
        fs: FileSystem,
        root_fd: int,
        stage_fd: int,
        directories: Sequence[Finish],
        xattrs: Callable[[Entry], Xattrs],
        steps: Sequence[Step],
        unchanged_below: UnchangedBelow,
        *,
        touch: bool = False,
    ) -> None:
        self._fs = fs
        self._stage_fd = stage_fd
        self._steps = steps
        self._xattrs = xattrs
        self._unchanged_below = unchanged_below
        self._touch = touch
        self._chain = DirectoryChain(fs, root_fd)
        self._finisher = Finisher(fs, self._chain, directories, xattrs, touch=touch)
        inodes = Counter(step.before.inode for step in steps if step.before is not None)
        self._shared_inodes = {inode for inode, count in inodes.items() if count > 1}
        """Inodes of which several names are concerned: a step on one changes the ctime of all."""
        self._changed_inodes: set[int] = set()
        """Inodes whose metadata was changed in place, under whichever of their names."""
        self.left: list[bytes] = []
        """Paths that were not taken back, because somebody else changed them."""

    @property
    def denied(self) -> list[bytes]:
        """Directories of others, whose metadata only they may put back."""
        return self._finisher.denied

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._chain.forget()

    def check(self) -> None:
        """Raises Conflict unless every path still is what the plan saw; nothing is done yet."""
        for step in self._steps:
            self._expect(step, with_ctime=True)

    def apply(self) -> None:
        """Does every step; raises Conflict or OSError."""
        for step in self._steps:
            if step.action == Action.METADATA:
                self._change_metadata_once(step)
            else:
                self._expect(step, with_ctime=False)
                self._move(step)
        self._finish(forward=True)

    def roll_back(self) -> None:
        """Undoes every step that was done; raises OSError.

        What somebody else changed meanwhile is newer than both states and stays; see
        ``left``. The state before is in the safety snapshot.
        """
        for step in reversed(self._steps):
            try:
                if step.action == Action.METADATA:
                    self._take_back_metadata(step)
                elif step.action == Action.PUT:
                    self._take_back_put(step)
                else:
                    self._take_back_removal(step)
            except Conflict:
                self.left.append(step.path)
        self._finish(forward=False)

    def _stat_staged(self, name: bytes) -> os.stat_result | None:
        try:
            return self._fs.lstat(name, dir_fd=self._stage_fd)
        except FileNotFoundError:
            return None

    def _stat(self, step: Step) -> tuple[int, bytes, os.stat_result | None]:
        """Returns the directory of a path, its name there, and what is at it."""
        directory, name = treepath.split(step.path)
        try:
            fd = self._chain.open(directory)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                raise _conflict(step.path) from error
            raise
        try:
            return fd, name, self._fs.lstat(name, dir_fd=fd)
        except FileNotFoundError:
            return fd, name, None

    def _is_done(self, step: Step) -> bool:
        """Returns whether a step that moves something was done.

        What is put is no longer staged; what is removed is kept aside.
        """
        staged = self._stat_staged(step.staged)
        if step.action == Action.PUT:
            return staged is None or staged.st_ino != step.inode
        return staged is not None

    def _expect(self, step: Step, *, with_ctime: bool) -> None:
        """Raises Conflict unless a path is what the plan saw.

        ``with_ctime`` holds for files with several names too, as long as no step
        was done.
        """
        _, _, found = self._stat(step)
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
            raise _conflict(step.path)

    def _move(self, step: Step) -> None:
        """Puts or removes one path, and looks at what was moved aside."""
        fd, name, found = self._stat(step)
        if step.action == Action.REMOVE:
            self._permitted(step, fd, lambda: self._rename_out(fd, name, step.staged), found)
            self._check_aside(step, step.staged)
        elif found is None:
            self._permitted(step, fd, lambda: self._rename_in(step, fd, name), None)
        else:
            self._permitted(step, fd, lambda: self._replace(step, fd, name), found)
            aside = aside_name(step.staged)
            self._check_aside(step, step.staged if self._stat_staged(aside) is None else aside)

    def _rename_out(self, fd: int, name: bytes, staged: bytes) -> None:
        self._fs.rename_to_absent(name, staged, source_dir_fd=fd, target_dir_fd=self._stage_fd)

    def _rename_in(self, step: Step, fd: int, name: bytes) -> None:
        try:
            self._fs.rename_to_absent(
                step.staged, name, source_dir_fd=self._stage_fd, target_dir_fd=fd
            )
        except FileExistsError as error:
            raise _conflict(step.path) from error

    def _rename_back(self, staged: bytes, fd: int, name: bytes) -> None:
        self._fs.rename_to_absent(staged, name, source_dir_fd=self._stage_fd, target_dir_fd=fd)

    def _exchange(self, step: Step, fd: int, name: bytes) -> None:
        self._fs.exchange(step.staged, name, source_dir_fd=self._stage_fd, target_dir_fd=fd)

    def _replace(self, step: Step, fd: int, name: bytes) -> None:
        try:
            self._exchange(step, fd, name)
        except OSError as error:
            if error.errno not in _CANNOT_EXCHANGE:
                raise
            self._rename_out(fd, name, aside_name(step.staged))
            self._rename_in(step, fd, name)

    def _permitted(
        self, step: Step, fd: int, move: Callable[[], None], found: os.stat_result | None
    ) -> None:
        """Does a move; gives its owner write permission on the directories first if need be.

        The permission is taken away again with the final metadata of the parent,
        and by taking the step back.
        """
        try:
            move()
        except OSError as error:
            if error.errno not in _DENIED:
                raise
            own = self._fs.fstat(fd)
            self._fs.change_mode(fd, stat_module.S_IMODE(own.st_mode) | 0o700)
            if found is not None and stat_module.S_ISDIR(found.st_mode):
                name = treepath.split(step.path)[1]
                with opened_for_metadata(self._fs, name, fd) as moved:
                    self._fs.change_mode(moved, stat_module.S_IMODE(found.st_mode) | 0o700)
            move()

    def _check_aside(self, step: Step, aside: bytes) -> None:
        """Takes a move back and raises Conflict if what was moved aside is not what was seen."""
        before = step.before
        found = self._stat_staged(aside)
        assert before is not None
        mode_mask = ~0o700 if stat_module.S_ISDIR(before.mode) else ~0
        same = found is not None and (
            found.st_mode & mode_mask,
            found.st_mtime_ns,
            found.st_ino,
            found.st_dev,
        ) == (before.mode & mode_mask, before.mtime_ns, before.inode, before.device)
        if same and stat_module.S_ISREG(before.mode):
            same = found is not None and found.st_size == before.size
        if same and stat_module.S_ISDIR(before.mode):
            moved = self._fs.open(aside, OPEN_DIRECTORY, dir_fd=self._stage_fd)
            try:
                same = self._unchanged_below(moved, step.path)
            finally:
                self._fs.close(moved)
        if not same:
            raise _conflict(step.path)

    def _take_back_put(self, step: Step) -> None:
        fd, name, found = self._stat(step)
        is_aside = self._stat_staged(aside_name(step.staged)) is not None
        if not self._is_done(step) and not is_aside:
            self._give_mode_back(step, fd, name, found)
            return
        if found is not None and found.st_ino != step.inode:
            raise _conflict(step.path)
        kept = aside_name(step.staged) if is_aside else step.staged
        if step.before is None or is_aside:
            if found is not None:
                self._permitted(step, fd, lambda: self._rename_out(fd, name, step.staged), found)
            if step.before is not None:
                self._permitted(step, fd, lambda: self._rename_back(kept, fd, name), None)
        elif found is not None:
            self._permitted(step, fd, lambda: self._exchange(step, fd, name), found)
        else:
            self._permitted(step, fd, lambda: self._rename_back(kept, fd, name), None)
        self._give_mode_back(step, fd, name, self._stat(step)[2])

    def _take_back_removal(self, step: Step) -> None:
        fd, name, found = self._stat(step)
        if self._is_done(step):
            if found is not None:
                raise _conflict(step.path)
            self._permitted(step, fd, lambda: self._rename_back(step.staged, fd, name), None)
            found = self._stat(step)[2]
        self._give_mode_back(step, fd, name, found)

    def _give_mode_back(
        self, step: Step, fd: int, name: bytes, found: os.stat_result | None
    ) -> None:
        """Takes the permissions away again that a directory got for being moved."""
        before = step.before
        if before is None or found is None or not stat_module.S_ISDIR(before.mode):
            return
        if found.st_ino == before.inode and found.st_mode != before.mode:
            with opened_for_metadata(self._fs, name, fd) as moved:
                self._fs.change_mode(moved, stat_module.S_IMODE(before.mode))

    def _change_metadata_once(self, step: Step) -> None:
        """Changes metadata in place, of a file with several names under the first of them."""
        assert step.before is not None
        if step.before.inode not in self._changed_inodes:
            self._expect(step, with_ctime=False)
            self._changed_inodes.add(step.before.inode)
            self._change_metadata(step, step.new)

    def _take_back_metadata(self, step: Step) -> None:
        """Puts metadata back; what was written to by somebody else keeps its time."""
        assert step.before is not None
        assert step.old is not None
        assert step.new is not None
        if step.before.inode not in self._changed_inodes:
            return
        found = self._stat(step)[2]
        known = {step.old.mtime_ns, step.new.mtime_ns}
        if found is not None and (
            found.st_size != step.before.size or found.st_mtime_ns not in known
        ):
            raise _conflict(step.path)
        self._change_metadata(step, step.old)

    def _change_metadata(self, step: Step, wanted: Entry | None) -> None:
        """Changes metadata in place; does nothing when another file is there by now."""
        fd, name, found = self._stat(step)
        assert wanted is not None
        assert step.before is not None
        if found is None or found.st_ino != step.before.inode:
            return
        touch = self._touch and wanted is step.new
        if wanted.kind == EntryKind.SYMLINK:
            apply_owner(self._fs, name, wanted.uid, wanted.gid, dir_fd=fd)
            apply_xattrs(self._fs, path_of(fd, name), self._xattrs(wanted))
            if not touch:
                self._fs.change_times(name, wanted.mtime_ns, dir_fd=fd)
            return
        with opened_for_metadata(self._fs, name, fd) as opened:
            if self._fs.fstat(opened).st_ino == step.before.inode:
                apply_metadata(self._fs, opened, wanted, self._xattrs(wanted), touch=touch)

    def _finish(self, *, forward: bool) -> None:
        """Gives all directories but the root their final metadata."""
        if forward:
            for step in self._steps:
                self._finish_put(step)
        self._finisher.finish(forward=forward)

    def _finish_put(self, step: Step) -> None:
        """Gives a directory that was put the permissions that it could not be moved with."""
        if step.action == Action.PUT and step.new is not None:
            fd, name, found = self._stat(step)
            if found is not None and found.st_ino == step.inode:
                with opened_for_metadata(self._fs, name, fd) as opened:
                    self._fs.change_mode(opened, step.new.mode)


def _conflict(path: bytes) -> Conflict:
    return Conflict(f"{shown(path)!r} was changed by somebody else meanwhile", path=path)
