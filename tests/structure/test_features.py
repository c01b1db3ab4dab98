"""The core and its command line do without each feature: its folder is deleted, and they work."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import treesnap
from treesnap.core.features import FEATURES
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.plans import Milestones, Planner, Step

pytestmark = pytest.mark.sampled(12)

PACKAGE = Path(treesnap.__file__).parent
PROJECT = Path(__file__).parents[2]
USED_BY = {"plans": ["compat"], "remote": ["sandboxes"]}
"""What is deleted with a feature, because it stands on it."""
WORK = """
import importlib, os, pkgutil, sys, treesnap.cli, treesnap.core
from treesnap.cli.main import execute
place, root, store = sys.argv[1:4]
assert treesnap.__file__.startswith(place), treesnap.__file__
for package in (treesnap.cli, treesnap.core):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for command in sys.argv[4:]:
    if command == "change":
        with open(os.path.join(root, "file"), "a") as file:
            file.write("changed")
    else:
        code = execute(["-C", root, "--store", store, *command.split()])
        assert code == 0, (command, code)
"""
"""Imports every module of the core and its command line, then runs commands."""
COMMANDS = (
    "create",
    "watch --detach",
    "change",
    "status",
    "watch --stop",
    "diff",
    "restore latest",
    "list",
    "log",
    "show latest",
    "undo",
    "gc",
    "doctor",
    "verify",
    "stats",
)
ASK = """
import sys
from treesnap.cli.main import execute
print([int(execute([word])) for word in sys.argv[1:]])
"""
"""Runs commands without arguments, and prints how they end."""


@pytest.fixture(scope="module", params=FEATURES)
def without(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """A feature, and the place of a package without its folder."""
    place = tmp_path_factory.mktemp(request.param)
    shutil.copytree(PACKAGE, place / "treesnap")  # and what is compiled, which fits by its time
    for name in [request.param, *USED_BY.get(request.param, [])]:
        folder = place / "treesnap" / name
        if folder.is_dir():
            shutil.rmtree(folder)
        else:
            folder.with_suffix(".py").unlink()
    yield request.param, place
    shutil.rmtree(place)


def python(place: Path, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ,
        "PYTHONPATH": str(place),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TREESNAP_TEST_SIZE": "",  # the quick tests are a sample
    }
    return subprocess.run(
        [sys.executable, *words],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.needs("notices")
def test_the_core_and_its_commands_work(without, tmp_path):
    _, place = without
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("content")

    result = python(place, "-c", WORK, str(place), str(root), str(tmp_path / "store"), *COMMANDS)

    assert result.returncode == 0, result.stderr
    assert (root / "file").read_text() == "contentchanged"


def test_commands_that_are_gone_are_in_no_list_and_say_so(without):
    feature, place = without
    names = [name for listed in FEATURES[feature].commands.values() for name in listed]

    shown = python(place, "-c", ASK, "--help", *names)

    *help_lines, codes = shown.stdout.splitlines()
    assert [line for line in help_lines if line.split()[:1] and line.split()[0] in names] == []
    assert codes == f"{[0] + [2] * len(names)}"
    assert shown.stderr.count("was installed without") == len(names)


@pytest.mark.parametrize("feature", FEATURES)
def test_each_function_of_the_table_is_there(feature):
    """The table is text, in which no checker of types finds a wrong name."""
    points = FEATURES[feature]._asdict()
    del points["commands"]
    tables = [{"": point} if isinstance(point, str) else point for point in points.values()]

    for place in filter(None, (place for table in tables for place in table.values())):
        module, _, name = place.partition(":")
        assert module.startswith(f"treesnap.{feature}."), place
        assert callable(getattr(importlib.import_module(module), name)), place
    for pattern in points["references"]:
        re.compile(pattern)


def test_no_module_of_the_core_names_one_of_a_feature_but_the_table():
    named = re.compile(rf"treesnap\.({'|'.join(FEATURES)})\b")
    found = {
        str(path.relative_to(PACKAGE / "core"))
        for path in (PACKAGE / "core").rglob("*.py")
        if named.search(path.read_text(encoding="utf-8"))
    }

    assert found == {"features.py"}


@pytest.mark.parametrize("without", ["plans"], indirect=True)
class TestWithoutPlans:
    """A plan of two steps was rolled back to before the second one."""

    @pytest.fixture
    def handle(self, tmp_path):
        root = tmp_path / "root"
        root.mkdir()
        handle = treesnap.open(root, tmp_path / "store")
        steps = [Step(name=name, run=f"echo {name} > file") for name in ("one", "two")]
        planner = Planner(handle)
        plan = planner.run("work", steps, Milestones(before_each_step=True, keep=10))
        planner.rollback(plan.id, "step:1")
        assert (root / "file").read_text() == "one\n"
        return handle

    def test_undo_of_its_roll_back_is_refused_and_changes_nothing(self, without, handle, tmp_path):
        def state() -> dict[str, bytes]:
            (plan,) = (tmp_path / "store").glob("roots/*/plan-*[0-9A-Z]")
            files = [*(tmp_path / "root").iterdir(), plan]
            return {str(path): path.read_bytes() for path in files}

        before, snapshots = state(), handle.list()

        shown = snap(without[1], handle, "undo")

        assert shown.returncode == 3, shown.stderr
        assert "installed without its part" in shown.stderr
        assert (state(), handle.list()) == (before, snapshots)

        assert handle.undo().plan_id is not None
        assert (tmp_path / "root" / "file").read_text() == "two\n"
        assert snap(without[1], handle, "redo").returncode == 3
        assert snap(without[1], handle, "restore", snapshots[-1].id).returncode == 0
        assert snap(without[1], handle, "undo").returncode == 0  # of that restore: no plan goes

    def test_a_policy_keeps_its_checkpoints(self, without, handle, tmp_path):
        plan = Planner(handle).show("latest")
        kept = {checkpoint.snapshot_id for checkpoint in plan.checkpoints}
        for word in ("last", "hourly", "daily", "weekly", "monthly", "yearly"):
            handle.config(f"keep.{word}", "1" if word == "last" else "0")
        for number in range(3):
            (tmp_path / "root" / "file").write_text(str(number))
            handle.create(kind=SnapshotKind.AUTOMATIC)

        shown = snap(without[1], handle, "prune")

        assert shown.returncode == 0, shown.stderr
        assert kept <= {snapshot.id for snapshot in handle.list()}


def snap(place: Path, handle: treesnap.Handle, *words: str) -> subprocess.CompletedProcess[str]:
    places = ["-C", handle.root, "--store", handle.store_path]
    return python(place, "-m", "treesnap", *places, *words)


@pytest.mark.slow
def test_the_quick_tests_of_the_core_pass(without):
    _, place = without
    words = ["-q", "-n", "0", "-m", "quick", "-p", "no:cacheprovider", "tests/core", "tests/cli"]

    result = python(place, "-m", "pytest", *words, cwd=PROJECT)

    assert result.returncode == 0, result.stdout[-3000:]
