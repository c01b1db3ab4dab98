"""Carrying out plans: order, attempts, and what is undone."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from oracle import difference, record
from plan_bench import LOG, NONE, end, is_alive, noted
from treesnap import ErrorCode, InvalidArgument, NotFound, SnapshotKind
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.plans import Planner, PlanState, Step, StepState

pytestmark = pytest.mark.sampled(10)

FAILS = Step(name="fails", run="echo litter > litter; mkdir -p a/b; rm -f kept; exit 3")


def test_steps_run_in_order_in_the_root(bench):
    plan = bench.run(
        noted("one"), Step(name="sub", steps=(noted("two"), noted("three"))), noted("four")
    )

    assert plan.state == PlanState.COMPLETED
    assert bench.lines() == ["one", "two", "three", "four"]
    assert {item.state for item in plan.content.progress} == {StepState.COMPLETED}
    assert bench.planner().show(plan.id) == plan


class TestAFailingStep:
    def test_is_undone_whole_and_ends_the_plan(self, bench):
        (bench.root / "kept").write_text("kept")
        (bench.root / ".gitignore").write_text("litter\n")
        before = record(bench.root)

        plan = bench.run(FAILS, noted("never"))

        assert plan.state == PlanState.FAILED
        assert [item.state.value for item in plan.content.progress] == ["failed", "pending"]
        assert plan.content.progress[0].exit_code == 3
        assert difference(before, record(bench.root)) == []

    def test_leaves_what_came_before_it(self, bench):
        assert bench.agrees(bench.run(noted("one"), FAILS))
        assert bench.lines() == ["one"]

    def test_is_tried_again_from_a_clean_state(self, bench):
        count = bench.directory / "count"
        script = f"echo x >> {count}; test ! -e litter || exit 9; touch litter;"
        script += f" test $(wc -l < {count}) = 3"

        plan = bench.run(Step(name="third time", run=script, retries=5))

        assert plan.state == PlanState.COMPLETED
        assert plan.content.progress[0].attempts == 3
        assert bench.seen.attempts == [(0, 1, "failed"), (0, 2, "failed"), (0, 3, "completed")]

    def test_is_tried_so_often_and_no_more(self, bench):
        count = bench.directory / "count"

        plan = bench.run(Step(name="never", run=f"echo x >> {count}; exit 1", retries=2))

        assert count.read_text() == "x\n" * 3
        assert plan.content.progress[0].attempts == 3

    def test_of_a_time_limit_says_so(self, bench):
        plan = bench.run(Step(name="slow", run="touch litter; sleep 600", timeout_s=1))

        assert plan.content.progress[0].state == StepState.FAILED
        assert plan.content.progress[0].exit_code is None
        assert os.listdir(bench.root) == []

    def test_begins_again_with_resume(self, bench):
        bench.run(noted("one"), noted("two", "test -e ready"))
        (bench.root / "ready").touch()

        plan = bench.planner().resume("latest")

        assert plan.state == PlanState.COMPLETED
        assert bench.lines() == ["one", "two"]

    def test_may_have_taken_everything_away(self, bench):
        (bench.root / "file").write_text("content")
        before = record(bench.root)

        plan = bench.run(Step(name="gone", run=f"rm -rf {bench.root}; exit 1"))

        assert plan.state == PlanState.FAILED
        assert difference(before, record(bench.root)) == []


class TestASteplessRoot:
    @pytest.mark.parametrize("script", ["rm -rf {}", "mv {} {}.moved"])
    def test_a_step_that_leaves_no_root_has_failed(self, bench, script):
        (bench.root / "file").write_text("content")
        before = record(bench.root)

        plan = bench.run(Step(name="gone", run=script.replace("{}", str(bench.root))))

        assert plan.state == PlanState.FAILED
        assert b"removed the root" in bench.seen.written
        assert difference(before, record(bench.root)) == []

    def test_a_link_in_its_place_is_put_aside(self, bench):
        moved = bench.directory / "moved"
        script = f"mv {bench.root} {moved}; ln -s {moved} {bench.root}"
        (bench.root / "file").write_text("content")

        plan = bench.run(Step(name="link", run=script))

        assert plan.state == PlanState.FAILED
        assert (bench.root / "file").read_text() == "content"
        assert not bench.root.is_symlink()
        assert Path(f"{bench.root}.left-1").readlink() == moved
        assert (moved / "file").read_text() == "content"


class TestWhatRunsThePlansOwnRoot:
    def test_a_step_may_take_and_restore_snapshots(self, bench, snap_script):
        plan = bench.run(
            noted("one", f"{snap_script} create --name mine -q"),
            Step(name="two", run=f"echo x > {LOG}; {snap_script} restore mine {LOG}"),
        )

        assert plan.state == PlanState.COMPLETED
        assert bench.lines() == ["one"]

    def test_a_step_may_run_no_plan_in_the_same_root(self, bench, snap_script):
        (bench.directory / "p.yaml").write_text("steps: [{run: touch inner}]")

        plan = bench.run(Step(name="x", run=f"{snap_script} plan run {bench.directory}/p.yaml"))

        assert plan.content.progress[0].exit_code == 6
        assert os.listdir(bench.root) == []

    def test_many_snapshots_of_a_step_do_not_push_out_what_it_is_undone_to(self, bench):
        def crowd() -> None:
            for number in range(70):
                (bench.root / "file").write_text(str(number))
                bench.handle().create(kind=SnapshotKind.AUTOMATIC)
            raise ValueError("enough")

        (bench.root / "file").write_text("before")
        before = record(bench.root)
        for key in ("keep.hourly", "keep.daily", "keep.weekly"):
            bench.handle().config(key, "0")

        plan = bench.planner(calls={"crowd": crowd}).run("p", [Step(name="c", call="crowd")])

        assert plan.state == PlanState.FAILED
        assert difference(before, record(bench.root)) == []
        assert [item.id for item in bench.handle().list() if item.pinned] == []

    def test_nothing_stays_pinned(self, bench):
        bench.run(noted("one"), noted("two", checkpoint=True), FAILS)

        assert [item.id for item in bench.handle().list() if item.pinned] == []
        assert bench.planner().show("latest").held == ()

    def test_a_checkpoint_that_the_user_pins_meanwhile_stays(self, bench):
        pinned = []

        def pin() -> None:
            newest = bench.handle().list()[0]
            pinned.append(bench.handle().pin(newest.id).id)

        bench.planner(calls={"pin": pin}).run("p", [Step(name="c", call="pin")])

        assert [item.id for item in bench.handle().list() if item.pinned] == pinned

    def test_a_store_in_the_root_is_left_alone(self, bench):
        handle = Handle(context_at(root=bench.root, store_path=str(bench.root / "store")))

        plan = Planner(handle).run("p", [noted("one"), FAILS])

        assert (plan.state, plan.next_index) == (PlanState.FAILED, 1)
        assert sorted(os.listdir(bench.root)) == [LOG, "store"]


class TestCallables:
    def test_are_steps(self, bench):
        seen = []
        planner = bench.planner(calls={"f": lambda: seen.append(1)})

        plan = planner.run("p", [Step(name="s", call="f")])

        assert (plan.state, seen) == (PlanState.COMPLETED, [1])

    def test_that_raise_have_failed_and_said_why(self, bench):
        def fail() -> None:
            (bench.root / "litter").touch()
            raise ValueError("no \udcff")

        planner = bench.planner(calls={"f": fail})

        plan = planner.run("p", [Step(name="s", call="f")])

        assert plan.state == PlanState.FAILED
        assert bench.seen.written == b"ValueError: no \\udcff\n"
        assert b"".join(planner.output("latest", 0)) == bench.seen.written
        assert os.listdir(bench.root) == []

    def test_that_are_not_there_run_nothing(self, bench):
        with pytest.raises(InvalidArgument) as caught:
            bench.run(noted("one"), Step(name="s", call="absent"))

        assert caught.value.code == ErrorCode.INVALID_PLAN
        assert bench.lines() == []

    def test_that_are_interrupted_are_undone(self, bench):
        def stop() -> None:
            (bench.root / "litter").touch()
            raise KeyboardInterrupt

        planner = bench.planner(calls={"f": stop})
        with pytest.raises(KeyboardInterrupt):
            planner.run("p", [noted("one"), Step(name="s", call="f")])

        plan = bench.planner().show("latest")
        assert (plan.state, plan.next_index, plan.is_interrupted) == (PlanState.PENDING, 1, False)
        assert os.listdir(bench.root) == [LOG]


class TestPrompts:
    NASTY = '\'; touch hacked; $(touch hacked) `touch hacked` "x" {prompt} \\ * ñ\n-n'

    @pytest.fixture
    def agent(self, bench):
        """A program that writes down its arguments."""
        path = bench.directory / "agent"
        path.write_text('#!/bin/sh\nprintf "%s|" "$#" "$@" > said\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def test_are_one_argument_whatever_is_in_them(self, bench, agent):
        planner = bench.planner(runner=f"{agent} --print 'a b' {{prompt}}")

        plan = planner.run("p", [Step(name="ask", prompt=self.NASTY)])

        assert plan.state == PlanState.COMPLETED
        assert (bench.root / "said").read_text() == f"3|--print|a b|{self.NASTY}|"
        assert os.listdir(bench.root) == ["said"]

    def test_may_be_part_of_a_word(self, bench, agent):
        bench.planner(runner=f"{agent} --ask={{prompt}}").run("p", [Step(name="a", prompt="x y")])

        assert (bench.root / "said").read_text() == "1|--ask=x y|"

    def test_go_on_with_the_runner_of_the_plan_or_another(self, bench, agent):
        planner = bench.planner(runner="false {prompt}")
        assert planner.run("p", [Step(name="a", prompt="x")]).state == PlanState.FAILED

        assert bench.planner().resume("latest").state == PlanState.FAILED
        again = bench.planner(runner=f"{agent} {{prompt}}").resume("latest")
        assert (again.state, again.runner) == (PlanState.COMPLETED, f"{agent} {{prompt}}")

    @pytest.mark.parametrize(
        "runner", [None, "agent", "agent '{prompt}", "", "agent\0{prompt}", "\udcff {prompt}"]
    )
    def test_need_a_runner_that_makes_sense(self, bench, runner):
        with pytest.raises(InvalidArgument):
            bench.planner(runner=runner).run("p", [noted("one"), Step(name="a", prompt="x")])
        assert bench.lines() == []

    def test_a_runner_that_is_not_there_leaves_the_plan_to_be_resumed(self, bench):
        with pytest.raises(NotFound) as caught:
            bench.planner(runner="no-such-agent {prompt}").run(
                "p", [noted("one"), Step(name="a", prompt="x")]
            )

        assert caught.value.code == ErrorCode.COMMAND_NOT_FOUND
        plan = bench.planner().show("latest")
        assert (plan.state, plan.next_index, bench.lines()) == (PlanState.PENDING, 1, ["one"])


def test_a_monitor_that_raises_interrupts_and_the_step_is_undone(bench):
    def stop(data: bytes) -> None:
        raise BrokenPipeError

    bench.seen.on_output = stop
    with pytest.raises(BrokenPipeError):
        bench.run(noted("one"), noted("two", "echo now; sleep 600"))

    assert bench.lines() == ["one"]
    assert bench.planner().show("latest").state == PlanState.PENDING


def test_a_background_process_of_a_successful_step_lives_on(bench):
    plan = bench.run(Step(name="server", run="sleep 600 & echo $! > number"), noted("one"))

    number = int((bench.root / "number").read_text())
    assert plan.state == PlanState.COMPLETED
    assert is_alive(number)
    end(number)


def test_a_full_store_fails_before_the_step(bench):
    (bench.root / "big").write_bytes(os.urandom(300_000))
    bench.handle().config("max-size", "400K")
    bench.run(noted("one"))
    shutil.copy(bench.root / "big", bench.root / "bigger")
    (bench.root / "bigger").write_bytes(os.urandom(900_000))

    with pytest.raises(Exception, match=r".+") as caught:
        bench.run(noted("two"))

    assert getattr(caught.value, "code", None) == ErrorCode.OVER_QUOTA
    assert bench.lines() == ["one"]
    assert not bench.planner().show("latest").is_interrupted


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_an_interrupted_step_without_a_checkpoint_is_undone_and_leaves_no_snapshot(bench, error):
    def stop(data: bytes) -> None:
        raise error

    bench.seen.on_output = stop
    with pytest.raises(error):
        bench.run(noted("one"), noted("two", "echo now; sleep 600"), milestones=NONE)

    plan = bench.planner().show("latest")
    assert (plan.state, plan.next_index, plan.held) == (PlanState.PENDING, 1, ())
    assert bench.lines() == ["one"]
    assert [item.kind for item in bench.handle().list()] == [SnapshotKind.SAFETY]
