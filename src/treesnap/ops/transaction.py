"""One restore in a root: its journal, its staging directory, and its steps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from treesnap.codec.envelope import FileKind
from treesnap.codec.journal import Commit, Journal, encode_journal
from treesnap.codec.reader import TreeReader
from treesnap.errors import Conflict, Corrupt, OperationFailed, TreesnapError, shown
from treesnap.events import Phase
from treesnap.fs.durable import Prepared, sync_directory
from treesnap.model import Entry, Totals
from treesnap.ops.access import Opened
from treesnap.ops.narrow import totals_of_entry
from treesnap.ops.plan import Plan
from treesnap.ops.state import State
from treesnap.worktree.apply import Applier
from treesnap.worktree.attributes import apply_metadata
from treesnap.worktree.directory import OPEN_DIRECTORY, DirectoryChain
from treesnap.worktree.finish import Finisher
from treesnap.worktree.observed import Observed
from treesnap.worktree.stage import Stager
from treesnap.worktree.staging import make_stage, new_stage_name, remove_stage
from treesnap.worktree.step import Action, Step, kept_name, staged_name

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

_SHOWN_MAX = 5
"""Paths named in one remark."""


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
        self.degraded: tuple[bytes, ...] = ()
        """Paths whose owner or privileged attributes were not permitted to be put back."""

    def _write(self, journal: Journal) -> None:
        self._pair.root.write("journal", FileKind.JOURNAL, encode_journal(journal))
        self._journal = journal

    def _begin(self, root_before: Entry | None) -> None:
        """Writes the journal that takes everything back; :meth:`abandon` removes it again."""
        held = self._handle.root if root_before else os.path.dirname(self._handle.root)
        self._journal = Journal(
            stage_name=new_stage_name(),
            root_before=root_before,
            device=self._fs.lstat(held).st_dev,
            started_at_ns=self._handle.clock_ns(),
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
        if self._journal is not None and self._journal.commit is None:
            self.give_up()

    def run(
        self, plan: Plan, current: State, target: State, observed: Observed, commit: Commit
    ) -> None:
        """Stages, commits and applies a plan that is not empty.

        When this raises, the tree is as it was before, or the journal is left for
        the next operation to finish.
        """
        if self._journal is None:
            self._begin(current.root)
        assert self._journal is not None
        journal = replace(self._journal, commit=commit)
        with self._opened_root() as root_fd, self._prepared_history(commit) as history:
            with self._staged(
                root_fd, journal, plan, target, observed, touch=commit.touch
            ) as applier:
                self._commit(journal)
                self._apply(root_fd, applier, journal, history)
            try:
                self.end(root_fd)
            except (TreesnapError, OSError) as error:
                self._handle.monitor.remark(
                    f"The restore is done, but not cleaned up after ({error}); "
                    "the next command on this root goes on with that"
                )
        self._remark_degraded()

    def resume(
        self,
        plan: Plan,
        target: State,
        observed: Observed,
        *,
        forward: bool,
    ) -> None:
        """Carries a plan out under a journal that was committed before.

        What the staging directory holds is removed first. ``forward`` says whether the
        plan finishes the restore or takes it back. When this raises, the journal is
        left, and the tree is still between both states.
        """
        journal = self._journal
        assert journal is not None
        assert journal.commit is not None
        commit = journal.commit
        touch = commit.touch and forward
        with self._opened_root() as root_fd, self._prepared_history(commit) as history:
            remove_stage(self._fs, root_fd, journal.stage_name)
            with self._staged(root_fd, journal, plan, target, observed, touch=touch) as applier:
                applier.apply()
                self._fs.sync_file_system(root_fd)
                if forward:
                    self._note_finished(journal, history)
                self._remark_denied(applier.denied)
            if forward:
                self.end(root_fd)
        if not forward:
            self.give_up()
        self._remark_degraded()

    @contextmanager
    def _opened_root(self) -> Iterator[int]:
        root_fd = self._fs.open(self._handle.root, OPEN_DIRECTORY)
        try:
            yield root_fd
        finally:
            self._fs.close(root_fd)

    @contextmanager
    def _prepared_history(self, commit: Commit) -> Iterator[Prepared]:
        """Writes the history aside: behind the commit point, its name needs no space."""
        prepared = self._pair.root.prepare("history", FileKind.HISTORY, commit.history)
        try:
            yield prepared
        finally:
            prepared.discard()

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

    @contextmanager
    def _staged(
        self,
        root_fd: int,
        journal: Journal,
        plan: Plan,
        target: State,
        observed: Observed,
        *,
        touch: bool,
    ) -> Iterator[Applier]:
        """Builds everything that will be put, durably; yields what carries the plan out."""
        assert journal.commit is not None
        numbers = {path: number for number, path in enumerate(journal.commit.paths)}
        stage_fd = make_stage(self._fs, root_fd, journal.stage_name)
        try:
            steps = self._build(stage_fd, plan, target, numbers, touch=touch)
            steps += self._removals(plan, numbers)
            steps = [step._replace(before=observed.key(step.path)) for step in steps]
            for step in steps:
                if step.before is None and not _puts_new(step, plan):
                    raise Conflict(f"{shown(step.path)!r} was not seen when it should have been")
            touched = {step.before.inode for step in steps if step.before is not None}

            def unchanged(fd: int, path: bytes) -> bool:
                return observed.is_unchanged_below(self._fs, fd, path, touched)

            with Applier(
                self._fs,
                root_fd,
                stage_fd,
                plan.finishes,
                self._xattrs,
                steps,
                unchanged,
                touch=touch,
            ) as applier:
                applier.check()
                self._fs.sync_file_system(stage_fd)
                self._handle.monitor.begin(Phase.APPLY, len(steps), None)
                yield applier
        finally:
            self._fs.close(stage_fd)

    def _build(
        self, stage_fd: int, plan: Plan, target: State, numbers: dict[bytes, int], *, touch: bool
    ) -> list[Step]:
        """Builds what will be put; returns the steps that put it."""
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
            touch=touch,
        )
        steps = []
        try:
            for path, (entry, _) in plan.puts.items():
                name = staged_name(numbers[path])
                stager.put(entry, path, name)
                inode = self._fs.lstat(name, dir_fd=stage_fd).st_ino
                is_closed = entry.is_directory and entry.mode & 0o700 != 0o700
                new = entry if is_closed else None
                steps.append(Step(Action.PUT, path, name, inode, new=new))
        finally:
            stager.close()
        self.degraded = tuple(stager.degraded)
        return steps

    @staticmethod
    def _removals(plan: Plan, numbers: dict[bytes, int]) -> list[Step]:
        """Returns the steps that need nothing to be built."""
        removals = [Step(Action.REMOVE, path, kept_name(numbers[path])) for path in plan.removals]
        return removals + [
            Step(Action.METADATA, path, b"m", old=old, new=new)
            for path, (old, new) in plan.metadata.items()
        ]

    def _apply(self, root_fd: int, applier: Applier, journal: Journal, history: Prepared) -> None:
        """Carries a committed journal out, or takes all of it back and raises."""
        try:
            applier.apply()
            self._fs.sync_file_system(root_fd)
            self._note_finished(journal, history)
        except (TreesnapError, OSError) as error:
            self._take_back(root_fd, applier, error)
            raise
        self._remark_denied(applier.denied)

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
            self._write(replace(journal, commit=None))
            self.give_up()
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

    def _note_finished(self, journal: Journal, history: Prepared) -> None:
        """Notes in the history that every step is done and durable.

        When the history cannot be replaced nothing was noted, and the restore can be
        taken back; when only the sync of its name failed, it stands there, and a power
        cut that takes it away leaves a journal to go on with.
        """
        self._journal = journal
        try:
            history.publish()
        except OSError:
            if not self.is_finished():
                raise

    def end(self, root_fd: int) -> None:
        """Ends a restore that is noted as finished: nothing is taken back any more.

        Removes what was kept aside, then the journal. A crash lets the next operation
        do no more than this.
        """
        journal = self._journal
        assert journal is not None
        assert journal.commit is not None
        remove_stage(self._fs, root_fd, journal.stage_name)
        with DirectoryChain(self._fs, root_fd) as chain:
            commit = journal.commit
            finisher = Finisher(
                self._fs, chain, commit.directories, self._xattrs, touch=commit.touch
            )
            finisher.finish_root()
            self._remark_denied(finisher.denied)
        self._fs.sync(root_fd)
        self._forget()

    def _forget(self) -> None:
        self._pair.root.remove("journal")
        self._journal = None

    def give_up(self) -> None:
        """Ends a restore of which nothing is left in the tree but the staging directory."""
        journal = self._journal
        assert journal is not None
        try:
            root_fd = self._fs.open(self._handle.root, OPEN_DIRECTORY)
        except FileNotFoundError:
            self._forget()
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
        self._forget()

    def _remove_root(self) -> None:
        """Removes the root that this transaction made, unless somebody uses it by now."""
        try:
            self._fs.remove_directory(self._handle.root)
        except OSError:
            return
        sync_directory(self._fs, os.path.dirname(self._handle.root))


def _puts_new(step: Step, plan: Plan) -> bool:
    """Returns whether a step puts something where nothing was."""
    return step.action == Action.PUT and plan.puts[step.path][1] is None
