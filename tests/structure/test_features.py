"""The core and its command line do without each feature: its folder is deleted, and they work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import treesnap
from treesnap.core.features import FEATURES

PACKAGE = Path(treesnap.__file__).parent
USED_BY = {"plans": ["compat"]}
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
    shutil.copytree(PACKAGE, place / "treesnap", ignore=shutil.ignore_patterns("__pycache__"))
    for name in [request.param, *USED_BY.get(request.param, [])]:
        folder = place / "treesnap" / name
        if folder.is_dir():
            shutil.rmtree(folder)
        else:
            folder.with_suffix(".py").unlink()
    yield request.param, place
    shutil.rmtree(place)


def python(place: Path, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *words],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


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
