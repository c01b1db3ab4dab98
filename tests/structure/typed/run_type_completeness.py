"""Fails unless a type checker knows the type of every public name of an installed package.

::

    python -m structure.typed.run_type_completeness [PACKAGE]

A checker infers nothing in a package with ``py.typed`` that it would not infer in every other
checker too, so what has no type there has none for the user. A module that needs a package which
is not installed is not judged, and named: what it takes from that has no type here.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TIMEOUT_S = 900


def report_of(package: str) -> dict[str, Any]:
    """Returns what pyright says; it finds the package with the Python that is first in PATH."""
    here = os.path.dirname(sys.executable)
    with tempfile.TemporaryDirectory() as elsewhere:  # so that it is found as users find it
        result = subprocess.run(
            [
                *(sys.executable, "-m", "basedpyright"),
                *("--verifytypes", package, "--ignoreexternal", "--outputjson"),
            ],
            env={**os.environ, "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}"},
            cwd=elsewhere,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    report: dict[str, Any] = json.loads(result.stdout)
    general = [item["message"] for item in report["generalDiagnostics"]]
    found = report["typeCompleteness"]
    if not found["symbols"]:
        raise SystemExit("\n".join(general) or f"{package} has no public names")
    return found


def absent_packages(module: str) -> list[str]:
    """Returns what a module imports outside of functions and what is not installed."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return []
    names: set[str] = set()
    blocks: list[ast.AST] = [ast.parse(Path(spec.origin).read_bytes())]
    while blocks:
        block = blocks.pop()
        if isinstance(block, ast.ImportFrom) and block.module:
            names.add(block.module.partition(".")[0])
        elif isinstance(block, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in block.names)
        elif not isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef):
            blocks.extend(ast.iter_child_nodes(block))
    return sorted(name for name in names if not is_installed(name))


def is_installed(package: str) -> bool:
    """Tells whether a package is there; a directory of that name, as of tests, is none."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None


def main() -> int:
    package = sys.argv[1] if sys.argv[1:] else "treesnap"
    found = report_of(package)
    modules = sorted((module["name"] for module in found["modules"]), key=len, reverse=True)
    untyped: dict[str, list[str]] = {}
    for symbol in found["symbols"]:
        errors = [item for item in symbol["diagnostics"] if item["severity"] == "error"]
        if not errors:
            continue
        name = symbol["name"]
        module = next((m for m in modules if name.startswith(f"{m}.")), package)
        untyped.setdefault(module, []).extend(
            f"{name}: {item['message'].splitlines()[0]}" for item in errors
        )
    absent = {module: absent_packages(module) for module in sorted(untyped)}
    for module, packages in absent.items():
        if packages:
            print(f"not judged: {module}, because {', '.join(packages)} is not installed")
    problems = [line for module in untyped if not absent[module] for line in untyped[module]]
    print(*sorted(problems), sep="\n", end="\n" if problems else "")
    score = found["completenessScore"]
    print(f"{len(found['symbols'])} names, {len(problems)} problems; pyright's score {score:.2%}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
