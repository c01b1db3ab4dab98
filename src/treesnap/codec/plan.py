"""What the rest of the store has to know of a plan's file without knowing plans.

A plan is a map that its own layer reads and writes. Three things in it concern others:
whether a process was in the middle of it, which checkpoints it has, and whether the plan
wants to keep them whatever a policy says.
"""

from __future__ import annotations

from typing import NamedTuple

from treesnap.codec.envelope import FileKind, Format
from treesnap.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, require, unpack
from treesnap.codec.snapshot import is_snapshot_id
from treesnap.model import SnapshotId

_WHAT = "plan"
_APPLIED = "applied"
_RUNNING = "running"


class PlanOutline(NamedTuple):
    """Of a plan, what concerns others."""

    is_interrupted: bool
    """Whether a step was begun and not ended; also while a process works on it."""
    checkpoints: dict[str, SnapshotId]
    """The snapshot of each checkpoint, by the checkpoint's id."""
    keeps_checkpoints: bool
    """Whether the plan says how many it keeps, and has not been applied."""


def outline_of(payload: bytes) -> PlanOutline:
    """Returns the outline of a plan's payload, or raises Corrupt."""
    fields = Fields(unpack(payload, _WHAT, LONG_ARRAY_LENGTH_MAX), _WHAT)
    state = fields.get("state", str)
    milestones = Fields(fields.get("milestones", dict), _WHAT)
    checkpoints = {}
    for item in fields.get("checkpoints", tuple):
        checkpoint = Fields(item, _WHAT)
        identity = checkpoint.get("snapshot_id", str)
        require(is_snapshot_id(identity), _WHAT, "a snapshot's id is none")
        checkpoints[checkpoint.get("id", str)] = SnapshotId(identity)
    return PlanOutline(
        is_interrupted=state == _RUNNING or fields.optional("attempt", tuple) is not None,
        checkpoints=checkpoints,
        keeps_checkpoints=milestones.optional("keep", int) is not None and state != _APPLIED,
    )


def _payload(payload: bytes) -> bytes:
    """Returns a payload that has an outline."""
    outline_of(payload)
    return payload


PLAN_PAYLOAD = Format(FileKind.PLAN, _payload, _payload)
"""A plan that another layer has encoded, and checked."""
