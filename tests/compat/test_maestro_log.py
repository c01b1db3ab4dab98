"""checkpoints.json: written on request, as documented, and no part of what it tells of."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from importlib.resources import files

import jsonschema
import pytest

import treesnap
from treesnap.compat.maestro import (
    CheckpointManager,
    CheckpointPhase,
    CheckpointType,
    StateSnapshot,
)

PLAN = CheckpointPhase.PLAN
EXAMPLE = """
{
  "session_id": "uuid-string",
  "generated_at": "2024-01-07T13:00:00Z",
  "checkpoints": [
    {
      "checkpoint_id": "uuid-string",
      "commit_sha": "abc123...",
      "timestamp": "2024-01-07T13:00:00Z",
      "description": "Planning phase completed",
      "phase": "plan",
      "checkpoint_type": "phase_complete",
      "tags": ["checkpoint-uuid-string"],
      "rollback_used": false,
      "rollback_count": 0
    }
  ],
  "summary": {
    "total_checkpoints": 1,
    "checkpoints_by_type": {
      "phase_complete": 1
    },
    "checkpoints_used_for_rollback": 0,
    "latest_checkpoint": "abc123..."
  }
}
"""


@pytest.fixture(scope="module")
def check():
    """Returns the function that raises when a log does not fit the schema."""
    text = (files("treesnap.compat") / "schemas" / "checkpoints.schema.json").read_text()
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema).validate


@pytest.fixture
def path(root, session_id):
    """Where the log of the session is."""
    return root / ".flow" / "maestro" / "sessions" / session_id / "checkpoints.json"


@pytest.fixture
def manager():
    """A manager that keeps the log."""
    return CheckpointManager(keep_log=True)


def unsaved() -> bool:
    """Returns whether a new process sees changes that are not captured."""
    return CheckpointManager().validate_checkpoint_state().has_uncommitted_changes


class TestContent:
    def test_fits_the_schema(self, manager, session_id, path, check):
        made = manager.create_checkpoint(
            session_id, "a", PLAN, CheckpointType.SAFE_STATE, StateSnapshot(tests_passing=4)
        )
        manager.create_checkpoint(session_id, "b", PLAN, commit_first=False)
        manager.rollback_to_checkpoint(session_id, made.checkpoint_id)

        log = json.loads(path.read_bytes())
        check(log)
        assert [item["description"] for item in log["checkpoints"]] == ["b", "a"]
        assert log["checkpoints"][1]["rollback_count"] == 1
        assert log["checkpoints"][1]["state_snapshot"]["tests_passing"] == 4
        assert log["summary"]["latest_checkpoint"] == log["checkpoints"][0]["commit_sha"]

    def test_has_the_fields_of_the_documented_example(self, manager, session_id, path, check):
        manager.create_checkpoint(
            session_id, "Planning phase completed", PLAN, CheckpointType.PHASE_COMPLETE
        )
        log = json.loads(path.read_bytes())
        found = copy.deepcopy(log)
        message = found["checkpoints"][0].pop("commit_message")

        example = json.loads(EXAMPLE)
        checkpoint = found["checkpoints"][0]
        for here, there in [(found, example), (checkpoint, example["checkpoints"][0])]:
            assert list(here) == list(there)
        for name in ("description", "phase", "checkpoint_type", "rollback_used", "rollback_count"):
            assert checkpoint[name] == example["checkpoints"][0][name]
        assert checkpoint["tags"] == [f"checkpoint-{checkpoint['checkpoint_id']}"]
        assert message == "Checkpoint: Planning phase completed"
        check(log)

    def test_of_an_empty_session_fits_the_schema(self, session_id, check):
        check(CheckpointManager(session_id=session_id).checkpoint_log(session_id))

    @pytest.mark.parametrize(
        ("keys", "wrong"),
        [
            (("session_id",), "uuid-string"),
            (("generated_at",), "yesterday"),
            (("checkpoints", 0, "commit_sha"), "abc123"),
            (("checkpoints", 0, "phase"), "lunch"),
            (("checkpoints", 0, "checkpoint_type"), "nice"),
            (("checkpoints", 0, "rollback_count"), -1),
            (("checkpoints", 0, "surprise"), 1),
            (("summary", "latest_checkpoint"), 7),
            (("summary", "checkpoints_by_type"), {"nice": 1}),
        ],
    )
    def test_schema_refuses_what_is_wrong(self, manager, session_id, check, keys, wrong):
        manager.create_checkpoint(session_id, "a", PLAN)
        log = manager.checkpoint_log(session_id)
        part = log
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = wrong

        with pytest.raises(jsonschema.ValidationError):
            check(log)


class TestFile:
    def test_is_written_on_request_only(self, root, session_id, path):
        CheckpointManager().create_checkpoint(session_id, "a", PLAN)
        assert not (root / ".flow").exists()

        written = CheckpointManager().write_log(session_id)

        assert written == str(path)
        assert path.is_file()

    def test_follows_every_change(self, manager, session_id, path):
        def summary():
            return json.loads(path.read_bytes())["summary"]

        first = manager.create_checkpoint(session_id, "a", PLAN)
        manager.rollback_to_checkpoint(session_id, first.checkpoint_id, hard_reset=True)
        used = summary()["checkpoints_used_for_rollback"]
        manager.delete_checkpoint(session_id, first.checkpoint_id)

        assert (used, summary()["total_checkpoints"]) == (1, 0)

    def test_of_many_writers_has_all_checkpoints(self, session_id, path):
        script = (
            "import sys; from treesnap.compat.maestro import CheckpointManager\n"
            "manager = CheckpointManager(keep_log=True)\n"
            "for number in range(3): manager.create_checkpoint(sys.argv[1], 'x', 'plan')"
        )
        writers = [subprocess.Popen([sys.executable, "-c", script, session_id]) for _ in range(3)]

        assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
        assert json.loads(path.read_bytes())["summary"]["total_checkpoints"] == 9

    def test_counts_as_no_change(self, manager, root, session_id):
        manager.create_checkpoint(session_id, "a", PLAN)

        assert not unsaved()
        manager.create_checkpoint(session_id, "b", PLAN, commit_first=False)
        assert not unsaved()

    def test_counts_as_no_change_after_a_capture_by_hand(self, manager, session_id):
        manager.create_checkpoint(session_id, "a", PLAN)
        manager.handle.create()

        marked = manager.create_checkpoint(session_id, "b", PLAN, commit_first=False)

        assert not unsaved()
        manager.rollback_to_checkpoint(session_id, marked.checkpoint_id, hard_reset=True)
        assert not unsaved()

    def test_is_not_rolled_back(self, manager, root, session_id, path):
        first = manager.create_checkpoint(session_id, "a", PLAN)
        (root / "code.py").write_text("two")
        manager.create_checkpoint(session_id, "b", PLAN)
        before = path.read_bytes()

        CheckpointManager().rollback_to_checkpoint(session_id, first.checkpoint_id, True)

        assert (root / "code.py").read_text() == "one"
        assert path.read_bytes() == before
        assert not unsaved()

    def test_is_not_rolled_back_to_a_mark_of_a_capture_by_hand(self, manager, session_id, path):
        manager.create_checkpoint(session_id, "a", PLAN)
        manager.handle.create()
        marked = manager.create_checkpoint(session_id, "b", PLAN, commit_first=False)
        before = path.read_bytes()

        CheckpointManager().rollback_to_checkpoint(session_id, marked.checkpoint_id, True)

        assert path.read_bytes() == before

    def test_is_in_no_checkpoint(self, manager, session_id, path, root):
        for text in "ab":
            made = manager.create_checkpoint(session_id, text, PLAN)

        with pytest.raises(treesnap.NotFound):
            list(manager.handle.cat(made.commit_sha, path))

    def test_other_files_of_the_session_are_captured(self, manager, session_id, path):
        path.parent.mkdir(parents=True)
        (path.parent / "session.json").write_text("{}")

        made = manager.create_checkpoint(session_id, "a", PLAN)

        assert list(manager.handle.cat(made.commit_sha, path.parent / "session.json")) == [b"{}"]

    @pytest.mark.parametrize("old", [EXAMPLE, "no json", "[]", "{}"])
    def test_of_the_old_system_is_kept_beside_it(self, manager, session_id, path, old, check):
        path.parent.mkdir(parents=True)
        path.write_text(old)

        manager.create_checkpoint(session_id, "a", PLAN)
        manager.create_checkpoint(session_id, "b", PLAN)

        assert path.with_name("checkpoints.json.before-treesnap").read_text() == old
        check(json.loads(path.read_bytes()))

    def test_that_cannot_be_written_is_an_error_that_says_what_was_done(
        self, manager, root, session_id
    ):
        (root / ".flow").symlink_to(root.parent)

        with pytest.raises(
            subprocess.SubprocessError, match="The operation succeeded, but writing the log failed"
        ) as caught:
            manager.create_checkpoint(session_id, "a", PLAN)

        assert "'.flow' is not a directory" in str(caught.value)
        assert len(manager.list_checkpoints(session_id)) == 1
        assert not (root.parent / "maestro").exists()
