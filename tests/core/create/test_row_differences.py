"""Captures that compare a tree with the stat cache before they walk it, in C and in Python.

A capture finds what one in a store of its own finds, which knows nothing of earlier ones,
whatever happened to the tree. Every tree counts as large here.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from frames import FRAMES, few_frames
from helping import fill
from sampling import sized
from state import tree_state
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Refused, WarningCode
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.snapshots import IgnoreRules
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.capture import Capture
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.scan import row_differences, scanner
from treesnap.core.worktree.scan.listing import list_directory
from treesnap.testing.doubles import Call, RecordingFileSystem, WrappedFileSystem

LATER_NS = 3_600_000_000_000
AGE_NS = 200_000_000
ROUNDS = 4
RULES = ["file-1*\n", "inner-2\n", "inner-*/\n", "file-*/\n!file-12\n", "top-3\n", "*\n", "#\n"]


pytestmark = pytest.mark.usefixtures("implementation")


@pytest.fixture(autouse=True)
def large(monkeypatch):
    monkeypatch.setattr(row_differences, "ROWS_MIN", 1)


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    fill(root, 240, tops=6, inners=4)
    return root


def handle_of(root: Path, store: Path, fs: Any = None) -> Handle:
    """Returns a handle for which nothing that was written until now is young any more."""
    clock_ns = time.time_ns() + LATER_NS
    return Handle(
        context_at(
            root=root, store_path=str(store), fs=fs or LocalFileSystem(), clock_ns=lambda: clock_ns
        )
    )


def directories(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def change(root: Path, chance: random.Random) -> None:
    """Does one of the things that happen to trees."""
    directory, other = chance.choice(directories(root)), chance.choice(directories(root))
    file = chance.choice(files(root))
    name = f"new-{chance.randrange(10**9)}"
    kind = chance.randrange(13)
    if kind == 0:
        file.write_bytes(b"changed")
    elif kind == 1:
        file.unlink()
    elif kind == 2:
        (directory / name).write_bytes(b"new")
    elif kind == 3:
        (directory / name / "deeper").mkdir(parents=True)
        (directory / name / "deeper" / "file").touch()
    elif kind == 4 and other not in (directory, *directory.parents, *root.parents):
        other.rename(directory / name)
    elif kind == 5:
        directory.chmod(0o700 + chance.randrange(8))
    elif kind == 6:
        os.link(file, directory / name)
    elif kind == 7:
        (directory / ".snapignore").write_text(chance.choice(RULES))
    elif kind == 8:
        file.chmod(0o600 + chance.randrange(8))
    elif kind == 9:
        (directory / name).symlink_to("nowhere")
    elif kind == 10 and directory != root:
        shutil.rmtree(directory)
        directory.write_bytes(b"in the place of a directory")
    elif kind == 11:
        file.unlink()
        file.mkdir()
        (file / "file-1").write_bytes(b"in the place of a file")
    else:
        (directory / ".snapignore").unlink(missing_ok=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(sized(12, 30)))
def test_finds_what_a_walk_of_everything_finds(root, tmp_path, seed):
    chance = random.Random(seed)
    if seed % 2:
        (root / ".snapignore").write_text(chance.choice(RULES))
    compared = tmp_path / "store"
    handle_of(root, compared).create()
    for number in range(ROUNDS):
        for _ in range(chance.randrange(1, 8)):
            change(root, chance)

        found = handle_of(root, compared).create()
        whole = handle_of(root, tmp_path / f"whole-{number}").create()

        assert found.root_hash == whole.root_hash
        assert found.stats.files == whole.stats.files
        assert found.skipped == whole.skipped
        assert found.snapshot.record.rules == whole.snapshot.record.rules
    before = tree_state(root)
    with suppress(Refused):  # what is excluded may be in the way
        if handle_of(root, compared).restore("latest~2").safety_id is not None:
            handle_of(root, compared).undo()
    assert tree_state(root) == before


def test_looks_into_each_directory_of_an_unchanged_tree_once(root, tmp_path):
    handle_of(root, tmp_path / "store").create()
    fs = RecordingFileSystem()

    handle_of(root, tmp_path / "store", fs).create()

    listed = [call.paths[0] for call in fs.log if call.method == "scan"]
    below = [path for path in listed if path.startswith(f"{root}/")]
    assert sorted(below) == sorted(map(str, directories(root)))


def test_the_module_in_c_knows_exclusions_by_the_rows_they_made(
    root, tmp_path, monkeypatch, implementation
):
    (root / ".snapignore").write_text("inner-1/\n")
    (root / "top-2" / ".snapignore").write_text("file-8\n")
    handle_of(root, tmp_path / "store").create()
    listed = []

    def noting(fs, fd, path, *others):
        listed.append(path)
        return list_directory(fs, fd, path, *others)

    for module in (row_differences, scanner):
        monkeypatch.setattr(module, "list_directory", noting)
    handle_of(root, tmp_path / "store").create()

    in_python = {b"", *(b"top-%d" % n for n in range(6))}
    assert {b"", b"top-2"} == set(listed) if implementation == "in C" else in_python < set(listed)


def test_reads_only_what_changed(root, tmp_path):
    handle_of(root, tmp_path / "store").create()
    (root / "top-3" / "inner-1" / "file-9").write_bytes(b"changed")

    assert handle_of(root, tmp_path / "store").create().stats.files_read == 1
    assert handle_of(root, tmp_path / "store").create().stats.files_read == 0


@pytest.mark.needs("exact times")
def test_reads_again_what_was_young_in_directories_that_were_not(root, tmp_path):
    young = root / "top-3" / "inner-1" / "file-9"
    newest_ns = max(path.stat().st_ctime_ns for path in directories(root))
    while young.stat().st_ctime_ns < newest_ns + AGE_NS:
        young.write_bytes(b"young")
    clock_ns = young.stat().st_ctime_ns
    store = str(tmp_path / "store")
    handle = Handle(context_at(root=root, store_path=store, clock_ns=lambda: clock_ns))
    handle.create()

    assert handle.create().stats.files_read == 1


@pytest.mark.sampled(5)
@pytest.mark.parametrize("number", range(6))
def test_looks_into_no_directory_that_is_left_out_now(root, tmp_path, number):
    handle_of(root, tmp_path / "store").create()
    (root / ".snapignore").write_text(f"top-{number}\n")
    (root / f"top-{number}" / ".snapignore").write_text("a pattern that is none: !\n!\n")

    found = handle_of(root, tmp_path / "store").create()

    assert [item.path for item in found.skipped] == [b"top-%d" % number]


@pytest.mark.usefixtures("of_any_depth")
def test_depth_costs_no_recursion(root, tmp_path):
    deepest = root.joinpath(*["d"] * sized(FRAMES + 50, 1200))
    subprocess.run(["mkdir", "-p", deepest], check=True)
    handle_of(root, tmp_path / "store").create()
    (deepest / "file").touch()

    with few_frames():
        found = handle_of(root, tmp_path / "store").create()
        whole = handle_of(root, tmp_path / "whole").create()

    assert found.root_hash == whole.root_hash
    subprocess.run(["rm", "-r", root / "d"], check=True)  # too deep for the ways of Python


def swap(root: Path) -> None:
    """Exchanges the names of two directories."""
    (root / "top-0").rename(root.parent / "aside")
    (root / "top-1").rename(root / "top-0")
    (root.parent / "aside").rename(root / "top-1")


def test_a_directory_that_takes_the_place_of_another_meanwhile_is_walked_whole(root, tmp_path):
    handle_of(root, tmp_path / "store").create()

    class Swapping(WrappedFileSystem):
        """Exchanges two directories when the comparison is over, and the root is listed."""

        listings = 0

        def around(self, call: Call) -> Any:
            if call.method == "scan" and call.path == str(root):
                self.listings += 1
                if self.listings == 2:
                    swap(root)
            return call.proceed()

    fs = Swapping(LocalFileSystem())
    found = handle_of(root, tmp_path / "store", fs).create()

    whole = handle_of(root, tmp_path / "whole").create()
    assert found.snapshot.record.root.content == whole.snapshot.record.root.content


def test_a_directory_in_the_place_of_another_is_walked_whole(root, tmp_path):
    handle_of(root, tmp_path / "store").create()
    swap(root)

    found = handle_of(root, tmp_path / "store").create()

    assert found.root_hash == handle_of(root, tmp_path / "whole").create().root_hash


@pytest.fixture
def old(root, tmp_path):
    """A snapshot with an ignore file in a directory, which the newest one does not have."""
    ignore_file = root / "top-3" / "inner-1" / ".snapignore"
    ignore_file.write_text("file-9\n")
    made = handle_of(root, tmp_path / "store").create()
    ignore_file.unlink()
    handle_of(root, tmp_path / "store").create()
    return made


def test_a_directory_that_rules_are_given_for_is_entered(root, tmp_path, old):
    found = handle_of(root, tmp_path / "store").status(old.id)

    assert [item.path for item in found.skipped] == [b"top-3/inner-1/file-9"]


@pytest.mark.usefixtures("old")
def test_rules_that_were_given_for_a_directory_hide_nothing_later(root, tmp_path):
    handle = handle_of(root, tmp_path / "store")
    request = CaptureRequest(rules=(IgnoreRules(b"top-3/inner-1", ("file-9",)),))
    with (
        opened(handle.context, "capture", writing=True) as session,
        locked_root(session, "create"),
        Capture(session, request) as capture,
    ):
        capture.publish(capture.record())

    found = handle_of(root, tmp_path / "store").create()

    assert found.skipped == ()
    assert found.root_hash == handle_of(root, tmp_path / "whole").create().root_hash


def test_warns_of_an_ignore_file_that_excludes_nothing_each_time(root, tmp_path):
    (root / "top-3" / ".snapignore").write_text("!\n")
    handle_of(root, tmp_path / "store").create()

    monitor = CollectingMonitor()
    Handle(context_at(root=root, store_path=str(tmp_path / "store"), monitor=monitor)).create()

    assert monitor.codes == [WarningCode.RULE_SKIPPED]
