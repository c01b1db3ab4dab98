"""A database of SQLite goes back together with its log, whichever of its files are named."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest

import treesnap
from treesnap import Corrupt, CreateOptions, MergeConflict
from treesnap.core.model.events import CollectingMonitor

KILLED_WRITER = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("DELETE FROM t")
rows = [(f"later {number}" * 20,) for number in range(3000)]
database.executemany("INSERT INTO t (s) VALUES (?)", rows)
database.commit()
database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
database.execute("PRAGMA wal_autocheckpoint = 0")
database.execute("UPDATE t SET s = 'last' WHERE i % 97 = 0")
database.commit()
os._exit(0)  # its log stays
"""
LATER_WRITER = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA wal_autocheckpoint = 0")
database.execute("UPDATE t SET s = 'third' WHERE i % 97 = 0")
database.commit()
os._exit(0)  # only its log has the change
"""
OTHER_WRITER = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=0).execute("BEGIN EXCLUSIVE")
"""


class BodyFailed(Exception):
    """What the body of a block raises."""


@pytest.fixture
def root(tmp_path):
    """A directory with a database of 500 rows, and without a log."""
    path = tmp_path / "root"
    path.mkdir()
    with closing(sqlite3.connect(path / "lab.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE t (i INTEGER PRIMARY KEY, s TEXT)")
        database.executemany("INSERT INTO t (s) VALUES (?)", [("first" * 20,)] * 500)
        database.commit()
    return path


@pytest.fixture
def handle(root, tmp_path):
    return treesnap.open(root, tmp_path / "store")


def write_and_die(root):
    subprocess.run([sys.executable, "-c", KILLED_WRITER, root / "lab.db"], check=True)


def state_of(path):
    """Returns what SQLite thinks of a database, and how many rows of each sort it has."""
    with closing(sqlite3.connect(path)) as database:
        (said,) = database.execute("PRAGMA integrity_check").fetchone()
        rows = database.execute("SELECT substr(s, 1, 5), count(*) FROM t GROUP BY 1 ORDER BY 1")
        return said, dict(rows.fetchall())


def test_a_log_of_a_later_state_goes_with_the_database_that_is_restored(root, handle):
    handle.create()
    write_and_die(root)
    done = handle.restore("latest", ["lab.db"])

    assert done.scope == (b"lab.db", b"lab.db-journal", b"lab.db-shm", b"lab.db-wal")
    assert state_of(root / "lab.db") == ("ok", {"first": 500})
    handle.undo()
    assert state_of(root / "lab.db") == ("ok", {"last": 30, "later": 2970})


def test_a_log_comes_with_its_database(root, handle, tmp_path):
    write_and_die(root)
    handle.create()
    (root / "lab.db-wal").unlink()
    (root / "lab.db").write_bytes(b"")
    handle.restore("latest", ["lab.db"], to=tmp_path / "elsewhere")
    handle.restore("latest", ["lab.db"])

    for directory in (root, tmp_path / "elsewhere"):
        assert state_of(directory / "lab.db") == ("ok", {"last": 30, "later": 2970})


def test_a_lost_content_is_told_by_what_needs_it(root, handle, tmp_path):
    handle.create()
    (root / "lab.db").write_bytes(b"changed")
    (pack,) = (tmp_path / "store/packs").iterdir()
    with pack.open("r+b") as file:
        file.seek(200)  # in the content: directories come after it
        file.write(bytes(50))

    assert [change.path for change in handle.diff("latest", paths=["lab.db"])] == [b"lab.db"]
    with pytest.raises(Corrupt):
        handle.restore("latest", ["lab.db"])


def test_what_is_named_like_a_log_beside_another_file_stays(root, handle):
    for name in ("notes", "notes-journal"):
        (root / name).write_text("first")
    handle.create()
    for name in ("notes", "notes-journal"):
        (root / name).write_text("second")
    handle.restore("latest", ["notes"])

    assert (root / "notes").read_text() == "first"
    assert (root / "notes-journal").read_text() == "second"


def test_a_database_that_is_captured_alone_is_captured_with_its_log(root, handle):
    write_and_die(root)
    made = handle.create(["lab.db"])
    with closing(sqlite3.connect(root / "lab.db")) as database:
        database.execute("DELETE FROM t")
        database.commit()
    handle.restore(made.id)

    assert made.absent == ()
    assert {entry.name for entry in handle.ls(made.id)} >= {b"lab.db", b"lab.db-wal"}
    assert state_of(root / "lab.db") == ("ok", {"last": 30, "later": 2970})


def test_a_file_that_becomes_a_database_before_the_capture_is_captured_with_its_log(root, handle):
    (root / "later.db").write_text("none yet")
    line = "cp lab.db later.db && echo log > later.db-wal"
    handle.create(["later.db"], options=CreateOptions(validate=line))

    (made,) = handle.list()
    assert b"later.db-wal" in {entry.name for entry in handle.ls(made.id)}


def test_a_block_over_a_database_rolls_back_the_log_that_its_body_left(root, handle):
    with suppress(BodyFailed), handle.rollback_on_error(paths=["lab.db"]):
        write_and_die(root)
        assert (root / "lab.db-wal").exists()
        raise BodyFailed

    assert not (root / "lab.db-wal").exists()
    assert state_of(root / "lab.db") == ("ok", {"first": 500})


def test_a_capture_of_a_database_leaves_the_locks_of_this_program(root, handle):
    with closing(sqlite3.connect(root / "lab.db", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("BEGIN IMMEDIATE")
        handle.create(["lab.db"])
        other = subprocess.run(
            [sys.executable, "-c", OTHER_WRITER, root / "lab.db"],
            check=False,
            capture_output=True,
            text=True,
        )

    assert "database is locked" in other.stderr


@pytest.mark.parametrize("kind", ["link", "pipe", "text", "directory"])
def test_what_is_no_database_is_captured_alone(root, handle, kind):
    path = root / "other"
    if kind == "link":
        path.symlink_to("lab.db")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "text":
        path.write_bytes(b"x" * 512)
    else:
        path.mkdir()

    assert handle.create(["other"]).snapshot.record.scope == (b"other",)


@pytest.fixture
def later(root, handle):
    """Snapshots 'a' and 'b' of changes in the database, and a later one in its log alone."""
    handle.create(name="a")
    with closing(sqlite3.connect(root / "lab.db")) as database:
        database.executemany("INSERT INTO t (s) VALUES (?)", [("secon" * 20,)] * 2000)
        database.commit()
    handle.create(name="b")
    subprocess.run([sys.executable, "-c", LATER_WRITER, root / "lab.db"], check=True)
    return "ok", {"first": 495, "secon": 1980, "third": 25}


def test_a_revert_is_in_conflict_with_a_log_of_a_later_state(root, handle, later):
    with pytest.raises(MergeConflict):
        handle.revert("a..b")
    done = handle.revert("a..b", conflicts="mine")

    assert done.conflicts == (b"lab.db",)
    assert state_of(root / "lab.db") == later


@pytest.mark.usefixtures("later")
def test_a_revert_that_overwrites_a_database_takes_its_log_along(root, handle):
    done = handle.revert("a..b", conflicts="theirs")

    assert [change.path for change in done.changes] == [b"lab.db", b"lab.db-shm", b"lab.db-wal"]
    assert state_of(root / "lab.db") == ("ok", {"first": 500})


def test_a_revert_of_a_database_reverts_its_log(root, handle):
    handle.create(name="a")
    write_and_die(root)
    handle.create(name="b")
    handle.revert("a..b", ["lab.db"])

    assert state_of(root / "lab.db") == ("ok", {"first": 500})


@pytest.mark.parametrize("conflicts", ["keep", "overwrite"])
def test_a_log_that_others_wrote_is_a_conflict_of_its_database(root, handle, later, conflicts):
    done = handle.restore("a", base="b", conflicts=conflicts)

    assert b"lab.db" in {change.path for change in done.conflicts}
    expected = later if conflicts == "keep" else ("ok", {"first": 500})
    assert state_of(root / "lab.db") == expected


def test_a_reader_of_a_database_is_no_conflict(root, handle):
    """It makes an empty log, and what readers share."""
    handle.create(name="a")
    with closing(sqlite3.connect(root / "lab.db")) as database:
        database.execute("DELETE FROM t")
        database.commit()
    handle.create(name="b")
    with closing(sqlite3.connect(root / "lab.db")) as database:
        database.execute("SELECT count(*) FROM t").fetchone()
        assert (root / "lab.db-shm").exists()
        handle.restore("a", base="b")

    assert state_of(root / "lab.db") == ("ok", {"first": 500})


def test_two_texts_that_are_named_like_a_database_and_its_log_are_merged_apart(root, handle):
    for name in ("notes", "notes-journal"):
        (root / name).write_bytes(b"first".ljust(512))
    handle.create(name="a")
    (root / "notes").write_bytes(b"second".ljust(512))
    handle.create(name="b")
    (root / "notes-journal").write_bytes(b"second".ljust(512))
    handle.revert("a..b")

    assert (root / "notes").read_bytes() == b"first".ljust(512)
    assert (root / "notes-journal").read_bytes() == b"second".ljust(512)


@pytest.mark.parametrize("paths", [None, ["lab.db"]])
def test_a_log_that_is_excluded_is_named_where_it_stays(root, tmp_path, paths):
    monitor = CollectingMonitor()
    handle = treesnap.open(root, tmp_path / "store", monitor=monitor)
    (root / ".snapignore").write_text("*-wal\n")
    (root / "notes").write_text("first")
    (root / "notes-wal").write_text("first")
    handle.create(name="a")
    write_and_die(root)
    (root / "notes").write_text("second")
    handle.restore("a", paths)

    assert monitor.codes[1:] == ["database-log-left"]  # after that the store was made
    assert monitor.warnings[1].endswith("'lab.db-wal'")
