"""A small store whose paths are very long, or very many, does not exhaust the memory.

Each command is a process of its own, so that what it takes can be measured.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from forge import Forge
from memory import Ended, run_measured
from treesnap.model import ObjectId

PEAK_BYTES_MAX = 250 << 20
LEVELS = 450
"""Of names of 4,095 bytes: the paths of all levels together are 400 MB."""


class Scene:
    """A small root, and a store with a forged snapshot of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "root"
        self.root.mkdir()
        (self.root / "kept").write_bytes(b"kept\n")
        self.forge = Forge(place / "store", self.root)
        self.bottom = self.forge.tree(self.forge.file(b"bottom"))

    def deep(self) -> ObjectId:
        """Returns a tree with long paths."""
        tree = self.bottom
        for _ in range(LEVELS):
            tree = self.forge.tree(self.forge.directory(b"d" * 4095, tree))
        return tree

    def wide(self) -> ObjectId:
        """Returns a tree with a thousand million paths."""
        tree = self.bottom
        for _ in range(30):
            names = (b"a" * 4000, b"b" * 4000)
            tree = self.forge.tree(*(self.forge.directory(name, tree) for name in names))
        return tree

    def snap(self, *args: str) -> Ended:
        """Runs a command in the root."""
        program = [sys.executable, "-m", "treesnap", "-C", self.root]
        return run_measured(
            [*program, "--store", self.place / "store", *args], self.place / "errors"
        )

    def peak_of(self, *args: str) -> int:
        """Returns the peak of a command that has to end with a result, or a clean error."""
        ended = self.snap(*args)
        assert ended.exit_code in {0, 1, 3}, ended.error
        assert "Traceback" not in ended.error
        assert "Internal error" not in ended.error
        assert "not enough memory" not in ended.error
        return ended.peak_bytes


@pytest.fixture
def scene(tmp_path) -> Scene:
    """A scene without a snapshot."""
    return Scene(tmp_path)


COMMANDS = [
    ("diff", "--json"),
    ("status",),
    ("restore", "latest", "--dry-run"),
    ("restore", "latest"),
    ("ls", "-R", "latest"),
    ("find", "*"),
    ("restore", "latest", "--to", "../elsewhere"),
    ("fork", "latest", "../elsewhere"),
    ("diff", "--stat"),
    ("diff", "first", "latest"),
    ("grep", "absent"),
    ("du",),
    ("verify", "--read-data"),
    ("gc",),
    ("log",),
    ("log", "kept"),
    ("revert", "first..latest", "--dry-run"),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("shape", ["deep", "wide"])
def test_no_command_takes_the_memory_that_a_store_asks_for(scene, command, shape):
    if command == ("restore", "latest") and shape == "wide":
        pytest.skip("it counts every path, which ends after days, and holds none")
    scene.forge.snapshot(scene.forge.tree(scene.forge.file(b"kept")), name="first")
    scene.forge.snapshot(getattr(scene, shape)())

    assert scene.peak_of(*command) < PEAK_BYTES_MAX
    assert os.listdir(scene.root) == ["kept"]


def test_a_list_that_is_refused_says_what_to_do(scene):
    scene.forge.snapshot(scene.wide())

    ended = scene.snap("ls", "-R", "latest")

    assert ended.exit_code == 1
    assert "more paths than a store of this size" in ended.error
    assert "hint: name a PATH" in ended.error
    assert scene.snap("ls", "latest").exit_code == 0


def test_verify_names_what_a_deep_tree_lost(scene):
    lost = ObjectId(b"\xee" * 32)
    scene.bottom = scene.forge.tree(scene.forge.directory(b"lost", lost))
    scene.forge.snapshot(scene.deep())

    ended = scene.snap("verify")

    assert ended.exit_code == 7
    assert ended.peak_bytes < PEAK_BYTES_MAX
