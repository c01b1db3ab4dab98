"""A restore names the processes that have open what it replaces."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

pytestmark = [pytest.mark.needs("processes"), pytest.mark.usefixtures("every_process")]

HOLDING = "import sys; files = [open(name) for name in sys.argv[1:]]; print(flush=True); input()"
DATABASE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("insert into facts values (2)")
database.commit()
print(flush=True)
input()
"""


@pytest.fixture
def running():
    """Starts Python programs, and returns their ids when they are ready."""
    started = []

    def start(program, *words):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout.readline() == b"\n"
        return process.pid

    yield start
    for process in started:
        process.communicate(b"\n")


def named(result):
    return {(item["path"], item["process_id"]) for item in result.json["open_files"]}


def test_the_text_says_which_process_and_which_file(snap, root, running):
    (root / "file").write_text("one")
    snap("create")
    (root / "file").write_text("two")
    process_id = running(HOLDING, root / "file")

    result = snap("restore", "latest")

    assert result.code == 0
    assert f"(pid {process_id}): file; it uses the old file until it opens it again" in result.err
    assert "open in python" in result.err


def test_of_the_log_of_a_database_it_says_what_to_do(snap, root, running):
    with closing(sqlite3.connect(root / "app.db")) as database:
        database.executescript("pragma journal_mode = wal; create table rows (value);")
        snap("create")
        database.execute("insert into rows values (1)")
        database.commit()
        process_id = running(HOLDING, root / "app.db-wal")

        result = snap("restore", "latest")

    wanted = "app.db-wal; it may write over the restored database: stop it, then restore once more"
    assert f"(pid {process_id}): {wanted}" in result.err


def test_a_database_with_its_log(snap, root, running):
    database = sqlite3.connect(root / "live.db")
    database.execute("pragma journal_mode = wal")
    database.execute("create table facts (number)")
    database.commit()
    snap("create")
    process_id = running(DATABASE, root / "live.db")
    own = os.getpid()

    result = snap("restore", "latest", "--json")
    database.close()

    wal = {("live.db-wal", process_id), ("live.db-wal", own)}
    assert wal <= named(result)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("verb", ["undo", "run", "removed", "below removed", "linked"])
def test_every_way_back_and_every_way_to_go(snap, root, running, verb):
    (root / "file").write_text("one")
    snap("create")
    path = "file"
    if verb in ("removed", "below removed"):
        path = "new" if verb == "removed" else "new/deep/file"
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("made since")
        opened = root / path
    elif verb == "linked":
        (root / "file").write_text("two")
        opened = root.parent / "elsewhere"
        os.link(root / "file", opened)
    else:
        (root / "file").write_text("two")
        opened = root / "file"
    if verb == "undo":
        snap("restore", "latest")
    process_id = running(HOLDING, opened)

    if verb == "run":
        result = snap("run", "--json", "--", "sh", "-c", "echo > file; exit 1", process=True)
        found = {(i["path"], i["process_id"]) for i in result.json["restore"]["open_files"]}
    else:
        result = snap(*(["undo"] if verb == "undo" else ["restore", "latest"]), "--json")
        found = named(result)

    assert found == {(path, process_id)}


def test_what_stays_and_what_is_made_is_not_named(snap, root, running):
    for name in ("same", "gone"):
        (root / name).write_text(name)
    (root / "mode").write_text("mode")
    snap("create")
    running(HOLDING, root / "same", root / "gone", root / "mode")
    (root / "gone").unlink()
    (root / "mode").chmod(0o600)

    assert named(snap("restore", "latest", "--json")) == set()


def test_nothing_is_named_where_no_process_is_shown(snap, root, running, tmp_path):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs a namespace of its own")
    (root / "file").write_text("one")
    snap("create")
    (root / "file").write_text("two")
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]

    result = snap("restore", "latest", "--json", prefix=hidden)

    assert (result.code, named(result)) == (0, set())
