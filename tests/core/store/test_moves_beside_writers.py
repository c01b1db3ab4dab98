"""``store move`` while others work in the store, and the old path afterwards."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from beside import AtCall, lost
from garbage import add_garbage, use_new_pack
from sampling import sized
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import sweep_temporary
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Busy, Corrupt, ErrorCode, Refused
from treesnap.core.ops.access import opened
from treesnap.core.ops.capture import usable_cache
from treesnap.core.ops.context import context_at
from treesnap.core.store.layout import Layout
from treesnap.core.store.lock import held, inside
from treesnap.core.store.moving import WAITING, note_move
from treesnap.testing.children import in_child, killed
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultyFileSystem,
    Killed,
    UnsyncedFileSystem,
    WrappedFileSystem,
    kill_at,
)

pytestmark = [pytest.mark.needs("exchange"), pytest.mark.sampled(12)]


def other_file_system() -> FaultyFileSystem:
    """Returns a file system on which the first exchange is one between two."""
    fault = Fault(errno=errno.EXDEV, methods=frozenset({"exchange"}))
    return FaultyFileSystem(fault, inner=UnsyncedFileSystem())


class Place:
    """A store with a root, and where it goes."""

    def __init__(self, base: Path) -> None:
        self.base, self.store, self.new = base, base / "store", base / "new"
        self.captured: list[str] = []
        self.capture("known")

    def handle(self, root: str, **options: Any) -> Handle:
        (self.base / root).mkdir(exist_ok=True)
        defaults = {"fs": UnsyncedFileSystem(), "wait_s": 0.0}
        return Handle(context_at(self.base / root, str(self.store), **defaults | options))

    def capture(self, root: str, **options: Any) -> None:
        handle = self.handle(root, **options)
        (self.base / root / "file").write_bytes(root.encode() * 50)
        handle.create()
        self.captured.append(root)

    def assert_whole(self) -> None:
        for root in self.captured:
            handle = self.handle(root)
            assert b"".join(handle.cat("latest", "file")) == root.encode() * 50
        assert self.handle("known").verify(read_data=True).problems == ()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("what", ["new root", "known root", "setting"])
def test_what_was_acknowledged_during_a_move_is_there_afterwards(tmp_path, what):
    """Whatever comes at any call of the move is in the new store, or was refused."""
    number, refused, moved = 1, 0, 0
    step = sized(47, 1)
    while True:
        base = tmp_path / str(number)
        base.mkdir()
        place = Place(base)
        settings: list[str | None] = []

        def beside(place: Place = place, settings: list[str | None] = settings) -> None:
            nonlocal refused
            try:
                if what == "setting":
                    place.handle("known").config("keep.last", "77")
                    settings.append("77")
                else:
                    place.capture("fresh" if what == "new root" else "known")
            except Busy:
                refused += 1

        fs = AtCall(other_file_system(), number, beside)
        place.handle("known", fs=fs).store_move(place.new)
        moved += 1
        assert place.store.resolve() == place.new
        place.assert_whole()
        found = place.handle("known").config("keep.last").settings[0].value
        assert not settings or found == "77"
        if fs.left > 0:
            break
        number += step
    assert 0 < refused < moved


class SweptBeforeLocked(WrappedFileSystem):
    """Lets a writer beside sweep the second of two temporary files, which is not locked yet."""

    def __init__(self, directory: Path) -> None:
        super().__init__(other_file_system())
        self._directory = directory
        self.swept = 0

    def around(self, call: Call) -> Any:
        if call.method == "lock" and not self.swept and len(os.listdir(self._directory)) == 2:
            sweep_temporary(LocalFileSystem(), str(self._directory))
            self.swept += 1
        return call.proceed()


def test_a_move_tries_its_names_again_that_a_sweep_took(place):
    fs = SweptBeforeLocked(place.store / "temporary")

    place.handle("known", fs=fs).store_move(place.new)

    assert fs.swept == 1
    assert place.store.resolve() == place.new
    place.assert_whole()


class WhileCopied(WrappedFileSystem):
    """Does something once, while a move writes its copy."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(other_file_system())
        self._actions = [action]

    def around(self, call: Call) -> Any:
        if call.method == "sync_file_system" and self._actions:
            self._actions.pop()()
        return call.proceed()


def test_a_step_that_begins_while_the_store_is_copied_keeps_it_where_it_is(place):
    step = place.handle("known").rollback_on_error("risky")
    mover = place.handle("known", fs=WhileCopied(step.__enter__))

    with pytest.raises(Busy, match="has a snapshot that"):
        mover.store_move(place.new)

    assert not place.store.is_symlink()
    assert not place.new.exists()
    (place.base / "known" / "file").write_text("spoiled")
    step.__exit__(InterruptedError, InterruptedError(), None)
    assert (place.base / "known" / "file").read_bytes() == b"known" * 50


def test_a_restore_that_is_killed_while_the_store_is_copied_keeps_it_where_it_is(place):
    known = place.handle("known")
    path = place.base / "known" / "file"
    path.write_text("later")

    def be_killed() -> None:
        def restore(fs: FileSystem) -> None:
            place.handle("known", fs=fs).restore("latest")

        numbers = (number for number in range(1, 200) if killed(restore, kill_at(number)))
        assert any(list(place.store.glob("roots/*/journal")) for _ in numbers)

    with pytest.raises(Refused, match="its journal is not copied"):
        place.handle("known", fs=WhileCopied(be_killed)).store_move(place.new)

    assert not place.new.exists()
    known.list()
    assert path.read_bytes() in {b"later", b"known" * 50}


def test_what_a_killed_restore_to_a_directory_left_is_found_from_the_new_place(place):
    def restore(fs: FileSystem) -> None:
        place.handle("known", fs=fs).restore("latest", to=place.base / "target")

    numbers = (number for number in range(1, 200) if killed(restore, kill_at(number)))
    left = ".treesnap-restore-to-*/*"
    assert any(list(place.base.glob(left)) for _ in numbers)

    place.handle("known", fs=other_file_system()).store_move(place.new)
    place.handle("known").create()

    assert list(place.base.glob(".treesnap-restore-to-*")) == []


def test_a_step_that_was_killed_is_told_of_at_the_new_place(place):
    def die() -> None:
        with place.handle("known").rollback_on_error("risky"):
            (place.base / "known" / "file").write_text("half done")
            os._exit(0)

    assert in_child(die).error is None

    place.handle("known", fs=other_file_system()).store_move(place.new)

    (found,) = place.handle("known").doctor().unfinished
    place.handle("known").restore(found.target_id)
    assert (place.base / "known" / "file").read_bytes() == b"known" * 50


def test_what_a_killed_collection_removed_does_not_count_as_lost_at_the_new_place(place):
    """Else each capture would read every file, until the next collection."""
    add_garbage(place.handle("known"), place.base / "known", place.store)
    place.capture("known")
    fault = Fault(methods=frozenset({"rename"}), where=lambda call: "/index/" in call.paths[1])
    with pytest.raises(Killed):
        place.handle("known", fs=FaultyFileSystem(fault)).gc()

    place.handle("known", fs=other_file_system()).store_move(place.new)

    with opened(place.handle("known").context, "look", recover=False) as session:
        assert session.store.missing_packs()
        assert usable_cache(session) is not None


def test_new_roots_settings_and_room_are_found_by_the_old_path(place):
    place.handle("known").store_move(place.new)

    place.capture("fresh")
    place.handle("fresh").config("keep.last", "7")
    use_new_pack(place.store)

    assert place.handle("fresh").config("keep.last").settings[0].value == "7"
    assert (place.new / "config.toml").exists()
    place.assert_whole()


def test_what_a_move_leaves_is_read_and_not_written(place):
    result = place.handle("known", fs=other_file_system()).store_move(place.new)

    assert result.left is not None
    left = Handle(context_at(place.base / "known", result.left, fs=UnsyncedFileSystem()))
    assert b"".join(left.cat("latest", "file")) == b"known" * 50
    with pytest.raises(Refused) as refused:
        left.create()
    assert refused.value.code == ErrorCode.STORE_MOVED
    assert str(place.new) in refused.value.message


@pytest.mark.parametrize("far", [False, True])
def test_a_process_that_is_inside_makes_a_move_busy(place, far):
    fs = other_file_system() if far else UnsyncedFileSystem()
    with inside(UnsyncedFileSystem(), str(place.store), 0.0), pytest.raises(Busy):
        place.handle("known", fs=fs).store_move(place.new)

    assert sorted(os.listdir(place.base)) == ["known", "store"]
    place.assert_whole()


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("way", ["session", "lock of a root"])
def test_a_move_does_not_wait_for_its_own_thread(place, far, way):
    """It would wait for as long as it may, and nothing could let it go on."""
    handle = place.handle("known")
    mover = place.handle(
        "known", fs=other_file_system() if far else UnsyncedFileSystem(), wait_s=3600.0
    )
    with opened(handle.context, "work", writing=way == "session") as session:
        root = session.root.locked("work", 0.0) if way != "session" else nullcontext()
        with root, pytest.raises(Busy, match="its own end"):
            mover.store_move(place.new)

    assert sorted(os.listdir(place.base)) == ["known", "store"]
    mover.store_move(place.new)
    place.assert_whole()


def test_a_move_waits_for_another_thread(place):
    is_inside, may_leave = threading.Event(), threading.Event()

    def work() -> None:
        with inside(UnsyncedFileSystem(), str(place.store), 0.0):
            is_inside.set()
            assert may_leave.wait(60)

    class LeavingFileSystem(WrappedFileSystem):
        def around(self, call: Call) -> Any:
            result = call.proceed()
            if call.method == "lock" and result is False:
                may_leave.set()
            return result

    worker = threading.Thread(target=work)
    worker.start()
    assert is_inside.wait(60)
    fs = LeavingFileSystem(UnsyncedFileSystem())
    place.handle("known", fs=fs, wait_s=60.0).store_move(place.new)
    worker.join(60)
    assert may_leave.is_set()
    place.assert_whole()


def test_a_lock_counts_only_where_the_path_leads(tmp_path):
    """Who waited for the lock of a file that was replaced meanwhile takes the new file's."""
    fs, path, got = UnsyncedFileSystem(), str(tmp_path / "lock"), threading.Event()

    def wait() -> None:
        with held(WaitingFileSystem(), path, operation="wait", what="It", wait_s=60):
            got.set()

    class WaitingFileSystem(WrappedFileSystem):
        def around(self, call: Call) -> Any:
            result = call.proceed()
            if call.method == "lock" and result is False:
                is_waiting.set()
            return result

    is_waiting = threading.Event()
    waiter = threading.Thread(target=wait)
    with held(fs, path, operation="first", what="It", wait_s=0):
        waiter.start()
        assert is_waiting.wait(60)
        os.rename(path, f"{path}.old")
        other = held(fs, path, operation="second", what="It", wait_s=0)
        other.__enter__()
    is_waiting.clear()
    assert is_waiting.wait(60)
    assert not got.is_set()
    other.__exit__(None, None, None)
    waiter.join(60)
    assert got.is_set()


@pytest.mark.parametrize("command", ["move far", "copy"])
@pytest.mark.parametrize("other", ["forget", "root move"])
def test_what_goes_away_while_it_is_copied_is_no_damage(tmp_path, command, other):
    """The command itself has to end well: what goes away is gone from the copy too."""
    done = 0
    for number in range(140, 360, sized(80, 20)):
        outcome = lost(tmp_path / str(number), command, other, None, number)
        if outcome is not None:
            assert outcome.problems == []
            done += outcome.both
    assert done


@pytest.mark.parametrize("command", ["store_move", "store_copy"])
@pytest.mark.parametrize("far", [False, True])
def test_of_two_at_one_target_the_second_is_refused(tmp_path, command, far):
    """Two stores go to one place, the second at any call of the first."""
    refused = 0
    for number in range(10, 400, sized(130, 40)):
        base = tmp_path / str(number)
        stores = [base / "a", base / "b"]
        for store in stores:
            store.mkdir(parents=True)
        first, second = map(Place, stores)
        failed = []

        def go(place: Place, fs: WrappedFileSystem, failed: list[ErrorCode] = failed) -> None:
            target = base / "target"  # noqa: B023 - called within the round
            try:
                getattr(place.handle("known", fs=fs), command)(target)
            except Refused as error:
                failed.append(error.code)

        def file_system(far: bool = far) -> WrappedFileSystem:
            return other_file_system() if far else UnsyncedFileSystem()

        go(first, AtCall(file_system(), number, lambda: go(second, file_system())))  # noqa: B023 - likewise
        refused += len(failed)
        assert failed in ([], [ErrorCode.TARGET_NOT_EMPTY])
        for place in (first, second):
            place.assert_whole()
        assert not (base / "target.partial").exists()
    assert refused


@pytest.mark.parametrize("command", ["store_move", "store_copy"])
def test_damage_of_the_store_itself_is_said(place, command):
    (pack,) = (path for path in place.store.glob("packs/*") if len(path.name) == 32)
    data = bytearray(pack.read_bytes())
    data[data.index(b"TSBK") + 40] ^= 1
    pack.write_bytes(data)
    handle = place.handle("known", fs=other_file_system())
    if command == "store_copy":
        assert not handle.store_copy(place.new).verified.ok
    else:
        with pytest.raises(Corrupt, match=r"has damage.*'store copy'"):
            handle.store_move(place.new)
        assert not place.new.with_name("new.partial").exists()


class AtWork(WrappedFileSystem):
    """A capture that lasts, once it is inside the gate, until something else has ended."""

    def __init__(self, ended: threading.Event) -> None:
        super().__init__(UnsyncedFileSystem())
        self._ended = ended

    def around(self, call: Call) -> Any:
        if call.method == "list_names" and call.path.endswith("/slots"):
            self._ended.wait(3)
        return call.proceed()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_writer_that_comes_while_a_mover_waits_lets_it_go_first(place, is_stopped):
    """In a busy store there would never be a moment without writers. A moment is all it waits."""
    moved, ends = threading.Event(), []

    def move() -> None:
        place.handle("known", wait_s=20.0).store_move(place.new)
        ends.append("moved")
        moved.set()

    def capture() -> None:
        place.capture("known", fs=AtWork(moved), wait_s=20.0)
        ends.append("captured")

    threads = [threading.Thread(target=each) for each in (move, capture)]
    with inside(UnsyncedFileSystem(), str(place.store), 0.0):
        threads[0].start()
        time.sleep(0.5)
        threads[1].start()
        if is_stopped:  # the mover, or the writer before it
            threads[1].join(10)
            assert ends == ["captured"]
        time.sleep(0.3)
    for thread in threads:
        thread.join()

    assert ends == (["captured", "moved"] if is_stopped else ["moved", "captured"])
    assert not (place.store / "moving").exists()
    place.assert_whole()


def test_what_a_mover_left_that_was_killed_while_it_waited_is_of_no_consequence(place):
    note_move(UnsyncedFileSystem(), Layout(str(place.store)), WAITING)
    place.store.rename(place.new)
    place.store = place.new

    place.capture("known")

    assert not (place.new / "moving").exists()
    place.assert_whole()
