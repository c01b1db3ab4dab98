"""``snap plan``: what each command prints, in text and JSON, and how it exits."""

from __future__ import annotations

import json
import os
import sys

import pytest

pytestmark = pytest.mark.sampled(10)

PLAN_FIELDS = {
    *("schema", "plan_id", "name", "state", "interrupted", "created_at", "root"),
    *("next_step", "steps"),
}
PROGRAM = [sys.executable, "-m", "treesnap"]
CHECKPOINT_FIELDS = {
    *("id", "plan_id", "sandbox", "created_at", "step_index", "plan_state_hash", "label"),
}


def checkpoint_id(snap, plan: str, label: str) -> str:
    found = snap("plan", "rollback", plan, "--json").json["checkpoints"]
    return next(item["id"] for item in found if item["label"] == label)


class TestListAndShow:
    def test_list_is_a_table(self, snap, completed):
        line = snap("plan", "list").out

        assert line.startswith(f"{completed}  ")
        assert line.endswith("  completed        2/2  release\n")

    def test_list_without_plans_says_so(self, unsaid_snap):
        result = unsaid_snap("plan", "list")

        assert (result.code, result.out, result.err) == (0, "", "No plans\n")
        assert unsaid_snap("plan", "list", "--json").json == {
            "schema": "treesnap.plan.list/1",
            "plans": [],
        }

    def test_list_of_all_roots(self, run_snap, completed, tmp_path):
        (tmp_path / "other").mkdir()

        assert run_snap("plan", "list", cwd=tmp_path / "other").out == ""
        everything = run_snap("plan", "list", "--all", "--json", cwd=tmp_path / "other").json
        assert [plan["plan_id"] for plan in everything["plans"]] == [completed]

    def test_show_is_all_that_is_known(self, snap, failed, root):
        result = snap("plan", "show", failed)

        lines = result.out.splitlines()
        assert lines[0] == f"plan:        {failed}"
        assert lines[1:3] == ["name:        release", f"root:        {os.path.realpath(root)}"]
        assert lines[4:6] == ["state:       failed", "checkpoints: 3"]
        assert lines[6:] == [
            "   1  completed  implement",
            "   2  failed     optimize/tune  (exit code 1, 2 attempts)",
        ]

    def test_show_as_json_has_the_checkpoints(self, snap, failed):
        document = snap("plan", "show", failed[:12].lower(), "--json").json

        assert set(document) == {*PLAN_FIELDS, "checkpoints"}
        assert [item["label"] for item in document["checkpoints"]] == [
            "before tune", "after implement", "before implement",
        ]  # fmt: skip

    def test_show_prints_what_a_step_wrote(self, snap, failed):
        assert snap("plan", "show", failed, "--output", "1").out == "said\n"
        assert snap("plan", "show", failed, "--output", "1", "--json").json["output"] == "said\n"
        assert snap("plan", "show", failed, "--output", "3").code == 2
        assert snap("plan", "show", failed, "--output", "0").code == 2

    def test_what_a_stranger_says_that_a_step_wrote_acts_on_no_terminal(
        self, snap, store, failed, monkeypatch
    ):
        (log,) = sorted(store.glob(f"roots/*/plan-{failed}-*.log"))[:1]
        log.write_bytes(b"\x1b]0;title\x07said\n")
        show = ("plan", "show", failed, "--output", "1")
        monkeypatch.setattr("treesnap.plans.command.is_terminal", lambda _stream: True)

        assert snap(*show).out == "\x1b]0;title\x07said\n"
        (store / "format").touch()  # as in any copy: its change time is another one
        assert snap(*show).out == "\\x1b]0;title\\x07said\n"


class TestRollback:
    def test_without_a_checkpoint_lists_them(self, snap, failed):
        lines = snap("plan", "rollback", "release").out.splitlines()

        found = snap("plan", "rollback", failed, "--json").json
        assert found["schema"] == "treesnap.plan.rollback/1"
        assert [set(item) >= CHECKPOINT_FIELDS for item in found["checkpoints"]] == [True] * 3
        for line, item in zip(lines, found["checkpoints"], strict=True):
            assert line.startswith(item["id"])
            assert f"  step {item['step_index'] + 1}     {item['plan_state_hash'][:12]}  " in line
            assert line.endswith(item["label"])

    def test_with_one_says_what_changed(self, snap, completed, root):
        target = checkpoint_id(snap, completed, "before implement")

        result = snap("plan", "rollback", completed, target)

        assert result.code == 0
        before = snap("--json", "plan", "checkpoints", completed).json["checkpoints"][0]
        assert result.out.splitlines() == [
            f"Plan {completed} is before step 1 of 2, implement: 0 restored, 0 created, 3 deleted",
            "  code",
            "  litter",
            "  ready",
            f"The state before is checkpoint {before['id']}, snapshot {before['snapshot_id'][:12]}",
        ]
        assert before["label"] == "before rollback to before implement"
        assert os.listdir(root) == []

    def test_as_json(self, snap, completed, root):
        target = checkpoint_id(snap, completed, "before tune")

        document = snap("plan", "rollback", completed, target, "--json").json

        assert set(document) == {
            *("schema", "plan_id", "state", "checkpoint", "restored", "created", "deleted"),
            *("changed_paths", "safety_id", "before", "dropped_steps", "untouched", "missing"),
        }
        assert document["before"]["snapshot_id"] == document["safety_id"]
        assert (document["state"], document["deleted"]) == ("rolled_back", 1)
        assert document["checkpoint"]["id"] == target
        assert [item["path"] for item in document["changed_paths"]] == ["litter"]

    def test_to_what_there_is_not_exits_5(self, snap, failed):
        no_checkpoint = snap("plan", "rollback", failed, "0" * 26)
        no_plan = snap("plan", "rollback", "absent", "--json")

        assert (no_checkpoint.code, no_plan.code) == (5, 5)
        assert "hint: 'snap plan rollback PLAN' lists the checkpoints" in no_checkpoint.err
        assert no_plan.json["code"] == "plan-not-found"

    def test_of_an_applied_plan_exits_3(self, snap, completed):
        target = checkpoint_id(snap, completed, "before tune")
        assert snap("plan", "apply", completed).out == f"Plan {completed} is applied\n"

        result = snap("plan", "rollback", completed, target)

        assert result.code == 3
        assert f"Plan {completed} is already applied" in result.err

    def test_snap_undo_takes_the_plan_forth_again(self, snap, failed, root):
        target = checkpoint_id(snap, failed, "before implement")
        before = snap("plan", "show", failed, "--json").json
        snap("plan", "rollback", failed, target)

        undone = snap("undo")

        assert f"Plan {failed} was restored too\n" in undone.err
        assert os.listdir(root) == ["code"]
        assert snap("plan", "show", failed, "--json").json == before
        assert snap("redo", "--json").json["plan_id"] == failed
        assert snap("plan", "show", failed, "--json").json["state"] == "rolled_back"


class TestCheckpoints:
    def test_are_listed_by_a_command_of_their_own(self, snap, failed, root):
        lines = snap("plan", "checkpoints", failed)
        document = snap("plan", "checkpoints", failed, "--json").json

        assert lines.out == snap("plan", "rollback", failed).out
        assert document["schema"] == "treesnap.plan.checkpoints/1"
        for item in document["checkpoints"]:
            assert (item["plan_id"], item["sandbox"]) == (failed, os.path.realpath(root))

    def test_can_be_taken_by_hand(self, snap, failed, root):
        (root / "mended").touch()

        taken = snap("plan", "checkpoint", failed, "-m", "mended", "--phase", "repair")

        newest = snap("plan", "checkpoints", failed, "--json").json["checkpoints"][0]
        assert taken.out == newest["id"] + "\n"
        assert (newest["label"], newest["phase"]) == ("mended", "repair")
        document = snap("plan", "checkpoint", failed, "--json").json
        assert document["checkpoint"]["label"] == "by hand"

    def test_of_a_completed_plan_are_at_its_end(self, snap, completed):
        snap("plan", "checkpoint", completed)

        assert "  end        " in snap("plan", "checkpoints", completed).out.splitlines()[0]

    def test_are_refs_of_every_command(self, snap, failed, root):
        (root / "code").write_text("other")
        newest, *_, oldest = snap("plan", "checkpoints", failed, "--json").json["checkpoints"]
        ref = newest["id"]

        assert snap("show", ref, "--json").json["id"] == newest["snapshot_id"]
        assert snap("show", ref.lower()).code == 0
        assert "code" in snap("diff", ref, "--name-status").out
        assert snap("diff", oldest["id"], ref).code == 0
        assert snap("pin", ref).out == newest["snapshot_id"] + "\n"
        assert snap("delete", ref).code == 3
        assert snap("unpin", ref).code == 0
        assert snap("cat", ref, "code").out != "other"
        assert snap("delete", ref).code == 0
        assert snap("show", ref).code == 5
        left = snap("plan", "checkpoints", failed, "--json").json["checkpoints"]
        assert ref not in [item["id"] for item in left]

    def test_go_with_their_plan(self, snap, failed):
        assert snap("plan", "delete", failed).out == f"Plan {failed} is deleted\n"

        assert snap("plan", "list").err == "No plans\n"
        kinds = {item["kind"] for item in snap("list", "--json").json["snapshots"]}
        assert kinds == {"safety"}  # of the failed attempts: undo goes to them
        assert snap("plan", "delete", failed).code == 5


class TestCorrectResumeApply:
    def test_revert(self, snap, failed, root):
        (root / "mess").touch()

        text = snap("plan", "correct", failed, "--mode", "revert")

        assert text.out.splitlines()[:2] == [
            f"Plan {failed} is before step 2 of 2, tune: 0 restored, 0 created, 1 deleted",
            "  mess",
        ]
        document = snap("plan", "correct", failed, "--mode", "revert", "--json").json
        assert (document["schema"], document["state"]) == ("treesnap.plan.correct/1", "rolled_back")

    def test_append(self, snap, failed, root):
        text = snap(
            *("plan", "correct", failed, "--mode", "append"),
            *("--step", "touch more ready", "--name", "mend"),
        )
        document = snap(
            "plan", "correct", failed, "--mode", "append", "--step", "touch most", "--json"
        ).json

        assert text.out == "Added step 2 of 3, mend\n"
        assert [step["name"] for step in document["steps"]][1:] == ["mend", "correction-1", "tune"]
        assert document["added_step"] == 2
        assert snap("plan", "resume", failed).code == 0
        assert {"more", "most"} <= set(os.listdir(root))

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize(
        "words",
        [
            [],
            ["--mode", "mend"],
            ["--mode", "append"],
            ["--mode", "revert", "--step", "true"],
            ["--mode", "revert", "--name", "x"],
            ["--mode", "append", "--step", "true", "--name", "implement"],
            ["--mode", "append", "--step", ""],
            ["--mode", "append", "--step", "\udcff"],
        ],
    )
    def test_what_makes_no_sense_exits_2(self, snap, failed, words):
        assert snap("plan", "correct", failed, *words).code == 2

    def test_a_missing_mode_is_named_with_its_choices(self, snap, failed):
        result = snap("plan", "correct", failed)

        assert "Missing option '--mode'. Choose from: revert, append\n" in result.err

    def test_resume_of_a_step_that_fails_again_exits_1(self, snap, failed):
        result = snap("plan", "resume", failed, "--json")

        assert (result.code, result.json["state"]) == (1, "failed")

    def test_resume_of_a_completed_plan_is_done_already(self, snap, completed):
        result = snap("plan", "resume", completed)

        assert (result.code, result.out) == (0, f"Plan {completed} completed: 2 steps\n")

    def test_apply_of_a_plan_that_is_not_completed_exits_3(self, snap, failed):
        result = snap("plan", "apply", failed)

        assert result.code == 3
        assert "hint: 'snap plan resume PLAN' continues it" in result.err

    def test_apply_as_json(self, snap, completed):
        document = snap("plan", "apply", completed, "--json").json

        assert set(document) == PLAN_FIELDS
        assert document["state"] == "applied"


def test_of_a_damaged_plan_exits_7(snap, store, failed):
    (path,) = store.glob(f"roots/*/plan-{failed}")
    path.write_bytes(path.read_bytes()[:-1])

    assert snap("plan", "resume", "latest").code == 7
    assert snap("plan", "list").code == 0


def test_json_of_every_command_is_ascii(snap, plan_file):
    plan_file.write_text('name: "ñ\\e[31m"\nsteps: [{name: "→", run: "true"}]')

    result = snap("plan", "run", plan_file, "--json")

    assert result.raw.isascii()
    assert json.loads(result.raw)["name"] == "ñ\x1b[31m"
    assert "\x1b" not in snap("plan", "list").out
