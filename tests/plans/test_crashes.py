"""A plan whose runner dies anywhere: files and plan agree, it goes on, and it can go back.

Each step appends its name to a file, so that the file says what was done and the plan
what it thinks was done. The runner is a child that dies before its n-th call that
changes the disk, for every n until it lives; or a step kills it, really, from within.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calling import Ended, run_forked
from plan_bench import Bench, is_alive, noted
from treesnap.core.fs.base import FileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.plans import Milestones, Plan, Planner, PlanState, Step
from treesnap.testing.children import killed
from treesnap.testing.doubles import (
    Fault,
    FaultyFileSystem,
    UnsyncedFileSystem,
    error_at,
    kill_at,
    kill_halfway,
)

pytestmark = pytest.mark.sampled(3)

POINTS_MAX = 5000
EVERY = {"run": 23, "resume": 17, "rollback": 13}
"""The sample: one point in so many."""
NAMES = ["one", "two", "three"]
STEPS = (
    noted("one", "touch litter-1"),
    Step(name="sub", steps=(noted("two", "rm litter-1; touch litter-2", checkpoint=True),)),
    noted("three", "test -e .tried || { touch ../tried .tried litter-3; test -e ../again; }"),
)
"""The third fails at first, after it has left litter; then it succeeds."""
MILESTONES = {"usual": Milestones(), "few": Milestones(keep=1, every_n_steps=1)}


class Place(Bench):
    """A bench with states to begin again from, and planners on any file system."""

    def handle_on(self, fs: FileSystem) -> Handle:
        return Handle(context_at(root=self.root, store_path=str(self.store), fs=fs, wait_s=5))

    @property
    def case(self) -> Path:
        return self.directory

    def keep(self, name: str) -> None:
        shutil.copytree(self.case, self.case.parent / name, symlinks=True)

    def reset(self, name: str) -> None:
        shutil.rmtree(self.case)
        shutil.copytree(self.case.parent / name, self.case, symlinks=True)
        if (self.case / "store").exists():
            self.handle().store_trust()  # a copy proves nothing


def roll_back(planner: Planner) -> object:
    """Rolls back to before the second step."""
    found = planner.checkpoints("latest")
    return planner.rollback("latest", next(c.id for c in found if c.label == "before two"))


OPERATIONS: dict[str, Callable[[Planner], object]] = {
    "run": lambda planner: planner.run("p", STEPS, MILESTONES["usual"]),
    "run few": lambda planner: planner.run("p", STEPS, MILESTONES["few"]),
    "resume": lambda planner: planner.resume("latest"),
    "rollback": roll_back,
}
STARTS = {"run": "new", "run few": "new", "resume": "failed", "rollback": "failed"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Kept: "new", and "failed", where the third step has failed and would succeed now; and
    that one "rolled back", and "undone" again.
    """
    (directory := tmp_path_factory.mktemp("plans") / "case").mkdir()
    place = Place(directory)
    place.keep("new")
    failed = place.planner().run("p", STEPS)
    assert failed.state == PlanState.FAILED
    (directory / "again").touch()
    place.keep("failed")
    roll_back(place.planner())
    place.keep("rolled back")
    place.handle().undo()
    place.keep("undone")
    return place


def settled(place: Place) -> Plan | None:
    """Lets the next command run; returns the plan, if there is one, after it."""
    plans = place.planner().list()
    if not plans:
        assert place.lines() == []
        return None
    place.planner().checkpoint("latest", label="a command that settles what was interrupted")
    return place.planner().show("latest")


def check(place: Place, *, may_be_none: bool) -> str:
    """Checks everything that holds after a kill; returns how far the plan had come."""
    plan = settled(place)
    if plan is None:
        assert may_be_none
        return "none"
    assert not plan.is_interrupted
    assert place.agrees(plan), (place.lines(), plan)
    assert [path for path in os.listdir(place.root) if "3" in path] == [] or plan.next_index == 3
    come = f"{plan.state.value} {plan.next_index}"
    (place.directory / "again").touch()
    ended = place.planner().resume("latest")
    assert ended.state == PlanState.COMPLETED
    assert place.lines() == NAMES
    assert sorted(os.listdir(place.root)) == [".tried", "done", "litter-2", "litter-3"]
    assert not [item for item in place.handle().list() if item.pinned]
    assert place.handle().verify(read_data=True).problems == ()
    back = place.planner().checkpoints("latest")
    for checkpoint in (back[0], back[-1]):
        result = place.planner().rollback("latest", checkpoint.id)
        assert place.agrees(result.plan)
        assert result.plan.content == checkpoint.content
    return come


def outcomes(
    place: Place, name: str, first: int, every: int, kill: Callable[[int], Fault] = kill_at
) -> Iterator[str]:
    """Yields how far each kill lets an operation come."""
    operation = OPERATIONS[name]
    for number in range(first, POINTS_MAX, every):
        place.reset(STARTS[name])
        ended = killed(lambda fs: operation(Planner(place.handle_on(fs))), kill(number))
        assert ended.error is None, ended.error
        if not ended.was_killed:
            return
        yield check(place, may_be_none=STARTS[name] == "new")
    raise AssertionError("The operation has no end")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", EVERY)
def test_a_kill_leaves_a_plan_that_agrees_with_its_files_and_goes_on(place, name):
    found = list(outcomes(place, name, 5, EVERY[name]))

    assert len(set(found)) > 1
    if name == "run":
        assert {"none", "pending 1", "pending 2"} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [kill_at, kill_halfway])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kill_at_every_call(place, name, kill):
    found = list(outcomes(place, name, 1, 1, kill))

    assert len(found) > (30 if kill == kill_at else 10)
    if name.startswith("run"):
        assert {"none", "pending 0", "pending 1", "pending 2", "failed 2"} <= set(found)
    if name == "rollback":
        assert {"failed 2", "rolled_back 1"} <= set(found)


@pytest.mark.parametrize(
    "every", [3, pytest.param(1, marks=pytest.mark.slow)], ids=["sample", "all"]
)
def test_a_roll_back_that_fails_leaves_all_as_it_was(place, every):
    failures = 0
    for number in range(2 if every > 1 else 1, POINTS_MAX, every):
        place.reset("failed")
        before = place.planner().show("latest")
        fault = error_at(number, errno.EIO)
        fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())
        try:
            roll_back(Planner(place.handle_on(fs)))
            done = True
        except TreesnapError:
            done = False
        if not fs.hits_of(fault):
            break
        failures += not done
        after = settled(place)
        assert place.agrees(after)
        assert (after.content == before.content) != done
    assert failures > 2


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("start", "step"),
    [
        ("failed", lambda handle: roll_back(Planner(handle))),
        ("rolled back", lambda handle: handle.undo()),
        ("undone", lambda handle: handle.redo()),
    ],
    ids=["rollback", "undo", "redo"],
)
@pytest.mark.parametrize(
    "every", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["sample", "all"]
)
def test_a_kill_leaves_plan_and_files_both_old_or_both_new(place, start, step, every):
    """After the next command, of any kind, in the root."""
    found = set()
    for number in range(3 if every > 1 else 1, POINTS_MAX, every):
        place.reset(start)
        ended = killed(lambda fs: step(place.handle_on(fs)), kill_at(number))
        assert ended.error is None, ended.error
        if not ended.was_killed:
            break
        place.handle().status()
        plan = place.planner().show("latest")
        assert place.agrees(plan), (place.lines(), plan)
        found.add((plan.state.value, plan.next_index))
        assert not [item for item in place.handle().list() if item.pinned]
    assert found == {("failed", 2), ("rolled_back", 1)}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", ["run", "run few", "resume"])
@pytest.mark.parametrize(
    "every", [17, pytest.param(1, marks=pytest.mark.slow)], ids=["sample", "all"]
)
def test_an_error_leaves_a_plan_that_nothing_has_interrupted(place, name, every):
    failures = 0
    for number in range(23 if every > 1 else 1, POINTS_MAX, every):
        place.reset(STARTS[name])
        fault = error_at(number, errno.ENOSPC)
        fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())
        try:
            OPERATIONS[name](Planner(place.handle_on(fs)))
        except TreesnapError:
            failures += 1
        if not fs.hits_of(fault):
            break
        assert not any(plan.is_interrupted for plan in place.planner().list())
        check(place, may_be_none=STARTS[name] == "new")
    assert failures


@pytest.mark.sampled(6)
class TestARealKillFromWithinAStep:
    def snap(self, place: Place, *words: str) -> Ended:
        words = ("-C", str(place.root), "--store", str(place.store), *words)
        return run_forked(words, cwd=place.directory, variables=os.environ)

    @pytest.fixture
    def died(self, tmp_path: Path) -> Place:
        """The runner was killed in the second step, which has gone on ever since."""
        place = Place(tmp_path)
        (tmp_path / "p.yaml").write_text(
            "name: p\nsteps:\n"
            "  - {name: one, run: echo one >> done}\n"
            "  - name: two\n"
            "    run: |\n"
            "      echo two >> done\n"
            "      test -e ../ready && exit\n"
            "      echo $$ > ../number\n"
            "      kill -9 $PPID\n"
            "      while :; do touch litter; done > /dev/null 2>&1\n"
            "  - {name: three, run: echo three >> done}\n"
        )
        ended = self.snap(place, "plan", "run", str(tmp_path / "p.yaml"))
        assert ended.code == -9, ended
        assert is_alive(self.left(place))
        (tmp_path / "ready").touch()
        return place

    def left(self, place: Place) -> int:
        return int((place.directory / "number").read_text())

    def test_it_is_known_to_be_interrupted(self, died):
        assert "interrupted" in self.snap(died, "plan", "list").out
        ended = self.snap(died, "plan", "run", str(died.directory / "p.yaml"))
        assert ended.code == 3
        assert "was interrupted in this root" in ended.err
        os.kill(self.left(died), 9)

    @pytest.mark.needs("processes")
    def test_resume_ends_what_is_left_and_goes_on(self, died):
        ended = self.snap(died, "plan", "resume", "latest")

        assert ended.code == 0, ended
        assert not is_alive(self.left(died))
        assert died.lines() == NAMES
        assert os.listdir(died.root) == ["done"]

    @pytest.mark.needs("processes")
    def test_rollback_ends_what_is_left_and_goes_back(self, died):
        target = died.planner().checkpoints("latest")[-1]

        ended = self.snap(died, "plan", "rollback", "latest", target.id)

        assert ended.code == 0, ended
        assert not is_alive(self.left(died))
        assert os.listdir(died.root) == []
        assert self.snap(died, "plan", "resume", "latest").code == 0
        assert died.lines() == NAMES

    @pytest.mark.needs("processes")
    def test_revert_goes_to_before_the_step(self, died):
        ended = self.snap(died, "plan", "correct", "latest", "--mode", "revert")

        assert ended.code == 0, ended
        assert died.lines() == ["one"]
        assert died.agrees(died.planner().show("latest"))
