"""Record locks that a program holds on its own files while it calls the library.

Closing any descriptor of a file takes all of them away, see fcntl_locking(2). Whether a
lock is held is asked from another process, because a process never stands in its own way.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

import treesnap
from descriptors import descriptors_of
from treesnap import Handle
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.fs.record_locks import close_unlocked, has_own_locks

LOCK = struct.Struct("hhqqi4x")
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_SH)
print("locked", flush=True)
sys.stdin.read()
"""
BEGIN = """
import sqlite3, sys
try:
    sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError as error:
    sys.exit(str(error))
"""


def is_locked(path: Path) -> bool:
    """Returns whether another process would have to wait for an exclusive lock."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        fd = os.open(path, os.O_RDWR)
        question = LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = LOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, question))
        os.write(write_fd, b"free" if answer[0] == fcntl.F_UNLCK else b"locked")
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said == b"locked"


@pytest.fixture
def handle(tmp_path) -> Handle:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/file").write_bytes(b"content")
    return treesnap.open(tmp_path / "root", tmp_path / "store")


@pytest.fixture
def file(handle) -> Iterator[BinaryIO]:
    """A file on which this process holds a lock, not captured as it is."""
    with (Path(handle.root) / "file").open("r+b", buffering=0) as opened:
        handle.create()
        opened.write(b"changed")
        fcntl.lockf(opened, fcntl.LOCK_EX, 1, 3)
        yield opened
    close_unlocked(LocalFileSystem())


def restore_metadata(handle: Handle) -> None:
    handle.create()
    (Path(handle.root) / "file").chmod(0o600)
    handle.restore("latest")


def restore_another_file(handle: Handle) -> None:
    handle.create()
    (Path(handle.root) / "another").touch()
    handle.restore("latest")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "action",
    [
        Handle.create,
        Handle.status,
        lambda handle: list(handle.diff("latest")),
        lambda handle: handle.restore("latest", dry_run=True),
        restore_metadata,
        restore_another_file,
    ],
    ids=["create", "status", "diff", "dry-run", "metadata", "restore"],
)
def test_stay(handle, file, action: Callable[[Handle], object]):
    action(handle)

    assert is_locked(Path(file.name))


def test_of_an_ignore_file_stay(handle):
    rules = Path(handle.root) / ".snapignore"
    rules.write_text("*.tmp\n")
    with rules.open("r+b") as opened:
        fcntl.lockf(opened, fcntl.LOCK_EX)

        handle.create()

        assert is_locked(rules)


def test_of_a_file_leave_it_readable_more_than_once(handle, file):
    fcntl.lockf(file, fcntl.LOCK_SH)

    assert [handle.read(None, "file") for _ in range(3)] == [b"changed"] * 3


def test_cost_one_descriptor_however_often_a_file_is_captured(handle, file):
    found = set()
    for number in range(5):
        file.write(b"%d" % number)
        found.add(handle.create().root_hash)
        assert descriptors_of(Path(file.name)) == 2

    assert len(found) == 5


def test_that_are_gone_leave_no_descriptor_after_the_next_capture(handle):
    path = Path(handle.root) / "file"
    with path.open("r+b") as opened:
        fcntl.lockf(opened, fcntl.LOCK_EX)
        handle.create()
        assert descriptors_of(path) == 2
        fcntl.lockf(opened, fcntl.LOCK_UN)

        handle.create()

        assert descriptors_of(path) == 1


@pytest.mark.needs("linux")
def test_are_found_behind_those_of_other_processes(handle):
    path = Path(handle.root) / "file"
    words = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        with path.open("r+b") as opened:
            assert not has_own_locks(opened.fileno())
            fcntl.lockf(opened, fcntl.LOCK_SH)
            assert has_own_locks(opened.fileno())

            handle.create()

            other.stdin.close()
            other.wait()
            assert is_locked(path)


@pytest.mark.needs("linux")
def test_of_other_processes_keep_nothing_open(handle):
    path = Path(handle.root) / "file"
    words = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"

        handle.create()

        assert descriptors_of(path) == 0
        other.stdin.close()


@pytest.mark.needs("linux")
def test_are_not_those_of_a_forked_child(handle, file):
    handle.create()
    child = os.fork()
    if child == 0:
        fd = os.open(file.name, os.O_RDONLY)
        os._exit(int(has_own_locks(fd)))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_locked(Path(file.name))


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_of_a_transaction_keep_other_writers_out(handle, mode):
    path = Path(handle.root) / "data.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(f"PRAGMA journal_mode={mode}")
    database.execute("CREATE TABLE t (value)")
    database.execute("BEGIN IMMEDIATE")
    database.execute("INSERT INTO t VALUES ('ours')")

    handle.create()

    words = [sys.executable, "-c", BEGIN, str(path)]
    assert b"locked" in subprocess.run(words, capture_output=True, check=False).stderr
    database.execute("COMMIT")
    handle.create()
    assert subprocess.run(words, check=False).returncode == 0
    database.close()


ASKING = """
import fcntl, sys

def note(event, values):
    if event == "fcntl.fcntl" and values[1] == fcntl.F_OFD_GETLK:
        print("asked", flush=True)

sys.addaudithook(note)
"""
BY_LIBRARY = """
import treesnap
treesnap.open(sys.argv[1], store=sys.argv[2]).create()
"""
BY_COMMAND = """
sys.argv[1:] = ["-C", sys.argv[1], "--store", sys.argv[2], "-q", "create"]
from treesnap.cli.start import main
main()
"""


@pytest.mark.parametrize(("capture", "asked"), [(BY_LIBRARY, 1), (BY_COMMAND, 0)])
def test_are_looked_for_only_in_a_process_of_others(tmp_path, capture, asked):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"text")
    words = [sys.executable, "-c", ASKING + capture, str(root), str(tmp_path / "store")]

    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout

    assert said.count("asked") == asked
