"""Directories that were moved are found by their files."""

from __future__ import annotations

import shutil

import pytest

from treesnap.core.codec.reader import TreeReader
from treesnap.core.ops.access import opened
from treesnap.core.ops.merge.renames import are_apart, find_moves, moved


@pytest.fixture
def found(handle, root):
    """Returns the moves between the state before and after a change of the root."""

    def found(change) -> dict[bytes, bytes]:
        before = handle.create().snapshot
        change()
        after = handle.create().snapshot
        with opened(handle.context, "compare") as session:
            trees = TreeReader(session.store.get)
            return find_moves(trees, before.record.root, after.record.root, session.path_budget())

    return found


@pytest.fixture
def tree(root):
    for directory in ("a", "a/deep/er", "b"):
        (root / directory).mkdir(parents=True, exist_ok=True)
        for number in range(3):
            (root / directory / f"{number}").write_text(f"{directory} {number}")
    return root


def test_a_renamed_directory_is_one_move(found, tree):
    assert found(lambda: (tree / "a").rename(tree / "c")) == {b"a": b"c"}


def test_a_directory_below_others_is_found_with_what_changed_in_it(found, tree):
    def change():
        (tree / "new" / "place").mkdir(parents=True)
        (tree / "a" / "deep" / "er").rename(tree / "new" / "place" / "er")
        (tree / "new" / "place" / "er" / "0").write_text("changed")
        (tree / "new" / "place" / "er" / "more").write_text("added")

    assert found(change) == {b"a/deep/er": b"new/place/er"}


def test_a_directory_most_of_which_changed_was_not_moved(found, tree):
    def change():
        (tree / "b").rename(tree / "c")
        for number in range(2):
            (tree / "c" / f"{number}").write_text("changed")

    assert found(change) == {}


def test_a_copy_is_no_move_and_neither_is_what_has_no_bytes(found, tree):
    (tree / "empty").mkdir()
    (tree / "empty" / "file").touch()

    def change():
        shutil.copytree(tree / "b", tree / "copy")
        (tree / "empty").rename(tree / "hollow")

    assert found(change) == {}


def test_paths_follow_moves():
    moves = {b"a": b"x/y"}

    assert moved(b"a", moves) == b"x/y"
    assert moved(b"a/b/c", moves) == b"x/y/b/c"
    assert moved(b"ab", moves) == b"ab"
    assert are_apart({b"a": b"b"}, {b"c": b"ab"})
    assert not are_apart({b"a": b"b"}, {b"b/c": b"d"})
