"""``restore``: make the root exactly as in a snapshot, or not at all.

    lock the root, recover what a crash left behind
    capture the root           nothing is published yet
    plan                       pure; when both states are the same, nothing else happens
    publish the safety snapshot
    journal: staging           from here on a crash leaves a trace
    stage and verify           everything that will be put, on the root's file system
    sync the file system
    journal: applying          the commit point
    apply                      renames; each path is looked at before and after
    sync the file system
    remove what was kept aside, and the journal

Up to the commit point an error or a crash leaves the tree untouched, but for the
staging directory, which is removed. After it, an error takes everything back, and
a crash lets the next operation carry on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from stat import S_ISDIR
from typing import TYPE_CHECKING

from treesnap import treepath
from treesnap.codec.history import HISTORY, Moment, RestoreHistory
from treesnap.codec.journal import Commit, Journal
from treesnap.codec.reader import TreeReader
from treesnap.codec.tree import put_tree
from treesnap.errors import (
    Busy,
    Conflict,
    ErrorCode,
    OperationFailed,
    Refused,
    StorageFull,
    TreesnapError,
    shown,
)
from treesnap.fs.durable import ensure_directories
from treesnap.fs.failure import error_text, is_full
from treesnap.model import (
    ChangeKind,
    Entry,
    IgnoreRules,
    ObjectId,
    PlanCopy,
    Skipped,
    SkipReason,
    Snapshot,
    SnapshotId,
    SnapshotKind,
    SnapshotRecord,
    Totals,
)
from treesnap.ops.access import MemoryObjects, Opened, locked_root, opened
from treesnap.ops.capture import Capture, preview
from treesnap.ops.history import count_rollback, reading, resolve_in
from treesnap.ops.narrow import effective_scope
from treesnap.ops.places import refuse_dangerous
from treesnap.ops.plan import Plan, ancestors_of, make_plan, refuse_blocked, require_paths
from treesnap.ops.plan_files import PlanMove
from treesnap.ops.recover import Completion
from treesnap.ops.restore_history import load_history
from treesnap.ops.state import State, recorded_state, walked_state
from treesnap.ops.steps import Work
from treesnap.ops.transaction import Transaction
from treesnap.ops.upkeep import keep_up
from treesnap.results import OpenFile, RestoreResult
from treesnap.store.reserve import Reserve
from treesnap.store.writer import Added, EpochChanged, Writer
from treesnap.worktree.directory import NO_DIRECTORY, OPEN_DIRECTORY, DirectoryChain
from treesnap.worktree.observed import Observed
from treesnap.worktree.protection import protected
from treesnap.worktree.sight import conflict
from treesnap.worktree.step import key_of
from treesnap.worktree.unlock import unlock_paths

if TYPE_CHECKING:
    from treesnap.fs.base import FileSystem
    from treesnap.ops.handle import Handle

ATTEMPTS = 5
"""How often a restore is begun again when somebody else keeps changing the tree."""

HistoryStep = Callable[[RestoreHistory, Moment], RestoreHistory]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """What the caller of ``restore`` asked for."""

    ref: str
    paths: tuple[bytes, ...] = ()
    to: str | None = None
    dry_run: bool = False
    touch: bool = False
    force: bool = False
    counted: bool = False
    is_way_back: bool = False
    """Whether a failed step is rolled back: see :func:`treesnap.ops.checkpoint.go_back`."""
    removes_first: bool = False
    """Whether there is no room to keep aside what goes; for a way back alone."""
    not_kept: str | None = None
    """Why there is no room for a safety snapshot either; for a way back alone."""
    move: PlanMove | None = None
    """The plan that goes with the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A snapshot to go to, restricted to some paths or not."""

    snapshot: Snapshot
    scope: tuple[bytes, ...] | None
    paths: tuple[bytes, ...] = ()
    """What the caller named; each has to be in one of both states."""
    touch: bool = False
    force: bool = False
    is_way_back: bool = False
    """Whether what is in the root was left by a failed step, its ignore files too."""
    removes_first: bool = False
    """Whether what goes is removed before anything is put: there is no room for both."""
    not_kept: str | None = None
    """Why what is there cannot be kept in a safety snapshot, or None where it is."""
    label: str = "before restore"
    history_step: HistoryStep = RestoreHistory.restored
    removes_root: bool = False
    """Whether the goal is that there is no root; the snapshot holds an empty one."""
    move: PlanMove | None = None


def restore(handle: Handle, request: RestoreRequest) -> RestoreResult:
    """Restores; see :meth:`treesnap.Handle.restore`."""
    changes_root = request.to is None and not request.dry_run
    if request.dry_run:
        handle.recover()
    with opened(handle, "restore", writing=True, recover=not changes_root) as pair:
        if changes_root:
            refuse_dangerous_restore(handle, force=request.force)
            with locked_root(handle, pair, "restore"):
                goal = goal_of(pair, request)
                result = reach(handle, pair, goal)
                if request.counted:
                    count_rollback(handle, pair, goal.snapshot)
            if result.safety_id is not None:
                keep_up(handle)
            return result
        goal = goal_of(pair, request)
        with reading(pair, goal.snapshot):
            if request.to is not None:
                from treesnap.ops.export import export

                return export(handle, pair, goal, request.to, dry_run=request.dry_run)
            return dry_run(handle, pair, goal)


def refuse_dangerous_restore(handle: Handle, *, force: bool) -> None:
    """Raises Refused for a root that is dangerous, or no directory any more."""
    if not force:
        refuse_dangerous(handle.root, handle.store_path)
    if os.path.lexists(handle.root) and not os.path.isdir(handle.root):
        raise Refused(
            f"The root {shown(handle.root)!r} is no directory any more",
            code=ErrorCode.NOT_A_DIRECTORY,
            path=handle.root,
        )


def goal_of(pair: Opened, request: RestoreRequest) -> Goal:
    """Returns what a request asks for; raises NotFound or InvalidArgument."""
    anywhere = request.to is not None
    snapshot = resolve_in(pair, request.ref, paths=request.paths, anywhere=anywhere)
    return Goal(
        snapshot=snapshot,
        scope=effective_scope(snapshot, request.paths or None),
        paths=request.paths if snapshot.record.scope is None else (),
        touch=request.touch,
        force=request.force,
        is_way_back=request.is_way_back,
        removes_first=request.removes_first,
        not_kept=request.not_kept,
        move=request.move,
    )


def target_state(pair: Opened, goal: Goal) -> State:
    """Returns the goal's tree, with nothing but the paths that it concerns."""
    return recorded_state(pair, goal.snapshot.record, goal.scope)


def rules_of(goal: Goal) -> tuple[IgnoreRules, ...]:
    """Returns the exclusions of the goal's snapshot, which hold beside today's."""
    return goal.snapshot.record.rules


def dry_run(handle: Handle, pair: Opened, goal: Goal) -> RestoreResult:
    """Returns what a restore would do; writes nothing."""
    target = target_state(pair, goal)
    if not os.path.lexists(handle.root):
        objects = MemoryObjects(pair.store)
        empty = target.root._replace(content=empty_tree(objects))
        current = State(root=empty, trees=TreeReader(objects.get), groups={})
    else:
        seen = preview(handle, pair, goal.scope, rules_of(goal))
        current = walked_state(seen.result, seen.objects.get)
    require_paths(goal.paths, current, target)
    plan = make_plan(current, target, goal.scope)
    refuse_blocked(plan)
    refuse_in_the_way(handle, plan, goal.scope)
    return result_of(goal, plan, current, target, safety_id=None, is_dry_run=True)


def empty_tree(objects: MemoryObjects) -> ObjectId:
    """Returns the id of a directory without entries."""
    return put_tree((), Totals(), objects.put)


def refuse_in_the_way(handle: Handle, plan: Plan, scope: tuple[bytes, ...] | None) -> None:
    """Raises Refused when a directory above a path is something else by now."""
    for path in sorted(ancestors_of(scope or ()) & plan.puts.keys()):
        if os.path.lexists(os.path.join(os.fsencode(handle.root), path)):
            raise Refused(
                f"{shown(path)!r} is no directory any more, so that nothing can be put below it",
                code=ErrorCode.NOT_A_DIRECTORY,
                path=path,
            )


def refuse_unchangeable(handle: Handle) -> None:
    """Raises OSError or OperationFailed for a root in which nothing can be made or removed."""
    fd = handle.fs.open(handle.root, OPEN_DIRECTORY)
    try:
        if handle.fs.is_read_only(fd):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), handle.root)
        if handle.fs.is_protected(fd):
            raise protected(b"")
    finally:
        handle.fs.close(fd)


def reach(handle: Handle, pair: Opened, goal: Goal) -> RestoreResult:
    """Makes the root as the goal says. The caller holds the root's lock.

    With ``force`` everything is read. The way back from a failed step tries first with
    what the cache and a watcher know, because it is taken often.
    """
    fresh = goal.force and not goal.is_way_back
    earlier: Mapping[bytes, Added] = {}
    revealed: frozenset[bytes] = frozenset()
    why = ""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _attempt(handle, pair, goal, earlier, fresh=fresh, revealed=revealed)
        except EpochChanged as overtaken:
            earlier = overtaken.added
            why = "Garbage collections kept overtaking the restore"
        except _LookAgain as found:
            revealed |= found.revealed
            why = f"What is in the way of the restore kept changing: {found}"
        except _Stale as error:
            if attempt == ATTEMPTS:
                raise error.conflict from error
            fresh = True
        except Conflict:
            if not goal.force or attempt == ATTEMPTS:
                raise
            fresh = True
    raise Busy(why)


class NoRoomToKeep(StorageFull):
    """There is no room for the safety snapshot; nothing was changed."""


class NoRoomToStage(StorageFull):
    """There is no room beside the tree for what is to be put; nothing was changed."""


class _Stale(Exception):
    """Something is not what a watcher vouched for, and the walk had not looked at."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict


class _LookAgain(Exception):
    """More can be captured now than was; ``revealed`` are directories without exclusions."""

    def __init__(self, path: bytes, revealed: frozenset[bytes] = frozenset()) -> None:
        super().__init__(repr(shown(path)))
        self.revealed = revealed


def _make_way(
    handle: Handle, target: State, skipped: Iterable[Skipped], blocked: Iterable[bytes]
) -> None:
    """Raises _LookAgain when something that is in the way back can be captured after all.

    That is what a failed step closed to its owner; and what is excluded in a directory where
    the snapshot has something else, which proves that it was not there.
    """
    closed = [item.path for item in skipped if item.reason == SkipReason.UNREADABLE]
    wanted = [path for path in closed if not _is_left_out(target, path)]
    if wanted and unlock_paths(handle.fs, handle.root, wanted):
        raise _LookAgain(wanted[0])
    revealed = frozenset(blocked)
    if revealed:
        raise _LookAgain(min(revealed), revealed)


def _is_left_out(target: State, path: bytes) -> bool:
    entry = target.entry(path)
    return target.is_hidden(path) or (entry is not None and entry.is_skipped)


def _attempt(
    handle: Handle,
    pair: Opened,
    goal: Goal,
    earlier: Mapping[bytes, Added],
    *,
    fresh: bool,
    revealed: frozenset[bytes],
) -> RestoreResult:
    """Restores once. ``fresh`` walks the whole root and trusts neither watcher nor cache."""
    target = target_state(pair, goal)
    transaction = Transaction(handle, pair)
    was_absent = not os.path.lexists(handle.root)
    if was_absent:
        ensure_directories(handle.fs, os.path.dirname(handle.root))
    pair.root.register()
    try:
        transaction.ensure_root()
        recorder: dict[bytes, bytes] = {}
        with Capture(
            handle,
            pair,
            scope=goal.scope,
            rules=rules_of(goal),
            recorder=recorder,
            earlier=earlier,
            rules_of_id=goal.snapshot.id if goal.is_way_back else None,
            revealed=revealed,
            fresh=fresh,
            keeps_nothing=goal.not_kept is not None,
        ) as capture:
            current = walked_state(capture.result, capture.writer.get)
            target.trees.share(current.trees)
            require_paths(goal.paths, current, target)
            made = _made_since(handle, goal, target) if goal.is_way_back else frozenset()
            plan = make_plan(current, target, goal.scope, made)
            if goal.is_way_back:
                new = [path for path in plan.blocked if path not in revealed]
                _make_way(handle, target, capture.result.skipped, new)
            refuse_blocked(plan)
            refuse_in_the_way(handle, plan, goal.scope)
            observed = Observed(recorder, capture.cache)
            if plan.is_empty and goal.move is None:
                transaction.abandon()
                if goal.removes_root and not was_absent:
                    transaction.remove_root()
                _note_history(pair, goal, Moment(goal.snapshot.id, goal.scope, was_absent))
                return result_of(goal, plan, current, target, safety_id=None, is_dry_run=False)
            if not plan.is_empty:
                refuse_unchangeable(handle)
            if capture.trusts_watcher and not goal.force:
                _refuse_stale(handle, plan, observed)
            label = f"{goal.label} {goal.snapshot.id[:12]}"
            moved = {} if goal.move is None else {**goal.move.metadata, "plan": goal.move.before}
            if goal.not_kept is not None:
                safety = _publish_in_place(handle, pair, goal.snapshot, f"not kept {label}")
            else:
                safety = capture.publish(
                    capture.record(kind=SnapshotKind.SAFETY, label=label, **moved)
                )
    except BaseException as error:
        transaction.abandon()
        if goal.is_way_back and _is_want_of_room(error):
            raise NoRoomToKeep(_text_of(error)) from error
        raise
    history = goal.history_step(load_history(pair.root), Moment(safety.id, goal.scope, was_absent))
    commit = Commit(
        target_id=goal.snapshot.id,
        safety_id=safety.id,
        paths=plan.paths,
        directories=plan.finishes,
        history=HISTORY.payload(history),
        touch=goal.touch,
        removes_root=goal.removes_root,
        is_way_back=goal.is_way_back,
        removes_first=goal.removes_first,
        keeps_nothing=goal.not_kept is not None,
        plan=_moved(goal.move, safety),
    )
    still_open: tuple[OpenFile, ...] = ()
    in_place: Journal | None = None
    try:
        if plan.is_empty:
            transaction.run_without_files(current, commit)
        else:
            work = Work(
                plan=plan,
                current=current,
                target=target,
                observed=observed,
                rules=rules_of(goal),
                touch=goal.touch,
            )
            if goal.removes_first:
                in_place = transaction.commit_in_place(work, commit)
            else:
                still_open = transaction.run(work, commit)
    except BaseException as error:
        transaction.abandon()
        if goal.is_way_back and _is_want_of_room(error):
            raise NoRoomToStage(_text_of(error)) from error
        raise
    if in_place is not None:
        _carry_out_in_place(handle, pair, in_place)
    if was_absent:
        with suppress(OSError):  # the files are back; a move of them is only not noticed
            pair.root.note_identity()
    kept = safety.id if goal.not_kept is None else None
    result = result_of(goal, plan, current, target, safety_id=kept, is_dry_run=False)
    return replace(result, open_files=still_open, not_kept=goal.not_kept)


def _made_since(handle: Handle, goal: Goal, target: State) -> frozenset[bytes]:
    """Returns the directories above the scope that the failed step made, and nothing else is in.

    The goal's snapshot has all directories above its paths that were there.
    """
    scope = goal.scope or ()
    above = sorted(ancestors_of(scope) - {treepath.ROOT}, reverse=True)
    going: set[bytes] = set()
    root_fd = handle.fs.open(handle.root, OPEN_DIRECTORY)
    try:
        with DirectoryChain(handle.fs, root_fd) as chain:
            for path in above:  # what is below comes first
                if _entry_in(goal.snapshot, target, path) is not None:
                    continue
                try:
                    names = handle.fs.list_names(chain.open(path))
                except OSError:  # not there, or not a directory
                    continue
                inside = {treepath.join(path, os.fsencode(name)) for name in names}
                if inside <= going.union(scope):
                    going.add(path)
    finally:
        handle.fs.close(root_fd)
    return frozenset(going)


def _entry_in(snapshot: Snapshot, target: State, path: bytes) -> Entry | None:
    """Returns what a snapshot has at a path, in its scope or above it."""
    entry: Entry | None = snapshot.record.root
    for name in treepath.components(path):
        if entry is None or not entry.is_directory:
            return None
        entry = target.trees.lookup(entry.tree_id, name)
    return entry


def _refuse_stale(handle: Handle, plan: Plan, observed: Observed) -> None:
    """Raises _Stale unless every path to be touched is what it was when it was last read.

    So what changes from here on is another's edit, and a conflict, although a watcher may have
    missed an older one. Costs one look for each path to be touched, and at what directories hold
    that go as a whole, as applying the plan does.
    """
    fs = handle.fs
    root_fd = fs.open(handle.root, OPEN_DIRECTORY)
    try:
        with DirectoryChain(fs, root_fd) as chain:
            for path in sorted(plan.touched):
                if not _is_as_observed(fs, chain, path, observed):
                    raise _Stale(conflict(path))
    finally:
        fs.close(root_fd)


def _is_as_observed(fs: FileSystem, chain: DirectoryChain, path: bytes, observed: Observed) -> bool:
    directory, name = treepath.split(path)
    try:
        fd = chain.open(directory)
        try:
            found = fs.lstat(name, dir_fd=fd)
        except FileNotFoundError:
            return observed.key(path) is None
        if key_of(found) != observed.key(path):
            return False
        if not S_ISDIR(found.st_mode):
            return True
        return observed.is_unchanged_below(fs, chain.open(path), path, frozenset(), frozenset())
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            return False
        raise


def _is_want_of_room(error: BaseException) -> bool:
    return isinstance(error, StorageFull) or (isinstance(error, OSError) and is_full(error))


def _text_of(error: BaseException) -> str:
    return error_text(error) if isinstance(error, Exception) else str(error)


def _publish_in_place(handle: Handle, pair: Opened, snapshot: Snapshot, label: str) -> Snapshot:
    """Publishes the state to go to where that before should be, which there is no room for.

    So the history has a moment of this restore's own, as every other one. Takes a few KiB, on
    a full disk from the store's reserve.
    """
    store, root = pair.store, pair.root
    goal = snapshot.record

    def publish() -> Snapshot:
        listing = store.snapshots.listing(root.id)
        record = SnapshotRecord(
            root=goal.root,
            links=goal.links,
            root_path=os.fsencode(handle.root),
            created_at_ns=handle.clock_ns(),
            totals=goal.totals,
            kind=SnapshotKind.SAFETY,
            scope=goal.scope,
            rules=goal.rules,
            unstable=goal.unstable,
            parent=listing.newest.id if listing.newest is not None else None,
            label=label,
            host=os.uname().nodename,
        )
        with Writer(store) as writer:
            _, name = writer.publish(record, root.id, listing.next_sequence)
        return store.snapshots.load(root.id, name)

    return Reserve(handle.fs, store.layout).backs(publish)


def _carry_out_in_place(handle: Handle, pair: Opened, journal: Journal) -> None:
    """Does what recovery would do; raises OperationFailed where the rest is left to that."""
    root_fd = handle.fs.open(handle.root, OPEN_DIRECTORY)
    try:
        Completion(handle, pair, journal).run(root_fd)
    except (TreesnapError, OSError) as error:
        raise OperationFailed(
            f"The restore could not be finished yet ({error_text(error)}); "
            "the next command on this root goes on with it",
            code=ErrorCode.RESTORE_INTERRUPTED,
            path=handle.root,
        ) from error
    finally:
        handle.fs.close(root_fd)


def _moved(move: PlanMove | None, safety: Snapshot) -> PlanCopy | None:
    """Returns the plan as it will be once the restore is done."""
    return PlanCopy(move.before.plan_id, move.after(safety)) if move is not None else None


def _note_history(pair: Opened, goal: Goal, moment: Moment) -> None:
    """Moves undo and redo on when there was nothing to do; a plain restore leaves no trace."""
    if goal.history_step is not RestoreHistory.restored:
        history = goal.history_step(load_history(pair.root), moment)
        pair.root.write("history", HISTORY, history)


def result_of(
    goal: Goal,
    plan: Plan,
    current: State,
    target: State,
    *,
    safety_id: SnapshotId | None,
    is_dry_run: bool,
) -> RestoreResult:
    """Returns the outcome of a plan that was carried out, or would be."""
    created = plan.count(ChangeKind.ADDED)
    restored = plan.count(ChangeKind.MODIFIED, ChangeKind.TYPE, ChangeKind.METADATA)
    totals = target.trees.totals(target.root.tree_id)
    held = totals.files + totals.directories + totals.others
    return RestoreResult(
        snapshot=goal.snapshot,
        scope=goal.scope,
        restored=restored,
        created=created,
        deleted=plan.count(ChangeKind.REMOVED),
        unchanged=max(0, held - created - restored),
        untouched=tuple(plan.untouched),
        changes=plan.changes,
        safety_id=safety_id,
        dry_run=is_dry_run,
        links_broken=tuple(sorted(current.linked_outside.intersection(plan.puts))),
        plan_id=goal.move.before.plan_id if goal.move is not None else None,
    )
