"""What a step writes of its plan: what changed, however long the plan is and its commands are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from cuts import cuts_at, moments
from disk import materialise
from plan_bench import NONE, Bench, labels
from power import PoweredFileSystem
from sampling import SEED, sized
from treesnap import Handle
from treesnap.core.codec.envelope import FileKind, header
from treesnap.core.ops.context import context_at
from treesnap.plans import Milestones, Plan, Planner, PlanState, Step
from treesnap.testing.doubles import RecordingFileSystem, UnsyncedFileSystem

COMMAND_BYTES = 2_000
STEP_BYTES_MAX = 1_400
"""What the two transitions of a step write: a checkpoint, an attempt, and their frames."""


def plan_bytes(bench: Bench, steps: int, milestones: Milestones) -> tuple[Plan, int]:
    """Runs a plan of steps with long commands; returns how much was written of plans."""
    fs = RecordingFileSystem(UnsyncedFileSystem())
    context = context_at(bench.root, str(bench.store), fs=fs, wait_s=5)
    long = "true # ".ljust(COMMAND_BYTES, "x")
    named = [Step(name=f"step {number}", run=long) for number in range(steps)]

    plan = Planner(Handle(context)).run("plan", named, milestones)

    named_so = {call.paths[0] for call in fs.calls("rename") if is_of_plan(call.paths[1])}
    written = sum(
        call.size_bytes
        for call in fs.calls("write", "write_at")
        if call.path in named_so or is_of_plan(call.path)
    )
    return plan, written


def is_of_plan(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith("plan-") and not name.endswith(".log")


@pytest.mark.parametrize("keep", [None, 1, 1000])
def test_a_step_writes_what_changed_and_no_commands(tmp_path, keep):
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    milestones = Milestones(keep=keep)

    few, of_few = plan_bytes(Bench(tmp_path / "few"), 5, milestones)
    many, of_many = plan_bytes(Bench(tmp_path / "many"), 20, milestones)

    assert few.state == many.state == PlanState.COMPLETED
    written_once = 15 * COMMAND_BYTES * 2  # when the plan is made, and when it has ended
    assert of_many - of_few < written_once + 15 * STEP_BYTES_MAX


CHANGE = header(FileKind.CHANGE)
CALLS = tuple(Step(name=name, call="call") for name in ("one", "two", "three"))


def file_of(bench: Bench) -> Path:
    (path,) = bench.plan_files()
    return path


class TestBesideARunningPlan:
    """What other commands find while the third step runs."""

    @pytest.fixture
    def in_a_step(self, tmp_path: Path) -> Callable[[Callable[[Bench], object]], object]:
        """Runs a plan, and returns what a function returns in its last step."""
        bench, found = Bench(tmp_path), []

        def run(look: Callable[[Bench], object]) -> object:
            calls = {"call": lambda: found.append(look(bench))}
            assert bench.planner(calls=calls).run("plan", CALLS).state == PlanState.COMPLETED
            return found[-1]

        return run

    def test_it_is_found_as_it_is(self, in_a_step):
        def look(bench: Bench) -> tuple[Plan, tuple[Plan, ...], list[str], int]:
            planner = bench.planner()
            changes = file_of(bench).read_bytes().count(CHANGE)
            return planner.show("latest"), planner.list(), labels(bench), changes

        plan, listed, labelled, changes = in_a_step(look)

        assert (plan.state, plan.next_index) == (PlanState.RUNNING, 2)
        assert listed == (plan,)
        assert labelled == ["before three", "before two", "before one"]
        assert changes == 5

    def test_the_ids_of_its_newest_checkpoints_are_references(self, in_a_step):
        def look(bench: Bench) -> tuple[str, str]:
            newest = bench.planner().checkpoints("latest")[0]
            return bench.handle().resolve(newest.id).id, newest.snapshot_id

        found, wanted = in_a_step(look)

        assert found == wanted

    def test_a_check_finds_no_damage(self, in_a_step):
        assert in_a_step(lambda bench: bench.handle().verify(repair=True).problems) == ()

    def test_a_copy_of_the_store_has_it(self, in_a_step):
        def look(bench: Bench) -> tuple[Plan, Plan]:
            target = bench.directory / f"copy-{bench.planner().show('latest').next_index}"
            bench.handle().store_copy(target)
            copied = Handle(context_at(bench.root, str(target), fs=UnsyncedFileSystem(), wait_s=5))
            return Planner(copied).show("latest"), bench.planner().show("latest")

        copied, running = in_a_step(look)

        assert copied == running

    def test_when_it_has_ended_its_file_is_one_record(self, in_a_step, tmp_path):
        in_a_step(lambda bench: None)

        assert CHANGE not in file_of(Bench(tmp_path)).read_bytes()


def test_a_damaged_change_of_a_plan_goes_to_quarantine(tmp_path):
    bench = Bench(tmp_path)

    contents: list[bytes] = []
    calls = {"call": lambda: contents.append(file_of(bench).read_bytes())}
    bench.planner(calls=calls).run("plan", CALLS)
    spoilt = bytearray(contents[-1])
    spoilt[spoilt.index(CHANGE) + 30] ^= 1
    file_of(bench).write_bytes(spoilt)

    found = bench.handle().verify(repair=True)

    assert [problem.code for problem in found.problems] == ["bad-plan"]
    assert bench.planner().list() == ()


def test_a_power_cut_in_a_plan_leaves_it_as_it_was_before_or_after(tmp_path):
    """What was acknowledged before the last step began is there during that step."""
    bench = Bench(tmp_path)
    bench.run(Step(name="earlier", run="true"))
    fs = PoweredFileSystem(str(bench.store.parent), apart=[b"store"])
    begun: list[int] = []

    def call() -> None:
        begun.append(1)
        if len(begun) == len(CALLS):
            fs.note_return()

    planner = Planner(Handle(context_at(bench.root, str(bench.store), fs=fs)), calls={"call": call})
    planner.run("plan", CALLS, NONE)
    random, states = Random(SEED), set()
    found = [moment for moment in moments(fs.recording()) if moment.pending]
    for moment in random.sample(found, min(len(found), sized(8, 100))):
        possible = [*cuts_at(moment, random, more=0)]
        for cut in random.sample(possible, min(len(possible), sized(2, 6))):
            materialise(cut.disk, str(bench.store.parent))
            assert "bad-plan" not in {item.code for item in bench.handle().verify().problems}
            newest = bench.planner().list()[0]
            states.add((newest.state.value, newest.next_index))
            assert not moment.is_after_return or newest.next_index >= len(CALLS) - 1
    assert len(states) > 2
