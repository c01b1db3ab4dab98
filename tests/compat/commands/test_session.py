"""snap session: Maestro's commands."""

import json
import uuid

import pytest

SESSION = "0b1c9a57-5d6d-4bb3-9a36-6a2f3d9a6a01"
OTHER = "7d2f8c66-0d0c-4f0e-8d63-6a2f3d9a6a02"


@pytest.fixture
def session(snap, root):
    """Runs a command of the session in the root."""
    (root / "a").write_text("one")

    def run(verb, *words, **options):
        return snap("session", verb, "--session-id", SESSION, *words, **options)

    return run


@pytest.fixture
def checkpoint_id(session):
    """The id of a first checkpoint."""
    made = session("create", "--description", "first", "--phase", "plan")
    return made.out.strip()


def test_create_prints_the_id(session):
    made = session("create", "--description", "first", "--phase", "plan")

    assert made.code == 0
    assert uuid.UUID(made.out.strip())
    assert made.err.splitlines()[-1].startswith("Commit SHA: ")


def test_create_takes_all_that_is_known(session):
    made = session(
        "create",
        *("--description", "x", "--phase", "implement", "--checkpoint-type", "safe_state"),
        *("--state", "tests_passing=4", "--state", "files_created=2", "--json"),
    ).json

    assert made["schema"] == "treesnap.session.create/1"
    assert (made["phase"], made["checkpoint_type"]) == ("implement", "safe_state")
    assert made["state_snapshot"]["tests_passing"] == 4
    assert made["state_snapshot"]["tests_failing"] == 0
    assert made["tags"] == [f"checkpoint-{made['checkpoint_id']}"]


def test_create_marks_what_was_captured(session, checkpoint_id, root):
    words = ("create", "--description", "x", "--phase", "plan", "--no-commit-first")
    marked = session(*words, "--json")
    (root / "a").write_text("two")
    refused = session(*words)

    assert (marked.code, refused.code) == (0, 3)
    assert "commit_message" not in marked.json
    assert "'a'\nhint: capture them" in refused.err


def test_create_refuses_what_cannot_be_read(session, root, ordinary_snap):
    (root / "a").chmod(0)

    words = ("--session-id", SESSION, "--description", "x", "--phase", "plan")
    made = ordinary_snap("session", "create", *words)

    assert (made.code, made.out) == (3, "")
    assert "'a' cannot be read\nhint: make it readable" in made.err
    assert session("summary").code == 5


def test_list_is_for_people_or_in_the_documented_form(session, checkpoint_id):
    pretty = session("list").out.splitlines()
    log = json.loads(session("list", "--output", "json").out)
    ours = session("list", "--json").json

    assert pretty[:2] == ["1. first", f"   ID: {checkpoint_id}"]
    assert log["checkpoints"][0]["checkpoint_id"] == checkpoint_id
    assert ours.pop("schema") == "treesnap.session.list/1"
    assert ours | {"generated_at": log["generated_at"]} == log


def test_list_of_nothing_says_so(session, root):
    (root / ".flow/maestro/sessions" / SESSION).mkdir(parents=True)

    result = session("list", env={"SNAP_STORE": ""})

    assert (result.code, result.out, result.err) == (0, "", "No checkpoints\n")


@pytest.mark.parametrize("verb", ["list", "summary"])
def test_an_unknown_session_is_not_found(session, verb):
    result = session(verb, env={"SNAP_STORE": ""})

    assert (result.code, result.out) == (5, "")
    assert f"There is no session {SESSION}" in result.err


def test_get_shows_one(session, checkpoint_id):
    shown = session("get", "--checkpoint-id", checkpoint_id)
    found = session("get", "--checkpoint-id", checkpoint_id, "--json").json

    assert shown.out.splitlines()[0] == "first"
    assert f"Commit SHA: {found['commit_sha']}" in shown.out.splitlines()


def test_rollback_leaves_the_files(session, checkpoint_id, root):
    (root / "a").write_text("two")

    result = session("rollback", "--checkpoint-id", checkpoint_id)

    assert result.out.endswith("; the files are as they were\n")
    assert (root / "a").read_text() == "two"


def test_rollback_restores_the_files(session, checkpoint_id, root, snap):
    (root / "a").write_text("two")

    result = session("rollback", "--checkpoint-id", checkpoint_id, "--hard-reset")

    assert result.out.endswith(": 1 put back, 0 created, 0 deleted, 0 unchanged\n")
    assert result.err == "To undo this: snap undo\n"
    assert (root / "a").read_text() == "one"
    snap("undo")
    assert (root / "a").read_text() == "two"


def test_rollback_says_what_it_left_alone(session, checkpoint_id, snap, root):
    session("list", "--write-log")
    snap("create")  # which captures the log as well
    marked = session("create", "--description", "x", "--phase", "plan", "--no-commit-first")
    (root / "a").write_text("two")

    result = session("rollback", "--checkpoint-id", marked.out.strip(), "--hard-reset")

    assert result.err.splitlines() == [
        "1 path left alone:",
        f"  .flow/maestro/sessions/{SESSION}/checkpoints.json (excluded)",
        "To undo this: snap undo",
    ]


@pytest.mark.parametrize("hard_reset", [False, True])
def test_rollback_as_json(session, checkpoint_id, root, hard_reset):
    (root / "a").write_text("two")
    session("create", "--description", "second", "--phase", "plan")
    words = ["--hard-reset"] if hard_reset else []

    result = session("rollback", "--checkpoint-id", checkpoint_id, *words, "--json").json

    assert result["checkpoint_id"] == checkpoint_id
    assert result["position"] != result["commit_sha"]
    assert result["hard_reset"] is hard_reset
    assert (result["restore"] is not None) == hard_reset
    found = session("get", "--checkpoint-id", checkpoint_id, "--json").json
    assert (found["rollback_used"], found["rollback_count"]) == (True, 1)


def test_validate_says_what_is_not_captured(snap, checkpoint_id, root):
    clean = snap("session", "validate").out.splitlines()
    (root / "b").write_text("new")
    changed = snap("session", "validate", "--test-command", "echo 2 failed; false")

    assert clean[:2] == ["Valid: yes", "Uncommitted changes: no"]
    assert clean[-1] == "nothing to capture"
    assert changed.code == 0
    assert changed.out.splitlines() == [
        "Valid: yes",
        "Uncommitted changes: yes",
        "Tests passing: no",
        "Warning: The tests fail with exit code 1: 2 failed",
        "Warning: There are uncommitted changes",
        clean[-2],
        "new:        b",
    ]


def test_validate_gives_its_warnings_in_the_form_of_all_warnings(snap, checkpoint_id, root):
    (root / "b").write_text("new")

    document = snap("session", "validate", "--json").json

    assert document["warnings"] == [
        {"code": "validation", "message": "There are uncommitted changes", "hint": None}
    ]


def test_validate_exits_3_when_no_checkpoint_can_be_made(run_snap, tmp_path):
    result = run_snap(
        "session", "validate", "--json", cwd=tmp_path / "home", env={"SNAP_STORE": ""}
    )

    assert (result.code, result.json["is_valid"]) == (3, False)
    shown = run_snap(
        "session", "validate", cwd=tmp_path / "home", env={"SNAP_STORE": ""}
    ).out.splitlines()
    assert shown[0] == "Valid: no"
    assert shown[2].startswith("Error: The root ")


@pytest.mark.parametrize("keep", [False, True])
def test_delete_removes_or_retires(session, checkpoint_id, snap, keep):
    words = ["--keep-tag"] if keep else []
    result = session("delete", "--checkpoint-id", checkpoint_id, *words, "--json").json

    assert result["snapshot_deleted"] is not keep
    if keep:
        assert session("summary", "--json").json["total_checkpoints"] == 0
    else:  # nothing is left that knows of the session
        assert session("summary").code == 5
    assert snap("show", checkpoint_id).code == (0 if keep else 5)
    if keep:
        assert "retired:   yes" in snap("show", checkpoint_id).out
        assert snap("show", checkpoint_id, "--json").json["retired"] is True


def test_delete_prints_the_id(session, checkpoint_id):
    assert session("delete", "--checkpoint-id", checkpoint_id).out == f"{checkpoint_id}\n"


def test_summary_counts(session, checkpoint_id):
    session("create", "--description", "x", "--phase", "plan", "--checkpoint-type", "safe_state")
    session("rollback", "--checkpoint-id", checkpoint_id)

    lines = session("summary").out.splitlines()
    found = session("summary", "--json").json

    assert lines[:4] == ["Total: 2", "  safe_state: 1", "  manual: 1", "Used for rollback: 1"]
    assert lines[4] == f"Latest: {found['latest_checkpoint']}"


@pytest.mark.parametrize("verb", ["create", "list", "rollback", "delete"])
def test_the_log_is_written_on_request(session, checkpoint_id, root, verb):
    words = {
        "create": ("--description", "x", "--phase", "plan"),
        "list": (),
        "rollback": ("--checkpoint-id", checkpoint_id),
        "delete": ("--checkpoint-id", checkpoint_id),
    }[verb]
    path = root / ".flow" / "maestro" / "sessions" / SESSION / "checkpoints.json"
    assert not path.exists()

    assert session(verb, *words, "--write-log").code == 0

    log = json.loads(path.read_bytes())
    assert log["summary"] == session("list", "--json").json["summary"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["get", "--session-id", "../../etc", "--checkpoint-id", OTHER], 2, "is not a UUID"),
        (["get", "--session-id", SESSION, "--checkpoint-id", "x"], 2, "is not a UUID"),
        (["get", "--session-id", SESSION, "--checkpoint-id", OTHER], 5, "has no checkpoint"),
        (["rollback", "--session-id", OTHER, "--checkpoint-id", OTHER], 5, "has no checkpoint"),
        (["list"], 2, "Missing option '--session-id'"),
        (["create", "--session-id", SESSION, "--phase", "plan"], 2, "'--description'"),
        (["create", "--session-id", SESSION, "--description", "x"], 2, "'--phase'"),
        (["list", "--session-id", SESSION, "--output", "xml"], 2, "'xml' is not one of"),
        (["nosuch"], 2, "No such command 'nosuch'"),
    ],
)
def test_wrong_words_are_clear_errors(snap, root, words, code, said):
    snap("create")

    result = snap("session", *words)

    assert (result.code, result.out) == (code, "")
    assert said in result.err


def test_an_unknown_state_is_refused(session):
    result = session("create", "--description", "x", "--phase", "plan", "--state", "mood=1")

    assert result.code == 2
    assert "'mood' is not one of tasks_completed, " in result.err
