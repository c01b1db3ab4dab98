"""Metadata of wrong types, through each way to make a snapshot: one error, nothing published."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import treesnap
from calling import Ended, run_forked
from treesnap.compat.architect import CheckpointManager
from treesnap.core.model.errors import InvalidArgument
from treesnap.plans import Milestones, Planner, Step


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A root with a snapshot in the default store of the test."""
    monkeypatch.setenv("SNAP_STORE", str(tmp_path / "store"))
    path = tmp_path / "root"
    path.mkdir()
    (path / "file").write_text("content")
    treesnap.open(path).create()
    (path / "file").write_text("edited")
    return path


def is_as_before(root: Path) -> bool:
    handle = treesnap.open(root)
    handle.gc()
    return len(handle.list()) == 1 and not Planner(handle).list() and handle.verify().ok


@pytest.mark.parametrize(
    "arguments", [(1.0,), (True,), ("1",), (None,), (1 << 70,), (1, 5), (1, b"x")], ids=repr
)
def test_architect(root, arguments):
    with pytest.raises(InvalidArgument):
        CheckpointManager(str(root)).create(*arguments)

    assert is_as_before(root)


@pytest.mark.parametrize(
    ("name", "steps", "milestones"),
    [
        (5, [Step(name="a", run="true")], None),
        ("plan", [Step(name=5, run="true")], None),
        ("plan", [Step(name="a", run=5)], None),
        ("plan", [Step(name="a", run="true", retries=1.5)], None),
        ("plan", [Step(name="a", run="true", timeout_s="1")], None),
        ("plan", [Step(name="a", run="true", checkpoint="yes")], None),
        ("plan", [Step(name="a", run="true")], Milestones(keep=1.5)),
        ("plan", [Step(name="a", run="true")], Milestones(every_n_steps="2")),
        ("plan", ["true"], None),
        ("plan", [Step(name="a", run="true\0")], None),
    ],
    ids=repr,
)
def test_plans_of_the_library(root, name, steps, milestones):
    with pytest.raises(InvalidArgument):
        Planner(treesnap.open(root)).run(name, steps, milestones)

    assert is_as_before(root)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "text",
    [
        "name: 5\nsteps:\n  - {name: a, run: 'true'}\n",
        "name: plan\nsteps:\n  - {name: 1.5, run: 'true'}\n",
        "name: plan\nsteps:\n  - {name: a, run: 5}\n",
        "name: plan\nsteps:\n  - {name: a, run: 'true', retries: 1.5}\n",
        "name: plan\nsteps:\n  - {name: a, run: 'true', timeout: [1]}\n",
        "name: plan\nsteps:\n  - 5\n",
        "name: plan\nsteps: 5\n",
    ],
)
def test_plans_of_the_command_line(root, text):
    path = root.parent / "plan.yaml"
    path.write_text(text)

    done = snap(root, "plan", "run", str(path))

    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert is_as_before(root)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--step", "1.5"],
        ["--step", "x"],
        ["--step", str(1 << 70)],
        ["--tag", "=x"],
        ["--counter", "a=1.5"],
        ["--counter", "a=True"],
        ["--counter", f"a={1 << 70}"],
        ["--name", ""],
    ],
    ids=repr,
)
def test_options_of_the_command_line(root, arguments):
    done = snap(root, "create", *arguments)

    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert is_as_before(root)


def snap(root: Path, *arguments: str) -> Ended:
    return run_forked(arguments, cwd=root, variables=os.environ)
