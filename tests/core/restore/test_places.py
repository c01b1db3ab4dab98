"""Restores where the root or the store is no plain directory of one file system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

import treesnap
from calling import Place
from mounting import Mounter, mounting
from mutations import mutate
from oracle import Record, difference, record, without
from trees import build_small

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def mount() -> Iterator[Mounter]:
    """Mounts file systems for the length of a test."""
    with mounting() as mounter:
        yield mounter


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A root that was not made yet, and its store."""
    return Place(tmp_path / "root", tmp_path / "store")


class TestMountsInside:
    def test_are_never_touched_and_restored_around(self, place, mount):
        place.make("file", "sub/file")
        place.done("create", "--name", "before")
        before = record(place.root)
        mount.tmpfs(place.root / "sub/disk")
        place.make("sub/disk/inside", "sub/disk/deep/inside", "sub/new", "new")
        place.edit("file", "sub/file")
        inside = record(place.root / "sub/disk")

        place.done("restore", "before")

        assert difference(inside, record(place.root / "sub/disk")) == []
        assert os.path.ismount(place.root / "sub/disk")
        assert sorted(record(place.root).keys() - before.keys()) == [
            b"sub/disk",
            *(b"sub/disk/" + path for path in sorted(inside) if path),
        ]
        assert (place.root / "sub/file").read_text() == "sub/file"
        assert place.litter() == []
        place.done("undo")
        assert (place.root / "sub/new").exists()
        assert difference(inside, record(place.root / "sub/disk")) == []

    def test_over_what_was_captured_are_left_alone_and_named(self, place, mount):
        place.make("data/file", "file")
        place.done("create", "--name", "before")
        mount.tmpfs(place.root / "data")
        place.make("data/other")
        place.edit("file")
        inside = record(place.root / "data")

        ended = place.snap("restore", "before")

        assert ended.code == 0
        assert "data (mount)" in ended.err
        assert (place.root / "file").read_text() == "file"
        assert difference(inside, record(place.root / "data")) == []

    @pytest.mark.needs("mounts")
    def test_over_a_file_are_left_alone(self, place, mount, tmp_path):
        place.make("settings", "file")
        place.done("create", "--name", "before")
        (tmp_path / "outside").write_text("outside")
        mount.bind(tmp_path / "outside", place.root / "settings")
        place.edit("file")

        place.done("restore", "before")

        assert (place.root / "file").read_text() == "file"
        assert (tmp_path / "outside").read_text() == "outside"
        assert (place.root / "settings").read_text() == "outside"

    def test_keep_the_directories_above_them(self, place, mount):
        place.make("file")
        place.done("create", "--name", "before")
        mount.tmpfs(place.root / "new/deep/disk")
        place.make("new/deep/disk/inside", "new/file", "new/deep/other/file")
        inside = record(place.root / "new/deep/disk")

        place.done("restore", "before")

        assert difference(inside, record(place.root / "new/deep/disk")) == []
        assert os.listdir(place.root / "new") == ["deep"]
        assert os.listdir(place.root / "new/deep") == ["disk"]

    def test_forbid_that_a_directory_above_becomes_something_else(self, place, mount):
        place.make("file", "place")
        place.done("create", "--name", "before")
        (place.root / "place").unlink()
        mount.tmpfs(place.root / "place/disk")
        place.make("place/disk/inside", "place/file", "new")
        place.edit("file")
        before = record(place.root)

        ended = place.snap("restore", "before")

        assert ended.code == 3
        assert "'place'" in ended.err
        assert difference(before, record(place.root)) == []
        assert place.litter() == []


class TestFileSystems:
    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("root_on", ["tmpfs", "ext4", "the disk"])
    @pytest.mark.parametrize("store_on", ["tmpfs", "ext4", "the disk"])
    def test_of_root_and_store_may_differ(self, tmp_path, mount, root_on, store_on):
        for name, kind in (("one", root_on), ("other", store_on)):
            if kind == "tmpfs":
                mount.tmpfs(tmp_path / name)
            elif kind == "ext4":
                mount.image(tmp_path / name, "ext4", 16)
        place = Place(tmp_path / "one/root", tmp_path / "other/store")
        place.root.parent.mkdir(exist_ok=True)
        build_small(place.root, 3)
        before = record(place.root)
        place.done("create", "--name", "before")
        mutate(place.root, Random(3), 25)
        after = record(place.root)

        place.done("restore", "before")
        assert difference(before, record(place.root)) == []
        place.done("undo")
        assert difference(after, record(place.root)) == []
        assert place.litter() == []

    def test_may_have_the_root_for_their_top(self, place, mount):
        mount.image(place.root, "ext4", 16)
        place.make("file", "sub/file")
        before = record(place.root)
        place.done("create", "--name", "before")
        shutil.rmtree(place.root / "sub")
        shutil.rmtree(place.root / "lost+found")
        place.make("new/file")
        place.root.chmod(0o700)

        place.done("restore", "before")

        assert difference(before, record(place.root)) == []
        assert place.litter() == []

    def test_that_is_read_only_below_the_root_changes_nothing(self, place, mount):
        mount.tmpfs(place.root)
        place.make("file", "sub/file")
        place.done("create", "--name", "before")
        place.edit("file", "sub/file")
        before = record(place.root)
        mount.read_only(place.root)

        ended = place.snap("restore", "before")

        assert ended.code == 1
        assert "Read-only file system" in ended.err
        assert difference(before, record(place.root)) == []
        assert place.litter() == []
        place.done("status")
        mount.read_only(place.root, yes=False)
        place.done("restore", "before")
        assert (place.root / "sub/file").read_text() == "sub/file"

    def test_that_is_read_only_below_the_store_changes_nothing(self, tmp_path, mount):
        disk = mount.tmpfs(tmp_path / "disk")
        place = Place(tmp_path / "root", disk / "store")
        place.make("file")
        place.done("create", "--name", "before")
        place.edit("file")
        before = record(place.root)
        mount.read_only(disk)

        ended = place.snap("restore", "before")

        assert ended.code == 1
        assert "Read-only file system" in ended.err
        assert difference(before, record(place.root)) == []
        assert place.litter() == []
        place.done("status")
        place.done("restore", "before", "--to", str(tmp_path / "target"))
        assert (tmp_path / "target/file").read_text() == "file"
        assert sorted(os.listdir(tmp_path)) == ["disk", "root", "target"]


def everything(directory: Path) -> Record:
    """Returns what is in a directory, but for the store."""
    return without(record(directory), b"store")


class TestRootsThatAreGone:
    @pytest.mark.parametrize("depth", [0, 1, 2])
    def test_come_back_whole(self, tmp_path, depth):
        place = Place(tmp_path / "above/above/root", tmp_path / "store")
        place.root.parent.mkdir(parents=True)
        build_small(place.root, 5)
        before = record(place.root)
        place.done("create", "--name", "before")
        shutil.rmtree([place.root, *place.root.parents][depth])

        place.done("restore", "before")

        assert difference(before, record(place.root)) == []
        assert place.litter() == []

    @pytest.mark.parametrize("kind", ["file", "pipe", "link to a file", "link", "dangling link"])
    def test_are_not_written_over_or_through(self, place, tmp_path, kind):
        """Neither by a program that knew the root before, nor by one that looks now."""
        place.make("file")
        place.done("create", "--name", "before")
        handle = treesnap.open(place.root, place.store)
        shutil.rmtree(place.root)
        (tmp_path / "other").mkdir()
        (tmp_path / "other/file").write_text("a user's")
        targets = {"link to a file": "other/file", "link": "other", "dangling link": "nowhere"}
        if kind == "file":
            place.root.write_text("a user's")
        elif kind == "pipe":
            os.mkfifo(place.root)
        else:
            place.root.symlink_to(tmp_path / targets[kind])
        before = everything(tmp_path)

        ended = place.snap("restore", "before")
        with pytest.raises(treesnap.Refused, match=r"is (not|no longer) a directory"):
            handle.restore("before")

        assert ended.code == 3, ended
        assert "is no longer a directory" in ended.err
        assert difference(before, everything(tmp_path)) == []
        assert place.litter() == []

    def test_may_have_moved_behind_a_link_that_has_a_history_of_its_own(self, place, tmp_path):
        place.make("file")
        place.done("create", "--name", "before")
        place.root.rename(tmp_path / "moved")
        place.root.symlink_to(tmp_path / "moved")
        place.done("create", "--name", "after")
        place.edit("file")

        place.done("restore", "after")

        assert (tmp_path / "moved/file").read_text() == "file"
        assert place.root.is_symlink()
