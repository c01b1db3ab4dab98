"""Finishing an interrupted restore, before anything else happens in a root.

A restore that was not committed is undone: only its staging directory is in the tree. A committed
one is carried out again, for the paths that its journal names: what they hold now is compared
with both states, and planned from there. So it does not matter which of its steps were done,
which of them a power cut undid, or whether this is a copy of the tree with other inodes.

A path that holds neither state, nor nothing, was changed by another process since, and is left
alone. The other paths get the new state if all of them can, and the old one otherwise. What lies
in the staging directory and belongs to neither state goes into a snapshot before it is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from treesnap.core.codec.journal import Commit, Journal
from treesnap.core.codec.root_files import HISTORY
from treesnap.core.fs.real_path import open_real
from treesnap.core.model import treepath
from treesnap.core.model.errors import (
    Conflict,
    Corrupt,
    ErrorCode,
    NotFound,
    Refused,
    TreesnapError,
    WarningCode,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import first_few
from treesnap.core.model.requests import CaptureRequest, Revealed
from treesnap.core.model.snapshots import Snapshot, SnapshotId
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.capture import Capture, preview
from treesnap.core.ops.checkpoint_locks import settle_steps
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.privileges import wanted_state, was_captured_here
from treesnap.core.ops.references import load_by_id
from treesnap.core.ops.restore.path_state import PathState, path_state
from treesnap.core.ops.restore.plan import RestorePlan, make_plan, refuse_blocked, written_of
from treesnap.core.ops.restore.preserve import preserve_foreign_edits, states_of
from treesnap.core.ops.restore.transaction import RestoreWork, Transaction
from treesnap.core.ops.tree_state import State
from treesnap.core.ops.trust import has_root
from treesnap.core.store.roots import read_journal
from treesnap.core.worktree.apply.removal import remove_paths
from treesnap.core.worktree.apply.stage import (
    clear_stage,
    open_stage,
    remove_stages,
    remove_subvolume_stages,
)
from treesnap.core.worktree.directory import DirectoryChain

if TYPE_CHECKING:
    from treesnap.core.fs.base import FileSystem

ATTEMPTS = 3
"""How often recovery is tried when another process changes the tree meanwhile."""
_COMPLETED = "completed an interrupted restore"
_TO_TIDY = "all is done; the next command on this root cleans up"


class Recovery(NamedTuple):
    """What was done about an interrupted restore."""

    done: str
    completed: SnapshotId | None = None
    """What the root was restored to; None where that was undone, or had not begun."""


class Look(NamedTuple):
    """The paths of an interrupted restore, and the state of each."""

    states: dict[bytes, PathState]
    walked: Capture

    def paths(self, *states: PathState) -> tuple[bytes, ...]:
        """Returns the paths in one of some states."""
        return tuple(path for path, state in self.states.items() if state in states)

    @property
    def is_forward(self) -> bool:
        """Whether the restore is finished rather than undone."""
        return not (self.paths(PathState.CHANGED) and self.paths(PathState.OPEN))


def recover_locked(session: Session) -> Recovery | None:
    """Finishes an interrupted restore and warns of it. The caller holds the root's lock.

    Returns what was done, or None where there is nothing to do, or nothing can be done because
    the root is absent: the journal then stays until the root is back, or is restored again.
    Raises Refused where another file system is in the root's place, and in a stranger's store.
    """
    journal = read_journal(session.root)
    if journal is None:
        return None
    refuse_stranger(session)
    recovery = _recover(session, journal)
    if journal.commit is not None and Transaction(session, journal).is_finished():
        _settle(session, journal.commit)
    if recovery is not None:
        done = recovery.done
        session.monitor.warn(WarningCode.RESTORE_RECOVERED, done[0].upper() + done[1:])
    return recovery


def refuse_stranger(session: Session) -> None:
    """Raises Refused where it may be a stranger who says that a restore was interrupted."""
    if not session.store.is_own:
        raise Refused(
            f"A restore of {quoted(session.root.path)} was interrupted, says the store "
            f"{quoted(session.store.path)}, which is not proven to be yours",
            code=ErrorCode.RESTORE_NOT_OWN,
            path=session.store.path,
        )


def _settle(session: Session, commit: Commit) -> None:
    """Forgets the steps that a finished restore has undone, as the restore would have done."""
    history = HISTORY.decode(commit.history)
    scopes = [
        moment.scope
        for moment in (*history.undo[-1:], *history.redo[-1:])
        if moment.snapshot_id == commit.safety_id
    ]
    with suppress(NotFound, Corrupt):
        target = load_by_id(session, commit.target_id)
        for scope in scopes:
            settle_steps(session, target, scope)


def look_at(session: Session, journal: Journal) -> tuple[str | None, dict[bytes, PathState]]:
    """Returns what recovery would do, and the state of each path; changes nothing.

    None where nothing was committed. Raises what recovery would raise. The caller
    holds the root's lock.
    """
    refuse_stranger(session)
    if journal.commit is None:
        return None, {}
    transaction = Transaction(session, journal)
    if not has_root(session.context):
        if journal.commit.removes_root and transaction.is_finished():
            return _TO_TIDY, {}
        return "it waits until the root is back, or is restored again", {}
    with _opened_root(session.context) as root_fd:
        _refuse_other_directory(session.context, root_fd, journal, transaction)
        if not journal.commit.paths or transaction.is_finished():
            return _TO_TIDY, dict.fromkeys(journal.commit.paths, PathState.DONE)
        look = Completion(session, journal).look(root_fd)
    way = "finishes it" if look.is_forward else "undoes it"
    left = " and leaves alone what another process changed" if look.paths(PathState.CHANGED) else ""
    return f"the next command on this root {way}{left}", look.states


@contextmanager
def _opened_root(context: Context) -> Iterator[int]:
    """Yields a descriptor of the root; raises Refused for what is not a directory."""
    try:
        root_fd = open_real(context.fs, context.root)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Refused(
            f"The root {quoted(context.root)} is no longer a directory, so that an "
            "interrupted restore cannot be finished",
            code=ErrorCode.NOT_A_DIRECTORY,
            path=context.root,
        ) from error
    try:
        yield root_fd
    finally:
        context.fs.close(root_fd)


def is_its_tree(fs: FileSystem, root_fd: int, journal: Journal) -> bool:
    """Returns whether an open directory is the tree of a journal, or a copy of it.

    Overlays on one file system share its id, and inodes of a common lower layer. So where files
    may still have to change, nothing but the staging directory makes up for another device number.
    """
    stage_fd = open_stage(fs, root_fd, journal.stage_name)
    if stage_fd is not None:
        fs.close(stage_fd)
        return True
    stat = fs.fstat(root_fd)
    if journal.inode not in (None, stat.st_ino):
        return False
    if journal.commit is not None and journal.commit.paths and stat.st_dev != journal.device:
        return False
    return _is_its_file_system(fs, root_fd, journal)


def _is_its_file_system(fs: FileSystem, root_fd: int, journal: Journal) -> bool:
    return fs.file_system_id(root_fd) == journal.file_system


def _refuse_other_directory(
    context: Context, root_fd: int, journal: Journal, transaction: Transaction
) -> None:
    """Raises Refused for a directory that is not the tree of a journal.

    But not on the same file system where only the staging directory has to be removed. A
    directory on another one may be an empty mount point.
    """
    if is_its_tree(context.fs, root_fd, journal):
        return
    if not _is_its_file_system(context.fs, root_fd, journal):
        what = "file system"
    elif journal.commit is not None and not transaction.is_finished():
        what = "directory"
    else:
        return
    raise Refused(
        f"A restore of {quoted(context.root)} was interrupted, and another {what} is in its place "
        "now",
        code=ErrorCode.RESTORE_INTERRUPTED,
        path=context.root,
    )


def _recover(session: Session, journal: Journal) -> Recovery | None:
    transaction, commit = Transaction(session, journal), journal.commit
    if not has_root(session.context):
        if commit is None:
            transaction.give_up()
            return Recovery("forgot a restore that was interrupted early: the root is gone")
        if not (commit.removes_root and transaction.is_finished()):
            return None
        transaction.forget()
        return Recovery(_COMPLETED, commit.target_id)
    with _opened_root(session.context) as root_fd:
        _refuse_other_directory(session.context, root_fd, journal, transaction)
        if commit is not None and transaction.is_finished():
            is_clean = _cleaned_up(session, journal, transaction, root_fd)
            return Recovery(_COMPLETED, commit.target_id) if is_clean else None
        if commit is not None and not commit.paths:
            transaction.resume_without_files(root_fd)
            return Recovery(_COMPLETED, commit.target_id)
        if commit is not None:
            return Completion(session, journal).run(root_fd)
    transaction.give_up()
    return Recovery("removed what an interrupted restore had prepared; the tree is as before it")


def _cleaned_up(session: Session, journal: Journal, transaction: Transaction, root_fd: int) -> bool:
    """Removes what a finished restore moved aside; warns where that fails, and returns False."""
    try:
        preserve_foreign_edits(session, journal)
        transaction.end(root_fd)
    except (TreesnapError, OSError) as error:
        session.monitor.warn(
            WarningCode.NOT_CLEANED_UP,
            f"What a finished restore moved aside could not be removed: {error}",
        )
        return False
    return True


class Completion:
    """A committed restore that is carried out again, or undone."""

    def __init__(self, session: Session, journal: Journal) -> None:
        assert journal.commit is not None
        self._session = session
        self._journal = journal
        self._commit: Commit = journal.commit
        self._safety = self._snapshot(self._commit.safety_id)
        self._target = self._snapshot(self._commit.target_id)
        records = (self._safety.record, self._target.record)
        self._rules = tuple(dict.fromkeys(rule for record in records for rule in record.rules))
        self._old, self._new = states_of(session, self._commit, self._commit.paths)
        replaced = filter(self._is_replaced, self._commit.paths if self._commit.is_way_back else ())
        relinked = filter(self._is_relinked, self._commit.paths)
        self._revealed = Revealed(frozenset(relinked), frozenset(replaced))
        """What the restore wrote though it is excluded, and directories in the way, of which the
        safety snapshot holds what is excluded too."""

    def _snapshot(self, identity: SnapshotId) -> Snapshot:
        try:
            return load_by_id(self._session, identity)
        except NotFound as error:
            raise Refused(
                f"Snapshot {identity[:12]}, which an interrupted restore needs, is gone",
                code=ErrorCode.RESTORE_INTERRUPTED,
            ) from error

    def _is_replaced(self, path: bytes) -> bool:
        old, new = self._old.entry(path), self._new.entry(path)
        return old is not None and old.is_directory and new is not None and not new.is_directory

    def _is_relinked(self, path: bytes) -> bool:
        return self._old.groups.get(path) != self._new.groups.get(path)

    def run(self, root_fd: int) -> Recovery:
        """Brings all paths that no other process changed to one state; returns what was done."""
        reason: TreesnapError | OSError | None = None
        for attempt in range(1, ATTEMPTS + 1):
            try:
                preserve_foreign_edits(self._session, self._journal)
                if self._commit.removes_first:
                    self._remove_first(root_fd)
                # Before the walk, because it changes the times of other names of what is in it.
                name = self._journal.stage_name
                tops = self._journal.stage_tops
                remove_subvolume_stages(self._session.fs, root_fd, name, tops)
                clear_stage(self._session.fs, root_fd, name)
                look = self.look(root_fd)
                forward = self._commit.removes_first or (reason is None and look.is_forward)
                self._carry_out(look, forward=forward)
            except Conflict:
                if attempt == ATTEMPTS:
                    raise
            except (TreesnapError, OSError) as error:
                if reason is not None or attempt == ATTEMPTS or self._commit.removes_first:
                    raise reason or error from error
                reason = error
            else:
                if self._commit.keeps_nothing:
                    self._session.monitor.warn(
                        WarningCode.STATE_NOT_KEPT,
                        "What the failed step left is not kept: there was no room for it",
                    )
                left_out = self._left_out(self._target if forward else self._safety)
                changed = look.paths(PathState.CHANGED)
                done = _words(reason, changed, left_out, forward=forward)
                return Recovery(done, self._commit.target_id if forward else None)
        raise AssertionError

    def _left_out(self, goal: Snapshot) -> str:
        """Returns what to report about privileges that the tree did not get."""
        if self._session.store.is_own or was_captured_here(goal):
            return ""
        paths = self._commit.paths
        _, lacking = wanted_state(self._session, goal.record, paths, None, privileged=False)
        if not (lacking.left_out or lacking.owners_left_out):
            return ""
        return ", without privileges and owners, because the store is not proven to be yours"

    def _remove_first(self, root_fd: int) -> None:
        """Removes, durably, what goes or makes way; needs no space, and frees some."""
        fs, name = self._session.fs, self._journal.stage_name
        remove_stages(fs, root_fd, name, self._journal.stage_tops)
        plan, _, _ = self._planned(self.look(root_fd), self._target)
        remove_paths(fs, root_fd, plan.removed)
        fs.sync_file_system(root_fd)

    def look(self, root_fd: int) -> Look:
        """Compares every path of the restore with both states."""
        reachable = self._reachable(root_fd)
        walked = self._walk(tuple(reachable))
        current = walked.state
        states = dict.fromkeys(self._commit.paths, PathState.CHANGED)
        for path in reachable:
            states[path] = path_state(path, current, self._old, self._new, touch=self._commit.touch)
            if self._commit.keeps_nothing and states[path] == PathState.CHANGED:
                states[path] = PathState.OPEN  # no snapshot has what the step left there
        return Look(states, walked)

    def _reachable(self, root_fd: int) -> list[bytes]:
        """Returns the paths whose directories are still directories."""
        with DirectoryChain(self._session.fs, root_fd) as chain:
            return [
                path
                for path in self._commit.paths
                if chain.find(treepath.split(path)[0]) is not None
            ]

    def _walk(self, scope: tuple[bytes, ...]) -> Capture:
        """Looks at paths, and at all of them that the restore may have written."""
        walked = self._preview(scope)
        wider = self._revealed.plus(written_of(walked.result.skipped, self._old, self._new))
        if wider != self._revealed:
            self._revealed = wider
            walked = self._preview(scope)
        return walked

    def _preview(self, scope: tuple[bytes, ...]) -> Capture:
        request = CaptureRequest(
            scope=scope,
            rules=self._rules,
            observes=True,
            heeds_ignore_files=not self._commit.is_way_back,
            revealed=self._revealed,
        )
        return preview(self._session, request)

    def _carry_out(self, look: Look, *, forward: bool) -> None:
        goal = self._target if forward else self._safety
        plan, goal_state, walked = self._planned(look, goal)
        if plan.blocked:
            # Another process made there what no snapshot has: the directories stay as they are.
            for path in self._commit.paths:
                if any(treepath.is_within(blocked, path) for blocked in plan.blocked):
                    look.states[path] = PathState.CHANGED
            plan, goal_state, walked = self._planned(look, goal)
        refuse_blocked(plan)
        for path, old, new in self._commit.directories:
            plan.directories[path] = (old, new) if forward else (new or old, old)
        transaction = Transaction(self._session, self._journal)
        work = RestoreWork(
            plan=plan,
            current=walked.state,
            target=goal_state,
            observed=walked.observed,
            rules=self._rules,
            revealed=self._revealed,
            touch=self._commit.touch and forward,
        )
        transaction.resume(work, forward=forward)

    def _planned(self, look: Look, goal: Snapshot) -> tuple[RestorePlan, State, Capture]:
        """Returns a plan for all paths that no other process changed, and both of its sides."""
        scope = look.paths(PathState.DONE, PathState.OPEN)
        walked = look.walked if scope == self._commit.paths else self._walk(scope)
        old, new = states_of(self._session, self._commit, scope)
        goal_state = new if goal is self._target else old
        spine = treepath.ancestors(scope)
        plan = make_plan(walked.state, goal_state, spine) if scope else RestorePlan()
        is_way_back = self._commit.is_way_back
        hidden = frozenset(plan.blocked) - self._revealed.whole if is_way_back else None
        if hidden:  # the snapshot has something else there, which proves that it is the step's
            self._revealed = self._revealed.plus(Revealed(whole=hidden))
            walked = self._walk(scope)
            plan = make_plan(walked.state, goal_state, spine)
        return plan, goal_state, walked


def _words(
    reason: Exception | None, changed: Sequence[bytes], left_out: str, *, forward: bool
) -> str:
    """Returns what was done, for people."""
    done = _COMPLETED
    if not forward:
        done = "undid an interrupted restore"
        if reason is not None:
            done += f", because it could not be finished ({reason})"
    done += left_out
    if changed:
        named = first_few(sorted(changed), quoted)
        done += f", but left paths alone that another process changed meanwhile: {named}"
    return done
