"""One restore in a root: from its journal to its end, and its recovery after a crash."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from treesnap.codec.envelope import FileKind
from treesnap.codec.journal import (
    Action,
    Finish,
    Journal,
    Stage,
    Step,
    decode_journal,
    encode_journal,
)
from treesnap.codec.reader import TreeReader
from treesnap.errors import Conflict, Corrupt, OperationFailed, TreesnapError, shown
from treesnap.events import Phase
from treesnap.fs.durable import sync_directory
from treesnap.model import Entry, Totals
from treesnap.ops.access import Opened
from treesnap.ops.narrow import totals_of_entry
from treesnap.ops.plan import Plan, State
from treesnap.worktree.apply import Applier
from treesnap.worktree.attributes import apply_metadata
from treesnap.worktree.directory import OPEN_DIRECTORY
from treesnap.worktree.observed import Observed
from treesnap.worktree.stage import Stager
from treesnap.worktree.staging import make_stage, new_stage_name, open_stage, remove_stage

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

_SHOWN_MAX = 5
"""Paths named in one remark."""


class Transaction:
    """The journal of one root, and what follows from it. The caller holds the root's lock."""

    def __init__(self, handle: Handle, pair: Opened, *, touch: bool = False) -> None:
        self._handle = handle
        self._fs = handle.fs
        self._pair = pair
        self._touch = touch
        self._xattrs = TreeReader(pair.store.get).xattrs
        self._journal: Journal | None = None
        self.degraded: tuple[bytes, ...] = ()
        """Paths whose owner or privileged attributes were not permitted to be put back."""

    def _write(self, journal: Journal) -> None:
        self._pair.root.write("journal", FileKind.JOURNAL, encode_journal(journal))
        self._journal = journal

    def _begin(self, root_before: Entry | None) -> None:
        """Writes the journal that takes everything back; :meth:`abandon` removes it again."""
        self._journal = Journal(
            stage=Stage.STAGING, stage_name=new_stage_name(), root_before=root_before
        )
        self._write(self._journal)

    def ensure_root(self) -> None:
        """Makes the root when it is absent; a crash from here on removes it again."""
        if not os.path.lexists(self._handle.root):
            self._begin(None)
            self._fs.make_directory(self._handle.root)
            sync_directory(self._fs, os.path.dirname(self._handle.root))

    def abandon(self) -> None:
        """Ends a transaction that was not committed; does nothing when none was begun."""
        if self._journal is not None and self._journal.stage == Stage.STAGING:
            self._unstage(self._journal)

    def run(
        self, plan: Plan, current: State, target: State, observed: Observed, history: bytes
    ) -> None:
        """Stages, commits and applies a plan that is not empty.

        When this raises, the tree is as it was before, or the journal is left for
        the next operation to finish.
        """
        if self._journal is None:
            self._begin(current.root)
        assert self._journal is not None
        root_fd = self._fs.open(self._handle.root, OPEN_DIRECTORY)
        try:
            journal = self._staged(root_fd, self._journal, plan, target, observed, history)
            self._commit(journal)
            self._carry_out(root_fd, journal, observed)
            self._remark_degraded()
        finally:
            self._fs.close(root_fd)

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

    def _staged(
        self,
        root_fd: int,
        staging: Journal,
        plan: Plan,
        target: State,
        observed: Observed,
        history: bytes,
    ) -> Journal:
        """Builds everything that will be put, durably; returns the journal to commit."""
        stage_fd = make_stage(self._fs, root_fd, staging.stage_name)
        try:
            journal = Journal(
                stage=Stage.APPLYING,
                stage_name=staging.stage_name,
                root_before=staging.root_before,
                touch=self._touch,
                history=history,
                steps=tuple(self._build(stage_fd, plan, target, observed)),
                directories=tuple(
                    Finish(path, old, new) for path, (old, new) in plan.directories.items()
                ),
            )
            with self._applier(root_fd, stage_fd, journal, observed) as applier:
                applier.check()
            self._fs.sync_file_system(stage_fd)
            return journal
        finally:
            self._fs.close(stage_fd)

    def _build(self, stage_fd: int, plan: Plan, target: State, observed: Observed) -> list[Step]:
        totals = Totals()
        for entry, _ in plan.puts.values():
            totals = totals.plus(totals_of_entry(entry, target.trees))
        self._handle.monitor.begin(Phase.STAGE, totals.files + totals.others, totals.size_bytes)
        stager = Stager(
            self._fs,
            stage_fd,
            self._pair.store.get,
            target.groups,
            self._handle.monitor,
            trees=target.trees,
            touch=self._touch,
        )
        steps = []
        try:
            for number, (path, (entry, old)) in enumerate(plan.puts.items()):
                name = b"n%d" % number
                stager.put(entry, path, name)
                inode = self._fs.lstat(name, dir_fd=stage_fd).st_ino
                before = observed.key(path) if old is not None else None
                is_closed = entry.is_directory and entry.mode & 0o700 != 0o700
                new = entry if is_closed else None
                steps.append(Step(Action.PUT, path, name, inode, before, None, new))
        finally:
            stager.close()
        self.degraded = tuple(stager.degraded)
        for number, path in enumerate(plan.removals):
            name = b"o%d" % number
            steps.append(Step(Action.REMOVE, path, name, 0, observed.key(path), None, None))
        for path, (old_entry, new_entry) in plan.metadata.items():
            before = observed.key(path)
            steps.append(Step(Action.METADATA, path, b"m", 0, before, old_entry, new_entry))
        for step in steps:
            if step.before is None and not (step.action == Action.PUT and step.path in plan.puts):
                raise Conflict(f"{shown(step.path)!r} was not seen when it should have been")
        return steps

    def _applier(
        self, root_fd: int, stage_fd: int, journal: Journal, observed: Observed | None
    ) -> Applier:
        unchanged = None
        if observed is not None:
            touched = {step.before.inode for step in journal.steps if step.before is not None}

            def unchanged(fd: int, path: bytes) -> bool:
                return observed.is_unchanged_below(self._fs, fd, path, touched)

        return Applier(self._fs, root_fd, stage_fd, journal, self._xattrs, unchanged)

    def _carry_out(self, root_fd: int, journal: Journal, observed: Observed | None) -> None:
        """Applies a committed journal, or takes all of it back and raises."""
        stage_fd = self._fs.open(journal.stage_name, OPEN_DIRECTORY, dir_fd=root_fd)
        try:
            with self._applier(root_fd, stage_fd, journal, observed) as applier:
                self._handle.monitor.begin(Phase.APPLY, len(journal.steps), None)
                try:
                    applier.apply()
                    self._fs.sync_file_system(root_fd)
                    self._note_finished(journal)
                except (TreesnapError, OSError) as error:
                    self._take_back(root_fd, applier, error)
                    raise
                self._remark_denied(applier.denied)
        finally:
            self._fs.close(stage_fd)
        try:
            self._end(root_fd, journal)
        except (TreesnapError, OSError) as error:
            if observed is None:
                raise
            self._handle.monitor.remark(
                f"The restore is done, but not cleaned up after ({error}); "
                "the next command on this root goes on with that"
            )

    def _remark_degraded(self) -> None:
        if self.degraded:
            names = ", ".join(repr(shown(path)) for path in self.degraded[:_SHOWN_MAX])
            more = ", ..." if len(self.degraded) > _SHOWN_MAX else ""
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
        """Undoes every step, and only when that is durable, forgets the commit."""
        journal = self._journal
        assert journal is not None
        try:
            applier.roll_back()
            self._fs.sync_file_system(root_fd)
            staging = Journal(
                stage=Stage.STAGING,
                stage_name=journal.stage_name,
                root_before=journal.root_before,
            )
            self._write(staging)
            self._unstage(staging)
        except (TreesnapError, OSError) as second:
            raise OperationFailed(
                f"The restore failed ({error}) and could not be taken back yet ({second}); "
                "the next command on this root goes on with it",
                path=self._handle.root,
            ) from error
        for path in applier.left:
            self._handle.monitor.remark(
                f"{shown(path)!r} was changed by somebody else meanwhile and was left so"
            )

    def _is_finished(self, journal: Journal) -> bool:
        """Returns whether every step of a journal is done and durable.

        The history says so: it is written after the steps and before anything that
        was kept aside is removed, and every restore's is another, because it names
        that restore's own safety snapshot.
        """
        try:
            found = self._pair.root.read("history", FileKind.HISTORY)
        except Corrupt:
            return False
        return found is not None and found == journal.history

    def _note_finished(self, journal: Journal) -> None:
        """Notes in the history that every step is done and durable.

        When the history cannot be replaced nothing was noted, and the restore can be
        taken back; when only the sync of its name failed, it stands there, and a power
        cut that takes it away leaves a journal to go on with.
        """
        if journal.history is None or self._is_finished(journal):
            return
        try:
            self._pair.root.write("history", FileKind.HISTORY, journal.history)
        except OSError:
            if not self._is_finished(journal):
                raise

    def _end(self, root_fd: int, journal: Journal) -> None:
        """Ends a restore that is noted as finished: nothing is taken back any more.

        Removes what was kept aside, then the journal. A crash lets the next operation
        do no more than this.
        """
        remove_stage(self._fs, root_fd, journal.stage_name)
        with self._applier(root_fd, root_fd, journal, None) as applier:
            applier.finish_root()
            self._remark_denied(applier.denied)
        self._fs.sync(root_fd)
        self._pair.root.remove("journal")
        self._journal = None

    def _unstage(self, journal: Journal) -> None:
        """Ends a transaction before its commit point: the tree was never touched."""
        try:
            root_fd = self._fs.open(self._handle.root, OPEN_DIRECTORY)
        except FileNotFoundError:
            self._pair.root.remove("journal")
            self._journal = None
            return
        try:
            remove_stage(self._fs, root_fd, journal.stage_name)
            before = journal.root_before
            if before is not None:
                try:
                    apply_metadata(self._fs, root_fd, before, self._xattrs(before))
                except PermissionError:  # another's root, whose time changed all the same
                    if self._fs.fstat(root_fd).st_uid == os.geteuid():
                        raise
                self._fs.sync(root_fd)
        finally:
            self._fs.close(root_fd)
        if journal.root_before is None:
            self._remove_root()
        self._pair.root.remove("journal")
        self._journal = None

    def _remove_root(self) -> None:
        """Removes the root that this transaction made, unless somebody uses it by now."""
        try:
            self._fs.remove_directory(self._handle.root)
        except OSError:
            return
        sync_directory(self._fs, os.path.dirname(self._handle.root))

    def recover(self) -> str | None:
        """Finishes what an interrupted restore left behind; returns what was done, or None.

        Where the root is absent nothing can be done: the journal stays, until the root
        is back or is restored anew.
        """
        payload = self._pair.root.read("journal", FileKind.JOURNAL)
        if payload is None:
            return None
        journal = decode_journal(payload)
        self._journal = journal
        self._touch = journal.touch
        if journal.stage == Stage.STAGING:
            self._unstage(journal)
            return "removed what an interrupted restore had prepared; the tree is as before it"
        try:
            root_fd = self._fs.open(self._handle.root, OPEN_DIRECTORY)
        except FileNotFoundError:
            return None
        try:
            return self._resume(root_fd, journal)
        finally:
            self._fs.close(root_fd)

    def _resume(self, root_fd: int, journal: Journal) -> str:
        """Goes on with a committed restore; returns what was done."""
        if self._is_finished(journal):
            self._end(root_fd, journal)
            return "completed an interrupted restore"
        stage_fd = open_stage(self._fs, root_fd, journal.stage_name)
        if stage_fd is None:
            self._pair.root.remove("journal")
            self._journal = None
            return (
                "gave an interrupted restore up, because somebody removed what it had "
                "prepared; the tree is left as it was found"
            )
        self._fs.close(stage_fd)
        try:
            self._carry_out(root_fd, journal, None)
        except Conflict as error:
            return (
                "took an interrupted restore back, because "
                f"{error.message[0].lower()}{error.message[1:]}"
            )
        return "completed an interrupted restore"
