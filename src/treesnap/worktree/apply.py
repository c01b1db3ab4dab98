"""Applying a restore: steps that can be repeated, and taken back.

Whether a step was done is read off the staging directory: what is put has the
inode that the journal names, so it is either still staged or in place. What is
kept aside is deleted only when every step is done and durable; until then all of
it can be taken back.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from treesnap import treepath
from treesnap.codec.journal import Action, FileKey, Finish, Journal, Step
from treesnap.errors import Conflict, shown
from treesnap.fs.base import FileSystem
from treesnap.model import Entry, EntryKind, Xattrs
from treesnap.worktree.attributes import apply_metadata, apply_owner, apply_xattrs, path_of
from treesnap.worktree.directory import OPEN_DIRECTORY, DirectoryChain

_CANNOT_EXCHANGE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
_OPEN_ANY = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
_NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_DENIED = frozenset({errno.EACCES, errno.EPERM})

UnchangedBelow = Callable[[int, bytes], bool]
"""Whether an open directory still holds what was seen at a path."""


def key_of(stat: os.stat_result) -> FileKey:
    """Returns everything by which a change of a file is noticed."""
    return FileKey(
        stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev
    )


class Applier:
    """Carries out, or takes back, the steps of one journal. Use as a context manager."""

    def __init__(
        self,
        fs: FileSystem,
        root_fd: int,
        stage_fd: int,
        journal: Journal,
        xattrs: Callable[[Entry], Xattrs],
        unchanged_below: UnchangedBelow | None = None,
    ) -> None:
        self._fs = fs
        self._stage_fd = stage_fd
        self._journal = journal
        self._xattrs = xattrs
        self._unchanged_below = unchanged_below
        self._chain = DirectoryChain(fs, root_fd)
        inodes = Counter(step.before.inode for step in journal.steps if step.before is not None)
        self._shared_inodes = {inode for inode, count in inodes.items() if count > 1}
        """Inodes with several names in the journal: a step on one changes the ctime of all."""
        self.left: list[bytes] = []
        """Paths that were not taken back, because somebody else changed them."""
        self.denied: list[bytes] = []
        """Directories of others, whose metadata only they may put back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._chain.forget()

    def check(self) -> None:
        """Raises Conflict unless every path still is what the plan saw; nothing is done yet."""
        for step in self._journal.steps:
            self._expect(step, with_ctime=True)

    def apply(self) -> None:
        """Does every step that is not done; raises Conflict or OSError."""
        for step in self._journal.steps:
            if step.action == Action.METADATA:
                self._change_metadata(step, step.new)
            elif not self._is_done(step):
                self._expect(step, with_ctime=False)
                self._move(step)
        self._finish(forward=True)

    def roll_back(self) -> None:
        """Undoes every step that was done; raises OSError.

        What somebody else changed meanwhile is newer than both states and stays; see
        ``left``. The state before is in the safety snapshot.
        """
        for step in reversed(self._journal.steps):
            try:
                if step.action == Action.METADATA:
                    self._change_metadata(step, step.old)
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
            if error.errno in _NO_DIRECTORY:
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
        if found is None and step.before is not None and self._stat_staged(_aside(step)):
            return
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
            aside = step.staged if self._stat_staged(_aside(step)) is None else _aside(step)
            self._check_aside(step, aside)

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
            self._rename_out(fd, name, _aside(step))
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
        if same and stat_module.S_ISDIR(before.mode) and self._unchanged_below is not None:
            moved = self._fs.open(aside, OPEN_DIRECTORY, dir_fd=self._stage_fd)
            try:
                same = self._unchanged_below(moved, step.path)
            finally:
                self._fs.close(moved)
        if not same:
            raise _conflict(step.path)

    def _take_back_put(self, step: Step) -> None:
        fd, name, found = self._stat(step)
        is_aside = self._stat_staged(_aside(step)) is not None
        if not self._is_done(step) and not is_aside:
            self._give_mode_back(step, fd, name, found)
            return
        if found is not None and found.st_ino != step.inode:
            raise _conflict(step.path)
        kept = _aside(step) if is_aside else step.staged
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

    def _change_metadata(self, step: Step, wanted: Entry | None) -> None:
        """Changes metadata in place; does nothing when another file is there by now."""
        fd, name, found = self._stat(step)
        assert wanted is not None
        assert step.before is not None
        if found is None or found.st_ino != step.before.inode:
            return
        touch = self._journal.touch and wanted is step.new
        if wanted.kind == EntryKind.SYMLINK:
            apply_owner(self._fs, name, wanted.uid, wanted.gid, dir_fd=fd)
            apply_xattrs(self._fs, path_of(fd, name), self._xattrs(wanted))
            if not touch:
                self._fs.change_times(name, wanted.mtime_ns, dir_fd=fd)
            return
        with opened_for_metadata(self._fs, name, fd) as opened:
            if self._fs.fstat(opened).st_ino == step.before.inode:
                apply_metadata(self._fs, opened, wanted, self._xattrs(wanted), touch=touch)

    def finish_root(self) -> None:
        """Gives the root its final metadata, after the staging directory is gone."""
        for finish in self._journal.directories:
            if not finish.path:
                self._finish_directory(finish, forward=True)

    def _finish(self, *, forward: bool) -> None:
        """Gives all directories but the root their final metadata, the deepest first."""
        if forward:
            for step in self._journal.steps:
                self._finish_put(step)
        deepest_first = sorted(
            (item for item in self._journal.directories if item.path),
            key=lambda item: len(treepath.components(item.path)),
            reverse=True,
        )
        for finish in deepest_first:
            self._finish_directory(finish, forward=forward)

    def _finish_put(self, step: Step) -> None:
        """Gives a directory that was put the permissions that it could not be moved with."""
        if step.action == Action.PUT and step.new is not None:
            fd, name, found = self._stat(step)
            if found is not None and found.st_ino == step.inode:
                with opened_for_metadata(self._fs, name, fd) as opened:
                    self._fs.change_mode(opened, step.new.mode)

    def _finish_directory(self, finish: Finish, *, forward: bool) -> None:
        try:
            fd = self._chain.open(finish.path)
        except OSError as error:
            if error.errno in _NO_DIRECTORY:
                return  # somebody else's change, which is newer
            raise
        wanted = finish.new if forward else finish.old
        touch = self._journal.touch and forward
        try:
            if wanted is not None:
                apply_metadata(self._fs, fd, wanted, self._xattrs(wanted), touch=touch)
            elif stat_module.S_IMODE(self._fs.fstat(fd).st_mode) != finish.old.mode:
                self._fs.change_mode(fd, finish.old.mode)
        except PermissionError:
            is_own = self._fs.fstat(fd).st_uid == os.geteuid()
            if is_own or (forward and finish.path and _is_changed(finish)):
                raise
            self.denied.append(finish.path)


def _is_changed(finish: Finish) -> bool:
    """Returns whether a directory gets other metadata than the time of its last change."""
    _, old, new = finish
    if new is None:
        return False
    return old._replace(mtime_ns=0, content=None) != new._replace(
        name=old.name, mtime_ns=0, content=None
    )


@contextmanager
def opened_for_metadata(fs: FileSystem, name: bytes, dir_fd: int) -> Iterator[int]:
    """Opens whatever has a name, permissions or not, without following a link."""
    fd = fs.open(name, _OPEN_ANY, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        fs.close(fd)


def _aside(step: Step) -> bytes:
    """Name of what is kept aside where the file system cannot exchange."""
    return b"a" + step.staged


def _conflict(path: bytes) -> Conflict:
    return Conflict(f"{shown(path)!r} was changed by somebody else meanwhile", path=path)
