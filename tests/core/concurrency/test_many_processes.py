"""Many processes on one store at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import treesnap
from oracle import difference, record
from sampling import sized

TIMEOUT_S = 300


def start(root: Path, store: Path, *words: str) -> subprocess.Popen[bytes]:
    """Starts a command on a root and does not wait for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "treesnap", "-C", str(root), *words],
        env={**os.environ, "SNAP_STORE": str(store)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ends(processes: list[subprocess.Popen[bytes]]) -> list[tuple[int, bytes]]:
    """Waits for commands; returns their exit codes and what they complained about."""
    found = []
    for process in processes:
        _, complaints = process.communicate(timeout=TIMEOUT_S)
        found.append((process.returncode, complaints))
    return found


@pytest.fixture
def roots(tmp_path: Path, count: int) -> list[Path]:
    """Roots that hold files of their own, and one that they all hold."""
    found = []
    for number in range(count):
        root = tmp_path / f"root-{number}"
        (root / "sub").mkdir(parents=True)
        (root / "own").write_bytes(b"%d" % number * 5000)
        (root / "sub/same").write_bytes(b"the same everywhere" * 500)
        found.append(root)
    return found


@pytest.mark.parametrize(
    "count", [sized(4, 16), pytest.param(100, marks=pytest.mark.slow)], ids=str
)
def test_snapshots_of_many_roots_at_once_all_succeed(roots, tmp_path, count):
    """The store is new, so they make it at the same time too."""
    store = tmp_path / "store"

    outcomes = ends([start(root, store, "create", "-q") for root in roots])

    assert outcomes == [(0, b"")] * count
    for root in roots:
        handle = treesnap.open(root, store)
        handle.restore("latest", to=tmp_path / "elsewhere" / root.name)
        found = record(tmp_path / "elsewhere" / root.name)
        assert difference(record(root), found) == []
    assert treesnap.open(roots[0], store).verify(read_data=True).problems == ()


@pytest.mark.parametrize("count", [sized(3, 8)])
def test_snapshots_of_one_root_at_once_wait_for_each_other(roots, tmp_path, count):
    store = tmp_path / "store"

    outcomes = ends([start(roots[0], store, "create", "-q") for _ in range(count)])

    assert outcomes == [(0, b"")] * count
    assert len(treesnap.open(roots[0], store).list()) == count


@pytest.mark.parametrize("count", [sized(4, 6)])
def test_snapshots_and_collections_at_once_lose_nothing(roots, tmp_path, count):
    store = tmp_path / "store"
    assert ends([start(root, store, "create", "-q") for root in roots]) == [(0, b"")] * count
    for root in roots:
        (root / "own").write_bytes(b"changed" * 3000)
    collections = [start(roots[0], store, "gc", "-q") for _ in range(3)]

    outcomes = ends([start(root, store, "create", "-q") for root in roots])

    assert outcomes == [(0, b"")] * count
    assert [code for code, _ in ends(collections)] == [0, 0, 0]
    assert treesnap.open(roots[0], store).verify(read_data=True).problems == ()
