"""Restoring large directories, and many files, with the help of other processes.

What helpers build is what one process builds, whatever becomes of them: each test
compares with the tree that was captured. A tree of some hundred files counts as large.
"""

from __future__ import annotations

import errno
import os
import subprocess
from typing import Any

import pytest

from frames import FRAMES, few_frames
from helping import CORES, InHelpers, Noting, die, fill, refuse
from sampling import sized
from state import tree_state
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.apply import removal, stage
from treesnap.testing.doubles import Call, WrappedFileSystem

pytestmark = [pytest.mark.needs("helpers"), pytest.mark.sampled(10)]


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Lets every directory count as large, and every machine have cores to spare."""
    monkeypatch.setattr(stage, "HELPED_FILES_MIN", 1)
    monkeypatch.setattr(stage, "HELPED_PUTS_MIN", 1)
    monkeypatch.setattr(removal, "HELPED_REMOVALS_MIN", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: CORES)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    fill(root, 300, tops=5, inners=3)
    for number, path in enumerate(sorted(root.glob("*/*/*"))):
        path.chmod(0o600 + number % 8)
    (root / "top-1" / "link").symlink_to("inner-0")
    (root / "top-2" / "inner-1").chmod(0o555)
    (root / "empty").mkdir()
    (root / "file").touch()
    return root


def restored(root, tmp_path, fs):
    """Returns the states of the root and of a restore of it elsewhere."""
    store = str(tmp_path / "store")
    Handle(context_at(root=root, store_path=store)).create(name="whole")
    Handle(context_at(root=root, store_path=store, fs=fs)).restore("whole", to=tmp_path / "out")
    return tree_state(root), tree_state(tmp_path / "out")


def rolled_back(root, tmp_path, fs):
    """Returns the states of the root before all of its files change, and when that is undone."""
    store = str(tmp_path / "store")
    Handle(context_at(root=root, store_path=store)).create(name="whole")
    before = tree_state(root)
    for path in root.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes() + b"changed")
    Handle(context_at(root=root, store_path=store, fs=fs)).restore("whole")
    return before, tree_state(root)


def fail():
    """Fails as a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_builds_what_one_process_builds(root, tmp_path):
    fs = Noting("change_times")

    before, after = restored(root, tmp_path, fs)

    assert after == before
    assert len(fs.noted()) == len(CORES)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", [1, 20, 60])
@pytest.mark.parametrize("method", ["open", "write_at", "change_times"])
@pytest.mark.parametrize("instead", [die, fail])
def test_does_itself_what_helpers_left(root, tmp_path, method, number, instead):
    before, after = restored(root, tmp_path, InHelpers(method, instead, number=number))

    assert after == before


@pytest.mark.parametrize("method", ["write_at", "unlink"])
def test_rolls_back_what_one_process_rolls_back(root, tmp_path, method):
    os.link(root / "top-0" / "inner-0" / "file-0", root / "top-4" / "same")
    fs = Noting(method)

    before, after = rolled_back(root, tmp_path, fs)

    assert after == before
    assert len(fs.noted()) == len(CORES)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("number", [1, 60])
@pytest.mark.parametrize("method", ["open", "write_at", "change_times", "unlink"])
@pytest.mark.parametrize("instead", [die, fail])
def test_rolls_back_itself_what_helpers_left(root, tmp_path, method, number, instead):
    before, after = rolled_back(root, tmp_path, InHelpers(method, instead, number=number))

    assert after == before


def test_rolls_nothing_back_when_a_file_cannot_be_built(root, tmp_path):
    class Full(WrappedFileSystem):
        def around(self, call: Call) -> Any:
            if call.method == "write_at" and ".treesnap" in call.path:
                fail()
            return call.proceed()

    with pytest.raises(Exception, match="No space left"):
        rolled_back(root, tmp_path, Full(LocalFileSystem()))

    assert (root / "top-0" / "inner-0" / "file-0").read_bytes() == b"changed"
    assert sorted(os.listdir(root)) == sorted(
        ["empty", "file", *(f"top-{number}" for number in range(5))]
    )


def test_fails_as_one_process_does(root, tmp_path):
    class Full(WrappedFileSystem):
        def around(self, call: Call) -> Any:
            if call.method == "write_at" and "file-17" in call.path:
                fail()
            return call.proceed()

    with pytest.raises(Exception, match="No space left"):
        restored(root, tmp_path, Full(LocalFileSystem()))

    assert sorted(os.listdir(tmp_path)) == ["root", "store"]


def test_restores_a_directory_that_is_gone(root, tmp_path):
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store")))
    handle.create(name="whole")
    before = tree_state(root)
    subprocess.run(["rm", "-r", root / "top-1", root / "top-2"], check=True)

    handle.restore("whole")

    assert tree_state(root) == before


@pytest.mark.usefixtures("of_any_depth")
def test_depth_costs_no_recursion(root, tmp_path):
    deepest = root.joinpath(*["d"] * sized(FRAMES + 50, 1200))
    subprocess.run(["mkdir", "-p", deepest], check=True)
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store")))
    whole = handle.create(name="whole")
    subprocess.run(["rm", "-r", root / "d"], check=True)

    with few_frames():
        handle.restore("whole")

    assert handle.create().stats.directories == whole.stats.directories
    subprocess.run(["rm", "-r", root / "d"], check=True)  # too deep for the ways of Python


def test_hard_links_stay_links(root, tmp_path):
    os.link(root / "top-0" / "inner-0" / "file-0", root / "top-4" / "same")

    before, after = restored(root, tmp_path, LocalFileSystem())

    assert after == before
    assert (tmp_path / "out" / "top-4" / "same").stat().st_nlink == 2


def test_builds_everything_itself_where_no_process_can_be_started(root, tmp_path, monkeypatch):
    fs = Noting("change_times")
    monkeypatch.setattr(os, "fork", refuse)

    before, after = restored(root, tmp_path, fs)

    assert after == before
    assert len(fs.noted()) == 1
