"""Making a root exactly as in a snapshot, or not at all.

    lock the root, recover what a crash left behind
    capture the root           nothing is published yet
    plan                       pure; when both states are the same, nothing else happens
    look for other names       of files to be replaced; with any, look and capture once more
    publish the safety snapshot
    journal: staging           from here on a crash leaves a trace
    stage and verify           everything that will be put, on the root's file system
    sync the file system
    journal: applying          the commit point
    apply                      renames; each path is looked at before and after
    sync the file system
    remove what was moved aside, or leave that to a process; remove the journal

Up to the commit point an error or a crash leaves the tree untouched, but for the staging
directory, which is removed. After it, an error undoes everything, and a crash lets the next
operation carry on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from stat import S_ISDIR

from treesnap.core.codec.journal import Commit, Journal
from treesnap.core.codec.root_files import HISTORY, Moment
from treesnap.core.codec.snapshot import state_hash
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.mounts import Mounts
from treesnap.core.fs.os_errors import error_text, is_full
from treesnap.core.fs.real_path import opened_real
from treesnap.core.model import treepath
from treesnap.core.model.entries import Skipped, SkipReason
from treesnap.core.model.errors import (
    Busy,
    Conflict,
    ErrorCode,
    OperationFailed,
    Refused,
    StorageFull,
    TreesnapError,
    WarningCode,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import first_few
from treesnap.core.model.requests import NOTHING_REVEALED, CaptureRequest, Revealed
from treesnap.core.model.results import OpenFile, Privileges, RestoreResult
from treesnap.core.model.snapshots import Attachment, Snapshot, SnapshotKind
from treesnap.core.model.type_names import Any
from treesnap.core.ops.capture import Capture, preview, publish_again
from treesnap.core.ops.checkpoint_locks import refuse_overlap, settle_steps
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.databases import logs_left
from treesnap.core.ops.restore.plan import (
    Goal,
    RestorePlan,
    make_plan,
    refuse_blocked,
    result_of,
    safety_label,
)
from treesnap.core.ops.restore.recover import Completion
from treesnap.core.ops.restore.transaction import RestoreWork, Transaction
from treesnap.core.ops.tree_state import State, empty_state, recorded_state, require_paths
from treesnap.core.ops.trust import ensure_above_root, has_root
from treesnap.core.store.attachments import AttachmentChange
from treesnap.core.store.reserve import Reserve
from treesnap.core.store.roots import load_history
from treesnap.core.store.writer import Added, retry_overtaken
from treesnap.core.worktree.apply.preconditions import Observed, always_proven, conflict
from treesnap.core.worktree.apply.protection import refuse_flags, unlock_paths
from treesnap.core.worktree.apply.step import key_of
from treesnap.core.worktree.directory import NO_DIRECTORY, DirectoryChain, open_chain
from treesnap.core.worktree.scan.hard_links import find_names
from treesnap.core.worktree.scan.ignore import Exclusions

ATTEMPTS = 5
"""How often a restore is tried when another process keeps changing the tree."""


def _refuse_unchangeable(context: Context) -> None:
    """Raises OSError or OperationFailed for a root in which nothing can be made or removed."""
    with opened_real(context.fs, context.root) as fd:
        if context.fs.is_read_only(fd):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), context.root)
        refuse_flags(context.fs, fd, treepath.ROOT)


def _refuse_in_the_way(
    context: Context, plan: RestorePlan, scope: tuple[bytes, ...] | None
) -> None:
    """Raises Refused when a directory above a path is no longer a directory."""
    for path in sorted(treepath.ancestors(scope or ()) & plan.puts.keys()):
        if os.path.lexists(os.path.join(os.fsencode(context.root), path)):
            raise Refused(
                f"{quoted(path)} is no longer a directory, so that nothing can be put below it",
                code=ErrorCode.NOT_A_DIRECTORY,
                path=path,
            )


def dry_run(session: Session, goal: Goal) -> RestoreResult:
    """Returns what a restore would do; writes nothing. Refuses a root that is covered too."""
    refuse_covered(session)
    seen: Capture | None = None
    own, view = goal, _first_view(session, goal)
    goal = goal.reaching(view.linked)
    while True:
        if has_root(session.context):
            request = CaptureRequest(
                scope=goal.scope,
                rules=goal.rules,
                heeds_ignore_files=goal.request.way_back is None,
                revealed=view.revealed,
            )
            seen = preview(session, request)
            current = seen.state
            target, left_out = goal.wanted(session, current)
        else:
            target, left_out = goal.wanted(session, None)
            current = empty_state(session, target.root)
        require_paths(goal.paths, current, target)
        bases = goal.base_states(session)
        plan = _planned(session, goal, current, target, bases, asked=own)
        wider = view.with_written(goal, session, seen, plan)
        if wider == view:
            break
        view = wider
    refuse_blocked(plan)
    _refuse_in_the_way(session.context, plan, goal.scope)
    _ask_approval(goal, seen)
    return result_of(own, plan, target, is_dry_run=True, left_out=left_out)


def _ask_approval(goal: Goal, seen: Capture | None) -> None:
    """Shows the caller which state would be replaced; None stands for a root that is absent."""
    if goal.request.approve is not None:
        goal.request.approve(state_hash(seen.record()) if seen is not None else "")


class NoRoomToKeep(StorageFull):
    """There is no room for the safety snapshot; nothing was changed."""


class NoRoomToStage(StorageFull):
    """There is no room beside the tree for what is to be put; nothing was changed."""


class _Stale(Exception):
    """Something has changed that a watcher vouched for, and that the walk did not look at."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict


class _LookAgain(Exception):
    """More can be captured now than was, or less; None stands for the same view."""

    def __init__(self, path: bytes, view: _View | None = None) -> None:
        super().__init__(quoted(path))
        self.view = view


class _View(NamedTuple):
    """What a restore looks at although it is excluded."""

    revealed: Revealed = NOTHING_REVEALED
    left_alone: frozenset[bytes] = frozenset()
    """What stays excluded, because what is excluded by now is in it, or no operation wrote it."""
    linked: frozenset[bytes] = frozenset()
    """Names that become one file again with what is undone."""
    others: frozenset[bytes] = frozenset()
    """Other names of files that are replaced: the safety snapshot holds them too."""

    def with_written(
        self, goal: Goal, session: Session, seen: Capture | None, plan: RestorePlan
    ) -> _View:
        """Returns the view with all that the operation wrote that the goal undoes.

        Except where something that is excluded is in the way: that stays, and is listed.
        """
        in_the_way = self.revealed.paths.intersection(plan.blocked)
        if in_the_way:
            paths = self.revealed.paths - in_the_way
            return _View(self.revealed._replace(paths=paths), self.left_alone | in_the_way)
        if seen is None:
            return self
        written = goal.written(session, seen.result.skipped)
        paths = written.paths - self.left_alone
        return self._replace(revealed=self.revealed.plus(Revealed(paths=paths)))


def _first_view(session: Session, goal: Goal) -> _View:
    """Returns what an undo looks at beside its paths: names that its operation unlinked.

    The safety snapshot has them with what they were linked to, although they are out of scope or
    were excluded. One that is still as it was then becomes the same file again. Another is left
    alone, unless it is as the operation made it. Costs a look at them, and nothing where there
    are none.
    """
    record = goal.snapshot.record
    if not goal.is_step or record.links is None or not session.context.has_root():
        return _View()
    safety = recorded_state(session, record, None)
    rules = Exclusions(record.rules, heeds_files=False)
    names = frozenset(
        path for path in safety.groups if not goal.concerns(path) or rules.hides(path)
    )
    if not names:
        return _View()
    scope = treepath.without_nested([*names])
    request = CaptureRequest(scope=scope, rules=goal.rules, revealed=Revealed(paths=names))
    live = preview(session, request).state
    same = frozenset(
        path
        for path in names
        if path not in live.linked_outside and live.entry(path) == safety.entry(path)
    )
    made = goal.left_state(session)
    others = frozenset(
        path for path in names - same if made is None or live.entry(path) != made.entry(path)
    )
    return _View(Revealed(paths=same), others, linked=same)


def _other_names(
    session: Session, goal: Goal, seen: Capture, plan: RestorePlan
) -> frozenset[bytes]:
    """Returns the other names of what is to be replaced or removed, where a walk did not come.

    Of the whole root, that is below what is excluded. Costs a look at each name there, only if a
    file that goes has such a name.
    """
    going = plan.puts.keys() | plan.removals.keys()
    replaced = [
        path
        for path in seen.state.linked_outside
        if path in going or not going.isdisjoint(treepath.parents(path))
    ]
    if not replaced:
        return frozenset()
    tops = [treepath.ROOT]
    if goal.scope is None:
        skipped = seen.result.skipped
        tops = [item.path for item in skipped if item.reason == SkipReason.EXCLUDED]
    groups = seen.result.link_groups
    grouped = frozenset(path for *_, path in groups.names)
    return find_names(session.fs, session.context.root, tops, grouped, groups.missing(replaced))


def refuse_covered(session: Session) -> None:
    """Raises Refused for a root over which something else was mounted since it was captured.

    A root that was a mount itself may be mounted anew, which a new disk is; so only a directory
    of the file system above it counts as covered. What is mounted is the root once a capture
    says so.
    """
    context, record = session.context, session.root.record
    if record is None or not Mounts(context.fs).is_point(os.fsencode(context.root)):
        return
    above = context.fs.lstat(os.path.dirname(context.root)).st_dev
    if record.device == above and session.root.is_replaced():
        raise covered(context)


def covered(context: Context) -> Refused:
    """Returns that the root is covered by a mount."""
    return Refused(
        f"Something else is mounted where {quoted(context.root)} was, and was left as it is",
        code=ErrorCode.ROOT_COVERED,
        path=context.root,
    )


def _refuse_unnamed(session: Session) -> None:
    """Raises Refused where it may be a stranger who says which directory is the root."""
    context = session.context
    if not context.is_root_named and not session.store.is_own:
        raise Refused(
            f"That {quoted(context.root)} is the root, only the store {quoted(context.store_path)} "
            "says, which is not proven to be yours",
            code=ErrorCode.ROOT_NOT_NAMED,
            path=context.root,
        )


def restore_to(session: Session, goal: Goal) -> RestoreResult:
    """Makes the root as the goal says. The caller holds the root's lock.

    Raises Refused for a root that is covered by a mount, and for one that a stranger may have
    named. Raises Overlapping while another block may go back over the same paths: it would take
    the restore back without a word.

    With ``force`` everything is read. The way back from a failed step tries first with
    what the cache and a watcher know, because it is common.
    """
    refuse_covered(session)
    force, way_back = goal.request.force, goal.request.way_back
    is_of_step = way_back is not None and not way_back.is_late
    if not is_of_step:
        _refuse_unnamed(session)
        refuse_overlap(session, goal.scope)
    fresh = force and not is_of_step
    view = _first_view(session, goal)
    why = ""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            restore_once = partial(_restore_once, session, goal, view, fresh=fresh)
            result = retry_overtaken("the restore", restore_once)
            settle_steps(session, goal.snapshot, goal.scope)
            return result
        except _LookAgain as found:
            view = found.view or view
            why = f"What is in the way of the restore kept changing: {found}"
        except _Stale as error:
            if attempt == ATTEMPTS:
                raise error.conflict from error
            fresh = True
        except Conflict:
            if not force or attempt == ATTEMPTS:
                raise
            fresh = True
    raise Busy(why)


def _restore_once(
    session: Session, goal: Goal, view: _View, earlier: Mapping[bytes, Added], *, fresh: bool
) -> RestoreResult:
    return _RestoreAttempt(session, goal, view, fresh=fresh).restore(earlier)


class _RestoreAttempt:
    """One attempt to restore."""

    def __init__(self, session: Session, goal: Goal, view: _View, *, fresh: bool) -> None:
        """``fresh`` walks the whole root and trusts neither watcher nor cache."""
        self._session = session
        self._context = session.context
        self._asked = goal
        self._goal = goal.reaching(view.linked)
        self._view = view
        self._request = CaptureRequest(
            scope=self._goal.scope,
            rules=goal.rules,
            observes=True,
            heeds_ignore_files=goal.request.way_back is None,
            revealed=view.revealed,
            rules_of_id=goal.snapshot.id,
            fresh=fresh,
        )
        self._was_absent = not has_root(session.context)
        self._transaction = Transaction(session)

    def restore(self, earlier: Mapping[bytes, Added]) -> RestoreResult:
        """Restores once.

        make the root                  when it is absent
        capture it                     for the safety snapshot; nothing is published yet
        plan                           from what is to be restored of it
        refuse                         what is in the way, or changed meanwhile
        return                         when both states are the same
        publish the safety snapshot
        stage, commit, apply
        """
        session, goal, transaction = self._session, self._goal, self._transaction
        if self._was_absent:
            ensure_above_root(self._context)
        session.root.register()
        with self._abandoning(NoRoomToKeep):
            transaction.ensure_root()
            seen = preview(session, self._request) if self._view.others else None
            with Capture(session, self._request_to_keep(), earlier=earlier) as capture:
                seen = seen or capture
                work, left_out = self._plan(seen)
                self._refuse(seen, work)
                if work.plan.is_empty and goal.request.attachment is None:
                    self._end_unchanged()
                    return result_of(self._asked, work.plan, work.target, left_out=left_out)
                if not work.plan.is_empty:
                    _refuse_unchangeable(self._context)
                if seen.trusts_watcher and not goal.request.force:
                    _refuse_stale(self._context, work.plan, work.observed)
                safety = self._publish(capture)
        commit = self._commit(work, safety)
        with self._abandoning(NoRoomToStage):
            open_files, in_place = self._carry_out(work, commit)
        if in_place is not None:
            _carry_out_in_place(session, in_place)
        if self._was_absent:
            with suppress(OSError):  # the files are back; only a later move might go unnoticed
                session.root.note_identity()
        _warn_of_logs(session, seen, work)
        safety_id = safety.id if goal.not_kept is None else None
        result = result_of(
            self._asked, work.plan, work.target, safety_id=safety_id, left_out=left_out
        )
        return result._replace(open_files=open_files, not_kept=goal.not_kept)

    @contextmanager
    def _abandoning(self, no_room: type[StorageFull]) -> Iterator[None]:
        """Abandons the transaction when the body raises; a way back hears where room is missing."""
        try:
            yield
        except BaseException as error:
            self._transaction.abandon()
            want = _want_of_room(error) if self._goal.request.way_back is not None else None
            if want is not None:
                raise no_room(want) from error
            raise

    def _request_to_keep(self) -> CaptureRequest:
        """Returns what the safety snapshot holds: more than what is restored, if that has links."""
        others = self._view.others
        return self._request._replace(
            scope=self._goal.reaching(others).scope,
            revealed=self._view.revealed.plus(Revealed(paths=others)),
            keeps_nothing=self._goal.not_kept is not None,
        )

    def _plan(self, seen: Capture) -> tuple[RestoreWork, Privileges]:
        """Returns what has to be done, and which privileges are left out of it."""
        session, goal = self._session, self._goal
        current = seen.state
        target, left_out = goal.wanted(session, None if self._was_absent else current)
        target.trees.share(current.trees)
        require_paths(goal.paths, current, target)
        bases = goal.base_states(session)
        if self._was_absent:  # this restore made the root: its metadata is not a change by others
            bases = tuple(
                base._replace(root=current.root._replace(content=base.root.content))
                for base in bases
            )
        work = RestoreWork(
            plan=_planned(session, goal, current, target, bases, asked=self._asked),
            current=current,
            target=target,
            observed=seen.observed,
            rules=goal.rules,
            revealed=self._view.revealed,
            touch=goal.request.touch,
            source=goal.snapshot,
        )
        return work, left_out

    def _refuse(self, seen: Capture, work: RestoreWork) -> None:
        """Raises _LookAgain where a wider view shows more, Refused for what is in the way.

        And what the caller raises, who is asked last.
        """
        session, goal, view, plan = self._session, self._goal, self._view, work.plan
        if goal.request.way_back is not None:
            _make_way(self._context, work.target, seen.result.skipped, plan, view)
        wider = view.with_written(goal, session, seen, plan)
        if wider != view:
            raise _LookAgain(min(wider.revealed.paths ^ view.revealed.paths), wider)
        refuse_blocked(plan)
        _refuse_in_the_way(self._context, plan, goal.scope)
        if not view.others and goal.not_kept is None:
            others = _other_names(session, goal, seen, plan)
            if others:
                raise _LookAgain(min(others), view._replace(others=others))
        _ask_approval(goal, None if self._was_absent else seen)

    def _end_unchanged(self) -> None:
        """Ends where there is nothing to do, but for the history and a root that was made."""
        self._transaction.abandon()
        if self._goal.removes_root and not self._was_absent:
            self._transaction.remove_root()
        _record_history(self._session, self._goal, self._moment(self._goal.snapshot))

    def _moment(self, snapshot: Snapshot) -> Moment:
        """Returns the moment of the history to which a snapshot leads back."""
        return Moment(snapshot.id, self._asked.scope, self._was_absent)

    def _publish(self, capture: Capture) -> Snapshot:
        """Publishes the safety snapshot, or what stands for it where there is no room."""
        goal, label = self._goal, safety_label(self._goal)
        if goal.not_kept is not None:
            return _publish_in_place(self._session, goal.snapshot, f"not kept {label}")
        carried = _carried(goal.request.attachment)
        return capture.publish(capture.record(kind=SnapshotKind.SAFETY, label=label, **carried))

    def _commit(self, work: RestoreWork, safety: Snapshot) -> Commit:
        """Returns what the journal says of the restore."""
        goal, way_back = self._goal, self._goal.request.way_back
        history = load_history(self._session.root)
        return Commit(
            target_id=goal.snapshot.id,
            safety_id=safety.id,
            paths=work.plan.paths,
            directories=work.plan.finishes,
            history=HISTORY.payload(goal.history_step(history, self._moment(safety))),
            touch=goal.request.touch,
            removes_root=goal.removes_root,
            is_way_back=way_back is not None,
            removes_first=way_back is not None and way_back.removes_first,
            keeps_nothing=goal.not_kept is not None,
            attachment=_changed(goal.request.attachment, safety),
            privileged=goal.is_asked,
        )

    def _carry_out(
        self, work: RestoreWork, commit: Commit
    ) -> tuple[tuple[OpenFile, ...], Journal | None]:
        """Stages, commits and applies; where there is no room to stage, only commits.

        Returns which of the replaced files were open, and the journal that is to be carried out.
        """
        if work.plan.is_empty:
            self._transaction.run_without_files(work.current, commit)
            return (), None
        if commit.removes_first:
            return (), self._transaction.commit_in_place(work, commit)
        return self._transaction.run(work, commit), None


def _warn_of_logs(session: Session, seen: Capture, work: RestoreWork) -> None:
    """Warns of logs that stay beside databases of SQLite that were put back."""
    left = logs_left(session, seen.result.skipped, work.plan.puts, work.target.entry)
    if left:
        session.monitor.warn(
            WarningCode.DATABASE_LOG_LEFT,
            "Excluded, so it was left beside a database of another state, which it may damage: "
            f"{first_few(left, quoted)}",
        )


def _planned(
    session: Session,
    goal: Goal,
    current: State,
    target: State,
    bases: Sequence[State],
    *,
    asked: Goal,
) -> RestorePlan:
    """Returns the steps from the current state to the target.

    The goal may reach further than what was ``asked`` for, by names of the same files.
    """
    above = treepath.ancestors(goal.scope or ())
    spine = above
    if goal.request.way_back is not None or goal.is_step:
        spine = above - _made_since(session.context, goal, target)
    return make_plan(
        current,
        target,
        spine,
        reached=above - treepath.ancestors(asked.scope or ()),
        budget=goal.budget(session),
        bases=bases,
        base_budget=session.path_budget(),
        overwrites=goal.overwrites,
    )


def _make_way(
    context: Context,
    target: State,
    skipped: Iterable[Skipped],
    plan: RestorePlan,
    view: _View,
) -> None:
    """Raises _LookAgain when something that is in the way back can be captured after all.

    That is what a failed step made unreadable for its owner; and what is excluded in a directory
    where the snapshot has something else, which proves that it was not there.
    """
    closed = [item.path for item in skipped if item.reason == SkipReason.UNREADABLE]
    closed_targets = [path for path in closed if not _is_left_out(target, path)]
    if closed_targets and unlock_paths(context.fs, context.root, closed_targets):
        raise _LookAgain(closed_targets[0])
    new = frozenset(plan.blocked) - view.revealed.whole
    if new:
        wider = view._replace(revealed=view.revealed.plus(Revealed(whole=new)))
        raise _LookAgain(min(new), wider)


def _is_left_out(target: State, path: bytes) -> bool:
    entry = target.entry(path)
    return target.is_hidden(path) or (entry is not None and entry.is_skipped)


def _made_since(context: Context, goal: Goal, target: State) -> frozenset[bytes]:
    """Returns the directories above the scope that were made since, and that hold nothing else.

    A failed step made them, or the operation that is undone. The goal's snapshot has all
    directories above its paths that were there.
    """
    scope = goal.scope or ()
    above = sorted(treepath.ancestors(scope) - {treepath.ROOT}, reverse=True)
    going: set[bytes] = set()
    with open_chain(context.fs, context.root) as chain:
        for path in above:  # what is below comes first
            if target.trees.find(goal.snapshot.record.root, path) is not None:
                continue
            try:
                names = context.fs.list_names(chain.open(path))
            except OSError:  # not there, or not a directory
                continue
            inside = {treepath.join(path, os.fsencode(name)) for name in names}
            if inside <= going.union(scope):
                going.add(path)
    return frozenset(going)


def _refuse_stale(context: Context, plan: RestorePlan, observed: Observed) -> None:
    """Raises _Stale unless every path to be touched is what it was when it was last read.

    So what changes from here on is another process's edit, and a conflict, although a watcher
    may have missed an older one. Costs one look for each path to be touched, and at what
    directories hold that go as a whole, as applying the plan does.
    """
    with open_chain(context.fs, context.root) as chain:
        for path in sorted(plan.touched):
            if not _is_as_observed(context.fs, chain, path, observed):
                raise _Stale(conflict(path))


def _is_as_observed(fs: FileSystem, chain: DirectoryChain, path: bytes, observed: Observed) -> bool:
    directory, name = treepath.split(path)
    try:
        fd = chain.open(directory)
        try:
            status = fs.lstat(name, dir_fd=fd)
        except FileNotFoundError:
            return observed.key(path) is None
        if key_of(status) != observed.key(path):
            return False
        if not S_ISDIR(status.st_mode):
            return True
        return observed.is_unchanged_below(fs, chain.open(path), path, frozenset(), always_proven)
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            return False
        raise


def _want_of_room(error: BaseException) -> str | None:
    """Returns the message of an error that says that there is no room, or None."""
    if isinstance(error, StorageFull) or (isinstance(error, OSError) and is_full(error)):
        return error_text(error)
    return None


def _publish_in_place(session: Session, snapshot: Snapshot, label: str) -> Snapshot:
    """Publishes the state to go to instead of the one before, for which there is no room.

    So the history has a moment of this restore's own, as every other one. Takes a few KiB, on
    a full disk from the store's reserve.
    """
    newest = session.store.snapshots.listing(session.root.id).newest
    publish = partial(
        publish_again,
        session,
        snapshot,
        "the restore",
        root_path=os.fsencode(session.context.root),
        kind=SnapshotKind.SAFETY,
        parent=newest.id if newest is not None else None,
        host=os.uname().nodename,
        label=label,
        **dict.fromkeys(("name", "session", "step")),
        tags={},
    )
    return Reserve(session.fs, session.store.layout).retry_without_reserve(publish)


def _carry_out_in_place(session: Session, journal: Journal) -> None:
    """Does what recovery would do; raises OperationFailed where the rest is left to that."""
    root = session.context.root
    try:
        with opened_real(session.fs, root) as root_fd:
            Completion(session, journal).run(root_fd)
    except (TreesnapError, OSError) as error:
        raise OperationFailed(
            f"The restore could not be finished yet ({error_text(error)}); "
            "the next command on this root goes on with it",
            code=ErrorCode.RESTORE_INTERRUPTED,
            path=root,
        ) from error


def _carried(change: AttachmentChange | None) -> dict[str, Any]:
    """Returns the fields of the safety snapshot that hold the attachment as it was."""
    return {} if change is None else {**change.metadata, "attachment": change.before}


def _changed(change: AttachmentChange | None, safety: Snapshot) -> Attachment | None:
    """Returns the attachment as it will be once the restore is done."""
    return change.before._replace(payload=change.after(safety)) if change is not None else None


def _record_history(session: Session, goal: Goal, moment: Moment) -> None:
    """Moves undo and redo on when there was nothing to do; a plain restore leaves no trace."""
    if goal.is_step:
        history = goal.history_step(load_history(session.root), moment)
        session.root.write("history", HISTORY, history)
