"""Rolling plans back, and plans that are in each other's way."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace

import pytest

from oracle import difference, record
from plan_bench import NONE, STEPS, labels, noted, shortest, to
from treesnap import Busy, ErrorCode, NotFound, Refused, SnapshotKind, TreesnapError
from treesnap.core.handle import Handle
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.reserved_tags import rollback_count
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.listing import set_held
from treesnap.plans import (
    Attempt,
    CorrectionMode,
    Milestones,
    Plan,
    Planner,
    PlanState,
    RollbackResult,
)
from treesnap.plans.checkpoints import with_checkpoint
from treesnap.plans.repository import plan_lock, save
from treesnap.testing.doubles import FaultyFileSystem, error_at

pytestmark = pytest.mark.sampled(3)


class TestRollback:
    def test_without_a_checkpoint_they_are_listed_newest_first(self, bench, plan):
        assert labels(bench) == ["before three", "before two", "before one"]

    def test_takes_plan_and_files_back(self, bench, plan):
        (bench.root / "other").write_text("x")

        result = to(bench, "before two")

        assert bench.lines() == ["one"]
        assert result.plan == bench.planner().show("latest")
        assert (result.plan.state, result.plan.next_index) == (PlanState.ROLLED_BACK, 1)
        assert (result.restored, result.created, result.deleted) == (1, 0, 1)
        assert result.changed_paths == (b"done", b"other")
        assert result.checkpoint.label == "before two"
        assert bench.handle().resolve(result.safety_id).kind == SnapshotKind.SAFETY

    @pytest.mark.parametrize(
        ("ref", "label", "lines"),
        [("before two", "before two", ["one"]), ("step:2", "before three", ["one", "two"])],
    )
    def test_takes_labels_and_steps(self, bench, plan, ref, label, lines):
        result = bench.planner().rollback("latest", ref)

        assert result.checkpoint.label == label
        assert bench.lines() == lines

    def test_of_several_with_a_label_the_newest_counts(self, bench, plan):
        bench.planner().checkpoint("latest", label="good")
        (bench.root / "done").write_text("better\n")
        newest = bench.planner().checkpoint("latest", label="good")
        (bench.root / "done").write_text("worse\n")

        assert bench.planner().rollback("latest", "good").checkpoint == newest
        assert bench.lines() == ["better"]

    def test_the_state_before_a_rollback_is_before_no_step(self, bench, failed):
        (bench.root / "mess").write_text("half of it")
        bench.planner().rollback("latest", "step:0")

        assert bench.planner().rollback("latest", "step:1").checkpoint.label == "before two"
        assert not (bench.root / "mess").exists()

    @pytest.mark.parametrize("ref", ["step:7", "step:", "before", "step:-1"])
    def test_a_word_that_names_no_checkpoint_is_not_found(self, bench, plan, ref):
        with pytest.raises(NotFound) as caught:
            bench.planner().rollback("latest", ref)
        assert caught.value.code == ErrorCode.CHECKPOINT_NOT_FOUND

    @pytest.mark.parametrize(
        ("keep", "kept"), [(2, "step:2, step:1"), (50, "step:2, step:1, step:0")]
    )
    def test_of_a_step_whose_checkpoint_is_not_there_the_others_are_named(self, bench, keep, kept):
        steps = [noted(name) for name in ("one", "two", "three")]
        bench.run(*steps, milestones=Milestones(after_subplan=False, keep=keep))

        with pytest.raises(NotFound, match=f"of those it keeps, the newest are {kept}$"):
            bench.planner().rollback("latest", "step:7")

    def test_goes_on_from_there(self, bench, plan):
        to(bench, "before two")

        again = bench.planner().resume("latest")

        assert again.state == PlanState.COMPLETED
        assert bench.lines() == ["one", "two", "three"]

    def test_can_go_forth_again(self, bench, plan):
        after = record(bench.root)
        to(bench, "before one")
        assert bench.lines() == []

        result = to(bench, "before rollback to before one")

        assert difference(after, record(bench.root)) == []
        assert result.plan.content == plan.content
        assert bench.planner().resume("latest").state == PlanState.COMPLETED

    def test_undo_takes_plan_and_files_forth_and_redo_takes_both_back(self, bench, plan):
        after = record(bench.root)
        back = to(bench, "before one").plan
        there = record(bench.root)

        for _ in range(2):
            assert bench.handle().undo(dry_run=True).plan_id == plan.id
            assert bench.planner().show("latest") == back
            assert bench.handle().undo().plan_id == plan.id
            assert bench.planner().show("latest") == plan
            assert difference(after, record(bench.root)) == []
            assert bench.handle().redo().plan_id == plan.id
            assert bench.planner().show("latest") == back
            assert difference(there, record(bench.root)) == []

    def test_undo_keeps_for_redo_what_the_plan_did_since(self, bench, plan):
        to(bench, "before two")
        again = bench.planner().resume("latest")
        there = record(bench.root)

        bench.handle().undo()
        assert bench.planner().show("latest") == plan
        bench.handle().redo()

        assert bench.planner().show("latest") == again
        assert difference(there, record(bench.root)) == []

    def test_undo_of_another_restore_leaves_the_plan(self, bench, plan):
        back = to(bench, "before two").plan
        bench.handle().restore(plan.checkpoints[0].snapshot_id)

        assert bench.handle().undo().plan_id is None
        assert bench.planner().show("latest") == back

    def test_undo_waits_for_no_plan_that_is_at_work(self, bench, plan):
        to(bench, "before two")
        with plan_lock(bench.handle().context, "test"), pytest.raises(Busy, match="list of plans"):
            bench.handle().undo()

        bench.handle().undo()
        assert bench.planner().show("latest") == plan

    def test_undo_in_the_middle_of_a_step_is_refused(self, bench, plan):
        back = to(bench, "before two").plan
        before = bench.handle().create(kind=SnapshotKind.PLAN).snapshot
        save(
            bench.handle().context,
            back.began(Attempt(step_index=1, number=1, snapshot_id=before.id)),
        )

        for dry_run in (True, False):
            with pytest.raises(Refused) as caught:
                bench.handle().undo(dry_run=dry_run)
            assert caught.value.code == ErrorCode.PLAN_INTERRUPTED

        assert bench.lines() == ["one"]

    def test_undo_without_the_plan_brings_the_files_back(self, bench, plan):
        to(bench, "before two")
        bench.planner().delete("latest")

        assert bench.handle().undo().plan_id is None
        assert bench.lines() == ["one", "two", "three"]

    def test_to_where_one_is_changes_no_file(self, bench, failed):
        before = record(bench.root)

        result = to(bench, "before two")

        assert result.changed_paths == ()
        assert difference(before, record(bench.root)) == []
        assert result.plan.state == PlanState.ROLLED_BACK
        bench.handle().undo()
        assert bench.planner().show("latest") == failed
        assert difference(before, record(bench.root)) == []

    def test_names_the_state_that_it_left(self, bench, plan):
        (bench.root / "other").write_text("x")
        after = record(bench.root)

        result = to(bench, "before two")

        assert result.before == result.plan.checkpoints[-1]
        assert result.before.snapshot_id == result.safety_id
        assert result.before.label == "before rollback to before two"
        bench.planner().rollback("latest", result.before.id)
        assert difference(after, record(bench.root)) == []

    def test_that_fails_leaves_neither_pin_nor_checkpoint(self, bench, plan):
        before = record(bench.root)
        target = plan.checkpoints[1].id
        failed = 0
        for number in (1, 4, 8, 12, 16, 24, 32, 48):
            fs = FaultyFileSystem(error_at(number, errno.EIO))
            handle = Handle(
                context_at(root=bench.root, store_path=str(bench.store), fs=fs, wait_s=5)
            )
            try:
                Planner(handle).rollback("latest", target)
            except TreesnapError:
                failed += 1
                bench.handle().recover()
            if bench.planner().show("latest") != plan:  # it came through, or was finished
                bench.handle().undo()
            assert bench.planner().show("latest") == plan
            assert difference(before, record(bench.root)) == []
            assert not [item for item in bench.handle().list() if item.pinned]
        assert failed > 2

    def test_is_counted(self, bench, plan):
        result = to(bench, "before two")

        snapshot = bench.handle().resolve(result.checkpoint.snapshot_id)
        assert (rollback_count(snapshot), snapshot.pinned) == (1, False)

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("keep", [1, 2, 3])
    def test_never_drops_where_it_leads(self, bench, keep):
        bench.run(*STEPS, milestones=Milestones(keep=keep))
        oldest = bench.planner().checkpoints("latest")[-1]

        for _ in range(4):
            result = bench.planner().rollback("latest", oldest.id)
            assert result.plan.content == oldest.content
        assert bench.agrees(result.plan)
        assert len(result.plan.checkpoints) == max(2, keep)

    def test_finds_the_checkpoint_by_its_beginning(self, bench, plan):
        ids = [item.id for item in plan.checkpoints]
        wanted = ids[1]

        result = bench.planner().rollback("latest", shortest(wanted, ids).lower())

        assert result.checkpoint.id == wanted

    @pytest.mark.parametrize("ref", ["", "x", "01", "0" * 26, "latest", "\udcff"])
    def test_to_what_there_is_not(self, bench, plan, ref):
        with pytest.raises(NotFound) as caught:
            bench.planner().rollback("latest", ref)

        assert caught.value.code == ErrorCode.CHECKPOINT_NOT_FOUND
        assert bench.planner().show("latest") == plan

    def test_to_one_of_several(self, bench, plan):
        with pytest.raises(NotFound, match=r"has \d+ checkpoints with an id that begins with"):
            bench.planner().rollback("latest", plan.id[:4])

    def test_to_a_checkpoint_whose_snapshot_was_deleted(self, bench, plan):
        gone = plan.checkpoints[1]
        bench.handle().delete(gone.snapshot_id)

        with pytest.raises(NotFound):
            bench.planner().rollback("latest", gone.id)
        assert labels(bench) == ["before three", "before one"]

    def test_brings_back_a_root_that_is_gone(self, bench, plan):
        shutil.rmtree(bench.root)

        to(bench, "before three")

        assert bench.lines() == ["one", "two"]

    def test_is_possible_from_another_root(self, bench, plan):
        other = bench.directory / "other"
        other.mkdir()

        result = bench.planner(other).rollback(plan.id, plan.checkpoints[1].id)

        assert result.plan.next_index == 1
        assert bench.lines() == ["one"]
        assert os.listdir(other) == []

    def test_of_a_root_behind_a_link_is_refused(self, bench, plan):
        bench.root.rename(bench.directory / "moved")
        bench.root.symlink_to(bench.directory / "moved")
        other = bench.directory / "other"
        other.mkdir()

        with pytest.raises(Refused) as caught:
            bench.planner(other).rollback(plan.id, plan.checkpoints[0].id)
        assert caught.value.code == ErrorCode.NOT_A_DIRECTORY

    def test_respects_what_a_user_pinned(self, bench, plan):
        bench.handle().pin(plan.checkpoints[1].snapshot_id)

        to(bench, "before two")

        assert bench.handle().resolve(plan.checkpoints[1].snapshot_id).pinned


class TestOfAnInterruptedPlan:
    """Its process died in its second step; since then files were made and edited by hand."""

    @pytest.fixture
    def interrupted(self, bench) -> Plan:
        done = bench.run(noted("one"), noted("two"))
        half = bench.planner().rollback("latest", done.checkpoints[1].id).plan
        before = bench.handle().create(kind=SnapshotKind.PLAN).snapshot
        set_held(bench.handle().context, before.id, held=True)
        (bench.root / "litter").touch()
        began = half.began(Attempt(step_index=1, number=1, snapshot_id=before.id))
        plan = save(bench.handle().context, replace(began, held=(before.id,)))
        (bench.root / "by hand").write_text("mine")
        with (bench.root / "done").open("a") as file:
            file.write("edited\n")
        return plan

    def test_says_what_it_deletes_and_keeps_it(self, bench, interrupted):
        there = record(bench.root)

        result = to(bench, "before one")

        assert (result.restored, result.created, result.deleted) == (0, 0, 3)
        assert result.changed_paths == (b"by hand", b"done", b"litter")
        assert os.listdir(bench.root) == []
        again = bench.planner().rollback("latest", result.before.id)
        assert difference(there, record(bench.root)) == []
        assert (again.created, again.plan.next_index) == (3, 1)

    def test_undo_brings_it_back_too(self, bench, interrupted):
        there = record(bench.root)
        to(bench, "before one")

        bench.handle().undo()

        assert difference(there, record(bench.root)) == []
        plan = bench.planner().show("latest")
        assert (plan.is_interrupted, plan.next_index) == (False, 1)

    def test_leaves_no_pin(self, bench, interrupted):
        to(bench, "before one")

        assert bench.planner().show("latest").held == ()
        assert not [item for item in bench.handle().list() if item.pinned]

    def test_is_no_clean_state(self, bench, interrupted):
        to(bench, "before one")

        result = bench.planner().correct("latest", CorrectionMode.REVERT)

        assert isinstance(result, RollbackResult)
        assert result.checkpoint.reason != "before_rollback"

    def test_resume_says_what_it_takes_back(self, bench, interrupted):
        warnings = CollectingMonitor()
        handle = Handle(
            context_at(root=bench.root, store_path=str(bench.store), monitor=warnings, wait_s=5)
        )

        assert Planner(handle).resume("latest").state == PlanState.COMPLETED

        (said,) = [text for text in warnings.warnings if "was interrupted" in text]
        assert "1 restored, 0 created, 2 deleted; the state before is snapshot" in said


class TestTwoPlansInOneRoot:
    @pytest.fixture
    def interrupted(self, bench, plan) -> Plan:
        """A plan whose process died in its first step."""
        begun = bench.run(noted("mine"), milestones=NONE)
        before = bench.handle().create(kind=SnapshotKind.PLAN).snapshot
        attempt = Attempt(step_index=0, number=1, snapshot_id=before.id)
        return save(bench.handle().context, begun.began(attempt))

    def test_refuse_each_other_while_one_is_interrupted(self, bench, plan, interrupted):
        for refused in (
            lambda planner: planner.run("new", [noted("new")]),
            lambda planner: planner.resume(plan.id),
            lambda planner: planner.rollback(plan.id, plan.checkpoints[0].id),
            lambda planner: planner.correct(plan.id, CorrectionMode.REVERT),
        ):
            with pytest.raises(Refused, match=interrupted.id) as caught:
                refused(bench.planner())
            assert caught.value.code == ErrorCode.PLAN_INTERRUPTED

    def test_go_on_once_it_is_not(self, bench, plan, interrupted):
        bench.planner().resume(interrupted.id)

        assert bench.planner().rollback(plan.id, plan.checkpoints[0].id)

    def test_appending_takes_the_interrupted_step_back_first(self, bench, interrupted):
        (bench.root / "litter").touch()

        longer = bench.planner().correct(interrupted.id, CorrectionMode.APPEND, "true")

        assert not (bench.root / "litter").exists()
        assert (longer.state, longer.is_interrupted) == (PlanState.PENDING, False)

    def test_rolling_back_is_possible_though_the_steps_beginning_is_lost(self, bench, interrupted):
        bench.handle().delete(interrupted.attempt.snapshot_id)
        with pytest.raises(NotFound):
            bench.planner().resume(interrupted.id)
        other = bench.planner().show(interrupted.id)
        made = bench.handle().create(kind=SnapshotKind.PLAN, session=other.id).snapshot
        save(
            bench.handle().context,
            with_checkpoint(bench.handle().context, other, made, "before_step"),
        )

        target = bench.planner().checkpoints(interrupted.id)[0]
        result = bench.planner().rollback(interrupted.id, target.id)

        assert not result.plan.is_interrupted
