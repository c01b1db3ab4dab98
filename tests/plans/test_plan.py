"""Plans as values: their order, their transitions, and the hash of their state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan_bench import checkpoint_of
from treesnap.core.model.snapshots import SnapshotId
from treesnap.plans import Attempt, Plan, PlanId, PlanState, Step, StepProgress, StepState
from treesnap.plans.plan import unstarted
from treesnap.plans.record import content_hash

SNAPSHOT = SnapshotId("ab" * 32)
STEPS = (
    Step(name="one", run="1"),
    Step(
        name="sub",
        steps=(
            Step(name="two", prompt="2"),
            Step(name="inner", steps=(Step(name="three", run="3"),)),
        ),
    ),
    Step(name="four", call="4"),
)


def plan_of(*steps: Step) -> Plan:
    return Plan(
        id=PlanId("01J9ZKM8F4Q6T2W8X0Y2A4C6E8"),
        name="plan",
        root=b"/r",
        created_at_ns=1,
        content=unstarted(steps or STEPS),
    )


def attempt(index: int = 0, number: int = 1) -> Attempt:
    return Attempt(step_index=index, number=number, snapshot_id=SNAPSHOT)


def states(plan: Plan) -> list[str]:
    return [item.state.value for item in plan.content.progress]


def done(plan: Plan, index: int) -> Plan:
    return plan.began(attempt(index)).ended(StepState.COMPLETED, 0)


def test_leaves_are_in_order_and_know_the_sub_plans_around_them():
    leaves = plan_of().leaves

    assert [(leaf.step.name, leaf.path, leaf.ends) for leaf in leaves] == [
        ("one", (), ()),
        ("two", ("sub",), ()),
        ("three", ("sub", "inner"), ("inner", "sub")),
        ("four", (), ()),
    ]


def test_next_step_is_the_first_that_is_not_completed():
    plan = plan_of()

    assert [plan.next_index, done(plan, 0).next_index] == [0, 1]
    assert done(done(done(done(plan, 0), 1), 2), 3).next_index == 4


def test_a_step_that_begins_makes_the_plan_run():
    plan = plan_of().began(attempt(0, 2))

    assert (plan.state, plan.attempt) == (PlanState.RUNNING, attempt(0, 2))
    assert states(plan) == ["running", "pending", "pending", "pending"]
    assert plan.content.progress[0].attempts == 2
    assert plan.is_interrupted


def test_a_step_that_fails_fails_the_plan():
    plan = plan_of().began(attempt(0, 3)).ended(StepState.FAILED, -9)

    assert (plan.state, plan.attempt, plan.is_interrupted) == (PlanState.FAILED, None, False)
    assert plan.content.progress[0] == StepProgress(
        state=StepState.FAILED, attempts=3, exit_code=-9
    )


def test_settling_leaves_no_step_running():
    plan = done(plan_of(), 0).began(attempt(1)).settled()

    assert states(plan) == ["completed", "pending", "pending", "pending"]
    assert (plan.state, plan.attempt) == (PlanState.PENDING, None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PlanState.FAILED, PlanState.FAILED),
        (PlanState.COMPLETED, PlanState.PENDING),
        (PlanState.ROLLED_BACK, PlanState.PENDING),
        (PlanState.PENDING, PlanState.PENDING),
    ],
)
def test_an_appended_step_comes_last_and_leaves_the_others(before, after):
    plan = replace(done(plan_of(), 0), state=before)

    longer = plan.corrected(Step(name="more", run="x"))

    assert longer.content.steps == (*STEPS, Step(name="more", run="x"))
    assert longer.content.progress == (*plan.content.progress, StepProgress())
    assert longer.state == after


def test_rolling_back_takes_the_content_of_the_checkpoint():
    early = plan_of()
    checkpoint = checkpoint_of(early.content)
    late = replace(done(early, 0).began(attempt(1)), checkpoints=(checkpoint,))

    back = late.rolled_back(checkpoint)

    assert (back.state, back.content) == (PlanState.ROLLED_BACK, early.content)
    assert back.attempt is None
    assert back.checkpoints == (checkpoint,)


class TestStateHash:
    def test_is_of_name_steps_and_progress(self):
        plan = plan_of()
        others = [
            ("plan", done(plan, 0).content),
            ("plan", plan.began(attempt()).content),
            ("plan", plan.began(attempt()).ended(StepState.FAILED, 1).content),
            ("plan", plan.began(attempt()).ended(StepState.FAILED, 2).content),
            ("plan", plan.began(attempt(0, 2)).ended(StepState.FAILED, 1).content),
            ("plan", plan_of(replace(STEPS[0], run="2"), *STEPS[1:]).content),
            ("plan", plan_of(replace(STEPS[0], retries=1), *STEPS[1:]).content),
            ("nalp", plan.content),
        ]

        hashes = {content_hash(name, content) for name, content in others}

        assert len(hashes) == len(others)
        assert content_hash("plan", plan.content) not in hashes

    def test_is_the_same_for_the_same_state_whatever_the_plan(self):
        one, two = plan_of(), replace(plan_of(), id=PlanId("0" * 26), root=b"/x", created_at_ns=5)

        assert content_hash(one.name, one.content) == content_hash(two.name, two.content)
        assert len(content_hash(one.name, one.content)) == 64

    def test_is_what_it_always_was(self):
        golden = "d995b7f15088e6773f931308b13b29515ee2d1ed94496dcc1134c9f5a0df114e"

        assert content_hash("plan", plan_of().content) == golden
