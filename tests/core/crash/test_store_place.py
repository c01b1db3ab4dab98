"""``store copy`` and ``store move``, killed or failing at every call that changes the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import treesnap
from mounting import mounting
from sampling import sized
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Busy, ErrorCode, OperationFailed, Refused, TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import (
    MUTATING,
    Call,
    Fault,
    FaultMoment,
    FaultyFileSystem,
    Killed,
    UnsyncedFileSystem,
    WrappedFileSystem,
    error_at,
    kill_at,
)

pytestmark = pytest.mark.sampled(10)

OTHER_FILE_SYSTEM = Fault(errno=errno.EXDEV, methods=frozenset({"exchange"}))
"""As if the first exchange were between two file systems."""
STEP = sized(3, 1)
"""How far apart the calls are at which a move is killed, or something fails."""


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


def test_a_copy_that_is_killed_is_whole_or_absent_and_the_next_one_needs_no_help(world):
    """Only just before the renaming it is whole without its name: then the next one says so."""
    refused = 0
    for number in count(1):
        world.reset()
        handle, fs = world.handle(kill_at(number))
        with contextlib.suppress(Killed):
            handle.store_copy(world.new)
        world.assert_whole(world.store)
        if os.path.lexists(world.new):
            world.assert_whole(world.new)
        else:
            refusal = None
            try:
                world.handle()[0].store_copy(world.new)
            except Refused as error:
                refusal = error
            if refusal is not None:
                assert refusal.code == ErrorCode.TARGET_NOT_EMPTY
                assert f"rename it to '{world.new}'" in refusal.message
                os.rename(f"{world.new}.partial", world.new)
                refused += 1
            world.assert_whole(world.new)
            assert not [name for name in os.listdir(world.new) if name.startswith(".")]
        assert not os.path.lexists(f"{world.new}.partial")
        if not fs.is_dead:
            assert (number > 20, refused) == (True, 1)
            return


@pytest.mark.parametrize(
    "is_move",
    [False, pytest.param(True, marks=pytest.mark.needs("exchange"))],
    ids=["copy", "move"],
)
def test_a_store_is_whole_of_which_a_root_was_being_forgotten(world, is_move):
    """The pin of a snapshot that goes, which a fork has, is no damage of the copy."""
    other = world.root.with_name("other")
    world.kept.rename(world.store)
    treesnap.open(world.root, world.store).fork("one", [other])
    world.store.rename(world.kept)
    for number in count(1, 2):
        world.reset()
        handle, fs = world.handle(kill_at(number))
        with contextlib.suppress(Killed):
            handle.root_forget(other, force=True)
        again, _ = world.handle(*([OTHER_FILE_SYSTEM] if is_move else []))
        if is_move:
            again.store_move(world.new)
        else:
            assert again.store_copy(world.new).verified.ok, number
        assert treesnap.open(world.root, world.new).verify(read_data=True).ok, number
        world.assert_whole(world.new)
        if not fs.is_dead:
            assert number > 3
            return


class TestRemains:
    """A directory in the place of a copy that is not whole: only what is proven goes."""

    @pytest.fixture
    def partial(self, world) -> Path:
        world.reset()
        partial = world.new.with_name("new.partial")
        (partial / "packs").mkdir(parents=True)
        (partial / "packs" / ("0" * 32)).write_bytes(b"half a pack")
        return partial

    def mark(self, partial: Path) -> Path:
        mark = partial / ".treesnap-copy-0123456789abcdef"
        mark.touch()
        return mark

    def copied(self, world) -> None:
        world.handle()[0].store_copy(world.new)

    def test_with_a_mark_go(self, world, partial):
        self.mark(partial)

        self.copied(world)

        world.assert_whole(world.new)
        assert not partial.exists()

    def test_without_a_mark_stay(self, world, partial):
        with pytest.raises(Refused, match=r"new\.partial.*remove it"):
            self.copied(world)

        assert (partial / "packs" / ("0" * 32)).exists()

    @pytest.mark.parametrize("name", ["mine", ".treesnap-copy-other", "quarantine"])
    def test_with_anything_else_stay(self, world, partial, name):
        self.mark(partial)
        (partial / name).write_text("mine")

        with pytest.raises(Refused, match=r"new\.partial.*remove it"):
            self.copied(world)

        assert (partial / "packs" / ("0" * 32)).exists()

    def test_that_others_may_write_to_stay(self, world, partial):
        self.mark(partial)
        partial.chmod(0o777)

        with pytest.raises(Refused, match=r"new\.partial.*remove it"):
            self.copied(world)

        assert (partial / "packs" / ("0" * 32)).exists()

    def test_of_a_copy_at_work_stay(self, world, partial):
        mark = self.mark(partial)
        fs = LocalFileSystem()
        fd = fs.open(str(mark), os.O_RDWR)
        assert fs.lock(fd, exclusive=True)

        with pytest.raises(Refused, match="by another copy"):
            self.copied(world)
        fs.close(fd)

        assert (partial / "packs" / ("0" * 32)).exists()

    def test_of_a_copy_that_ends_just_now_stay(self, world, partial):
        """Its mark goes between the look at the names and the lock."""
        mark = self.mark(partial)

        class Ending(WrappedFileSystem):
            def around(self, call):
                result = call.proceed()
                if call.method == "open" and call.path.endswith(mark.name):
                    mark.unlink()
                return result

        fs = Ending(UnsyncedFileSystem())
        with pytest.raises(Refused, match="by another copy"):
            Handle(context_at(world.root, str(world.store), fs=fs)).store_copy(world.new)

        assert (partial / "packs" / ("0" * 32)).exists()

    def test_that_are_removed_by_a_process_that_is_killed_can_be_removed_later(self, world):
        for number in count(1):
            world.reset()
            partial = world.new.with_name("new.partial")
            for name in ("packs", "index", "snapshots"):
                (partial / name).mkdir(parents=True)
                (partial / name / ("0" * 32)).touch()
            self.mark(partial)
            handle, _ = world.handle(kill_at(number))
            with contextlib.suppress(Killed):
                handle.store_copy(world.new)
            if number > 10:
                return
            self.copied(world)
            world.assert_whole(world.new)


def test_a_copy_that_fails_leaves_nothing(world):
    for number in count(1, STEP):
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


@pytest.mark.needs("exchange")
@pytest.mark.parametrize("faults", [(), (OTHER_FILE_SYSTEM,)], ids=["exchange", "copy"])
def test_a_store_that_is_moved_is_always_found(world, faults):
    """Under its old name, at every moment; and the move can be made afterwards."""
    for number in count(1, STEP):
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


class BeforeEachCall(WrappedFileSystem):
    """Does something before each call."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(UnsyncedFileSystem())
        self.action = action

    def around(self, call: Call) -> object:
        self.action()
        return call.proceed()


def _puts_a_link_in_place(call: Call) -> bool:
    """Returns whether a call is the exchange by which the name leads to another file system."""
    return "store.moved" in str(call.arguments)


@pytest.mark.needs("exchange")
def test_no_process_takes_back_what_a_move_under_way_has_noted(world):
    """What waits for a mover has opened the store before, and is not inside the gate."""
    world.reset()
    waited = []

    def collect() -> None:
        try:
            Handle(context_at(world.root, str(world.store), wait_s=0.0)).gc()
        except Busy:
            waited.append(None)

    kill = Fault(
        methods=frozenset({"exchange"}), where=_puts_a_link_in_place, moment=FaultMoment.AFTER
    )
    fs = FaultyFileSystem(OTHER_FILE_SYSTEM, kill, inner=BeforeEachCall(collect))
    with pytest.raises(Killed):
        Handle(context_at(world.root, str(world.store), fs=fs)).store_move(world.new)

    assert waited
    assert world.store.resolve() == world.new
    world.assert_whole(world.store)
    world.assert_one_is_written()


@pytest.mark.needs("exchange")
@pytest.mark.parametrize("faults", [(), (OTHER_FILE_SYSTEM,)], ids=["exchange", "copy"])
def test_a_move_that_fails_leaves_the_store_where_it_is(world, faults):
    for number in count(1, STEP):
        world.reset()
        fault = error_at(number, errno.EIO)
        handle, fs = world.handle(*faults, fault)
        with contextlib.suppress(TreesnapError):
            handle.store_move(world.new)
        world.assert_whole(world.store)
        world.assert_one_is_written()
        if not world.store.is_symlink():
            left = {*os.listdir(world.root.parent)} - {"kept", "root", "store"}
            if left:  # a link that could not be removed, with which a later move goes on
                assert (left, os.readlink(world.new)) == ({"new"}, str(world.new)), number
            assert not (world.store / "moving").exists()
        if not fs.hits_of(fault):
            assert number > 5
            return


NO_EXCHANGE = Fault(
    errno=errno.EINVAL, error=Unsupported, methods=frozenset({"exchange"}), lasting=True
)
"""As if the first exchange were between two file systems, of which this one has none."""


def test_a_far_move_where_names_cannot_be_exchanged_is_refused_before_it_begins(world):
    world.reset()
    touched = Fault(
        number=10**6, kinds=MUTATING, where=lambda call: f"{world.new}.partial" in call.path
    )
    handle, fs = world.handle(OTHER_FILE_SYSTEM, NO_EXCHANGE, touched)

    with pytest.raises(OperationFailed, match="cannot exchange two names"):
        handle.store_move(world.new)

    assert fs.seen_of(touched) == 0
    assert sorted(os.listdir(world.root.parent)) == ["kept", "root", "store"]
    assert not (world.store / "temporary").exists() or not os.listdir(world.store / "temporary")
    world.assert_whole(world.store)


def test_a_near_move_where_names_cannot_be_exchanged_leaves_the_place_as_it_was(world):
    world.reset()
    world.new.mkdir(mode=0o750)
    handle, _ = world.handle(
        Fault(errno=errno.ENOSYS, error=Unsupported, methods=frozenset({"exchange"}))
    )

    with pytest.raises(OperationFailed, match="cannot exchange two names"):
        handle.store_move(world.new)

    assert sorted(os.listdir(world.root.parent)) == ["kept", "new", "root", "store"]
    assert not world.new.is_symlink()
    assert world.new.stat().st_mode & 0o777 == 0o750
    world.assert_whole(world.store)


@pytest.mark.needs("exchange")
@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EXDEV, OSError), (errno.EINVAL, Unsupported), (errno.EBUSY, OSError)],
)
def test_a_far_move_whose_last_exchange_fails_leaves_one_store(world, number, error):
    """As of a directory in the lower layer of an overlay: files can be exchanged there."""
    world.reset()
    last = Fault(
        errno=number,
        error=error,
        methods=frozenset({"exchange"}),
        where=lambda call: call.arguments[0] == "store" and "store.moved" in call.arguments[1],
    )
    handle, fs = world.handle(OTHER_FILE_SYSTEM, last)

    with pytest.raises(OperationFailed):
        handle.store_move(world.new)

    assert fs.hits_of(last) == 1
    assert sorted(os.listdir(world.root.parent)) == ["kept", "root", "store"]
    world.assert_whole(world.store)
    treesnap.open(world.root, world.store).create()


def test_a_store_that_is_a_mount_is_not_copied_in_vain(world):
    with mounting() as mounter:
        mounter.tmpfs(world.store)
        treesnap.open(world.root, world.store).create()

        with pytest.raises(OperationFailed, match="a file system is mounted"):
            world.handle()[0].store_move(world.new)

        assert sorted(os.listdir(world.root.parent)) == ["kept", "root", "store"]
        treesnap.open(world.root, world.store).create()


def _is_of_settings(call):
    return any(str(argument).endswith("store/config.toml") for argument in call.arguments)


@pytest.mark.needs("exchange")
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
