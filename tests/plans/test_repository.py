"""Plans in a store: found from anywhere, damage noticed, old ones forgotten."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from plan_bench import NONE, Bench, noted, shortest
from prepared import Prepared
from treesnap import Busy, Corrupt, ErrorCode, InvalidArgument, NotFound
from treesnap.plans import Plan, PlanState, Step
from treesnap.plans.repository import FINISHED_MAX, forget_old, plan_lock, save

pytestmark = pytest.mark.sampled(3)

YES = Step(name="yes", run="true")
NO = Step(name="no", run="false")


@pytest.fixture(scope="module")
def plans_made(tmp_path_factory) -> tuple[Prepared, list[Plan]]:
    bench = Bench(tmp_path_factory.mktemp("plans"))
    names = ("first", "second", "second")
    plans = [bench.run(YES, name=name, milestones=NONE) for name in names]
    return Prepared(bench.directory), plans


@pytest.fixture
def plans(plans_made) -> list[Plan]:
    """Three plans of the root, oldest first; the last two have one name."""
    return plans_made[1]


@pytest.fixture
def elsewhere(bench, plans):
    """A planner of another root in the same store."""
    (bench.directory / "elsewhere").mkdir()
    return bench.planner(bench.directory / "elsewhere")


class TestFinding:
    def test_by_id(self, bench, plans, elsewhere):
        for plan in plans:
            assert bench.planner().show(plan.id) == plan
            assert elsewhere.show(plan.id.lower()) == plan

    def test_by_the_beginning_of_an_id(self, bench, plans, elsewhere):
        beginning = shortest(plans[1].id, [plan.id for plan in plans])

        assert elsewhere.show(beginning.lower()) == plans[1]
        with pytest.raises(InvalidArgument) as caught:
            elsewhere.show(plans[1].id[:4])
        assert caught.value.code == ErrorCode.AMBIGUOUS_REF

    def test_by_name_means_the_newest_of_the_root(self, bench, plans, elsewhere):
        assert bench.planner().show("first") == plans[0]
        assert bench.planner().show("second") == plans[2]
        with pytest.raises(NotFound):
            elsewhere.show("second")

    def test_latest_is_that_of_the_root(self, bench, plans, elsewhere):
        own = elsewhere.run("own", [YES], NONE)

        assert bench.planner().show("latest") == plans[2]
        assert elsewhere.show("latest") == own

    def test_latest_is_the_last_that_was_made_when_the_clock_was_put_back(self, bench, plans):
        bench.now_ns -= 10**18

        late = bench.run(YES, milestones=NONE)

        assert bench.planner().show("latest") == late

    @pytest.mark.parametrize("ref", ["third", "", "01HF", "0" * 26, "../plan", "\udcff", "lock"])
    def test_of_what_there_is_not(self, bench, plans, ref):
        bench.run(YES, milestones=NONE)
        ref = ref if ref != "01HF" else "7ZZZ"

        with pytest.raises(NotFound) as caught:
            bench.planner().show(ref)
        assert caught.value.code == ErrorCode.PLAN_NOT_FOUND

    def test_without_a_store(self, bench):
        assert bench.planner().list() == ()
        assert bench.planner().list(all_roots=True) == ()
        with pytest.raises(NotFound) as caught:
            bench.planner().show("latest")
        assert caught.value.code == ErrorCode.PLAN_NOT_FOUND
        assert not bench.store.exists()


class TestListing:
    def test_is_newest_first_and_of_one_root(self, bench, plans, elsewhere):
        own = elsewhere.run("own", [YES], NONE)

        assert bench.planner().list() == tuple(reversed(plans))
        assert elsewhere.list() == (own,)
        assert set(elsewhere.list(all_roots=True)) == {own, *plans}
        ids = [plan.id for plan in elsewhere.list(all_roots=True)]
        assert ids == sorted(ids, reverse=True)


class TestDamage:
    @pytest.fixture
    def damaged(self, bench, plans):
        """The file of the newest plan has a bit flipped."""
        path = bench.plan_files()[-1]
        assert path.name.endswith(plans[2].id)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
        return path

    def test_is_said_of_the_plan_that_was_named(self, bench, plans, damaged):
        with pytest.raises(Corrupt):
            bench.planner().show(plans[2].id)

    def test_never_makes_another_plan_the_latest(self, bench, plans, damaged):
        with pytest.raises(Corrupt):
            bench.planner().show("latest")
        with pytest.raises(Corrupt):
            bench.planner().resume("latest")

    def test_does_not_stop_the_others(self, bench, plans, damaged):
        assert bench.planner().list() == (plans[1], plans[0])
        assert bench.planner().show("first") == plans[0]
        assert bench.run(YES).state == PlanState.COMPLETED

    @pytest.mark.parametrize("content", [b"", b"x", b"\0" * 500, None])
    def test_of_every_sort_is_noticed(self, bench, plans, damaged, content):
        damaged.write_bytes(content if content is not None else bench.plan_files()[0].read_bytes())

        with pytest.raises(Corrupt):
            bench.planner().show(plans[2].id)

    def test_of_a_newer_version_is_noticed(self, bench, plans):
        path = bench.plan_files()[-1]
        content = bytearray(path.read_bytes())
        content[9] = 2
        path.write_bytes(content)

        with pytest.raises(Corrupt, match="version 2"):
            bench.planner().show(plans[2].id)

    def test_a_directory_in_its_place_is_an_error_of_ours(self, bench, plans):
        path = bench.plan_files()[0]
        path.unlink()
        path.mkdir()

        with pytest.raises(Exception, match=r".+") as caught:
            bench.planner().show(plans[0].id)
        assert caught.type.__name__ in {"OperationFailed", "Corrupt"}


class TestForgetting:
    def aged(self, bench: Bench, state: PlanState, count: int) -> list[Plan]:
        """Adds plans with an output each that were saved in a state."""
        plan = bench.run(noted("a", "echo out"), milestones=NONE)
        log = next(bench.store.glob(f"roots/*/plan-{plan.id}-0-1.log"))
        made = []
        for number in range(count):
            other = type(plan.id)(f"0000000000{number:016d}")
            made.append(save(bench.handle().context, _as(plan, other, state)))
            log.with_name(f"plan-{other}-0-1.log").write_text("out")
        return made

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize(
        "state", [PlanState.COMPLETED, PlanState.FAILED, PlanState.ROLLED_BACK, PlanState.APPLIED]
    )
    def test_takes_the_oldest_with_their_output(self, bench, state):
        self.aged(bench, state, FINISHED_MAX + 3)

        forget_old(bench.handle().context)

        assert len(bench.plan_files()) == FINISHED_MAX
        assert len(list(bench.store.glob("roots/*/*.log"))) == FINISHED_MAX
        assert bench.plan_files()[0].name.endswith(f"{4:016d}")

    def test_leaves_interrupted_ones(self, bench):
        self.aged(bench, PlanState.RUNNING, FINISHED_MAX + 3)

        forget_old(bench.handle().context)

        assert len(bench.plan_files()) == FINISHED_MAX + 4

    def test_happens_by_itself(self, bench):
        self.aged(bench, PlanState.FAILED, FINISHED_MAX + 3)

        bench.run(YES, milestones=NONE)

        assert len(bench.plan_files()) == FINISHED_MAX + 1


def _as(plan: Plan, plan_id: str, state: PlanState) -> Plan:
    return replace(plan, id=plan_id, state=state)


def test_the_lock_of_a_root_keeps_other_plans_out(bench):
    with plan_lock(bench.handle().context, "a test"):
        with pytest.raises(Busy, match=f"process {os.getpid()}: a test"):
            bench.run(YES)
        (bench.directory / "elsewhere").mkdir()
        bench.planner(bench.directory / "elsewhere").run("other", [YES])


def test_who_works_is_seen(bench):
    plan = bench.run(NO)

    assert not bench.planner().is_at_work(plan)
    with plan_lock(bench.handle().context, "a test"):
        assert bench.planner().is_at_work(plan)
    assert not bench.planner().is_at_work(plan)
