"""What Maestro's checkpoint manager keeps: lists, ways back, and where the session stands."""

from __future__ import annotations

import json
import subprocess
import uuid

import pytest

import treesnap
from state import tree_state
from treesnap.compat.maestro import (
    CheckpointManager,
    CheckpointPhase,
    CheckpointType,
    StateSnapshot,
)
from treesnap.core.model.reserved_tags import is_retired
from treesnap.core.ops.access import locked_root, opened
from treesnap.testing.children import in_child

PLAN = CheckpointPhase.PLAN


def differing() -> list[str]:
    """Returns the paths that a new process sees as not captured."""
    lines = CheckpointManager().validate_checkpoint_state().git_status.splitlines()[1:]
    return [line.split()[1] for line in lines if line != "nothing to capture"]


class TestHardReset:
    def test_makes_the_files_as_they_were_and_nothing_is_unsaved(
        self, root, make, manager, session_id
    ):
        first = make("a")
        state = tree_state(root)
        make("b")
        (root / "litter").write_text("of a step that failed")

        assert manager.rollback_to_checkpoint(session_id, first.checkpoint_id, hard_reset=True)

        assert tree_state(root) == state
        assert differing() == []

    def test_leaves_alone_what_the_settings_exclude_since(self, root, make, manager, session_id):
        first = make("a")
        treesnap.open(root).config("exclude", "*.bin")
        (root / "model.bin").write_text("excluded")

        manager.rollback_to_checkpoint(session_id, first.checkpoint_id, hard_reset=True)

        assert (root / "model.bin").read_text() == "excluded"

    def test_can_be_undone(self, root, make, manager, session_id):
        first = make("a")
        (root / "code.py").write_text("never captured")
        before = tree_state(root)
        manager.rollback_to_checkpoint(session_id, first.checkpoint_id, hard_reset=True)

        manager.handle.undo()

        assert tree_state(root) == before
        assert differing() == ["code.py"]

    def test_tells_of_every_rollback_in_another_process(self, make, manager, session_id):
        first = make("a")
        make("b")
        for hard_reset in (True, False, True):
            manager.rollback_to_checkpoint(session_id, first.checkpoint_id, hard_reset)

        def look():
            newer, older = CheckpointManager().list_checkpoints(session_id)
            assert (older.rollback_used, older.rollback_count) == (True, 3)
            assert (newer.rollback_used, newer.rollback_count) == (False, 0)

        assert in_child(look).error is None

    def test_leaves_the_list_alone(self, make, manager, session_id):
        made = [make(text) for text in "abc"]

        manager.rollback_to_checkpoint(session_id, made[0].checkpoint_id, hard_reset=True)

        listed = manager.list_checkpoints(session_id)
        assert [item.checkpoint_id for item in listed] == [
            item.checkpoint_id for item in made[::-1]
        ]
        assert manager.get_checkpoint_summary(session_id).latest_checkpoint == made[2].commit_sha

    def test_lets_the_state_be_marked(self, make, manager, session_id):
        first = make("a")
        make("b")
        manager.rollback_to_checkpoint(session_id, first.checkpoint_id, hard_reset=True)

        marked = manager.create_checkpoint(session_id, "x", PLAN, commit_first=False)

        handle = manager.handle
        assert handle.diff(first.commit_sha, marked.commit_sha) == ()


class TestMixedReset:
    @pytest.fixture
    def first(self, make, manager, session_id):
        """A checkpoint that was gone back to from a later one, without the files."""
        first = make("a")
        make("b")
        manager.rollback_to_checkpoint(session_id, first.checkpoint_id)
        return first

    def test_touches_no_file(self, root, make, manager, session_id):
        first = make("a")
        make("b")
        before = tree_state(root)

        assert manager.rollback_to_checkpoint(session_id, first.checkpoint_id)

        assert tree_state(root) == before

    def test_makes_the_difference_unsaved(self, first):
        assert in_child(lambda: check_differing(["code.py"])).error is None

    def test_holds_also_for_snap_status(self, first, manager):
        assert [change.path for change in manager.handle.status().changes] == [b"code.py"]

    def test_then_refuses_to_mark(self, first, manager, session_id):
        with pytest.raises(ValueError, match=r"code\.py"):
            manager.create_checkpoint(session_id, "x", PLAN, commit_first=False)

    def test_then_the_next_checkpoint_takes_the_files_as_they_are(
        self, first, root, manager, session_id
    ):
        made = manager.create_checkpoint(session_id, "next", PLAN)

        assert differing() == []
        (root / "code.py").write_text("z")
        manager.rollback_to_checkpoint(session_id, made.checkpoint_id, hard_reset=True)
        assert (root / "code.py").read_text() == "b"

    def test_then_the_files_may_follow(self, first, root, manager, session_id):
        manager.rollback_to_checkpoint(session_id, first.checkpoint_id, hard_reset=True)

        assert (root / "code.py").read_text() == "a"
        assert differing() == []

    def test_is_undone_by_one_to_where_it_came_from(self, first, manager, session_id):
        newest = manager.list_checkpoints(session_id)[0]

        manager.rollback_to_checkpoint(session_id, newest.checkpoint_id)

        assert differing() == []

    def test_leaves_list_and_summary_alone(self, first, manager, session_id):
        listed = manager.list_checkpoints(session_id)

        assert [item.description for item in listed] == ["b", "a"]
        summary = manager.get_checkpoint_summary(session_id)
        assert summary.total_checkpoints == 2
        assert summary.latest_checkpoint == listed[0].commit_sha

    def test_outlives_the_checkpoint_that_was_gone_back_to(self, first, manager, session_id):
        manager.delete_checkpoint(session_id, first.checkpoint_id)
        manager.handle.gc()

        assert differing() == ["code.py"]
        assert manager.handle.verify(read_data=True).ok

    def test_to_where_the_root_stands_already_changes_nothing(self, make, manager, session_id):
        made = make("a")
        before = manager.handle.list()

        manager.rollback_to_checkpoint(session_id, made.checkpoint_id)

        assert [item.id for item in manager.handle.list()] == [item.id for item in before]


def check_differing(paths):
    """Fails unless these paths are not captured."""
    assert differing() == paths


class TestDelete:
    def test_removes_the_snapshot(self, make, manager, session_id):
        made, other = make("a"), make("b")

        assert manager.delete_checkpoint(session_id, made.checkpoint_id)

        assert manager.list_checkpoints(session_id) == [other]
        with pytest.raises(treesnap.NotFound):
            manager.handle.resolve(made.commit_sha)

    def test_may_keep_the_snapshot_and_its_tag(self, root, make, manager, session_id):
        made = make("a")
        make("b")

        assert manager.delete_checkpoint(session_id, made.checkpoint_id, delete_tag=False)

        assert [item.description for item in manager.list_checkpoints(session_id)] == ["b"]
        assert manager.get_checkpoint_summary(session_id).total_checkpoints == 1
        with pytest.raises(FileNotFoundError):
            manager.get_checkpoint(session_id, made.checkpoint_id)
        (kept,) = manager.handle.list(tag=made.tags[0])
        assert (kept.id, is_retired(kept)) == (made.commit_sha, True)
        manager.handle.restore(made.checkpoint_id)
        assert (root / "code.py").read_text() == "a"


class TestList:
    def test_has_no_snapshot_that_only_looks_like_a_checkpoint(self, make, manager, session_id):
        made, alike = make("a"), str(uuid.uuid4())
        facts = {"phase": "plan", "type": "manual", "source_tool": "maestro"}
        tags = {f"checkpoint-{alike}": "", **facts}
        manager.handle.create(name=alike, session=session_id, tags=tags)

        assert manager.list_checkpoints(session_id) == [made]

    def test_has_the_newest_first_and_only_this_session(self, make, manager, session_id):
        made = [make(text) for text in "abc"]
        manager.create_checkpoint(str(uuid.uuid4()), "another session", PLAN)

        assert CheckpointManager().list_checkpoints(session_id) == made[::-1]

    def test_is_empty_for_a_session_without_checkpoints(self, root, manager, session_id):
        (root / ".flow/maestro/sessions" / session_id).mkdir(parents=True)

        assert manager.list_checkpoints(session_id) == []
        assert (
            CheckpointManager(session_id=str(uuid.UUID(int=7))).list_checkpoints(
                str(uuid.UUID(int=7))
            )
            == []
        )

    def test_of_an_unknown_session_is_not_found(self, make, manager, session_id):
        make("of another session")
        unknown = str(uuid.uuid4())

        for method in ("list_checkpoints", "get_checkpoint_summary", "checkpoint_log"):
            with pytest.raises(FileNotFoundError, match=f"There is no session {unknown}"):
                getattr(manager, method)(unknown)

    def test_leaves_out_what_is_no_checkpoint(self, root, make, manager, session_id):
        made = make("two")
        handle = treesnap.open(root)
        handle.create(session=session_id, name=str(uuid.uuid4()))
        handle.create(session=session_id, name="x", tags={"checkpoint-x": ""})

        assert manager.list_checkpoints(session_id) == [made]


class TestGet:
    def test_finds_it_in_another_process(self, make, session_id):
        made = make("two", state_snapshot=StateSnapshot())

        def look():
            assert CheckpointManager().get_checkpoint(session_id, made.checkpoint_id) == made

        assert in_child(look).error is None

    def test_takes_capital_letters(self, make, manager, session_id):
        made = make("two")

        assert manager.get_checkpoint(session_id.upper(), made.checkpoint_id.upper()) == made

    @pytest.mark.parametrize("method", ["get", "rollback_to", "delete"])
    def test_of_what_is_not_there_is_file_not_found(self, make, manager, session_id, method):
        made = make("two")
        call = getattr(manager, f"{method}_checkpoint")

        for ids in [(session_id, str(uuid.uuid4())), (str(uuid.uuid4()), made.checkpoint_id)]:
            with pytest.raises(FileNotFoundError, match="has no checkpoint") as caught:
                call(*ids)
            assert isinstance(caught.value, treesnap.NotFound)


BAD_IDS = [
    "",
    "uuid-string",
    "../../etc",
    "0b1c9a57-5d6d-4bb3-9a36-6a2f3d9a6a0",
    "{0b1c9a57-5d6d-4bb3-9a36-6a2f3d9a6a01}",
    "0b1c9a575d6d4bb39a366a2f3d9a6a01",
    "0b1c9a57-5d6d-4bb3-9a36-6a2f3d9a6a01/..",
]


@pytest.mark.parametrize("bad", BAD_IDS)
def test_ids_have_to_be_uuids(root, manager, session_id, bad):
    calls = [
        lambda: CheckpointManager(session_id=bad),
        lambda: manager.create_checkpoint(bad, "x", PLAN),
        lambda: manager.list_checkpoints(bad),
        lambda: manager.get_checkpoint_summary(bad),
        lambda: manager.write_log(bad),
        lambda: manager.get_checkpoint(bad, session_id),
        lambda: manager.get_checkpoint(session_id, bad),
        lambda: manager.rollback_to_checkpoint(session_id, bad),
        lambda: manager.delete_checkpoint(session_id, bad),
    ]
    before = tree_state(root)

    for call in calls:
        with pytest.raises(ValueError, match="is not a UUID"):
            call()

    assert tree_state(root) == before


@pytest.mark.parametrize("bad", [None, 7, b"0b1c9a57-5d6d-4bb3-9a36-6a2f3d9a6a01", ["x"]])
def test_ids_have_to_be_text_or_uuids(manager, session_id, bad):
    calls = [
        ("session_id", lambda: manager.create_checkpoint(bad, "x", PLAN)),
        ("session_id", lambda: manager.list_checkpoints(bad)),
        ("session_id", lambda: manager.get_checkpoint_summary(bad)),
        ("session_id", lambda: manager.write_log(bad)),
        ("session_id", lambda: manager.get_checkpoint(bad, session_id)),
        ("checkpoint_id", lambda: manager.get_checkpoint(session_id, bad)),
        ("checkpoint_id", lambda: manager.rollback_to_checkpoint(session_id, bad)),
        ("checkpoint_id", lambda: manager.delete_checkpoint(session_id, bad)),
    ]
    for name, call in calls:
        with pytest.raises(ValueError, match=f"^{name} must be text or a UUID, not "):
            call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"description": None}, "description must be text, not None"),
        ({"description": 1}, "description must be text, not the number 1"),
        ({"phase": None}, "phase must be a CheckpointPhase or text, not None"),
        ({"phase": "lunch"}, "The phase 'lunch' is not one of plan, generate_tasks, "),
        ({"checkpoint_type": "nice"}, "The checkpoint type 'nice' is not one of phase_complete, "),
        ({"checkpoint_type": 1}, "checkpoint_type must be a CheckpointType or text, not the "),
        ({"state_snapshot": {"tests_passing": 1}}, "state_snapshot must be a StateSnapshot or "),
        ({"state_snapshot": StateSnapshot(tests_passing=True)}, "tests_passing must be a whole "),
        ({"state_snapshot": StateSnapshot(tests_passing="1")}, "tests_passing must be a whole "),
        ({"state_snapshot": StateSnapshot(tests_failing=None)}, "tests_failing must be a whole "),
        ({"commit_first": "no"}, "commit_first must be True or False, not the text 'no'"),
    ],
)
def test_wrong_types_are_one_clear_error(root, manager, session_id, arguments, message):
    valid = {"session_id": session_id, "description": "x", "phase": PLAN}

    with pytest.raises(treesnap.InvalidArgument) as caught:
        manager.create_checkpoint(**valid | arguments)

    assert isinstance(caught.value, ValueError)
    assert caught.value.message.startswith(message)
    assert treesnap.open(root).list() == ()


@pytest.mark.parametrize("command", ["", "  "])
def test_an_empty_test_command_never_says_that_tests_pass(root, command):
    with pytest.raises(treesnap.InvalidArgument, match="test command is empty"):
        CheckpointManager(root, test_command=command)


@pytest.mark.parametrize(
    "arguments",
    [{"repo_root": 7}, {"session_id": 7}, {"store": 7}, {"test_command": 7}, {"keep_log": "no"}],
)
def test_a_manager_of_wrong_types_is_not_made(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"^{name} must be "):
        CheckpointManager(**arguments)


def test_ids_may_be_uuid_objects(root, make, session_id):
    session = uuid.UUID(session_id)
    manager = CheckpointManager(session_id=session)
    assert manager.session_id == session_id
    made = manager.create_checkpoint(session, "x", PLAN)
    checkpoint = uuid.UUID(made.checkpoint_id)
    (root / "code.py").write_text("two")

    assert manager.list_checkpoints(session) == [made]
    assert manager.get_checkpoint(session, checkpoint) == made
    assert manager.get_checkpoint_summary(session).total_checkpoints == 1
    assert session_id in manager.write_log(session)
    assert manager.rollback_to_checkpoint(session, checkpoint, hard_reset=True)
    assert manager.delete_checkpoint(session, checkpoint)
    assert (root / "code.py").read_text() == "one"


class TestErrors:
    def test_that_git_would_have_had_are_subprocess_errors(self, tmp_path, manager, session_id):
        (tmp_path / "store").write_text("no store")

        with pytest.raises(subprocess.SubprocessError) as caught:
            manager.create_checkpoint(session_id, "x", PLAN)

        assert isinstance(caught.value, treesnap.TreesnapError)
        assert caught.value.__cause__ is not None

    def test_of_pins_are_value_errors(self, make, manager, session_id):
        made = make("two")
        manager.handle.pin(made.commit_sha)

        with pytest.raises(ValueError, match="is pinned") as caught:
            manager.delete_checkpoint(session_id, made.checkpoint_id)

        assert caught.value.code == treesnap.ErrorCode.PINNED

    def test_of_conflicts_are_subprocess_errors(self, root, make, manager, session_id):
        (root / ".snapignore").write_text("*.log")
        (root / "place").write_text("a file")
        made = make("two")
        (root / "place").unlink()
        (root / "place").mkdir()
        (root / "place" / "kept.log").touch()

        with pytest.raises(subprocess.SubprocessError, match="holds paths that no snapshot has"):
            manager.rollback_to_checkpoint(session_id, made.checkpoint_id, True)

        assert not manager.get_checkpoint(session_id, made.checkpoint_id).rollback_used

    def test_of_a_busy_root_are_subprocess_errors(self, root, make, session_id):
        make("two")
        handle = treesnap.open(root, wait_s=0.0)

        with (
            opened(handle.context, "hold the root") as pair,
            locked_root(pair, "holding it"),
            pytest.raises(subprocess.SubprocessError, match="holding it") as caught,
        ):
            CheckpointManager(handle=handle).create_checkpoint(session_id, "x", PLAN)

        assert caught.value.code == treesnap.ErrorCode.BUSY


def test_summary_counts(make, manager, session_id):
    made = [
        make("a"),
        make("b", checkpoint_type=CheckpointType.SAFE_STATE),
        make("c", checkpoint_type=CheckpointType.SAFE_STATE),
    ]
    manager.rollback_to_checkpoint(session_id, made[0].checkpoint_id)
    manager.rollback_to_checkpoint(session_id, made[0].checkpoint_id)

    found = CheckpointManager().get_checkpoint_summary(session_id)

    assert (found.total_checkpoints, found.checkpoints_used_for_rollback) == (3, 1)
    assert found.checkpoints_by_type == {"manual": 1, "safe_state": 2}
    assert found.latest_checkpoint == made[2].commit_sha


def test_summary_of_nothing(session_id):
    manager = CheckpointManager(session_id=session_id)

    found = manager.get_checkpoint_summary(session_id)

    assert json.dumps(vars(found)) == (
        '{"total_checkpoints": 0, "checkpoints_by_type": {}, '
        '"checkpoints_used_for_rollback": 0, "latest_checkpoint": null}'
    )
