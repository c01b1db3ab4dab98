"""The same on every file system: each has its own idea of what a rename changes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

import trees
from calling import Place
from mounting import mounting
from mutations import mutate
from oracle import difference, record, without

SIZES_MIB = {"ext4": 64, "xfs": 320, "btrfs": 256}
OLD_NS = 10**18


@pytest.fixture(params=[*SIZES_MIB, "tmpfs"])
def place(request, tmp_path: Path):
    """A root and its store on a file system of their own."""
    with mounting() as mounter:
        mounted = tmp_path / "mounted"
        if request.param == "tmpfs":
            mounter.tmpfs(mounted, size="128m")
        else:
            mounter.image(mounted, request.param, SIZES_MIB[request.param])
        (mounted / "root").mkdir()
        yield Place(mounted / "root", mounted / "store")


@pytest.mark.sampled(3)
def test_a_directory_and_a_file_change_places(place):
    """XFS gives a directory the present time when it is exchanged with something."""
    place.make("becomes-directory", "becomes-file/inside")
    os.utime(place.root / "becomes-file", ns=(OLD_NS, OLD_NS))
    place.done("create", "--name", "first")
    first = record(place.root)
    shutil.rmtree(place.root / "becomes-file")
    place.make("becomes-file")
    (place.root / "becomes-directory").unlink()
    place.make("becomes-directory/inside")
    os.utime(place.root / "becomes-directory", ns=(OLD_NS, OLD_NS))
    second = record(place.root)

    place.done("restore", "first")
    assert difference(first, record(place.root)) == []
    place.done("undo")
    assert difference(second, record(place.root)) == []
    place.done("redo")
    assert difference(first, record(place.root)) == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", [1, 2])
def test_awkward_trees_come_back(place, seed):
    shutil.rmtree(place.root)
    trees.build(place.root, seed)
    place.done("create", "--name", "first")
    first = without(record(place.root), *trees.LEFT_OUT)
    mutate(place.root, Random(seed), 60)
    second = without(record(place.root), *trees.LEFT_OUT)

    place.done("restore", "first")
    assert difference(first, without(record(place.root), *trees.LEFT_OUT)) == []
    place.done("undo")
    assert difference(second, without(record(place.root), *trees.LEFT_OUT)) == []
    place.done("verify", "--read-data")
