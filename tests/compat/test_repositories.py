"""In a git repository ``.git`` is machinery: no checkpoint holds it, none depends on it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import treesnap
from treesnap.compat.architect import CheckpointManager as Architect
from treesnap.compat.maestro import CheckpointManager, CheckpointPhase

pytestmark = pytest.mark.sampled(10)


def git(root, *words: str) -> str:
    """Runs git in a directory, as some user, and returns what it says."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    ran = subprocess.run(
        ["git", *who, *words], cwd=root, capture_output=True, text=True, check=True
    )
    return ran.stdout


@pytest.fixture
def repository(root):
    """The root as a repository with a commit."""
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    return root


class TestMaestro:
    def test_marks_after_git_looked_around(self, repository, manager, make, session_id):
        make("two")
        git(repository, "status")
        git(repository, "add", ".")

        assert not manager.validate_checkpoint_state().has_uncommitted_changes
        marked = manager.create_checkpoint(
            session_id, "again", CheckpointPhase.PLAN, commit_first=False
        )
        assert marked.commit_message is None

    def test_keeps_branches_that_were_made_since(self, repository, manager, make, session_id):
        checkpoint = make("two")
        git(repository, "switch", "-qc", "later")
        (repository / "code.py").write_text("three")
        git(repository, "commit", "-qam", "three")

        manager.rollback_to_checkpoint(session_id, checkpoint.checkpoint_id, hard_reset=True)

        assert (repository / "code.py").read_text() == "two"
        assert git(repository, "branch", "--format=%(refname:short)").split() == ["later", "main"]
        assert git(repository, "log", "--format=%s").split() == ["three", "one"]

    def test_marks_what_a_snapshot_with_the_repository_holds(
        self, repository, store, manager, session_id
    ):
        treesnap.open(repository, store).create()
        git(repository, "switch", "-qc", "later")

        marked = manager.create_checkpoint(
            session_id, "mark", CheckpointPhase.PLAN, commit_first=False
        )
        manager.rollback_to_checkpoint(session_id, marked.checkpoint_id, hard_reset=True)

        assert git(repository, "branch", "--show-current").strip() == "later"

    def test_takes_the_repository_where_a_setting_says_so(
        self, repository, store, manager, make, session_id
    ):
        handle = treesnap.open(repository, store)
        handle.create()
        handle.config("checkpoints.git", "true")
        checkpoint = make("two")
        git(repository, "branch", "later")

        assert manager.validate_checkpoint_state().has_uncommitted_changes
        manager.rollback_to_checkpoint(session_id, checkpoint.checkpoint_id, hard_reset=True)
        assert git(repository, "branch", "--format=%(refname:short)").split() == ["main"]


class TestArchitect:
    def test_lists_no_file_of_the_repository(self, repository):
        checkpoints = Architect(str(repository))
        first = checkpoints.create(1)
        assert first is not None
        git(repository, "add", ".")
        git(repository, "branch", "later")

        assert first.files_changed == ["code.py", "notes/plan.md"]
        assert not checkpoints.has_changes_since(first.commit_hash)
        assert checkpoints.create(2) is None
        (repository / "code.py").write_text("two")
        git(repository, "commit", "-qam", "two")
        second = checkpoints.create(2)
        assert second is not None
        assert second.files_changed == ["code.py"]

    def test_keeps_branches_that_were_made_since(self, repository):
        checkpoints = Architect(str(repository))
        checkpoints.create(1)
        git(repository, "branch", "later")
        (repository / "code.py").write_text("two")

        assert checkpoints.rollback(step=1)

        assert (repository / "code.py").read_text() == "one"
        assert git(repository, "branch", "--format=%(refname:short)").split() == ["later", "main"]

    def test_leaves_it_alone_where_a_plan_has_captured_it(self, repository, tmp_path):
        pipeline = tmp_path / "pipeline.yaml"
        pipeline.write_text(
            "steps:\n- {name: one, prompt: code.py, checkpoint: true}\n"
            "- {name: two, prompt: other.py, checkpoint: true}\n"
        )
        words = ["plan", "run", "--architect", "--runner", "cp notes/plan.md {prompt}"]
        subprocess.run(
            [sys.executable, "-m", "treesnap", *words, pipeline], cwd=repository, check=True
        )
        checkpoints = Architect(str(repository))
        latest = checkpoints.get_latest()
        assert latest is not None
        git(repository, "switch", "-qc", "later")
        (repository / "code.py").write_text("three")
        git(repository, "commit", "-qam", "three")

        assert checkpoints.rollback(commit=latest.commit_hash)

        assert (repository / "code.py").read_text() == "plan"
        assert git(repository, "branch", "--format=%(refname:short)").split() == ["later", "main"]
        assert git(repository, "log", "--format=%s").split() == ["three", "one"]

    def test_takes_the_repository_where_a_setting_says_so(self, repository, store):
        treesnap.open(repository, store).create()
        treesnap.open(repository, store).config("checkpoints.git", "true", for_root=True)
        checkpoints = Architect(str(repository))
        first = checkpoints.create(1)
        git(repository, "branch", "later")

        assert first is not None
        assert checkpoints.has_changes_since(first.commit_hash)


def test_the_module_of_the_manager_is_a_command(root, session_id):
    words = ["create", "--session-id", session_id, "--description", "Milestone", "--phase", "plan"]
    ran = subprocess.run(
        [sys.executable, "-m", "treesnap.compat.maestro", *words],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, len(ran.stdout.strip())) == (0, 36), ran.stderr
    assert [item.description for item in CheckpointManager().list_checkpoints(session_id)] == [
        "Milestone"
    ]


def test_a_new_store_can_be_validated(root, tmp_path):
    words = ["--json", "session", "validate"]
    ran = subprocess.run(
        [sys.executable, "-m", "treesnap", *words],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )

    found = json.loads(ran.stdout)
    known = CheckpointManager(root).validate_checkpoint_state()
    assert ran.returncode == 0
    assert (found["is_valid"], found["git_status"]) == (known.is_valid, known.git_status)
    assert not (tmp_path / "store").exists()
