"""The walk, when what it walks does not hold still, or cannot be walked."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from treesnap.core.fs.base import FileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import EntryKind, SkipReason
from treesnap.core.model.errors import ErrorCode, NotFound, OperationFailed, Refused
from treesnap.core.model.events import Monitor
from treesnap.core.model.results import CreateResult
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultyFileSystem,
    Kind,
    RecordingFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
)

YEAR_NS = 365 * 24 * 3600 * 10**9
UNREADABLE = SkipReason.UNREADABLE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file, a pipe, and a directory with another file."""
    path = tmp_path / "root"
    (path / "directory").mkdir(parents=True)
    (path / "directory/below").write_text("below")
    (path / "file").write_text("content")
    os.mkfifo(path / "pipe")
    return path


@pytest.fixture
def handle_on(root: Path, tmp_path: Path) -> Callable[..., Handle]:
    """Returns a handle on the root; a year from now, when all times of today are trusted."""
    now_ns = root.stat().st_ctime_ns + YEAR_NS

    def maker(fs: FileSystem | None = None, monitor: Monitor | None = None) -> Handle:
        return Handle(
            context_at(
                root=root,
                monitor=monitor,
                store_path=str(tmp_path / "store"),
                fs=fs or UnsyncedFileSystem(),
                clock_ns=lambda: now_ns,
            )
        )

    return maker


class Before(WrappedFileSystem):
    """Does something before the first call of a method with a name or a whole path."""

    def __init__(self, method: str, name: bytes | str, action: Callable[[], object]) -> None:
        super().__init__(UnsyncedFileSystem())
        self._place = method, name
        self._action: Callable[[], object] | None = action

    def around(self, call: Call) -> object:
        if self._action is not None and self._place in {
            (call.method, call.arguments[0]),
            (call.method, call.path),
        }:
            action, self._action = self._action, None
            action()
        return super().around(call)


def names(handle: Handle, result: CreateResult) -> set[bytes]:
    return {entry.name for entry in handle.ls(result.id)}


def reasons(result: CreateResult) -> dict[bytes, SkipReason]:
    return {item.path: item.reason for item in result.skipped}


class TestARoot:
    def test_that_goes_just_before_it_is_walked_is_not_found(self, handle_on, root):
        fs = Before("open", str(root), lambda: shutil.rmtree(root))

        with pytest.raises(NotFound) as caught:
            handle_on(fs).create()

        assert (caught.value.code, caught.value.path) == (ErrorCode.ROOT_NOT_FOUND, str(root))
        root.mkdir()
        assert handle_on().list() == ()

    def test_that_becomes_a_file_is_refused(self, handle_on, root):
        def become_a_file() -> None:
            shutil.rmtree(root)
            root.touch()

        with pytest.raises(Refused) as caught:
            handle_on(Before("open", str(root), become_a_file)).create()

        assert caught.value.code == ErrorCode.NOT_A_DIRECTORY


class TestADirectoryThatGoesWhenItIsListed:
    @pytest.mark.parametrize("is_cached", [False, True])
    def test_is_not_in_the_snapshot_and_is_seen_when_it_comes_back(
        self, handle_on, root, tmp_path, is_cached
    ):
        """Also when nothing else in the directory above has changed since the last capture."""
        if is_cached:
            handle_on().create()
        away = tmp_path / "away"
        fs = Before("open", b"directory", lambda: (root / "directory").rename(away))

        without = handle_on(fs).create()

        assert without.complete
        assert names(handle_on(), without) == {b"file", b"pipe"}
        away.rename(root / "directory")
        handle = handle_on()
        again = handle.create()
        assert names(handle, again) == {b"directory", b"file", b"pipe"}
        assert b"".join(handle.cat(again.id, "directory/below")) == b"below"


def test_a_directory_too_deep_to_be_walked_is_unreadable(handle_on, root, monkeypatch):
    monkeypatch.setattr("treesnap.core.worktree.scan.scanner.DEPTH_MAX", 2)
    (root / "1/2/3/4").mkdir(parents=True)

    result = handle_on().create()

    assert not result.complete
    assert reasons(result) == {b"1/2/3": UNREADABLE}
    assert names(handle_on(), result) == {b"1", b"directory", b"file", b"pipe"}


class TestAFile:
    @pytest.mark.parametrize(("method", "name"), [("open", b"file"), ("lstat", b"pipe")])
    def test_that_goes_when_it_is_listed_is_not_in_the_snapshot(
        self, handle_on, root, method, name
    ):
        def remove() -> None:
            (root / os.fsdecode(name)).unlink()

        handle = handle_on(Before(method, name, remove))

        result = handle.create()

        assert result.complete
        assert names(handle, result) == {b"directory", b"file", b"pipe"} - {name}

    @pytest.mark.parametrize(("method", "name"), [("open", b"file"), ("lstat", b"pipe")])
    def test_that_is_missed_once_is_found_the_next_time(self, handle_on, method, name):
        """Though nothing about it has changed since it was listed."""
        fault = Fault(
            methods=frozenset({method}),
            where=lambda call: call.arguments[0] == name,
            errno=errno.ENOENT,
        )
        fs = FaultyFileSystem(fault, inner=UnsyncedFileSystem())

        first, second = handle_on(fs).create(), handle_on().create()

        assert names(handle_on(), first) == {b"directory", b"file", b"pipe"} - {name}
        assert names(handle_on(), second) == {b"directory", b"file", b"pipe"}

    @pytest.mark.parametrize(
        ("method", "name", "other"), [("open", b"file", os.mkfifo), ("lstat", b"pipe", Path.touch)]
    )
    def test_that_becomes_something_else_is_unreadable_until_the_next_time(
        self, handle_on, root, method, name, other
    ):
        path = root / os.fsdecode(name)

        def become() -> None:
            path.unlink()
            other(path)

        fs = RecordingFileSystem(Before(method, name, become))
        first = handle_on(fs).create()
        second = handle_on().create()

        assert reasons(first) == {name: UNREADABLE}
        assert fs.calls(kinds=[Kind.READ], below=str(path)) == []
        assert second.complete
        (entry,) = handle_on().ls(second.id, os.fsdecode(name))
        assert entry.kind == (EntryKind.FIFO if other is os.mkfifo else EntryKind.FILE)

    def test_that_cannot_be_read_for_want_of_descriptors_ends_the_capture(self, handle_on):
        """A snapshot without it would blame the file."""
        fault = Fault(
            methods=frozenset({"open"}),
            where=lambda call: call.arguments[0] == b"file",
            errno=errno.EMFILE,
        )

        with pytest.raises(OperationFailed, match="Too many open files"):
            handle_on(FaultyFileSystem(fault)).create()

        assert handle_on().list() == ()

    def test_that_is_not_read_to_its_end_is_reported_and_read_again(self, handle_on):
        """Though nothing about it has changed since."""

        class Short(WrappedFileSystem):
            def around(self, call: Call) -> object:
                result = super().around(call)
                is_content = call.method == "read_at" and call.path.endswith("/file")
                return result[:-1] if is_content else result

        handle = handle_on(Short(UnsyncedFileSystem()))

        first = handle.create()
        said = [(item.path, item.reason) for item in handle.skipped(first.id)]
        second = handle_on().create()

        assert said == [(b"file", SkipReason.UNSTABLE)]
        assert second.snapshot.record.unstable == ()
        assert b"".join(handle_on().cat(second.id, "file")) == b"content"


class TestDatabase:
    """One of SQLite, whose log belongs to one state of it."""

    @pytest.fixture
    def database(self, root: Path) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(root / "app.db", isolation_level=None)) as opened:
            opened.execute("PRAGMA journal_mode = WAL")
            opened.execute("PRAGMA wal_autocheckpoint = 0")
            opened.execute("CREATE TABLE t (a)")
            opened.execute("INSERT INTO t VALUES (1)")
            yield opened

    @pytest.mark.parametrize(
        ("change", "name"),
        [("PRAGMA wal_checkpoint(TRUNCATE)", "app.db-wal"), ("INSERT INTO t VALUES (2)", "pipe")],
    )
    def test_that_is_written_to_while_it_is_captured_is_named(
        self, root, handle_on, database, change, name
    ):
        said: list[str] = []

        class Listener(Monitor):
            def warn(self, code, message):
                said.append(f"{code}: {message}")

        fs = Before("lstat", name.encode(), lambda: database.execute(change))
        if name == "app.db-wal":
            fs = Before("open", name.encode(), lambda: database.execute(change))
        handle = handle_on(fs, Listener())
        first = handle.create()

        assert first.snapshot.record.unstable == (b"app.db",)
        assert [line.split(":")[0] for line in said if "app.db" in line] == ["database-written"]
        said.clear()
        second = handle.create()
        assert second.snapshot.record.unstable == ()
        assert not said
        handle.restore(second.id, to=root.parent / "copy")
        with closing(sqlite3.connect(root.parent / "copy/app.db")) as copy:
            assert (
                copy.execute("SELECT * FROM t").fetchall()
                == database.execute("SELECT * FROM t").fetchall()
            )

    def test_that_rests_is_captured_in_silence(self, handle_on, database):
        first = handle_on().create()

        assert first.snapshot.record.unstable == ()
        assert database.execute("SELECT a FROM t").fetchall() == [(1,)]
