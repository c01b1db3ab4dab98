"""Applying a restore: steps, each of which can be undone.

What was at a path is kept aside in the staging directory until every step is done
and durable; until then all of it can be undone. After a crash nothing here is
used again: the restore is planned again (ops/restore/recover.py).

Each path is looked at just before it is touched, and what was moved aside is
looked at again afterwards, so that a change by another process is noticed whenever
it comes. All moves are renames: a path has its old content or its new content at
every instant. Directories get their final metadata last, when nothing in them moves any more.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from treesnap.core.codec.journal import Finish
from treesnap.core.fs.base import FileSystem, Unsupported
from treesnap.core.fs.processes import descriptors, open_file_identity, program_of
from treesnap.core.fs.record_locks import close_after_reading, opened_any
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, Xattrs
from treesnap.core.model.errors import Conflict
from treesnap.core.model.results import OpenFile
from treesnap.core.model.type_names import Self
from treesnap.core.worktree.apply.preconditions import (
    Expected,
    Preconditions,
    blaming,
    conflict,
)
from treesnap.core.worktree.apply.step import Action, FileIdentity, RestoreStep, aside_name
from treesnap.core.worktree.attributes import (
    apply_by_name,
    apply_metadata,
    apply_owner,
    apply_xattrs,
    read_xattrs,
)
from treesnap.core.worktree.directory import DirectoryChain

_DENIED = frozenset({errno.EACCES, errno.EPERM})


class Applier:
    """Carries out, or undoes, the steps of one restore. Use as a context manager.

    ``stages`` has a descriptor of each staging directory, by the directory that holds it.
    The descriptors belong to the caller. ``directories`` get their final metadata in the end. With
    ``touch`` the modification times of what changes become the present.
    """

    def __init__(
        self,
        fs: FileSystem,
        root_fd: int,
        stages: Mapping[bytes, int],
        steps: Sequence[RestoreStep],
        directories: Sequence[Finish],
        expected: Expected,
        *,
        xattrs: Callable[[Entry], Xattrs],
        touch: bool,
    ) -> None:
        self._fs = fs
        self.stages = stages
        self._steps = list(steps)
        self._xattrs = xattrs
        self._touch = touch
        self._chain = DirectoryChain(fs, root_fd)
        self._preconditions = Preconditions(fs, self._chain, stages, self._steps, expected)
        self._finisher = Finisher(fs, self._chain, directories, xattrs, touch=touch)
        self._changed_files: dict[FileIdentity, int] = {}
        """Files whose metadata was changed in place, under whichever of their names."""
        self._degraded: list[bytes] = []
        self.left: list[bytes] = []
        """Paths that were not undone, because another process changed them."""

    @property
    def denied(self) -> list[bytes]:
        """Directories of other users; only their owners can restore the metadata."""
        return self._finisher.denied

    @property
    def degraded(self) -> list[bytes]:
        """Paths whose owner or privileged attributes were not permitted to be put back."""
        return [*self._degraded, *self._finisher.degraded]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._chain.forget()

    def check(self) -> None:
        """Raises Conflict unless every path still is what the plan saw; nothing is done yet.

        Raises OperationFailed for what not even its owner may move or remove.
        """
        self._preconditions.refuse_one_name(self._steps)
        for number, step in enumerate(self._steps):
            with blaming(step.path):
                self._steps[number], looked_up = self._preconditions.expect(step, with_ctime=True)
                self._preconditions.refuse_protected(step, *looked_up)
        # Where names are folded, one that goes has to make way for its other spelling.
        self._steps.sort(key=lambda step: step.path not in self._preconditions.in_the_way)
        self._preconditions.note(self._steps)

    def apply(self) -> None:
        """Does every step; raises Conflict or OSError."""
        for number, step in enumerate(self._steps):
            with blaming(step.path):
                if step.action == Action.METADATA:
                    self._change_metadata_once(number)
                else:
                    self._move(*self._expected(number))
        self._finish(forward=True)

    def _expected(self, number: int) -> tuple[RestoreStep, int, bytes, os.stat_result | None]:
        """Returns a step and what is at its path, which is what the plan saw."""
        step, looked_up = self._preconditions.expect(self._steps[number], with_ctime=False)
        self._steps[number] = step
        return step, *looked_up

    def check_aside(self) -> None:
        """Raises Conflict if something that was put or moved aside was changed since.

        The paths are looked up again: a directory may have been moved away, and with it
        what was put there.
        """
        self._chain.forget()
        for step in self._steps:
            with blaming(step.path):
                if step.action == Action.PUT:
                    status = self._preconditions.look(step)[2]
                    if status is None or status.st_ino != step.inode:
                        raise conflict(step.path)
                if step.action != Action.METADATA and step.before is not None:
                    self._preconditions.check_aside(step, is_last=True)

    def roll_back(self) -> None:
        """Undoes every step that was done; raises OSError.

        What another process changed meanwhile is newer than both states and stays; see
        ``left``. The state before is in the safety snapshot.
        """
        self._degraded.clear()
        self._finisher.degraded.clear()
        for step in reversed(self._steps):
            try:
                with blaming(step.path):
                    if step.action == Action.METADATA:
                        self._undo_metadata(step)
                    elif step.action == Action.PUT:
                        self._undo_put(step)
                    else:
                        self._undo_removal(step)
            except Conflict:
                self.left.append(step.path)
        self._finish(forward=False)

    def _move(self, step: RestoreStep, fd: int, name: bytes, status: os.stat_result | None) -> None:
        """Puts or removes one path, and looks at what was moved aside."""
        if step.action == Action.REMOVE:
            self._permitted(step, fd, lambda: self._rename_out(step, fd, name, step.staged), status)
            self._preconditions.check_aside(step, is_last=False)
        elif status is None:
            self._permitted(step, fd, lambda: self._rename_in(step, fd, name), None)
        else:
            self._permitted(step, fd, lambda: self._replace(step, fd, name), status)
            self._preconditions.check_aside(step, is_last=False)

    def _rename_out(self, step: RestoreStep, fd: int, name: bytes, staged: bytes) -> None:
        stage_fd = self.stages[step.stage]
        self._fs.rename_to_absent(name, staged, source_dir_fd=fd, target_dir_fd=stage_fd)

    def _rename_in(self, step: RestoreStep, fd: int, name: bytes) -> None:
        try:
            self._rename_back(step, step.staged, fd, name)
        except FileExistsError as error:
            raise conflict(step.path) from error

    def _rename_back(self, step: RestoreStep, staged: bytes, fd: int, name: bytes) -> None:
        stage_fd = self.stages[step.stage]
        self._fs.rename_to_absent(staged, name, source_dir_fd=stage_fd, target_dir_fd=fd)

    def _exchange(self, step: RestoreStep, fd: int, name: bytes) -> None:
        stage_fd = self.stages[step.stage]
        self._fs.exchange(step.staged, name, source_dir_fd=stage_fd, target_dir_fd=fd)

    def _replace(self, step: RestoreStep, fd: int, name: bytes) -> None:
        try:
            self._exchange(step, fd, name)
        except Unsupported:
            self._rename_out(step, fd, name, aside_name(step.staged))
            self._rename_in(step, fd, name)

    def _permitted(
        self, step: RestoreStep, fd: int, move: Callable[[], None], status: os.stat_result | None
    ) -> None:
        """Does a move; gives its owner write permission on the directories first if need be.

        The permission is taken away again with the final metadata of the parent,
        and when the step is undone.
        """
        try:
            move()
        except OSError as error:
            if error.errno not in _DENIED:
                raise
            try:
                self._permit(step, fd, status)
            except OSError:
                raise error from None
            move()

    def _permit(self, step: RestoreStep, fd: int, status: os.stat_result | None) -> None:
        own = self._fs.fstat(fd)
        self._fs.change_mode(fd, stat_module.S_IMODE(own.st_mode) | 0o700)
        if status is not None and stat_module.S_ISDIR(status.st_mode):
            name = treepath.split(step.path)[1]
            with self._opened_same(step.path, fd, name, status) as moved:
                self._fs.change_mode(moved, stat_module.S_IMODE(status.st_mode) | 0o700)

    def _undo_put(self, step: RestoreStep) -> None:
        fd, name, status = self._preconditions.look(step)
        is_aside = self._preconditions.staged(step, aside_name(step.staged)) is not None
        if not self._preconditions.is_done(step) and not is_aside:
            self._give_mode_back(step, fd, name, status)
            return
        if status is not None and status.st_ino != step.inode:
            raise conflict(step.path)
        kept = aside_name(step.staged) if is_aside else step.staged
        if step.before is None or is_aside:
            if status is not None:
                self._permitted(
                    step, fd, lambda: self._rename_out(step, fd, name, step.staged), status
                )
            if step.before is not None:
                self._permitted(step, fd, lambda: self._rename_back(step, kept, fd, name), None)
        elif status is not None:
            self._permitted(step, fd, lambda: self._exchange(step, fd, name), status)
        else:
            self._permitted(step, fd, lambda: self._rename_back(step, kept, fd, name), None)
        self._give_mode_back(step, fd, name, self._preconditions.look(step)[2])

    def _undo_removal(self, step: RestoreStep) -> None:
        fd, name, status = self._preconditions.look(step)
        if self._preconditions.is_done(step):
            if status is not None:
                raise conflict(step.path)
            self._permitted(step, fd, lambda: self._rename_back(step, step.staged, fd, name), None)
            status = self._preconditions.look(step)[2]
        self._give_mode_back(step, fd, name, status)

    def _give_mode_back(
        self, step: RestoreStep, fd: int, name: bytes, status: os.stat_result | None
    ) -> None:
        """Gives a directory that was moved away and back the mode that this took from it."""
        before = step.before
        if before is None or status is None or not stat_module.S_ISDIR(before.mode):
            return
        if status.st_ino == before.inode:
            mode = stat_module.S_IMODE(before.mode)
            self._give_back(step.path, fd, name, status, mode, before.mtime_ns)

    def _change_metadata_once(self, number: int) -> None:
        """Changes metadata in place, of a file with several names under the first of them."""
        before = self._steps[number].before
        assert before is not None
        if before.identity not in self._changed_files:
            step, *_ = self._expected(number)
            assert step.before is not None
            self._changed_files[step.before.identity] = step.before.inode
            self._change_metadata(step, step.new)

    def _undo_metadata(self, step: RestoreStep) -> None:
        """Puts metadata back; a file that another process wrote to keeps its time."""
        assert step.before is not None
        assert step.old is not None
        assert step.new is not None
        if step.before.identity not in self._changed_files:
            return
        status = self._preconditions.look(step)[2]
        own_times_ns = {step.old.mtime_ns, step.new.mtime_ns}
        if status is not None and (
            status.st_size != step.before.size or status.st_mtime_ns not in own_times_ns
        ):
            raise conflict(step.path)
        self._change_metadata(step, step.old)

    def _change_metadata(self, step: RestoreStep, entry: Entry | None) -> None:
        """Changes metadata in place; does nothing when another file is there by now."""
        fd, name, status = self._preconditions.look(step)
        assert entry is not None
        assert step.before is not None
        inode = self._changed_files[step.before.identity]
        if status is None or status.st_ino != inode:
            return
        touch = self._touch and entry is step.new
        xattrs = self._xattrs(entry)
        try:
            opened = self._fs.open_any(name, dir_fd=fd)
        except Unsupported:  # a link or a device, where only its name leads to it
            if not apply_by_name(self._fs, (fd, name), entry, xattrs, touch=touch):
                self._degraded.append(step.path)
            return
        try:
            if self._fs.fstat(opened).st_ino != inode:
                return
            if entry.kind == EntryKind.SYMLINK:
                permitted = apply_owner(self._fs, opened, entry.uid, entry.gid)
                permitted &= apply_xattrs(self._fs, opened, xattrs)
                if not permitted:
                    self._degraded.append(step.path)
                if not touch:
                    self._fs.change_times(opened, entry.mtime_ns)
            else:
                try:
                    if not apply_metadata(self._fs, opened, entry, xattrs, touch=touch):
                        self._degraded.append(step.path)
                finally:
                    # An overlay copies a file of a lower layer up when it is changed.
                    now = self._fs.fstat(opened).st_ino
                    self._changed_files[step.before.identity] = now
        finally:
            close_after_reading(self._fs, opened)

    def _finish(self, *, forward: bool) -> None:
        """Gives all directories but the root their final metadata."""
        if forward:
            for step in self._steps:
                with blaming(step.path):
                    self._finish_put(step)
        self._finisher.finish(forward=forward)

    def _finish_put(self, step: RestoreStep) -> None:
        """Restores the permissions and the time of a directory, which moving it changed."""
        if step.action != Action.PUT or step.new is None or not step.new.is_directory:
            return
        fd, name, status = self._preconditions.look(step)
        if status is not None and status.st_ino == step.inode:
            mtime_ns = status.st_mtime_ns if self._touch else step.new.mtime_ns
            self._give_back(step.path, fd, name, status, step.new.mode, mtime_ns)

    @contextmanager
    def _opened_same(
        self, path: bytes, fd: int, name: bytes, status: os.stat_result
    ) -> Iterator[int]:
        """Opens what was found under a name; raises Conflict if something else is there by now."""
        with opened_any(self._fs, name, fd) as opened:
            if not os.path.samestat(self._fs.fstat(opened), status):
                raise conflict(path)
            yield opened

    def _give_back(
        self,
        path: bytes,
        fd: int,
        name: bytes,
        status: os.stat_result,
        mode: int,
        mtime_ns: int,
    ) -> None:
        """Gives a directory its permissions and its time, where they are others."""
        if (stat_module.S_IMODE(status.st_mode), status.st_mtime_ns) == (mode, mtime_ns):
            return
        with self._opened_same(path, fd, name, status) as moved:
            if stat_module.S_IMODE(status.st_mode) != mode:
                self._fs.change_mode(moved, mode)
            if status.st_mtime_ns != mtime_ns:
                self._fs.change_times(moved, mtime_ns)


class Finisher:
    """The directories that a restore touches. ``chain`` begins at the root."""

    def __init__(
        self,
        fs: FileSystem,
        chain: DirectoryChain,
        directories: Sequence[Finish],
        xattrs: Callable[[Entry], Xattrs],
        *,
        touch: bool,
    ) -> None:
        self._fs = fs
        self._chain = chain
        self._directories = directories
        self._xattrs = xattrs
        self._touch = touch
        self.denied: list[bytes] = []
        """Directories of other users; only their owners can restore the metadata."""
        self.degraded: list[bytes] = []
        """Directories whose owner or privileged attributes were not permitted to be put back."""

    def finish(self, *, forward: bool) -> None:
        """Gives all directories but the root their metadata, the deepest first.

        The new one, or the old one unless ``forward``. Raises OSError.
        """
        deepest_first = sorted(
            (item for item in self._directories if item.path),
            key=lambda item: len(treepath.components(item.path)),
            reverse=True,
        )
        for item in deepest_first:
            self._finish(item, forward=forward)

    def finish_tops(self, subvolumes: Collection[bytes]) -> None:
        """Gives the root and subvolumes their new metadata, after the staging directories went."""
        for item in self._directories:
            if not item.path or item.path in subvolumes:
                self._finish(item, forward=True)

    def _finish(self, item: Finish, *, forward: bool) -> None:
        fd = self._chain.find(item.path)
        if fd is None:
            return  # changed by another process, which is newer
        entry = item.new if forward else item.old
        touch = self._touch and forward
        try:
            if entry is not None:
                entries = (item.old, item.new or item.old)
                if not apply_directory_metadata(
                    self._fs, fd, entries, entry, self._xattrs, touch=touch
                ):
                    self.degraded.append(item.path)
            elif stat_module.S_IMODE(self._fs.fstat(fd).st_mode) != item.old.mode:
                self._fs.change_mode(fd, item.old.mode)
        except PermissionError as error:
            error.filename = os.fsdecode(item.path) or "."
            is_own = self._fs.fstat(fd).st_uid == os.geteuid()
            if is_own or (forward and item.path and _is_changed(item)):
                raise
            self.denied.append(item.path)


def apply_directory_metadata(
    fs: FileSystem,
    fd: int,
    known: Sequence[Entry],
    target: Entry,
    xattrs: Callable[[Entry], Xattrs],
    *,
    touch: bool = False,
) -> bool:
    """Gives a directory the metadata of an entry, except for what another process has set.

    Returns whether all of it was permitted.

    Permissions, owner and attributes that are none of the known ones were set by
    another process, and stay. The time follows from changes inside, and is always set.
    """
    stat = fs.fstat(fd)
    mode = stat_module.S_IMODE(stat.st_mode)
    if any(mode in (entry.mode, entry.mode | 0o700) for entry in known):
        mode = target.mode
    owner = (stat.st_uid, stat.st_gid)
    if any(owner == (entry.uid, entry.gid) for entry in known):
        owner = (target.uid, target.gid)
    attributes = read_xattrs(fs, fd) or ()
    if any(tuple(attributes) == tuple(xattrs(entry)) for entry in known):
        attributes = xattrs(target)
    entry = target._replace(mode=mode, uid=owner[0], gid=owner[1])
    return apply_metadata(fs, fd, entry, attributes, touch=touch)


def _is_changed(item: Finish) -> bool:
    """Returns whether a directory gets other metadata than the time of its last change."""
    _, old, new = item
    if new is None:
        return False
    return old._replace(mtime_ns=0, content=None) != new._replace(
        name=old.name, mtime_ns=0, content=None
    )


def open_files(root: str, steps: Iterable[RestoreStep]) -> tuple[OpenFile, ...]:
    """Returns, by path, which of the files that steps replace or remove are open in processes.

    Such a process still reads and writes the old file, and nothing of that reaches the tree; a
    database whose log is replaced breaks. Restores report the processes and do not wait for them.
    Files in a directory that is removed are found by the path under which they were opened.
    Costs nothing where the steps only make files; otherwise a look at each open file of the
    system, once.
    """
    files, directories = {}, set()
    for step in steps:
        if step.action in (Action.PUT, Action.REMOVE) and step.before is not None:
            if stat_module.S_ISREG(step.before.mode):
                files[step.before.identity] = step.path
            else:
                directories.add(step.path)
    by_path: dict[tuple[bytes, int], OpenFile] = {}
    if files or directories:
        prefix = os.fsencode(root).rstrip(b"/") + b"/"
        for process_id, link in descriptors():
            path = None
            with suppress(OSError):  # it was closed meanwhile
                mode, device, inode = open_file_identity(link)
                if stat_module.S_ISREG(mode):
                    path = files.get((device, inode))
                    if path is None and directories:
                        path = _below(directories, os.readlink(os.fsencode(link)), prefix)
            if path is not None and (path, process_id) not in by_path:
                by_path[path, process_id] = OpenFile(path, process_id, program_of(process_id))
    return tuple(by_path[key] for key in sorted(by_path))


def _below(directories: set[bytes], target: bytes, prefix: bytes) -> bytes | None:
    if not target.startswith(prefix):
        return None
    path = target.removeprefix(prefix)
    return path if any(above in directories for above in treepath.parents(path)) else None
