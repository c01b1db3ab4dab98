"""Restores of files that a process is using, and of files that no process may move."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import treesnap
from calling import Place
from oracle import difference, record
from treesnap.core.ops.context import context_at
from treesnap.testing.children import in_child
from treesnap.testing.doubles import Fault, FaultyFileSystem

pytestmark = [pytest.mark.needs("processes"), pytest.mark.sampled(10)]

NOBODY_ID = 65534


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A root that was not made yet, and its store."""
    return Place(tmp_path / "root", tmp_path / "store")


class Shell:
    """A shell that lives on between the lines that it is given."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh"], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, line: str) -> list[str]:
        """Returns the lines that a line prints, but for empty ones."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(f"{line}; echo; echo ready", file=process.stdin, flush=True)
        lines = iter(lambda: process.stdout.readline().rstrip("\n"), "ready")
        return [found for found in lines if found]

    def end(self) -> int:
        """Lets the shell end; returns its exit code."""
        self._process.communicate("exit 0\n")
        return self._process.returncode


@contextmanager
def shell_in(directory: Path) -> Iterator[Shell]:
    shell = Shell(directory)
    try:
        yield shell
    finally:
        assert shell.end() == 0


class TestInUse:
    def test_a_program_that_runs_is_replaced_and_runs_on(self, place):
        place.make("tool")
        place.done("create", "--name", "before")
        (place.root / "tool").unlink()
        shutil.copy(shutil.which("cat") or "/bin/cat", place.root / "tool")
        with subprocess.Popen(
            [place.root / "tool"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as tool:
            assert tool.stdin is not None
            assert tool.stdout is not None
            print("one", file=tool.stdin, flush=True)
            assert tool.stdout.readline() == "one\n"
            with pytest.raises(OSError, match="Text file busy"):
                os.open(place.root / "tool", os.O_WRONLY)

            place.done("restore", "before")

            assert (place.root / "tool").read_text() == "tool"
            print("two", file=tool.stdin, flush=True)
            assert tool.stdout.readline() == "two\n"
        assert tool.returncode == 0
        assert place.litter() == []

    def test_a_shell_in_a_directory_that_is_kept_sees_what_is_restored(self, place):
        place.make("directory/file", "directory/below/file")
        place.done("create", "--name", "before")
        place.edit("directory/file")
        place.make("directory/new")
        with shell_in(place.root / "directory") as shell:
            assert shell.ask("cat file") == ["directory/file, edited"]

            place.done("restore", "before")

            assert shell.ask("cat file") == ["directory/file"]
            assert shell.ask("ls") == ["below", "file"]

    def test_a_shell_in_a_directory_that_goes_lives_on(self, place):
        place.make("file")
        place.done("create", "--name", "before")
        place.make("new/deep/file")
        with shell_in(place.root / "new/deep") as shell:
            place.done("restore", "before")

            assert shell.ask("ls; echo $?") == ["0"]
            assert shell.ask("cd / && pwd") == ["/"]
        assert os.listdir(place.root) == ["file"]
        assert place.litter() == []

    def test_a_shell_in_a_directory_that_comes_back_sees_the_old_one(self, place):
        """A directory that was a file meanwhile is another one afterwards."""
        place.make("directory/file")
        place.done("create", "--name", "before")
        with shell_in(place.root / "directory") as shell:
            shutil.rmtree(place.root / "directory")
            place.make("directory")

            place.done("restore", "before")

            assert shell.ask("ls") == []
            assert shell.ask(f"cd {place.root}/directory && ls") == ["file"]

    def test_an_open_file_keeps_its_content_and_its_writes(self, place):
        place.make("file", "gone")
        place.done("create", "--name", "before")
        place.edit("file", "gone")
        place.make("new")
        with (
            (place.root / "file").open("r+") as file,
            (place.root / "new").open("r+") as new,
        ):
            place.done("restore", "before")

            assert file.read() == "file, edited"
            file.write(" and more")
            file.flush()
            assert new.read() == "new"
        assert (place.root / "file").read_text() == "file"
        assert not (place.root / "new").exists()
        place.done("status")
        assert place.litter() == []

    def test_a_locked_file_is_restored(self, place):
        import fcntl

        place.make("file")
        place.done("create", "--name", "before")
        place.edit("file")
        with (place.root / "file").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            place.done("restore", "before")

        assert (place.root / "file").read_text() == "file"


@contextmanager
def flagged(path: Path, flag: str) -> Iterator[None]:
    """Gives a path an attribute for a while; skips where there is none."""
    try:
        subprocess.run(["chattr", f"+{flag}", path], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file attributes here: {error}")
    try:
        yield
    finally:
        subprocess.run(["chattr", f"-{flag}", path], check=True)


class TestNotToBeMoved:
    """Immutable and append-only paths, which not even the superuser may rename."""

    @pytest.mark.sampled(8)
    @pytest.mark.parametrize("flag", ["i", "a"])
    @pytest.mark.parametrize(
        "path", ["sub/file", "sub", "gone", "gone/file", "gone/deep/er", "gone/deep/er/file", "."]
    )
    def test_nothing_is_touched_and_the_path_is_named(self, place, path, flag):
        place.make("a", "sub/file", "sub/other", "z")
        place.done("create", "--name", "before")
        place.edit("a", "sub/file", "z")
        place.make("gone/file", "gone/deep/er/file", "sub/new")
        (place.root / "sub/other").unlink()
        before = record(place.root)

        with flagged(place.root / path, flag):
            ended = place.snap("restore", "before")

            assert ended.code == 1, ended
            assert f"'{path}' is immutable or append-only" in ended.err
            assert "Operation not permitted" in ended.err
            assert difference(before, record(place.root)) == []
            assert place.litter() == []
            place.done("status")
        place.done("restore", "before")

        assert sorted(os.listdir(place.root)) == ["a", "sub", "z"]
        assert (place.root / "sub/file").read_text() == "sub/file"
        assert (place.root / "sub/other").read_text() == "sub/other"
        assert place.litter() == []

    def test_an_immutable_root_changes_nothing(self, place):
        place.make("file")
        place.done("create", "--name", "before")
        place.edit("file")
        before = record(place.root)

        with flagged(place.root, "i"):
            ended = place.snap("restore", "before")

            assert ended.code == 1
            assert "Operation not permitted" in ended.err
            assert difference(before, record(place.root)) == []
            assert place.litter() == []
        place.done("restore", "before")

    def test_a_directory_whose_permissions_may_not_be_changed_stops_the_restore(self, place):
        """The error is that of the move, not that of the attempt to permit it."""
        place.make("a", "z")
        treesnap.open(place.root, place.store).create(name="before")
        place.edit("a", "z")
        before = record(place.root)
        moves = frozenset({"exchange", "rename_to_absent"})
        fs = FaultyFileSystem(
            Fault(number=2, methods=moves, errno=errno.EACCES),
            Fault(
                methods=frozenset({"change_mode"}),
                where=lambda call: call.path == str(place.root),
                errno=errno.EPERM,
                lasting=True,
            ),
        )
        handle = treesnap.Handle(context_at(root=place.root, store_path=str(place.store), fs=fs))

        with pytest.raises(treesnap.OperationFailed, match="Permission denied") as caught:
            handle.restore("before")

        assert caught.value.errno == errno.EACCES
        assert difference(before, record(place.root)) == []
        assert place.litter() == []


def test_without_privileges_a_directory_of_another_user_stops_the_restore():
    if os.geteuid() != 0:
        pytest.skip("needs the superuser")
    top = Path(tempfile.mkdtemp(prefix="open-"))
    try:
        top.chmod(0o777)
        place = Place(top / "root", top / "store")
        place.make("a", "theirs/file", "theirs/other", "z")
        treesnap.open(place.root, place.store).create(name="before")
        place.edit("a", "theirs/file", "z")
        treesnap.open(place.root, place.store).restore("before")  # everything is loaded by now
        place.edit("a", "theirs/file", "z")
        for path in [top, *top.rglob("*")]:
            os.chown(path, NOBODY_ID, NOBODY_ID)
        os.chown(place.root / "theirs", 0, 0)
        before = record(place.root)

        def restore() -> None:
            os.setgroups([])
            os.setresgid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
            os.setresuid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
            with pytest.raises(treesnap.OperationFailed) as caught:
                treesnap.open(place.root, place.store).restore("before")
            assert caught.value.errno in (errno.EACCES, errno.EPERM)

        ended = in_child(restore)

        assert ended.error is None, ended.error
        assert difference(before, record(place.root)) == []
        assert place.litter() == []
    finally:
        shutil.rmtree(top)
