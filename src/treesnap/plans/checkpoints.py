"""Checkpoints of a plan: a snapshot of its root, tied to the progress of the plan.

Snapshots of plans are automatic ones, which the default policy thins out. A snapshot that a
plan needs for a while is *held*: pinned, and listed in the plan, so that a later command
releases it if the process that took it dies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from treesnap.core.model.errors import ErrorCode, NotFound, Refused
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import CheckpointType, fact_tags, stated_facts
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind
from treesnap.core.ops.create import create
from treesnap.core.ops.history.listing import delete, list_snapshots, resolve, set_held
from treesnap.core.ops.references import Filter
from treesnap.plans.plan import (
    BEFORE_ROLLBACK,
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
    from treesnap.core.ops.context import Context

_STEP = re.compile(r"step:([0-9]{1,9})\Z")
_NAMED_MAX = 5
"""How many checkpoints are named to a user who asked for one that is not there."""
SOURCE_TOOL = "snap plan"


def take_snapshot(
    context: Context,
    plan: Plan,
    label: str,
    kind: CheckpointType,
    said: Mapping[str, str] | None = None,
) -> Snapshot:
    """Captures the root before the plan's next step. The default policy applies to the snapshot.

    ``said`` is what a caller says of it: tags of the caller's own, in place of the plan's facts.
    """
    return create(context, snapshot_request(plan, label, kind, said)).snapshot


def snapshot_request(
    plan: Plan, label: str, kind: CheckpointType, said: Mapping[str, str] | None = None
) -> CaptureRequest:
    """Returns the request of :func:`take_snapshot`."""
    index, leaves, said = plan.next_index, plan.leaves, said or {}
    facts = {
        "step_name": leaves[index].step.name if index < len(leaves) else None,
        "phase": phase_of(plan, index),
        "type": kind.value,
        "reason": label,
        "source_tool": SOURCE_TOOL,
    }
    noted = fact_tags(**{name: fact for name, fact in facts.items() if name not in said})
    return CaptureRequest(
        label=label,
        session=plan.id,
        step=index,
        tags={"plan": plan.name, **said, **noted},
        kind=SnapshotKind.PLAN,
    )


def phase_of(plan: Plan, index: int) -> str:
    """Returns the names of the sub-plans around a step, joined, or that of the plan."""
    leaves = plan.leaves
    return "/".join(leaves[index].path if index < len(leaves) else ()) or plan.name


def with_checkpoint(
    context: Context, plan: Plan, snapshot: Snapshot, reason: str, label: str | None = None
) -> Plan:
    """Returns the plan with one more checkpoint, with its snapshot's label unless one is given."""
    index, facts = plan.next_index, stated_facts(snapshot)
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
    """Saves a plan without its surplus checkpoints, then deletes their snapshots."""
    thin, dropped = thinned(plan)
    save(context, thin)
    delete_dropped(context, dropped)
    return thin


def thinned(plan: Plan, target: CheckpointId | None = None) -> tuple[Plan, tuple[Checkpoint, ...]]:
    """Returns a plan without its surplus checkpoints, and these, oldest first.

    The newest checkpoint and ``target`` always stay.
    """
    many = max(0, len(plan.checkpoints) - plan.milestones.keep_count)
    droppable = [item for item in plan.checkpoints[:-1] if item.id != target]
    dropped = tuple(droppable[:many])
    kept = tuple(item for item in plan.checkpoints if item not in dropped)
    return replace(plan, checkpoints=kept), dropped


def delete_dropped(context: Context, dropped: Iterable[Checkpoint]) -> None:
    """Deletes the snapshots of checkpoints that no plan lists any more.

    Those that undo returns to stay; a policy removes them in time.
    """
    for item in dropped:
        if item.reason != BEFORE_ROLLBACK:
            delete_unpinned(context, item.snapshot_id)


def delete_unpinned(context: Context, snapshot_id: SnapshotId) -> None:
    """Deletes a snapshot unless it is pinned."""
    with suppress(NotFound, Refused):  # gone already, or pinned
        delete(context, (snapshot_id,))


def hold(context: Context, plan: Plan, snapshot_id: SnapshotId) -> Plan:
    """Returns the plan with a snapshot to hold, unless that is pinned already.

    The caller saves it, then calls :func:`pin_held`.
    """
    if snapshot_id in plan.held or resolve(context, snapshot_id).pinned:
        return plan
    return replace(plan, held=(*plan.held, snapshot_id))


def pin_held(context: Context, plan: Plan) -> None:
    """Pins the snapshots that a plan holds."""
    for snapshot_id in plan.held:
        set_held(context, snapshot_id, held=True)


def release_held(context: Context, plan: Plan) -> Plan:
    """Returns the plan with nothing held; the caller saves it.

    Held snapshots are unpinned, and those that are not checkpoints are deleted; not those that
    the user has pinned meanwhile.
    """
    needed = {item.snapshot_id for item in plan.checkpoints}
    for snapshot_id in plan.held:
        with suppress(NotFound, Refused):  # gone, or pinned
            set_held(context, snapshot_id, held=False)
            if snapshot_id not in needed:
                delete(context, (snapshot_id,))
    return replace(plan, held=())


def available(context: Context, plan: Plan) -> tuple[Checkpoint, ...]:
    """Returns the checkpoints whose snapshots still exist, newest first."""
    ids = {
        snapshot.id
        for snapshot in list_snapshots(context, Filter(session=plan.id), all_roots=False)
    }
    return tuple(item for item in reversed(plan.checkpoints) if item.snapshot_id in ids)


def find_checkpoint(context: Context, plan: Plan, ref: str) -> Checkpoint:
    """Returns the checkpoint that a word names; raises NotFound.

    In this order: its id, its label, ``step:N`` for a checkpoint before that step, the unique
    beginning of its id. Of several with a label or before a step, the newest; the state before
    a roll-back is before no step, as it may hold half of one.
    """
    checkpoints, identity = available(context, plan), ref.upper()
    before_steps = [item for item in checkpoints if item.reason != BEFORE_ROLLBACK]
    step = _STEP.match(ref)
    ways = (
        [item for item in checkpoints if item.id == identity],
        [item for item in checkpoints if item.label == ref][:1],
        [item for item in before_steps if step and item.step_index == int(step[1])][:1],
        [item for item in checkpoints if may_begin_ulid(ref) and item.id.startswith(identity)],
    )
    named = next(filter(None, ways), [])
    if len(named) == 1:
        return named[0]
    if named:
        found = f"{len(named)} checkpoints with an id that begins with {ref!r}"
    elif step:
        kept = sorted({item.step_index for item in before_steps}, reverse=True)
        newest = ", ".join(f"step:{number}" for number in kept[:_NAMED_MAX]) or "none"
        found = f"no checkpoint {ref!r}; of those it keeps, the newest are {newest}"
    else:
        found = f"no checkpoint {ref!r}: no id, no label, no step:N"
    raise NotFound(f"Plan {plan.id} has {found}", code=ErrorCode.CHECKPOINT_NOT_FOUND)


def last_clean(context: Context, plan: Plan) -> Checkpoint:
    """Returns the newest checkpoint without a failed step and from before the present failure.

    The state before a roll-back does not count: it may hold half of a step.
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
