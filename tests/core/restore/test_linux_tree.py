"""The main job on a real tree: the Linux sources, damaged by half and brought back.

Runs when ``TREESNAP_LINUX_TREE`` names an unpacked tree, or the archive of Debian's
package ``linux-source-6.1`` is installed. The comparison is made by rsync, and the
times, which rsync compares in its own way, by the oracle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from random import Random

import pytest

import treesnap
from mutations import mutate
from oracle import Record, copy_tree, difference, record

ARCHIVE = Path("/usr/src/linux-source-6.1.tar.xz")
COMPARE = ["rsync", "-aHAXSn", "--checksum", "--delete", "--itemize-changes"]

pytestmark = pytest.mark.slow

TRUSTED = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
"""Options of ``extractall``; Debian 12 has a Python that knows none."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the Linux sources."""
    given = os.environ.get("TREESNAP_LINUX_TREE")
    path = tmp_path / "linux"
    if shutil.which("rsync") is None:
        pytest.skip("rsync is not installed")
    if given:
        copy_tree(given, path)
    elif ARCHIVE.is_file():
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(tmp_path, **TRUSTED)
        (tmp_path / "linux-source-6.1").rename(path)
    else:
        pytest.skip(f"there is no tree: neither TREESNAP_LINUX_TREE nor {ARCHIVE}")
    return path


def compare(expected: Path, actual: Path) -> list[str]:
    """Returns what rsync would do to make one tree like the other."""
    command = [*COMPARE, f"{expected}/", f"{actual}/"]
    result = subprocess.run(command, check=True, capture_output=True)
    return result.stdout.decode("utf-8", "replace").splitlines()


def times(state: Record) -> dict[bytes, int]:
    """Returns the modification times of a record in nanoseconds."""
    return {path: facts.mtime_ns for path, facts in state.items()}


def damage(root: Path) -> None:
    """Removes half of the tree, and edits the rest."""
    for number, name in enumerate(sorted(os.listdir(root))):
        if number % 2:
            path = root / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in sorted(root.rglob("*.[ch]"))[::50]:
        if path.is_file() and not path.is_symlink():
            path.write_bytes(path.read_bytes()[::-1])
    mutate(root, Random(6), 10)


def test_half_of_the_linux_sources_comes_back(root, tmp_path):
    expected, damaged = tmp_path / "expected", tmp_path / "damaged"
    copy_tree(root, expected)
    assert compare(expected, root) == []
    before = record(root)
    handle = treesnap.open(root, tmp_path / "store")

    result = handle.create()
    held = len(handle.ls(result.id, recursive=True))
    assert result.complete
    assert held == len(before) - 1
    unchanged = handle.create()
    assert (unchanged.stats.files_read, unchanged.stats.added_bytes <= 4096) == (0, True)

    damage(root)
    copy_tree(root, damaged)
    assert len(compare(expected, root)) > held // 4
    handle.restore(result.id)
    assert compare(expected, root) == []
    assert times(record(root)) == times(before)

    handle.undo()
    assert compare(damaged, root) == []
    assert difference(record(damaged), record(root)) == []
    handle.redo()
    assert compare(expected, root) == []

    shutil.rmtree(root)
    handle.restore("latest")
    assert compare(expected, root) == []
    assert difference(before, record(root)) == []
    assert handle.verify(read_data=True).problems == ()
