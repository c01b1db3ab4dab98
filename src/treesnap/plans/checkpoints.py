"""Checkpoints of a plan: a snapshot of its root, tied to what the plan had done by then."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from treesnap.errors import ErrorCode, NotFound, Refused
from treesnap.model import CheckpointType, Purpose, Snapshot, SnapshotKind
from treesnap.plans.plan import Checkpoint, CheckpointId, Plan, StepState
from treesnap.plans.record import content_hash
from treesnap.plans.ulid import may_begin_ulid, new_ulid

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

SOURCE_TOOL = "snap plan"


def take_snapshot(handle: Handle, plan: Plan, label: str, kind: CheckpointType) -> Snapshot:
    """Captures the root as the plan's next step finds it. It falls under the default policy."""
    index = plan.next_index
    leaves = plan.leaves
    return handle.create(
        label=label,
        session=plan.id,
        step=index,
        tags={"plan": plan.name},
        purpose=Purpose(
            step_name=leaves[index].step.name if index < len(leaves) else None,
            phase=phase_of(plan, index),
            type=kind,
            reason=label,
            source_tool=SOURCE_TOOL,
        ),
        kind=SnapshotKind.PLAN,
    ).snapshot


def phase_of(plan: Plan, index: int) -> str:
    """Returns the sub-plans around a step, or the plan itself, as one text."""
    leaves = plan.leaves
    return "/".join(leaves[index].path if index < len(leaves) else ()) or plan.name


def with_checkpoint(handle: Handle, plan: Plan, snapshot: Snapshot, reason: str) -> Plan:
    """Returns the plan with a checkpoint more, and without those that are too many."""
    index = plan.next_index
    checkpoint = Checkpoint(
        id=CheckpointId(new_ulid(handle.clock_ns())),
        snapshot_id=snapshot.id,
        root_hash=snapshot.root_hash,
        created_at_ns=snapshot.record.created_at_ns,
        step_index=index,
        label=snapshot.label or reason,
        reason=reason,
        phase=phase_of(plan, index),
        source_tool=SOURCE_TOOL,
        plan_state_hash=content_hash(plan.name, plan.content),
        content=plan.content,
    )
    kept = (*plan.checkpoints, checkpoint)[-plan.milestones.keep :]
    dropped = plan.checkpoints[: len(plan.checkpoints) + 1 - len(kept)]
    for item in dropped:
        with suppress(NotFound, Refused):  # gone already, or pinned by somebody
            handle.delete(item.snapshot_id)
    return replace(plan, checkpoints=kept)


def available(handle: Handle, plan: Plan) -> tuple[Checkpoint, ...]:
    """Returns the checkpoints whose snapshots are still there, newest first."""
    ids = {snapshot.id for snapshot in handle.list(session=plan.id)}
    return tuple(item for item in reversed(plan.checkpoints) if item.snapshot_id in ids)


def find_checkpoint(handle: Handle, plan: Plan, ref: str) -> Checkpoint:
    """Returns the checkpoint that an id, or the unique beginning of one, means."""
    wanted = ref.upper()
    found = [
        item
        for item in available(handle, plan)
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


def last_clean(handle: Handle, plan: Plan) -> Checkpoint:
    """Returns the newest checkpoint at which nothing had failed, and before what failed since."""
    failed = [
        index for index, item in enumerate(plan.content.progress) if item.state == StepState.FAILED
    ]
    for item in available(handle, plan):
        is_clean = all(step.state != StepState.FAILED for step in item.content.progress)
        if is_clean and (not failed or item.step_index <= failed[0]):
            return item
    raise NotFound(
        f"Plan {plan.id} has no checkpoint from before the error",
        code=ErrorCode.CHECKPOINT_NOT_FOUND,
    )
