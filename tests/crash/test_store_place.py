"""``store copy`` and ``store move``, killed or failing at every call that changes the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from itertools import count
from pathlib import Path

import pytest

import treesnap
from treesnap.errors import ErrorCode, OperationFailed, Refused, TreesnapError
from treesnap.ops.context import context_at
from treesnap.ops.handle import Handle
from treesnap.testing.doubles import (
    Fault,
    FaultyFileSystem,
    Killed,
    UnsyncedFileSystem,
    WrappedFileSystem,
    error_at,
    kill_at,
)

OTHER_FILE_SYSTEM = Fault(errno=errno.EXDEV, methods=frozenset({"exchange"}))
"""As if the first exchange were between two file systems."""


class World:
    """A store with two snapshots, made anew for each attempt."""

    def __init__(self, directory: Path) -> None:
        self.root, self.store = directory / "root", directory / "store"
        self.new = directory / "new"
        self.kept = directory / "kept"
        self.root.mkdir()
        handle = treesnap.open(self.root, self.store)
        for text in ("one", "two"):
            (self.root / "file").write_text(text)
            handle.create(name=text)
        self.store.rename(self.kept)

    def reset(self) -> None:
        for path in (*self.root.parent.glob("store*"), *self.root.parent.glob("new*")):
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
        shutil.copytree(self.kept, self.store)

    def handle(self, *faults: Fault) -> tuple[Handle, FaultyFileSystem]:
        fs = FaultyFileSystem(*faults, inner=UnsyncedFileSystem())
        return Handle(context_at(self.root, str(self.store), fs=fs)), fs

    def assert_whole(self, store: Path) -> None:
        handle = treesnap.open(self.root, store)
        for text in ("one", "two"):
            assert b"".join(handle.cat(text, "file")) == text.encode()
        assert handle.verify(read_data=True).ok

    def assert_one_is_written(self) -> None:
        """The store is written where its name leads, and no other directory of it is."""
        place = self.store.resolve()
        found = (*self.root.parent.glob("store*"), *self.root.parent.glob("new"))
        others = [path for path in found if path.resolve() != place and path.exists()]
        for other in others:
            with pytest.raises(Refused) as refused:
                treesnap.open(self.root, other).create()
            assert refused.value.code == ErrorCode.STORE_MOVED
            assert str(place) in refused.value.message
        if others:
            treesnap.open(self.root, self.store).config("keep.last", "70")
            assert not (place / "moving").exists()


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def test_a_copy_that_is_killed_is_whole_or_absent(world):
    for number in count(1):
        world.reset()
        handle, fs = world.handle(kill_at(number))
        with contextlib.suppress(Killed):
            handle.store_copy(world.new)
        world.assert_whole(world.store)
        if os.path.lexists(world.new):
            world.assert_whole(world.new)
        if not fs.is_dead:
            assert number > 20
            return


def test_a_copy_that_fails_leaves_nothing(world):
    for number in count(1):
        world.reset()
        fault = error_at(number, errno.ENOSPC)
        handle, fs = world.handle(fault)
        try:
            handle.store_copy(world.new)
        except TreesnapError:
            if not os.path.lexists(world.new):
                assert sorted(os.listdir(world.root.parent)) == ["kept", "root", "store"]
        world.assert_whole(world.store)
        if not fs.hits_of(fault):
            assert number > 20
            return


@pytest.mark.parametrize("faults", [(), (OTHER_FILE_SYSTEM,)], ids=["exchange", "copy"])
def test_a_store_that_is_moved_is_always_found(world, faults):
    """Under its old name, at every moment; and the move can be made afterwards."""
    for number in count(1):
        world.reset()
        handle, fs = world.handle(*faults, kill_at(number))
        with contextlib.suppress(Killed):
            handle.store_move(world.new)
        world.assert_whole(world.store)
        world.assert_one_is_written()
        if not fs.is_dead:
            assert (world.store.resolve(), number > 5) == (world.new, True)
            return
        if world.store.resolve() != world.new:
            shutil.rmtree(f"{world.new}.partial", ignore_errors=True)
            if world.new.is_dir():
                shutil.rmtree(world.new)
            treesnap.open(world.root, world.store).store_move(world.new)
            world.assert_whole(world.store)
            assert world.store.resolve() == world.new


@pytest.mark.parametrize("faults", [(), (OTHER_FILE_SYSTEM,)], ids=["exchange", "copy"])
def test_a_move_that_fails_leaves_the_store_where_it_is(world, faults):
    for number in count(1):
        world.reset()
        fault = error_at(number, errno.EIO)
        handle, fs = world.handle(*faults, fault)
        with contextlib.suppress(TreesnapError):
            handle.store_move(world.new)
        world.assert_whole(world.store)
        world.assert_one_is_written()
        if not fs.hits_of(fault):
            assert number > 5
            return


def _is_of_settings(call):
    return any(str(argument).endswith("store/config.toml") for argument in call.arguments)


def test_a_move_that_cannot_read_a_file_is_refused(world):
    world.reset()
    world.handle()[0].config("keep.last", "70")
    unreadable = Fault(
        errno=errno.EIO, methods=frozenset({"open"}), where=_is_of_settings, lasting=True
    )
    handle, _ = world.handle(OTHER_FILE_SYSTEM, unreadable)

    with pytest.raises(OperationFailed, match=r"config\.toml.* cannot be read"):
        handle.store_move(world.new)

    assert not world.store.is_symlink()
    assert not os.path.lexists(world.new)


def test_a_copy_that_is_interrupted_leaves_nothing(world):
    world.reset()

    class Interrupted(WrappedFileSystem):
        def around(self, call):
            if call.method == "truncate":
                raise KeyboardInterrupt
            return call.proceed()

    with pytest.raises(KeyboardInterrupt):
        Handle(
            context_at(world.root, str(world.store), fs=Interrupted(UnsyncedFileSystem()))
        ).store_copy(world.new)

    assert list(world.root.parent.glob("new*")) == []
