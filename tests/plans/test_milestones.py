"""When checkpoints are taken, how many stay, and what is known of each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from plan_bench import NONE, labels, noted
from sampling import sized
from treesnap import SnapshotKind
from treesnap.core.model.reserved_tags import facts_of, own_tags
from treesnap.plans import Milestones, Step

pytestmark = pytest.mark.sampled(10)


def names(bench) -> list[str]:
    return [
        f"{item.step_index} {item.label}"
        for item in reversed(bench.planner().checkpoints("latest"))
    ]


class TestMilestones:
    STEPS = (
        noted("a"),
        Step(name="sub", steps=(noted("b"), Step(name="inner", steps=(noted("c"),)))),
        noted("d"),
    )

    def test_before_each_step_and_after_sub_plans_by_default(self, bench):
        bench.run(*self.STEPS)

        assert names(bench) == [
            "0 before a",
            "1 before b",
            "2 before c",
            "3 after c, inner, sub",
            "3 before d",
        ]
        assert bench.seen.taken[3] == "after c, inner, sub: after_subplan"

    def test_before_each_step_only(self, bench):
        bench.run(*self.STEPS, milestones=Milestones(after_subplan=False))

        assert names(bench) == ["0 before a", "1 before b", "2 before c", "3 before d"]

    def test_after_sub_plans_only(self, bench):
        bench.run(*self.STEPS, milestones=Milestones(before_each_step=False))

        assert names(bench) == ["3 after c, inner, sub"]

    @pytest.mark.parametrize(
        ("every", "expected"),
        [(1, ["1 after a", "2 after b", "3 after c", "4 after d"]), (3, ["3 after c"]), (50, [])],
    )
    def test_every_n_steps(self, bench, every, expected):
        milestones = Milestones(before_each_step=False, after_subplan=False, every_n_steps=every)

        bench.run(*self.STEPS, milestones=milestones)

        assert names(bench) == expected

    def test_of_single_steps_though_the_others_are_off(self, bench):
        asking = noted("two", checkpoint=True)

        bench.run(
            noted("one"),
            asking,
            noted("three"),
            milestones=Milestones(enabled=False, every_n_steps=1),
        )

        assert names(bench) == ["2 after two"]
        assert bench.seen.taken == ["after two: after_step"]

    def test_that_meet_are_one(self, bench):
        sub = Step(name="sub", steps=(noted("one", checkpoint=True),))

        bench.run(sub, milestones=Milestones(before_each_step=False, every_n_steps=1))

        assert bench.seen.taken == ["after one, sub: after_step+every_n_steps+after_subplan"]

    def test_failing_steps_reach_none(self, bench):
        bench.run(Step(name="fails", run="false", checkpoint=True), milestones=NONE)

        assert names(bench) == []

    @pytest.mark.parametrize("keep", [1, 2, 3])
    def test_keep_the_newest_and_no_more(self, bench, keep):
        steps = [noted(f"s{number}", checkpoint=True) for number in range(6)]

        plan = bench.run(*steps, milestones=Milestones(keep=keep))

        assert len(plan.checkpoints) == keep
        assert names(bench)[-1] == "6 after s5"
        kept = [item for item in bench.handle().list() if item.kind == SnapshotKind.PLAN]
        assert {item.id for item in kept} == {item.snapshot_id for item in plan.checkpoints}

    def test_are_of_all_the_metadata_that_there_is(self, bench):
        plan = bench.run(*self.STEPS, name="release")

        checkpoint = plan.checkpoints[2]
        snapshot = bench.handle().resolve(checkpoint.snapshot_id)
        assert (checkpoint.label, checkpoint.reason) == ("before c", "before_step")
        assert (checkpoint.phase, checkpoint.source_tool) == ("sub/inner", "snap plan")
        assert (checkpoint.step_index, len(checkpoint.plan_state_hash)) == (2, 64)
        assert checkpoint.root_hash == snapshot.root_hash
        assert checkpoint.created_at_ns == snapshot.record.created_at_ns
        facts = facts_of(snapshot)
        found = snapshot.record
        assert (found.session, found.step, facts["step_name"]) == (plan.id, 2, "c")
        assert (facts["phase"], facts["type"], facts["source_tool"]) == (
            "sub/inner", "pre_risky_operation", "snap plan",
        )  # fmt: skip
        assert own_tags(snapshot) == {"plan": "release"}
        assert bench.handle().list(session=plan.id, tag="treesnap.phase=sub/inner")


class TestLabelsWithAPrefix:
    LIKE_ARCHITECT = Milestones(
        every_n_steps=2,
        before_each_step=False,
        after_subplan=False,
        label_prefix="architect:checkpoint",
        skip_unchanged=True,
    )

    def test_have_the_step_or_its_number(self, bench):
        steps = (noted("one"), noted("two"), noted("three", checkpoint=True))

        bench.run(*steps, milestones=self.LIKE_ARCHITECT)

        assert labels(bench) == ["architect:checkpoint:three", "architect:checkpoint:step-2"]

    def test_are_none_after_a_step_that_changed_nothing(self, bench):
        quiet = Step(name="quiet", run="touch done", checkpoint=True)
        steps = (quiet, noted("one", checkpoint=True), replace(quiet, name="again"))

        bench.run(*steps, milestones=self.LIKE_ARCHITECT)

        assert labels(bench) == ["architect:checkpoint:one", "architect:checkpoint:quiet"]

    def test_are_none_where_nothing_changed_at_all(self, bench):
        (bench.root / "file").touch()
        bench.run(
            Step(name="quiet", run="touch file", checkpoint=True), milestones=self.LIKE_ARCHITECT
        )

        assert labels(bench) == []
        assert not [item for item in bench.handle().list() if "architect" in (item.label or "")]


def test_as_many_are_kept_as_the_plan_says_whatever_the_policy(bench):
    """The default policy keeps 50 automatic snapshots, and looks every 32."""
    kept = sized(64, 120)
    plan = bench.run(
        *(noted(f"s{number}") for number in range(sized(70, 130))),
        milestones=Milestones(before_each_step=True, keep=kept),
    )

    assert len(bench.planner().checkpoints("latest")) == kept
    bench.handle().prune()
    assert len(bench.planner().checkpoints("latest")) == kept
    bench.planner().apply(plan.id)
    bench.handle().prune()
    assert len(bench.planner().checkpoints("latest")) < 60
