"""What a program asks that shows a part of a long history: names, pages, changes as they come."""

from __future__ import annotations

import os
import shutil
from itertools import pairwise

import pytest

from state import tree_state
from treesnap.core.model.entries import ChangeKind
from treesnap.core.model.errors import NotFound


@pytest.fixture
def history(handle, root):
    """Ids of four snapshots, the oldest first."""
    ids = [handle.create().id]
    (root / "one").write_bytes(b"other")
    ids.append(handle.create().id)
    (root / "new").mkdir()
    (root / "new/file").write_bytes(b"file")
    ids.append(handle.create().id)
    (root / "one").unlink()
    ids.append(handle.create().id)
    return ids


def test_names_are_all_snapshots_newest_first(handle, history):
    names = handle.snapshot_names()

    assert [name.id for name in names] == history[::-1]
    assert [snapshot.id for snapshot in handle.load(names[1:3])] == history[2:0:-1]


def test_an_absent_store_has_no_names_and_no_mark(handle):
    assert handle.snapshot_names() == ()
    assert handle.history_mark() == ""


def test_what_was_deleted_is_not_loaded(handle, history):
    names = handle.snapshot_names()
    handle.delete(history[1])

    assert [snapshot.id for snapshot in handle.load(names)] == [history[3], history[2], history[0]]


def test_what_is_damaged_is_named(handle, history, store_path):
    names = handle.snapshot_names()
    (path,) = store_path.glob(f"snapshots/*/*-{history[2]}")
    path.write_bytes(b"damage")

    loaded = handle.load(names)

    assert len(loaded) == 3
    assert loaded.damaged == (history[2],)


@pytest.mark.parametrize("change", ["create", "delete"])
def test_the_mark_differs_after_a_change(handle, history, store_path, change):
    (directory,) = store_path.glob("snapshots/*")
    os.utime(directory, ns=(0, 0))  # else both are within one tick of the clock
    mark = handle.history_mark()
    assert handle.history_mark() == mark

    if change == "create":
        handle.create()
    else:
        handle.delete("latest")

    assert handle.history_mark() != mark


def test_each_change_yields_what_diff_returns(handle, history):
    for older, newer in pairwise(history):
        assert tuple(handle.each_change(older, newer)) == handle.diff(older, newer)


def test_each_change_from_nothing_is_all_that_a_snapshot_holds(handle, history):
    found = list(handle.each_change(None, history[0]))

    assert {change.change for change in found} == {ChangeKind.ADDED}
    assert [change.path for change in found] == [b"directory", b"directory/two", b"one"]


def test_each_change_of_some_paths(handle, history):
    (change,) = handle.each_change(history[0], history[3], ["one"])

    assert (change.path, change.change) == (b"one", ChangeKind.REMOVED)


def test_the_history_of_a_path_is_where_it_differs(handle, history):
    found = [(item.snapshot.id, item.change.change) for item in handle.log("one")]

    assert found == [
        (history[3], ChangeKind.REMOVED),
        (history[1], ChangeKind.MODIFIED),
        (history[0], ChangeKind.ADDED),
    ]


def test_the_history_of_a_path_passes_over_snapshots_of_others(handle, history, root):
    (root / "directory/two").write_bytes(b"changed")
    scoped = handle.create(["directory"]).id

    assert [item.snapshot.id for item in handle.log("new/file")] == [history[2]]
    assert next(handle.log("directory/two")).snapshot.id == scoped


@pytest.mark.parametrize("verb", ["undo", "redo"])
def test_a_dry_step_says_what_it_would_do_and_changes_nothing(handle, history, root, verb):
    handle.restore(history[0])
    if verb == "redo":
        handle.undo()
    before, names = tree_state(root), handle.snapshot_names()

    planned = getattr(handle, verb)(dry_run=True)

    assert planned.dry_run
    assert (tree_state(root), handle.snapshot_names()) == (before, names)
    done = getattr(handle, verb)()
    assert (planned.created, planned.deleted) == (done.created, done.deleted)
    assert planned.changes == done.changes


def test_a_dry_step_without_a_restore_is_not_found(handle, history):
    with pytest.raises(NotFound):
        handle.undo(dry_run=True)


def test_a_root_that_is_gone_keeps_its_names(handle, history, root):
    shutil.rmtree(root)

    assert len(handle.snapshot_names()) == 4
