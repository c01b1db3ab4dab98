"""A sandbox: no home, a home that cannot be written, Ctrl-C before the command has begun."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

NO_HOME = """
import os, pwd, sys
def unknown(user_id):
    raise KeyError(user_id)
pwd.getpwuid = unknown
"""
"""Makes the table of users one that does not know this process."""

INTERRUPTING = """
import signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
"""
"""Sends SIGINT when a module is imported."""


@pytest.fixture
def started(tmp_path, environment, root):
    """Runs ``snap`` in an interpreter that does something before it begins."""

    def run(before: str, *words: str, **variables: str | None) -> Any:
        place = tmp_path / "site"
        place.mkdir(exist_ok=True)
        (place / "sitecustomize.py").write_text(before)
        merged = {**environment, "PYTHONPATH": str(place), **variables}
        return subprocess.run(
            [sys.executable, "-m", "treesnap", *words],
            env={name: value for name, value in merged.items() if value is not None},
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.sampled(5)
@pytest.mark.parametrize("words", [["create"], ["list"], ["status", "--json"]], ids=" ".join)
def test_without_a_home_the_error_names_the_setting(started, words):
    nowhere = {"HOME": None, "SNAP_STORE": None, "XDG_DATA_HOME": None}

    result = started(NO_HOME, *words, **nowhere)

    said = result.stdout + result.stderr
    assert result.returncode == 1
    assert "There is no home directory to keep a store in" in said
    assert "SNAP_STORE" in said
    assert "bug" not in said


def test_without_a_home_a_named_store_works(started, store):
    for words in (["create"], ["status"], ["restore", "latest"]):
        nowhere = {"HOME": None, "XDG_DATA_HOME": None}
        assert started(NO_HOME, *words, **nowhere).returncode == 0
        result = started(NO_HOME, "--store", str(store), *words, SNAP_STORE=None, **nowhere)
        assert result.returncode == 0, result.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "home", [pytest.param("/proc/none", marks=pytest.mark.needs("linux")), "/dev/null"]
)
def test_a_home_that_cannot_be_written_is_no_dead_end(started, root, home):
    (root / "a").write_text("a")

    result = started("", "create", HOME=home, SNAP_STORE=None, XDG_DATA_HOME=None)

    assert result.returncode == 1
    assert "The store" in result.stderr
    assert "SNAP_STORE" in result.stderr


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "name",
    [
        "treesnap.cli.main",
        "treesnap.cli.commands.create",
        "treesnap.cli.output.streams",
        "treesnap.core.handle",
        "msgpack",
    ],
)
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(started, root, name):
    (root / "a").write_text("a")

    result = started(INTERRUPTING.format(name=name), "create")

    assert (result.returncode, "Traceback" in result.stderr) == (130, False)
    assert result.stdout == ""


AT_THE_END = """
import os, signal, sys
def hook(event, arguments):
    if event == {event!r} and b".treesnap-" in os.fsencode(arguments[0]):
        os.write(2, b"interrupted")
        signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.addaudithook(hook)
"""
"""Sends SIGINT when a staging directory is removed, after everything else was done."""


@pytest.mark.parametrize("words", [["restore", "latest"], ["restore", "latest", "--to", "../new"]])
def test_ctrl_c_after_a_restore_is_done_does_not_deny_it(started, root, words):
    (root / "a").write_text("old")
    assert started("", "create").returncode == 0
    (root / "a").write_text("new")

    result = started(AT_THE_END.format(event="os.rmdir"), *words)

    assert "interrupted" in result.stderr
    assert result.returncode == 0
    assert "Restored" in result.stdout
    assert (root.parent / "new" / "a" if "--to" in words else root / "a").read_text() == "old"
    assert not [path for path in root.iterdir() if path.name != "a"]
