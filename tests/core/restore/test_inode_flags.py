"""Inode flags, which ``chattr`` sets, are not captured: the limits say what becomes of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import treesnap

pytestmark = pytest.mark.needs("attributes")

NO_DUMP = "d"


def give(path: Path) -> None:
    """Gives a path the flag; skips where there is none."""
    try:
        done = subprocess.run(["chattr", f"+{NO_DUMP}", path], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("chattr is not installed")
    if done.returncode:
        pytest.skip("the file system has no inode flags")


def has(path: Path) -> bool:
    """Returns whether a path has the flag."""
    words = ["lsattr", "-d", path]
    said = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    return NO_DUMP in said.split()[0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root whose files all have the flag, below two directories of which one has it too."""
    root = tmp_path / "root"
    for directory in ("plain", "flagged"):
        (root / directory).mkdir(parents=True)
        for name in ("replaced", "removed", "untouched"):
            (root / directory / name).write_text("before")
            give(root / directory / name)
    give(root / "flagged")
    return root


@pytest.mark.parametrize("is_given", [False, True])
def test_a_restored_file_has_the_flags_that_the_root_hands_down(root, tmp_path, is_given):
    """It is made in a directory of the restore, below the root, and moved to its place."""
    handle = treesnap.open(root, tmp_path / "store")
    handle.create()
    if is_given:
        give(root)
    for directory in ("plain", "flagged"):
        (root / directory / "replaced").write_text("after")
        (root / directory / "removed").unlink()

    handle.restore("latest")

    for directory in ("plain", "flagged"):
        found = [has(root / directory / name) for name in ("replaced", "removed", "untouched")]
        assert found == [is_given, is_given, True]


def test_a_flag_is_no_change(root, tmp_path):
    handle = treesnap.open(root, tmp_path / "store")
    first = handle.create()
    subprocess.run(["chattr", f"-{NO_DUMP}", root / "plain" / "untouched"], check=True)

    assert handle.status().changes == ()
    assert handle.create().root_hash == first.root_hash
