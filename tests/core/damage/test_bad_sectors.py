"""A disk that does not give back some bytes has damaged them: no more is lost than those."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import treesnap
from state import tree_state
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import Corrupt, TreesnapError
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.core.store.index import VERIFIED_SIZE_MAX
from treesnap.core.store.store import Store
from treesnap.testing.doubles import Call, Fault, FaultyFileSystem, UnsyncedFileSystem
from world import World

_SECTOR_SIZE = 512


def bad_sector(path: Path, offset: int = 0) -> Fault:
    """Returns the fault that makes every read fail which touches a sector of a file.

    The file has it wherever it is moved, and another one in its place does not.
    """
    inode = path.stat().st_ino

    def touches(call: Call) -> bool:
        if os.fstat(call.arguments[0]).st_ino != inode:
            return False
        if call.method == "read":
            return True
        _, size, start = call.arguments
        return start < offset + _SECTOR_SIZE and offset < start + size

    methods = frozenset({"read", "read_at"})
    return Fault(errno=errno.EIO, methods=methods, where=touches, lasting=True)


class Scene:
    """A root with two files, each larger than a block, and a snapshot of it in one pack."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.store = base / "store"
        self.root.mkdir()
        for name in ("kept", "lost"):
            (self.root / name).write_bytes(os.urandom(600_000))
        treesnap.open(self.root, self.store).create(name="good")
        self.before = tree_state(self.root)

    def offset(self, kind: ObjectKind) -> int:
        """Returns where the last block of a kind begins."""
        with Store.open(LocalFileSystem(), str(self.store)) as store:
            (part,) = store.index.parts.values()
            return max(entry.offset for entry in part if entry.kind == kind)

    @property
    def pack(self) -> Path:
        (path,) = self.store.glob("packs/*")
        return path

    def handle(self, fault: Fault) -> Handle:
        fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())
        return Handle(context_at(root=self.root, store_path=str(self.store), fs=fs))


@pytest.fixture
def scene(tmp_path) -> Scene:
    return Scene(tmp_path)


WHERE: list[Callable[[Scene], int]] = [
    lambda scene: scene.offset(ObjectKind.CHUNK),
    lambda scene: scene.offset(ObjectKind.CHUNK) + 20_000,
]
"""In the table of the last block of content, and in its content."""


@pytest.mark.parametrize("where", WHERE, ids=["table", "content"])
class TestContent:
    def test_it_is_found_and_named(self, scene, where):
        handle = scene.handle(bad_sector(scene.pack, where(scene)))

        result = handle.verify(read_data=True)

        codes = {item.code for item in result.problems}
        assert "bad-pack" in codes
        assert codes <= {"bad-pack", "damaged-object", "missing-object"}
        (partial,) = result.partial
        assert partial.paths == (b"lost",)

    def test_a_restore_says_that_the_store_is_damaged_and_changes_nothing(self, scene, where):
        handle = scene.handle(bad_sector(scene.pack, where(scene)))
        (scene.root / "lost").write_bytes(b"something else")
        before = tree_state(scene.root)

        with pytest.raises(Corrupt):
            handle.restore("good")

        assert tree_state(scene.root) == before
        assert b"".join(handle.cat("good", "kept"))

    def test_a_repair_takes_it_from_the_live_tree(self, scene, where):
        handle = scene.handle(bad_sector(scene.pack, where(scene)))

        result = handle.verify(read_data=True, repair=True)

        assert result.left == ()
        assert result.recovered
        for name in ("kept", "lost"):
            (scene.root / name).unlink()
        handle.restore("good")
        assert tree_state(scene.root) == scene.before

    def test_a_repair_loses_nothing_else(self, scene, where):
        handle = scene.handle(bad_sector(scene.pack, where(scene)))
        kept = (scene.root / "kept").read_bytes()
        for name in ("kept", "lost"):
            (scene.root / name).unlink()

        result = handle.verify(read_data=True, repair=True)

        (partial,) = result.partial
        assert partial.paths == (b"lost",)
        assert b"".join(handle.cat("good", "kept")) == kept

    def test_a_capture_stores_it_again(self, scene, where):
        handle = scene.handle(bad_sector(scene.pack, where(scene)))
        with (scene.root / "lost").open("r+b") as file:
            file.write(b"changed")

        assert handle.create(name="next").snapshot.complete


def test_a_copy_of_the_store_has_all_that_the_disk_gives_back(scene, tmp_path):
    """What lies behind the sector too."""
    whole = scene.pack.read_bytes()
    handle = scene.handle(bad_sector(scene.pack, 20_000))

    copied = handle.store_copy(tmp_path / "copy")

    assert copied.unreadable == (f"packs/{scene.pack.name}",)
    assert not copied.verified.ok
    found = (tmp_path / "copy" / copied.unreadable[0]).read_bytes()
    assert len(found) == len(whole)
    assert (found[:16_000], found[28_000:]) == (whole[:16_000], whole[28_000:])


@pytest.mark.parametrize("files", [3, 900], ids=["small", "large"])
def test_an_index_part_is_damaged_and_made_anew(tmp_path, files):
    """A large one is read before it is mapped: otherwise the process would be killed."""
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    for number in range(files):
        (root / str(number)).write_text(f"content {number}" * 200)
    treesnap.open(root, store).create(name="good")
    (part,) = (path for path in store.glob("index/*") if len(path.name) == 32)
    assert (part.stat().st_size > VERIFIED_SIZE_MAX) == (files == 900)
    fault = bad_sector(part, part.stat().st_size // 2)
    fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())

    result = Handle(context_at(root, str(store), fs=fs)).verify(repair=True)

    assert [item.code for item in result.problems] == ["bad-index"]
    assert "Input/output error" in result.problems[0].message
    assert result.left == ()
    assert not part.exists()
    assert treesnap.open(root, store).verify(read_data=True).ok


def test_a_tree_is_read_where_its_second_copy_is(scene):
    with Store.open(LocalFileSystem(), str(scene.store)) as store:
        (part,) = store.index.parts.values()
        first = min(entry.offset for entry in part if entry.kind == ObjectKind.TREE)
    handle = scene.handle(bad_sector(scene.pack, first))
    (scene.root / "lost").unlink()

    handle.restore("good")

    assert tree_state(scene.root) == scene.before
    assert handle.verify(read_data=True).partial == ()


def test_an_error_that_lasts_stops_a_collection_before_it_gives_anything_up(scene):
    trees = Fault(
        errno=errno.EIO,
        methods=frozenset({"read_at"}),
        where=lambda call: "/packs/" in call.path,
        lasting=True,
    )
    handle = scene.handle(trees)

    with pytest.raises(TreesnapError, match="Input/output error"):
        handle.gc()

    assert scene.pack.exists()


def test_what_is_known_of_a_snapshot_counts_as_a_pin_where_it_cannot_be_read(tmp_path):
    world = World(tmp_path)
    identity = world.handle().pin("second").id
    path = world.store / "states" / identity
    fs = FaultyFileSystem(bad_sector(path), inner=UnsyncedFileSystem())

    assert world.handle(fs=fs).resolve("second").pinned
    result = world.handle(fs=fs).verify(repair=True)

    assert [item.code for item in result.problems] == ["bad-state"]
    assert world.handle().verify().ok
    assert world.handle().resolve("second").pinned


def test_one_snapshot_that_cannot_be_read_keeps_no_other_from_being_mended(tmp_path):
    """The file of one is unreadable, that of another is damaged in its frame alone."""
    world = World(tmp_path)
    first, second = (world.handle().resolve(ref).id for ref in ("first", "second"))
    unreadable = world.only(f"snapshots/*/*-{first}")
    mendable = world.only(f"snapshots/*/*-{second}")
    whole = mendable.read_bytes()
    mendable.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    fs = FaultyFileSystem(bad_sector(unreadable), inner=UnsyncedFileSystem())
    monitor = CollectingMonitor()

    result = world.handle(fs=fs, monitor=monitor).verify(repair=True)

    assert [item.code for item in result.problems] == ["bad-snapshot", "bad-snapshot"]
    assert not monitor.warnings
    assert mendable.read_bytes() == whole
    assert list(world.store.glob(f"quarantine/snapshots.*-{first}"))
    assert world.handle().verify().ok


def test_a_copy_for_the_quarantine_has_what_the_disk_gives_back(tmp_path):
    world = World(tmp_path)
    identity = world.handle().resolve("second").id
    path = world.only(f"snapshots/*/*-{identity}")
    whole = path.read_bytes()
    record = whole + bytes(8192 - len(whole)) + b"the end of a file with damage behind its record"
    path.write_bytes(record)
    fs = FaultyFileSystem(bad_sector(path, 4096), inner=UnsyncedFileSystem())

    result = world.handle(fs=fs).verify(repair=True)

    assert result.left == ()
    assert path.read_bytes() == whole
    (kept,) = world.store.glob(f"quarantine/snapshots.*-{identity}")
    assert kept.read_bytes() == record


@pytest.mark.parametrize("pattern", ["index/*", "roots/*/cache"])
def test_a_mapped_file_with_a_bad_sector_is_an_error_and_is_not_needed(tmp_path, pattern):
    """Its pages are loaded when it is mapped."""
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    for number in range(900):
        (root / str(number)).write_text(f"content {number}" * 200)
    treesnap.open(root, store).create(name="good")
    assert [path for path in store.glob(pattern) if path.stat().st_size > VERIFIED_SIZE_MAX]
    directory = store / pattern.partition("/")[0]

    def is_there(call: Call) -> bool:
        return directory in Path(os.readlink(f"/proc/self/fd/{call.arguments[0]}")).parents

    fault = Fault(methods=frozenset({"map"}), errno=errno.EIO, where=is_there, lasting=True)
    fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())
    handle = Handle(context_at(root, str(store), fs=fs))
    (root / "0").write_text("changed")

    made = handle.create().id
    handle.restore("good")

    assert (root / "0").read_text() == "content 0" * 200
    assert treesnap.open(root, store).verify(read_data=True).ok
    assert treesnap.open(root, store).cat(made, "0")
