"""What a review and an epic asked of checkpoints of plans, each from processes of its own.

The review: a roll-back found no root in a new process; "already applied" was forgotten
with the process; a correction did not roll back; the retention policy held only when it
was passed; and stores of an older format did not open any more.
"""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from calling import Ended, run_forked
from oracle import difference, record
from plan_bench import is_alive

pytestmark = pytest.mark.sampled(12)

PLAN = """\
name: release
steps:
  - {name: one, run: echo one >> done}
  - {name: two, run: echo two >> done; test -e ../broken && touch litter && exit 7 || true}
  - {name: three, run: echo three >> done}
"""
ARCHIVE = Path(__file__).parent.parent / "formats" / "v2.tar.xz"
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


class Processes:
    """Commands, each a process of its own, on a root and a store."""

    def __init__(self, directory: Path, store: Path | None = None) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.root.mkdir()
        self.store = store or directory / "store"
        self.file = directory / "plan.yaml"
        self.file.write_text(PLAN)

    def snap(self, *words: object, cwd: Path | None = None) -> Ended:
        arguments = ["--store", str(self.store), *map(str, words)]
        return run_forked(arguments, cwd=cwd or self.root, variables=os.environ)

    def json(self, *words: object, cwd: Path | None = None) -> dict:
        return json.loads(self.snap("--json", *words, cwd=cwd).out)

    def run(self) -> str:
        return self.json("plan", "run", self.file)["plan_id"]

    def checkpoint(self, plan: str, label: str) -> str:
        found = self.json("plan", "rollback", plan)["checkpoints"]
        return next(item["id"] for item in found if item["label"] == label)

    def lines(self) -> list[str]:
        path = self.root / "done"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


def test_a_new_process_rolls_back_and_finds_the_root_by_itself(processes):
    """Blocker: rollback could not succeed, its sandbox was only known to the old process."""
    plan = processes.run()
    checkpoint = processes.checkpoint(plan, "before two")
    elsewhere = processes.directory / "elsewhere"
    elsewhere.mkdir()

    result = processes.json("plan", "rollback", plan, checkpoint, cwd=elsewhere)

    assert processes.lines() == ["one"]
    assert (result["restored"], result["created"], result["deleted"]) == (1, 0, 0)
    assert [item["path"] for item in result["changed_paths"]] == ["done"]
    assert processes.json("plan", "show", plan)["next_step"] == 1


def test_an_applied_plan_refuses_in_every_later_process(processes):
    """Blocker: "plan already applied" was never set where it mattered."""
    plan = processes.run()
    checkpoint = processes.checkpoint(plan, "before two")
    assert processes.snap("plan", "apply", plan).code == 0

    for _ in range(2):
        ended = processes.snap("plan", "rollback", plan, checkpoint)
        assert (ended.code, processes.lines()) == (3, ["one", "two", "three"])
        assert processes.snap("plan", "correct", plan, "--mode", "revert").code == 3
        assert processes.snap("plan", "resume", plan).code == 3


def test_a_correction_rolls_back_just_as_a_roll_back_does(processes):
    """Should-fix: the correction never called the roll-back that it was said to delegate to."""
    (processes.directory / "broken").touch()
    plan = processes.run()
    (processes.root / "mess").touch()

    result = processes.json("plan", "correct", plan, "--mode", "revert")

    fields = {"checkpoint", "restored", "created", "deleted", "changed_paths", "safety_id"}
    assert set(result) >= fields
    assert (result["checkpoint"]["label"], result["state"]) == ("before two", "rolled_back")
    assert sorted(os.listdir(processes.root)) == ["done"]
    forth = processes.checkpoint(plan, "before rollback to before two")
    assert processes.snap("plan", "rollback", plan, forth).code == 0
    assert sorted(os.listdir(processes.root)) == ["done", "mess"]


def test_old_checkpoints_go_without_being_asked(processes):
    """Should-fix: the default policy was documented, and held only when it was passed."""
    steps = "\n".join(f"  - {{name: s{number}, run: echo {number} > file}}" for number in range(53))
    processes.file.write_text(f"name: long\nsteps:\n{steps}\n")

    plan = processes.run()

    found = processes.json("plan", "rollback", plan)["checkpoints"]
    assert [item["step_index"] for item in found] == list(range(52, 2, -1))
    kept = [one for one in processes.json("list")["snapshots"] if one["session"] == plan]
    assert len(kept) == 50
    assert processes.snap("plan", "rollback", plan, found[-1]["id"]).code == 0
    assert (processes.root / "file").read_text() == "2\n"


def test_stores_of_the_first_released_format_open_and_plans_run_in_them(tmp_path):
    """Blocker: the migration chain was broken."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "old", **SAFELY)
    processes = Processes(tmp_path, tmp_path / "old" / "store")
    assert processes.json("plan", "list", "--all")["plans"] == []

    plan = processes.run()

    assert processes.lines() == ["one", "two", "three"]
    checkpoint = processes.checkpoint(plan, "before three")
    assert processes.snap("plan", "rollback", plan, checkpoint).code == 0
    assert processes.lines() == ["one", "two"]
    assert processes.snap("verify", "--read-data").code == 0


@pytest.mark.needs("processes")
def test_checkpoint_failure_kill_and_roll_back_end_to_end(processes):
    """The epic's flow, with the process killed in between."""
    (processes.root / "file").write_text("before")
    start = record(processes.root)
    (processes.directory / "broken").touch()
    plan = processes.run()
    shown = processes.json("plan", "show", plan)
    assert (shown["state"], processes.lines()) == ("failed", ["one"])
    script = "echo $$ > ../number; touch litter; kill -9 $PPID; exec sleep 600 > /dev/null 2>&1"
    added = processes.snap("plan", "correct", plan, "--mode", "append", "--step", script)
    assert added.code == 0
    (processes.directory / "broken").unlink()
    assert processes.snap("plan", "resume", plan).code == -9
    left = int((processes.directory / "number").read_text())
    assert is_alive(left)

    ended = processes.snap("plan", "rollback", plan, processes.checkpoint(plan, "before one"))

    assert ended.code == 0, ended
    assert not is_alive(left)
    assert difference(start, record(processes.root)) == []
    assert processes.json("plan", "show", plan)["state"] == "rolled_back"


def test_a_checkpoint_has_all_metadata_that_was_asked_for(processes):
    plan = processes.run()

    (item, *_) = processes.json("plan", "rollback", plan)["checkpoints"]

    assert len(item["id"]) == 26
    assert item["created_at"].endswith("Z")
    assert (item["step_index"], item["label"]) == (2, "before three")
    assert len(item["plan_state_hash"]) == 64
    assert (item["reason"], item["source_tool"]) == ("before_step", "snap plan")
    assert item["phase"] == "release"
    snapshot = processes.json("show", item["snapshot_id"])
    assert (snapshot["session"], snapshot["root_hash"]) == (plan, item["root_hash"])
    assert processes.json("plan", "show", plan)["root"] == str(processes.root.resolve())


def test_an_interrupted_plan_is_shown_by_the_doctor_and_waits_for_a_person(processes):
    plan = processes.run()
    assert processes.snap("doctor").code == 0
    script = "test -e ../again || { touch ../again; kill -9 $PPID; }"
    processes.snap("plan", "correct", plan, "--mode", "append", "--step", script)
    assert processes.snap("plan", "resume", plan).code == -9

    shown = processes.snap("doctor", "--json")

    assert shown.code == 3
    (item,) = json.loads(shown.out)["unfinished"]
    assert (item["work"], item["root"], item["blocked"]) == ("plan", str(processes.root), True)
    assert plan in item["resolution"]
    assert "hint: 'snap plan resume PLAN' continues it" in processes.snap("doctor").out
    assert processes.snap("plan", "resume", plan).code == 0
    assert processes.snap("doctor").code == 0
