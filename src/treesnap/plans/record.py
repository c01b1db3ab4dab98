"""Plans to bytes and back. Stored plans are untrusted; unknown fields are ignored.

Checkpoints mostly have the same steps as their plan, so each list of steps is stored once.
Progress is stored as runs of equal items.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import groupby
from typing import Any

from treesnap.core.codec.changes import unseal_changed
from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.fields import (
    FLAG,
    INTEGER,
    SIZE,
    SNAPSHOT_ID,
    TEXT,
    TIME,
    Table,
    array,
    optional,
    row,
    where,
    word,
)
from treesnap.core.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.plans.plan import (
    DEPTH_MAX,
    Attempt,
    Checkpoint,
    Content,
    Milestones,
    Plan,
    PlanState,
    Step,
    StepProgress,
    StepState,
    is_ulid,
    leaves_of,
    problem_of,
)

VERSION = 1
_WHAT = "plan"
_HASH_SIZE = 32


def encode_plan(plan: Plan) -> bytes:
    """Returns the payload of a plan's file."""
    lists = _StepLists()
    stored = _PLAN.map_of(plan)
    attempt, runner, held = (stored.pop(name) for name in ("attempt", "runner", "held"))
    return pack(
        {
            "version": VERSION,
            **stored,
            "content": lists.encode(plan.content),
            "checkpoints": tuple(_encode_checkpoint(item, lists) for item in plan.checkpoints),
            "step_lists": tuple(lists.found),
            "attempt": attempt,
            "runner": runner,
            "held": held,
        }
    )


def content_hash(name: str, content: Content) -> str:
    """Returns the plan state hash: 64 hex digits over the plan's name and canonical content."""
    progress = tuple((item.state.value, item.attempts, item.exit_code) for item in content.progress)
    canonical = {"steps": tuple(map(_encode_step, content.steps)), "progress": progress}
    return checksum(pack((name, canonical)), _HASH_SIZE).hex()


def _encode_step(step: Step) -> dict[str, Any]:
    values = {item.name: getattr(step, item.name) for item in fields(step)}
    values["steps"] = tuple(map(_encode_step, step.steps))
    return {key: value for key, value in values.items() if value not in (None, (), False, 0)}


class _StepLists:
    """The distinct lists of steps of a plan, encoded. Lists are known by identity meanwhile."""

    def __init__(self) -> None:
        self.found: list[tuple[dict[str, Any], ...]] = []
        self._numbers: dict[int, int] = {}

    def encode(self, content: Content) -> dict[str, Any]:
        """Returns a content's fields, with the number of its list of steps."""
        number = self._numbers.get(id(content.steps))
        if number is None:
            encoded = tuple(map(_encode_step, content.steps))
            if encoded not in self.found:
                self.found.append(encoded)
            number = self._numbers[id(content.steps)] = self.found.index(encoded)
        runs = (
            (len(tuple(items)), item.state.value, item.attempts, item.exit_code)
            for item, items in groupby(content.progress)
        )
        return {"steps": number, "progress": tuple(runs)}


def _encode_checkpoint(checkpoint: Checkpoint, lists: _StepLists) -> dict[str, Any]:
    return _CHECKPOINT.map_of(checkpoint) | {"content": lists.encode(checkpoint.content)}


def is_interrupted(payload: bytes) -> bool:
    """Returns whether a step of a plan was begun and not ended, or raises Corrupt.

    Also while a process works on it. Reads nothing else of the plan, so it may be of a later
    version.
    """
    fields = Fields(unpack(payload, _WHAT, LONG_ARRAY_LENGTH_MAX), _WHAT)
    is_running = fields.get("state", str) == PlanState.RUNNING.value
    return is_running or fields.optional("attempt", tuple) is not None


def decode_plan(payload: bytes) -> Plan:
    """Returns the plan of a payload, or raises Corrupt."""
    stored = unpack(payload, _WHAT, LONG_ARRAY_LENGTH_MAX)
    fields = Fields(stored, _WHAT)
    fields.require_version(VERSION)
    lists = tuple(map(_decode_steps, fields.get("step_lists", tuple)))
    content = _decode_content(fields.get("content", dict), lists)
    plan = _PLAN.record_of(stored, content=content, checkpoints=())
    attempt = plan.attempt
    is_possible = attempt is None or attempt.step_index < len(content.progress)
    require(is_possible, _WHAT, "its attempt is not valid")
    checkpoints = (
        _decode_checkpoint(item, lists, plan) for item in fields.get("checkpoints", tuple)
    )
    return replace(plan, checkpoints=tuple(checkpoints))


class _Steps(NamedTuple):
    steps: tuple[Step, ...]
    leaf_count: int


def _decode_steps(stored: Any) -> _Steps:
    require(type(stored) is tuple, _WHAT, "its steps are not a list")
    steps = tuple(_decode_step(item, 1) for item in stored)
    return _Steps(steps, sum(1 for _ in leaves_of(steps)))


def _decode_step(stored: Any, depth: int) -> Step:
    require(depth <= DEPTH_MAX, _WHAT, "its steps are nested too deeply")
    below = Fields(stored, _WHAT).optional("steps", tuple) or ()
    return _STEP.record_of(stored, steps=tuple(_decode_step(item, depth + 1) for item in below))


def _decode_content(stored: Any, lists: tuple[_Steps, ...]) -> Content:
    fields = Fields(stored, _WHAT)
    number = fields.size("steps")
    require(number < len(lists), _WHAT, "a list of steps is missing")
    progress: list[StepProgress] = []
    for run in fields.get("progress", tuple):
        require(type(run) is tuple and run, _WHAT, "the progress of a step is not valid")
        count, of_each = run[0], _PROGRESS.read(run[1:], _WHAT, "the progress of a step")
        is_possible = type(count) is int and 0 < count <= lists[number].leaf_count - len(progress)
        require(is_possible, _WHAT, "its progress does not fit its steps")
        progress += [of_each] * count
    require(len(progress) == lists[number].leaf_count, _WHAT, "its progress does not fit its steps")
    return Content(steps=lists[number].steps, progress=tuple(progress))


def _decode_checkpoint(stored: Any, lists: tuple[_Steps, ...], plan: Plan) -> Checkpoint:
    content = _decode_content(Fields(stored, _WHAT).get("content", dict), lists)
    return _CHECKPOINT.record_of(stored, plan_id=plan.id, sandbox=plan.root, content=content)


def _problem_of(plan: Plan) -> str | None:
    return problem_of(plan.name, plan.milestones, plan.content.steps)


_ULID = where(TEXT, is_ulid, "is not a ULID")
_HASH = where(
    TEXT,
    lambda digits: len(digits) == 2 * _HASH_SIZE and not set(digits) - set("0123456789abcdef"),
    f"of a checkpoint is not {2 * _HASH_SIZE} hex digits",
)
_STEP = Table(
    Step,
    _WHAT,
    version=None,
    given=["steps"],
    checkpoint=optional(FLAG, absent=False),
    retries=optional(INTEGER, absent=0),
)
_MILESTONES = Table(Milestones, _WHAT, version=None, skip_unchanged=optional(FLAG, absent=False))
_PROGRESS = row(StepProgress, state=word(StepState), attempts=SIZE)
_CHECKPOINT = Table(
    Checkpoint,
    _WHAT,
    version=None,
    given=["plan_id", "sandbox", "content"],
    id=_ULID,
    root_hash=_HASH,
    created_at_ns=TIME,
    step_index=SIZE,
    plan_state_hash=_HASH,
)
_PLAN = Table(
    Plan,
    _WHAT,
    given=["content", "checkpoints"],
    problem_of=_problem_of,
    id=_ULID,
    created_at_ns=TIME,
    milestones=_MILESTONES.kind,
    state=word(PlanState),
    attempt=optional(
        row(Attempt, step_index=SIZE, number=where(SIZE, bool, "of an attempt is not possible"))
    ),
    held=optional(array(SNAPSHOT_ID), absent=()),
)
PLAN = Format(FileKind.PLAN, encode_plan, decode_plan, unframe=unseal_changed)
