"""The way back of a failed step, whatever the step left: every damage by every way back."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import treesnap
from damages import ALL, Damage, build
from oracle import difference, record
from privileges import as_nobody
from treesnap.plans import Planner, PlanState, Step


def is_excluded(path: bytes) -> bool:
    return path == b"excluded" or path.startswith(b"excluded/")


class Failed(Exception):
    """The body of a block has failed."""


def by_run(handle: treesnap.Handle, script: str) -> None:
    assert handle.run(["sh", "-c", f"{script}\nexit 1"]).rolled_back


def by_plan(handle: treesnap.Handle, script: str) -> None:
    plan = Planner(handle).run("plan", [Step(name="step", run=f"{script}\nexit 1")])
    assert plan.state == PlanState.FAILED


def in_block(handle: treesnap.Handle, script: str) -> None:
    with handle.rollback_on_error("block"):
        subprocess.run(["sh", "-c", script], cwd=handle.root, check=False)
        raise Failed


def by_block(handle: treesnap.Handle, script: str) -> None:
    with pytest.raises(Failed):
        in_block(handle, script)


WAYS = pytest.mark.parametrize("way", [by_run, by_plan, by_block])
Way = Callable[[treesnap.Handle, str], None]


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


CLOSING = ["no-permissions", "read-only", "root-without-permissions", "closed-and-created"]


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
    for way in (by_run, by_plan, by_block):
        way(treesnap.open(root, directory / "load-store"), "echo x > file; chmod 0 directory")
