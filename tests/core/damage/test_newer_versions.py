"""What a newer treesnap wrote is not damage: it is named and kept, with all that it may need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calling import run_forked
from treesnap.core.codec.envelope import CHECKSUM_SIZE, FileKind, header, seal, unseal
from treesnap.core.codec.journal import VERSION
from treesnap.core.codec.message import pack, unpack
from treesnap.core.codec.snapshot import snapshot_id
from treesnap.core.model.errors import Refused, UnsupportedFormat, WarningCode
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.ids import checksum
from treesnap.core.store.maintenance.retention import Policy
from world import World, damage


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def make_newer(path: Path) -> None:
    """Gives a sealed file the header that a newer version would write."""
    data = path.read_bytes()
    body = header(FileKind(data[8]), 2) + data[16:-CHECKSUM_SIZE]
    path.write_bytes(body + checksum(body, CHECKSUM_SIZE))


def in_header(world: World) -> Path:
    """Makes a snapshot newer by the version of its file."""
    path = world.only(f"snapshots/*/*-{world.handle().resolve('second').id}")
    make_newer(path)
    return path


def in_record(world: World) -> Path:
    """Makes a snapshot newer by the version of its record, of which it has the id."""
    path = world.only(f"snapshots/*/*-{world.handle().resolve('second').id}")
    fields = unpack(unseal(path.read_bytes(), FileKind.SNAPSHOT, "x"), "snapshot")
    payload = pack(fields | {"version": 2})
    number, _, old = path.name.partition("-")
    state = world.store / "states" / old
    identity = snapshot_id(payload)
    newer = path.with_name(f"{number}-{identity}")
    newer.write_bytes(seal(FileKind.SNAPSHOT, payload))
    path.unlink()
    if state.exists():
        state.unlink()
        world.store.joinpath("states", identity).write_bytes(
            seal(
                FileKind.SNAPSHOT_STATE,
                pack({"version": 1, "pinned": True, "tags": {}, "snapshot": identity}),
            )
        )
    return newer


HOWS = pytest.mark.parametrize("make", [in_header, in_record])


def id_of(path: Path) -> str:
    return path.name.partition("-")[2]


def packs(world: World) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in world.store.glob("packs/*")}


@HOWS
class TestSnapshot:
    def test_a_check_names_it_and_says_that_it_cannot_be_judged(self, world, make, tmp_path):
        path = make(world)

        result = world.handle().verify(read_data=True)
        ended = run_forked(
            ["--store", str(world.store), "verify", "--read-data"],
            cwd=world.root,
            variables={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        )

        assert result.ok
        assert result.newer == (str(path.relative_to(world.store)),)
        assert ended.code == 3
        assert "was written by a newer treesnap" in ended.out
        assert id_of(path)[:12] in ended.out

    def test_a_repair_of_something_else_leaves_it_and_its_pin_alone(self, world, make):
        world.handle().pin("second")
        path = make(world)
        before = path.read_bytes()
        (state,) = world.store.glob(f"states/{id_of(path)}")
        pin = state.read_bytes()
        for part in world.store.glob("index/*[0-9a-f]"):
            damage(part, "zeros")

        result = world.handle().verify(repair=True)

        assert result.left == ()
        assert result.newer == (str(path.relative_to(world.store)),)
        assert path.read_bytes() == before
        assert state.read_bytes() == pin

    def test_a_collection_keeps_all_that_it_may_need(self, world, make):
        (world.root / "more").write_bytes(os.urandom(5000))
        world.handle().delete(world.handle().create().id)
        make(world)
        before = packs(world)

        planned = world.handle().gc(dry_run=True)
        collected = world.handle().gc()

        assert (planned.freed_bytes, planned.removed_objects) == (0, 0)
        assert (collected.freed_bytes, collected.removed_objects) == (0, 0)
        assert collected.newer == planned.newer == 1
        assert "written by a newer treesnap" in (collected.postponed or "")
        assert collected.damaged == ()
        assert packs(world) == before

    def test_a_list_names_it(self, world, make):
        path = make(world)
        monitor = CollectingMonitor()

        found = world.handle(monitor=monitor).list()

        assert (found.damaged, found.newer) == ((), (id_of(path),))
        assert monitor.codes == [WarningCode.SNAPSHOT_NEWER]
        assert id_of(path)[:12] in monitor.warnings[0]
        assert "second" not in {item.name for item in found}

    def test_a_command_that_names_it_is_told_to_use_that_version(self, world, make):
        path = make(world)

        for call in (world.handle().resolve, world.handle().restore, world.handle().pin):
            with pytest.raises(UnsupportedFormat):
                call(id_of(path))
        assert world.restores("first")

    def test_a_policy_keeps_it(self, world, make):
        path = make(world)

        world.handle().prune(Policy(keep_last=1))

        assert path.exists()

    def test_it_is_deleted_only_by_name_and_without_a_pin(self, world, make):
        world.handle().pin("second")
        path = make(world)
        identity = id_of(path)
        with pytest.raises(Refused, match="pinned"):
            world.handle().delete(identity)
        (world.store / "states" / identity).unlink()

        removed = world.handle().delete(identity)

        assert (removed, removed.damaged, removed.newer) == ((), (), (identity,))
        assert not path.exists()
        assert world.handle().gc().newer == 0


def make_packs_newer(world: World) -> dict[str, bytes]:
    """Gives all packs a newer version, with blocks that only that one reads; returns them."""
    for path in world.store.glob("packs/*"):
        data = path.read_bytes()
        path.write_bytes(header(FileKind.PACK, 2) + data[16:].replace(b"TSBK", b"TSB2"))
    return packs(world)


def test_packs_of_a_newer_version_are_named_and_left_where_they_are(world):
    before = make_packs_newer(world)
    monitor = CollectingMonitor()

    found = world.handle().verify(read_data=True)
    repaired = world.handle(monitor=monitor).verify(read_data=True, repair=True)

    places = {f"packs/{name}" for name in before}
    assert (found.ok, set(found.newer)) == (True, places)
    assert (repaired.left, set(repaired.newer)) == ((), places)
    assert packs(world) == before
    assert not list(world.store.glob("quarantine/*"))
    with pytest.raises(UnsupportedFormat, match="newer version"):
        world.handle().gc()
    assert packs(world) == before


def test_a_pack_of_which_only_the_version_is_damaged_is_repaired(world):
    for path in world.store.glob("packs/*"):
        data = bytearray(path.read_bytes())
        data[9] = 2
        path.write_bytes(data)

    result = world.handle().verify(read_data=True, repair=True)

    assert (result.left, result.newer) == ((), ())
    assert world.restores("second")
    assert list(world.store.glob("quarantine/*"))


def test_a_tree_of_a_newer_version_is_named_and_what_it_needs_is_kept(world, monkeypatch):
    (world.root / "more").write_bytes(os.urandom(5000))
    gone = world.handle().create().id
    (world.root / "more").write_bytes(os.urandom(5000))
    with monkeypatch.context() as newer:
        newer.setattr("treesnap.core.codec.tree.VERSION", 2)
        identity = world.handle().create(name="newer").id
    world.handle().delete(gone)
    before = packs(world)

    found = world.handle().verify(read_data=True)
    repaired = world.handle().verify(read_data=True, repair=True)
    collected = world.handle().gc()

    assert (found.ok, repaired.left) == (True, ())
    assert found.newer == repaired.newer
    assert found.newer[0].startswith("packs/")
    assert (collected.newer, collected.damaged, collected.freed_bytes) == (1, (), 0)
    assert packs(world) == before
    with pytest.raises(UnsupportedFormat):
        world.handle().restore(identity)


def test_a_damaged_version_in_a_header_is_damage(world):
    """Its frame is not whole, and the record in it is: that is mended."""
    path = world.only(f"snapshots/*/*-{world.handle().resolve('second').id}")
    before = path.read_bytes()
    damage(path, "version")

    result = world.handle().verify(repair=True)

    assert [item.code for item in result.problems] == ["bad-snapshot"]
    assert path.read_bytes() == before


FILES = {
    "state": "states/*",
    "root": "roots/*/root",
    "history": "roots/*/history",
    "collector": "collector/state",
}


@pytest.mark.parametrize("name", FILES)
def test_other_files_of_a_newer_version_are_left_alone(world, name):
    world.handle().pin("second")
    world.handle().delete("first")
    world.handle().gc()
    path = world.only(FILES[name])
    make_newer(path)
    before = path.read_bytes()
    for part in world.store.glob("index/*[0-9a-f]"):
        damage(part, "zeros")

    result = world.handle().verify(repair=True)

    assert str(path.relative_to(world.store)) in result.newer
    assert {item.code for item in result.problems} == {"bad-index"}
    assert path.read_bytes() == before


def test_the_journal_of_a_newer_version_is_not_given_up(world):
    path = world.only("roots/*/root").with_name("journal")
    path.write_bytes(seal(FileKind.JOURNAL, pack({"version": VERSION + 1})))
    before = path.read_bytes()
    for part in world.store.glob("index/*[0-9a-f]"):
        damage(part, "zeros")

    result = world.handle().verify(repair=True)

    assert result.newer == (str(path.relative_to(world.store)),)
    assert {item.code for item in result.problems} == {"bad-index"}
    assert path.read_bytes() == before
    with pytest.raises(UnsupportedFormat):
        world.handle().create()


def test_a_pin_of_a_newer_version_is_not_replaced(world):
    world.handle().pin("second")
    path = world.only("states/*")
    make_newer(path)
    before = path.read_bytes()

    assert world.handle().resolve("second").pinned
    with pytest.raises(UnsupportedFormat):
        world.handle().unpin("second")
    assert path.read_bytes() == before
