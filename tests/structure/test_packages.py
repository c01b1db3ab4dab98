"""What other package managers are told is what pyproject.toml says."""

import re
import tomllib
from pathlib import Path

import yaml

import treesnap

PROJECT = Path(__file__).parents[2]
FORMULA = (PROJECT / "packaging/homebrew/treesnap.rb").read_text()
RECIPE = (PROJECT / "packaging/conda/recipe.yaml").read_text()
SETTINGS = tomllib.loads((PROJECT / "pyproject.toml").read_text())
OLDER = "; python_version < '3.14'"
OTHER_NAMES = {"msgpack-python": "msgpack"}
"""Packages of conda that are called otherwise."""


def split(requirement):
    """Returns the name and the bound of a requirement; for which Python it is does not matter."""
    name, bound = re.fullmatch(r"([\w.-]+)\s*([^;\s]*)(?:;.*)?", requirement).groups()
    return OTHER_NAMES.get(name, name), bound


def required(requirements, *others):
    return dict(map(split, [*requirements, *others]))


def test_the_recipe_of_conda_needs_what_the_project_needs():
    recipe = yaml.safe_load(RECIPE)
    project = SETTINGS["project"]
    python = f"python {project['requires-python']}"
    needs = recipe["requirements"]

    assert required(needs["run"]) == required(project["dependencies"], python)
    assert required(needs["host"]) == required(SETTINGS["build-system"]["requires"], python, "pip")


def test_the_recipe_of_conda_has_the_commands_of_the_project():
    commands = yaml.safe_load(RECIPE)["build"]["python"]["entry_points"]

    assert dict(line.split(" = ") for line in commands) == SETTINGS["project"]["scripts"]


def test_the_formula_of_homebrew_names_what_the_project_needs():
    (named,) = re.findall(r"# resources: (.+)", FORMULA)

    needed = [name for name in SETTINGS["project"]["dependencies"] if OLDER not in name]
    assert "python@3.14" in FORMULA
    assert named.split() == sorted(required(needed))


def test_all_have_the_version_of_the_library():
    (formula,) = re.findall(r"treesnap-(.+)\.tar\.gz", FORMULA)
    recipe = yaml.safe_load(RECIPE)

    assert formula == treesnap.__version__
    assert recipe["package"]["version"] == treesnap.__version__
    assert recipe["source"]["url"].endswith(f"/treesnap-{treesnap.__version__}.tar.gz")


def test_the_package_of_debian_leaves_the_name_snap_to_snapd():
    rules = (PROJECT / "packaging/debian/rules").read_text()

    assert "usr/bin/treesnap" in rules
    assert "usr/bin/snap" not in rules
