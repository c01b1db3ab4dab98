"""What a revert undoes, and what it leaves alone."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from state import tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import InvalidArgument, MergeConflict, NotFound, StorageFull
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import fact_tags
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.core.ops.create import create
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultyFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
)

LONG_AGO_NS = 10**18
TEXT = "".join(f"line {number}\n" for number in range(9))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def handle(root: Path, tmp_path: Path) -> Handle:
    return Handle(context_at(root, str(tmp_path / "store"), fs=UnsyncedFileSystem()))


def files(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()
    }


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def after_restore(handle: Handle, root: Path) -> Snapshot:
    """Makes snapshots of a change, and of another one after the first was undone by a restore."""
    (root / "a").write_text("old")
    first = handle.create().snapshot
    (root / "a").write_text("not wanted")
    handle.create()
    handle.restore(first.id)
    (root / "b").write_text("b")
    handle.create()
    return first


class TestWhatAReferenceStandsFor:
    def test_a_snapshot_after_a_restore_stands_for_what_came_after_the_restore(self, handle, root):
        after_restore(handle, root)

        handle.revert("latest")

        assert files(root) == {"a": "old"}

    def test_a_state_that_was_restored_and_deleted_is_not_guessed(self, handle, root):
        first = after_restore(handle, root)
        handle.delete(first.id)

        with pytest.raises(NotFound, match=f"{first.id[:12]}, which was restored"):
            handle.revert("latest")

    def test_a_snapshot_before_a_command_stands_for_what_the_command_did(self, handle, root):
        (root / "a").write_text("a")
        handle.create()
        (root / "b").write_text("b")
        handle.run(["sh", "-c", "echo c > c"])
        handle.create()
        (root / "d").write_text("d")

        handle.revert("newest~1")

        assert {*files(root)} == {"a", "b", "d"}

    @pytest.mark.parametrize(("phase", "undone"), [("pre", "after"), ("post", "before")])
    def test_a_step_of_an_agent_stands_for_what_the_tool_did(self, handle, root, phase, undone):
        (root / "a").write_text("a")
        handle.create()
        (root / "before").touch()
        tags = fact_tags(host="claude", phase=phase)
        request = CaptureRequest(kind=SnapshotKind.AUTOMATIC, session="s", step=1, tags=tags)
        create(handle.context, request)
        (root / "after").touch()

        handle.revert("step:1", session="s")

        assert {"before", "after"} - {*files(root)} == {undone}

    def test_a_numbered_step_of_a_session_stands_for_what_came_after_it(self, handle, root):
        (root / "a").write_text("a")
        for step in (1, 2, 3):
            handle.create(session="s", step=step)
            (root / f"by {step}").touch()
        handle.create(label="end")

        handle.revert("step:2", session="s")

        assert {*files(root)} == {"a", "by 1", "by 3"}

    @pytest.mark.parametrize(
        ("kind", "name", "undone"),
        [("pre_risky_operation", "tune", "after"), ("safe_state", "tune", "before")],
    )
    def test_a_step_of_a_plan_stands_for_what_the_step_did(self, handle, root, kind, name, undone):
        (root / "a").write_text("a")
        handle.create()
        (root / "before").touch()
        tags = fact_tags(type=kind, step_name=name)
        request = CaptureRequest(kind=SnapshotKind.PLAN, session="p", step=1, tags=tags)
        create(handle.context, request)
        (root / "after").touch()

        handle.revert("step:1", session="p")

        assert {"before", "after"} - {*files(root)} == {undone}

    def test_the_first_snapshot_has_nothing_before_it(self, handle, root):
        (root / "a").write_text("a")
        first = handle.create()

        with pytest.raises(NotFound, match="no snapshot before"):
            handle.revert(first.id)

    def test_a_range_the_other_way_round_makes_a_change_again(self, handle, root):
        (root / "a").write_text(TEXT)
        first = handle.create()
        edit(root / "a", "line 2", "changed")
        second = handle.create()
        handle.restore(first.id)
        edit(root / "a", "line 7", "since")

        handle.revert(f"{second.id}..{first.id}")

        expected = TEXT.replace("line 2", "changed").replace("line 7", "since")
        assert files(root) == {"a": expected}

    def test_a_range_from_a_snapshot_to_itself_changes_nothing(self, handle, root):
        (root / "a").write_text("a")
        handle.create()

        result = handle.revert("latest..latest")

        assert (result.changes, result.safety_id) == ((), None)
        assert result.snapshot == handle.resolve("latest")
        assert len(handle.list()) == 1

    @pytest.mark.parametrize("ref", ["..latest", "latest..missing", "missing", "a...b"])
    def test_a_range_of_what_is_not_there_is_refused(self, handle, root, ref):
        (root / "a").write_text("a")
        handle.create()
        (root / "a").write_text("b")

        with pytest.raises((NotFound, InvalidArgument)):
            handle.revert(ref)

        assert len(handle.list()) == 1

    def test_three_dots_are_named_as_such(self, handle, root):
        (root / "a").write_text("a")
        handle.create()

        with pytest.raises(InvalidArgument, match="three dots"):
            handle.revert("latest...latest")

    def test_a_rule_that_does_not_exist_is_refused_before_anything_is_captured(self, handle, root):
        (root / "a").write_text("a")
        handle.create()
        (root / "a").write_text("b")

        with pytest.raises(InvalidArgument, match="'refuse', 'mine', 'theirs', 'markers'"):
            handle.revert("latest", conflicts="ours")

        assert len(handle.list()) == 1

    def test_snapshots_of_some_paths_stand_for_these(self, handle, root):
        for name in ("a", "b"):
            (root / name).write_text("1")
        handle.create(["a"])
        for name in ("a", "b"):
            (root / name).write_text("2")
        handle.create(["a"])

        handle.revert("newest")

        assert files(root) == {"a": "1", "b": "2"}

    def test_a_path_that_a_snapshot_does_not_hold_is_refused(self, handle, root):
        for name in ("a", "b"):
            (root / name).write_text("1")
        one = handle.create(["a"]).id
        (root / "a").write_text("2")
        other = handle.create(["a"]).id

        with pytest.raises((InvalidArgument, NotFound)):
            handle.revert(f"{one}..{other}", ["b"])

    def test_a_path_that_never_was_is_refused(self, handle, root):
        (root / "a").write_text("1")
        handle.create()
        (root / "a").write_text("2")
        handle.create()

        with pytest.raises(NotFound, match="'typo'"):
            handle.revert("latest", ["typo"])


def test_a_revert_that_fails_leaves_the_newest_snapshot_what_it_was(handle, root):
    (root / "a").write_text("old")
    handle.create()
    (root / "a").write_text("new")
    newest = handle.create()
    full = Fault(methods=frozenset({"sync_file_system"}), errno=errno.ENOSPC, lasting=True)
    fs = FaultyFileSystem(full, inner=UnsyncedFileSystem())
    failing = Handle(context_at(root, handle.store_path, fs=fs))

    with pytest.raises(StorageFull):
        failing.revert("latest")

    assert files(root) == {"a": "new"}
    assert handle.resolve("latest").id == newest.id
    handle.revert("latest")
    assert files(root) == {"a": "old"}


class TestDirectoriesThatOneSideRemoved:
    def test_what_was_added_to_one_since_stays(self, handle, root):
        (root / "a").write_text("a")
        handle.create()
        (root / "d").mkdir()
        (root / "d" / "bad").write_text("bad")
        handle.create()
        (root / "d" / "good").write_text("good")

        result = handle.revert("latest")

        assert files(root) == {"a": "a", "d/good": "good"}
        assert result.conflicts == ()

    def test_a_file_in_one_that_changed_since_is_the_conflict(self, handle, root):
        (root / "a").write_text("a")
        handle.create()
        (root / "d").mkdir()
        for name in ("changed", "other"):
            (root / "d" / name).write_text("1")
        handle.create()
        (root / "d" / "changed").write_text("2")

        with pytest.raises(MergeConflict) as caught:
            handle.revert("latest")

        assert caught.value.paths == (b"d/changed",)

    @pytest.mark.parametrize("conflicts", ["mine", "theirs"])
    def test_one_that_is_empty_now_is_removed_unless_its_mode_changed(
        self, handle, root, conflicts
    ):
        handle.create()
        for name in ("d", "e"):
            (root / name).mkdir()
            (root / name / "a").touch()
        handle.create()
        (root / "e").chmod(0o700)

        result = handle.revert("latest", conflicts=conflicts)

        assert result.conflicts == (b"e",)
        assert [*files(root), *os.listdir(root)] == ([] if conflicts == "theirs" else ["e"])

    def test_a_file_comes_back_with_the_directories_above_it(self, handle, root):
        (root / "d" / "e").mkdir(parents=True)
        for name in ("a", "b"):
            (root / "d" / "e" / name).write_text(name)
        (root / "d").chmod(0o750)
        handle.create()
        shutil.rmtree(root / "d")
        handle.create()

        handle.revert("latest", ["d/e/a"])

        assert files(root) == {"d/e/a": "a"}
        assert (root / "d").stat().st_mode & 0o777 == 0o750

    def test_a_path_below_what_is_a_file_now_is_a_conflict(self, handle, root):
        (root / "d").mkdir()
        (root / "d" / "a").write_text("a")
        handle.create()
        (root / "d" / "a").unlink()
        handle.create()
        (root / "d").rmdir()
        (root / "d").write_text("file")

        with pytest.raises(MergeConflict) as caught:
            handle.revert("latest", ["d/a"])

        assert caught.value.paths == (b"d",)

    def test_a_path_below_what_was_a_file_then_is_removed(self, handle, root):
        (root / "d").write_text("file")
        handle.create()
        (root / "d").unlink()
        (root / "d").mkdir()
        for name in ("a", "b"):
            (root / "d" / name).write_text(name)
        handle.create()

        handle.revert("latest", ["d/a"])

        assert files(root) == {"d/b": "b"}

    def test_of_one_that_was_added_a_path_alone_is_removed(self, handle, root):
        handle.create()
        (root / "d").mkdir()
        for name in ("a", "b"):
            (root / "d" / name).write_text(name)
        handle.create()

        handle.revert("latest", ["d/a"])

        assert files(root) == {"d/b": "b"}


class TestMetadata:
    def test_a_conflict_that_stays_stays_as_it_is(self, handle, root):
        (root / "a").write_text("a")
        os.utime(root / "a", ns=(LONG_AGO_NS, LONG_AGO_NS))
        (root / "a").chmod(0o600)
        handle.create()
        (root / "a").chmod(0o640)
        os.utime(root / "a", ns=(0, 0))
        handle.create()
        (root / "a").chmod(0o644)
        before = tree_state(root)

        handle.revert("latest", conflicts="mine")

        assert tree_state(root)[b"a"] == before[b"a"]

    def test_times_in_a_repository_that_was_only_touched_come_back(self, handle, root):
        (root / ".git").mkdir()
        (root / ".git" / "HEAD").write_text("1")
        first = handle.create()
        before = tree_state(root)
        os.utime(root / ".git" / "HEAD", ns=(0, 0))
        handle.create()

        handle.revert(f"{first.id}..latest")

        assert tree_state(root) == before

    def test_a_path_in_a_repository_can_be_reverted_alone(self, handle, root):
        (root / ".git").mkdir()
        for name in ("a", "b"):
            (root / ".git" / name).write_text("1")
        handle.create()
        for name in ("a", "b"):
            (root / ".git" / name).write_text("2")
        handle.create()

        handle.revert("latest", [".git/a"])

        assert files(root) == {".git/a": "1", ".git/b": "2"}

    def test_hard_links_outside_of_the_paths_stay(self, handle, root):
        for name in ("a", "b", "c"):
            (root / name).write_text(name)
        handle.create()
        (root / "b").unlink()
        os.link(root / "a", root / "b")
        (root / "c").write_text("changed")
        handle.create()

        handle.revert("latest", ["c"])

        assert os.path.samefile(root / "a", root / "b")
        assert (root / "c").read_text() == "c"

    def test_names_of_one_file_are_taken_from_both_sides(self, handle, root):
        (root / "a").write_text("a")
        os.link(root / "a", root / "undone")
        os.link(root / "a", root / "kept")
        first = handle.create()
        (root / "undone").unlink()
        handle.create()
        os.link(root / "a", root / "since")

        handle.revert(f"{first.id}..latest")

        assert {(root / name).stat().st_ino for name in ("undone", "kept", "since")} == {
            (root / "a").stat().st_ino
        }


class Interrupted(WrappedFileSystem):
    """Lets another process work just before a root is locked, once."""

    def __init__(self) -> None:
        super().__init__(UnsyncedFileSystem())
        self.other = None

    def around(self, call: Call):
        other = self.other
        if other is not None and call.method == "lock" and "/roots/" in call.path:
            self.other = None
            other()
        return call.proceed()


def test_a_revert_takes_out_what_was_newest_when_it_began(tmp_path):
    root, store = tmp_path / "root", str(tmp_path / "store")
    root.mkdir()
    (root / "file").write_text("first")
    other = Handle(context_at(root=root, store_path=store, fs=UnsyncedFileSystem()))
    other.create()
    (root / "wrong").write_text("wrong")
    wrong = other.create().id

    def make_another():
        (root / "right").write_text("right")
        other.create()

    fs = Interrupted()
    handle = Handle(context_at(root=root, store_path=store, fs=fs))
    fs.other = make_another
    result = handle.revert("latest")

    assert fs.other is None
    assert sorted(os.listdir(root)) == ["file", "right"]
    assert wrong[:12] in result.snapshot.label
