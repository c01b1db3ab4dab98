"""One snapshot that cannot be read stops nothing else, in its root or in another."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

import treesnap
from forge import Forge
from sampling import evenly, sized
from treesnap.core.codec.message import pack, unpack
from treesnap.core.codec.snapshot import encode_snapshot
from treesnap.core.handle import Handle
from treesnap.core.model.entries import Totals
from treesnap.core.model.errors import Refused, TreesnapError
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.core.store.store import Store
from treesnap.testing.doubles import Fault, FaultyFileSystem, UnsyncedFileSystem
from world import World


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def other_root(world: World, tmp_path) -> Handle:
    """Returns a handle on another root of the same store, with a snapshot."""
    root = tmp_path / "other"
    root.mkdir()
    (root / "theirs").write_bytes(os.urandom(5000))
    handle = Handle(context_at(root=root, store_path=str(world.store), fs=UnsyncedFileSystem()))
    handle.create(name="theirs")
    return handle


def flip_in_record(world: World, ref: str, offset: int) -> str:
    """Flips a bit of a snapshot's record; returns its id."""
    identity = world.handle().resolve(ref).id
    path = world.only(f"snapshots/*/*-{identity}")
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    return identity


OFFSETS = [3, 9, 17, 30, -10]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("offset", OFFSETS)
def test_a_damaged_record_stops_no_command(world, tmp_path, offset):
    other = other_root(world, tmp_path)
    identity = flip_in_record(world, "second", offset)
    warnings = CollectingMonitor()

    listed = world.handle(monitor=warnings).list()

    assert identity not in {item.id for item in listed}
    assert len(listed) >= 1
    assert any(identity[:12] in warning for warning in warnings.warnings)
    for handle in (world.handle(), other):
        assert identity in handle.gc().damaged
        handle.prune(treesnap.Policy(keep_last=1))
    assert world.restores("first")
    (other_path := tmp_path / "other" / "theirs").unlink()
    other.restore("theirs")
    assert other_path.exists()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ["pipe", "link", "loop", "directory", "socket"])
def test_another_type_in_the_place_of_a_record_stops_nothing_else(world, tmp_path, kind):
    other = other_root(world, tmp_path)
    identity = world.handle().resolve("second").id
    path = world.only(f"snapshots/*/*-{identity}")
    path.unlink()
    make_other_type(path, kind)

    for handle in (world.handle(), other):
        assert identity not in {item.id for item in handle.list(all_roots=True)}
        assert identity in handle.gc().damaged
        handle.prune(treesnap.Policy(keep_last=1))
        handle.stats()
    assert not world.handle().verify().ok
    assert world.restores("first")
    (tmp_path / "other" / "theirs").unlink()
    other.restore("theirs")
    assert (tmp_path / "other" / "theirs").exists()
    world.handle().verify(repair=True)
    assert not os.path.lexists(path)
    assert world.handle().verify(read_data=True).ok


def make_other_type(path: Path, kind: str) -> None:
    """Puts something at a path that is not a regular file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    else:
        path.symlink_to("/etc/passwd" if kind == "link" else path.name)


def test_what_a_damaged_record_names_is_kept_until_it_is_repaired(world):
    """The frame is damaged, the record is whole: the collection must not take its content."""
    flip_in_record(world, "second", 17)
    world.handle().gc()

    found = world.handle().verify(repair=True)

    assert not found.left
    assert world.restores("second")


def test_a_damaged_record_is_deleted_by_its_id(world):
    identity = flip_in_record(world, "second", 60)
    warnings = CollectingMonitor()

    world.handle(monitor=warnings).delete(identity[:16])

    assert any(identity[:12] in warning for warning in warnings.warnings)
    assert not list(world.store.glob(f"snapshots/*/*-{identity}"))
    assert world.handle().gc().damaged == ()
    assert world.handle().verify(read_data=True).ok


def test_a_damaged_record_that_is_pinned_is_not_deleted(world):
    world.handle().pin("second")
    identity = flip_in_record(world, "second", 60)

    with pytest.raises(Refused, match="pinned"):
        world.handle().delete(identity)


ODD = {
    "step": 1.5,
    "tags": {"a": None},
    "created_at_ns": "now",
    "parent": "none",
    "version": 0,
}


@pytest.mark.parametrize("field", ODD)
def test_a_record_that_no_reader_accepts_goes_to_quarantine(tmp_path, field):
    (tmp_path / "root").mkdir()
    forge = Forge(tmp_path / "store", tmp_path / "root")
    good = forge.snapshot(forge.tree(forge.file(b"kept")))
    record = forge.handle().resolve(good).record
    payload = pack(unpack(encode_snapshot(record._replace(label="odd")), "x") | {field: ODD[field]})
    odd = forge.publish(payload)

    collected = forge.handle().gc()
    found = forge.handle().verify(repair=True)

    assert collected.damaged == (odd,)
    assert not found.left
    assert any(odd[:12] in done for done in found.repaired)
    assert [item.id for item in forge.handle().list()] == [good]
    assert forge.handle().gc().damaged == ()
    forge.handle().restore(good)
    assert (tmp_path / "root" / "kept").read_bytes() == b"forged\n"


def test_all_that_a_tree_names_is_kept_although_no_reader_accepts_the_tree(tmp_path):
    """As earlier writers made them: the content can be had back by hand, or by another reader."""
    (tmp_path / "root").mkdir()
    forge = Forge(tmp_path / "store", tmp_path / "root")
    below = forge.tree(forge.file(b"deep", b"deep content\n" * 10))
    rows = [forge.directory(b"below", below), forge.file(b"top", b"top content\n" * 10)]
    bad = forge.tree(rows[0]._replace(mode=1 << 20), rows[1])
    identity = forge.snapshot(bad)
    good = forge.snapshot(forge.tree(forge.file(b"kept"), totals=Totals(1)))
    count = sum(1 for pack_id in _packs(forge) for _ in pack_id)

    collected = forge.handle().gc()

    assert collected.damaged == (identity,)
    assert collected.removed_objects == 0
    assert sum(1 for pack_id in _packs(forge) for _ in pack_id) == count
    forge.handle().restore(good)


def _packs(forge: Forge) -> list[list[bytes]]:
    from treesnap.core.fs.local import LocalFileSystem
    from treesnap.core.store.store import Store

    with Store.open(LocalFileSystem(), str(forge.store)) as store:
        return [[item.id for item in store.inventory(one).entries] for one in store.packs.sizes()]


def test_an_error_of_the_disk_is_not_damage(world):
    (world.root / "more").write_bytes(os.urandom(3000))
    garbage = world.handle().create()
    world.handle().delete(garbage.id)
    before = sorted((path.name, path.stat().st_size) for path in world.store.glob("packs/*"))
    fault = Fault(methods=frozenset({"read_at"}), errno=errno.EIO, lasting=True)

    with pytest.raises(TreesnapError):
        world.handle(fs=FaultyFileSystem(fault)).gc()

    assert sorted((p.name, p.stat().st_size) for p in world.store.glob("packs/*")) == before


def test_a_repair_puts_any_changed_byte_of_a_record_right(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("precious")
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    identity = handle.create(label="a label that says what it is").id
    (path,) = (tmp_path / "store" / "snapshots").glob(f"*/*-{identity}")
    whole = path.read_bytes()

    for number in evenly(len(whole), sized(8, len(whole))):
        damaged = bytearray(whole)
        damaged[number - 1] ^= 0xA5
        path.write_bytes(damaged)
        handle.verify(repair=True)
        assert path.read_bytes() == whole, number

    assert b"".join(handle.cat(identity, "file")) == b"precious"


def test_a_root_in_use_keeps_no_other_from_being_repaired(world, tmp_path):
    theirs = other_root(world, tmp_path)
    handles = {"second": world.handle(), "theirs": theirs}
    paths = {}
    for name, handle in handles.items():
        paths[name] = world.only(f"snapshots/*/*-{handle.resolve(name).id}")
        paths[name].write_bytes(b"x" + paths[name].read_bytes()[1:])
    root_ids = {name: path.parent.name for name, path in paths.items()}
    in_use, other = sorted(paths, key=lambda name: root_ids[name])

    store = Store.open(UnsyncedFileSystem(), str(world.store))
    with store.root_by_id(root_ids[in_use]).locked("create", 0.0):
        handle = Handle(
            context_at(world.root, str(world.store), fs=UnsyncedFileSystem(), wait_s=0.0)
        )
        handle.verify(repair=True)

    assert paths[other].read_bytes()[:1] != b"x"
    assert paths[in_use].read_bytes()[:1] == b"x"
