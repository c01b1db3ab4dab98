"""Plans as stored bytes: they come back equal, and damage is always noticed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plan_bench import checkpoint_of
from sampling import sized
from treesnap import Corrupt, UnsupportedFormat
from treesnap.core.codec.envelope import FileKind, seal, unseal
from treesnap.core.codec.message import pack, unpack
from treesnap.core.model.snapshots import SnapshotId
from treesnap.plans import (
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
)
from treesnap.plans.plan import DEPTH_MAX, leaves_of
from treesnap.plans.record import decode_plan, encode_plan

ULIDS = st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=25, max_size=25).map("0".__add__)
HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)
SNAPSHOT_IDS = HASHES.map(SnapshotId)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
WORDS = TEXTS.filter(str.strip)
NUMBERS = st.integers(0, 1 << 62)


def actions() -> st.SearchStrategy[dict[str, str]]:
    return st.tuples(st.sampled_from(["run", "prompt", "call"]), WORDS).map(lambda one: dict([one]))


LEAVES = st.builds(
    lambda action, **rest: Step(**action, **rest),
    actions(),
    name=WORDS,
    checkpoint=st.booleans(),
    retries=st.integers(0, 1000),
    timeout_s=st.none() | st.integers(1, 10**9),
)
STEPS = st.recursive(
    LEAVES,
    lambda below: st.builds(
        Step, name=WORDS, steps=st.lists(below, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=6,
)
PROGRESS = st.builds(
    StepProgress,
    state=st.sampled_from(StepState),
    attempts=NUMBERS,
    exit_code=st.none() | st.integers(-64, 255),
)


@st.composite
def contents(draw: st.DrawFn) -> Content:
    steps = tuple(draw(st.lists(STEPS, min_size=1, max_size=3)))
    count = len(tuple(leaves_of(steps)))
    return Content(
        steps=steps,
        progress=tuple(draw(st.lists(PROGRESS, min_size=count, max_size=count))),
    )


CHECKPOINTS = st.builds(
    Checkpoint,
    id=ULIDS.map(CheckpointId),
    plan_id=st.just(PlanId("")),
    sandbox=st.just(b""),
    snapshot_id=SNAPSHOT_IDS,
    root_hash=HASHES,
    created_at_ns=NUMBERS,
    step_index=NUMBERS,
    label=TEXTS,
    reason=TEXTS,
    phase=TEXTS,
    source_tool=TEXTS,
    plan_state_hash=HASHES,
    content=contents(),
)
MILESTONES = st.builds(
    Milestones,
    enabled=st.booleans(),
    every_n_steps=st.none() | st.integers(1, 50),
    before_each_step=st.booleans(),
    after_subplan=st.booleans(),
    keep=st.none() | st.integers(1, 10_000),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    content = draw(contents())
    attempt = st.builds(
        Attempt,
        step_index=st.integers(0, len(content.progress) - 1),
        number=st.integers(1, 1 << 40),
        snapshot_id=SNAPSHOT_IDS,
    )
    plan_id, root = PlanId(draw(ULIDS)), draw(st.binary(max_size=9))
    checkpoints = draw(st.lists(CHECKPOINTS, max_size=2))
    return Plan(
        id=plan_id,
        name=draw(WORDS),
        root=root,
        created_at_ns=draw(NUMBERS),
        milestones=draw(MILESTONES),
        state=draw(st.sampled_from(PlanState)),
        content=content,
        checkpoints=tuple(replace(item, plan_id=plan_id, sandbox=root) for item in checkpoints),
        attempt=draw(st.none() | attempt),
        runner=draw(st.none() | TEXTS),
        held=tuple(draw(st.lists(SNAPSHOT_IDS, max_size=2))),
    )


STEP = Step(name="one", run="true", retries=1)
PLAN = Plan(
    id=PlanId("01J9ZKM8F4Q6T2W8X0Y2A4C6E8"),
    name="plan",
    root=b"/r",
    created_at_ns=1,
    content=Content(
        steps=(STEP, Step(name="sub", steps=(replace(STEP, name="two"),))),
        progress=(StepProgress(state=StepState.COMPLETED, attempts=1, exit_code=0), StepProgress()),
    ),
    attempt=Attempt(step_index=1, number=1, snapshot_id=SnapshotId("ab" * 32)),
)


def decoded_with(**changes: Any) -> Plan:
    """Returns what becomes of a stored plan with other fields."""
    stored = dict(unpack(encode_plan(PLAN), "plan"))
    for name, value in changes.items():
        where = stored
        *path, last = name.split("__")
        for part in path:
            where[part] = dict(where[part])
            where = where[part]
        where[last] = value
    return decode_plan(pack(stored))


PATIENT = settings(
    max_examples=sized(10, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
"""Plans are large, and machines may be busy."""


@given(plans())
@PATIENT
def test_every_plan_comes_back_equal(plan):
    assert decode_plan(encode_plan(plan)) == plan


def test_every_field_is_stored():
    stored = unpack(encode_plan(PLAN), "plan")

    assert set(stored) == {"version", "step_lists", *(field.name for field in fields(Plan))}


@pytest.mark.parametrize("name", ["root_hash", "plan_state_hash"])
@pytest.mark.parametrize("value", ["", "ab" * 31, "AB" * 32, "\x1b]0;title\x07" + "ab" * 27])
def test_a_hash_of_a_checkpoint_is_one(name, value):
    """Terminals are shown its beginning, and obey what a stranger may write there."""
    checkpoint = checkpoint_of(PLAN.content, PLAN)
    kept = replace(PLAN, checkpoints=(checkpoint,))
    wrong = replace(PLAN, checkpoints=(replace(checkpoint, **{name: value}),))

    assert decode_plan(encode_plan(kept)) == kept
    with pytest.raises(Corrupt, match=name):
        decode_plan(encode_plan(wrong))


@given(plans(), st.data())
@PATIENT
def test_a_stored_plan_that_is_cut_short_or_has_a_bit_flipped_is_damaged(plan, data):
    stored = seal(FileKind.PLAN, encode_plan(plan))
    position = data.draw(st.integers(0, len(stored) - 1))
    flipped = bytearray(stored)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))

    for wrong in (stored[:position], bytes(flipped)):
        with pytest.raises((Corrupt, UnsupportedFormat)):
            decode_plan(unseal(wrong, FileKind.PLAN, "plan"))


def test_every_bit_of_an_unsealed_plan_is_a_plan_or_damage():
    payload = encode_plan(PLAN)

    for position in range(8 * len(payload)):
        wrong = bytearray(payload)
        wrong[position // 8] ^= 1 << position % 8
        equal_or_corrupt(bytes(wrong))
    for length in range(len(payload)):
        equal_or_corrupt(payload[:length])


def equal_or_corrupt(payload: bytes) -> None:
    try:
        plan = decode_plan(payload)
    except Corrupt:
        return
    assert decode_plan(encode_plan(plan)) == plan


@given(st.binary(max_size=60))
def test_any_bytes_are_a_plan_or_damage(payload):
    equal_or_corrupt(payload)


def test_a_list_of_steps_is_stored_once_whatever_the_number_of_checkpoints():
    long = replace(PLAN.content, steps=(replace(STEP, run="x" * 9000), *PLAN.content.steps[1:]))
    plans = [replace(PLAN, checkpoints=(checkpoint_of(long, PLAN),) * count) for count in (1, 50)]

    one, many = (len(encode_plan(plan)) for plan in plans)

    assert one > 9000
    assert many - one < 49 * 500
    assert decode_plan(encode_plan(plans[1])) == plans[1]


def test_unknown_fields_are_ignored():
    assert decoded_with(colour="red", milestones__colour="red", content__colour=(1,)) == PLAN


DEEP: dict[str, Any] = {"name": "x", "run": "x"}
for _ in range(DEPTH_MAX):
    DEEP = {"name": "x", "steps": (DEEP,)}


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": None},
        {"id": "x"},
        {"name": ""},
        {"name": b"x"},
        {"root": "x"},
        {"state": "lost"},
        {"state": 1},
        {"state": {}},
        {"milestones__keep": 0},
        {"milestones__every_n_steps": 0},
        {"milestones__every_n_steps": 51},
        {"milestones__enabled": 1},
        {"step_lists": ()},
        {"step_lists": (1,)},
        {"step_lists": ((),), "content__progress": ()},
        *(
            {"step_lists": ((step,),), "content__progress": ((1, "pending", 0, None),)}
            for step in (
                {"name": "x"},
                {"name": "x", "run": "x", "prompt": "y"},
                {"name": "x", "run": "x", "retries": -1},
                {"name": "x", "run": "x", "timeout_s": -1},
                DEEP,
            )
        ),
        {"content__steps": 1},
        {"content__steps": -1},
        {"content__progress": ()},
        {"content__progress": (1,)},
        {"content__progress": ((2, "pending", 0),)},
        {"content__progress": ((1, "pending", 0, None),)},
        {"content__progress": ((1 << 40, "pending", 0, None),)},
        {"content__progress": ((0, "pending", 0, None), (2, "pending", 0, None))},
        {"content__progress": ((2, "pending", -1, None),)},
        {"content__progress": ((2, "lost", 0, None),)},
        {"content__progress": ((2, {}, 0, None),)},
        {"attempt": (2, 1, "ab" * 32)},
        {"attempt": (-1, 1, "ab" * 32)},
        {"attempt": (0, 0, "ab" * 32)},
        {"attempt": (0, 1, "../x")},
        {"attempt": (0, 1)},
        {"checkpoints": ({},)},
        {"checkpoints": (1,)},
        {"held": ("../x",)},
        {"held": (1,)},
        {"runner": 5},
    ],
)
def test_what_cannot_be_is_damage(changes):
    with pytest.raises(Corrupt):
        decoded_with(**changes)
