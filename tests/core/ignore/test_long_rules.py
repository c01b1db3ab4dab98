"""More ignore rules than a snapshot takes: listed, left alone, and harmless to other rules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from state import tree_state
from treesnap import CreateOptions
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.scan.ignore import IGNORE_FILE_SIZE_MAX, RULES_SIZE_MAX
from treesnap.testing.doubles import UnsyncedFileSystem

COUNT = 70
"""Directories with rules of nearly 1 MiB: more than 64 MiB together."""
RULES = b"".join(b"%04095d\n" % number for number in range(IGNORE_FILE_SIZE_MAX // 4096 - 1))


class Place:
    """A root with too many rules, and another root in the same store."""

    def __init__(self, base: Path) -> None:
        self.root, self.other, self.store = base / "root", base / "other", base / "store"
        for number in range(COUNT):
            directory = self.root / f"{number:02}"
            directory.mkdir(parents=True)
            (directory / ".snapignore").write_bytes(RULES + b"secret\n")
            (directory / "secret").write_text("excluded")
            (directory / "file").write_text("captured")
        self.other.mkdir()
        (self.other / "file").write_text("theirs")

    def snap(self, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "treesnap", "--store", str(self.store), *arguments]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("rules"))


@pytest.mark.slow
def test_directories_beyond_the_bound_are_unreadable_and_nothing_else_is(place):
    fits = RULES_SIZE_MAX // len(RULES)

    created = place.snap(place.root, "create", "--name", "first")

    assert created.returncode == 4
    assert f"{COUNT - 1:02}" in created.stderr
    handle = Handle(
        context_at(root=place.root, store_path=str(place.store), fs=UnsyncedFileSystem())
    )
    left_out = {item.path for item in handle.skipped("first") if item.reason.name == "UNREADABLE"}
    assert COUNT - fits <= len({path.split(b"/")[0] for path in left_out}) <= COUNT - fits + 1
    assert not any(path.startswith(b"00") for path in left_out)
    for number in range(COUNT):
        (place.root / f"{number:02}" / "file").write_text("edited")
        (place.root / f"{number:02}" / "new").write_text("new")
    unread = [place.root / os.fsdecode(path).split("/")[0] for path in left_out]
    before = {path: tree_state(path) for path in unread}

    restored = place.snap(place.root, "restore", "first")

    assert restored.returncode in (0, 4), restored.stderr
    assert {path: tree_state(path) for path in unread} == before
    assert (place.root / "00" / "file").read_text() == "captured"
    assert not (place.root / "00" / "new").exists()
    assert all((path / "secret").exists() for path in place.root.iterdir() if path.is_dir())
    assert place.snap(place.root, "undo").returncode in (0, 4)
    assert (place.root / "00" / "new").exists()

    for root, arguments in (
        (place.other, ["create"]),
        (place.other, ["restore", "latest"]),
        (place.other, ["gc"]),
        (place.root, ["gc"]),
        (place.root, ["list"]),
        (place.root, ["verify", "--read-data"]),
        (place.root, ["delete", "first"]),
        (place.other, ["gc"]),
    ):
        done = place.snap(root, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)


def test_patterns_of_a_call_beyond_the_bound_are_refused_before_anything_is_read(tmp_path):
    (tmp_path / "root").mkdir()
    handle = Handle(context_at(root=tmp_path / "root", store_path=str(tmp_path / "store")))
    patterns = [f"{number:08000}" for number in range(RULES_SIZE_MAX // 8000 + 1)]

    with pytest.raises(ValueError, match="too long"):
        handle.create(options=CreateOptions(exclude=patterns))

    assert handle.list() == ()
    fitting = patterns[: len(patterns) - 70]
    (tmp_path / "root" / ".snapignore").write_bytes(RULES)
    (tmp_path / "root" / "file").write_text("content")
    created = handle.create(options=CreateOptions(exclude=fitting))
    (tmp_path / "root" / "file").write_text("edited")
    handle.restore(created.id)
    assert (tmp_path / "root" / "file").read_text() == "content"
    handle.gc()
