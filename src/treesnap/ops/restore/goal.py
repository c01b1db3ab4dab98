"""What a restore is asked for, which state it leads to, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treesnap.codec.root_files import Moment, RestoreHistory
from treesnap.model import ChangeKind, IgnoreRules, Retag, Snapshot, SnapshotId
from treesnap.ops.context import Session
from treesnap.ops.references import resolve_in
from treesnap.ops.restore.plan import RestorePlan
from treesnap.ops.state import State, effective_scope, recorded_state
from treesnap.results import RestoreResult
from treesnap.store.plan_files import PlanMove

HistoryStep = Callable[[RestoreHistory, Moment], RestoreHistory]


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """A roll-back of a failed step: see :func:`treesnap.ops.checkpoint.go_back`.

    What is in the root was left by that step, its ignore files too.
    """

    removes_first: bool = False
    """Whether what goes is removed before anything is put: there is no room for both."""
    not_kept: str | None = None
    """Why there is no room for a safety snapshot either, or None where one is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """What the caller of ``restore`` asked for."""

    ref: str
    paths: tuple[bytes, ...] = ()
    to: str | None = None
    dry_run: bool = False
    touch: bool = False
    force: bool = False
    retag: Retag | None = None
    """What becomes of the snapshot's later tags once the root is as in it."""
    way_back: WayBack | None = None
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
    way_back: WayBack | None = None
    label: str = "before restore"
    history_step: HistoryStep = RestoreHistory.restored
    removes_root: bool = False
    """Whether the goal is that there is no root; the snapshot holds an empty one."""
    move: PlanMove | None = None

    @property
    def rules(self) -> tuple[IgnoreRules, ...]:
        """The exclusions of the snapshot, which hold beside today's."""
        return self.snapshot.record.rules

    @property
    def not_kept(self) -> str | None:
        """Why the state before cannot be kept in a safety snapshot, or None where it is."""
        return self.way_back.not_kept if self.way_back is not None else None

    def state(self, session: Session) -> State:
        """Returns the snapshot's tree, with nothing but the paths in scope."""
        return recorded_state(session, self.snapshot.record, self.scope)


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
        way_back=request.way_back,
        move=request.move,
    )


def result_of(
    goal: Goal,
    plan: RestorePlan,
    current: State,
    target: State,
    *,
    safety_id: SnapshotId | None = None,
    is_dry_run: bool = False,
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
