"""Disks that are really full, and processes that may not open many files.

The restore fails, the tree is as before at once, nothing is left, and with room it works.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from calling import Place
from mounting import Mounter, mounting
from oracle import difference, record
from sampling import sized

pytestmark = pytest.mark.sampled(12)

NO_SPACE = 8
FILES = [f"file-{number}" for number in range(20)]


@pytest.fixture
def mount() -> Iterator[Mounter]:
    """Mounts file systems for the length of a test."""
    with mounting() as mounter:
        yield mounter


def write(place: Place, seed: int, size_bytes: int) -> None:
    """Writes files that cannot be compressed."""
    random = Random(seed)
    for name in FILES:
        (place.root / name).parent.mkdir(parents=True, exist_ok=True)
        (place.root / name).write_bytes(random.randbytes(size_bytes))


def fill(directory: Path, *, but_for: int) -> Path:
    """Fills a file system but for some blocks; returns the file that does."""
    ballast = directory / "ballast"
    subprocess.run(["sync", "-f", directory], check=True)  # what was freed can be taken now
    status = os.statvfs(directory)
    with ballast.open("wb") as file:
        with suppress(OSError):  # it needs some for itself, and has taken what there was
            os.posix_fallocate(file.fileno(), 0, max(1, status.f_bavail) * status.f_frsize)
        taken = os.fstat(file.fileno()).st_blocks * 512
        os.ftruncate(file.fileno(), max(0, taken - but_for * status.f_frsize))
    return ballast


def assert_refused(place: Place, *words: str) -> None:
    """Asserts that a command finds no space and changes nothing."""
    before = record(place.root)

    ended = place.snap(*words)

    assert ended.code == NO_SPACE, ended
    assert "No space left on device" in ended.err
    assert difference(before, record(place.root)) == []
    assert place.litter() == []


class TestRoot:
    def test_that_has_no_room_for_the_old_files_stays_as_it_is(self, place_on_small_root, mount):
        place = place_on_small_root
        write(place, 1, 100_000)
        before = record(place.root)
        place.done("create", "--name", "before")
        write(place, 2, 150_000)
        after = record(place.root)

        assert_refused(place, "restore", "before")
        place.done("status")
        mount.resize(place.root.parent, "16m")

        place.done("restore", "before")
        assert difference(before, record(place.root)) == []
        place.done("undo")
        assert difference(after, record(place.root)) == []

    def test_that_has_no_inodes_left_stays_as_it_is(self, tmp_path, mount):
        mount.tmpfs(tmp_path / "disk", "8m,nr_inodes=30")
        place = Place(tmp_path / "disk/root", tmp_path / "store")
        write(place, 1, 10)
        place.done("create", "--name", "before")
        write(place, 2, 10)

        assert_refused(place, "restore", "before")
        mount.resize(place.root.parent, "8m,nr_inodes=60")

        place.done("restore", "before")

    def test_that_is_filled_to_any_block_is_as_before_or_restored(self, tmp_path, mount):
        mount.image(tmp_path / "disk", "ext4", 8)
        place = Place(tmp_path / "disk/root", tmp_path / "store")
        place.make(*(f"many/{number}-{'n' * 200}" for number in range(100)))
        write(place, 1, 6000)
        before = record(place.root)
        place.done("create", "--name", "before")
        shutil.rmtree(place.root / "many")
        write(place, 2, 3000)

        refused = 0
        for blocks in range(0, 600, sized(48, 24)):
            ballast = fill(tmp_path / "disk", but_for=blocks)
            after = record(place.root)
            ended = place.snap("restore", "before")
            assert place.litter() == []
            ballast.unlink()
            if ended.code == 0:
                break
            assert ended.code == NO_SPACE, ended
            assert difference(after, record(place.root)) == []
            refused += 1
        assert difference(before, record(place.root)) == []
        assert refused > 2

    @pytest.mark.parametrize("free_blocks", [0, 10, 30, 63, 80])
    @pytest.mark.needs("exit codes")
    def test_that_could_not_take_the_roll_back_of_a_step_takes_no_step(
        self, place_on_small_root, tmp_path, free_blocks
    ):
        """A restore reserves some room beside the tree, whatever the step removes."""
        place = place_on_small_root
        write(place, 1, 20_000)
        place.done("create")
        fill(tmp_path / "disk", but_for=free_blocks)
        before, ran = record(place.root), tmp_path / "ran"
        stored = set(place.store.rglob("*"))

        ended = place.snap("run", "--", "sh", "-c", f"touch {ran}; rm file-*; exit 3")

        assert ended.code == (3 if ran.exists() else NO_SPACE), ended
        assert ran.exists() or set(place.store.rglob("*")) == stored  # no snapshot makes that room
        assert ran.exists() == (free_blocks >= 64), ended
        assert difference(before, record(place.root)) == []


class TestStore:
    @pytest.mark.parametrize("free_blocks", sized([0, 2, 6, 20], [0, 1, 2, 3, 6, 12, 20]))
    def test_that_could_not_take_the_roll_back_of_a_step_takes_no_step(
        self, tmp_path, mount, free_blocks
    ):
        """Each roll-back takes some of the room that is kept for it; the next step looks again."""
        place = Place(tmp_path / "root", mount.tmpfs(tmp_path / "disk", "1m") / "store")
        write(place, 1, 1_000)
        place.done("create")
        fill(tmp_path / "disk", but_for=free_blocks)
        before, ran = record(place.root), tmp_path / "ran"
        step = f"echo >> {ran}; rm file-1; echo new > file-2; exit 3"

        ended = [place.snap("run", "--", "sh", "-c", step) for _ in range(8)]

        assert {each.code for each in ended} <= {3, NO_SPACE}, ended
        assert difference(before, record(place.root)) == []
        begun = len(ran.read_text()) if ran.exists() else 0
        assert [each.code for each in ended].count(3) == begun

    def test_that_has_no_room_for_the_safety_snapshot_leaves_the_root_alone(self, tmp_path, mount):
        mount.tmpfs(tmp_path / "disk", "4m")
        place = Place(tmp_path / "root", tmp_path / "disk/store")
        write(place, 1, 100_000)
        before = record(place.root)
        place.done("create", "--name", "before")
        write(place, 2, 200_000)

        assert_refused(place, "restore", "before")
        assert_refused(place, "create")
        place.done("status")
        place.done("verify", "--read-data")
        mount.resize(tmp_path / "disk", "16m")

        place.done("restore", "before")
        assert difference(before, record(place.root)) == []
        place.done("verify", "--read-data")

    def test_that_is_filled_to_any_page_leaves_the_old_tree_or_the_new_one(self, tmp_path, mount):
        mount.tmpfs(tmp_path / "disk", "4m")
        place = Place(tmp_path / "root", tmp_path / "disk/store")
        write(place, 1, 3000)
        before = record(place.root)
        place.done("create", "--name", "before")
        write(place, 2, 3000)

        refused = 0
        for blocks in range(0, 60, sized(4, 2)):
            ballast = fill(tmp_path / "disk", but_for=blocks)
            after = record(place.root)
            ended = place.snap("restore", "before")
            ballast.unlink()
            assert place.litter() == []
            if ended.code == 0:
                break
            assert ended.code == NO_SPACE, ended
            assert difference(after, record(place.root)) == []
            refused += 1
        assert difference(before, record(place.root)) == []
        assert refused > 2

    def test_that_is_full_can_be_read_and_made_smaller(self, tmp_path, mount):
        mount.tmpfs(tmp_path / "disk", "4m")
        place = Place(tmp_path / "root", tmp_path / "disk/store")
        write(place, 1, 100_000)
        place.done("create", "--name", "before")
        write(place, 2, 10)
        place.done("create", "--name", "after")
        ballast = fill(tmp_path / "disk", but_for=0)

        place.done("list")
        place.done("status")
        place.done("restore", "before", "--to", str(tmp_path / "target"))
        assert (tmp_path / "target" / FILES[0]).stat().st_size == 100_000
        place.done("delete", "before")
        ballast.unlink()
        place.done("gc")
        assert place.litter() == []


class TestTarget:
    def test_without_room_is_absent_and_nothing_is_beside_it(self, tmp_path, mount):
        place = Place(tmp_path / "root", tmp_path / "store")
        write(place, 1, 100_000)
        place.done("create", "--name", "before")
        disk = mount.tmpfs(tmp_path / "disk", "1m")

        assert_refused(place, "restore", "before", "--to", str(disk / "target"))

        assert os.listdir(disk) == []


class TestOpenFiles:
    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("count", [8, 16, 24, 32, 48, 64])
    def test_too_few_change_nothing(self, tmp_path, count):
        place = Place(tmp_path / "root", tmp_path / "store")
        deep = "/".join(f"d{number}" for number in range(150)) + "/file"
        wide = [f"wide-{number}/file" for number in range(100)]
        place.make(deep, *wide)
        place.done("create", "--name", "before")
        place.edit(deep, *wide)
        place.make("wide-3/new")
        before = record(place.root)

        ended = place.snap("restore", "before", by=["prlimit", f"--nofile={count}"])

        assert place.litter() == []
        if count <= 32:
            assert ended.code == 1, ended
            assert "Too many open files" in ended.err
        if ended.code != 0:
            assert difference(before, record(place.root)) == []
            place.done("restore", "before")
        assert (place.root / deep).read_text() == deep
        assert not (place.root / "wide-3/new").exists()


@pytest.fixture
def place_on_small_root(tmp_path: Path, mount: Mounter) -> Place:
    """A root that was not made yet, on a file system of 4 MiB, and a store elsewhere."""
    mount.tmpfs(tmp_path / "disk", "4m")
    return Place(tmp_path / "disk/root", tmp_path / "store")
