"""A way back that is not possible: nothing is harmed, and it says what leads back later."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import treesnap
from mounting import Mounter, mounting
from oracle import difference, record
from treesnap.core.model.errors import Corrupt, ErrorCode, Refused, TreesnapError
from treesnap.plans import Planner, Step

pytestmark = pytest.mark.sampled(10)

Way = Callable[[treesnap.Handle, str], object]


class Failed(Exception):
    """The body of a block has failed."""


def by_run(handle: treesnap.Handle, script: str) -> None:
    handle.run(["sh", "-c", f"{script}\nexit 1"])


def by_plan(handle: treesnap.Handle, script: str) -> None:
    Planner(handle).run("plan", [Step(name="step", run=f"{script}\nexit 1")])


def by_block(handle: treesnap.Handle, script: str) -> None:
    with suppress(Failed), handle.rollback_on_error("block"):
        subprocess.run(["sh", "-c", script], cwd=handle.root, check=False)
        raise Failed


PLANNED = pytest.param(by_plan, marks=pytest.mark.needs("exit codes"))
WAYS = pytest.mark.parametrize("way", [by_run, PLANNED, by_block])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "above" / "root"
    (root / "directory").mkdir(parents=True)
    (root / "file").write_text("before")
    (root / "directory" / "inner").write_text("inner")
    return root


@pytest.fixture
def handle(tmp_path: Path, root: Path) -> treesnap.Handle:
    return treesnap.open(root, tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """What is mounted: it looks as the directory above the root does, and has another content."""
    other = tmp_path / "other"
    (other / "root").mkdir(parents=True)
    (other / "root" / "file").write_text("another")
    (other / "precious").write_text("precious")
    return other


@pytest.fixture
def mounter() -> Iterator[Mounter]:
    with mounting() as mounter:
        yield mounter


LAYERS = "lowerdir='{root}',upperdir=../../upper,workdir=../../work"
OVERLAY = f"mkdir ../../upper ../../work; mount -t overlay treesnap-test -o {LAYERS} '{{root}}'"
COVERS = {
    "a directory": ("mount --bind '{other}' '{root}'", "root"),
    "another file system": ("mount -t tmpfs treesnap-test '{root}'", "root"),
    "an overlay of it": (OVERLAY, "root"),
    "a directory above it": ("mount --bind '{other}' '{root}/..'", "above"),
    "another file system above it": ("mount -t tmpfs treesnap-test '{root}/..'", "above"),
}


@pytest.mark.needs("mounts")
@WAYS
@pytest.mark.parametrize("cover", COVERS.values(), ids=COVERS)
def test_what_a_step_mounted_over_the_root_is_not_written_to(
    cover, way: Way, handle, root, other, mounter
):
    before, there = record(root), record(other)
    script, name = cover
    place = root if name == "root" else root.parent

    with pytest.raises(Refused) as error:
        way(handle, f"echo spoilt > file; {script.format(root=root, other=other)}")
    mounted = sorted(os.listdir(place))
    mounter.take_on(place)
    mounter.unmount(place)

    failed = error.value
    checkpoint_id = failed.checkpoint_id
    assert failed.code is ErrorCode.ROOT_COVERED
    assert failed.message.startswith(f"The roll-back to {checkpoint_id[:12]} failed: ")
    assert difference(there, record(other)) == []
    assert mounted in ([], ["precious", "root"], ["directory", "file"])
    assert (root / "file").read_text() == "spoilt\n"
    handle.restore(checkpoint_id)
    assert difference(before, record(root)) == []


@pytest.mark.needs("mounts")
def test_a_plan_that_goes_on_later_does_not_write_there_either(handle, root, other, mounter):
    planner = Planner(handle)
    script = f"echo spoilt > file; mount --bind '{other}' '{root}'; exit 1"
    with suppress(TreesnapError):
        planner.run("plan", [Step(name="step", run=script)])
    there = record(other)

    with pytest.raises(Refused) as error:
        planner.resume("latest")

    mounter.take_on(root)
    mounter.unmount(root)
    assert error.value.code is ErrorCode.ROOT_COVERED
    assert difference(there, record(other)) == []


def test_a_root_that_is_a_mount_itself_is_rolled_back_in_it(tmp_path, mounter):
    root = mounter.tmpfs(tmp_path / "root")
    (root / "file").write_text("before")
    handle = treesnap.open(root, tmp_path / "store")

    by_run(handle, "echo spoilt > file")

    assert (root / "file").read_text() == "before"


@WAYS
def test_an_error_is_of_the_kind_of_its_cause_and_names_the_checkpoint(
    way: Way, handle, root, tmp_path
):
    (root / "large").write_bytes(os.urandom(1 << 20))
    packs = tmp_path / "store" / "packs"

    with pytest.raises(Corrupt) as error:
        way(handle, f"rm large; mv '{packs}' '{packs}.away'; mkdir '{packs}'")

    failed = error.value
    checkpoint_id = failed.checkpoint_id
    assert str(failed) == failed.message
    assert failed.message.startswith(f"The roll-back to {checkpoint_id[:12]} failed: ")
    shutil.rmtree(packs)
    packs.with_suffix(".away").rename(packs)
    assert handle.show(checkpoint_id).id == checkpoint_id


LONG_NAMES = [
    "r" * 253,
    "r" * 255,
    "é" * 126 + "x",
    pytest.param(
        b"\xff".decode("utf-8", "surrogateescape") * 255, marks=pytest.mark.needs("any names")
    ),
]


@WAYS
@pytest.mark.parametrize("name", LONG_NAMES, ids=["253", "255", "characters", "bytes"])
def test_a_root_with_a_long_name_is_put_back_where_something_else_is(way: Way, name, tmp_path):
    root = tmp_path / name
    root.mkdir()
    (root / "file").write_text("before")
    before = record(root)
    handle = treesnap.open(root, tmp_path / "store")

    way(handle, 'd=$PWD; rm -r "$d"; echo spoilt > "$d"')

    assert difference(before, record(root)) == []
    aside = [path for path in tmp_path.iterdir() if path.name.endswith(".left-1")]
    assert [path.read_text() for path in aside] == ["spoilt\n"]
