"""Restores on the volumes that a Mac may have, over a double of its C library.

The store lies on the volume too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cuts import cuts
from disk import materialise
from libsystem import VOLUMES, MacFileSystem
from power import PoweredFileSystem
from prepared import trust_stores
from sampling import evenly, sized
from state import differences, tree_state
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.posix import PosixFileSystem
from treesnap.core.fs.record_locks import close_unlocked, has_own_locks
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.events import CollectingMonitor, WarningCode
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.apply.stage import make_stage
from treesnap.testing.children import in_child
from treesnap.testing.doubles import MUTATING, Call, Fault, Kind, WrappedFileSystem

pytestmark = [pytest.mark.needs("linux"), pytest.mark.sampled(2)]

ACCENTED = "cafe\u0301"
"""In the form that HFS+ stores."""
TIME_NS = 1_600_000_000 * 10**9


class MacPlace:
    """A root on a volume, with a snapshot ``before``, and changed since in every way."""

    def __init__(self, base: Path, volume: str) -> None:
        self.base = base
        self.volume = VOLUMES[volume]
        self.root = base / "root"
        (self.root / "Wide").mkdir(parents=True)
        for name in ("Gate", "Wide/Inner", "other", ACCENTED):
            (self.root / name).write_text(name)
        (self.root / "link").symlink_to("other")
        os.mkfifo(self.root / "pipe")
        self._settle()
        self.handle().create(name="before")
        self.before = tree_state(self.root)
        (self.root / "Gate").rename(self.root / "gate")
        (self.root / "Wide/Inner").unlink()
        (self.root / "Wide/Inner").mkdir()
        (self.root / "Wide/Inner/below").write_text("new")
        (self.root / "other").write_text("changed")
        (self.root / ACCENTED).unlink()
        (self.root / "link").unlink()
        (self.root / "link").write_text("a file now")
        self._settle()
        self.after = tree_state(self.root)

    def _settle(self) -> None:
        """Gives all files times that each volume keeps."""
        for directory, _, files in os.walk(self.root, topdown=False):
            for path in (*(os.path.join(directory, name) for name in files), directory):
                os.utime(path, ns=(TIME_NS, TIME_NS), follow_symlinks=False)

    def handle(self, *faults: Fault) -> Handle:
        fs = MacFileSystem(self.base, self.volume, *faults)
        store = str(self.base / "store")
        return Handle(context_at(root=self.root, store_path=store, fs=fs, wait_s=0))

    def is_before(self) -> bool:
        """Whether the tree is as it was in the snapshot; False as it was found."""
        found = tree_state(self.root)
        is_before = differences(found, self.before) == []
        assert is_before or differences(found, self.after) == []
        return is_before


@pytest.fixture(params=VOLUMES)
def place(tmp_path: Path, request: pytest.FixtureRequest) -> MacPlace:
    return MacPlace(tmp_path, request.param)


def test_a_tree_goes_back_and_forth(place):
    place.handle().restore("before")

    assert place.is_before()
    place.handle().undo()
    assert not place.is_before()
    place.handle().redo()
    assert place.is_before()
    assert place.handle().verify(read_data=True).ok


@pytest.mark.sampled(5)
def test_a_kill_anywhere_leaves_one_of_both_states(place):
    outcomes = []
    for number in count(1, sized(41, 5)):
        fault = Fault(kinds=MUTATING, number=number)
        ended = in_child(lambda fault=fault: place.handle(fault).restore("before", force=True))
        assert ended.error is None
        place.handle().recover()
        outcomes.append(place.is_before())
        if not ended.was_killed:
            break
        if outcomes[-1]:
            place.handle().undo()
            assert not place.is_before()

    assert set(outcomes) == {False, True}
    assert place.handle().verify(read_data=True).ok


@pytest.mark.sampled(5)
def test_an_error_anywhere_leaves_one_of_both_states(place):
    outcomes = []
    for number in count(1, sized(41, 5)):
        fault = Fault(kinds=MUTATING | {Kind.SYNC}, number=number, errno=errno.EIO)
        handle = place.handle(fault)
        with suppress(TreesnapError):
            handle.restore("before", force=True)
        place.handle().recover()  # one that succeeded may have left something to tidy, too
        outcomes.append(place.is_before())
        if not handle.context.fs._inner.hits_of(fault):
            break
        if outcomes[-1]:
            place.handle().undo()
            assert not place.is_before()

    assert set(outcomes) == {False, True}


def contents(root: Path) -> dict[bytes, bytes]:
    return {path: item.content for path, item in tree_state(root).items()}


def test_a_kill_is_recovered_from_where_times_are_coarser_than_in_the_snapshot(tmp_path):
    """A snapshot may come from elsewhere, and a merge is of a moment."""
    place = MacPlace(tmp_path, "SMB")
    names = ["other", *(f"many {number}" for number in range(3))]
    for name in names:
        (place.root / name).write_text(f"fine {name}")
        os.utime(place.root / name, ns=(TIME_NS, TIME_NS + 1_234_567_891))
    place.handle().create(name="fine")
    fine = contents(place.root)
    for name in names:
        (place.root / name).write_text("changed since")
        os.utime(place.root / name, ns=(TIME_NS, TIME_NS + 8 * 10**9))
    changed = contents(place.root)

    outcomes = []
    for number in count(1, sized(7, 1)):
        fault = Fault(kinds=MUTATING, number=number)
        ended = in_child(lambda fault=fault: place.handle(fault).restore("fine", force=True))
        place.handle().recover()
        found = contents(place.root)
        assert found in (fine, changed)
        outcomes.append(found == fine)
        if not ended.was_killed:
            break
        if outcomes[-1]:
            place.handle().undo()

    assert set(outcomes) == {False, True}


def powered(place: MacPlace) -> PoweredFileSystem:
    fs = MacFileSystem(place.base, place.volume)
    return PoweredFileSystem(str(place.base), fs, apart=[b"store"])


@pytest.mark.sampled(5)
def test_a_power_cut_anywhere_leaves_one_of_both_states(place):
    """Where fsync makes nothing durable, but for volumes that have nothing else."""
    fs = powered(place)
    context = context_at(root=place.root, store_path=str(place.base / "store"), fs=fs, wait_s=0)
    Handle(context).restore("before")
    fs.note_return()
    recording = fs.recording()
    found = [*cuts(recording, random=Random(0), more=2, untimed=b"store")]
    outcomes = []
    for number in evenly(len(found), sized(4, 40)):
        cut = found[number - 1]
        materialise(cut.disk, str(place.base))
        trust_stores(place.base)
        place.handle().recover()
        outcomes.append(place.is_before())
        assert outcomes[-1] or not cut.moment.is_after_return

    assert set(outcomes) == {False, True}


def test_a_file_that_the_drive_was_not_told_to_write_is_lost(place):
    """By fsync(2) alone, but where a volume has nothing else."""
    fs = powered(place)
    fd = fs.open(str(place.base / "synced"), os.O_RDWR | os.O_CREAT)
    fs.write(fd, b"content")
    place_of_calls = fs._inner.libc
    place_of_calls.fsync(fd)
    fs.lstat(str(place.base / "synced"))
    before = len(fs.recording().syncs)
    assert len(place_of_calls.flushed) == (0 if place.volume.flushes else 1)

    fs.sync(fd)

    fs.close(fd)
    assert (before, len(fs.recording().syncs)) == (0, 1 if place.volume.flushes else 2)


def test_a_read_only_file_gets_its_attributes_back(tmp_path):
    """For which it has to be writable, as a directory has to be."""
    place = MacPlace(tmp_path, "APFS")
    names = ("other", "Wide")
    for name, mode in zip(names, (0o444, 0o555), strict=True):
        os.setxattr(place.root / name, "user.com.apple.quarantine", b"0081")
        (place.root / name).chmod(mode)
    place.handle().create(name="shut")
    shut = tree_state(place.root)
    (place.root / "Wide").chmod(0o755)
    (place.root / "other").unlink()
    (place.root / "other").write_text("another")
    os.removexattr(place.root / "Wide", "user.com.apple.quarantine")

    place.handle().restore("shut")

    assert differences(tree_state(place.root), shut) == []
    for name in names:
        assert os.getxattr(place.root / name, "user.com.apple.quarantine") == b"0081"


def test_an_attribute_that_the_system_refuses_is_reported(tmp_path):
    """A restore goes on without it."""
    place = MacPlace(tmp_path, "APFS")
    os.setxattr(place.root / "other", "user.com.apple.new", b"1")
    place.handle().create(name="new")
    (place.root / "other").unlink()
    fs = MacFileSystem(place.base, place.volume)
    fs.libc.refused.add(b"com.apple.new")
    store, monitor = str(place.base / "store"), CollectingMonitor()
    context = context_at(root=place.root, store_path=store, fs=fs, wait_s=0, monitor=monitor)

    Handle(context).restore("new")

    assert monitor.codes == [WarningCode.METADATA_NOT_RESTORED]
    assert (place.root / "other").read_text() == "changed"


@pytest.mark.parametrize(("volume", "is_named"), [("APFS", True), ("SMB", False)])
def test_a_volume_is_the_same_after_a_restart(tmp_path, volume, is_named):
    """Which may give its device another number, so that an interrupted restore would be refused."""
    fs = MacFileSystem(tmp_path, VOLUMES[volume])
    fd = fs.open(str(tmp_path), os.O_RDONLY)

    found = fs.file_system_id(fd)

    fs.close(fd)
    expected = 0x0102030405060708 if is_named else PosixFileSystem().file_system_id(str(tmp_path))
    assert found == expected == fs.file_system_id(str(tmp_path))


DENIED = b"!#acl 1\ngroup:ABCDEFAB-CDEF-ABCD-EFAB-CDEF0000000C:everyone:12:deny:delete\n"
"""As the folders of a home have it."""


class TestDeniedDeletion:
    """A file whose access control list denies that it is deleted cannot be renamed either."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> MacPlace:
        return MacPlace(tmp_path, "APFS")

    def handle(self, place: MacPlace, name: str, monitor: CollectingMonitor) -> Handle:
        """Returns one that sees such a list of a path."""
        fs = MacFileSystem(place.base, place.volume)
        found = (place.root / name).lstat()
        fs.libc.lists[found.st_dev, found.st_ino] = DENIED
        store = str(place.base / "store")
        context = context_at(root=place.root, store_path=store, fs=fs, wait_s=0, monitor=monitor)
        return Handle(context)

    @pytest.mark.parametrize("name", ["other", "Wide/Inner", "Wide/Inner/below"])
    def test_is_refused_before_anything_is_touched(self, place, name):
        handle = self.handle(place, name, CollectingMonitor())
        inodes = {path: path.lstat().st_ino for path in place.root.rglob("*")}

        with pytest.raises(TreesnapError, match=f"'{name}' is immutable"):
            handle.restore("before", force=True)

        assert not place.is_before()
        assert {path: path.lstat().st_ino for path in place.root.rglob("*")} == inodes

    def test_stays_where_it_is_as_it_was(self, place):
        """In a directory too, in which names change."""
        self.handle(place, "Wide", CollectingMonitor()).restore("before")

        assert place.is_before()

    def test_is_not_put_in_place_with_its_list(self, place):
        monitor = CollectingMonitor()
        handle = self.handle(place, "other", monitor)
        handle.create(name="denied")
        (place.root / "other").unlink()

        handle.restore("denied")

        assert (place.root / "other").read_text() == "changed"
        assert monitor.codes == [WarningCode.METADATA_NOT_RESTORED]


def test_a_look_at_a_list_keeps_the_record_locks_of_this_process(tmp_path):
    """As of SQLite, in a program that has this as a library; see fcntl(2)."""
    fs = MacFileSystem(tmp_path, VOLUMES["APFS"])
    path = tmp_path / "database"
    path.write_text("rows")
    with path.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)

        is_protected = fs.is_protected(str(path))

        assert (is_protected, has_own_locks(file.fileno())) == (False, True)
    close_unlocked(fs)


class BirthsThatMove(WrappedFileSystem):
    """A Mac's times of birth: an older time of modification is that of birth, too."""

    def __init__(self, inner: FileSystem) -> None:
        super().__init__(inner)
        self._births: dict[tuple[int, int], int] = {}

    def around(self, call: Call) -> Any:
        if call.method not in {"birth_time_ns", "change_times"}:
            return call.proceed()
        if isinstance(call.arguments[0], int):
            found = os.fstat(call.arguments[0])
        else:
            found = os.lstat(call.arguments[0], dir_fd=call.options.get("dir_fd"))
        known = self._births.setdefault((found.st_dev, found.st_ino), time.time_ns())
        if call.method == "birth_time_ns":
            return known
        self._births[found.st_dev, found.st_ino] = min(known, call.arguments[1])
        return call.proceed()


@pytest.fixture
def with_births(tmp_path: Path) -> Handle:
    """A root with an old time of modification, on a volume whose times of birth move."""
    place = MacPlace(tmp_path, "APFS")
    fs = BirthsThatMove(MacFileSystem(place.base, place.volume))
    context = context_at(root=place.root, store_path=str(tmp_path / "store"), fs=fs, wait_s=0)
    handle = Handle(context)
    handle.create(name="old")
    os.utime(place.root)
    handle.create(name="new")
    return handle


def test_a_fork_is_the_same_after_a_restore_moved_its_time_of_birth(with_births, tmp_path):
    fork = tmp_path / "fork"
    with_births.fork("new", [fork])
    context = with_births.context
    theirs = context_at(root=fork, store_path=context.store_path, fs=context.fs, wait_s=0)
    os.utime(fork, ns=(TIME_NS, TIME_NS))
    Handle(theirs).create(name="old fork")
    os.utime(fork)
    (fork / "mine").write_text("mine")
    Handle(theirs).create(name="edited")
    Handle(theirs).restore("old fork")
    (fork / "mine too").write_text("mine too")

    with_births.adopt(fork)

    assert (Path(with_births.root) / "mine too").read_text() == "mine too"


def test_a_root_is_known_after_a_move_whose_time_of_birth_a_restore_moved(with_births, tmp_path):
    with_births.restore("old")
    os.rename(with_births.root, tmp_path / "moved")
    context = with_births.context
    there = context_at(
        root=tmp_path / "moved", store_path=context.store_path, fs=context.fs, wait_s=0
    )

    names = {snapshot.name for snapshot in Handle(there).list()}

    assert {"old", "new"} <= names


def test_what_is_staged_inherits_no_list(tmp_path):
    fs = MacFileSystem(tmp_path, VOLUMES["APFS"])
    (tmp_path / "stage").mkdir()
    top = os.open(tmp_path, os.O_RDONLY)
    stage = os.open(tmp_path / "stage", os.O_RDONLY)
    fs.set_xattr(stage, "treesnap.darwin.acl", b"!#acl 1\nuser:::502:allow,file_inherit:read\n")

    fd = make_stage(fs, top, b"stage")

    assert fs.list_xattrs(fd) == []
    for item in (top, stage, fd):
        os.close(item)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_a_service_holds_is_neither_downloaded_nor_touched(tmp_path, kind):
    """It makes a snapshot incomplete, like what may not be read."""
    place = MacPlace(tmp_path, "APFS")
    if kind == "file":
        (place.root / "far").write_text("as it is here")
    else:
        (place.root / "far/below").mkdir(parents=True)
    fs = MacFileSystem(place.base, place.volume)
    found = (place.root / "far").lstat()
    fs.libc.dataless.add((found.st_dev, found.st_ino))
    store = str(place.base / "store")
    handle = Handle(context_at(root=place.root, store_path=store, fs=fs, wait_s=0))

    made = handle.create(name="after")
    assert [(item.path, item.reason.name) for item in made.skipped] == [(b"far", "UNREADABLE")]
    assert not made.complete
    handle.restore("before")
    handle.restore("after")

    assert len(fs.libc.dataless) == 1
    assert (place.root / "far").lstat().st_ino == found.st_ino
