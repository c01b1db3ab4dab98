"""Plans to bytes and back. Stored plans are untrusted; unknown fields are ignored.

Checkpoints mostly have the same steps as their plan, so each list of steps is stored once.
Progress is stored as runs of equal items.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from itertools import groupby
from typing import Any, TypeVar

from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.core.model.entities import SnapshotId
from treesnap.core.model.ids import checksum, is_snapshot_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.plans.plan import (
    DEPTH_MAX,
    Attempt,
    Checkpoint,
    CheckpointId,
    Content,
    Milestones,
    Plan,
    PlanId,
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

_State = TypeVar("_State", PlanState, StepState)


def encode_plan(plan: Plan) -> bytes:
    """Returns the payload of a plan's file."""
    attempt = plan.attempt
    lists = _StepLists()
    return pack(
        {
            "version": VERSION,
            "id": plan.id,
            "name": plan.name,
            "root": plan.root,
            "created_at_ns": plan.created_at_ns,
            "milestones": asdict(plan.milestones),
            "state": plan.state.value,
            "content": lists.encode(plan.content),
            "checkpoints": tuple(_encode_checkpoint(item, lists) for item in plan.checkpoints),
            "step_lists": tuple(lists.found),
            "attempt": None
            if attempt is None
            else (attempt.step_index, attempt.number, attempt.snapshot_id),
            "runner": plan.runner,
            "held": plan.held,
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
    values = {item.name: getattr(checkpoint, item.name) for item in fields(checkpoint)}
    del values["plan_id"], values["sandbox"]  # those of the plan
    return values | {"content": lists.encode(checkpoint.content)}


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
    fields = Fields(unpack(payload, _WHAT, LONG_ARRAY_LENGTH_MAX), _WHAT)
    fields.require_version(VERSION)
    name = fields.get("name", str)
    milestones = _decode_milestones(Fields(fields.get("milestones", dict), _WHAT))
    lists = tuple(map(_decode_steps, fields.get("step_lists", tuple)))
    content = _decode_content(fields.get("content", dict), lists)
    problem = problem_of(name, milestones, content.steps)
    require(problem is None, _WHAT, problem or "")
    plan_id = fields.get("id", str)
    require(is_ulid(plan_id), _WHAT, "its id is not a ULID")
    root = fields.get("root", bytes)
    of = PlanId(plan_id), root
    return Plan(
        id=PlanId(plan_id),
        name=name,
        root=root,
        created_at_ns=fields.time("created_at_ns"),
        milestones=milestones,
        state=_decode_state(PlanState, fields.get("state", str)),
        content=content,
        checkpoints=tuple(
            _decode_checkpoint(item, lists, *of) for item in fields.get("checkpoints", tuple)
        ),
        attempt=_decode_attempt(fields.optional("attempt", tuple), len(content.progress)),
        runner=fields.optional("runner", str),
        held=tuple(map(_decode_snapshot_id, fields.optional("held", tuple) or ())),
    )


PLAN = Format(FileKind.PLAN, encode_plan, decode_plan)


def _decode_snapshot_id(value: Any) -> SnapshotId:
    require(
        type(value) is str and is_snapshot_id(value), _WHAT, "the id of a snapshot is not valid"
    )
    return SnapshotId(value)


def _decode_hash(fields: Fields, name: str) -> str:
    value = fields.get(name, str)
    is_whole = len(value) == 2 * _HASH_SIZE and not set(value) - set("0123456789abcdef")
    require(is_whole, _WHAT, f"the {name} of a checkpoint is not {2 * _HASH_SIZE} hex digits")
    return value


def _decode_state(kind: type[_State], value: Any) -> _State:
    require(value in {item.value for item in kind}, _WHAT, "a state is unknown")
    return kind(value)


def _decode_milestones(fields: Fields) -> Milestones:
    return Milestones(
        enabled=fields.get("enabled", bool),
        every_n_steps=fields.optional("every_n_steps", int),
        before_each_step=fields.get("before_each_step", bool),
        after_subplan=fields.get("after_subplan", bool),
        keep=fields.optional("keep", int),
        label_prefix=fields.optional("label_prefix", str),
        skip_unchanged=fields.optional("skip_unchanged", bool) or False,
    )


class _Steps(NamedTuple):
    steps: tuple[Step, ...]
    leaf_count: int


def _decode_steps(value: Any) -> _Steps:
    require(type(value) is tuple, _WHAT, "its steps are not a list")
    steps = tuple(_decode_step(item, 1) for item in value)
    return _Steps(steps, sum(1 for _ in leaves_of(steps)))


def _decode_content(value: Any, lists: tuple[_Steps, ...]) -> Content:
    fields = Fields(value, _WHAT)
    number = fields.size("steps")
    require(number < len(lists), _WHAT, "a list of steps is missing")
    progress: list[StepProgress] = []
    for run in fields.get("progress", tuple):
        require(type(run) is tuple and len(run) == 4, _WHAT, "the progress of a step is not valid")
        count = run[0]
        is_possible = type(count) is int and 0 < count <= lists[number].leaf_count - len(progress)
        require(is_possible, _WHAT, "its progress does not fit its steps")
        progress += [_decode_progress(run[1:])] * count
    require(len(progress) == lists[number].leaf_count, _WHAT, "its progress does not fit its steps")
    return Content(steps=lists[number].steps, progress=tuple(progress))


def _decode_step(value: Any, depth: int) -> Step:
    require(depth <= DEPTH_MAX, _WHAT, "its steps are nested too deeply")
    fields = Fields(value, _WHAT)
    below = fields.optional("steps", tuple) or ()
    return Step(
        name=fields.get("name", str),
        run=fields.optional("run", str),
        prompt=fields.optional("prompt", str),
        call=fields.optional("call", str),
        steps=tuple(_decode_step(item, depth + 1) for item in below),
        checkpoint=fields.optional("checkpoint", bool) or False,
        retries=fields.optional("retries", int) or 0,
        timeout_s=fields.optional("timeout_s", int),
    )


def _decode_progress(value: Any) -> StepProgress:
    require(
        type(value[1]) is int and value[1] >= 0 and (value[2] is None or type(value[2]) is int),
        _WHAT,
        "the progress of a step is not valid",
    )
    return StepProgress(
        state=_decode_state(StepState, value[0]), attempts=value[1], exit_code=value[2]
    )


def _decode_attempt(value: tuple[Any, ...] | None, steps: int) -> Attempt | None:
    if value is None:
        return None
    require(
        len(value) == 3
        and type(value[0]) is int
        and 0 <= value[0] < steps
        and type(value[1]) is int
        and value[1] > 0,
        _WHAT,
        "its attempt is not valid",
    )
    snapshot_id = _decode_snapshot_id(value[2])
    return Attempt(step_index=value[0], number=value[1], snapshot_id=snapshot_id)


def _decode_checkpoint(
    value: Any, lists: tuple[_Steps, ...], plan_id: PlanId, root: bytes
) -> Checkpoint:
    fields = Fields(value, _WHAT)
    checkpoint_id = fields.get("id", str)
    require(is_ulid(checkpoint_id), _WHAT, "the id of a checkpoint is not a ULID")
    return Checkpoint(
        id=CheckpointId(checkpoint_id),
        plan_id=plan_id,
        sandbox=root,
        snapshot_id=_decode_snapshot_id(fields.get("snapshot_id", str)),
        root_hash=_decode_hash(fields, "root_hash"),
        created_at_ns=fields.time("created_at_ns"),
        step_index=fields.size("step_index"),
        label=fields.get("label", str),
        reason=fields.get("reason", str),
        phase=fields.get("phase", str),
        source_tool=fields.get("source_tool", str),
        plan_state_hash=_decode_hash(fields, "plan_state_hash"),
        content=_decode_content(fields.get("content", dict), lists),
    )
