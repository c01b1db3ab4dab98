"""Damage is found, named, and stays where it is.

A real store is damaged one file at a time, in every place that differs. What the
design calls a cache may be damaged without anybody noticing; what is no cache is
named, and takes no snapshot with it that does not need it.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import Any

import pytest

from state import tree_state
from treesnap.core.codec.envelope import FileKind, seal, unseal
from treesnap.core.codec.index import IndexPart, encode_index
from treesnap.core.codec.journal import Commit, Journal, encode_journal
from treesnap.core.codec.message import pack, unpack
from treesnap.core.codec.pack import IndexEntry
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Corrupt, NotFound, OperationFailed, UnsupportedFormat
from world import FORMATS, HOWS, World, damage

pytestmark = pytest.mark.sampled(3)


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("template"))


@pytest.fixture
def world(template) -> Any:
    """The template, put back to what it was afterwards."""
    saved = template.store.with_name("saved")
    shutil.copytree(template.store, saved)
    yield template
    shutil.rmtree(template.store)
    saved.rename(template.store)
    assert template.restores("first")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_index_costs_nothing_but_time(world, how):
    for path in world.store.glob("index/*[0-9a-f]"):
        damage(path, how)

    assert "bad-index" in {item.code for item in world.handle().verify(read_data=True).problems}
    assert world.restores("second")
    assert world.handle().create().snapshot.complete
    assert world.handle().verify(read_data=True).problems == ()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_index_is_repaired_and_collected_too(world, how):
    for heal in (lambda handle: handle.verify(repair=True), Handle.gc):
        for path in world.store.glob("index/*[0-9a-f]"):
            damage(path, how)

        heal(world.handle())

        assert world.handle().verify(read_data=True).problems == ()
        assert world.restores("second")


def test_a_part_that_a_power_cut_has_torn_is_gone_after_a_look_at_the_tree(world):
    """It is not synced; the next command leaves a store that verifies."""
    for path in world.store.glob("index/*[0-9a-f]"):
        os.truncate(path, path.stat().st_size // 2)

    world.handle().status()

    assert world.handle().verify(read_data=True).problems == ()
    assert world.restores("second")


def test_a_store_without_an_index_works(world):
    for path in world.store.glob("index/*"):
        path.unlink()

    assert world.restores("second")
    assert world.handle().verify(read_data=True).problems == ()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "lie", ["elsewhere", "other kind", "no such pack", "too long", "covers all", "empty"]
)
def test_an_index_that_lies_is_not_believed(world, lie):
    for path in world.store.glob("index/*[0-9a-f]"):
        part = IndexPart(memoryview(path.read_bytes()), "here")
        entries, covered = [lied(entry, lie) for entry in part], dict(part.covered)
        if lie == "no such pack":
            covered[b"\xee" * 16] = 1 << 40
        elif lie in {"covers all", "empty"}:
            covered = dict.fromkeys(covered, (1 << 64) - 1)
        path.write_bytes(encode_index([] if lie == "empty" else sorted(entries), covered))

    assert world.restores("second")
    (world.root / "new").write_bytes(b"something new")
    world.handle().create(name="third")
    world.handle().gc()
    assert world.restores("second")
    world.handle().restore("third")
    assert (world.root / "new").read_bytes() == b"something new"


def lied(entry: IndexEntry, lie: str) -> IndexEntry:
    """Returns an entry that is wrong in one way."""
    if lie == "elsewhere":
        return entry._replace(block=entry.block._replace(offset=entry.offset + 1))
    if lie == "other kind":
        return entry._replace(kind=3 - entry.kind)
    if lie == "no such pack":
        return entry._replace(block=entry.block._replace(pack_id=b"\xee" * 16))
    if lie == "too long":
        return entry._replace(block=entry.block._replace(size=(1 << 32) - 1))
    return entry


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_snapshot_file_harms_no_other_snapshot(world, how):
    identity = world.handle().resolve("second").id
    path = world.only(f"snapshots/*/*-{identity}")
    damage(path, how)

    assert "second" not in {item.name for item in world.handle().list()}
    with pytest.raises((Corrupt, NotFound)):
        world.handle().restore(identity)
    (world.root / "text").write_bytes(b"changed")
    assert world.restores("first")
    assert world.handle().create().snapshot.complete
    (problem,) = world.handle().verify().problems
    assert (problem.code, problem.snapshot_ids) == ("bad-snapshot", (identity,))
    assert world.handle().gc().damaged == (identity,)
    assert world.restores("first")


def test_a_whole_snapshot_under_the_id_of_another_is_not_believed(world):
    first, second = (world.handle().resolve(ref).id for ref in ("first", "second"))
    shutil.copy(
        world.only(f"snapshots/*/*-{first}"),
        world.only(f"snapshots/*/*-{second}"),
    )

    with pytest.raises(Corrupt, match="does not match its id"):
        world.handle().restore(second)
    assert second not in {item.id for item in world.handle().list()}
    (problem,) = world.handle().verify().problems
    assert (problem.code, problem.snapshot_ids) == ("bad-snapshot", (second,))
    assert world.handle().gc().damaged == (second,)
    assert world.restores("first")


def test_a_repair_takes_a_damaged_snapshot_out_of_the_way(world):
    identity = world.handle().resolve("second").id
    damage(world.only(f"snapshots/*/*-{identity}"), "30")

    world.handle().verify(repair=True)

    assert world.handle().verify(read_data=True).problems == ()
    assert len(list(world.store.glob("quarantine/*"))) == 1
    world.handle().gc()
    assert world.restores("first")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_state_counts_as_pinned(world, how):
    identity = world.handle().pin("second").id
    damage(world.store / "states" / identity, how)

    assert world.handle().resolve("second").pinned
    assert world.restores("second")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_stat_cache_is_not_used(world, how):
    damage(world.only("roots/*/cache"), how)
    (world.root / "text").write_bytes(b"not the same")

    world.handle().create(name="third")

    assert b"".join(world.handle().cat("third", "text")) == b"not the same"
    assert len(world.handle().ls("third")) == len(os.listdir(world.root))


def test_every_flipped_byte_of_a_stat_cache_is_harmless(world):
    path = world.only("roots/*/cache")
    whole = path.read_bytes()

    for position in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[position] ^= 0x55
        path.write_bytes(changed)
        assert world.handle().diff("first") == ()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_history_forgets_what_to_undo_and_nothing_else(world, how):
    damage(world.only("roots/*/history"), how)

    with pytest.raises(NotFound):
        world.handle().undo()
    assert world.restores("second")
    world.handle().undo()
    assert tree_state(world.root) == world.states["first"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_slot_costs_a_new_pack_at_most(world, how):
    for path in world.store.glob("slots/*"):
        damage(path, how)

    world.handle().create(name="third")

    assert world.restores("second")
    assert world.handle().verify(read_data=True).problems == ()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_collector_state_stops_writers_and_no_reader(world, how, tmp_path):
    (world.store / "collector" / "state").write_bytes(
        seal(FileKind.COLLECTION, pack({"epoch": 4, "condemned": ()}))
    )
    damage(world.store / "collector" / "state", how)

    for write in (Handle.create, lambda handle: handle.restore("second")):
        with pytest.raises((Corrupt, UnsupportedFormat)):
            write(world.handle())
    assert tree_state(world.root) == world.states["first"]
    assert len(world.handle().list()) >= 2
    world.handle().restore("second", to=tmp_path / "target")
    assert set(tree_state(tmp_path / "target")) == set(world.states["second"])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("epoch", [-1, 1 << 63, (1 << 64) - 1, True, "1", None])
def test_an_epoch_that_is_not_possible_is_refused(world, epoch):
    payload = pack({"epoch": epoch, "condemned": ()})
    (world.store / "collector" / "state").write_bytes(seal(FileKind.COLLECTION, payload))

    with pytest.raises(Corrupt):
        world.handle().create()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_journal_is_named_and_the_tree_is_left_alone(world, how):
    journal = world.only("roots/*/root").with_name("journal")
    journal.write_bytes(
        seal(
            FileKind.JOURNAL,
            encode_journal(
                Journal(
                    root_id=journal.parent.name,
                    stage_name=b".treesnap-restore-0",
                    root_before=None,
                    file_system=0,
                    device=0,
                    inode=None,
                    started_at_ns=0,
                )
            ),
        )
    )
    damage(journal, how)
    before = tree_state(world.root)

    for action in (Handle.create, Handle.recover, lambda handle: handle.restore("second")):
        with pytest.raises(Corrupt):
            action(world.handle())

    assert tree_state(world.root) == before


@pytest.mark.parametrize(
    "commit",
    [
        None,
        Commit(
            target_id="01" * 32,
            safety_id="02" * 32,
            paths=(),
            directories=(),
            history=b"",
            touch=False,
        ),
    ],
)
def test_a_journal_cannot_have_a_directory_of_the_user_removed(world, commit):
    precious = world.root / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"never captured")
    path = world.only("roots/*/root").with_name("journal")
    journal = Journal(
        root_id=path.parent.name,
        stage_name=b"precious",
        root_before=None,
        file_system=0,
        device=0,
        inode=None,
        started_at_ns=0,
        commit=commit,
    )
    path.write_bytes(seal(FileKind.JOURNAL, encode_journal(journal)))

    with pytest.raises(Corrupt, match="staging directory"):
        world.handle().create()

    assert (precious / "file").exists()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("position", [0, 20, 40, 60])
def test_damage_in_a_pack_is_named_with_what_needs_it(world, position):
    for path in world.store.glob("packs/*"):
        data = bytearray(path.read_bytes())
        data[len(data) * position // 100 + 16] ^= 0xFF
        path.write_bytes(data)

    problems = world.handle().verify(read_data=True).problems

    assert problems
    before = tree_state(world.root)
    for name in ("first", "second"):
        try:
            assert world.restores(name)
        except Corrupt:
            assert tree_state(world.root) in (before, *world.states.values())


def test_a_damaged_root_record_stops_no_command(world):
    damage(world.only("roots/*/root"), "30")

    assert world.restores("second")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("content", FORMATS)
def test_a_damaged_format_file_is_named(world, content):
    (world.store / "format").write_bytes(FORMATS[content])

    for action in (Handle.list, Handle.create):
        with pytest.raises(Corrupt, match="format file"):
            action(world.handle())


@pytest.mark.parametrize(("key", "reads"), [("min_reader", False), ("min_writer", True)])
def test_a_newer_format_is_refused_as_such(world, key, reads):
    versions = {"format": 3, "min_reader": 2, "min_writer": 2} | {key: 3}
    text = str(versions).replace("'", '"')
    (world.store / "format").write_text(text, encoding="ascii")

    with pytest.raises(UnsupportedFormat):
        world.handle().create()
    if reads:
        assert len(world.handle().list()) >= 2
    else:
        with pytest.raises(UnsupportedFormat):
            world.handle().list()


def test_a_snapshot_of_a_newer_minor_version_is_read(world):
    path = world.only(f"snapshots/*/*-{world.handle().resolve('second').id}")
    payload = unseal(path.read_bytes(), FileKind.SNAPSHOT, "here")
    newer = pack(unpack(payload, "example") | {"colour": "green", "name": "newer"})
    from treesnap.core.codec.snapshot import snapshot_id

    name = f"{99:016x}-{snapshot_id(newer)}"
    path.with_name(name).write_bytes(seal(FileKind.SNAPSHOT, newer))

    world.handle().restore("newer")

    assert tree_state(world.root) == world.states["second"]


@pytest.mark.parametrize("name", ["format", "packs", "index", "snapshots"])
def test_links_and_directories_in_place_of_files_are_refused(world, name, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"of another program")
    paths = [path for path in world.store.glob(f"{name}/**/*") if path.is_file()]
    for path in paths or [world.store / name]:
        path.unlink()
        path.symlink_to(elsewhere)

    for action in (Handle.create, lambda handle: handle.restore("second")):
        try:
            action(world.handle())
        except (Corrupt, NotFound, OperationFailed):
            continue

    assert elsewhere.read_bytes() == b"of another program"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("place", range(12))
def test_a_collection_loses_nothing_that_damage_left(world, place):
    """The table of a block is damaged, so that scans end there, and most of the pack is waste."""
    (world.root / "waste").write_bytes(os.urandom(100_000))
    world.handle().delete(world.handle().create().snapshot.id)
    (world.root / "waste").unlink()
    headers = []
    for path in world.store.glob("packs/*"):
        data = path.read_bytes()
        headers += [(path, n) for n in range(len(data)) if data[n : n + 4] == b"TSBK"]
    path, position = headers[place % len(headers)]
    changed = bytearray(path.read_bytes())
    changed[position + 20] ^= 0xFF
    path.write_bytes(changed)
    lost = {item.where for item in world.handle().verify(read_data=True).problems}

    with suppress(Corrupt):
        world.handle().gc()

    after = world.handle().verify(read_data=True).problems
    assert {item.where for item in after if item.code.endswith("-object")} <= lost
