"""Histories of other machines: fetched, looked at, restored from, and pulled."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path

import pytest

import treesnap
from mounting import mounting
from oracle import difference, record
from treesnap.core.codec.pack import scan_blocks
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, Refused, RemoteFailed
from treesnap.core.model.ids import object_id
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.maintenance.roots import forget_root, list_roots
from treesnap.core.store.maintenance.retention import Policy
from treesnap.core.store.store import Store
from treesnap.remote import Remotes
from treesnap.testing.doubles import Fault, FaultyFileSystem, Killed

pytestmark = pytest.mark.sampled(12)


class Machine:
    """A machine with one directory and a store, beside a disk that all of them share."""

    def __init__(self, base: Path, name: str) -> None:
        self.disk = str(base / "disk")
        self.garden = base / name / "garden"
        self.store = base / name / "store"
        self.garden.mkdir(parents=True)

    @property
    def handle(self) -> treesnap.Handle:
        return treesnap.open(self.garden, self.store)

    @property
    def remotes(self) -> Remotes:
        return Remotes(self.handle)

    def write(self, **files: str) -> str:
        """Writes files and returns the id of a snapshot."""
        for name, text in files.items():
            path = self.garden / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return self.handle.create().id

    def add(self) -> None:
        self.remotes.add("disk", self.disk)

    def push(self) -> str:
        """Pushes, and returns the id of the history."""
        return self.remotes.push().history_id

    def clone(self, *words: str, paths: tuple[str, ...] = (), lazy: bool = False) -> None:
        self.remotes.clone(self.disk, *words, paths=paths, lazy=lazy)
        self.add()

    def files(self) -> dict[str, str]:
        found = (path for path in self.garden.rglob("*") if path.is_file())
        return {str(path.relative_to(self.garden)): path.read_text() for path in found}


@pytest.fixture
def laptop(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, "laptop")
    machine.add()
    return machine


@pytest.fixture
def desktop(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "desktop")


def test_a_fetched_history_is_looked_at_and_restored_without_the_remote(laptop, desktop, tmp_path):
    first = laptop.write(plants="roses", beds__one="1")
    os.link(laptop.garden / "plants", laptop.garden / "same")
    second = laptop.write(plants="tulips")
    laptop.push()
    desktop.write(own="mine")
    desktop.add()

    found = desktop.remotes.fetch()

    os.rename(desktop.disk, f"{desktop.disk}-away")
    handle = desktop.handle
    assert (found.remote, found.newest_id, found.fetched.snapshots) == ("disk", second, 2)
    assert found.history_name.startswith("garden@")
    name = found.history_name
    for ref in (found.ref, "disk/garden", f"disk/{name}", f"disk/{name}@latest"):
        assert handle.resolve(ref).id == second
    for ref in ("disk/garden@latest~1", f"disk/garden@{first[:8]}"):
        assert handle.resolve(ref).id == first
    handle.restore("disk/garden", to=tmp_path / "copy")
    assert difference(record(laptop.garden), record(tmp_path / "copy")) == []
    assert desktop.files() == {"own": "mine"}
    assert [item.id for item in handle.list()] == [handle.resolve("latest").id]
    assert handle.verify(read_data=True).problems == ()
    handle.gc()
    assert handle.verify(read_data=True).problems == ()


def test_a_fetched_history_is_out_of_reach_but_its_restore_is_finished(
    laptop, desktop, monkeypatch
):
    """A reference does not lead there; the record of a restore that was interrupted does."""
    newest = laptop.write(plants="roses")
    laptop.push()
    desktop.write(plants="mine")
    desktop.add()
    found = desktop.remotes.fetch()
    context = desktop.handle.context
    confined = Handle(context._replace(reach=frozenset([context.root])))

    for ref in (newest, newest[:12], found.ref, "disk/garden", "disk/garden@latest", "disk/x"):
        with pytest.raises(NotFound) as caught:
            confined.resolve(ref)
        assert str(caught.value) == f"This root has no snapshot {ref!r}"

    def stop(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "exchange", stop)
        with pytest.raises(KeyboardInterrupt):
            desktop.handle.restore("disk/garden")
    assert confined.recover() is not None
    assert desktop.files() in (laptop.files(), {"plants": "mine"})


def test_a_root_is_restored_to_a_fetched_snapshot_and_back(laptop, desktop):
    laptop.write(plants="roses", beds__one="1")
    laptop.push()
    desktop.write(own="mine")
    desktop.add()
    desktop.remotes.fetch()

    desktop.handle.restore("disk/garden")

    assert desktop.files() == laptop.files()
    desktop.handle.undo()
    assert desktop.files() == {"own": "mine"}
    desktop.handle.redo()
    assert desktop.files() == laptop.files()
    desktop.handle.create()
    assert desktop.handle.verify(read_data=True).problems == ()


def test_what_is_fetched_whole_is_not_compressed_again(laptop, desktop):
    laptop.write(plants="roses " * 99, beds__one="1")
    laptop.write(plants="tulips " * 99)
    laptop.push()

    desktop.clone()

    assert stored_blocks(laptop.store) <= stored_blocks(desktop.store)


def test_a_lazy_clone_has_one_snapshot_and_others_when_they_are_needed(laptop, desktop, tmp_path):
    first = laptop.write(plants="roses " * 999, beds__one="1")
    second = laptop.write(plants="tulips", beds__one="2")
    laptop.push()

    desktop.clone(lazy=True)

    handle = desktop.handle
    assert desktop.files() == {"plants": "tulips", "beds/one": "2"}
    assert [item.id for item in handle.list() if item.kind is SnapshotKind.MANUAL] == [second]
    assert handle.verify(read_data=True).problems == ()
    handle.gc()
    older = object_id(ObjectKind.CHUNK, b"roses " * 999)
    assert Store(LocalFileSystem(), str(laptop.store)).has(older)
    assert not Store(LocalFileSystem(), str(desktop.store)).has(older)
    handle.restore(desktop.remotes.fetch("disk", "garden", first).ref)
    assert desktop.files() == {"plants": "roses " * 999, "beds/one": "1"}
    handle.undo()
    assert desktop.files() == {"plants": "tulips", "beds/one": "2"}
    assert handle.verify(read_data=True).problems == ()


def test_a_lazy_clone_of_an_older_snapshot_has_that_one(laptop, desktop):
    first = laptop.write(plants="roses")
    laptop.write(plants="tulips")
    laptop.push()

    desktop.clone("garden", first, lazy=True)

    assert desktop.files() == {"plants": "roses"}
    assert [item.id for item in desktop.handle.list() if item.record.label is None] == [first]


def test_machines_go_on_from_a_lazy_clone(laptop, desktop):
    laptop.write(plants="roses", beds__one="1")
    laptop.write(plants="tulips")
    laptop.push()
    desktop.clone(lazy=True)

    mine = desktop.write(own="mine")
    desktop.push()
    laptop.write(beds__one="11")
    laptop.remotes.pull()
    laptop.push()
    desktop.remotes.pull()

    expected = {"plants": "tulips", "beds/one": "11", "own": "mine"}
    assert laptop.files() == expected
    assert desktop.files() == expected
    assert laptop.handle.resolve(f"disk/{desktop.push()}@{mine}").id == mine
    assert desktop.handle.verify(read_data=True).problems == ()


def test_the_newest_snapshot_is_that_of_the_history_and_not_of_the_clock(laptop, desktop):
    times = count(10**18, -(10**9))
    handle = Handle(laptop.handle.context._replace(clock_ns=lambda: next(times)))
    made = []
    for text in ("roses", "tulips", "lilies"):
        (laptop.garden / "plants").write_text(text)
        made.append(handle.create().id)
    laptop.push()

    desktop.clone()

    assert desktop.files() == {"plants": "lilies"}
    assert [item.id for item in desktop.remotes.snapshots("disk", "garden")] == made[::-1]
    assert [item.newest_id for item in desktop.remotes.histories()] == [made[-1]]


def stored_blocks(store: Path) -> set[bytes]:
    """Returns the blocks of a store's packs as they are stored."""
    found = set()
    for path in (store / "packs").iterdir():
        data = path.read_bytes()
        blocks = [table.block for table in scan_blocks(data, bytes(16))]
        found |= {data[block.offset : block.offset + block.size] for block in blocks}
    return found


def test_some_paths_of_a_snapshot_are_fetched_alone(laptop, desktop):
    laptop.write(plants="roses", beds__one="1", beds__two="2" * 5000)
    (laptop.garden / "large").write_bytes(os.urandom(3_000_000))
    os.link(laptop.garden / "beds" / "one", laptop.garden / "same")
    os.link(laptop.garden / "beds" / "two", laptop.garden / "beds" / "three")
    laptop.handle.create()
    laptop.push()
    desktop.write(own="mine")
    desktop.add()

    found = desktop.remotes.fetch(ref="latest", paths=["beds"])

    assert found.fetched.size_bytes < 20_000
    desktop.handle.restore(found.ref, ["beds"])
    assert desktop.files() == {
        "own": "mine",
        "beds/one": "1",
        "beds/two": "2" * 5000,
        "beds/three": "2" * 5000,
    }
    beds = desktop.garden / "beds"
    assert os.path.samefile(beds / "two", beds / "three")
    assert desktop.handle.verify(read_data=True).problems == ()
    again = desktop.remotes.fetch(ref="latest", paths=["beds"])
    assert (again.newest_id, again.fetched.snapshots) == (found.newest_id, 0)


def test_a_path_that_the_snapshot_lacks_is_named_and_nothing_comes(laptop, desktop):
    laptop.write(plants="roses")
    laptop.push()
    desktop.write(own="mine")
    desktop.add()

    with pytest.raises(NotFound, match="does not hold 'weeds'"):
        desktop.remotes.fetch(ref="latest", paths=["weeds"])

    with pytest.raises(NotFound):
        desktop.handle.resolve("disk/garden")


def test_some_paths_can_be_cloned(laptop, desktop):
    laptop.write(plants="roses", beds__one="1", beds__two="2")
    (laptop.garden / "large").write_bytes(os.urandom(3_000_000))
    laptop.handle.create()
    laptop.push()

    desktop.clone(paths=("beds", "plants"))

    assert desktop.files() == {"plants": "roses", "beds/one": "1", "beds/two": "2"}
    assert desktop.handle.verify(read_data=True).problems == ()
    assert sum(f.stat().st_size for f in desktop.store.rglob("*") if f.is_file()) < 100_000


def test_only_what_is_new_is_fetched(laptop, desktop):
    laptop.write(plants="roses" * 1000)
    laptop.push()
    desktop.write(own="mine")
    desktop.add()
    desktop.remotes.fetch()
    laptop.write(beds="new")
    laptop.push()

    found = desktop.remotes.fetch()

    assert found.fetched.snapshots == 1
    assert found.fetched.size_bytes < 1000
    assert desktop.remotes.fetch().fetched.objects == 0


def test_which_history_is_meant_has_to_be_said(laptop, desktop, tmp_path):
    laptop.write(plants="roses")
    laptop.push()
    desktop.write(own="mine")
    desktop.add()
    mine = desktop.push()
    third = Machine(tmp_path, "third")
    third.write(weeds="many")
    third.add()
    theirs = third.push()

    assert desktop.remotes.fetch(history=theirs[:8]).history_id == theirs
    assert desktop.remotes.fetch(history=mine).history_id == mine
    with pytest.raises(InvalidArgument, match="Several histories are possible"):
        desktop.remotes.fetch()
    desktop.remotes.fetch(history=laptop.remotes.push().history_id)
    with pytest.raises(InvalidArgument, match="Several histories are possible"):
        desktop.handle.resolve("disk/garden")
    with pytest.raises(NotFound):
        desktop.handle.resolve("disk/nothing")
    with pytest.raises(NotFound):
        desktop.handle.resolve("other/garden")


def test_a_ref_that_fits_several_snapshots_is_ambiguous(laptop, desktop):
    ids = list[str]()
    while len({item[0] for item in ids}) == len(ids):  # 16 digits, so 17 snapshots at most
        ids.append(laptop.write(plants=f"{len(ids)} roses"))
    laptop.push()
    desktop.add()

    with pytest.raises(InvalidArgument) as refused:
        desktop.remotes.fetch(ref=ids[-1][0])

    assert refused.value.code == ErrorCode.AMBIGUOUS_REF


def test_the_snapshots_of_a_remote_are_listed_without_fetching_them(laptop, desktop):
    ids = [laptop.write(plants="roses"), laptop.write(plants="tulips")]
    history = laptop.push()
    desktop.write(own="mine")
    desktop.add()

    assert [item.id for item in laptop.remotes.snapshots()] == ids[::-1]
    assert [item.id for item in desktop.remotes.snapshots("disk", history)] == ids[::-1]
    assert len(list((desktop.store / "snapshots").iterdir())) == 1


def test_a_pull_writes_nothing_into_what_was_mounted_over_the_root(laptop, desktop):
    laptop.write(plants="roses")
    laptop.push()
    desktop.clone()
    laptop.write(plants="tulips")
    laptop.push()
    with mounting() as mounter:
        mounter.tmpfs(desktop.garden)
        with pytest.raises(Refused) as error:
            desktop.remotes.pull()
        assert desktop.files() == {}

    assert error.value.code is ErrorCode.ROOT_COVERED
    assert desktop.files() == {"plants": "roses"}
    desktop.remotes.pull()
    assert desktop.files() == {"plants": "tulips"}


def test_a_pull_brings_what_changed_there_and_keeps_what_changed_here(laptop, desktop):
    laptop.write(plants="roses", beds="1", tools="spade")
    laptop.push()
    desktop.clone()
    desktop.write(tools="spade and rake")
    (desktop.garden / "unsaved").write_text("not captured yet")
    (laptop.garden / "beds").unlink()
    newest = laptop.write(plants="tulips", new="seeds")
    laptop.push()

    found = desktop.remotes.pull()

    assert found.fetch.newest_id == newest
    assert found.conflicts == ()
    merged = {
        "plants": "tulips",
        "new": "seeds",
        "tools": "spade and rake",
        "unsaved": "not captured yet",
    }
    assert desktop.files() == merged
    held = len(desktop.handle.list())
    (desktop.garden / "later").write_text("not captured by a pull that brings nothing")
    assert desktop.remotes.pull().restore is None
    assert len(desktop.handle.list()) == held
    (desktop.garden / "later").unlink()
    desktop.handle.undo()
    assert desktop.files() == {
        "plants": "roses",
        "beds": "1",
        "tools": "spade and rake",
        "unsaved": "not captured yet",
    }
    desktop.remotes.pull()
    assert desktop.files() == merged


def test_a_pull_finishes_one_that_was_killed_while_it_cleaned_up(laptop, desktop):
    laptop.write(gone__rose="1", plants="1")
    laptop.push()
    desktop.clone()
    shutil.rmtree(desktop.garden / "gone")
    desktop.write(plants="2")
    desktop.push()
    fault = Fault(
        methods=frozenset({"remove_directory"}),
        where=lambda call: "treesnap-restore" in str(call.paths),
    )
    killed = laptop.handle.context._replace(fs=FaultyFileSystem(fault))
    with pytest.raises(Killed):
        Remotes(Handle(killed)).pull()

    assert any(name.startswith(".treesnap-restore") for name in os.listdir(laptop.garden))
    laptop.remotes.pull()

    assert os.listdir(laptop.garden) == ["plants"]
    assert laptop.files() == {"plants": "2"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_changed_on_both_sides_is_a_conflict(laptop, desktop, overwrite):
    laptop.write(plants="roses", beds="1")
    laptop.push()
    desktop.clone()
    desktop.write(plants="mine")
    laptop.write(plants="theirs", beds="2")
    laptop.push()

    found = desktop.remotes.pull(overwrite=overwrite)

    assert found.conflicts == (b"plants",)
    assert desktop.files() == {"plants": "theirs" if overwrite else "mine", "beds": "2"}


def test_pulls_go_to_and_fro(laptop, desktop):
    laptop.write(plants="roses", beds="1")
    laptop.push()
    desktop.clone()
    for number in range(3):
        desktop.write(beds=f"desktop {number}")
        desktop.push()
        laptop.remotes.pull()
        laptop.write(plants=f"laptop {number}")
        laptop.push()
        desktop.remotes.pull()
        assert laptop.files() == desktop.files()
        assert laptop.files() == {"plants": f"laptop {number}", "beds": f"desktop {number}"}


def test_what_is_changed_back_to_an_older_state_is_a_change(laptop, desktop):
    laptop.write(plants="roses", beds="1")
    laptop.push()
    desktop.clone()
    laptop.write(plants="tulips")
    laptop.push()
    desktop.remotes.pull()
    desktop.write(plants="roses")
    desktop.push()

    found = laptop.remotes.pull()

    assert found.conflicts == ()
    assert laptop.files() == desktop.files() == {"plants": "roses", "beds": "1"}


def test_what_was_pulled_and_then_pruned_on_the_remote_is_no_conflict(laptop, desktop):
    laptop.write(plants="roses")
    laptop.push()
    desktop.clone()
    laptop.write(plants="tulips")
    laptop.push()
    desktop.remotes.pull()
    laptop.write(plants="lilies")
    laptop.push()
    laptop.remotes.prune(policy=Policy(keep_last=1))

    found = desktop.remotes.pull()

    assert found.conflicts == ()
    assert desktop.files() == {"plants": "lilies"}


def test_a_pull_that_was_undone_is_pushed_when_it_is_redone(laptop, desktop):
    laptop.write(plants="roses")
    laptop.push()
    desktop.clone()
    laptop.write(new="seeds")
    laptop.push()
    desktop.remotes.pull()
    desktop.handle.undo()
    desktop.write(own="mine")
    desktop.push()

    laptop.remotes.pull()

    assert laptop.files() == {"plants": "roses", "new": "seeds", "own": "mine"}
    desktop.remotes.pull()
    assert desktop.files() == laptop.files()
    desktop.handle.undo()
    desktop.handle.redo()
    merged = desktop.handle.resolve("latest").id
    assert merged in desktop.remotes.push().snapshots


def test_histories_with_nothing_in_common_are_not_mixed(laptop, desktop):
    laptop.write(plants="roses")
    laptop.push()
    desktop.write(own="mine")
    desktop.add()

    with pytest.raises(Refused, match="no snapshot in common"):
        desktop.remotes.pull()

    assert desktop.files() == {"own": "mine"}


def test_a_fetch_of_which_the_remote_is_away_fails_and_changes_nothing(laptop, desktop):
    laptop.write(plants="roses")
    laptop.push()
    desktop.write(own="mine")
    desktop.add()
    os.rename(laptop.disk, f"{laptop.disk}-away")

    with pytest.raises(RemoteFailed):
        desktop.remotes.fetch()

    assert desktop.files() == {"own": "mine"}


def test_a_history_whose_name_is_hostile_is_fetched_by_its_id(laptop, desktop, tmp_path):
    odd = Machine(tmp_path, "third")
    odd.garden = odd.garden.rename(odd.garden.with_name("..@latest\n\x1b[2J"))
    odd.write(plants="odd")
    odd.add()
    history = odd.push()
    desktop.write(own="mine")
    desktop.add()

    found = desktop.remotes.fetch(history=history[:10])

    assert desktop.handle.resolve(found.ref).id == found.newest_id
    assert desktop.handle.resolve(f"disk/{history}").id == found.newest_id
    paths = [os.fsdecode(root.path) for root in list_roots(desktop.handle.context)]
    assert all(path.isprintable() for path in paths)
    assert any("/fetched/disk/" in path for path in paths)
    assert desktop.handle.verify().problems == ()


def test_what_was_fetched_can_be_forgotten(laptop, desktop):
    laptop.write(plants="roses" * 1000)
    laptop.push()
    desktop.write(own="mine")
    desktop.add()
    found = desktop.remotes.fetch()
    roots = [os.fsdecode(root.path) for root in list_roots(desktop.handle.context)]
    (fetched,) = (path for path in roots if "/fetched/" in path)

    forget_root(desktop.handle.context, fetched, force=True)

    with pytest.raises(NotFound):
        desktop.handle.resolve(found.ref)
    assert desktop.handle.gc().removed_objects > 0
    assert [item.kind for item in desktop.handle.list()] == [SnapshotKind.MANUAL]


def test_a_root_does_not_pull_its_own_history(laptop):
    laptop.write(plants="roses")
    laptop.push()

    with pytest.raises(NotFound, match="no history but the root's own"):
        laptop.remotes.pull()

    assert len(list((laptop.store / "snapshots").iterdir())) == 1
