"""Commands beside one that stands still in the same root: who waits for it, and who does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STANDS_STILL = """
import os, signal, sys
import treesnap
from treesnap.core.model.events import NullMonitor

class Stopping(NullMonitor):
    def begin(self, phase, files, size_bytes):
        os.kill(os.getpid(), signal.SIGSTOP)

root, store, method, *arguments = sys.argv[1:]
getattr(treesnap.open(root, store, monitor=Stopping()), method)(*arguments)
"""
HOLDERS = {"create": ("create",), "restore": ("restore", "first")}
WAITING = [
    ("create",),
    ("restore", "first"),
    ("delete", "first"),
    ("prune", "--keep-last", "1"),
    ("pin", "first"),
]
GOING_ON = [
    ("list",),
    ("list", "--all"),
    ("show", "first"),
    ("ls", "first"),
    ("cat", "first", "a"),
    ("find", "a"),
    ("status",),
    ("diff", "first"),
    ("stats",),
    ("verify", "--read-data"),
    ("doctor",),
    ("restore", "first", "--dry-run"),
    ("restore", "first", "--to", "../elsewhere"),
    ("gc",),
]


@pytest.fixture(params=HOLDERS)
def holder(request, snap, root: Path, store: Path) -> Iterator[tuple[str, int]]:
    """An operation that has the root's lock and stands still; its name and its process."""
    (root / "a").write_text("a")
    snap("create", "--name", "first")
    (root / "a").write_text("b")
    words = [STANDS_STILL, str(root), str(store), *HOLDERS[request.param]]
    process = subprocess.Popen([sys.executable, "-c", *words])
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    yield request.param, process.pid
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_who_would_change_the_root_is_told_who_holds_it(snap, root, holder):
    operation, pid = holder

    for words in WAITING:
        result = snap("--wait", "0.05", *words)

        assert (result.code, result.raw) == (6, b""), words
        assert f"The root '{root}' is in use by process {pid}: {operation}" in result.err
        assert "--wait SECONDS waits longer" in result.err
    os.kill(pid, signal.SIGKILL)
    assert snap("--wait", "30", "create").code == 0


@pytest.mark.sampled(3)
def test_who_only_looks_and_other_roots_wait_for_no_one_else(
    snap, run_snap, root, tmp_path, holder
):
    other = tmp_path / "other"
    other.mkdir()

    codes = {words: snap("--wait", "0", *words).code for words in GOING_ON}
    others = [
        run_snap("--wait", "0", *words, cwd=other).code
        for words in (["create"], ["restore", "latest"], ["prune"])
    ]

    assert codes == dict.fromkeys(GOING_ON, 0)
    assert others == [0, 0, 0]


def test_a_second_collection_is_told_who_does_the_first(snap, root, store):
    snap("create")
    words = [STANDS_STILL, str(root), str(store), "gc"]
    with subprocess.Popen([sys.executable, "-c", *words]) as process:
        os.waitpid(process.pid, os.WUNTRACED)

        result = snap("--wait", "0", "gc")

        process.kill()
    assert result.code == 6
    assert f"The garbage collector is in use by process {process.pid}: gc" in result.err
