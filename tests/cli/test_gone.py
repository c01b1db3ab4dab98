"""A current directory that was deleted is a clear error, not a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import treesnap
from treesnap.compat.maker import carry_out

pytestmark = pytest.mark.sampled(10)

TIMEOUT_S = 60


@pytest.fixture
def gone(tmp_path, monkeypatch):
    """The current directory, which is deleted; and a root beside it that is not."""
    (tmp_path / "gone").mkdir()
    (tmp_path / "root").mkdir()
    monkeypatch.setenv("SNAP_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    return tmp_path / "root"


def snap(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "treesnap", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("create",),
        ("create", "file"),
        ("list",),
        ("restore", "latest"),
        ("undo",),
        ("run", "--", "true"),
        ("-C", "relative", "status"),
        ("session", "validate"),
    ],
)
def test_a_command_says_so(gone, words):
    result = snap("--json", *words)

    error = json.loads(result.stderr or result.stdout)
    assert (result.returncode, error["code"]) == (5, "current-directory-gone")
    assert error["message"] == "The current directory does not exist any more"


def test_a_relative_store_needs_one_as_well(gone):
    for words, environment in (
        (("--store", "relative"), {}),
        ((), {"SNAP_STORE": "relative"}),
    ):
        result = snap("-C", str(gone), *words, "list", **environment)

        assert result.returncode == 5
        assert "The current directory does not exist any more" in result.stderr


def test_commands_that_are_told_where_work(gone):
    assert snap("-C", str(gone), "create", "-q").returncode == 0
    assert snap("-C", str(gone), "status").returncode == 0


def test_the_library_says_so(gone, tmp_path, monkeypatch):
    handle = treesnap.open(gone, tmp_path / "store")
    handle.create(name="one")
    calls = [
        lambda: treesnap.open("."),
        lambda: treesnap.open(gone, "relative"),
        lambda: handle.restore("one", to="relative"),
    ]

    for call in calls:
        with pytest.raises(treesnap.NotFound, match="current directory does not exist") as caught:
            call()
        assert caught.value.code == "current-directory-gone"
    assert carry_out(b"", root="relative").error.code == "current-directory-gone"
    monkeypatch.setenv("SNAP_STORE", "relative")
    with pytest.raises(treesnap.NotFound, match="current directory does not exist"):
        treesnap.open(gone)


def test_a_shell_in_a_replaced_root_is_told_how_to_enter_the_new_one(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("content")
    command = f"'{sys.executable}' -m treesnap"
    script = f"""
        cd '{root}' && {command} create -q &&
        {command} -q run -- sh -c 'cd / && rm -r "$0" && exit 3' '{root}'
        {command} status
        cd "$PWD" && {command} status && cat file
    """

    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "SNAP_STORE": str(tmp_path / "store")},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )

    assert done.returncode == 0
    assert done.stdout.endswith("content")
    assert "hint: 'cd \"$PWD\"' enters the directory" in done.stderr
