"""Damage in the snapshots of one root, and every command that keeps the store in another root."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from blocks import damaging
from calling import Ended, run_forked
from changing import World
from state import tree_state
from treesnap import CollectingMonitor, SnapshotKind
from treesnap.core.codec.reader import TreeReader, content_references
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import EntryKind, ObjectId
from treesnap.core.model.errors import TreesnapError, WarningCode
from treesnap.core.model.hints import WARNING_HINTS
from treesnap.core.ops.context import context_at
from treesnap.core.ops.maintenance import space
from treesnap.core.store.store import Store
from treesnap.testing.doubles import Fault, FaultyFileSystem, UnsyncedFileSystem

pytestmark = pytest.mark.sampled(10)

PAGED_ENTRIES = 4200
LISTED_SIZE = 4 << 20
GROWTH_BYTES_MIN = 8 << 20
"""Less than in the product, so that less has to be written."""
GROWTH_SIZE = 5 * GROWTH_BYTES_MIN // (4 * 2 * space.EVERY)
"""After 64 snapshots of so much the packs have grown enough for one collection."""


class Two:
    """Two roots in one store; the first has objects of every kind, each in a pack of its own."""

    def __init__(self, base: Path) -> None:
        self.store = base / "store"
        self.odd, self.other = base / "odd", base / "other"
        for root in (self.odd, self.other):
            root.mkdir()
            (root / "garbage").write_bytes(os.urandom(4000))
            garbage = self.handle(root).create()
            (root / "garbage").unlink()
            self.handle(root).delete(garbage.id)
        (self.odd / "directory").mkdir()
        for number in range(300):
            (self.odd / "directory" / f"file {number}").write_bytes(b"%d" % number)
        (self.odd / "paged").mkdir()
        for number in range(PAGED_ENTRIES):
            (self.odd / "paged" / f"{number:04}").symlink_to("t")
        (self.odd / "listed").write_bytes(os.urandom(LISTED_SIZE))
        self.id = self.handle(self.odd).create(name="odd").id
        (self.other / "file").write_bytes(b"theirs")
        self.handle(self.other).create(name="first")
        (self.other / "file").write_bytes(b"theirs later")
        self.handle(self.other).create(name="second")
        self.state = tree_state(self.other)

    def handle(self, root: Path, **options) -> Handle:
        options = {"fs": UnsyncedFileSystem()} | options
        return Handle(context_at(root=root, store_path=str(self.store), **options))

    def damage(self, kind: str) -> None:
        """Lets bits rot in the middle of an object of the first root's snapshot, or elsewhere."""
        if kind == "record":
            (path,) = self.store.glob(f"snapshots/*/*-{self.id}")
            flip(path, path.stat().st_size // 2)
            return
        if kind == "index":
            for path in self.store.glob("index/*"):
                flip(path, path.stat().st_size // 2)
            return
        with Store.open(LocalFileSystem(), str(self.store)) as store:
            identity = self._find(store, kind)
            for place in list(store.index.find_all(identity)):
                path = Path(store.layout.pack(place.pack_id))
                flip(path, damaging(path, place, 0x10))

    def _find(self, store: Store, kind: str) -> ObjectId:
        trees = TreeReader(store.get)
        root = self.handle(self.odd).resolve("odd").record.root
        entries = {entry.name: entry for entry in trees.entries(root.tree_id)}
        assert entries[b"directory"].kind == EntryKind.DIRECTORY
        if kind == "tree":
            return entries[b"directory"].tree_id
        if kind == "page":
            return trees.tree(entries[b"paged"].tree_id).pages[0].id
        return next(content_references(entries[b"listed"].file_content)).id

    def snap(self, root: Path, *arguments: str) -> Ended:
        words = ["--store", str(self.store), *arguments]
        return run_forked(words, cwd=root, variables=os.environ)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


@pytest.fixture
def two(tmp_path) -> Two:
    return Two(tmp_path)


KINDS = ["record", "tree", "page", "chunk list", "index"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_in_one_root_stops_no_command_in_another(two, kind):
    two.damage(kind)

    for arguments in (
        ["list"],
        ["list", "--all"],
        ["gc", "--dry-run"],
        ["gc"],
        ["prune", "--keep-last", "1"],
        ["restore", "second"],
        ["delete", "second"],
        ["create", "--name", "third"],
        ["gc"],
    ):
        done = two.snap(two.other, *arguments)
        assert done.code == 0, (arguments, done.err)
    assert tree_state(two.other) == two.state


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
def test_commands_name_the_damaged_snapshot_and_the_next_step(two, kind):
    two.damage(kind)
    is_damaged = kind != "index"  # the index can be made again, so that no snapshot is damaged

    as_text = two.snap(two.other, "gc", "--dry-run")
    as_json = json.loads(two.snap(two.other, "--json", "gc").out)
    listed = json.loads(two.snap(two.odd, "--json", "list").out)
    verified = two.snap(two.other, "verify", "--read-data")

    assert as_json["damaged"] == ([two.id] if is_damaged else [])
    assert (two.id[:12] in as_text.err) == is_damaged
    assert ("snap verify --repair" in as_text.err) == is_damaged
    assert listed["damaged"] == ([two.id] if kind == "record" else [])
    if is_damaged:
        assert verified.code == 7
        assert two.id[:12] in verified.out + verified.err


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_from_another_root_leaves_only_what_is_lost(two, kind):
    two.damage(kind)

    repaired = two.snap(two.other, "verify", "--repair")

    assert repaired.code in (0, 7)
    assert two.snap(two.other, "restore", "second").code == 0
    assert tree_state(two.other) == two.state
    assert two.snap(two.other, "gc").code == 0
    assert two.snap(two.odd, "create").code == 0
    assert two.snap(two.odd, "restore", "latest").code == 0


def test_a_delete_names_the_damaged_snapshot_that_it_removed(two):
    two.damage("record")

    removed = json.loads(two.snap(two.odd, "--json", "delete", two.id[:16]).out)

    assert removed["damaged"] == [two.id]
    assert removed["snapshots"] == []
    assert two.handle(two.odd).list().damaged == ()


def test_an_error_of_the_disk_stops_a_collection_and_removes_nothing(two):
    before = packs(two.store)
    fault = Fault(
        errno=errno.EIO,
        methods=frozenset({"read_at"}),
        where=lambda call: "/packs/" in call.path,
        lasting=True,
    )
    handle = two.handle(two.other, fs=FaultyFileSystem(fault))

    with pytest.raises(TreesnapError, match="Input/output error"):
        handle.gc()

    assert packs(two.store) == before
    assert two.handle(two.other).verify(read_data=True).ok


def packs(store: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in store.glob("packs/*")}


class TestAutomatic:
    """A collection that was not asked for leaves everything where it meets damage."""

    @pytest.fixture
    def world(self, tmp_path, monkeypatch) -> World:
        monkeypatch.setattr(space, "GROWTH_BYTES_MIN", GROWTH_BYTES_MIN)
        return World(tmp_path)

    def rot(self, world: World) -> str:
        """Makes a snapshot, lets its record rot, and returns its id."""
        world.change(1 << 20)
        identity = world.create(SnapshotKind.MANUAL)
        (path,) = world.store.glob(f"snapshots/*/*-{identity}")
        flip(path, path.stat().st_size // 2)
        return identity

    def fill(self, world: World, count: int) -> list[str]:
        """Makes automatic snapshots; returns what was remarked of garbage."""
        monitor = CollectingMonitor()
        handle = Handle(
            context_at(
                root=world.root,
                store_path=str(world.store),
                monitor=monitor,
                fs=UnsyncedFileSystem(),
                clock_ns=lambda: world.now_ns,
            )
        )
        for _ in range(count):
            world.change(GROWTH_SIZE)
            handle.create(kind=SnapshotKind.RUN)
        said = zip(monitor.codes, monitor.warnings, strict=True)
        return [text for code, text in said if code == WarningCode.GARBAGE_KEPT]

    def test_it_deletes_nothing_and_says_so_once(self, world):
        identity = self.rot(world)
        before = set(packs(world.store))

        said = self.fill(world, 2 * space.EVERY)

        assert before <= set(packs(world.store))
        (text,) = said
        assert identity[:12] in text
        assert "snap verify --repair" in WARNING_HINTS[WarningCode.GARBAGE_KEPT]

    def test_it_goes_on_after_a_repair(self, world):
        self.rot(world)
        self.fill(world, 2 * space.EVERY)
        world.handle.verify(repair=True)

        said = self.fill(world, 2 * space.EVERY)

        assert said == []
        assert sum(packs(world.store).values()) < 4 * space.EVERY * GROWTH_SIZE

    def test_a_full_store_refuses_rather_than_give_up_what_is_damaged(self, world):
        identity = self.rot(world)
        monitor = CollectingMonitor()
        handle = Handle(
            context_at(root=world.root, store_path=str(world.store), monitor=monitor, fs=world.fs)
        )
        world.change(1 << 20)
        garbage = handle.create()
        handle.delete(garbage.id)
        handle.config("max-size", "3M")
        before = set(packs(world.store))
        world.change(2 << 20)

        with pytest.raises(TreesnapError):
            handle.create()

        assert before <= set(packs(world.store))
        assert any(identity[:12] in text for text in monitor.warnings)
        handle.verify(repair=True)
