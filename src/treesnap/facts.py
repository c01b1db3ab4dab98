"""Facts: what the systems that stand on treesnap note of snapshots; pure.

Which phase of the work a snapshot ended, which program asked for it, how often it was gone back
to: the core knows none of it. A fact is a tag whose key is ``treesnap.`` and the fact's name.
Callers cannot set such tags, so that no tag of theirs makes a snapshot look like a system's, or
breaks one. What a store holds is untrusted all the same: a number that is none is absent.

A caller may say the same with tags of these names without the prefix, as the options of
``snap create`` do. People see both; no system decides by a caller's tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from treesnap.model import RESERVED_TAGS, Snapshot

COUNTER = "counter."
"""What the names of free numbers begin with, such as ``counter.tests_passing``."""

TEXTS = ("step_name", "phase", "type", "reason", "source_tool")
"""The facts that people read and search for."""

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_NUMBER_MAX = (1 << 63) - 1


class CheckpointType(StrEnum):
    """What makes the moment of a snapshot worth going back to."""

    PHASE_COMPLETE = "phase_complete"
    TASK_GROUP_COMPLETE = "task_group_complete"
    SAFE_STATE = "safe_state"
    PRE_RISKY_OPERATION = "pre_risky_operation"
    ERROR_RECOVERY = "error_recovery"
    MANUAL = "manual"


def fact_tags(**facts: str | None) -> dict[str, str]:
    """Returns the tags that hold some facts by name, without those that are None."""
    return {RESERVED_TAGS + name: fact for name, fact in facts.items() if fact is not None}


def counter_tags(counters: Mapping[str, int], prefix: str = "") -> dict[str, str]:
    """Returns the tags that hold some free numbers."""
    return {f"{prefix}{COUNTER}{name}": str(number) for name, number in counters.items()}


def stated_facts(snapshot: Snapshot) -> dict[str, str]:
    """Returns what systems and the caller say of a snapshot; a system's fact comes first."""
    return {**own_tags(snapshot), **facts_of(snapshot)}


def facts_of(snapshot: Snapshot) -> dict[str, str]:
    """Returns what systems have noted of a snapshot, by name."""
    return {
        key.removeprefix(RESERVED_TAGS): value
        for key, value in snapshot.tags.items()
        if key.startswith(RESERVED_TAGS)
    }


def own_tags(snapshot: Snapshot) -> dict[str, str]:
    """Returns the tags that the caller has given a snapshot."""
    return {key: value for key, value in snapshot.tags.items() if not key.startswith(RESERVED_TAGS)}


def counters_in(facts: Mapping[str, str]) -> dict[str, int]:
    """Returns the free numbers among some facts, or among tags of a caller."""
    return {
        name.removeprefix(COUNTER): number
        for name, fact in facts.items()
        if name.startswith(COUNTER) and (number := parse_number(fact)) is not None
    }


def parse_number(text: str) -> int | None:
    """Returns the number that a text is, from -2**63 to 2**63 - 1, or None."""
    number = int(text) if _NUMBER.fullmatch(text) else _NUMBER_MAX + 1
    return number if -_NUMBER_MAX - 1 <= number <= _NUMBER_MAX else None


def rollback_count(snapshot: Snapshot) -> int:
    """Returns how often a snapshot was rolled back to, as far as a system counted it."""
    return _rollback_count(snapshot.tags)


def rolled_back(tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the later tags of a snapshot that was rolled back to once more."""
    return {**tags, **fact_tags(rollback_count=str(_rollback_count(tags) + 1))}


def is_retired(snapshot: Snapshot) -> bool:
    """Returns whether a snapshot's session counts it no more."""
    return "retired" in facts_of(snapshot)


def retired(tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the later tags of a snapshot that its session counts no more; it stays a REF."""
    return {**tags, **fact_tags(retired="yes")}


def _rollback_count(tags: Mapping[str, str]) -> int:
    return max(0, parse_number(tags.get(RESERVED_TAGS + "rollback_count", "")) or 0)
