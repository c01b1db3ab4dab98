"""What the tags of a snapshot say of a step: of an agent, of a plan, of a loop, or a command."""

from __future__ import annotations

from enum import StrEnum

from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.reserved_tags import (
    CheckpointType,
    facts_of,
    is_numbered_step,
    own_tags,
)
from treesnap.core.model.results import PlanStep, StepGroup
from treesnap.core.model.snapshots import Snapshot, SnapshotKind

_AFTER_STEP = {
    CheckpointType.SAFE_STATE,
    CheckpointType.TASK_GROUP_COMPLETE,
    CheckpointType.PHASE_COMPLETE,
}
"""What is captured after a step; its number and its name are those of the next one."""


class EventPhase(StrEnum):
    """Where in the work of an agent an event happens."""

    SESSION = "session"
    """A session begins or is resumed."""
    TURN = "turn"
    """The user has written a prompt, and the agent has not seen it yet."""
    WAKE = "wake"
    """The host goes on by itself, because something in the background has ended."""
    PRE = "pre"
    """A tool is about to run."""
    POST = "post"
    """A tool has run."""
    END = "end"
    """The agent has done what the prompt asked for."""


BEFORE_EVENT = {EventPhase.SESSION, EventPhase.TURN, EventPhase.WAKE, EventPhase.PRE}
"""Phases before which a snapshot is taken; of others it is taken after them."""


class AgentStep(NamedTuple):
    """A snapshot that was taken at an event."""

    snapshot: Snapshot
    host: str
    phase: EventPhase
    key: str
    tool: str | None
    ref: str = ""
    """The host's own id of a prompt, as a store says it; empty where the host has none."""

    @property
    def number(self) -> int:
        """Its place in the session, from 1 on."""
        return self.snapshot.record.step or 0


class StepExtent(NamedTuple):
    """From where to where a step went, with all that ran at the same time."""

    before: Snapshot
    after: Snapshot
    group: StepGroup


def step_of(snapshot: Snapshot) -> AgentStep | None:
    """Returns the step that a snapshot is, or None."""
    facts = facts_of(snapshot)
    phase = facts.get("phase")
    if "host" not in facts or phase not in set(EventPhase) or snapshot.record.session is None:
        return None
    tool = facts.get("tool")
    key, ref = facts.get("key", ""), facts.get("ref", "")
    return AgentStep(snapshot, facts["host"], EventPhase(phase), key, tool, ref)


def plan_step_of(snapshot: Snapshot) -> PlanStep | None:
    """Returns the step that a snapshot of a plan was taken before or after; None for others."""
    record, facts = snapshot.record, facts_of(snapshot)
    if snapshot.kind is not SnapshotKind.PLAN or record.session is None or record.step is None:
        return None
    plan = own_tags(snapshot).get("plan")
    if facts.get("type") in _AFTER_STEP and record.step > 0:
        return PlanStep(record.session, plan, record.step, None)
    name = facts.get("step_name")  # none: all steps are done
    number = record.step + 1 if name is not None else None
    return PlanStep(record.session, plan, number, name)


def is_before_step(snapshot: Snapshot) -> bool:
    """Returns whether a snapshot was taken before its step, and not after it.

    Such as a tool of an agent, a step of a plan or of a loop, or a command of ``run``.
    """
    step = plan_step_of(snapshot)
    if step is not None:
        return step.name is not None
    facts = facts_of(snapshot)
    is_before_event = "host" in facts and facts.get("phase") in BEFORE_EVENT
    is_command = snapshot.kind is SnapshotKind.RUN
    return is_command or is_before_event or is_numbered_step(snapshot)
