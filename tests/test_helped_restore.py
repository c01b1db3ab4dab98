"""Restoring large directories with the help of other processes.

What helpers build is what one process builds, whatever becomes of them: each test
compares with the tree that was captured. A tree of some hundred files counts as large.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from treesnap.fs.forked import Helper, helper_count
from treesnap.fs.local import LocalFileSystem
from treesnap.ops.handle import Handle
from treesnap.testing.state import tree_state
from treesnap.testing.wrapped import Call, WrappedFileSystem
from treesnap.worktree import stage

TIMEOUT_S = 60


class InHelpers(WrappedFileSystem):
    """Does something else at a call of helpers, and nothing else in this process."""

    def __init__(self, method: str, number: int, instead: Any) -> None:
        super().__init__(LocalFileSystem())
        self._process = os.getpid()
        self._method = method
        self._left = number
        self._instead = instead

    def around(self, call: Call) -> Any:
        """Lets calls through, but for one."""
        if os.getpid() != self._process and call.method == self._method:
            self._left -= 1
            if self._left == 0:
                self._instead()
        return call.proceed()


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Lets every directory count as large, and every machine have cores to spare."""
    monkeypatch.setattr(stage, "HELPED_FILES_MIN", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    for number in range(300):
        path = root / f"top-{number % 5}" / f"inner-{number % 3}" / f"file-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * number)
        path.chmod(0o600 + number % 8)
    (root / "top-1" / "link").symlink_to("inner-0")
    (root / "top-2" / "inner-1").chmod(0o555)
    (root / "empty").mkdir()
    (root / "file").touch()
    return root


def restored(root, tmp_path, fs):
    """Returns the states of the root and of a restore of it elsewhere."""
    store = str(tmp_path / "store")
    Handle(root=root, store_path=store).create(name="whole")
    Handle(root=root, store_path=store, fs=fs).restore("whole", to=tmp_path / "out")
    return tree_state(root), tree_state(tmp_path / "out")


def die():
    """Ends this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail():
    """Fails as a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_builds_what_one_process_builds(root, tmp_path):
    processes = set()

    class Noting(WrappedFileSystem):
        def around(self, call: Call) -> Any:
            if call.method == "open" and "file-" in call.path:
                os.write(notes, b"%d\n" % os.getpid())
            return call.proceed()

    read_fd, notes = os.pipe()
    with os.fdopen(read_fd, "rb") as pipe:
        before, after = restored(root, tmp_path, Noting(LocalFileSystem()))
        os.close(notes)
        processes = set(pipe.read().split())

    assert after == before
    assert len(processes) == 3


@pytest.mark.parametrize("number", [1, 20, 60])
@pytest.mark.parametrize("method", ["open", "write_at", "change_times"])
@pytest.mark.parametrize("instead", [die, fail])
def test_does_itself_what_helpers_left(root, tmp_path, method, number, instead):
    before, after = restored(root, tmp_path, InHelpers(method, number, instead))

    assert after == before


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
    handle = Handle(root=root, store_path=str(tmp_path / "store"))
    handle.create(name="whole")
    before = tree_state(root)
    subprocess.run(["rm", "-r", root / "top-1", root / "top-2"], check=True)

    handle.restore("whole")

    assert tree_state(root) == before


@pytest.mark.usefixtures("of_any_depth")
def test_depth_costs_no_recursion(root, tmp_path):
    deepest = root.joinpath(*["d"] * 1200)
    subprocess.run(["mkdir", "-p", deepest], check=True)
    handle = Handle(root=root, store_path=str(tmp_path / "store"))
    whole = handle.create(name="whole")
    subprocess.run(["rm", "-r", root / "d"], check=True)

    handle.restore("whole")

    assert handle.create().stats.directories == whole.stats.directories
    subprocess.run(["rm", "-r", root / "d"], check=True)  # too deep for the ways of Python


def test_hard_links_stay_links(root, tmp_path):
    os.link(root / "top-0" / "inner-0" / "file-0", root / "top-4" / "same")

    before, after = restored(root, tmp_path, LocalFileSystem())

    assert after == before
    assert (tmp_path / "out" / "top-4" / "same").stat().st_nlink == 2


def test_there_are_none_beside_threads():
    program = (
        "import os, threading; from treesnap.fs.forked import helper_count\n"
        "os.sched_getaffinity = lambda _: {0, 1}\n"
        "wait = threading.Event(); thread = threading.Thread(target=wait.wait)\n"
        "print(helper_count()); thread.start(); print(helper_count()); wait.set(); thread.join()"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert result.stdout.split() == [b"1", b"0"]


def test_a_helper_reports_until_it_ends():
    with Helper(lambda report: [report(b"%d" % number) for number in range(3)]) as helper:
        assert helper.reports() == b"012"


def test_a_helper_that_is_not_done_ends_with_the_block():
    read_fd, write_fd = os.pipe()

    with Helper(lambda _: signal.pause()):
        os.close(write_fd)

    with os.fdopen(read_fd, "rb") as pipe:
        assert pipe.read() == b""


def test_a_helper_ends_with_its_parent():
    program = (
        "import signal, sys; from treesnap.fs.forked import Helper\n"
        "def work(report): print('ready', flush=True); signal.pause()\n"
        "with Helper(work) as helper: helper.reports()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"

    process.kill()

    assert process.communicate(timeout=TIMEOUT_S)[0] == b""  # until nobody has it open


def test_one_core_has_no_helpers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

    assert helper_count() == 0
