"""The way back of a failed step, whatever the step left: every damage by every way back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import treesnap
from damages import ALL, FILLING, LARGE_SIZE, MOUNTING, Damage, build, parameters
from mounting import mounting
from oracle import difference, record
from privileges import as_nobody
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.core.ops.run.checkpoint import go_back
from treesnap.plans import Planner, PlanState, Step
from treesnap.testing.children import killed
from treesnap.testing.doubles import kill_at

pytestmark = pytest.mark.sampled(10)


def is_excluded(path: bytes) -> bool:
    return path == b"excluded" or path.startswith(b"excluded/")


class Failed(Exception):
    """The body of a block has failed."""


def by_run(handle: treesnap.Handle, script: str) -> None:
    assert handle.run(["sh", "-c", f"{script}\nexit 1"]).rolled_back


def by_plan(handle: treesnap.Handle, script: str) -> None:
    plan = Planner(handle).run("plan", [Step(name="step", run=f"{script}\nexit 1")])
    assert plan.state == PlanState.FAILED


def by_plan_rollback(handle: treesnap.Handle, script: str) -> None:
    planner = Planner(handle)
    plan = planner.run("plan", [Step(name="step", run=f"{script}\nexit 0")])
    planner.rollback(plan.id, plan.checkpoints[0].id)


def in_block(handle: treesnap.Handle, script: str) -> None:
    with handle.rollback_on_error("block"):
        subprocess.run(["sh", "-c", script], cwd=handle.root, check=False)
        raise Failed


def by_block(handle: treesnap.Handle, script: str) -> None:
    with pytest.raises(Failed):
        in_block(handle, script)


EXIT_CODES = pytest.mark.needs("exit codes")
PLANNED = [pytest.param(way, marks=EXIT_CODES) for way in (by_plan, by_plan_rollback)]
WAYS = pytest.mark.parametrize("way", [by_run, *PLANNED, by_block])
ALONE = pytest.mark.parametrize("way", [by_run, PLANNED[0], by_block])
"""Ways that write nothing before they go back, so that a full store does not stop them."""
Way = Callable[[treesnap.Handle, str], None]


@pytest.mark.sampled(5)
@WAYS
@pytest.mark.parametrize("damage", ALL)
def test_every_way_back_ends_where_the_step_began(tmp_path: Path, way: Way, damage: Damage):
    root = tmp_path / "root"
    build(root)
    before = record(root)
    if damage.loses_excluded:
        before = {path: facts for path, facts in before.items() if not is_excluded(path)}
    handle = treesnap.open(root, tmp_path / "store")

    way(handle, damage.script)

    assert difference(before, record(root)) == []


@pytest.mark.sampled(9)
@WAYS
@pytest.mark.parametrize("damage", parameters(MOUNTING))
def test_every_way_back_leaves_alone_what_the_step_mounted(
    tmp_path: Path, way: Way, damage: Damage
):
    root = tmp_path / "root"
    build(root)
    before = record(root)
    assert damage.mounts_at is not None
    place = root / damage.mounts_at
    with mounting() as mounter:
        mounter.tmpfs(tmp_path / "probe")  # skips where mounting is not possible
        try:
            way(treesnap.open(root, tmp_path / "store"), damage.script)
        finally:
            if place.is_mount():
                mounter.take_on(place)
        assert place.is_mount()
        assert os.listdir(place) == ["within"]
    after = record(root)
    if os.fsencode(damage.mounts_at) not in before:
        del after[os.fsencode(damage.mounts_at)]
    assert difference(before, after) == []


@contextmanager
def small_disk(directory: Path, place: str) -> Iterator[tuple[Path, Path]]:
    """Lends a root with a large file, and a store, in a small file system: both or one of them."""
    with mounting() as mounter:
        small = mounter.tmpfs(directory / "small", "8m")
        root = small / "root"
        store = directory / "store" if place == "root alone" else small / "store"
        build(root)
        (root / "large").write_bytes(os.urandom(LARGE_SIZE))
        yield root, store


PLACES = pytest.mark.parametrize("place", ["root alone", "root and store"])


@pytest.mark.sampled(12)
@ALONE
@PLACES
@pytest.mark.parametrize("damage", parameters(FILLING))
def test_every_way_back_ends_where_the_step_began_although_it_filled_the_disk(
    tmp_path: Path, way: Way, place: str, damage: Damage
):
    with small_disk(tmp_path, place) as (root, store):
        before = record(root)

        way(treesnap.open(root, store), damage.script)

        assert difference(before, record(root)) == []
        assert treesnap.open(root, store).verify(read_data=True).ok


KILLED_IN = "rm -r directory; : > large; head -c 64M /dev/urandom > filling"


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 29])
def test_way_back_on_a_full_disk_that_is_killed_anywhere_is_finished_or_was_not_begun(
    tmp_path: Path, stride: int
):
    with mounting() as mounter:
        number = 0
        is_killed = True
        while is_killed:
            number += stride
            small = mounter.tmpfs(tmp_path / f"small-{number}", "1m")
            root, store = small / "root", small / "store"
            build(root)
            (root / "large").write_bytes(os.urandom(LARGE_SIZE // 8))
            before = record(root)
            handle = treesnap.open(root, store)
            checkpoint = handle.create()
            subprocess.run(["sh", "-c", KILLED_IN], cwd=root, check=False, capture_output=True)
            left = record(root)

            def act(fs, handle=handle, checkpoint=checkpoint):
                mine = treesnap.Handle(
                    context_at(root=handle.root, store_path=handle.store_path, fs=fs)
                )
                go_back(mine.context, checkpoint.id)

            ended = killed(act, kill_at(number))

            assert ended.error is None, (number, ended.error)
            is_killed = ended.was_killed
            handle.status()
            found = record(root)
            if difference(left, found):
                assert difference(before, found) == [], number
            go_back(handle.context, checkpoint.id)
            assert difference(before, record(root)) == [], number
            mounter.unmount(small)
        assert number > 30


@PLACES
def test_way_back_says_what_it_could_not_keep(tmp_path: Path, place: str):
    with small_disk(tmp_path, place) as (root, store):
        monitor = CollectingMonitor()
        handle = treesnap.Handle(context_at(root=str(root), store_path=str(store), monitor=monitor))

        result = handle.run(["sh", "-c", ": > large; head -c 64M /dev/urandom > filling; exit 1"])

        assert result.restore is not None
        if place == "root alone":
            assert result.restore.safety_id is not None
            assert result.restore.not_kept is None
            assert b"filling" in {item.name for item in handle.ls(result.restore.safety_id)}
        else:
            assert result.restore.safety_id is None
            assert "No space left on device" in result.restore.not_kept
            lost = "What the failed step left is not kept: there was no room for it"
            assert lost in monitor.warnings
            assert result.restore.to_dict()["not_kept"] is not None


def test_plain_restore_keeps_refusing_what_it_could_not_undo(tmp_path: Path):
    with small_disk(tmp_path, "root and store") as (root, store):
        handle = treesnap.open(root, store)
        made = handle.create()
        subprocess.run(["sh", "-c", "head -c 64M /dev/urandom > filling"], cwd=root, check=False)
        left = record(root)

        with pytest.raises(treesnap.StorageFull):
            handle.restore(made.id, force=True)

        assert difference(left, record(root)) == []


CLOSING = ["no-permissions", "read-only", "root-without-permissions", "closed-and-created"]


@pytest.mark.needs("path only")
@pytest.mark.sampled(8)
@WAYS
@pytest.mark.parametrize("damage", [item for item in ALL if item.id in CLOSING])
def test_what_a_step_closed_comes_back_without_privileges(open_directory, way, damage):
    everything_is_loaded(open_directory)
    root = open_directory / "root"

    def act() -> None:
        build(root)
        before = record(root)
        way(treesnap.open(root, open_directory / "other-store"), damage.script)
        assert difference(before, record(root)) == []

    as_nobody(act)


def everything_is_loaded(directory: Path) -> None:
    """Goes every way back once, because the child without privileges may import nothing."""
    root = directory / "load"
    build(root)
    for way in (by_run, by_plan, by_plan_rollback, by_block):
        way(treesnap.open(root, directory / "load-store"), "echo x > file; chmod 0 directory")
