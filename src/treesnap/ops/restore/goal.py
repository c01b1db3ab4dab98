"""Where a restore is to lead, and what it says when it is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treesnap.codec.history import Moment, RestoreHistory
from treesnap.codec.tree import put_tree
from treesnap.model import (
    ChangeKind,
    IgnoreRules,
    ObjectId,
    Snapshot,
    SnapshotId,
    Totals,
)
from treesnap.ops.references import resolve_in
from treesnap.ops.restore.plan import RestorePlan
from treesnap.ops.session import Session
from treesnap.ops.state import MemoryObjects, State, effective_scope, recorded_state
from treesnap.results import RestoreResult
from treesnap.store.plan_files import PlanMove

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


def goal_of(session: Session, request: RestoreRequest) -> Goal:
    """Returns what a request asks for; raises NotFound or InvalidArgument."""
    anywhere = request.to is not None
    snapshot = resolve_in(session, request.ref, paths=request.paths, anywhere=anywhere)
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


def target_state(session: Session, goal: Goal) -> State:
    """Returns the goal's tree, with nothing but the paths that it concerns."""
    return recorded_state(session, goal.snapshot.record, goal.scope)


def rules_of(goal: Goal) -> tuple[IgnoreRules, ...]:
    """Returns the exclusions of the goal's snapshot, which hold beside today's."""
    return goal.snapshot.record.rules


def empty_tree(objects: MemoryObjects) -> ObjectId:
    """Returns the id of a directory without entries."""
    return put_tree((), Totals(), objects.put)


def result_of(
    goal: Goal,
    plan: RestorePlan,
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
