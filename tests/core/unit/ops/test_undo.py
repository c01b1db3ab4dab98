"""Undo and redo over many restores."""

from __future__ import annotations

import os
import shutil

import pytest

from prepared import trust_stores
from state import tree_state
from treesnap import CreateOptions
from treesnap.core.model.errors import ErrorCode, NotFound
from treesnap.testing.children import in_child, killed
from treesnap.testing.doubles import kill_at

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def states(handle, root):
    """Five snapshots, named 0 to 4, and what the tree was like."""
    found = []
    for number in range(5):
        (root / "one").write_bytes(b"%d" % number)
        (root / f"file-{number}").write_bytes(b"new")
        handle.create(name=f"state {number}")
        found.append(tree_state(root))
    return found


def test_undo_takes_the_newest_restore_back(handle, root, states):
    handle.restore("state 0")
    restored = tree_state(root)

    handle.undo()

    assert restored == states[0]
    assert tree_state(root) == states[4]


def test_undo_goes_back_over_many_restores_and_redo_forth(handle, root, states):
    visited = [4, 0, 3, 1, 2]
    for number in visited[1:]:
        handle.restore(f"state {number}")

    back = []
    for _ in visited[1:]:
        handle.undo()
        back.append(states.index(tree_state(root)))
    forth = []
    for _ in visited[1:]:
        handle.redo()
        forth.append(states.index(tree_state(root)))

    assert back == visited[-2::-1]
    assert forth == visited[1:]


def test_undo_brings_uncaptured_changes_back(handle, root, states):
    (root / "one").write_bytes(b"never captured by hand")
    before = tree_state(root)
    handle.restore("state 2")

    handle.undo()

    assert tree_state(root) == before


def test_undo_keeps_what_was_changed_after_the_restore_for_redo(handle, root, states):
    handle.restore("state 2")
    (root / "one").write_bytes(b"later")
    later = tree_state(root)

    handle.undo()
    undone = tree_state(root)
    handle.redo()

    assert undone == states[4]
    assert tree_state(root) == later


def test_a_restore_ends_what_could_be_redone(handle, states):
    handle.restore("state 0")
    handle.undo()
    handle.restore("state 1")

    with pytest.raises(NotFound) as caught:
        handle.redo()

    assert caught.value.code == ErrorCode.NOTHING_TO_UNDO


def test_undo_of_some_paths_leaves_the_others_alone(handle, root, states):
    handle.restore("state 0", ["one"])
    (root / "file-3").write_bytes(b"changed since")

    handle.undo()

    assert (root / "one").read_bytes() == b"4"
    assert (root / "file-3").read_bytes() == b"changed since"


def test_restores_of_paths_and_of_all_are_undone_in_turn(handle, root, states):
    handle.restore("state 1", ["one"])
    handle.restore("state 2")
    handle.restore("state 0", ["file-1", "file-2"])

    seen = []
    for _ in range(3):
        handle.undo()
        seen.append(((root / "one").read_bytes(), (root / "file-4").exists()))

    assert seen == [(b"2", False), (b"1", True), (b"4", True)]


def test_without_a_restore_there_is_nothing_to_undo(handle, states):
    for step in (handle.undo, handle.redo):
        with pytest.raises(NotFound) as caught:
            step()
        assert caught.value.code == ErrorCode.NOTHING_TO_UNDO


def test_without_a_store_there_is_nothing_to_undo(handle):
    with pytest.raises(NotFound):
        handle.undo()


def test_a_restore_that_changes_nothing_is_no_step(handle, root, states):
    handle.restore("state 0")
    handle.restore("state 0")

    handle.undo()

    assert tree_state(root) == states[4]


def test_another_process_undoes(handle, make_handle, root, states):
    in_child(lambda: make_handle().restore("state 0"))

    handle.undo()

    assert tree_state(root) == states[4]


def test_a_damaged_history_counts_as_none(handle, states, store_path):
    handle.restore("state 0")
    (path,) = (store_path / "roots").glob("*/history")
    path.write_bytes(b"damaged")

    with pytest.raises(NotFound):
        handle.undo()
    handle.restore("state 1")
    handle.undo()


class TestOfARootThatWasRemoved:
    @pytest.fixture
    def restored(self, handle, root, states):
        """The state after a restore of a root that was not there."""
        shutil.rmtree(root)
        handle.restore("state 0")
        assert tree_state(root) == states[0]
        return states[0]

    def test_undo_removes_it_again(self, handle, root, restored):
        handle.undo()

        assert not root.exists()

    def test_redo_brings_it_back_and_undo_removes_it_once_more(self, handle, root, restored):
        for _ in range(2):
            handle.undo()
            assert not root.exists()
            handle.redo()
            assert tree_state(root) == restored

    def test_undo_removes_one_that_was_emptied_by_hand(self, handle, root, restored):
        for path in root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

        handle.undo()

        assert not root.exists()

    def test_undo_leaves_what_was_never_captured(self, handle, root, restored):
        handle.create(options=CreateOptions(exclude=("*.tmp",)))
        (root / ".snapignore").write_text("*.tmp\n.snapignore\n")
        (root / "mine.tmp").write_bytes(b"never captured")

        handle.undo()

        assert sorted(os.listdir(root)) == [".snapignore", "mine.tmp"]

    def test_undo_of_a_restore_of_an_empty_root_leaves_it(self, handle, root, states):
        for path in root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        handle.restore("state 0")

        handle.undo()

        assert os.listdir(root) == []

    def test_undo_that_is_killed_anywhere_leaves_it_whole_or_not_at_all(
        self, make_handle, root, restored, store_path, tmp_path
    ):
        for name in ("root", "store"):
            shutil.copytree(tmp_path / name, tmp_path / f"{name}-before", symlinks=True)
        found = []
        number = 0
        was_killed = True
        while was_killed:
            number += 3
            shutil.rmtree(root, ignore_errors=True)
            shutil.rmtree(store_path)
            shutil.copytree(tmp_path / "root-before", root, symlinks=True)
            shutil.copytree(tmp_path / "store-before", store_path, symlinks=True)
            trust_stores(store_path)
            ended = killed(lambda fs: make_handle(fs=fs).undo(), kill_at(number))
            assert ended.error is None, ended.error
            was_killed = ended.was_killed

            make_handle().recover()

            found.append(root.exists())
            assert not root.exists() or tree_state(root) == restored
            assert not list(store_path.glob("roots/*/journal"))
        assert found == sorted(found, reverse=True)
        assert {True, False} == set(found)
