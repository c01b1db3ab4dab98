"""The records of Maestro's checkpoint manager, from snapshots and their tags; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from treesnap.errors import InvalidArgument, printable
from treesnap.facts import (
    CheckpointType,
    counter_tags,
    counters_in,
    fact_tags,
    facts_of,
    is_retired,
    own_tags,
    rollback_count,
)
from treesnap.model import RESERVED_TAGS, ChangeKind, Snapshot, utc_time
from treesnap.results import StatusResult

_TAG = "checkpoint-"
_WORDS = {
    ChangeKind.ADDED: "new:",
    ChangeKind.REMOVED: "deleted:",
    ChangeKind.MODIFIED: "modified:",
    ChangeKind.TYPE: "typechange:",
    ChangeKind.METADATA: "properties:",
}


class CheckpointPhase(StrEnum):
    """The phase of a session."""

    PLAN = "plan"
    GENERATE_TASKS = "generate_tasks"
    IMPLEMENT = "implement"
    VALIDATE = "validate"
    CLEANUP = "cleanup"


@dataclass
class StateSnapshot:
    """Progress of a session at a checkpoint."""

    tasks_completed: int = 0
    decisions_made: int = 0
    files_modified: int = 0
    files_created: int = 0
    tests_passing: int = 0
    tests_failing: int = 0


@dataclass
class Checkpoint:
    """A state that a session can return to."""

    checkpoint_id: str
    commit_sha: str
    """Id of the snapshot: 64 hex digits."""
    timestamp: str
    """ISO 8601, in UTC."""
    description: str
    phase: CheckpointPhase
    checkpoint_type: CheckpointType
    commit_message: str | None = None
    """None if nothing was captured because the state was already saved."""
    state_snapshot: StateSnapshot | None = None
    tags: list[str] = field(default_factory=list)
    rollback_used: bool = False
    rollback_count: int = 0


@dataclass
class ValidationResult:
    """Whether a checkpoint can be made now, with errors and warnings."""

    is_valid: bool
    errors: list[str]
    warnings: list[str]
    git_status: str
    """A line for the position, then one for each path that differs."""
    has_uncommitted_changes: bool
    tests_passing: bool | None
    """None without a test command."""


@dataclass
class CheckpointSummary:
    """Counts of the checkpoints of a session."""

    total_checkpoints: int
    checkpoints_by_type: dict[str, int]
    checkpoints_used_for_rollback: int
    latest_checkpoint: str | None
    """``commit_sha`` of the newest one, or None."""


def tags_of(
    checkpoint_id: str,
    phase: str,
    checkpoint_type: str,
    message: str | None,
    state: StateSnapshot | None,
) -> dict[str, str]:
    """Returns the tags of a checkpoint's snapshot; raises InvalidArgument."""
    for what, word, known in (
        ("phase", phase, list(CheckpointPhase)),
        ("checkpoint type", checkpoint_type, list(CheckpointType)),
    ):
        if word not in known:
            raise InvalidArgument(f"The {what} {word!r} is not one of {', '.join(known)}")
    counters = asdict(state) if state is not None else {}
    for name, count in counters.items():
        if not isinstance(count, int) or isinstance(count, bool):
            raise InvalidArgument(f"{name} must be a whole number, not {count!r}")
    facts = fact_tags(
        phase=CheckpointPhase(phase).value,
        type=CheckpointType(checkpoint_type).value,
        reason=message,
        source_tool="maestro",
    )
    return {_TAG + checkpoint_id: "", **facts, **counter_tags(counters, RESERVED_TAGS)}


def checkpoints_of(snapshots: Sequence[Snapshot]) -> dict[str, Checkpoint]:
    """Returns the checkpoints among a session's snapshots by id, in the order given."""
    return {
        snapshot.name: _checkpoint(snapshot, snapshot.name, facts)
        for snapshot, facts in ((item, facts_of(item)) for item in snapshots)
        if snapshot.name is not None
        and _TAG + snapshot.name in snapshot.record.tags
        and facts.get("phase") in list(CheckpointPhase)
        and facts.get("type") in list(CheckpointType)
        and not is_retired(snapshot)
    }


def _checkpoint(snapshot: Snapshot, checkpoint_id: str, facts: Mapping[str, str]) -> Checkpoint:
    record, counters = snapshot.record, counters_in(facts)
    return Checkpoint(
        checkpoint_id=checkpoint_id,
        commit_sha=snapshot.id,
        timestamp=time_text(record.created_at_ns),
        description=record.label or "",
        phase=CheckpointPhase(facts["phase"]),
        checkpoint_type=CheckpointType(facts["type"]),
        commit_message=facts.get("reason"),
        state_snapshot=StateSnapshot(**counters) if _are_state(counters) else None,
        tags=sorted(own_tags(snapshot)),
        rollback_used=rollback_count(snapshot) > 0,
        rollback_count=rollback_count(snapshot),
    )


def _are_state(counters: Mapping[str, int]) -> bool:
    return counters.keys() == asdict(StateSnapshot()).keys()


def summary_of(checkpoints: Sequence[Checkpoint]) -> CheckpointSummary:
    """Returns the counts of checkpoints, which are given newest first."""
    return CheckpointSummary(
        total_checkpoints=len(checkpoints),
        checkpoints_by_type=dict(Counter(item.checkpoint_type.value for item in checkpoints)),
        checkpoints_used_for_rollback=sum(item.rollback_used for item in checkpoints),
        latest_checkpoint=checkpoints[0].commit_sha if checkpoints else None,
    )


def checkpoint_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns a checkpoint's fields for the log, without those that are None."""
    return {name: value for name, value in asdict(checkpoint).items() if value is not None}


def time_text(time_ns: int) -> str:
    """Returns a moment as ISO 8601, in UTC."""
    moment = utc_time(time_ns)
    return moment.isoformat().replace("+00:00", "Z")


def status_text(found: StatusResult) -> str:
    """Returns the differences from the position, as text."""
    if found.snapshot is None:
        return "Nothing was captured yet"
    head = f"At {found.snapshot.id[:12]} ({printable(found.snapshot.label or 'no description')})"
    lines = [f"{_WORDS[item.change]:<12}{printable(item.path) or '.'}" for item in found.changes]
    return "\n".join([head, *(lines or ["nothing to capture"])])
