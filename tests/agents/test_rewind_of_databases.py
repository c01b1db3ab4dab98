"""A rewind leaves no database of SQLite with a log of another state."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from treesnap.agents.event import Event
from treesnap.agents.hook import record
from treesnap.agents.rewind import RewindRequest, rewind
from treesnap.core.ops.context import context_at
from treesnap.core.ops.history.steps import EventPhase
from treesnap.testing.doubles import UnsyncedFileSystem

KILLED_WRITER = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA wal_autocheckpoint = 0")
database.execute("UPDATE t SET s = 'killed' WHERE i % 97 = 0")
database.commit()
os._exit(0)  # only its log has the change
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "root").mkdir()
    path = tmp_path / "root" / "lab.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (i INTEGER PRIMARY KEY, s TEXT)")
        database.executemany("INSERT INTO t (s) VALUES (?)", [("first",)] * 500)
        database.commit()
    return path


@pytest.fixture
def tell(path, tmp_path):
    context = context_at(path.parent, str(tmp_path / "store"), fs=UnsyncedFileSystem())

    def told(phase):
        tool = "Bash" if phase in (EventPhase.PRE, EventPhase.POST) else None
        record(context, Event("claude", phase, str(path.parent), "a", tool=tool, call="k"))
        return context

    told(EventPhase.TURN)
    return told


def write(path):
    with closing(sqlite3.connect(path)) as database:
        database.executemany("INSERT INTO t (s) VALUES (?)", [("second" * 20,)] * 2000)
        database.commit()


def write_and_die(path):
    subprocess.run([sys.executable, "-c", KILLED_WRITER, path], check=True)


def rows(path):
    with closing(sqlite3.connect(path)) as database:
        (said,) = database.execute("PRAGMA integrity_check").fetchone()
        counted = database.execute("SELECT substr(s, 1, 6), count(*) FROM t GROUP BY 1")
        return said, dict(counted.fetchall())


def test_a_log_that_the_user_wrote_keeps_the_database(path, tell):
    tell(EventPhase.PRE)
    write(path)
    tell(EventPhase.POST)
    write_and_die(path)
    result = rewind(tell(EventPhase.END), RewindRequest("1", "a"))

    assert {item.path: item.verdict for item in result.paths}[b"lab.db"] == "conflict"
    assert rows(path) == ("ok", {"first": 495, "killed": 25, "second": 1980})


def test_a_log_of_the_session_goes_back_with_the_database(path, tell):
    tell(EventPhase.PRE)
    write(path)
    write_and_die(path)
    tell(EventPhase.POST)
    rewind(tell(EventPhase.END), RewindRequest("1", "a"))

    assert not os.path.exists(f"{path}-wal")
    assert rows(path) == ("ok", {"first": 500})
