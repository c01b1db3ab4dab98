"""Differences of files that a command of the user prints as text."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from treesnap.core.handle import open as open_root
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.ops.history import text_conversion

pytestmark = pytest.mark.sampled(3)

HEX = "import sys; print(open(sys.argv[1], 'rb').read().hex())"


@pytest.fixture
def settings_file(environment):
    return Path(environment["HOME"]) / ".config/treesnap/config.toml"


@pytest.fixture
def command(tmp_path):
    """Makes a Python script, and returns a command that runs it."""

    def make(script: str) -> str:
        path = tmp_path / "convert.py"
        path.write_text(script)
        return f"{sys.executable} {path}"

    return make


@pytest.fixture
def binary(snap, root):
    """A captured binary file that has changed since."""
    (root / "data.bin").write_bytes(b"\0one")
    snap("create")
    (root / "data.bin").write_bytes(b"\0two")
    return root / "data.bin"


def test_a_patch_is_of_what_the_command_prints(snap, binary, command, settings_file):
    found = snap("config", "diff.*.bin", command(HEX))
    assert (found.code, found.out, found.err) == (0, "", "")

    assert snap("diff").out == (
        "diff a/data.bin b/data.bin\ntext by diff.*.bin\n--- a/data.bin\n+++ b/data.bin\n"
        "@@ -1 +1 @@\n-006f6e65\n+0074776f\n"
    )
    assert "-006f6e65" in snap("diff", "--color", "always").out
    assert settings_file.stat().st_mode & 0o777 == 0o600


def test_log_shows_the_same(snap, binary, command):
    snap("create")
    snap("config", "diff.*.bin", command(HEX))

    assert "+0074776f" in snap("log", "data.bin", "-p").out
    assert "Binary file" in snap("log", "data.bin", "-p", "--no-textconv").out


@pytest.mark.parametrize("words", [["--no-textconv"], ["--stat", "--no-textconv"]])
def test_no_command_runs_where_none_is_wanted(snap, binary, command, words, tmp_path):
    snap("config", "diff.*.bin", command(f"open({str(tmp_path / 'ran')!r}, 'w')"))

    assert "Binary file: 4 B -> 4 B" in snap("diff", *words).out
    snap("diff", "--json")
    assert not (tmp_path / "ran").exists()


def test_a_file_that_is_new_or_gone_has_one_side(snap, binary, command):
    snap("config", "diff.*.bin", command(HEX))
    binary.rename(binary.with_name("other.bin"))

    out = snap("diff").out

    assert "-006f6e65" in out
    assert "+0074776f" in out


def test_equal_texts_say_so(snap, binary, command):
    snap("config", "diff.*.bin", command("print('always')"))

    assert snap("diff").out == "diff a/data.bin b/data.bin\nsame text by diff.*.bin\n"


def test_the_last_pattern_that_matches_counts(snap, binary, command):
    snap("config", "diff.*", "false")
    snap("config", "diff.data.*", command("print('data')"))

    assert "same text by diff.data.*" in snap("diff").out


def test_names_and_words_reach_no_shell(snap, root, command, tmp_path):
    name = "a; touch ran $(touch ran) '.b;n"
    (root / name).write_bytes(b"\0")
    snap("create")
    (root / name).write_bytes(b"\0\0")
    script = "import os, sys; print(os.path.getsize(sys.argv[1]), os.listdir(), sys.argv[2:])"
    snap("config", "diff.a*", command(script) + " {} ; '$HOME' x{}")

    assert "+2 ['file'] [';', '$HOME', 'x{}']\n" in snap("diff").out
    assert not list(tmp_path.rglob("ran"))


def test_a_module_of_the_root_is_not_imported(snap, root, binary, tmp_path, monkeypatch):
    (root / "json.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    snap("config", "diff.*.bin", f"{sys.executable} -c 'import json, sys; print(1)'")

    assert "same text" in snap("diff").out
    assert not (tmp_path / "ran").exists()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; sys.exit('no such table')", "exited with 1: no such table"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("print('x' * 2000)", "prints more than 1000 B"),
        ("import time; time.sleep(600)", "takes longer than 0 s"),
    ],
)
def test_a_command_that_fails_leaves_the_summary(snap, binary, command, script, why, monkeypatch):
    if "sleep" in script:
        monkeypatch.setattr(text_conversion, "TIME_MAX_S", 0.2)
    snap("config", "diff.*.bin", command(script))

    result = snap("diff", "--max-size", "1000")

    assert (result.code, "Binary file: 4 B -> 4 B" in result.out) == (0, True)
    assert f"'data.bin' is not shown as text: the command of diff.*.bin {why}" in result.err
    assert "--no-textconv" in result.err


def test_the_copy_of_a_process_that_was_killed_goes_with_the_next_one(
    snap, binary, store, command, environment, tmp_path, monkeypatch
):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o2755)  # a team's: what is made in it has its group, and this bit
    kept = [temporary / f"treesnap-text-{name}" for name in ("in_usexx", "projects", "Readings")]
    for path, mode in zip(kept, (0o700, 0o755, 0o700), strict=True):
        path.mkdir(mode)
    held = kept[0]
    snap("config", "diff.*.bin", command("import os; os.kill(os.getppid(), 9)"))
    words = [sys.executable, "-m", "treesnap", "-C", binary.parent, "--store", store, "diff"]
    fd = os.open(held, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    variables = environment | {"TMPDIR": str(temporary)}
    killed = subprocess.run(words, check=False, env=variables)
    left = {*temporary.iterdir()} - {*kept}

    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    snap("config", "diff.*.bin", command(HEX))
    assert "+0074776f" in snap("diff").out
    os.close(fd)

    assert (killed.returncode, len(left)) == (-9, 1)
    assert {*temporary.iterdir()} == {*kept}


def test_no_copy_is_made_or_removed_where_every_user_can_rename_it(
    snap, binary, command, tmp_path, monkeypatch
):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    temporary.chmod(0o777)
    renamed = temporary / "treesnap-text-abcdefgh"
    renamed.mkdir(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    snap("config", "diff.*.bin", command(HEX))

    result = snap("diff")

    assert "in which every user can rename it" in result.err
    assert "+0074776f" not in result.out
    assert {*temporary.iterdir()} == {renamed}
    temporary.chmod(0o1777)
    assert "+0074776f" in snap("diff").out


def test_a_command_that_cannot_start_is_tried_once(snap, root, binary):
    (root / "more.bin").write_bytes(b"\0")
    snap("config", "diff.*.bin", "/nowhere/at-all")

    result = snap("diff")

    assert result.err.count("cannot be started: No such file or directory") == 2
    assert result.out.count("Binary file") == 2


@pytest.mark.parametrize("place", ["store", "root"])
def test_a_store_cannot_name_a_program(snap, binary, store, tmp_path, place):
    text = f'[diff]\n"*.bin" = "touch {tmp_path / "ran"}"\n'
    directory = store if place == "store" else next(store.glob("roots/*/"))
    (directory / "config.toml").write_text(text)

    refused = snap("config")

    assert refused.code == 2
    assert "only a user's own settings may have diff.*.bin" in refused.err
    assert "Binary file" in snap("diff").out
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_file_that_others_can_write_is_refused(snap, binary, command, settings_file, mode):
    snap("config", "diff.*.bin", command(HEX))
    settings_file.chmod(mode)

    refused = snap("diff")

    assert refused.code == 2
    assert "other users can write to it" in refused.err
    assert f"'chmod go-w {settings_file}'" in refused.err
    assert "Binary file" in snap("diff", "--no-textconv").out


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
def test_a_file_of_another_user_is_refused(snap, binary, command, settings_file):
    snap("config", "diff.*.bin", command(HEX))
    os.chown(settings_file, 12345, -1)

    assert "it belongs to another user" in snap("diff").err


@pytest.mark.parametrize("mode", [0o703, 0o730, 0o777])
def test_a_file_that_others_can_replace_is_refused(snap, binary, command, settings_file, mode):
    snap("config", "diff.*.bin", command(HEX))
    settings_file.parent.chmod(mode)

    assert "other users can write to its directory" in snap("diff").err
    assert "other users can write to its directory" in snap("config", "diff.x", "cat {}").err


def test_where_a_link_to_it_can_be_replaced_it_is_refused(snap, binary, command, settings_file):
    snap("config", "diff.*.bin", command(HEX))
    real = settings_file.parent.parent / "mine" / "settings"
    real.parent.mkdir()
    settings_file.rename(real)
    settings_file.symlink_to(real)
    assert "Binary file" not in snap("diff").out

    settings_file.parent.chmod(0o777)

    assert "other users can write to its directory" in snap("diff").err


def test_settings_that_are_changed_at_once_are_all_kept(snap, settings_file, environment):
    snap("create")
    names = [f"diff.*.{number}" for number in range(8)]
    program = (
        "import sys; from treesnap.core.ops.user_settings import change_of_user; "
        "print(flush=True); sys.stdin.read(); change_of_user({sys.argv[1]: 'cat {}'})"
    )
    words = [sys.executable, "-c", program]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": environment}
    at_once = [subprocess.Popen([*words, name], **pipes) for name in names]
    for process in at_once:
        process.stdout.readline()
    for process in at_once:
        process.stdin.close()  # which each of them waits for
    for process in at_once:
        process.stdout.close()
        assert process.wait() == 0

    rows = snap("config", "--json").json["settings"]
    assert sorted(row["key"] for row in rows if row["source"] == "user") == names


def test_settings_are_shown_changed_and_removed(snap, settings_file, root, store):
    snap("create")
    snap("config", "diff.*.bin", "xxd {}")
    snap("config", "diff.docs/*.sqlite", "sqlite3 {} .dump")

    rows = snap("config", "--json").json["settings"]

    assert rows[-2:] == [
        {"key": "diff.*.bin", "value": "xxd {}", "source": "user"},
        {"key": "diff.docs/*.sqlite", "value": "sqlite3 {} .dump", "source": "user"},
    ]
    assert snap("config", "diff.*.bin").out == "xxd {}\n"
    assert snap("config", "diff.*.png").out == "-\n"
    snap("config", "--unset", "diff.*.bin")
    assert settings_file.read_text() == '[diff]\n"docs/*.sqlite" = "sqlite3 {} .dump"\n'
    snap("config", "--unset", "diff.docs/*.sqlite")
    assert not settings_file.exists()
    assert not (store / "config.toml").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["diff.*.bin", "cat 'open"], "is not a command"),
        (["diff.*.bin", " "], "The command is empty"),
        (["diff.!*.bin", "cat"], "names no files"),
        (["diff.", "cat"], "can match nothing"),
        (["--root", "diff.*.bin", "cat"], "for all roots of its user"),
    ],
)
def test_what_cannot_be_is_refused(snap, settings_file, words, why):
    result = snap("config", *words)

    assert (result.code, settings_file.exists()) == (2, False)
    assert why in result.err


@pytest.mark.parametrize(
    "text", ["[diff]\n'*.bin' = 7\n", "automatic = false\n", "[diff\n", '[diff]\n"!a" = "cat"\n']
)
def test_a_file_that_says_something_else_is_refused(snap, binary, settings_file, text):
    settings_file.parent.mkdir(parents=True)
    settings_file.write_text(text)

    refused = snap("diff")

    assert refused.code == 2
    assert str(settings_file) in refused.err


def test_the_library_converts_when_asked(
    snap, binary, command, root, store, environment, monkeypatch
):
    snap("config", "diff.*.bin", command(HEX))
    monkeypatch.setenv("HOME", environment["HOME"])
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    handle = open_root(root, store)
    changes = handle.diff()
    latest = handle.resolve("latest").id

    (plain,) = handle.contents(latest, None, changes)
    (text,) = handle.contents(latest, None, changes, as_text=True)

    assert (plain.new, plain.converted_by) == (b"\0two", None)
    assert (text.new, text.converted_by) == (b"0074776f\n", "diff.*.bin")
    snap("config", "diff.*.bin", "false")
    (failed,) = handle.contents(latest, None, changes, as_text=True)
    assert failed.new == b"\0two"
    assert failed.not_converted == "the command of diff.*.bin exited with 1"
    Path(environment["HOME"], ".config/treesnap/config.toml").write_text("[")
    with pytest.raises(InvalidArgument):
        handle.contents(latest, None, changes, as_text=True)


class TestSqlite:
    @pytest.fixture
    def database(self, root):
        """A database with a log that is not in it yet; what a connection has open."""
        with closing(sqlite3.connect(root / "app.db", isolation_level=None)) as opened:
            opened.execute("PRAGMA journal_mode = WAL")
            opened.execute("PRAGMA wal_autocheckpoint = 0")
            opened.execute("CREATE TABLE people (name, picture)")
            opened.execute("INSERT INTO people VALUES ('Ada', x'00ff'), ('Bob', NULL)")
            opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            yield opened

    def test_rows_are_shown_with_what_is_in_the_log(self, snap, database):
        first = snap("create", "--json").json["id"]
        database.execute("UPDATE people SET name = 'Eve' WHERE name = 'Ada'")
        second = snap("create", "--json").json["id"]

        for states in ([first], [first, second]):
            out = snap("diff", *states).out
            assert "text by SQLite, with 'app.db'\n" in out
            assert "-INSERT INTO \"people\" VALUES('Ada',X'00FF');\n+INSERT" in out
            assert "+INSERT INTO \"people\" VALUES('Eve',X'00FF');\n" in out

    def test_what_follows_a_nul_in_a_text_is_shown(self, snap, database):
        database.execute("INSERT INTO people VALUES ('a''b' || char(0) || 'old', 1.5)")
        snap("create")
        database.execute("UPDATE people SET name = 'a''b' || char(0) || 'new' WHERE picture = 1.5")

        out = snap("diff").out
        for sign, text in ("-", "old"), ("+", "new"):
            line = f"INSERT INTO \"people\" VALUES('a''b'||char(0)||'{text}',1.5);\n"
            assert f"{sign}{line}" in out
        assert " INSERT INTO \"people\" VALUES('Ada',X'00FF');\n" in out

    def test_the_name_of_a_database_stands_for_its_log(self, snap, database):
        snap("create")
        database.execute("DELETE FROM people WHERE name = 'Bob'")

        assert "-INSERT INTO \"people\" VALUES('Bob',NULL);\n" in snap("diff", "app.db").out
        assert snap("diff", "--name-status", "app.db").out == "M  app.db-wal\n"

    def test_stat_counts_the_rows(self, snap, database):
        snap("create")
        database.execute("DELETE FROM people WHERE name = 'Bob'")
        database.execute("INSERT INTO people VALUES ('Joe', 1), ('Eve', 2)")

        assert snap("diff", "--stat", "app.db").out == (
            "app.db-wal |    3 ++-\n1 path changed, 2 lines added, 1 line removed\n"
        )
        (change,) = snap("diff", "--stat", "--json", "app.db").json["changes"]
        assert (change["insertions"], change["deletions"]) == (2, 1)
        assert "Binary file" in snap("diff", "--stat", "--no-textconv", "app.db").out

    def test_a_log_that_went_into_the_database_changes_no_row(self, snap, database):
        database.execute("DELETE FROM people WHERE name = 'Bob'")
        snap("create")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        out = snap("diff", "app.db").out
        assert out == "diff a/app.db b/app.db\nsame text by SQLite\n"
        assert "app.db | same text by SQLite\n" in snap("diff", "--stat", "app.db").out

    def test_rows_of_the_database_are_shown_once(self, snap, database):
        snap("create")
        database.execute("DELETE FROM people WHERE name = 'Bob'")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("INSERT INTO people VALUES ('Joe', 1)")

        out = snap("diff").out
        assert out.count("text by SQLite\n") == 1
        assert (
            out.count("('Bob',NULL)") == out.count("+INSERT INTO \"people\" VALUES('Joe',1)") == 1
        )
        assert "diff a/app.db-wal b/app.db-wal\nBinary file" in out
        assert "('Joe',1)" not in snap("diff", "--no-textconv").out

    def test_a_command_of_the_user_comes_first(self, snap, database):
        snap("create")
        snap("config", "diff.*.db", f"{sys.executable} -c 'print(1)'")
        database.execute("DELETE FROM people")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        assert "same text by diff.*.db\n" in snap("diff", "app.db").out

    def test_what_is_no_database_after_all_is_shown_as_it_is(self, snap, root):
        (root / "a.db").write_bytes(b"SQLite format 3\0" + bytes(100))
        (root / "b.db-wal").write_bytes(b"\0 other")
        snap("create")
        (root / "a.db").write_bytes(b"SQLite format 3\0" + bytes(101))
        (root / "b.db-wal").write_bytes(b"\0 changed")

        found = snap("diff")
        assert "diff a/a.db b/a.db\nBinary file" in found.out
        assert "'a.db' is not shown as text: SQLite exited with 1" in found.err
        assert "b.db-wal\nBinary file" in found.out

    def test_several_are_printed_by_one_process(self, root, store, monkeypatch):
        """One that is damaged, or that prints too much, leaves the others."""
        started = []

        class Counted(subprocess.Popen):
            def __init__(self, *words, **options):
                started.append(words)
                super().__init__(*words, **options)

        for number in range(4):
            with closing(sqlite3.connect(root / f"{number}.db", isolation_level=None)) as opened:
                opened.execute("CREATE TABLE t (a)")
        handle = open_root(root, store)
        latest = handle.create().id
        for number in range(4):
            with closing(sqlite3.connect(root / f"{number}.db", isolation_level=None)) as opened:
                opened.execute("BEGIN")
                opened.executemany("INSERT INTO t VALUES (?)", [(1,)] * (500 if number == 2 else 1))
                opened.execute("COMMIT")
        (root / "1.db").write_bytes(b"SQLite format 3\0" + bytes(100))
        monkeypatch.setattr(subprocess, "Popen", Counted)

        changes = handle.diff(latest)
        found = list(handle.contents(latest, None, changes, as_text=True, max_size_bytes=9 << 10))

        assert [item.converted_by is not None for item in found] == [True, False, False, True]
        assert found[1].not_converted == "SQLite exited with 1: file is not a database"
        assert found[2].not_converted == "SQLite prints more than 9.0 KiB"
        assert len(started) == 1

    def test_no_journal_removes_the_file_that_it_names(self, snap, root, tmp_path):
        """SQLite would: the journal of a commit to several databases ends with a name."""
        path, precious = root / "a.db", tmp_path / "precious"
        precious.write_text("mine")
        with closing(sqlite3.connect(path, isolation_level=None)) as opened:
            opened.execute("PRAGMA cache_size = 1")
            opened.execute("CREATE TABLE t (a)")
            opened.execute("INSERT INTO t VALUES (zeroblob(9000))")
            snap("create")
            opened.execute("BEGIN")
            opened.executemany("INSERT INTO t VALUES (?)", [("x" * 9000,)] * 9)
            state, journal = path.read_bytes(), Path(f"{path}-journal").read_bytes()
            opened.execute("ROLLBACK")
        name = os.fsencode(precious)
        numbers = [(1 << 30) // 4096 + 1, len(name), sum(name)]
        lock_page, length, checksum = (number.to_bytes(4, "big") for number in numbers)
        path.write_bytes(state)
        Path(f"{path}-journal").write_bytes(
            journal + lock_page + name + length + checksum + journal[:8]
        )

        found = snap("diff", "a.db")

        assert precious.exists()
        assert "diff a/a.db b/a.db\nBinary file" in found.out
        assert "SQLite is not asked: the journal beside it names another file" in found.err

    def test_a_process_that_was_killed_is_started_again(self, root, store, monkeypatch):
        started = []

        class Noted(subprocess.Popen):
            def __init__(self, *words, **options):
                super().__init__(*words, **options)
                started.append(self)

        handle = open_root(root, store)
        latest = handle.create().id
        for number in range(3):
            with closing(sqlite3.connect(root / f"{number}.db", isolation_level=None)) as opened:
                opened.execute("CREATE TABLE t (a)")
        changes = handle.diff(latest)
        monkeypatch.setattr(subprocess, "Popen", Noted)

        found = []
        for content in handle.contents(latest, None, changes, as_text=True):
            found.append(content)
            started[0].kill()
            started[0].wait()

        assert [item.converted_by is not None for item in found] == [True, False, True]
        assert found[1].not_converted == "SQLite was ended before it had printed all"

    def test_nothing_that_a_database_names_is_run(self, snap, root, tmp_path):
        """Views and triggers are printed; a table may not use what is not safe to use."""
        with closing(sqlite3.connect(root / "a.db", isolation_level=None)) as opened:
            opened.execute("CREATE TABLE t (a)")
            opened.execute(f"CREATE VIEW v AS SELECT load_extension('{tmp_path}/ran') FROM t")
            opened.execute("CREATE TRIGGER r AFTER INSERT ON t BEGIN DELETE FROM t; END")
            opened.execute("INSERT INTO t VALUES (1)")
            snap("create")
            opened.execute("DROP TRIGGER r")
            opened.execute("INSERT INTO t VALUES ('\u20ac')")

        out = snap("diff").out
        assert "-CREATE TRIGGER r AFTER INSERT ON t" in out
        assert "+INSERT INTO \"t\" VALUES('\u20ac');" in out
        assert "CREATE VIEW v AS SELECT load_extension" in out
