"""Root without the right to give files away: in a user namespace, or without CAP_CHOWN."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import treesnap
from state import tree_state

pytestmark = [pytest.mark.needs("linux"), pytest.mark.sampled(10)]

OTHER_ID = 1234
IN_NAMESPACE = ("unshare", "--user", "--map-root-user")
WITHOUT_CAPABILITY = ("setpriv", "--bounding-set=-chown")
KILLED_THEN_RECOVERED = """
import json, sys
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault
from treesnap.testing.doubles import UnsyncedFileSystem

root, store, method, number = sys.argv[1:]
fault = Fault(methods=frozenset({method}), number=int(number))

def restore(fs):
    Handle(context_at(root=root, store_path=store, fs=fs)).restore("before")

was_killed = killed(restore, fault).was_killed
said = Handle(context_at(root=root, store_path=store, fs=UnsyncedFileSystem())).recover()
print(json.dumps([was_killed, said]))
"""
RESTORED_TWICE = """
import json, pathlib, sys
from treesnap.core.ops.context import context_at
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import restore
from treesnap.testing.doubles import UnsyncedFileSystem

root, store = sys.argv[1:]
context = context_at(root=root, store_path=store, fs=UnsyncedFileSystem())
found = []
for ref, bases in [("second", ("end",)), ("first", ("end", "second"))]:
    result = restore(context, RestoreRequest(ref, bases=bases))
    found.append([pathlib.Path(root, "one").read_text(), len(result.conflicts)])
print(json.dumps(found))
"""


@pytest.fixture(params=[IN_NAMESPACE, WITHOUT_CAPABILITY], ids=["namespace", "capability"])
def lesser(request) -> tuple[str, ...]:
    """A command that runs another one as such a root."""
    if os.geteuid():
        pytest.skip("owners are for root to give")
    try:
        done = subprocess.run([*request.param, "true"], check=False, capture_output=True)
    except FileNotFoundError as error:
        pytest.skip(f"{error.filename} is not installed")
    if done.returncode:
        pytest.skip(f"{request.param[0]} is not possible here: {done.stderr.decode()}")
    return request.param


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with files of another user, all of which changed since the snapshot ``before``."""
    root = tmp_path / "root"
    (root / "directory").mkdir(parents=True)
    for name in ("one", "two", "directory/three"):
        (root / name).write_text("old")
        os.chown(root / name, OTHER_ID, OTHER_ID)
        (root / name).chmod(0o6755)
    treesnap.open(root, tmp_path / "store").create(name="before")
    for name in ("one", "two", "directory/three"):
        (root / name).write_text("new")
    return root


def contents(root: Path) -> set[bytes]:
    return {state.content for path, state in tree_state(root).items() if state.content}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("method", "number"), [("exchange", 2), ("sync_file_system", 2)])
def test_a_recovery_takes_missing_owners_for_no_change(lesser, root, tmp_path, method, number):
    words = [sys.executable, "-c", KILLED_THEN_RECOVERED]
    done = subprocess.run(
        [*lesser, *words, root, tmp_path / "store", method, str(number)],
        check=True,
        capture_output=True,
        text=True,
    )

    assert json.loads(done.stdout) == [True, "completed an interrupted restore"]
    assert contents(root) == {b"old"}
    assert not list(root.glob(".treesnap*"))


def test_a_recovery_knows_a_file_of_which_the_group_alone_is_given(lesser, tmp_path):
    """It has the set-group-ID bit, but not the set-user-ID bit."""
    root = tmp_path / "root"
    root.mkdir()
    for name in ("one", "two"):
        (root / name).write_text("old")
        os.chown(root / name, OTHER_ID, 0)
        (root / name).chmod(0o6755)
    treesnap.open(root, tmp_path / "store").create(name="before")
    for name in ("one", "two"):
        (root / name).unlink()
        (root / name).write_text("new")
    words = [sys.executable, "-c", KILLED_THEN_RECOVERED, root, tmp_path / "store"]

    done = subprocess.run(
        [*lesser, *words, "exchange", "2"],
        check=True,
        capture_output=True,
        text=True,
    )

    assert json.loads(done.stdout) == [True, "completed an interrupted restore"]
    assert contents(root) == {b"old"}
    assert [(root / name).stat().st_mode & 0o7777 for name in ("one", "two")] == [0o2755] * 2


def test_a_missing_owner_is_no_change_by_others(lesser, tmp_path):
    """The second restore finds what the first one put, which has another owner than its base."""
    root = tmp_path / "root"
    root.mkdir()
    handle = treesnap.open(root, tmp_path / "store")
    for name in ("first", "second", "end"):
        (root / "one").write_text(name)
        os.chown(root / "one", OTHER_ID, OTHER_ID)
        (root / "one").chmod(0o6755)
        handle.create(name=name)

    done = subprocess.run(
        [*lesser, sys.executable, "-c", RESTORED_TWICE, root, tmp_path / "store"],
        check=True,
        capture_output=True,
        text=True,
    )

    assert json.loads(done.stdout) == [["second", 0], ["first", 0]]


def test_a_restore_says_which_owners_are_missing(lesser, root, tmp_path):
    words = [sys.executable, "-m", "treesnap", "-C", root, "--store", tmp_path / "store"]
    done = subprocess.run(
        [*lesser, *words, "restore", "before"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert (root / "one").stat().st_mode & 0o7777 == 0o755  # it lends no other user's rights
    assert "The owner or some attributes could not be put back" in done.stderr
    assert contents(root) == {b"old"}
