"""What no tool can go below: walks, reading and compressing everything, the start of programs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.suite import peers, process, serving
from benchmarks.suite.results import CPU, Case, Results

FLOOR = "floor"
C_WALK = "walk, compiled"
PYTHON_WALK = "walk, Python"
EVERYTHING = "read, hash, compress"
CLICK = "python -c 'import click'"
FEW = 10
CREATE_FEW = f"snap create -q, {FEW} files"
PROJECT = Path(__file__).resolve().parents[2]


def inside(environment: Mapping[str, str], *arguments: str | Path) -> object:
    """Runs a work of ``inside`` in a process of its own. Raises CommandFailed."""
    command = [sys.executable, "-m", "benchmarks.suite.inside", *map(str, arguments)]
    searched = [str(PROJECT), *filter(None, [environment.get("PYTHONPATH")])]
    done = subprocess.run(
        command,
        env={**environment, "PYTHONPATH": ":".join(searched)},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise process.CommandFailed(f"exit code {done.returncode}")
    return json.loads(done.stdout)


def compiled_walk(place: Path) -> Path | None:
    """Returns the walk in C, compiled, or None when there is no compiler."""
    program = place / "walk"
    if not shutil.which("cc"):
        return None
    source = Path(__file__).with_name("walk.c")
    subprocess.run(["cc", "-O2", "-o", program, source], check=True)
    return program


def measure_tree(
    tree: str,
    root: Path,
    place: Path,
    environment: Mapping[str, str],
    results: Results,
    *,
    rounds: int,
    content: bool = True,
) -> None:
    """Measures the floors of a tree; without ``content`` nothing but the walks."""
    program = compiled_walk(place)
    if program is None:
        results.leave_out("The walk in C: no compiler is installed (`apt install gcc`).")
    for _ in range(rounds):
        if program is not None:
            outcome = process.timed(str(program), root, environment)
            results.add(Case(tree, C_WALK, FLOOR), outcome.seconds)
        for work, name in ((PYTHON_WALK, "walk"), (EVERYTHING, "read_hash_compress")):
            if work == PYTHON_WALK or content:
                taken_s = inside(environment, name, root)
                assert isinstance(taken_s, float)
                results.add(Case(tree, work, FLOOR), taken_s)


def measure_starts(
    root: Path, store: Path, environment: Mapping[str, str], results: Results, *, rounds: int
) -> None:
    """Measures how long small commands take, in turn; the first round only warms up.

    Raises CommandFailed.
    """
    snap = peers.snap_command()
    few, few_store = store.with_name("few-files"), store.with_name("store-of-few-files")
    few.mkdir()
    for number in range(FEW):
        (few / f"{number}").write_text(f"{number}\n", encoding="ascii")
    commands = {
        Case("", CLICK, FLOOR): f"{sys.executable} -c 'import click'",
        Case("", "python -c pass", FLOOR): f"{sys.executable} -c pass",
        Case("", "snap --version", "treesnap"): f"{snap} --version",
        Case("", "snap list", "treesnap"): f"{snap} --store {store} list",
        Case("", CREATE_FEW, "treesnap"): f"{snap} -C {few} --store {few_store} create -q",
        Case("", "git --version", "git"): "git --version",
    }
    for number in range(rounds + 1):
        for case, command in commands.items():
            outcome = process.timed(command, root, environment)
            if number:
                results.add(case, outcome.seconds)
                results.add(case._replace(quantity=CPU), outcome.cpu_seconds)
    if serving.is_there(environment):
        case = Case("", CREATE_FEW, serving.SERVER)
        words = ("create",)
        serving.measure(case, words, few, few_store, environment, results, rounds=rounds)
    shutil.rmtree(few)
    shutil.rmtree(few_store)
