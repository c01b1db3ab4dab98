"""One restore in a root: its journal, its staging directory, and its steps."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from treesnap.core.codec.envelope import Format
from treesnap.core.codec.journal import JOURNAL, Commit, Journal, Subvolume
from treesnap.core.codec.reader import TreeReader
from treesnap.core.codec.root_files import ATTACHMENTS, HISTORY
from treesnap.core.fs.durable import Prepared
from treesnap.core.fs.os_errors import error_text
from treesnap.core.fs.real_path import opened_real
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, Totals
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    OperationFailed,
    Refused,
    TreesnapError,
    WarningCode,
    quoted,
)
from treesnap.core.model.events import NullMonitor, Phase
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.requests import NOTHING_REVEALED, CaptureRequest, Revealed
from treesnap.core.model.snapshots import Attachment, IgnoreRules, Snapshot
from treesnap.core.model.type_names import TYPE_CHECKING, TypeVar
from treesnap.core.ops.capture import scan_settings
from treesnap.core.ops.context import Session
from treesnap.core.ops.restore.plan import RestorePlan, warn_of_degraded
from treesnap.core.ops.restore.preserve import preserve_foreign_edits
from treesnap.core.ops.tree_state import MemoryObjects, State, totals_of_entry, walked_state
from treesnap.core.ops.trust import has_root
from treesnap.core.store.layout import attachment_file_name
from treesnap.core.store.reserve import Reserve
from treesnap.core.worktree.apply.applier import (
    Applier,
    Finisher,
    apply_directory_metadata,
    open_files,
)
from treesnap.core.worktree.apply.preconditions import Expected, Observed
from treesnap.core.worktree.apply.protection import refuse_protected
from treesnap.core.worktree.apply.stage import (
    Item,
    StagePlaces,
    Stager,
    TreeSource,
    begin_building,
    end_building,
    move_stage,
    new_stage_name,
    open_stages,
    release,
    remove_stage,
    remove_stages,
    remove_subvolume_stages,
    reserve,
    stage_places,
)
from treesnap.core.worktree.apply.step import UNSEEN, Action, RestoreStep, kept_name, staged_name
from treesnap.core.worktree.directory import DirectoryChain, path_of_root
from treesnap.core.worktree.scan.scanner import NOTHING_KNOWN, Scanner

if TYPE_CHECKING:
    from treesnap.core.model.results import OpenFile

WAITING_FILES_MIN = 256
"""Fewer displaced files are removed at once: starting a process for them costs as much."""
WAITING_BYTES_MAX = 1 << 30
"""More bytes are removed at once, so that the room is there when a restore returns."""

_Result = TypeVar("_Result")


class _Prepared(NamedTuple):
    """Small files that get their names when a restore is done."""

    history: Prepared
    attachment: Prepared | None


def _file_of(attachment: Attachment) -> tuple[str, Format[bytes]]:
    """Returns the name and the format of an attachment's file."""
    name = attachment_file_name(attachment.kind, attachment.name)
    return name, ATTACHMENTS[attachment.kind]


class Transaction:
    """The journal of one root, and what follows from it. The caller holds the root's lock.

    ``journal`` is the one that a crash left, for going on with it.
    """

    def __init__(self, session: Session, journal: Journal | None = None) -> None:
        self._fs = session.fs
        self._session = session
        self._root = session.context.root
        self._xattrs = TreeReader(session.store.get).xattrs
        self._journal = journal

    @property
    def _open_journal(self) -> Journal:
        """The journal of a restore that was begun."""
        assert self._journal is not None
        return self._journal

    @property
    def _open_commit(self) -> Commit:
        """What a restore was committed to."""
        assert self._open_journal.commit is not None
        return self._open_journal.commit

    def _write(self, journal: Journal) -> None:
        """Replaces the journal; on a full disk it takes the room of the store's reserve."""
        self._backed(lambda: self._session.root.write("journal", JOURNAL, journal))
        self._journal = journal

    def _backed(self, write: Callable[[], _Result]) -> _Result:
        return Reserve(self._fs, self._session.store.layout).retry_without_reserve(write)

    def _begin(
        self, place_fd: int, root_before: Entry | None, subvolumes: tuple[Subvolume, ...] = ()
    ) -> None:
        """Writes the journal that undoes everything, unless :meth:`ensure_root` did.

        ``place_fd`` is the root, or the directory above one that is absent. :meth:`abandon` removes
        the journal again. Raises Refused while an earlier restore is not cleaned
        up after: its staging directory is found through its journal only.
        """
        if self._journal is not None:
            return
        if root_before is not None and self._session.root.is_interrupted:
            raise Refused(
                "An earlier restore of this root is not cleaned up after yet",
                code=ErrorCode.RESTORE_INTERRUPTED,
                path=self._root,
            )
        status = self._fs.fstat(place_fd)
        self._journal = Journal(
            root_id=self._session.root.id,
            stage_name=new_stage_name(),
            root_before=root_before,
            file_system=self._fs.file_system_id(place_fd),
            device=status.st_dev,
            inode=status.st_ino if root_before else None,
            started_at_ns=self._session.context.clock_ns(),
            subvolumes=subvolumes,
        )
        self._write(self._journal)

    def ensure_root(self) -> None:
        """Makes the root when it is absent; a crash from here on removes it again.

        What is staged in it is synced with the file system, and its name with that.
        """
        if not has_root(self._session.context):
            above, name = os.path.split(self._root)
            with opened_real(self._fs, above) as above_fd:
                self._begin(above_fd, None)
                try:
                    self._fs.make_directory(name, dir_fd=above_fd)
                except OSError as error:
                    error.filename = self._root  # the name alone would be taken for one below it
                    raise

    def abandon(self, root_fd: int | None = None) -> None:
        """Ends a transaction that was not committed; does nothing when none was begun."""
        if self._journal is not None and self._journal.commit is None:
            self.give_up(root_fd)

    def run(self, work: RestoreWork, commit: Commit) -> tuple[OpenFile, ...]:
        """Stages, commits and applies a plan; returns which of the replaced files were open.

        When this raises, the tree is as it was before, or the journal is left for
        the next operation to finish.
        """
        steps = Steps(self._session, work, commit.paths)
        with opened_real(self._fs, self._root) as root_fd:
            places = stage_places(self._fs, root_fd, work.plan.touched)
            subvolumes = self._subvolumes(work, places)
            commit = commit._replace(directories=work.plan.finishes)
            self._begin(root_fd, work.current.root, subvolumes)
            try:
                self._run(root_fd, steps, places, commit)
            except BaseException:
                # Through the open root: by its path it may not be found any more.
                self.abandon(root_fd)
                raise
        warn_of_degraded(self._session, steps.degraded)
        return steps.open_files

    def _run(self, root_fd: int, steps: Steps, places: StagePlaces, commit: Commit) -> None:
        journal = self._committed(root_fd, commit)
        with self._prepared(commit) as prepared:
            with steps.staged(root_fd, journal.stage_name, places) as applier:
                self._commit(journal, steps.work.source)
                self._apply(root_fd, applier, journal, prepared)
            self._end_or_warn(root_fd, prepared, steps.work)

    def run_without_files(self, current: State, commit: Commit) -> None:
        """Commits a restore that changes nothing but history and attachment.

        When this raises, neither has changed, or the journal is left for the next operation.
        """
        assert not commit.paths
        with opened_real(self._fs, self._root) as root_fd, ExitStack() as stack:
            self._begin(root_fd, current.root)
            prepared = stack.enter_context(self._prepared(commit))
            journal = self._committed(root_fd, commit)
            self._commit(journal)
            self._record_finished(journal, prepared)
            self._end_or_warn(root_fd, prepared)

    def resume_without_files(self, root_fd: int) -> None:
        """Finishes what :meth:`run_without_files` began."""
        with self._prepared(self._open_commit) as prepared:
            self._record_finished(self._open_journal, prepared)
            self.end(root_fd, prepared)

    def _committed(self, root_fd: int, commit: Commit) -> Journal:
        """Returns the journal with a commit, and the root's identity: it may be new."""
        status = self._fs.fstat(root_fd)
        return self._open_journal._replace(
            file_system=self._fs.file_system_id(root_fd),
            device=status.st_dev,
            inode=status.st_ino,
            commit=commit,
        )

    def _end_or_warn(
        self, root_fd: int, prepared: _Prepared, work: RestoreWork | None = None
    ) -> None:
        self._session.monitor.begin(Phase.TIDY, None, None)
        try:
            may_wait = work is not None and self._may_wait(root_fd, work)
            self.end(root_fd, prepared, may_wait=may_wait)
        except (TreesnapError, OSError) as error:
            self._session.monitor.warn(
                WarningCode.NOT_CLEANED_UP,
                f"The restore is done, but not cleaned up after ({error_text(error)}); "
                "the next command on this root does that",
            )

    def _may_wait(self, root_fd: int, work: RestoreWork) -> bool:
        """Returns whether what was displaced may be removed after the restore has returned.

        That is where a process can do it, where it pays, and where the disk has room until then.
        """
        keeps_nothing = self._open_commit.keeps_nothing
        if keeps_nothing or not self._session.context.may_start_processes:
            return False
        displaced = Totals()
        for entry in work.plan.displaced:
            displaced = displaced.plus(totals_of_entry(entry, work.current.trees))
        return (
            displaced.files + displaced.others >= WAITING_FILES_MIN
            and displaced.size_bytes <= WAITING_BYTES_MAX
            and displaced.size_bytes <= self._fs.free_bytes(root_fd)
        )

    def commit_in_place(self, work: RestoreWork, commit: Commit) -> Journal:
        """Commits a plan without staging anything; what it removes first is not moved aside.

        The tree is as it was when this returns, or raises. From then on a recovery carries the
        journal out, in this process or another. Raises OperationFailed for what not even its
        owner may remove.
        """
        with opened_real(self._fs, self._root) as root_fd:
            refuse_protected(self._fs, root_fd, work.plan.removed)
            places = stage_places(self._fs, root_fd, work.plan.touched)
            subvolumes = self._subvolumes(work, places)
            self._begin(root_fd, work.current.root, subvolumes)
            commit = commit._replace(directories=work.plan.finishes)
            self._write(self._committed(root_fd, commit))
        return self._open_journal

    def resume(self, work: RestoreWork, *, forward: bool) -> None:
        """Carries a plan out under a journal that was committed before.

        The staging directory is gone. ``forward`` says whether the plan finishes the restore or
        undoes it. When this raises, the journal is left, and the tree is still between both
        states.
        """
        journal, commit = self._open_journal, self._open_commit
        steps = Steps(self._session, work, commit.paths)
        with opened_real(self._fs, self._root) as root_fd, self._prepared(commit) as prepared:
            places = stage_places(self._fs, root_fd, work.plan.touched)
            recorded = {item.path: item for item in journal.subvolumes}
            new = [item for item in self._subvolumes(work, places) if item.path not in recorded]
            if new:
                journal = journal._replace(subvolumes=(*journal.subvolumes, *new))
                self._write(journal)
            with steps.staged(root_fd, journal.stage_name, places) as applier:
                self._carry_out(root_fd, applier)
                if forward:
                    self._record_finished(journal, prepared)
                self._warn_of_denied(applier.denied)
            if forward:
                self.end(root_fd, prepared)
            else:
                self.give_up(root_fd)
        warn_of_degraded(self._session, steps.degraded)

    def _subvolumes(self, work: RestoreWork, places: StagePlaces) -> tuple[Subvolume, ...]:
        """Returns the subvolumes in which something is staged, and adds them to the plan.

        The staging directory changes the time of the directory that holds it.
        """
        subvolumes = []
        for path in places.subvolumes:
            before = work.current.entry(path)
            if before is not None:
                work.plan.directories.setdefault(path, (before, before))
                subvolumes.append(Subvolume(path, before))
        return tuple(subvolumes)

    @contextmanager
    def _prepared(self, commit: Commit) -> Iterator[_Prepared]:
        """Writes history and attachment under temporary names: publishing them needs no space."""
        root, attachment = self._session.root, commit.attachment
        with ExitStack() as stack:
            decoded = HISTORY.decode(commit.history)
            history = self._backed(lambda: root.prepare("history", HISTORY, decoded))
            stack.callback(history.discard)
            changed = None
            if attachment is not None:
                name, sealed = _file_of(attachment)
                changed = root.prepare(name, sealed, attachment.payload)
                stack.callback(changed.discard)
            yield _Prepared(history, changed)

    def _commit(self, journal: Journal, source: Snapshot | None = None) -> None:
        """Writes the journal that must be carried out.

        Raises NotFound where the snapshot to go to is gone: from then on it stays.

        When that fails, it is unknown which journal a power cut would leave, so the
        one that undoes everything is written again before anything is removed. Where not even that
        is possible, the next command decides by the journal that is there.
        """
        staging = self._open_journal
        try:
            with self._staying(source):
                self._write(journal)
        except BaseException as error:
            self._journal = None
            try:
                self._write(staging)
            except OSError as second:
                why = error_text(error) if isinstance(error, Exception) else "interrupted"
                raise OperationFailed(
                    f"The restore failed ({why}), and it could not be noted that it did "
                    f"({error_text(second)}); the next command on this root finishes or undoes it",
                    code=ErrorCode.RESTORE_INTERRUPTED,
                    path=self._root,
                ) from error
            raise

    @contextmanager
    def _staying(self, source: Snapshot | None) -> Iterator[None]:
        """Keeps a fetched snapshot of another root from being removed meanwhile."""
        if source is None or source.root_id == self._session.root.id:
            yield
            return
        store = self._session.store
        with store.root_by_id(source.root_id).locked("restore", self._session.context.wait_s):
            store.snapshots.require(source)
            yield

    def _apply(self, root_fd: int, applier: Applier, journal: Journal, prepared: _Prepared) -> None:
        """Carries a committed journal out, or undoes all of it and raises."""
        try:
            self._carry_out(root_fd, applier)
            self._record_finished(journal, prepared)
        except (TreesnapError, OSError) as error:
            self._undo(root_fd, applier, error)
            raise
        self._warn_of_denied(applier.denied)

    def _carry_out(self, root_fd: int, applier: Applier) -> None:
        """Does all steps, durably; raises Conflict for what changed until then."""
        release(self._fs, applier.stages[treepath.ROOT])
        applier.apply()
        self._session.monitor.begin(Phase.SYNC, None, None)
        self._fs.sync_file_system(root_fd)
        applier.check_aside()

    def _warn_of_denied(self, paths: list[bytes]) -> None:
        for path in paths:
            self._session.monitor.warn(
                WarningCode.METADATA_NOT_RESTORED,
                f"The metadata of {quoted(path or b'.')} could not be put back: "
                "only its owner may change it",
            )

    def _undo(self, root_fd: int, applier: Applier, error: TreesnapError | OSError) -> None:
        """Undoes every step, and only when that is durable, forgets the commit.

        Until then a crash lets the next command finish the restore: no caller was told yet.
        """
        try:
            applier.roll_back()
            self._fs.sync_file_system(root_fd)
            root_path = path_of_root(self._fs, root_fd, self._root)
            preserve_foreign_edits(self._session, self._open_journal, root_path)
            self.give_up(root_fd)
        except (TreesnapError, OSError) as second:
            raise OperationFailed(
                f"The restore failed ({error_text(error)}) and could not be undone yet "
                f"({error_text(second)}); the next command on this root goes on with it",
                code=ErrorCode.RESTORE_INTERRUPTED,
                path=self._root,
            ) from error
        warn_of_degraded(self._session, applier.degraded)
        for path in applier.left:
            self._session.monitor.warn(
                WarningCode.LEFT_ALONE,
                f"{quoted(path)} was changed by another process meanwhile and was left alone",
            )

    def is_finished(self) -> bool:
        """Returns whether every step of the journal is done and durable.

        The history says so: it is written after the steps and before anything that
        was moved aside is removed, and no two restores write the same, because each
        names its own safety snapshot.
        """
        try:
            history = self._session.root.read("history", HISTORY)
            return history == HISTORY.decode(self._open_commit.history)
        except Corrupt:
            return False

    def _record_finished(self, journal: Journal, prepared: _Prepared) -> None:
        """Records in the history that every step is done and durable.

        When the history cannot be replaced nothing was recorded, and the restore can be
        undone; when only the sync of its name failed, it is recorded, and a power
        cut that loses it leaves a journal to go on with.
        """
        self._journal = journal
        try:
            prepared.history.publish()
        except OSError:
            if not self.is_finished():
                raise

    def end(
        self, root_fd: int, prepared: _Prepared | None = None, *, may_wait: bool = False
    ) -> None:
        """Ends a restore that is recorded as finished: nothing is undone from here on.

        The attachment follows the files; then what was moved aside is removed, then the journal. A
        crash lets the next operation do only this.

        If it ``may_wait``, what was moved aside goes to the store's temporary files instead,
        where :func:`maintain` removes it. That it is gone from the root
        is durable before the journal goes: without one, a staging directory is not found.
        """
        journal, commit = self._open_journal, self._open_commit
        attachment = commit.attachment
        if prepared is not None and prepared.attachment is not None:
            prepared.attachment.publish()
        elif attachment is not None:
            self._session.root.write(*_file_of(attachment), attachment.payload)
        remove_subvolume_stages(self._fs, root_fd, journal.stage_name, journal.stage_tops)
        target = self._session.store.layout.new_displaced() if may_wait else None
        if target is None or not move_stage(self._fs, root_fd, journal.stage_name, target):
            remove_stage(self._fs, root_fd, journal.stage_name)
        with DirectoryChain(self._fs, root_fd) as chain:
            finisher = Finisher(
                self._fs, chain, commit.directories, self._xattrs, touch=commit.touch
            )
            finisher.finish_tops(journal.stage_tops)
            # What is below the root was named when it was finished for the first time.
            self._warn_of_denied([path for path in finisher.denied if not path])
            warn_of_degraded(self._session, [path for path in finisher.degraded if not path])
        for item in commit.directories:
            if not item.path and item.new is not None and not commit.touch:
                with suppress(OSError, TreesnapError):  # only a later move might go unnoticed
                    self._session.root.note_birth(root_fd, item.new.mtime_ns)
        self._fs.sync(root_fd)
        if commit.removes_root:
            self.remove_root()
        self.forget()

    def forget(self) -> None:
        """Ends a restore of which nothing is left but the journal."""
        self._session.root.remove("journal")
        self._journal = None

    def give_up(self, root_fd: int | None = None) -> None:
        """Ends a restore that left only staging directories in the tree.

        ``root_fd`` is the root if the caller has it open: it may have been moved away.
        """
        journal = self._open_journal
        if root_fd is not None:
            self._unstage(root_fd, journal)
        else:
            try:
                with opened_real(self._fs, self._root) as opened_fd:
                    self._unstage(opened_fd, journal)
            except FileNotFoundError:
                self.forget()
                return
        if journal.root_before is None:
            self.remove_root()
        self.forget()

    def _unstage(self, root_fd: int, journal: Journal) -> None:
        """Removes the staging directories, and restores the metadata of what held them."""
        remove_stages(self._fs, root_fd, journal.stage_name, journal.stage_tops)
        if journal.root_before is None:
            return
        with DirectoryChain(self._fs, root_fd) as chain:
            for path, before in (*journal.subvolumes, (treepath.ROOT, journal.root_before)):
                fd = chain.find(path)
                if fd is None:
                    continue
                try:
                    apply_directory_metadata(self._fs, fd, (before,), before, self._xattrs)
                except PermissionError:  # another user's directory, whose time changed anyway
                    if self._fs.fstat(fd).st_uid == os.geteuid():
                        raise
                self._fs.sync(fd)

    def remove_root(self) -> None:
        """Removes a root that was absent before, unless something is in it by now."""
        above, name = os.path.split(self._root)
        try:
            with opened_real(self._fs, above) as above_fd:
                self._fs.remove_directory(name, dir_fd=above_fd)
                self._fs.sync(above_fd)
        except OSError as error:
            if error.errno not in _IS_NEEDED:
                self._session.monitor.warn(
                    WarningCode.LEFT_ALONE,
                    f"The root was absent before, and could not be removed: {error_text(error)}",
                )


_IS_NEEDED = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT})
"""Why a root is not removed of which that may be expected: it holds something, or is gone."""
_RESERVE_BASE_BYTES = 64 << 10
_BLOCK_BYTES = 4096


class RestoreWork(NamedTuple):
    """What a restore has to do, and what it was planned from."""

    plan: RestorePlan
    current: State
    """The state that it was planned from."""
    target: State
    """The state that the plan leads to."""
    observed: Observed
    """What was there when it was planned."""
    touch: bool
    """Whether restored files get the present time."""
    rules: tuple[IgnoreRules, ...] = ()
    """Exclusions that held beside those in the tree."""
    revealed: Revealed = NOTHING_REVEALED
    """What was looked at although it is excluded."""
    source: Snapshot | None = None
    """The snapshot to go to, which may be of another root; None in a recovery."""

    @property
    def reserve_bytes(self) -> int:
        """A bound on what moving may take: directories that grow, attributes that move out."""
        changed = len(self.plan.directories) + len(self.plan.metadata)
        return _RESERVE_BASE_BYTES + _BLOCK_BYTES * changed


class Steps:
    """The steps of one plan. ``paths`` are those that the journal numbers.

    A recovery may have steps below these: they get the next numbers.
    """

    def __init__(self, session: Session, work: RestoreWork, paths: Sequence[bytes]) -> None:
        self._fs = session.fs
        self._session = session
        self.work = work
        above = set(paths)
        below = [path for path in work.plan.touched if path not in above]
        self._numbers = {path: number for number, path in enumerate([*paths, *below])}
        self.degraded: tuple[bytes, ...] = ()
        """Paths whose owner or privileged attributes were not permitted to be put back."""
        self.open_files: tuple[OpenFile, ...] = ()
        """What processes had open of what is replaced, just before."""

    @contextmanager
    def staged(self, root_fd: int, stage_name: bytes, places: StagePlaces) -> Iterator[Applier]:
        """Builds all that will be put; yields what carries the steps out.

        Raises Conflict when a path has changed since the plan was made, and OSError, also when
        the disk is full: nothing in the tree was touched then.
        """
        fs, work = self._fs, self.work
        with open_stages(fs, root_fd, stage_name, places) as stages:
            main_fd = stages[treepath.ROOT]
            begin_building(fs, main_fd)
            built = [step for top in stages for step in self._build(stages[top], top, places)]
            steps = [self._expecting(step) for step in [*built, *self._others(places)]]
            second = SecondReading(self._session, work, root_fd, stage_name)
            with Applier(
                fs,
                root_fd,
                stages,
                steps,
                work.plan.finishes,
                Expected(work.observed, second, work.current.mapped, work.current.young),
                xattrs=TreeReader(self._session.store.get).xattrs,
                touch=work.touch,
            ) as applier:
                applier.check()
                self.open_files = open_files(self._session.context.root, steps)
                reserve(fs, main_fd, work.reserve_bytes)
                end_building(fs, main_fd)
                self._session.monitor.begin(Phase.SYNC, None, None)
                fs.sync_file_system(main_fd)
                self._session.monitor.begin(Phase.APPLY, len(steps), None)
                yield applier
                self.degraded += tuple(applier.degraded)

    def _build(self, stage_fd: int, top: bytes, places: StagePlaces) -> list[RestoreStep]:
        """Builds what will be put from one staging directory; returns the steps that put it."""
        work = self.work
        puts = {
            path: entry for path, (entry, _) in work.plan.puts.items() if places.of(path) == top
        }
        totals = Totals()
        for entry in puts.values():
            totals = totals.plus(totals_of_entry(entry, work.target.trees))
        self._session.monitor.begin(Phase.STAGE, totals.files + totals.others, totals.size_bytes)
        stager = Stager(
            self._fs,
            stage_fd,
            TreeSource(self._session.store.get, work.target.trees, work.target.groups),
            self._session.monitor,
            touch=work.touch,
        )
        steps = []
        try:
            items = [
                Item(entry, path, (staged_name(self._numbers[path]),))
                for path, entry in puts.items()
            ]
            stager.put_all(items)
            for entry, path, (name,) in items:
                inode = self._fs.lstat(name, dir_fd=stage_fd).st_ino
                steps.append(RestoreStep(Action.PUT, path, name, top, inode, new=entry))
        finally:
            stager.close()
        self.degraded += tuple(stager.degraded)
        return steps

    def _others(self, places: StagePlaces) -> list[RestoreStep]:
        """Returns the steps that need nothing built."""
        plan = self.work.plan
        removals = [
            RestoreStep(Action.REMOVE, path, kept_name(self._numbers[path]), places.of(path))
            for path in plan.removals
        ]
        return removals + [
            RestoreStep(Action.METADATA, path, b"m", old=old, new=new)
            for path, (old, new) in plan.metadata.items()
        ]

    def _expecting(self, step: RestoreStep) -> RestoreStep:
        """Returns a step with what was at its path when it was planned.

        A damaged cached row may lack the path: then it is read again.
        """
        before = self.work.observed.key(step.path)
        puts_new = step.action == Action.PUT and self.work.plan.puts[step.path][1] is None
        if before is None and not puts_new:
            before = UNSEEN
        return step._replace(before=before)


class SecondReading:
    """Reads paths again, with everything below them, and trusts no cached row.

    Implements :class:`treesnap.core.worktree.apply.preconditions.SecondLook`.
    """

    def __init__(
        self, session: Session, work: RestoreWork, root_fd: int, stage_name: bytes
    ) -> None:
        self._session = session
        self._work = work
        self._root_fd = root_fd
        self._stage_name = stage_name

    def is_same(self, path: bytes) -> bool:
        """Returns whether the tree still has at a path what the plan saw, nothing included."""
        try:
            request = CaptureRequest(
                scope=(path,), rules=self._work.rules, revealed=self._work.revealed
            )
            entry = self._read(b"", path, request)
        except (TreesnapError, OSError):
            return False
        return entry == self._work.current.entry(path)

    def is_same_aside(self, path: bytes, stage: bytes, name: bytes) -> bool:
        """Returns whether what was moved from a path to a staging directory is what the plan saw.

        Moving a directory may give it permissions, and on some file systems a time.
        """
        try:
            request = CaptureRequest(scope=(name,), heeds_ignore_files=False)
            entry = self._read(os.path.join(stage, self._stage_name), name, request)
        except (TreesnapError, OSError):
            return False
        return _moved(entry) == _moved(self._work.current.entry(path))

    def _read(self, below: bytes, path: bytes, request: CaptureRequest) -> Entry | None:
        root = path_of_root(self._session.fs, self._root_fd, self._session.context.root)
        top = os.path.join(root, os.fsdecode(below)) if below else root
        objects = MemoryObjects(self._session.store)
        nothing_known = NOTHING_KNOWN._replace(mapped=frozenset())  # all is read in any case
        settings = scan_settings(self._session.context, request, nothing_known, root=top)
        result = Scanner(self._session.fs, settings, objects, NullMonitor()).scan()
        return walked_state(result).entry(path)


def _moved(entry: Entry | None) -> Entry | None:
    """Returns an entry without what moving it may change."""
    if entry is None:
        return None
    entry = entry._replace(name=b"")
    if entry.is_directory:
        return entry._replace(mode=entry.mode | 0o700, mtime_ns=0)
    return entry
