"""Forks where the file system shares blocks, where it cannot, and from one to the other."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import trees
from mounting import mounting
from oracle import difference, record, without
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Refused, StorageFull
from treesnap.core.ops.context import context_at

pytestmark = pytest.mark.sampled(12)

SIZES_MIB = {"btrfs": 256, "xfs": 320, "ext4": 64}
SHARING = ("btrfs", "xfs")
SIZE = 8 << 20


def later() -> int:
    """Returns a time at which nothing is racy that was written by now."""
    return time.time_ns() + 10**9


def handle(mounted: Path, root: str = "root") -> Handle:
    return Handle(
        context_at(root=mounted / root, store_path=str(mounted / "store"), clock_ns=later)
    )


def used_bytes(place: Path) -> int:
    fd = os.open(place, os.O_RDONLY)
    os.fsync(fd)
    os.sync()
    os.close(fd)
    numbers = os.statvfs(place)
    return (numbers.f_blocks - numbers.f_bfree) * numbers.f_frsize


@pytest.fixture
def mounter():
    with mounting() as made:
        yield made


def prepared(mounter, tmp_path: Path, kind: str) -> Path:
    """Returns a mounted file system with a root that has a large file and some small ones."""
    mounted = mounter.image(tmp_path / "mounted", kind, SIZES_MIB[kind])
    (mounted / "root/below").mkdir(parents=True)
    (mounted / "root/large").write_bytes(os.urandom(SIZE))
    for number in range(20):
        (mounted / f"root/below/{number}").write_bytes(os.urandom(5000))
    handle(mounted).create()
    return mounted


@pytest.mark.needs("clones")
class TestWhereBlocksAreShared:
    @pytest.mark.parametrize("kind", SHARING)
    def test_every_file_is_cloned_and_takes_no_space(self, mounter, tmp_path, kind):
        mounted = prepared(mounter, tmp_path, kind)
        before = used_bytes(mounted)

        result = handle(mounted).fork("latest", [mounted / "one", mounted / "two"])

        assert [fork.cloned_files for fork in result.forks] == [21, 21]
        assert [fork.copied_files for fork in result.forks] == [0, 0]
        assert used_bytes(mounted) - before < SIZE // 2
        assert difference(record(mounted / "root"), record(mounted / "one")) == []
        assert difference(record(mounted / "root"), record(mounted / "two")) == []

    @pytest.mark.parametrize("kind", SHARING)
    def test_the_first_snapshot_reads_no_file(self, mounter, tmp_path, kind):
        mounted = prepared(mounter, tmp_path, kind)
        handle(mounted).fork("latest", [mounted / "one", mounted / "two"])

        for name in ("one", "two"):
            assert handle(mounted, name).create().stats.files_read == 0

    @pytest.mark.parametrize("kind", SHARING)
    def test_a_change_shows_in_one_tree_alone(self, mounter, tmp_path, kind):
        mounted = prepared(mounter, tmp_path, kind)
        handle(mounted).fork("latest", [mounted / "one", mounted / "two"])
        before = record(mounted / "root"), record(mounted / "two")

        with (mounted / "one/large").open("r+b") as file:
            file.write(b"changed")

        assert difference(before[0], record(mounted / "root")) == []
        assert difference(before[1], record(mounted / "two")) == []
        assert [change.path for change in handle(mounted, "one").status().changes] == [b"large"]

    @pytest.mark.parametrize("kind", SHARING)
    def test_what_changed_since_the_snapshot_is_copied(self, mounter, tmp_path, kind):
        mounted = prepared(mounter, tmp_path, kind)
        shutil.copytree(mounted / "root", tmp_path / "before", symlinks=True)
        (mounted / "root/below/7").write_bytes(b"changed")

        (fork,) = handle(mounted).fork("latest", [mounted / "fork"]).forks

        assert (fork.cloned_files, fork.copied_files) == (20, 1)
        assert (mounted / "fork/below/7").read_bytes() == (tmp_path / "before/below/7").read_bytes()

    def test_files_without_copy_on_write_are_copied(self, mounter, tmp_path):
        """On btrfs a file with that attribute shares no blocks with one that lacks it."""
        mounted = prepared(mounter, tmp_path, "btrfs")
        (mounted / "root/plain").touch()
        if os.system(f"chattr +C {mounted}/root/plain 2> /dev/null"):
            pytest.skip("chattr is not installed, or the attribute cannot be set")
        (mounted / "root/plain").write_bytes(os.urandom(10_000))
        handle(mounted).create()

        (fork,) = handle(mounted).fork("latest", [mounted / "fork"]).forks

        assert (fork.cloned_files, fork.copied_files) == (21, 1)
        assert difference(record(mounted / "root"), record(mounted / "fork")) == []

    @pytest.mark.parametrize("kind", SHARING)
    def test_awkward_trees_are_whole(self, mounter, tmp_path, kind):
        mounted = mounter.image(tmp_path / "mounted", kind, SIZES_MIB[kind])
        trees.build(mounted / "root", 1)
        handle(mounted).create()

        handle(mounted).fork("latest", [mounted / "fork"])

        expected = without(record(mounted / "root"), *trees.LEFT_OUT)
        assert difference(expected, without(record(mounted / "fork"), *trees.LEFT_OUT)) == []


@pytest.mark.needs("clones")
class TestWhereTheyAreNot:
    def test_every_file_is_copied(self, mounter, tmp_path):
        mounted = prepared(mounter, tmp_path, "ext4")

        (fork,) = handle(mounted).fork("latest", [mounted / "fork"]).forks

        assert (fork.cloned_files, fork.copied_files) == (0, 21)
        assert difference(record(mounted / "root"), record(mounted / "fork")) == []
        assert handle(mounted, "fork").create().stats.files_read == 0

    def test_forks_without_room_are_refused_before_one_is_made(self, mounter, tmp_path):
        mounted = prepared(mounter, tmp_path, "ext4")

        with pytest.raises(StorageFull, match="blocks cannot be shared there"):
            handle(mounted).fork("latest", [mounted / f"fork-{number}" for number in range(9)])

        assert sorted(os.listdir(mounted)) == ["lost+found", "root", "store"]

    def test_from_another_file_system_the_first_is_copied_and_others_are_clones(
        self, mounter, tmp_path
    ):
        mounted = prepared(mounter, tmp_path, "ext4")
        other = mounter.image(tmp_path / "other", "btrfs", SIZES_MIB["btrfs"])

        result = handle(mounted).fork("latest", [other / "one", other / "two"])

        assert [fork.cloned_files for fork in result.forks] == [0, 21]
        assert difference(record(mounted / "root"), record(other / "two")) == []

    def test_a_mount_point_is_refused(self, mounter, tmp_path):
        mounted = prepared(mounter, tmp_path, "ext4")
        other = mounter.tmpfs(tmp_path / "other")

        with pytest.raises(Refused, match="mount point"):
            handle(mounted).fork("latest", [other])
