"""The examples of Maestro's documentation, run as they stand there.

Two things are put in: the module's new name, and a UUID for "uuid-string".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import uuid

import pytest

pytestmark = pytest.mark.sampled(10)

SESSION_ID = "0b1c9a57-5d6d-4bb3-9a36-6a2f3d9a6a01"
TIMEOUT_S = 60

IMPORTS = """
    from checkpoint_manager import CheckpointManager, CheckpointPhase, CheckpointType

    manager = CheckpointManager()
    session_id = "uuid-string"
"""
BASIC = """
    # Create checkpoint
    checkpoint = manager.create_checkpoint(
        session_id=session_id,
        description="Planning phase completed",
        phase=CheckpointPhase.PLAN,
        checkpoint_type=CheckpointType.PHASE_COMPLETE,
        commit_first=False,
    )

    print(f"Created checkpoint: {checkpoint.checkpoint_id}")
    print(f"Commit SHA: {checkpoint.commit_sha}")
"""
WITH_STATE = """
    from checkpoint_manager import StateSnapshot

    # Capture session state
    state_snapshot = StateSnapshot(
        tasks_completed=15,
        decisions_made=8,
        files_modified=23,
        files_created=12,
        tests_passing=42,
        tests_failing=0,
    )

    # Create checkpoint with state
    checkpoint = manager.create_checkpoint(
        session_id=session_id,
        description="Implementation milestone",
        phase=CheckpointPhase.IMPLEMENT,
        checkpoint_type=CheckpointType.TASK_GROUP_COMPLETE,
        state_snapshot=state_snapshot,
    )
"""
BEFORE_RISK = """
    # Validate before risky operation
    validation = manager.validate_checkpoint_state()

    if validation.is_valid:
        # Create safety checkpoint
        safety_cp = manager.create_checkpoint(
            session_id=session_id,
            description="Before database migration",
            phase=CheckpointPhase.IMPLEMENT,
            checkpoint_type=CheckpointType.PRE_RISKY_OPERATION,
        )

        try:
            # Perform risky operation
            perform_migration()
        except Exception as e:
            # Rollback to safety point
            manager.rollback_to_checkpoint(session_id, safety_cp.checkpoint_id)
"""
LISTING = """
    # List all checkpoints
    checkpoints = manager.list_checkpoints(session_id)

    for i, cp in enumerate(checkpoints, 1):
        print(f"{i}. {cp.description}")
        print(f"   Phase: {cp.phase.value}")
        print(f"   Type: {cp.checkpoint_type.value}")
        print(f"   Time: {cp.timestamp}")

    # Get summary
    summary = manager.get_checkpoint_summary(session_id)
    print(f"Total: {summary.total_checkpoints}")
    print(f"By type: {summary.checkpoints_by_type}")
"""
ROLLBACK = """
    # Create stable checkpoint
    stable_cp = manager.create_checkpoint(
        session_id=session_id,
        description="Stable state",
        phase=CheckpointPhase.IMPLEMENT,
        checkpoint_type=CheckpointType.SAFE_STATE,
    )

    # Make changes
    make_changes()

    # Something went wrong, rollback
    manager.rollback_to_checkpoint(
        session_id=session_id,
        checkpoint_id=stable_cp.checkpoint_id,
        hard_reset=False,  # Use --mixed to preserve working directory
    )
"""
INTEGRATION = """
    from session_manager import SessionManager
    from checkpoint_manager import CheckpointManager

    session_mgr = SessionManager()
    checkpoint_mgr = CheckpointManager()

    # Create session
    session = session_mgr.create_session("Implement feature")

    # Create checkpoint during implementation
    checkpoint = checkpoint_mgr.create_checkpoint(
        session_id=session.session_id,
        description="Implementation checkpoint",
        phase=CheckpointPhase.IMPLEMENT,
    )

    # Update session statistics
    session_mgr.update_session(
        session.session_id,
        {
            "statistics": {
                "checkpoints_created": 1,
            }
        },
    )
"""
ERRORS = """
    try:
        checkpoint = manager.create_checkpoint(...)
    except ValueError as e:
        # Validation failed
        print(f"Cannot create checkpoint: {e}")
    except FileNotFoundError as e:
        # Session or checkpoint not found
        print(f"Not found: {e}")
    except subprocess.SubprocessError as e:
        # Git command failed
        print(f"Git error: {e}")
"""
CREATE = """
    python checkpoint_manager.py create \\
        --session-id <uuid> \\
        --description "Planning complete" \\
        --phase plan \\
        --checkpoint-type phase_complete
"""
LIST = """
    python checkpoint_manager.py list \\
        --session-id <uuid> \\
        --output pretty
"""
GET = """
    python checkpoint_manager.py get \\
        --session-id <uuid> \\
        --checkpoint-id <checkpoint-uuid>
"""
GO_BACK = """
    python checkpoint_manager.py rollback \\
        --session-id <uuid> \\
        --checkpoint-id <checkpoint-uuid> \\
        --hard-reset
"""
VALIDATE = """
    python checkpoint_manager.py validate
"""


def run(example, names):
    """Runs an example with the names that the ones before left; returns all names."""
    code = textwrap.dedent(example).replace("uuid-string", SESSION_ID)
    code = code.replace("from checkpoint_manager import", "from treesnap.compat.maestro import")
    exec(code, names)
    return names


def type_command(example, checkpoint_id=""):
    """Types an example into a shell; returns what it prints, or fails."""
    command = textwrap.dedent(example).replace("<uuid>", SESSION_ID)
    command = command.replace("<checkpoint-uuid>", checkpoint_id)
    command = command.replace(
        "python checkpoint_manager.py", f"{sys.executable} -m treesnap session"
    )
    result = subprocess.run(
        ["sh", "-ec", command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def names():
    """What stands above every example: the imports, a manager and a session."""
    return run(IMPORTS, {})


def test_basic_checkpoint_creation(names, capsys):
    names["manager"].create_checkpoint(SESSION_ID, "first", names["CheckpointPhase"].PLAN)

    checkpoint = run(BASIC, names)["checkpoint"]

    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"Created checkpoint: {uuid.UUID(checkpoint.checkpoint_id)}",
        f"Commit SHA: {checkpoint.commit_sha}",
    ]
    assert checkpoint.checkpoint_type == "phase_complete"


def test_checkpoint_with_state_snapshot(names):
    made = run(WITH_STATE, names)["checkpoint"]

    found = names["CheckpointManager"]().get_checkpoint(SESSION_ID, made.checkpoint_id)
    assert found.state_snapshot == names["state_snapshot"]
    assert found.state_snapshot.tests_passing == 42


def test_pre_operation_safety_checkpoint(names, root):
    def perform_migration():
        (root / "code.py").write_text("half migrated")
        raise RuntimeError("the migration failed")

    safety = run(BEFORE_RISK, names | {"perform_migration": perform_migration})["safety_cp"]

    manager = names["CheckpointManager"]()
    assert (root / "code.py").read_text() == "half migrated"  # as git reset --mixed leaves it
    assert manager.validate_checkpoint_state().has_uncommitted_changes
    assert manager.get_checkpoint(SESSION_ID, safety.checkpoint_id).rollback_used


def test_listing_checkpoints(names, capsys):
    run(WITH_STATE, names)
    run(BASIC, names)
    capsys.readouterr()

    run(LISTING, names)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1. Planning phase completed"
    assert lines[1:3] == ["   Phase: plan", "   Type: phase_complete"]
    assert lines[4] == "2. Implementation milestone"
    assert lines[8:] == [
        "Total: 2",
        "By type: {'phase_complete': 1, 'task_group_complete': 1}",
    ]


def test_rollback_workflow(names, root):
    def make_changes():
        (root / "code.py").write_text("two")

    stable = run(ROLLBACK, names | {"make_changes": make_changes})["stable_cp"]

    assert (root / "code.py").read_text() == "two"
    assert names["manager"].rollback_to_checkpoint(SESSION_ID, stable.checkpoint_id, True)
    assert (root / "code.py").read_text() == "one"


def test_integration_with_a_session_manager(names, tmp_path, monkeypatch):
    (tmp_path / "session_manager.py").write_text(
        textwrap.dedent(
            f"""
            from types import SimpleNamespace

            class SessionManager:
                updates = []

                def create_session(self, goal):
                    return SimpleNamespace(session_id="{SESSION_ID}", goal=goal)

                def update_session(self, session_id, changes):
                    self.updates.append((session_id, changes))
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)

    names = run(INTEGRATION, names)

    assert names["session_mgr"].updates == [
        (SESSION_ID, {"statistics": {"checkpoints_created": 1}})
    ]
    assert names["checkpoint_mgr"].list_checkpoints(SESSION_ID) == [names["checkpoint"]]
    del sys.modules["session_manager"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('"no-uuid", "x", CheckpointPhase.PLAN', "Cannot create checkpoint: The session id"),
        ("session_id, 'x', None", "Cannot create checkpoint: phase must be"),
        (
            "session_id, 'x', 'no phase'",
            "Cannot create checkpoint: The phase 'no phase' is not one of",
        ),
    ],
)
def test_error_handling_of_what_is_not_valid(names, capsys, arguments, said):
    run(ERRORS.replace("...", arguments), names | {"subprocess": subprocess})

    assert capsys.readouterr().out.startswith(said)


def test_error_handling_of_what_is_not_there(names, root, capsys):
    os.rename(root, root.with_name("elsewhere"))

    run(
        ERRORS.replace("...", "session_id, 'x', CheckpointPhase.PLAN"),
        names | {"subprocess": subprocess},
    )

    assert capsys.readouterr().out.startswith("Not found: There is no directory")


def test_error_handling_of_what_fails(names, tmp_path, capsys):
    (tmp_path / "store").write_text("no store")

    run(
        ERRORS.replace("...", "session_id, 'x', CheckpointPhase.PLAN"),
        names | {"subprocess": subprocess},
    )

    assert capsys.readouterr().out.startswith("Git error: ")


def test_command_line_examples(root):
    created = type_command(CREATE).split()[-1]
    listed = type_command(LIST)
    shown = type_command(GET, created)
    (root / "code.py").write_text("two")
    checked = type_command(VALIDATE)
    type_command(GO_BACK, created)

    assert "1. Planning complete" in listed
    assert f"ID: {created}" in shown
    assert "Uncommitted changes: yes" in checked
    assert (root / "code.py").read_text() == "one"
    counted = json.loads(type_command(LIST.replace("pretty", "json")))["checkpoints"][0]
    assert (counted["rollback_count"], counted["rollback_used"]) == (1, True)
