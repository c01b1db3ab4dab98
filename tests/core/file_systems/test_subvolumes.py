"""Btrfs subvolumes below the root: parts of the tree to which nothing can be renamed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from calling import Place
from mounting import mounting
from oracle import difference, record
from state import differences, tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import OperationFailed
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault, FaultyFileSystem

pytestmark = [pytest.mark.needs("mounts"), pytest.mark.sampled(12)]

OLD_NS = 10**18


def subvolume(path: Path) -> None:
    subprocess.run(["btrfs", "-q", "subvolume", "create", str(path)], check=True)


@pytest.fixture
def place(tmp_path: Path):
    """A root with a subvolume below a directory, and one more in that."""
    with mounting() as mounter:
        mounted = mounter.image(tmp_path / "mounted", "btrfs", 256)
        place = Place(mounted / "root", mounted / "store")
        (place.root / "directory").mkdir(parents=True)
        subvolume(place.root / "directory/outer")
        subvolume(place.root / "directory/outer/inner")
        place.make(
            "top",
            "directory/outer/file",
            "directory/outer/deep/er/file",
            "directory/outer/deep/mode",
            "directory/outer/inner/file",
            "directory/outer/inner/gone/file",
        )
        for path in ("directory/outer", "directory/outer/inner", "directory"):
            os.utime(place.root / path, ns=(OLD_NS, OLD_NS))
        yield place


def change(place: Place) -> None:
    place.edit("top", "directory/outer/file", "directory/outer/deep/er/file")
    place.edit("directory/outer/inner/file")
    (place.root / "directory/outer/deep/mode").chmod(0o600)
    (place.root / "directory/outer/inner/gone/file").unlink()
    (place.root / "directory/outer/inner/gone").rmdir()
    place.make("directory/outer/new/file", "directory/outer/inner/new")


def test_a_restore_and_its_undo_change_files_in_all_of_them(place):
    place.done("create", "--name", "before")
    before = record(place.root)
    change(place)
    changed = record(place.root)

    place.done("restore", "before")
    assert difference(before, record(place.root)) == []
    place.done("undo")
    assert difference(changed, record(place.root)) == []
    place.done("restore", "before", "directory/outer/inner")
    assert (place.root / "directory/outer/inner/file").read_text().endswith("inner/file")
    assert (place.root / "directory/outer/file").read_text().endswith("edited")
    assert place.litter() == []


def test_run_rolls_back(place):
    before = record(place.root)
    script = "echo x > directory/outer/inner/file; rm directory/outer/file; exit 9"

    ended = place.snap("run", "--", "sh", "-c", script)

    assert ended.code == 9
    assert difference(before, record(place.root)) == []
    assert place.litter() == []


def test_a_subvolume_is_removed_and_comes_back_as_a_directory(place):
    place.done("create", "--name", "before")
    before = record(place.root)
    for path in ("directory/outer/inner", "directory/outer"):
        subprocess.run(["rm", "-rf", str(place.root / path)], check=True)
    place.done("create", "--name", "without")
    without = record(place.root)
    subvolume(place.root / "directory/outer")
    place.make("directory/outer/other")

    place.done("restore", "without")
    assert difference(without, record(place.root)) == []
    place.done("restore", "before")
    assert difference(before, record(place.root)) == []
    assert place.litter() == []


def test_a_file_takes_the_place_of_a_subvolume(place):
    place.done("create", "--name", "before")
    subprocess.run(["rm", "-rf", str(place.root / "directory/outer")], check=True)
    place.make("directory/outer")
    place.done("create", "--name", "file")
    (place.root / "directory/outer").unlink()
    subvolume(place.root / "directory/outer")
    place.make("directory/outer/other")

    place.done("restore", "file")

    assert (place.root / "directory/outer").read_text() == "directory/outer"
    assert place.litter() == []


POINTS = [
    Fault(methods=frozenset({"write_at"}), where=lambda call: "/.treesnap-restore-" in call.path),
    *(Fault(methods=frozenset({"exchange"}), number=number) for number in (1, 2, 3)),
    Fault(methods=frozenset({"rename_to_absent"}), number=2),
    Fault(methods=frozenset({"sync_file_system"}), number=2),
    *(
        Fault(
            methods=frozenset({"remove_directory"}),
            number=number,
            where=lambda call: "/.treesnap-restore-" in call.path,
        )
        for number in (1, 2, 3)
    ),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("point", range(len(POINTS)))
def test_a_killed_restore_is_finished_or_undone_whole(place, point):
    handle = Handle(context_at(root=place.root, store_path=str(place.store)))
    handle.create(name="before")
    before = tree_state(place.root)
    change(place)
    changed = tree_state(place.root)

    def restore(fs) -> None:
        Handle(context_at(root=place.root, store_path=str(place.store), fs=fs)).restore("before")

    assert killed(restore, POINTS[point]).was_killed
    handle.recover()

    found = tree_state(place.root)
    assert differences(found, before) == [] or differences(found, changed) == []
    handle.create()
    assert place.litter() == []


def test_a_subvolume_whose_owner_cannot_be_given_back_is_named_once(place):
    os.chown(place.root / "directory/outer", 1234, 1234)
    Handle(context_at(root=place.root, store_path=str(place.store))).create(name="before")
    os.chown(place.root / "directory/outer", 0, 0)
    place.edit("directory/outer/file")
    words = [sys.executable, "-m", "treesnap", "-C", place.root, "--store", place.store]

    done = subprocess.run(
        ["setpriv", "--bounding-set=-chown", *words, "restore", "before"],
        check=True,
        capture_output=True,
        text=True,
    )

    assert done.stderr.count("'directory/outer'") == 1, done.stderr


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_restore_that_fails_is_undone_whole(place, number):
    Handle(context_at(root=place.root, store_path=str(place.store))).create(name="before")
    change(place)
    changed = tree_state(place.root)
    methods = frozenset({"exchange", "rename_to_absent"})
    fs = FaultyFileSystem(Fault(methods=methods, number=number, errno=errno.EIO))

    with pytest.raises(OperationFailed):
        Handle(context_at(root=place.root, store_path=str(place.store), fs=fs)).restore("before")

    assert differences(tree_state(place.root), changed) == []
    assert place.litter() == []
