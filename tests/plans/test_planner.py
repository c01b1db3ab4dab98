"""Correcting, accepting, checkpoints by hand; and what is refused."""

from __future__ import annotations

import json
import os

import pytest

from oracle import difference, record
from plan_bench import NONE, end, labels, noted, to
from treesnap import ErrorCode, InvalidArgument, NotFound, Refused
from treesnap.core.model.reserved_tags import own_tags, stated_facts
from treesnap.plans import (
    CorrectionMode,
    Milestones,
    Plan,
    PlanState,
    RollbackResult,
    Step,
    StepState,
)


class TestCorrect:
    def test_revert_goes_to_before_the_error(self, bench, failed):
        (bench.root / "mess").write_text("by hand")

        result = bench.planner().correct("latest", CorrectionMode.REVERT)

        assert isinstance(result, RollbackResult)
        assert result.checkpoint.label == "before two"
        assert result.changed_paths == (b"mess",)
        assert bench.agrees(result.plan)
        assert {item.state for item in result.plan.content.progress[1:]} == {StepState.PENDING}

    def test_revert_passes_over_what_was_taken_since(self, bench, failed):
        bench.planner().rollback("latest", failed.checkpoints[1].id)
        bench.planner().resume("latest")
        bench.planner().checkpoint("latest", label="after the error")

        result = bench.planner().correct("latest", CorrectionMode.REVERT)

        assert result.checkpoint.label == "before two"
        assert result.checkpoint.created_at_ns >= failed.checkpoints[1].created_at_ns

    def test_revert_goes_further_back_where_that_one_is_gone(self, bench, failed):
        bench.handle().delete(failed.checkpoints[1].snapshot_id)

        result = bench.planner().correct("latest", CorrectionMode.REVERT)

        assert result.checkpoint.label == "before one"
        assert bench.agrees(result.plan)

    def test_revert_without_a_checkpoint(self, bench):
        bench.run(Step(name="fails", run="false"), milestones=NONE)

        with pytest.raises(NotFound) as caught:
            bench.planner().correct("latest", CorrectionMode.REVERT)
        assert caught.value.code == ErrorCode.CHECKPOINT_NOT_FOUND

    def test_append_adds_a_step_and_leaves_the_rest(self, bench, plan):
        before = record(bench.root)

        longer = bench.planner().correct("latest", CorrectionMode.APPEND, "echo more >> done")

        assert isinstance(longer, Plan)
        assert longer.content.progress[:3] == plan.content.progress
        assert longer.leaves[3].step == Step(name="correction-1", run="echo more >> done")
        assert difference(before, record(bench.root)) == []
        assert bench.planner().resume("latest").state == PlanState.COMPLETED
        assert bench.lines() == ["one", "two", "three", "more"]

    def test_append_corrects_a_plan_that_failed(self, bench, failed):
        """The step that mends it comes before the one that failed, which stayed as it was."""
        longer = bench.planner().correct(
            "latest", CorrectionMode.APPEND, "touch ready", name="make it ready"
        )

        assert [leaf.step.name for leaf in longer.leaves] == [
            "one",
            "make it ready",
            "two",
            "three",
        ]
        assert longer.content.progress[2] == failed.content.progress[1]
        assert longer.state == PlanState.FAILED
        assert bench.planner().resume("latest").state == PlanState.COMPLETED
        assert bench.lines() == ["one", "two", "three"]

    def test_append_after_revert_corrects_the_step_that_had_failed(self, bench, failed):
        bench.planner().correct("latest", CorrectionMode.REVERT)
        bench.planner().correct("latest", CorrectionMode.APPEND, "touch needed", name="first")
        longer = bench.planner().correct(
            "latest", CorrectionMode.APPEND, "test -e needed && touch ready", name="second"
        )

        assert isinstance(longer, Plan)
        names = ["one", "first", "second", "two", "three"]
        assert [leaf.step.name for leaf in longer.leaves] == names
        assert longer.insertion_index == 3
        done = bench.planner().resume("latest")
        assert done.state == PlanState.COMPLETED
        assert done.insertion_index == 5  # what was mended asks for no correction any more

    def test_append_stays_in_the_sub_plan_of_the_step_that_failed(self, bench):
        sub = Step(name="sub", steps=(noted("one"), noted("two", "test -e ready")))
        bench.run(noted("zero"), sub, noted("three"))

        bench.planner().correct("latest", CorrectionMode.APPEND, "touch ready")

        ended = bench.planner().resume("latest")
        assert ended.state == PlanState.COMPLETED
        assert [leaf.path for leaf in ended.leaves] == [(), ("sub",), ("sub",), ("sub",), ()]
        assert bench.lines() == ["zero", "one", "two", "three"]

    def test_append_leaves_each_step_its_output(self, bench):
        bench.run(noted("one", "echo first"), noted("two", "echo why; test -e ready"))

        bench.planner().correct("latest", CorrectionMode.APPEND, "touch ready")

        said = [b"".join(bench.planner().output("latest", number)) for number in range(3)]
        assert said == [b"first\n", b"", b"why\n"]

    def test_append_refuses_a_name_that_is_taken(self, bench, failed):
        with pytest.raises(InvalidArgument, match="already has a step 'two'"):
            bench.planner().correct("latest", CorrectionMode.APPEND, "true", name="two")
        assert bench.planner().show("latest") == failed

    def test_revert_keeps_a_step_that_was_added(self, bench, failed):
        bench.planner().correct("latest", CorrectionMode.APPEND, "touch ready", name="mend")

        result = bench.planner().correct("latest", CorrectionMode.REVERT)

        assert isinstance(result, RollbackResult)
        assert result.dropped_steps == ()
        assert [leaf.step.name for leaf in result.plan.leaves] == ["one", "mend", "two", "three"]
        assert bench.agrees(result.plan)
        assert bench.planner().resume("latest").state == PlanState.COMPLETED
        assert bench.lines() == ["one", "two", "three"]

    def test_a_roll_back_says_which_steps_the_checkpoint_has_not(self, bench, failed):
        bench.planner().correct("latest", CorrectionMode.APPEND, "touch ready", name="mend")

        result = to(bench, "before one")

        assert result.dropped_steps == ("mend",)
        assert to(bench, "before rollback to before one").plan.leaves[1].step.name == "mend"

    def test_append_names_each_step_anew(self, bench, plan):
        for number in range(1, 4):
            longer = bench.planner().correct("latest", CorrectionMode.APPEND, "true")
            assert longer.leaves[-1].step.name == f"correction-{number}"
        assert longer.state == PlanState.PENDING

    @pytest.mark.parametrize(
        ("mode", "command"),
        [
            (CorrectionMode.APPEND, None),
            (CorrectionMode.REVERT, "true"),
            (CorrectionMode.APPEND, ""),
            (CorrectionMode.APPEND, "a\0b"),
            (CorrectionMode.APPEND, "\udcff"),
        ],
    )
    def test_what_makes_no_sense(self, bench, plan, mode, command):
        with pytest.raises(InvalidArgument):
            bench.planner().correct("latest", mode, command)
        assert bench.planner().show("latest") == plan


class TestApply:
    def test_ends_the_plan_for_good(self, bench, plan):
        assert bench.planner().apply("latest").state == PlanState.APPLIED
        assert bench.planner().apply("latest").state == PlanState.APPLIED

        for refused in (
            lambda planner: planner.rollback("latest", plan.checkpoints[0].id),
            lambda planner: planner.resume("latest"),
            lambda planner: planner.correct("latest", CorrectionMode.REVERT),
            lambda planner: planner.correct("latest", CorrectionMode.APPEND, "true"),
            lambda planner: planner.checkpoint("latest", label="x"),
        ):
            with pytest.raises(Refused) as caught:
                refused(bench.planner())
            assert caught.value.code == ErrorCode.PLAN_APPLIED
        assert bench.lines() == ["one", "two", "three"]

    def test_is_for_completed_plans(self, bench, failed):
        with pytest.raises(Refused) as caught:
            bench.planner().apply("latest")
        assert caught.value.code == ErrorCode.PLAN_NOT_COMPLETED


class TestCheckpointByHand:
    def test_says_why_and_by_whom(self, bench, failed):
        taken = bench.planner().checkpoint(
            "latest", label="so far", reason="tests pass", source_tool="pytest", phase="strategize"
        )

        assert bench.planner().checkpoints("latest")[0] == taken
        assert (taken.label, taken.reason, taken.phase) == ("so far", "tests pass", "strategize")
        assert (taken.source_tool, taken.step_index) == ("pytest", 1)
        snapshot = bench.handle().resolve(taken.snapshot_id)
        facts = stated_facts(snapshot)
        assert (facts["type"], facts["source_tool"]) == ("manual", "pytest")
        assert own_tags(snapshot).keys() == {"plan", "reason", "source_tool", "phase"}

    def test_can_be_rolled_back_to(self, bench, failed):
        (bench.root / "mess").write_text("x")
        taken = bench.planner().checkpoint("latest", label="so far")
        (bench.root / "mess").unlink()

        bench.planner().rollback("latest", taken.id)

        assert (bench.root / "mess").read_text() == "x"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("steps", "milestones"),
    [
        ([], None),
        ([Step(name="x")], None),
        ([Step(name="", run="x")], None),
        ([Step(name="x", run=" ")], None),
        ([Step(name="x", run="a\0b")], None),
        ([Step(name="\udcff", run="x")], None),
        ([Step(name="x", run="x", prompt="y")], None),
        ([Step(name="x", run="x", steps=(Step(name="y", run="y"),))], None),
        ([Step(name="x", run="x", retries=-1)], None),
        ([Step(name="x", run="x", retries=True)], None),
        ([Step(name="x", run="x", timeout_s=0)], None),
        ([Step(name="x", run="x", timeout_s=1.5)], None),
        ([Step(name="x", run="x")], Milestones(every_n_steps=0)),
        ([Step(name="x", run="x")], Milestones(every_n_steps=51)),
        ([Step(name="x", run="x")], Milestones(keep=0)),
        ([Step(name=str(n), run="x") for n in range(10_001)], None),
    ],
)
def test_plans_that_make_no_sense_are_refused_before_anything_happens(bench, steps, milestones):
    with pytest.raises(InvalidArgument) as caught:
        bench.planner().run("p", steps, milestones)

    assert caught.value.code == ErrorCode.INVALID_PLAN
    assert not bench.store.exists()


def test_steps_that_are_nested_too_deeply_are_refused(bench):
    step = Step(name="x", run="x")
    for _ in range(40):
        step = Step(name="x", steps=(step,))

    with pytest.raises(InvalidArgument, match="nested"):
        bench.run(step)


@pytest.mark.parametrize("name", ["", " ", "a\0", "\udcff"])
def test_a_name_has_to_be_text(bench, name):
    with pytest.raises(InvalidArgument):
        bench.run(noted("one"), name=name)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["a\nb\x1b[31m", "ñ" * 3000, "latest", "../../x", "-C", "a/b"])
def test_odd_names_are_names(bench, name):
    plan = bench.run(noted("one"), Step(name=name, run="true", checkpoint=True), name=name)

    assert plan.state == PlanState.COMPLETED
    assert bench.planner().show(name) == plan
    assert labels(bench, name)[0] == f"after {name}"


def test_output_is_that_of_all_attempts(bench):
    bench.run(Step(name="x", run="echo try; exit 1", retries=1), milestones=NONE)

    assert list(bench.planner().output("latest", 0)) == [b"try\n", b"try\n"]
    for log in bench.store.glob("roots/*/*-1.log"):
        log.unlink()
    assert list(bench.planner().output("latest", 0)) == [b"try\n"]


OF_WRONG_TYPES = {
    "run": [(None, ()), ("p", None), ("p", "true"), ("p", [1]), ("p", (), "often")],
    "resume": [(None,), (1,), (b"latest",)],
    "show": [(None,), (1,)],
    "list": [],
    "checkpoints": [(None,)],
    "output": [("latest", "0"), ("latest", 1.0), ("latest", True), (None, 0)],
    "rollback": [("latest", None), ("latest", 1), (None, "x")],
    "correct": [("latest", "revert"), ("latest", None), ("latest", CorrectionMode.APPEND, 1)],
    "apply": [(None,)],
    "delete": [(1,)],
    "is_at_work": [("latest",)],
    "run_definition": [("steps",)],
}


@pytest.mark.parametrize("method", OF_WRONG_TYPES)
def test_what_is_of_a_wrong_type_is_one_clear_error(bench, plan, method):
    for arguments in OF_WRONG_TYPES[method]:
        with pytest.raises(InvalidArgument, match=r"must be|cannot be used"):
            getattr(bench.planner(), method)(*arguments)
    assert bench.planner().list() == (plan,)


def test_labels_and_words_of_a_checkpoint_are_checked(bench, plan):
    for words in ({"label": 1}, {"label": "x", "reason": 1}, {"label": "x", "phase": b"x"}):
        with pytest.raises(InvalidArgument, match="must be text"):
            bench.planner().checkpoint("latest", **words)


@pytest.mark.parametrize(
    "step",
    [
        "true",
        Step(name=1, run="true"),
        Step(name="x", run=1),
        Step(name="x", run=b"true"),
        Step(name="x", run="true", retries="2"),
        Step(name="x", run="true", retries=1.0),
        Step(name="x", run="true", timeout_s=True),
        Step(name="x", run="true", checkpoint="yes"),
        Step(name="x", steps=[Step(name="y", run="true")]),
        Step(name="x", steps=("y",)),
    ],
)
def test_a_step_of_wrong_types_is_refused_before_anything_happens(bench, step):
    with pytest.raises(InvalidArgument):
        bench.run(step)
    assert not bench.store.exists()


@pytest.mark.parametrize(
    "milestones",
    [
        {"enabled": "no"},
        {"every_n_steps": "5"},
        {"before_each_step": 1},
        {"keep": True},
        {"keep": 2.0},
        {"label_prefix": 1},
        {"skip_unchanged": None},
    ],
)
def test_milestones_of_wrong_types_are_refused_before_anything_happens(bench, milestones):
    with pytest.raises(InvalidArgument):
        bench.run(noted("one"), milestones=Milestones(**milestones))
    assert not bench.store.exists()


@pytest.mark.parametrize("step_index", [-1, 1])
def test_output_is_of_a_step_that_there_is(bench, step_index):
    bench.run(Step(name="x", run="echo said"), milestones=NONE)

    with pytest.raises(InvalidArgument, match=r"has no step 1|step_index must be a whole number"):
        list(bench.planner().output("latest", step_index))


def test_a_clock_that_was_put_back_changes_no_order(bench):
    def back() -> None:
        bench.now_ns -= 10**18

    planner = bench.planner(calls={"back": back})
    plan = planner.run("p", [Step(name="back", call="back"), noted("two"), noted("three")])

    ids = [item.id for item in plan.checkpoints]
    assert ids == sorted(ids)
    assert [item.step_index for item in bench.planner().checkpoints("latest")] == [2, 1, 0]


def test_a_server_that_an_earlier_run_left_is_not_killed_by_the_next(bench):
    bench.run(Step(name="s", run="sleep 600 & echo $! > number; test ! -e fail"), noted("two"))
    first = int((bench.root / "number").read_text())
    to(bench, "before s")
    (bench.root / "fail").touch()

    again = bench.planner().resume("latest")

    assert again.state == PlanState.FAILED
    end(first)


def test_records_are_json_as_the_commands_print_it(bench, failed):
    result = bench.planner().correct(failed.id, CorrectionMode.REVERT)
    step = failed.leaves[1].step
    records = [failed, result, result.before, failed.content, failed.leaves[0], step, Milestones()]

    for item in records:
        fields = item.to_dict()
        assert json.loads(json.dumps(fields)) == fields, item
    assert failed.to_dict()["steps"][1]["state"] == "failed"
    assert result.to_dict()["before"] == result.before.to_dict()
    assert "content" not in result.before.to_dict()


def test_records_are_short_as_text(bench, failed):
    result = bench.planner().correct(failed.id, CorrectionMode.REVERT)

    assert repr(failed) == f"<Plan {failed.id} failed 1 of 3 steps, 2 checkpoints: {failed.name}>"
    assert repr(failed.content) == "<Content 1 of 3 steps completed>"
    assert repr(Milestones(keep=3)) == "Milestones(keep=3)"
    assert repr(Step(name="a", run="true")) == "Step(name='a', run='true')"
    assert repr(Step(name="all", steps=(Step(name="a", run="true"),))) == "<Step all of 1 step>"
    before = result.before
    place = f"step_index={before.step_index} snapshot {before.snapshot_id[:12]}"
    assert repr(before) == f"<Checkpoint {before.id} {place}: {before.label}>"
    assert f"plan={result.plan!r}, checkpoint={result.checkpoint!r}" in repr(result)
    assert result.safety_id not in repr(result)


def test_the_text_of_a_path_is_the_root(failed):
    assert failed.path_text == os.fsdecode(failed.root)
    assert failed.checkpoints[0].path_text == failed.path_text
