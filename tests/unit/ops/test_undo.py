"""Undo and redo over many restores."""

from __future__ import annotations

import pytest

from treesnap.errors import ErrorCode, NotFound
from treesnap.testing.children import in_child
from treesnap.testing.state import tree_state


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


def test_undo_of_a_removed_root_brings_nothing_back_but_the_root(handle, root, states, tmp_path):
    import shutil

    shutil.rmtree(root)
    handle.restore("state 0")

    handle.undo()

    assert list(root.iterdir()) == []
