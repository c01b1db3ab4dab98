"""What a deep tree costs, counted in directories that are opened."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge import Forge
from treesnap.core.handle import Handle
from treesnap.core.model.entries import Totals
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import RecordingFileSystem

LEVELS = 1200
"""More than the work on a tree has parts at most, which is 1,024."""


@pytest.fixture
def root(tmp_path) -> Iterator[Path]:
    """A root that is removed if the test fails: pytest does not remove so deep a tree."""
    root = tmp_path / "root"
    root.mkdir()
    yield root
    subprocess.run(["rm", "-rf", root], check=True)


def test_a_restore_a_look_and_an_undo_cost_as_much_for_each_level(root, tmp_path):
    forge = Forge(tmp_path / "store", root)
    tree = forge.tree(forge.file(b"bottom"))
    for level in range(LEVELS):
        sums = Totals(files=1, directories=level + 1)
        tree = forge.tree(forge.directory(b"d", tree), totals=sums)
    forge.snapshot(tree)
    fs = RecordingFileSystem()
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store"), fs=fs))

    handle.restore("latest", list_changes=False)
    restored = len(fs.calls("open"))
    handle.create()
    fs.clear()
    handle.status()

    assert restored < 20 * LEVELS
    assert len(fs.calls("open")) < 20 * LEVELS
    handle.undo()
    assert len(fs.calls("open")) < 40 * LEVELS
