"""The layers of ARCHITECTURE.md hold, and every library has one home."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "src" / "treesnap"
CONFIGURATION = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
NOT_LAYERED = {"__init__", "__main__", "testing"}


def test_imports_keep_the_contracts(capsys, monkeypatch):
    monkeypatch.chdir(PROJECT)

    status = lint_imports(no_cache=True, no_logo=True)

    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_no_imports_go_round_in_circles():
    """At module level, inside functions and for types: a reader who reads on never comes back."""
    imports = {name: set(imported_by(name)) for name in MODULES}
    left = set(MODULES)

    while leaves := {name for name in left if not imports[name] & left}:
        left -= leaves

    assert left == set()


def test_every_module_has_its_layer():
    contract = CONFIGURATION["tool"]["importlinter"]["contracts"][0]
    placed = {name.strip() for layer in contract["layers"] for name in layer.split("|")}

    present = {path.stem for path in PACKAGE.iterdir() if is_module(path)} - NOT_LAYERED

    assert placed == present


IMPORTED_AS = {"backports.zstd": "backports", "python-ulid": "ulid", "pyyaml": "yaml"}
"""Modules that are not called as their distributions are."""


def test_every_dependency_has_its_home():
    dependencies = CONFIGURATION["project"]["dependencies"]
    contracts = CONFIGURATION["tool"]["importlinter"]["contracts"]
    housed = {name for contract in contracts for name in contract.get("protected_modules", ())}

    names = {dependency.partition(">=")[0] for dependency in dependencies}
    needed = {IMPORTED_AS.get(name, name) for name in names}

    assert needed - housed == set()


def imported_by(name: str) -> Iterator[str]:
    """Yields the modules of ours that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            found = [f"{module}.{alias.name}" for alias in node.names]
            found = [path if path in MODULES else module for path in found]
        else:
            continue
        yield from (path for path in found if path in MODULES and path != name)


def is_module(path: Path) -> bool:
    """Returns whether a path is a module or a package of ours."""
    return path.suffix == ".py" or (path / "__init__.py").is_file()
