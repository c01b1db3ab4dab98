"""``snap plan run``: what it shows, how it exits, and how it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plan_bench import is_alive

pytestmark = pytest.mark.sampled(10)

PLAN_FIELDS = {
    *("schema", "plan_id", "name", "state", "interrupted", "created_at", "root"),
    *("next_step", "steps"),
}
PROGRAM = [sys.executable, "-m", "treesnap"]
CHECKPOINT_FIELDS = {"id", "created_at", "step_index", "plan_state_hash", "label"}


def start(environment: dict[str, str], root: Path, *words: object) -> subprocess.Popen[bytes]:
    """Starts ``snap`` in a root."""
    return subprocess.Popen(
        [*PROGRAM, *map(str, words)],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class TestRun:
    def test_shows_steps_their_output_and_the_end(self, snap, root, plan_file):
        (root / "ready").touch()
        snap("create")

        result = snap("plan", "run", plan_file)

        plan = snap("plan", "show", "latest", "--json").json["plan_id"]
        assert result.code == 0
        assert result.out == f"said\nPlan {plan} completed: 2 steps\n"
        assert result.err == "[1/2] implement\n[2/2] optimize/tune, attempt 1 of 2\n"

    def test_of_a_failing_step_exits_1(self, snap, root, plan_file):
        result = snap("plan", "run", plan_file)

        plan = snap("plan", "list", "--json").json["plans"][0]["plan_id"]
        assert result.code == 1
        assert result.out.endswith(
            f"Plan {plan} failed at step 2 of 2, tune: exit code 1; it was undone\n"
        )
        assert result.err.count("tune failed; what it did was undone") == 2
        assert result.err.endswith(f"To try again from there: snap plan resume {plan}\n")
        assert os.listdir(root) == ["code"]

    def test_json_is_one_object_with_the_plan(self, snap, plan_file):
        result = snap("--json", "plan", "run", plan_file)

        document = result.json
        assert (result.code, result.err) == (1, "")
        assert set(document) == {*PLAN_FIELDS, "warnings"}
        assert (document["schema"], document["state"]) == ("treesnap.plan.run/1", "failed")
        assert [step["state"] for step in document["steps"]] == ["completed", "failed"]
        assert document["steps"][1] == {
            "step_index": 1,
            "name": "tune",
            "path": ["optimize"],
            "state": "failed",
            "attempts": 2,
            "exit_code": 1,
            "run": "echo junk > litter; test -e ready",
            "prompt": None,
            "call": None,
            "checkpoint": False,
            "retries": 1,
            "timeout_s": None,
        }

    def test_quiet_shows_what_steps_say_and_the_end(self, snap, root, plan_file):
        (root / "ready").touch()

        result = snap("plan", "run", "-q", plan_file)

        assert result.err == ""
        assert result.out.startswith("said\nPlan ")

    def test_reads_standard_input(self, snap):
        result = snap("plan", "run", "-", "--json", given=b"steps: [{run: 'true'}]", process=True)

        assert (result.code, result.json["name"]) == (0, "plan")
        bad = snap("plan", "run", "-", given=b"steps: []", process=True)
        assert "The plan in standard input, line 1 cannot be used" in bad.err

    def test_of_bad_yaml_exits_2_with_the_line(self, snap, root, plan_file):
        plan_file.write_text(plan_file.read_text().replace("retries: 1", "retires: 1"))

        result = snap("plan", "run", plan_file)

        assert (result.code, result.out) == (2, "")
        assert f"{plan_file}, line 6 cannot be used: unknown key 'retires'" in result.err
        assert "hint: correct the plan; nothing was run" in result.err
        assert os.listdir(root) == []

    def test_of_bytes_that_are_no_text_exits_2(self, snap, plan_file):
        plan_file.write_bytes(b"name: \xff")

        result = snap("plan", "run", plan_file, "--json")

        assert (result.code, result.json["code"]) == (2, "invalid-plan")
        assert "not UTF-8" in result.json["message"]

    @pytest.mark.parametrize("name", ["no-such-file", ".", "\udcff"])
    def test_of_a_file_that_is_none_exits_2(self, snap, name):
        result = snap("plan", "run", name)

        assert result.code == 2
        assert "Traceback" not in result.err

    def test_of_a_file_that_may_not_be_read_exits_2(self, ordinary_snap, plan_file):
        plan_file.chmod(0)

        result = ordinary_snap("plan", "run", plan_file)

        assert result.code == 2
        assert "Permission denied" in result.err

    def test_of_prompts_needs_a_runner(self, snap, root, plan_file):
        plan_file.write_text("steps:\n  - {run: touch x}\n  - prompt: do it; touch hacked")

        refused = snap("plan", "run", plan_file)
        done = snap("plan", "run", plan_file, "--runner", "printf <%s> {prompt}")

        assert refused.code == 2
        assert "line 3 cannot be used: the step has a prompt" in refused.err
        assert (done.code, done.out.split(">")[0]) == (0, "<do it; touch hacked")
        assert os.listdir(root) == ["x"]

    def test_of_a_runner_that_is_not_there_exits_127(self, snap, plan_file):
        plan_file.write_text("steps: [{prompt: x}]")

        result = snap("plan", "run", plan_file, "--runner", "no-such-agent {prompt}")

        plan_id = snap("plan", "show", "latest", "--json").json["plan_id"]
        assert result.code == 127
        assert f"The plan stops there. To continue: snap plan resume {plan_id}\n" in result.err
        assert snap("plan", "resume", plan_id, "--runner", "echo {prompt}").code == 0

    def test_ends_the_last_line_of_a_step_that_did_not(self, snap, plan_file):
        plan_file.write_text("steps: [{run: printf one}, {run: 'printf two; exit 1'}]")

        said = snap("plan", "run", plan_file).out.splitlines()

        assert said[:2] == ["one", "two"]
        assert " failed at step 2 of 2, " in said[2]
        assert snap("plan", "show", "latest", "--output", "1").out == "one"

    def test_of_a_signal_and_of_a_time_limit_say_so(self, snap, plan_file):
        plan_file.write_text("steps: [{name: a, run: 'kill -9 $$'}]")
        assert "failed at step 1 of 1, a: SIGKILL;" in snap("plan", "run", plan_file).out

        plan_file.write_text("steps: [{name: a, run: sleep 600, timeout: 1s}]")
        assert "failed at step 1 of 1, a: time limit;" in snap("plan", "run", plan_file).out

    def test_beside_an_interrupted_plan_exits_3(self, snap, plan_file, tmp_path):
        plan_file.write_text("steps: [{run: 'kill -9 $PPID'}]")
        assert snap("plan", "run", plan_file, process=True).code == -9

        result = snap("plan", "run", plan_file)

        assert result.code == 3
        assert "hint: 'snap plan resume PLAN' continues it" in result.err
        assert "  interrupted  " in snap("plan", "list").out
        assert "state:       running (interrupted)\n" in snap("plan", "show", "latest").out
        assert snap("plan", "show", "latest", "--json").json["interrupted"] is True

    def test_beside_a_plan_at_work_exits_6_and_it_is_not_called_interrupted(
        self, snap, plan_file, tmp_path, environment, root
    ):
        plan_file.write_text("steps: [{run: echo now; test ! -e stop || exit; sleep 600}]")
        with start(environment, root, "plan", "run", plan_file) as running:
            assert running.stdout.readline() == b"now\n"

            busy = snap("plan", "run", plan_file)
            listed = snap("plan", "list")
            shown = snap("plan", "show", "latest")

            running.send_signal(signal.SIGINT)
        assert busy.code == 6
        said = f"The list of plans of '{root}' is in use by process {running.pid}: plan run"
        assert said in busy.err
        assert "  running  " in listed.out
        assert "state:       running\n" in shown.out


class TestInterruption:
    @pytest.mark.sampled(5)
    @pytest.mark.parametrize(
        ("number", "code"),
        [
            (signal.SIGINT, 130),
            (signal.SIGTERM, 143),
            (signal.SIGHUP, 129),
            (signal.SIGQUIT, 131),
            (signal.SIGUSR2, 140),
        ],
    )
    def test_takes_the_step_back_and_leaves_the_plan_to_be_resumed(
        self, snap, plan_file, environment, root, tmp_path, number, code
    ):
        script = "touch litter; echo $$ > ../number; echo now; exec sleep 600 > other"
        plan_file.write_text(
            f"steps: [{{run: echo one > done}}, {{run: 'test -e ../ready || {{ {script}; }}'}}]"
        )
        with start(environment, root, "plan", "run", plan_file) as running:
            assert running.stdout.readline() == b"now\n"
            running.send_signal(number)
            _, err = running.communicate(timeout=60)

        assert running.returncode == code, err
        assert b"Traceback" not in err
        assert b"\nThe plan stops there. To continue: treesnap plan resume " in err
        assert not is_alive(int((tmp_path / "number").read_text()))
        assert os.listdir(root) == ["done"]
        shown = snap("plan", "show", "latest", "--json").json
        assert (shown["state"], shown["interrupted"], shown["next_step"]) == ("pending", False, 1)
        (tmp_path / "ready").touch()
        assert snap("plan", "resume", "latest").code == 0

    def test_by_a_reader_that_goes_away_exits_141(self, plan_file, environment, root, snap):
        plan_file.write_text("steps: [{run: touch litter; while :; do echo x; done}]")
        with start(environment, root, "plan", "run", plan_file) as running:
            running.stdout.readline()
            running.stdout.close()
            assert running.wait(timeout=60) == 141

        assert os.listdir(root) == []
        assert snap("plan", "show", "latest", "--json").json["state"] == "pending"
