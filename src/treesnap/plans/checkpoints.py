"""Checkpoints of a plan: a snapshot of its root, tied to what the plan had done by then.

Snapshots of plans are automatic ones, which the default policy thins out. One that a plan
cannot do without for a while is *held*: pinned, and listed in the plan, so that it is let
go though the process that took it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from treesnap.errors import ErrorCode, NotFound, Refused
from treesnap.facts import CheckpointType, fact_tags, facts_of
from treesnap.model import Snapshot, SnapshotId, SnapshotKind
from treesnap.ops.create import CreateRequest, create
from treesnap.ops.history import delete, list_snapshots, resolve, set_pinned
from treesnap.ops.references import Filter
from treesnap.plans.plan import (
    Checkpoint,
    CheckpointId,
    Plan,
    StepState,
    may_begin_ulid,
    new_ulid,
)
from treesnap.plans.record import content_hash
from treesnap.plans.repository import save

if TYPE_CHECKING:
    from treesnap.ops.context import Context

SOURCE_TOOL = "snap plan"
BEFORE_ROLLBACK = "before_rollback"
"""The reason of the checkpoint of the state that a roll-back left."""


def take_snapshot(
    context: Context,
    plan: Plan,
    label: str,
    kind: CheckpointType,
    facts: Mapping[str, str | None] | None = None,
) -> Snapshot:
    """Captures the root as the plan's next step finds it. It falls under the default policy.

    ``facts`` says more than what follows from the plan.
    """
    return create(context, snapshot_request(plan, label, kind, facts)).snapshot


def snapshot_request(
    plan: Plan,
    label: str,
    kind: CheckpointType,
    facts: Mapping[str, str | None] | None = None,
) -> CreateRequest:
    """Returns what :func:`take_snapshot` asks for."""
    index = plan.next_index
    leaves = plan.leaves
    given = facts or {}
    tags = fact_tags(
        step_name=leaves[index].step.name if index < len(leaves) else None,
        phase=given.get("phase") or phase_of(plan, index),
        type=kind.value,
        reason=given.get("reason") or label,
        source_tool=given.get("source_tool") or SOURCE_TOOL,
    )
    return CreateRequest(
        label=label,
        session=plan.id,
        step=index,
        tags={"plan": plan.name, **tags},
        kind=SnapshotKind.PLAN,
    )


def phase_of(plan: Plan, index: int) -> str:
    """Returns the sub-plans around a step, or the plan itself, as one text."""
    leaves = plan.leaves
    return "/".join(leaves[index].path if index < len(leaves) else ()) or plan.name


def with_checkpoint(
    context: Context, plan: Plan, snapshot: Snapshot, reason: str, label: str | None = None
) -> Plan:
    """Returns the plan with a checkpoint more, labelled as its snapshot unless told otherwise."""
    index, facts = plan.next_index, facts_of(snapshot)
    newest = plan.checkpoints[-1].id if plan.checkpoints else None
    checkpoint = Checkpoint(
        id=CheckpointId(new_ulid(context.clock_ns(), after=newest)),
        plan_id=plan.id,
        sandbox=plan.root,
        snapshot_id=snapshot.id,
        root_hash=snapshot.root_hash,
        created_at_ns=snapshot.record.created_at_ns,
        step_index=index,
        label=label or snapshot.label or reason,
        reason=reason,
        phase=facts.get("phase") or phase_of(plan, index),
        source_tool=facts.get("source_tool") or SOURCE_TOOL,
        plan_state_hash=content_hash(plan.name, plan.content),
        content=plan.content,
    )
    return replace(plan, checkpoints=(*plan.checkpoints, checkpoint))


def save_thinned(context: Context, plan: Plan) -> Plan:
    """Saves a plan without the checkpoints that are too many; their snapshots go after it."""
    thin, dropped = thinned(plan)
    save(context, thin)
    delete_dropped(context, dropped)
    return thin


def thinned(plan: Plan, target: CheckpointId | None = None) -> tuple[Plan, tuple[Checkpoint, ...]]:
    """Returns a plan without the checkpoints that are too many, and these.

    Never the newest, and never ``target``.
    """
    many = max(0, len(plan.checkpoints) - plan.milestones.keep_count)
    droppable = [item for item in plan.checkpoints[:-1] if item.id != target]
    dropped = tuple(droppable[:many])
    kept = tuple(item for item in plan.checkpoints if item not in dropped)
    return replace(plan, checkpoints=kept), dropped


def delete_dropped(context: Context, dropped: Iterable[Checkpoint]) -> None:
    """Removes the snapshots of checkpoints that no plan lists any more.

    Not those that undo goes to; a policy takes them in time.
    """
    for item in dropped:
        if item.reason != BEFORE_ROLLBACK:
            _delete(context, item.snapshot_id)


def delete_unless_needed(context: Context, snapshot: Snapshot) -> None:
    """Removes a snapshot that turned out to be of no use."""
    _delete(context, snapshot.id)


def _delete(context: Context, snapshot_id: SnapshotId) -> None:
    with suppress(NotFound, Refused):  # gone already, or pinned
        delete(context, (snapshot_id,))


def holding(context: Context, plan: Plan, snapshot_id: SnapshotId) -> Plan:
    """Returns the plan with a snapshot to hold; one that was pinned by hand stays so.

    The caller saves it, then calls :func:`pin_held`.
    """
    if snapshot_id in plan.held or resolve(context, snapshot_id).pinned:
        return plan
    return replace(plan, held=(*plan.held, snapshot_id))


def pin_held(context: Context, plan: Plan) -> None:
    """Pins what a plan holds."""
    for snapshot_id in plan.held:
        set_pinned(context, snapshot_id, pinned=True)


def let_go(context: Context, plan: Plan) -> Plan:
    """Returns the plan with nothing held; the caller saves it.

    Snapshots that were held and are not checkpoints go.
    """
    needed = {item.snapshot_id for item in plan.checkpoints}
    for snapshot_id in plan.held:
        with suppress(NotFound, Refused):  # gone, or pinned again
            set_pinned(context, snapshot_id, pinned=False)
            if snapshot_id not in needed:
                delete(context, (snapshot_id,))
    return replace(plan, held=())


def available(context: Context, plan: Plan) -> tuple[Checkpoint, ...]:
    """Returns the checkpoints whose snapshots are still there, newest first."""
    ids = {
        snapshot.id
        for snapshot in list_snapshots(context, Filter(session=plan.id), all_roots=False)
    }
    return tuple(item for item in reversed(plan.checkpoints) if item.snapshot_id in ids)


def find_checkpoint(context: Context, plan: Plan, ref: str) -> Checkpoint:
    """Returns the checkpoint that an id, or the unique beginning of one, means."""
    wanted = ref.upper()
    found = [
        item
        for item in available(context, plan)
        if may_begin_ulid(ref) and item.id.startswith(wanted)
    ]
    exact = [item for item in found if item.id == wanted]
    if len(exact or found) != 1:
        problem = "fits several" if found else "is none"
        raise NotFound(
            f"{ref!r} {problem} of the checkpoints of plan {plan.id}",
            code=ErrorCode.CHECKPOINT_NOT_FOUND,
        )
    return (exact or found)[0]


def last_clean(context: Context, plan: Plan) -> Checkpoint:
    """Returns the newest checkpoint at which nothing had failed, and before what failed since.

    What a roll-back left is not one: it may hold half of a step.
    """
    failed = plan.failed_index
    for item in available(context, plan):
        is_clean = item.reason != BEFORE_ROLLBACK and all(
            step.state != StepState.FAILED for step in item.content.progress
        )
        if is_clean and (failed is None or item.step_index <= failed):
            return item
    raise NotFound(
        f"Plan {plan.id} has no checkpoint from before the error",
        code=ErrorCode.CHECKPOINT_NOT_FOUND,
    )
