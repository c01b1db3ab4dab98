"""Roots that are moved, by a rename or by hand, and forgotten: which history is whose."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from capabilities import require
from sampling import sized
from state import tree_state
from treesnap.agents.event import Event
from treesnap.agents.sessions import agent_sessions, note_gap
from treesnap.core.handle import Handle
from treesnap.core.model.errors import (
    Busy,
    ErrorCode,
    NotFound,
    Refused,
    TreesnapError,
    WarningCode,
)
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.results import RootDirectory
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.steps import EventPhase
from treesnap.plans import Planner, PlanState, Step
from treesnap.testing.doubles import (
    MUTATING,
    Call,
    Fault,
    FaultyFileSystem,
    Killed,
    RecordingFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
)

pytestmark = pytest.mark.sampled(3)


class Births(WrappedFileSystem):
    """A file system that tells birth times as a test wants them."""

    def __init__(self, birth_ns: int | None) -> None:
        super().__init__(UnsyncedFileSystem())
        self.birth_ns = birth_ns

    def around(self, call: Call):
        return self.birth_ns if call.method == "birth_time_ns" else super().around(call)


class Place:
    """A root ``old`` with two snapshots, and the paths around it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.old, self.new = base / "old", base / "new"
        self.store = base / "store"
        self.make(self.old, "first")
        self.first = self.on(self.old).create(name="first").snapshot
        (self.old / "file").write_text("second")
        self.second = self.on(self.old).create().snapshot

    def make(self, path: Path, text: str) -> None:
        path.mkdir()
        (path / "file").write_text(text)

    def on(self, path: Path, **options) -> Handle:
        return Handle(
            context_at(
                root=path,
                store_path=str(self.store),
                **({"fs": UnsyncedFileSystem(), "wait_s": 0} | options),
            )
        )

    def ids(self, path: Path, **options) -> list[str]:
        return [snapshot.id for snapshot in self.on(path, **options).list()]

    def check(self) -> None:
        assert self.on(self.base).verify(read_data=True).problems == ()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    if LOCAL.birth_time_ns(str(made.old)) is None:
        require("birth times")
        pytest.skip("the file system tells no birth times")
    return made


LOCAL = UnsyncedFileSystem()


def test_a_directory_that_was_renamed_keeps_its_history(place):
    place.old.rename(place.new)
    said = CollectingMonitor()

    found = place.ids(place.new, monitor=said)

    assert found == [place.second.id, place.first.id]
    assert any(str(place.old) in text and str(place.new) in text for text in said.warnings)
    assert not place.on(place.new).status().changes
    place.on(place.new).restore("first")
    assert (place.new / "file").read_text() == "first"
    place.on(place.new).undo()
    assert (place.new / "file").read_text() == "second"
    third = place.on(place.new).create().snapshot
    assert place.ids(place.new)[0] == third.id
    assert third.record.root_path == os.fsencode(place.new)
    assert place.ids(place.old) == []
    place.check()


def test_what_was_at_the_old_path_is_told_where_it_went(place):
    place.old.rename(place.new)
    place.ids(place.new)
    said = CollectingMonitor()

    assert place.ids(place.old, monitor=said) == []

    assert [text for text in said.warnings if str(place.new) in text]


def test_a_new_directory_at_the_old_path_begins_its_own_history(place):
    place.old.rename(place.new)
    assert len(place.ids(place.new)) == 2
    place.make(place.old, "another")

    other = place.on(place.old).create().snapshot

    assert place.ids(place.old) == [other.id]
    assert place.ids(place.new) == [place.second.id, place.first.id]
    third = place.base / "third"
    place.old.rename(third)
    assert place.ids(third) == [other.id]
    place.new.rename(place.old)
    assert place.ids(place.old) == [place.second.id, place.first.id]
    assert len(place.on(place.base).root_list()) == 2
    place.check()


def test_two_roots_that_swap_their_paths_keep_their_histories(place):
    place.make(place.new, "other")
    other = place.on(place.new).create().snapshot
    aside = place.base / "aside"
    place.old.rename(aside)
    assert len(place.ids(aside)) == 2
    place.new.rename(place.old)
    assert place.ids(place.old) == [other.id]
    aside.rename(place.new)

    assert place.ids(place.new) == [place.second.id, place.first.id]
    assert place.ids(place.old) == [other.id]
    place.check()


def test_a_directory_that_comes_back_has_its_history(place):
    for _ in range(3):
        place.old.rename(place.new)
        assert len(place.ids(place.new)) == 2
        place.new.rename(place.old)
        assert len(place.ids(place.old)) == 2

    assert not list(place.store.glob("roots/path-*"))
    place.check()


def test_a_copy_begins_its_own_history(place):
    shutil.copytree(place.old, place.new)

    assert place.ids(place.new) == []

    shutil.rmtree(place.old)
    assert place.ids(place.new) == []
    assert place.ids(place.old) == [place.second.id, place.first.id]


def test_a_directory_with_a_used_inode_is_not_the_root(place):
    place.old.rename(place.new)  # its inode, as if it had been given to another directory
    said = CollectingMonitor()

    assert place.ids(place.new, fs=Births(12345), monitor=said) == []
    assert said.warnings == []


@pytest.mark.parametrize("birth_ns", [12345, 1 << 62])
def test_a_directory_with_the_inode_of_a_root_is_another_root(place, birth_ns):
    """Each disk that is put in gets the device number of the last one, and numbers inodes alike."""
    (info,) = place.on(place.base, fs=Births(birth_ns)).root_list()

    assert info.directory == RootDirectory.REPLACED


def test_without_a_birth_time_there_is_a_hint_only(place):
    place.old.rename(place.new)
    said = CollectingMonitor()

    assert place.ids(place.new, fs=Births(None), monitor=said) == []

    assert said.codes == [WarningCode.ROOT_MAY_HAVE_MOVED]
    assert str(place.old) in said.warnings[0]
    place.on(place.new, fs=Births(None)).root_move(place.old)
    assert len(place.ids(place.new, fs=Births(None))) == 2


def test_a_root_that_is_still_there_is_not_taken_over(place):
    """As with a bind mount: one directory under two paths."""
    place.new.symlink_to(place.old)

    assert len(place.ids(place.new)) == 2
    assert [info.path for info in place.on(place.old).root_list()] == [os.fsencode(place.old)]


def test_a_root_given_by_a_link_is_recognised(place):
    place.old.rename(place.new)
    place.old.symlink_to(place.new)

    assert len(place.ids(place.old)) == 2
    place.on(place.old).restore("first")
    assert (place.new / "file").read_text() == "first"


def test_a_root_inside_a_root_that_is_moved_is_recognised(place):
    inner = place.old / "inner"
    place.make(inner, "inner")
    snapshot = place.on(inner).create().snapshot
    place.old.rename(place.new)

    assert place.ids(place.new / "inner") == [snapshot.id]
    assert place.ids(place.new) == [place.second.id, place.first.id]


def test_a_root_is_moved_to_another_file_system_by_hand(place):
    """There ``mv`` copies, and removes the original."""
    shutil.copytree(place.old, place.new)
    shutil.rmtree(place.old)
    assert place.ids(place.new) == []

    info = place.on(place.new).root_move(place.old)

    assert (info.path, info.snapshots) == (os.fsencode(place.new), 2)
    assert info.earlier_paths == (os.fsencode(place.old),)
    place.on(place.new).restore("first")
    assert (place.new / "file").read_text() == "first"
    place.check()


def test_a_root_is_moved_to_where_nothing_but_a_gap_was_noted(place):
    """A hook failed there before its first snapshot."""
    shutil.copytree(place.old, place.new)
    shutil.rmtree(place.old)
    handle = place.on(place.new)
    event = Event("claude", EventPhase.PRE, str(place.new), "session", "key", tool="Bash")
    with opened(handle.context, "capture", create=True) as session:
        session.root.register()
    note_gap(handle.context, event, "it took too long")
    assert agent_sessions(handle.context)[0].gaps

    assert handle.root_move(place.old).path == os.fsencode(place.new)

    assert place.ids(place.new) == [place.second.id, place.first.id]
    place.check()


def test_a_root_is_not_moved_over_another_history(place):
    place.make(place.new, "other")
    snapshot = place.on(place.new).create().snapshot

    with pytest.raises(Refused) as caught:
        place.on(place.new).root_move(place.old)

    assert caught.value.code == ErrorCode.ROOT_TAKEN
    assert place.ids(place.new) == [snapshot.id]
    assert len(place.ids(place.old)) == 2
    with pytest.raises(NotFound):
        place.on(place.new).root_move(place.base / "unknown")
    with pytest.raises(NotFound):
        place.on(place.new).root_move(place.old, place.base / "absent")


def test_a_plan_goes_on_where_its_root_was_moved(place):
    steps = [Step(name="one", run="echo 1 > one"), Step(name="two", run="test -e go")]
    failed = Planner(place.on(place.old)).run("plan", steps)
    place.old.rename(place.new)
    (place.new / "go").touch()
    planner = Planner(place.on(place.new, wait_s=5))

    assert [plan.id for plan in planner.list()] == [failed.id]
    assert planner.resume(failed.id).state == PlanState.COMPLETED
    assert planner.list()[0].root == os.fsencode(place.new)
    checkpoint = failed.checkpoints[0]
    planner.rollback(failed.id, checkpoint.id)
    assert not (place.new / "one").exists()


def test_an_interrupted_restore_is_finished_where_the_root_was_moved(place):
    before = tree_state(place.old)
    fault = Fault(methods=frozenset({"exchange"}), errno=None)
    with pytest.raises(Killed):
        place.on(place.old, fs=FaultyFileSystem(fault, inner=UnsyncedFileSystem())).restore("first")
    assert list(place.store.glob("roots/*/journal"))
    place.old.rename(place.new)

    place.on(place.new).list()

    assert (place.new / "file").read_text() == "first" or tree_state(place.new) == before
    assert not list(place.store.glob("roots/*/journal"))
    assert not list(place.new.glob(".treesnap*"))


def kill_at(number: int) -> FaultyFileSystem:
    fault = Fault(number=number, kinds=MUTATING, errno=None)
    return FaultyFileSystem(fault, inner=UnsyncedFileSystem())


@pytest.mark.needs("birth times")
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_move_that_is_killed_anywhere_loses_no_history(tmp_path, by_hand):
    number = 0
    is_killed = True
    while is_killed:
        number += sized(3, 1)
        base = tmp_path / str(number)
        base.mkdir()
        place = Place(base)
        place.old.rename(place.new)
        try:
            if by_hand:
                place.on(place.new, fs=kill_at(number)).root_move(place.old)
            else:
                place.on(place.new, fs=kill_at(number)).list()
            is_killed = False
        except Killed:
            pass

        assert place.ids(place.new) == [place.second.id, place.first.id]
        (info,) = place.on(place.new).root_list()
        assert (info.path, info.snapshots) == (os.fsencode(place.new), 2)
        assert place.on(place.new).create().snapshot.sequence == 3
        place.check()
    assert number > 5


def test_a_forget_that_fails_anywhere_leaves_all_and_says_so(tmp_path):
    """As with a file that is immutable: what cannot be removed is named, and nothing is lost."""
    number, ends = 0, set()
    while True:
        number += 1
        (tmp_path / str(number)).mkdir()
        place = Place(tmp_path / str(number))
        identities = place.ids(place.old)
        fault = Fault(number=number, errno=errno.EPERM, kinds=MUTATING)
        fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())
        monitor = CollectingMonitor()
        try:
            place.on(place.old, fs=fs, monitor=monitor).root_forget(force=True)
        except (TreesnapError, OSError):
            assert place.ids(place.old) == identities, number
            ends.add("failed")
            continue
        assert place.ids(place.old) == [], number
        if not fs.hits_of(fault):
            break
        ends.add("warned" if WarningCode.NOT_CLEANED_UP in monitor.codes else "done")
    assert {"failed", "warned"} <= ends


def test_a_pin_goes_only_when_it_is_durable_that_the_snapshot_is_gone(tmp_path):
    """After a power cut between both the snapshot would be back without its pin."""
    place = Place(tmp_path)
    place.on(place.old).pin("first")
    fs = RecordingFileSystem()

    place.on(place.old, fs=fs).root_forget(place.old, force=True)

    calls = [(call.method, call.paths[0]) for call in fs.log if call.paths]
    names = place.store / "snapshots"
    renamed = next(
        n for n, (how, path) in enumerate(calls) if how == "rename" and str(names) in path
    )
    unpinned = calls.index(("unlink", str(place.store / "states" / place.first.id)))
    synced = {path for method, path in calls[renamed:unpinned] if method == "sync"}
    assert {str(names), str(place.store / "temporary")} <= synced


def test_a_forget_that_is_killed_anywhere_leaves_all_or_nothing(tmp_path):
    number = 0
    is_killed = True
    outcomes = set()
    while is_killed:
        number += sized(3, 1)
        base = tmp_path / str(number)
        base.mkdir()
        place = Place(base)
        place.on(place.old).pin("first")
        place.on(place.old).restore("first")
        count = len(place.ids(place.old))
        try:
            place.on(place.old, fs=kill_at(number)).root_forget(force=True)
            is_killed = False
        except Killed:
            pass

        found = place.on(place.old).list()
        outcomes.add(len(found))
        assert len(found) in (0, count)
        if found:
            assert place.on(place.old).resolve("first").pinned
        place.check()
        place.on(place.old).gc()
        assert not list(place.store.glob("temporary/forgotten-*"))
        assert len(list(place.store.glob("states/*"))) == (1 if found else 0)
        if place.on(place.old).root_list():
            place.on(place.old).root_forget(force=True)
        assert place.on(place.old).root_list() == ()
        assert place.on(place.old).create().snapshot.sequence == 1
        place.check()
    assert outcomes == {0, count}


def test_what_a_person_made_is_not_forgotten_unasked(place):
    with pytest.raises(Refused, match="2 of 2 snapshots") as caught:
        place.on(place.old).root_forget()

    assert caught.value.code == ErrorCode.HISTORY_KEPT
    info = place.on(place.base).root_forget(place.old, force=True)
    assert (info.snapshots, info.path) == (2, os.fsencode(place.old))
    assert (place.old / "file").read_text() == "second"
    assert place.on(place.old).gc().removed_objects > 0
    with pytest.raises(NotFound):
        place.on(place.old).root_forget()


def test_labelled_steps_of_a_session_are_not_forgotten_unasked(place):
    place.make(place.new, "x")
    place.on(place.new).create(session="work", step=1, label="it compiles")
    unlabelled = place.on(place.new).create(session="work", step=2)

    with pytest.raises(Refused, match="1 of 2 snapshots") as caught:
        place.on(place.new).root_forget()

    assert caught.value.code == ErrorCode.HISTORY_KEPT
    assert place.on(place.new).resolve("latest").id == unlabelled.id
    place.on(place.new).root_forget(force=True)


def test_what_was_made_automatically_is_forgotten(place):
    place.make(place.new, "x")
    place.on(place.new).create(kind=SnapshotKind.RUN)
    (record,) = (info for info in place.on(place.new).root_list() if info.path.endswith(b"new"))

    place.on(place.old).root_forget(record.id[:8])

    assert len(place.on(place.new).root_list()) == 1
    assert len(place.ids(place.old)) == 2


def test_a_root_that_a_process_needs_is_not_forgotten(place):
    with place.on(place.old).rollback_on_error("step"), pytest.raises(Busy):
        place.on(place.old).root_forget(force=True)


def test_a_root_is_listed_with_what_is_at_its_path(place):
    def directory() -> RootDirectory:
        (info,) = place.on(place.base).root_list()
        return info.directory

    assert directory() == RootDirectory.PRESENT
    place.old.rename(place.new)
    assert directory() == RootDirectory.ABSENT
    place.make(place.old, "another")
    assert directory() == RootDirectory.REPLACED


def test_a_root_is_forgotten_while_other_processes_create(tmp_path):
    place = Place(tmp_path)
    program = (
        "import sys, treesnap\n"
        "handle = treesnap.open(sys.argv[1], sys.argv[2])\n"
        "for number in range(15):\n"
        "    open(sys.argv[1] + '/' + sys.argv[3], 'w').write(str(number))\n"
        "    print(handle.create().snapshot.id)\n"
    )
    words = [sys.executable, "-c", program, str(place.old), str(place.store)]
    children = [
        subprocess.Popen([*words, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    forgotten = 0
    while any(child.poll() is None for child in children):
        with suppress(TreesnapError):
            place.on(place.old, wait_s=5).root_forget(force=True)
            forgotten += 1
    for child in children:
        output, errors = child.communicate()
        assert (child.returncode, errors) == (0, "")
        assert len(output.split()) == 15
    assert forgotten > 0
    place.on(place.old).create()
    place.on(place.old).gc()
    place.check()


@pytest.mark.parametrize("damaged", ["home", "path"])
def test_a_damaged_record_of_a_moved_root_is_repaired(place, damaged):
    place.old.rename(place.new)
    place.ids(place.new)
    pattern = "roots/*/root" if damaged == "home" else "roots/path-*"
    (path,) = place.store.glob(pattern)
    path.write_bytes(b"damaged")
    handle = place.on(place.base)
    assert [problem.code for problem in handle.verify().problems] == ["bad-root"]

    handle.verify(repair=True)

    place.check()
    assert place.ids(place.new) == [place.second.id, place.first.id]


def test_lost_content_is_undone_where_the_root_was_moved(place):
    place.old.rename(place.new)
    place.ids(place.new)
    for pack in (place.store / "packs").iterdir():
        data = bytearray(pack.read_bytes())
        data[-30] ^= 1
        pack.write_bytes(data)

    assert place.on(place.new).verify(repair=True, read_data=True).recovered
