"""``snap mount`` and ``snap umount``: what they refuse, before anything is changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mount.conftest import is_mounted, require_fuse
from treesnap.mount import mount_point

pytestmark = pytest.mark.sampled(12)


@pytest.fixture
def place(snap, root, tmp_path):
    """An empty directory, beside a root with a history."""
    (root / "file").write_text("here")
    assert snap("create").code == 0
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def test_a_directory_that_is_not_empty_is_refused(snap, place):
    (place / "file").touch()
    result = snap("mount", place, "--json")

    assert (result.code, result.json["code"]) == (3, "not-mountable")
    assert result.json["message"].endswith("is not empty")
    assert os.listdir(place) == ["file"]


def test_what_is_not_a_directory_is_refused(snap, place):
    absent, file = place / "absent", place / "file"
    file.touch()

    assert "does not exist" in snap("mount", absent).err
    assert not absent.exists()
    assert "is not a directory" in snap("mount", file).err


def test_a_directory_inside_the_root_or_the_store_is_refused(snap, root, store, place):
    for inside, what in ((root / "empty", "the root"), (store / "empty", "the store")):
        inside.mkdir()
        result = snap("mount", inside)

        assert result.code == 3
        assert f"is inside {what}" in result.err
        assert "hint: name an empty directory outside" in result.err
        inside.rmdir()


def test_where_mounts_are_not_listed_nothing_is_mounted(snap, place, monkeypatch):
    """A look at a mount whose process is stopped would never end there."""
    monkeypatch.setattr(mount_point, "LISTS_MOUNTS", False)

    said = "This system does not say what is mounted where, so nothing can be mounted safely\n"
    assert snap("mount", place).err == f"snap: {said}"
    assert snap("mount", place / "absent").err == f"snap: {said}"
    assert snap("umount", place, "--json").json["code"] == "not-mounted"


def test_without_a_store_it_says_what_makes_one(snap, tmp_path):
    require_fuse()
    (tmp_path / "place").mkdir()

    assert snap("mount", tmp_path / "place", "--json").json["code"] == "store-not-found"


@pytest.mark.needs("mounts")
def test_without_the_extra_it_says_what_to_install(snap, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    result = snap("mount", place)

    assert result.code == 1
    assert "install treesnap[mount]" in result.err


def test_umount_refuses_what_is_not_mounted_here(snap, place):
    result = snap("umount", place, "--json")

    assert (result.code, result.json["code"]) == (5, "not-mounted")
    assert snap("umount", "/proc").code == 5


@pytest.fixture
def mounting(root, store, place) -> Iterator[subprocess.Popen[str]]:
    """``snap mount --json`` at the place."""
    require_fuse()
    words = ["mount", "--json", "-C", root, "--store", store, place]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "treesnap", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.terminate()


def test_umount_ends_a_mount_which_says_as_json_where_it_was(snap, root, place, mounting):
    document = json.loads(mounting.stdout.readline())
    del document["place"]
    assert document == {
        "schema": "treesnap.mount/1",
        "path": str(place),
        "root": str(root),
        "cleared": False,
    }
    assert "is in a history that is mounted already" in snap("mount", place).err
    with (place / "latest" / "file").open() as file:
        assert snap("umount", place).code == 1
        assert file.read() == "here"
    result = snap("umount", place, "--json")

    assert (result.code, result.json) == (0, {"schema": "treesnap.umount/1", "path": str(place)})
    assert mounting.wait() == 0
    assert not is_mounted(place)


@contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    """Keeps a process from going on."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command that may hang for ever."""
    program = [sys.executable, "-P", "-m", "treesnap", *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)


def test_umount_ends_a_mount_whose_process_is_stopped(place, mounting):
    (place.parent / "link").symlink_to(place)
    assert mounting.stdout.readline()
    with stopped(mounting):
        result = command("umount", "--wait", "0", place.parent / "link")

    assert (result.returncode, result.stderr) == (0, "")
    assert not is_mounted(place)


def test_what_is_used_while_its_process_is_stopped_ends_a_command_as_busy(root, place, mounting):
    """Whether the process is dead cannot be known without an answer of it."""
    assert mounting.stdout.readline()
    user = subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=place)
    with user, stopped(mounting):
        for name in ("umount", "mount"):
            result = command(name, "-C", root, "--wait", "0", "--json", place)
            assert (result.returncode, json.loads(result.stdout)["code"]) == (6, "busy")
            assert is_mounted(place)
    assert command("umount", place).returncode == 0
