"""A root over which something was mounted since: no way back writes into that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import treesnap
from mounting import Mounter, mounting
from oracle import difference, record
from treesnap.core.model.errors import ErrorCode, Refused

pytestmark = pytest.mark.sampled(12)


class Place(NamedTuple):
    """A root with a history, and what is mounted over it."""

    handle: treesnap.Handle
    root: Path
    other: Path
    mounter: Mounter


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    (root / "file").write_text("first")
    (other / "file").write_text("of another program")
    (other / "precious").write_text("precious")
    handle = treesnap.open(root, tmp_path / "store")
    handle.create(name="first")
    (root / "file").write_text("second")
    handle.create(name="second")
    handle.restore("first")
    handle.restore("second")
    handle.undo()
    handle.fork("latest", [tmp_path / "root.fork"])
    (tmp_path / "root.fork" / "made").write_text("there")
    with mounting() as mounter:
        yield Place(handle, root, other, mounter)


DRY_WAYS: dict[str, Callable[[treesnap.Handle], object]] = {
    "restore": lambda handle: handle.restore("second", dry_run=True),
    "restore of a path": lambda handle: handle.restore("second", paths=["file"], dry_run=True),
    "forced restore": lambda handle: handle.restore("second", force=True, dry_run=True),
    "undo": lambda handle: handle.undo(dry_run=True),
    "redo": lambda handle: handle.redo(dry_run=True),
    "revert": lambda handle: handle.revert("first..second", dry_run=True),
    "adopt": lambda handle: handle.adopt(f"{handle.root}.fork", dry_run=True),
}
WAYS: dict[str, Callable[[treesnap.Handle], object]] = {
    "restore": lambda handle: handle.restore("second"),
    "restore of a path": lambda handle: handle.restore("second", paths=["file"]),
    "forced restore": lambda handle: handle.restore("second", force=True),
    "undo": lambda handle: handle.undo(),
    "redo": lambda handle: handle.redo(),
    "hunks": lambda handle: handle.restore_hunks(handle.hunks("second", "file"), [0]),
    "revert": lambda handle: handle.revert("first..second"),
    "adopt": lambda handle: handle.adopt(f"{handle.root}.fork"),
}


@pytest.mark.needs("mounts")
@pytest.mark.sampled(6)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kind", ["directory", "file system"])
def test_nothing_is_written_into_what_covers_the_root(place: Place, way, kind):
    below, there = record(place.root), record(place.other)
    count = len(place.handle.list())
    if kind == "directory":
        place.mounter.bind(place.other, place.root)
    else:
        place.mounter.tmpfs(place.root)
        (place.root / "file").write_text("of another program")
    mounted = record(place.root)

    with pytest.raises(Refused) as error:
        way(place.handle)

    assert error.value.code is ErrorCode.ROOT_COVERED
    assert difference(mounted, record(place.root)) == []
    assert difference(there, record(place.other)) == []
    assert len(place.handle.list()) == count
    place.mounter.unmount(place.root)
    assert difference(below, record(place.root)) == []
    way(place.handle)


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("way", DRY_WAYS.values(), ids=DRY_WAYS)
def test_a_dry_run_refuses_what_covers_the_root_too(place: Place, way):
    place.mounter.bind(place.other, place.root)

    with pytest.raises(Refused) as error:
        way(place.handle)

    assert error.value.code is ErrorCode.ROOT_COVERED
    place.mounter.unmount(place.root)
    way(place.handle)


def test_a_restore_to_another_directory_is_planned_and_made_beside_what_covers_the_root(
    place: Place, tmp_path: Path
):
    place.mounter.bind(place.other, place.root)

    planned = place.handle.restore("second", to=tmp_path / "copy", dry_run=True)
    place.handle.restore("second", to=tmp_path / "copy")

    assert planned.created == 1
    assert (tmp_path / "copy" / "file").read_text() == "second"


def test_what_was_captured_there_is_the_root_from_then_on(place: Place):
    place.mounter.bind(place.other, place.root)
    place.handle.create()

    place.handle.restore("first")

    assert (place.other / "file").read_text() == "first"
    assert not (place.other / "precious").exists()
    place.handle.undo()
    assert (place.other / "precious").read_text() == "precious"


def test_a_root_that_is_a_mount_itself_comes_back_on_a_new_disk(tmp_path: Path):
    with mounting() as mounter:
        root = mounter.tmpfs(tmp_path / "root")
        (root / "file").write_text("before")
        handle = treesnap.open(root, tmp_path / "store")
        handle.create(name="taken")
        mounter.unmount(root)
        mounter.tmpfs(root)

        handle.restore("taken")

        assert (root / "file").read_text() == "before"
