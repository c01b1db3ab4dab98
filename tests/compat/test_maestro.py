"""Maestro's checkpoint manager, method by method, without git."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
import textwrap
import uuid
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest

import treesnap
from plan_bench import end, is_alive
from state import tree_state
from treesnap.compat import maestro
from treesnap.compat.maestro import (
    CheckpointManager,
    CheckpointPhase,
    CheckpointType,
    StateSnapshot,
)
from treesnap.core.model.reserved_tags import counters_in, facts_of

PLAN = CheckpointPhase.PLAN


class TestNames:
    """Names and signatures are the documented ones; what is new are keywords."""

    def test_of_the_records(self):
        assert {
            name: [item.name for item in fields(getattr(maestro, name))]
            for name in ("Checkpoint", "StateSnapshot", "ValidationResult", "CheckpointSummary")
        } == {
            "Checkpoint": [
                "checkpoint_id",
                "commit_sha",
                "timestamp",
                "description",
                "phase",
                "checkpoint_type",
                "commit_message",
                "state_snapshot",
                "tags",
                "rollback_used",
                "rollback_count",
            ],
            "StateSnapshot": [
                "tasks_completed",
                "decisions_made",
                "files_modified",
                "files_created",
                "tests_passing",
                "tests_failing",
            ],
            "ValidationResult": [
                "is_valid",
                "errors",
                "warnings",
                "git_status",
                "has_uncommitted_changes",
                "tests_passing",
            ],
            "CheckpointSummary": [
                "total_checkpoints",
                "checkpoints_by_type",
                "checkpoints_used_for_rollback",
                "latest_checkpoint",
            ],
        }

    def test_of_the_words(self):
        assert {item.name: item.value for item in CheckpointType} == {
            name: name.lower()
            for name in (
                "PHASE_COMPLETE",
                "TASK_GROUP_COMPLETE",
                "SAFE_STATE",
                "PRE_RISKY_OPERATION",
                "ERROR_RECOVERY",
                "MANUAL",
            )
        }
        assert [item.name for item in CheckpointPhase] == [
            "PLAN",
            "GENERATE_TASKS",
            "IMPLEMENT",
            "VALIDATE",
            "CLEANUP",
        ]
        assert [item.value for item in CheckpointPhase] == [
            item.name.lower() for item in CheckpointPhase
        ]

    @pytest.mark.parametrize(
        ("method", "parameters"),
        [
            ("__init__", {"repo_root": None, "session_id": None}),
            ("validate_checkpoint_state", {}),
            (
                "create_checkpoint",
                {
                    "session_id": ...,
                    "description": ...,
                    "phase": ...,
                    "checkpoint_type": CheckpointType.MANUAL,
                    "state_snapshot": None,
                    "commit_first": True,
                },
            ),
            ("list_checkpoints", {"session_id": ...}),
            ("get_checkpoint", {"session_id": ..., "checkpoint_id": ...}),
            (
                "rollback_to_checkpoint",
                {"session_id": ..., "checkpoint_id": ..., "hard_reset": False},
            ),
            ("get_checkpoint_summary", {"session_id": ...}),
            (
                "delete_checkpoint",
                {"session_id": ..., "checkpoint_id": ..., "delete_tag": True},
            ),
        ],
    )
    def test_of_the_methods(self, method, parameters):
        found = list(inspect.signature(getattr(CheckpointManager, method)).parameters.values())

        positional = {
            item.name: ... if item.default is item.empty else item.default
            for item in found[1:]
            if item.kind is item.POSITIONAL_OR_KEYWORD
        }
        assert positional == parameters
        assert list(positional) == list(parameters)


def test_every_documented_name_has_a_row_in_the_page_of_the_system():
    page = Path(__file__).parents[2] / "docs" / "systems" / "maestro.md"
    section = page.read_text(encoding="utf-8").split("\n## Where each part is\n")[1]
    found = set(re.findall(r"[\w-]+", section))
    records = ("Checkpoint", "StateSnapshot", "ValidationResult", "CheckpointSummary")

    wanted = set(maestro.__all__)
    wanted |= {item.name for name in records for item in fields(getattr(maestro, name))}
    wanted |= {item.name for kind in (CheckpointType, CheckpointPhase) for item in kind}
    wanted |= {name for name in vars(CheckpointManager) if name.endswith(("checkpoint", "state"))}
    wanted |= {"repo_root", "session_id", "commit_first", "hard_reset", "delete_tag"}
    wanted |= {"list_checkpoints", "get_checkpoint_summary", "generated_at", "summary"}
    wanted |= {"--session-id", "--description", "--phase", "--checkpoint-type", "--output"}
    wanted |= {"--checkpoint-id", "--hard-reset", "create", "list", "get", "rollback", "validate"}
    assert wanted - found == set()


class TestTheManager:
    def test_takes_the_nearest_directory_that_was_captured(self, root, make, monkeypatch):
        make("two")
        monkeypatch.chdir(root / "notes")

        assert CheckpointManager().repo_root == str(root)

    def test_takes_the_current_directory_when_none_was(self, root, monkeypatch):
        monkeypatch.chdir(root / "notes")

        assert CheckpointManager().repo_root == str(root / "notes")

    @pytest.mark.parametrize("marker", [".git", ".flow/maestro"])
    def test_takes_the_top_of_the_project_before_anything_was_captured(
        self, root, monkeypatch, marker, session_id
    ):
        (root / marker).mkdir(parents=True)
        monkeypatch.chdir(root / "notes")

        manager = CheckpointManager()
        made = manager.create_checkpoint(session_id, "x", PLAN)

        assert manager.repo_root == str(root)
        assert {item.name for item in manager.handle.ls(made.commit_sha)} >= {b"code.py", b"notes"}

    def test_takes_no_dangerous_directory_for_a_project(self, tmp_path, monkeypatch):
        project = tmp_path / "home" / "project"
        project.mkdir()
        (tmp_path / "home" / ".git").mkdir()
        monkeypatch.chdir(project)

        assert CheckpointManager().repo_root == str(project)

    def test_is_not_made_in_a_directory_that_is_gone(self, root, monkeypatch):
        (root / "gone").mkdir()
        monkeypatch.chdir(root / "gone")
        (root / "gone").rmdir()

        with pytest.raises(FileNotFoundError, match="current directory does not exist") as caught:
            CheckpointManager()
        assert caught.value.code == "current-directory-gone"

    def test_takes_the_directory_and_the_store_that_it_is_given(self, root, tmp_path, session_id):
        manager = CheckpointManager(str(root / "notes"), session_id, store=tmp_path / "other")

        made = manager.create_checkpoint(manager.session_id, "x", PLAN)

        assert manager.session_id == session_id
        handle = treesnap.open(root / "notes", tmp_path / "other")
        assert handle.resolve(made.commit_sha).label == "x"

    def test_needs_no_git(self, root, make):
        make("two")

        assert not (root / ".git").exists()


class TestCreate:
    def test_captures_everything(self, root, make, manager, session_id):
        before = make("two")
        state = tree_state(root)
        (root / "code.py").unlink()
        (root / "notes" / "new").mkdir()

        manager.rollback_to_checkpoint(session_id, before.checkpoint_id, hard_reset=True)

        assert tree_state(root) == state

    def test_gives_what_the_text_says(self, make):
        begun = datetime.now(UTC)

        made = make("two", checkpoint_type=CheckpointType.SAFE_STATE)

        assert uuid.UUID(made.checkpoint_id).version == 4
        assert re.fullmatch("[0-9a-f]{64}", made.commit_sha)
        assert begun <= datetime.fromisoformat(made.timestamp) <= datetime.now(UTC)
        assert made.timestamp.endswith("Z")
        assert (made.description, made.phase) == ("two", CheckpointPhase.PLAN)
        assert made.checkpoint_type is CheckpointType.SAFE_STATE
        assert made.commit_message == "Checkpoint: two"
        assert made.tags == [f"checkpoint-{made.checkpoint_id}"]
        assert (made.rollback_used, made.rollback_count, made.state_snapshot) == (False, 0, None)

    def test_is_a_snapshot_with_the_same_words(self, make, root, session_id):
        made = make("two", state_snapshot=StateSnapshot(tests_passing=3))

        (found,) = treesnap.open(root).list(session=session_id, tag="treesnap.phase=plan")
        assert (found.id, found.name) == (made.commit_sha, made.checkpoint_id)
        assert (found.label, facts_of(found)["source_tool"]) == ("two", "maestro")
        assert counters_in(facts_of(found))["tests_passing"] == 3
        assert treesnap.open(root).list(tag=made.tags[0]) == (found,)

    def test_refuses_what_cannot_be_read_and_keeps_nothing(self, root, session_id):
        (root / "secret").write_text("x")
        (root / "secret").chmod(0)

        said = as_ordinary_user(
            f"""
            treesnap.open(".").create()
            manager = CheckpointManager()
            print(manager.validate_checkpoint_state())
            try:
                manager.create_checkpoint({session_id!r}, "x", "plan")
            except ValueError as error:
                print(error.code, error)
            print(len(treesnap.open(".").list()))
            """
        )

        assert said[0].startswith(
            """ValidationResult(is_valid=False, errors=["'secret' cannot be read"], """
        )
        assert said[1:] == ["unreadable 'secret' cannot be read", "1"]

    def test_refuses_dangerous_directories(self, tmp_path, session_id):
        manager = CheckpointManager(tmp_path / "home")

        with pytest.raises(ValueError, match="is your home directory"):
            manager.create_checkpoint(session_id, "x", PLAN)
        assert not manager.validate_checkpoint_state().is_valid

    def test_without_commit_first_marks_what_was_captured(self, make, manager, session_id):
        first = make("two")

        marked = manager.create_checkpoint(session_id, "again", PLAN, commit_first=False)

        handle = manager.handle
        assert handle.resolve(marked.commit_sha).root_hash == (
            handle.resolve(first.commit_sha).root_hash
        )
        assert marked.commit_message is None
        assert [item.description for item in manager.list_checkpoints(session_id)] == [
            "again",
            "two",
        ]

    def test_without_commit_first_refuses_changes_that_are_not_captured(
        self, root, make, manager, session_id
    ):
        make("two")
        (root / "code.py").write_text("three")

        with pytest.raises(ValueError, match=r"Not as in snapshot \w{12}: 'code.py'"):
            manager.create_checkpoint(session_id, "x", PLAN, commit_first=False)
        assert len(manager.list_checkpoints(session_id)) == 1

    @pytest.mark.parametrize("store_is_there", [False, True])
    def test_without_commit_first_captures_a_directory_that_never_was(
        self, root, manager, session_id, store_is_there
    ):
        if store_is_there:
            treesnap.open(root).create(["code.py"])
        state = tree_state(root)

        made = manager.create_checkpoint(session_id, "x", PLAN, commit_first=False)

        (root / "code.py").write_text("two")
        (root / "notes" / "plan.md").unlink()
        manager.rollback_to_checkpoint(session_id, made.checkpoint_id, hard_reset=True)
        assert tree_state(root) == state
        assert made.commit_message is None

    def test_without_commit_first_marks_snapshots_made_by_hand(self, root, manager, session_id):
        treesnap.open(root).create()

        marked = manager.create_checkpoint(session_id, "x", PLAN, commit_first=False)

        (root / "code.py").write_text("two")
        manager.rollback_to_checkpoint(session_id, marked.checkpoint_id, hard_reset=True)
        assert (root / "code.py").read_text() == "one"


def as_ordinary_user(script):
    """Runs Python without the superuser's right to read everything; returns its lines."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    if os.geteuid() == 0 and shutil.which(drop[0]) is None:
        pytest.skip("the superuser's rights cannot be dropped here")
    head = "import treesnap; from treesnap.compat.maestro import CheckpointManager\n"
    command = [sys.executable, "-c", head + textwrap.dedent(script)]
    result = subprocess.run(
        [*(drop if os.geteuid() == 0 else []), *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return result.stdout.splitlines()


class TestValidate:
    def test_says_that_all_is_captured(self, make, manager):
        made = make("two")

        found = manager.validate_checkpoint_state()

        assert (found.is_valid, found.has_uncommitted_changes) == (True, False)
        assert (found.errors, found.warnings, found.tests_passing) == ([], [], None)
        assert found.git_status == f"At {made.commit_sha[:12]} (two)\nnothing to capture"

    def test_lists_what_is_not_captured(self, root, make, manager):
        make("two")
        (root / "code.py").write_text("three")
        (root / "new").write_text("new")
        (root / "notes" / "plan.md").unlink()

        found = manager.validate_checkpoint_state()

        assert (found.is_valid, found.has_uncommitted_changes) == (True, True)
        assert found.warnings == ["There are uncommitted changes"]
        assert [line.split() for line in found.git_status.splitlines()[1:]] == [
            ["modified:", "code.py"],
            ["new:", "new"],
            ["deleted:", "notes/plan.md"],
        ]

    def test_before_the_first_capture(self, manager):
        found = manager.validate_checkpoint_state()

        assert (found.is_valid, found.has_uncommitted_changes) == (True, True)
        assert found.git_status == "Nothing was captured yet"

    def test_is_not_valid_where_a_first_capture_could_not_read(self, root, session_id):
        (root / "secret").write_text("x")
        (root / "secret").chmod(0)

        said = as_ordinary_user(
            f"""
            manager = CheckpointManager()
            print(manager.validate_checkpoint_state().is_valid)
            for commit_first in (True, False):
                try:
                    manager.create_checkpoint({session_id!r}, "", "plan", commit_first=commit_first)
                except ValueError as error:
                    print(error.code)
            """
        )

        assert said == ["False", "unreadable", "unreadable"]

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("place", ["store", "parent", "file"])
    def test_is_not_valid_where_the_store_cannot_be_written(self, tmp_path, session_id, place):
        match place:
            case "store":
                treesnap.open(".").create()
                (tmp_path / "store" / "pending").chmod(0o500)
            case "parent":
                tmp_path.chmod(0o500)
            case "file":
                (tmp_path / "store").write_text("no store")
        try:
            said = as_ordinary_user(
                f"""
                manager = CheckpointManager()
                print(manager.validate_checkpoint_state().is_valid)
                try:
                    manager.create_checkpoint({session_id!r}, "x", "plan")
                except Exception as error:
                    print(type(error).__name__)
                """
            )
        finally:
            tmp_path.chmod(0o700)

        assert said == ["False", "CheckpointFailed"]

    @pytest.mark.parametrize("kind", ["file", "link to a file"])
    def test_is_not_valid_where_the_root_is_no_directory(self, root, manager, session_id, kind):
        root.rename(root.with_name("moved"))
        if kind == "file":
            root.write_text("x")
        else:
            root.symlink_to(root.with_name("moved") / "code.py")

        assert not manager.validate_checkpoint_state().is_valid
        with pytest.raises(treesnap.TreesnapError):
            manager.create_checkpoint(session_id, "x", PLAN)

    def test_is_about_the_whole_directory(self, root, make):
        make("two")
        treesnap.open(root).create(["notes"])
        (root / "code.py").write_text("three")

        assert CheckpointManager().validate_checkpoint_state().has_uncommitted_changes

    def test_of_a_directory_that_is_gone(self, root, manager):
        root.rename(root.with_name("elsewhere"))

        found = manager.validate_checkpoint_state()

        assert not found.is_valid
        assert found.errors == [f"There is no directory {str(root)!r}"]

    @pytest.mark.parametrize(
        ("line", "passing", "warnings"),
        [
            ("test -e code.py", True, []),
            (
                "seq 9999; echo 1 failed; echo; exit 3",
                False,
                ["The tests fail with exit code 3: 1 failed"],
            ),
            ("exit 1", False, ["The tests fail with exit code 1"]),
        ],
    )
    def test_runs_the_tests(self, make, line, passing, warnings):
        make("two")

        found = CheckpointManager(test_command=line).validate_checkpoint_state()

        assert (found.tests_passing, found.warnings, found.is_valid) == (passing, warnings, True)

    def test_does_not_wait_for_what_the_tests_leave_running(self, make, tmp_path):
        make("two")
        line = "sleep 60 & echo $! > ../number"

        found = CheckpointManager(test_command=line).validate_checkpoint_state()

        number = int((tmp_path / "number").read_text())
        assert (found.tests_passing, is_alive(number)) == (True, True)
        end(number)

    def test_looks_at_the_files_after_the_tests(self, make):
        make("two")

        found = CheckpointManager(test_command="echo > report").validate_checkpoint_state()

        assert found.has_uncommitted_changes
