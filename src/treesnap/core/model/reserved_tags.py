"""Facts: what plans and other systems record about snapshots; pure.

The core does not know which phase of the work a snapshot ended, which program asked for it, or
how often it was rolled back to. A fact is a tag whose key is ``treesnap.`` and the fact's name.
Callers cannot set such tags, so their tags cannot make a snapshot look like a system's. The
store is untrusted nevertheless: a number that cannot be parsed counts as absent.

Callers may use the same names without the prefix, as the options of ``snap create`` do. Both
are shown, but no system decides anything by a caller's tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from treesnap.core.model.errors import InvalidArgument, printable, quoted
from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    class Tagged(Protocol):
        """What has tags: a snapshot."""

        @property
        def tags(self) -> dict[str, str]:
            """All its tags."""

    class InSession(Tagged, Protocol):
        """What may be a step of a session: a snapshot."""

        @property
        def session(self) -> str | None:
            """The work that it belongs to."""

        @property
        def step(self) -> int | None:
            """Its place in the session."""


RESERVED_TAGS = "treesnap."
"""What the keys of tags begin with that no caller can set."""

IMPORTED = f"{RESERVED_TAGS}imported"
"""The tag of a snapshot that was imported: where from. The root never stood there."""

HELD = f"{RESERVED_TAGS}held"
"""The tag of a snapshot whose pin is none of the user's: it goes with what needs the snapshot."""

HOST = f"{RESERVED_TAGS}host"
"""The tag of a snapshot that a hook of an agent's host took: which host."""

COUNTER = "counter."
"""The prefix of counters, such as ``counter.tests_passing``."""

TEXTS = ("step_name", "phase", "type", "reason", "source_tool")
"""The facts that are text: each is an option of ``snap create`` and a field of a snapshot's JSON.

``snap show`` leaves them out of the other tags, so it has to print a line for each."""

_NUMBER = LateRegex(r"-?[0-9]{1,19}")
_NUMBER_MAX = (1 << 63) - 1


class CheckpointType(StrEnum):
    """Why the moment of a snapshot is worth returning to."""

    PHASE_COMPLETE = "phase_complete"
    TASK_GROUP_COMPLETE = "task_group_complete"
    SAFE_STATE = "safe_state"
    PRE_RISKY_OPERATION = "pre_risky_operation"
    ERROR_RECOVERY = "error_recovery"
    MANUAL = "manual"


def refuse_reserved(tags: Iterable[str]) -> None:
    """Raises InvalidArgument for keys of tags that only the library itself may set."""
    for key in tags:
        if key.startswith(RESERVED_TAGS):
            raise InvalidArgument(
                f"The tag {quoted(key)} is reserved, as all are that begin with {RESERVED_TAGS!r}"
            )


def with_words(
    tags: Mapping[str, str], phase: str | None, kind: CheckpointType | str | None
) -> dict[str, str]:
    """Returns a caller's tags with its phase and type as tags too.

    Raises InvalidArgument for an unknown type, and for a word that a tag says already.
    """
    if kind is not None and kind not in list(CheckpointType):
        types = ", ".join(CheckpointType)
        raise InvalidArgument(f"The type '{printable(kind)}' is not one of {types}")
    given = {"phase": phase, "type": str(kind) if kind is not None else None}
    words = {name: word for name, word in given.items() if word is not None}
    for name in words.keys() & tags.keys():
        raise InvalidArgument(f"The argument {name} and a tag both say what the {name} is")
    return {**tags, **words}


def fact_tags(**facts: str | None) -> dict[str, str]:
    """Returns the tags of some facts, without those that are None."""
    return {RESERVED_TAGS + name: fact for name, fact in facts.items() if fact is not None}


def counter_tags(counters: Mapping[str, int], prefix: str = "") -> dict[str, str]:
    """Returns the tags of some counters."""
    return {f"{prefix}{COUNTER}{name}": str(number) for name, number in counters.items()}


def stated_facts(snapshot: Tagged) -> dict[str, str]:
    """Returns the facts of a snapshot and its caller's tags; a fact wins over an equal tag."""
    return {**own_tags(snapshot), **facts_of(snapshot)}


def facts_of(snapshot: Tagged) -> dict[str, str]:
    """Returns the facts of a snapshot, by name."""
    return {
        key.removeprefix(RESERVED_TAGS): value
        for key, value in snapshot.tags.items()
        if key.startswith(RESERVED_TAGS)
    }


def is_numbered_step(snapshot: InSession) -> bool:
    """Returns whether a caller numbered a snapshot in a session, which is taken before the step.

    Other systems, whose snapshots have facts, also number what they capture after a step.
    """
    return snapshot.session is not None and snapshot.step is not None and not facts_of(snapshot)


def own_tags(snapshot: Tagged) -> dict[str, str]:
    """Returns the tags that the caller gave a snapshot."""
    return {key: value for key, value in snapshot.tags.items() if not key.startswith(RESERVED_TAGS)}


def counters_in(facts: Mapping[str, str]) -> dict[str, int]:
    """Returns the counters among some facts, or among a caller's tags."""
    return {
        name.removeprefix(COUNTER): number
        for name, fact in facts.items()
        if name.startswith(COUNTER) and (number := parse_number(fact)) is not None
    }


def parse_number(text: str) -> int | None:
    """Returns the number in a text, from -2**63 to 2**63 - 1, or None."""
    number = int(text) if _NUMBER.compiled.fullmatch(text) else _NUMBER_MAX + 1
    return number if -_NUMBER_MAX - 1 <= number <= _NUMBER_MAX else None


def rollback_count(snapshot: Tagged) -> int:
    """Returns how often a snapshot was rolled back to, as systems have counted it."""
    return _rollback_count(snapshot.tags)


def rolled_back(tags: Mapping[str, str], reason: str) -> dict[str, str]:
    """Returns the tags of a snapshot after one more roll-back to it."""
    number = str(_rollback_count(tags) + 1)
    return {**tags, **fact_tags(rollback_count=number, rollback_reason=reason)}


def rollback_reason(snapshot: Tagged) -> str | None:
    """Returns why a snapshot was rolled back to the last time, or None."""
    return facts_of(snapshot).get("rollback_reason")


def is_checkpoint(snapshot: Tagged) -> bool:
    """Returns whether going back to a snapshot is a roll-back: it says why it is worth that.

    A system took it for that, or its caller gave it a type.
    """
    return "source_tool" in facts_of(snapshot) or "type" in stated_facts(snapshot)


def is_retired(snapshot: Tagged) -> bool:
    """Returns whether a snapshot's session has retired it."""
    return "retired" in facts_of(snapshot)


def retired(tags: Mapping[str, str]) -> dict[str, str]:
    """Returns the tags of a snapshot after its session retires it; it stays a valid REF."""
    return {**tags, **fact_tags(retired="yes")}


def fork_tags(origin_id: str, snapshot_id: str) -> dict[str, str]:
    """Returns the tags of the first snapshot of a fork: which root, and which snapshot of it."""
    return fact_tags(fork_of=origin_id, forked=snapshot_id)


def is_fork_base(snapshot: Tagged) -> bool:
    """Returns whether a snapshot holds the state that its root was forked from."""
    return {"fork_of", "forked"} <= facts_of(snapshot).keys()


def _rollback_count(tags: Mapping[str, str]) -> int:
    return max(0, parse_number(tags.get(RESERVED_TAGS + "rollback_count", "")) or 0)
