"""``diff_root`` and ``snap diff DIR``: what a fork has that its origin does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treesnap.core.handle import Handle
from treesnap.core.model.entries import ChangeKind
from treesnap.core.model.errors import ErrorCode, NotFound
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import RecordingFileSystem, UnsyncedFileSystem
from world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.handle().create()
    made.handle().fork("latest", [tmp_path / "fork"])
    return made


def of_fork(world: World) -> Handle:
    place = world.root.parent / "fork"
    return Handle(context_at(root=place, store_path=str(world.store), fs=UnsyncedFileSystem()))


def kinds(changes) -> dict[bytes, ChangeKind]:
    return {change.path: change.change for change in changes}


def test_a_new_fork_has_no_differences(world):
    assert not world.handle().diff_root(world.root.parent / "fork")
    assert not of_fork(world).diff_root(world.root)


def test_changes_on_either_side_show_from_the_own_tree_to_the_other(world):
    fork = world.root.parent / "fork"
    (fork / "new").write_text("new")
    (world.root / "text").write_text("changed in the origin")
    (world.root / "common").unlink()

    changes = world.handle().diff_root(fork)

    assert kinds(changes) == {
        b"common": ChangeKind.ADDED,
        b"new": ChangeKind.ADDED,
        b"text": ChangeKind.MODIFIED,
    }
    assert kinds(of_fork(world).diff_root(world.root))[b"new"] is ChangeKind.REMOVED


def test_some_paths_are_compared_alone(world):
    fork = world.root.parent / "fork"
    (fork / "new").write_text("new")
    (fork / "text").write_text("other")

    assert kinds(world.handle().diff_root(fork, ["new"])) == {b"new": ChangeKind.ADDED}


def test_both_sides_are_read_from_their_trees(world):
    fork = world.root.parent / "fork"
    (fork / "text").write_text("of the fork")
    (world.root / "text").write_text("of the origin")
    handle = world.handle()
    changes = handle.diff_root(fork)

    (content,) = handle.contents(None, None, changes, root=fork)

    assert (content.old, content.new) == (b"of the origin", b"of the fork")


@pytest.mark.needs("exact times")
def test_only_what_changed_is_read(world):
    fs = RecordingFileSystem()
    fork = world.root.parent / "fork"
    (fork / "new").write_text("new")
    handle = Handle(context_at(root=world.root, store_path=str(world.store), fs=fs))

    handle.diff_root(fork)

    read = {os.path.basename(call.path) for call in fs.calls("read", "read_at", below=str(fork))}
    assert read == {"new"}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["root", "elsewhere", "missing", "store"])
def test_a_directory_that_is_no_other_root_is_not_found(world, name):
    (world.root.parent / "elsewhere").mkdir()

    with pytest.raises(NotFound) as missing:
        world.handle().diff_root(world.root.parent / name)

    assert missing.value.code is ErrorCode.UNKNOWN_ROOT
