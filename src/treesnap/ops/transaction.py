"""One restore in a root: its journal, its staging directory, and its steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from treesnap import treepath
from treesnap.codec.envelope import FileKind
from treesnap.codec.history import HISTORY, decode_history
from treesnap.codec.journal import JOURNAL, Commit, Journal, Subvolume
from treesnap.codec.plan import PLAN_PAYLOAD
from treesnap.codec.reader import TreeReader
from treesnap.errors import (
    Corrupt,
    ErrorCode,
    OperationFailed,
    Refused,
    TreesnapError,
    shown,
)
from treesnap.fs.durable import Prepared, sync_directory
from treesnap.fs.failure import error_text
from treesnap.model import Entry
from treesnap.ops.access import Opened
from treesnap.ops.rescue import rescue
from treesnap.ops.state import State
from treesnap.ops.steps import Steps, Work
from treesnap.store.layout import plan_file_name
from treesnap.store.reserve import Reserve
from treesnap.worktree.apply import Applier
from treesnap.worktree.directory import (
    NO_DIRECTORY,
    OPEN_DIRECTORY,
    DirectoryChain,
    path_of_root,
)
from treesnap.worktree.finish import Finisher, settle
from treesnap.worktree.removal import refuse_protected
from treesnap.worktree.staging import (
    StagePlaces,
    new_stage_name,
    release,
    remove_stages,
    stage_places,
)

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle
    from treesnap.results import OpenFile

_Result = TypeVar("_Result")
_SHOWN_MAX = 5
"""Paths named in one remark."""


class _Prepared(NamedTuple):
    """Small files that take their names when a restore is done."""

    history: Prepared
    plan: Prepared | None


class Transaction:
    """The journal of one root, and what follows from it. The caller holds the root's lock.

    ``journal`` is the one that a crash left, for going on with it.
    """

    def __init__(self, handle: Handle, pair: Opened, journal: Journal | None = None) -> None:
        self._handle = handle
        self._fs = handle.fs
        self._pair = pair
        self._xattrs = TreeReader(pair.store.get).xattrs
        self._journal = journal

    def _write(self, journal: Journal) -> None:
        """Replaces the journal; on a full disk in the place of the store's reserve."""
        self._backed(lambda: self._pair.root.write("journal", JOURNAL, journal))
        self._journal = journal

    def _backed(self, write: Callable[[], _Result]) -> _Result:
        return Reserve(self._fs, self._pair.store.layout).backs(write)

    def _begin(self, root_before: Entry | None, subvolumes: tuple[Subvolume, ...] = ()) -> None:
        """Writes the journal that takes everything back; :meth:`abandon` removes it again.

        Raises Refused while an earlier restore is not tidied up after: its staging
        directory is found through its journal only.
        """
        if root_before is not None and self._pair.root.is_interrupted:
            raise Refused(
                "An earlier restore of this root is not tidied up after yet",
                code=ErrorCode.RESTORE_INTERRUPTED,
                path=self._handle.root,
            )
        held = self._handle.root if root_before else os.path.dirname(self._handle.root)
        stat = self._fs.lstat(held)
        self._journal = Journal(
            root_id=self._pair.root.id,
            stage_name=new_stage_name(),
            root_before=root_before,
            device=stat.st_dev,
            inode=stat.st_ino if root_before else None,
            started_at_ns=self._handle.clock_ns(),
            subvolumes=subvolumes,
        )
        self._write(self._journal)

    def ensure_root(self) -> None:
        """Makes the root when it is absent; a crash from here on removes it again."""
        if not os.path.lexists(self._handle.root):
            self._begin(None)
            self._fs.make_directory(self._handle.root)
            sync_directory(self._fs, os.path.dirname(self._handle.root))

    def abandon(self, root_fd: int | None = None) -> None:
        """Ends a transaction that was not committed; does nothing when none was begun."""
        if self._journal is not None and self._journal.commit is None:
            self.give_up(root_fd)

    def run(self, work: Work, commit: Commit) -> tuple[OpenFile, ...]:
        """Stages, commits and applies a plan; returns which of the replaced files were open.

        When this raises, the tree is as it was before, or the journal is left for
        the next operation to finish.
        """
        steps = Steps(self._handle, self._pair, work, commit.paths)
        with self._opened_root() as root_fd:
            places = stage_places(self._fs, root_fd, work.plan.touched)
            subvolumes = self._subvolumes(work, places)
            commit = replace(commit, directories=work.plan.finishes)
            if self._journal is None:
                self._begin(work.current.root, subvolumes)
            try:
                self._run(root_fd, steps, places, commit)
            except BaseException:
                # Through the open root: by its path it may not be found any more.
                self.abandon(root_fd)
                raise
        self._remark_degraded(steps.degraded)
        return steps.open_files

    def _run(self, root_fd: int, steps: Steps, places: StagePlaces, commit: Commit) -> None:
        assert self._journal is not None
        journal = self._committed(root_fd, commit)
        with self._prepared(commit) as prepared:
            with steps.staged(root_fd, journal.stage_name, places) as applier:
                self._commit(journal)
                self._apply(root_fd, applier, journal, prepared)
            self._end_or_remark(root_fd, prepared)

    def run_without_files(self, current: State, commit: Commit) -> None:
        """Commits a restore of which nothing but history and plan are to change.

        When this raises, neither has changed, or the journal is left for the next operation.
        """
        assert not commit.paths
        if self._journal is None:
            self._begin(current.root)
        assert self._journal is not None
        with self._opened_root() as root_fd, self._prepared(commit) as prepared:
            journal = self._committed(root_fd, commit)
            self._commit(journal)
            self._note_finished(journal, prepared)
            self._end_or_remark(root_fd, prepared)

    def resume_without_files(self, root_fd: int) -> None:
        """Finishes what :meth:`run_without_files` began."""
        assert self._journal is not None
        assert self._journal.commit is not None
        with self._prepared(self._journal.commit) as prepared:
            self._note_finished(self._journal, prepared)
            self.end(root_fd, prepared)

    def _committed(self, root_fd: int, commit: Commit) -> Journal:
        """Returns the journal with a commit, and with the root that was perhaps made meanwhile."""
        assert self._journal is not None
        stat = self._fs.fstat(root_fd)
        return replace(self._journal, device=stat.st_dev, inode=stat.st_ino, commit=commit)

    def _end_or_remark(self, root_fd: int, prepared: _Prepared) -> None:
        try:
            self.end(root_fd, prepared)
        except (TreesnapError, OSError) as error:
            self._handle.monitor.remark(
                f"The restore is done, but not cleaned up after ({error_text(error)}); "
                "the next command on this root goes on with that"
            )

    def commit_in_place(self, work: Work, commit: Commit) -> Journal:
        """Commits a plan of which nothing is staged; what it removes first is not kept aside.

        The tree is as it was when this returns, or raises. From then on a recovery carries the
        journal out, whichever process does that. Raises OperationFailed for what not even its
        owner may remove.
        """
        with self._opened_root() as root_fd:
            refuse_protected(self._fs, root_fd, work.plan.removed)
            places = stage_places(self._fs, root_fd, work.plan.touched)
            subvolumes = self._subvolumes(work, places)
            if self._journal is None:
                self._begin(work.current.root, subvolumes)
            assert self._journal is not None
            commit = replace(commit, directories=work.plan.finishes)
            self._write(self._committed(root_fd, commit))
        return self._journal

    def resume(self, work: Work, *, forward: bool) -> None:
        """Carries a plan out under a journal that was committed before.

        There is no staging directory any more. ``forward`` says whether the plan
        finishes the restore or takes it back. When this raises, the journal is left,
        and the tree is still between both states.
        """
        journal = self._journal
        assert journal is not None
        assert journal.commit is not None
        commit = journal.commit
        steps = Steps(self._handle, self._pair, work, commit.paths)
        with self._opened_root() as root_fd, self._prepared(commit) as prepared:
            places = stage_places(self._fs, root_fd, work.plan.touched)
            known = {item.path: item for item in journal.subvolumes}
            new = [item for item in self._subvolumes(work, places) if item.path not in known]
            if new:
                journal = replace(journal, subvolumes=(*journal.subvolumes, *new))
                self._write(journal)
            with steps.staged(root_fd, journal.stage_name, places) as applier:
                self._carry_out(root_fd, applier)
                if forward:
                    self._note_finished(journal, prepared)
                self._remark_denied(applier.denied)
            if forward:
                self.end(root_fd, prepared)
            else:
                self.give_up(root_fd)
        self._remark_degraded(steps.degraded)

    def _subvolumes(self, work: Work, places: StagePlaces) -> tuple[Subvolume, ...]:
        """Returns the subvolumes in which something is staged, and notes that in the plan.

        The staging directory changes the time of the directory that holds it.
        """
        found = []
        for path in places.subvolumes:
            before = work.current.entry(path)
            if before is not None:
                work.plan.directories.setdefault(path, (before, before))
                found.append(Subvolume(path, before))
        return tuple(found)

    @contextmanager
    def _opened_root(self) -> Iterator[int]:
        root_fd = self._fs.open(self._handle.root, OPEN_DIRECTORY)
        try:
            yield root_fd
        finally:
            self._fs.close(root_fd)

    @contextmanager
    def _prepared(self, commit: Commit) -> Iterator[_Prepared]:
        """Writes the history and the plan aside: behind the commit point, their names need
        no space.
        """
        root, plan = self._pair.root, commit.plan
        with ExitStack() as stack:
            decoded = decode_history(commit.history)
            history = self._backed(lambda: root.prepare("history", HISTORY, decoded))
            stack.callback(history.discard)
            moved = None
            if plan is not None:
                moved = root.prepare(plan_file_name(plan.plan_id), PLAN_PAYLOAD, plan.payload)
                stack.callback(moved.discard)
            yield _Prepared(history, moved)

    def _commit(self, journal: Journal) -> None:
        """Writes the journal that must be carried out.

        When that fails, nobody knows which journal a power cut would leave, so the
        one that takes everything back is written again before anything is removed.
        """
        staging = self._journal
        assert staging is not None
        try:
            self._write(journal)
        except BaseException:
            self._journal = None
            self._write(staging)
            raise

    def _apply(self, root_fd: int, applier: Applier, journal: Journal, prepared: _Prepared) -> None:
        """Carries a committed journal out, or takes all of it back and raises."""
        try:
            self._carry_out(root_fd, applier)
            self._note_finished(journal, prepared)
        except (TreesnapError, OSError) as error:
            self._take_back(root_fd, applier, error)
            raise
        self._remark_denied(applier.denied)

    def _carry_out(self, root_fd: int, applier: Applier) -> None:
        """Does all steps, durably; raises Conflict for what changed until then."""
        release(self._fs, applier.stages[treepath.ROOT])
        applier.apply()
        self._fs.sync_file_system(root_fd)
        applier.check_aside()

    def _remark_degraded(self, paths: tuple[bytes, ...]) -> None:
        if paths:
            names = ", ".join(repr(shown(path)) for path in paths[:_SHOWN_MAX])
            more = ", ..." if len(paths) > _SHOWN_MAX else ""
            self._handle.monitor.remark(
                "The owner or privileged attributes could not be put back, "
                f"which needs privileges: {names}{more}"
            )

    def _remark_denied(self, paths: list[bytes]) -> None:
        for path in paths:
            self._handle.monitor.remark(
                f"The metadata of {shown(path or b'.')!r} could not be put back: "
                "only its owner may change it"
            )

    def _take_back(self, root_fd: int, applier: Applier, error: TreesnapError | OSError) -> None:
        """Undoes every step, and only when that is durable, forgets the commit.

        Until then a crash lets the next command finish the restore: nobody was told yet.
        """
        journal = self._journal
        assert journal is not None
        try:
            applier.roll_back()
            self._fs.sync_file_system(root_fd)
            root_path = path_of_root(self._fs, root_fd, self._handle.root)
            rescue(self._handle, self._pair, journal, root_path)
            self.give_up(root_fd)
        except (TreesnapError, OSError) as second:
            raise OperationFailed(
                f"The restore failed ({error_text(error)}) and could not be taken back yet "
                f"({error_text(second)}); the next command on this root goes on with it",
                code=ErrorCode.RESTORE_INTERRUPTED,
                path=self._handle.root,
            ) from error
        for path in applier.left:
            self._handle.monitor.remark(
                f"{shown(path)!r} was changed by somebody else meanwhile and was left so"
            )

    def is_finished(self) -> bool:
        """Returns whether every step of the journal is done and durable.

        The history says so: it is written after the steps and before anything that
        was kept aside is removed, and every restore's is another, because it names
        that restore's own safety snapshot.
        """
        assert self._journal is not None
        assert self._journal.commit is not None
        try:
            found = self._pair.root.read("history", FileKind.HISTORY)
        except Corrupt:
            return False
        return found == self._journal.commit.history

    def _note_finished(self, journal: Journal, prepared: _Prepared) -> None:
        """Notes in the history that every step is done and durable.

        When the history cannot be replaced nothing was noted, and the restore can be
        taken back; when only the sync of its name failed, it stands there, and a power
        cut that takes it away leaves a journal to go on with.
        """
        self._journal = journal
        try:
            prepared.history.publish()
        except OSError:
            if not self.is_finished():
                raise

    def end(self, root_fd: int, prepared: _Prepared | None = None) -> None:
        """Ends a restore that is noted as finished: nothing is taken back any more.

        The plan follows the files; then what was kept aside is removed, then the journal. A
        crash lets the next operation do no more than this.
        """
        journal = self._journal
        assert journal is not None
        assert journal.commit is not None
        plan = journal.commit.plan
        if prepared is not None and prepared.plan is not None:
            prepared.plan.publish()
        elif plan is not None:
            self._pair.root.write(plan_file_name(plan.plan_id), PLAN_PAYLOAD, plan.payload)
        remove_stages(self._fs, root_fd, journal.stage_name, journal.stage_tops)
        with DirectoryChain(self._fs, root_fd) as chain:
            commit = journal.commit
            finisher = Finisher(
                self._fs, chain, commit.directories, self._xattrs, touch=commit.touch
            )
            finisher.finish_tops(journal.stage_tops)
            self._remark_denied(finisher.denied)
        self._fs.sync(root_fd)
        if commit.removes_root:
            self.remove_root()
        self._forget()

    def forget_removed(self) -> None:
        """Ends a restore of which nothing was left to do but to forget that the root is gone."""
        self._forget()

    def _forget(self) -> None:
        self._pair.root.remove("journal")
        self._journal = None

    def give_up(self, root_fd: int | None = None) -> None:
        """Ends a restore of which nothing is left in the tree but the staging directories.

        ``root_fd`` is the root where the caller has it open: it may have been moved away.
        """
        journal = self._journal
        assert journal is not None
        if root_fd is not None:
            self._unstage(root_fd, journal)
        else:
            try:
                with self._opened_root() as opened_fd:
                    self._unstage(opened_fd, journal)
            except FileNotFoundError:
                self._forget()
                return
        if journal.root_before is None:
            self.remove_root()
        self._forget()

    def _unstage(self, root_fd: int, journal: Journal) -> None:
        """Removes the staging directories, and gives what held them the metadata from before."""
        remove_stages(self._fs, root_fd, journal.stage_name, journal.stage_tops)
        if journal.root_before is None:
            return
        with DirectoryChain(self._fs, root_fd) as chain:
            for path, before in (*journal.subvolumes, (treepath.ROOT, journal.root_before)):
                try:
                    fd = chain.open(path)
                except OSError as error:
                    if error.errno in NO_DIRECTORY:
                        continue
                    raise
                try:
                    settle(self._fs, fd, (before,), before, self._xattrs)
                except PermissionError:  # another's directory, whose time changed all the same
                    if self._fs.fstat(fd).st_uid == os.geteuid():
                        raise
                self._fs.sync(fd)

    def remove_root(self) -> None:
        """Removes a root that is not to be there, unless something is in it by now."""
        try:
            self._fs.remove_directory(self._handle.root)
        except OSError:
            return
        sync_directory(self._fs, os.path.dirname(self._handle.root))
