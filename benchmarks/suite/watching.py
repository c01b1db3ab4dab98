"""What `snap watch` saves: whole commands beside a running watcher, and the library's own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.suite import floors, peers, process, serving
from benchmarks.suite.edits import ChangedFiles, Edit
from benchmarks.suite.results import CPU, MEMORY, Case, Results
from benchmarks.suite.works import Clock

WATCH = "treesnap, watch"
LIBRARY = "library"
LIBRARY_WATCH = "library, watch"
IN_PROCESS = "create in one process, 1 file changed"
MANY = 1_000
"""As many files are changed as make the work of a roll back one of files."""


def is_there(environment: Mapping[str, str]) -> bool:
    """Returns whether this treesnap has a watcher."""
    return process.works([*peers.snap_command().split(), "watch", "--help"], environment)


def measure(
    tree: str,
    root: Path,
    store: Path,
    environment: Mapping[str, str],
    results: Results,
    clock: Clock,
    *,
    rounds: int,
) -> None:
    """Measures commands beside a watcher; the store must hold a snapshot of the root.

    Raises CommandFailed.
    """
    if clock.is_over():
        results.leave_out(f"{tree}: snap watch: no time was left.")
        return
    snap = _snap(root, store)
    counts = [1, 10, *([MANY] if results.trees[tree]["files"] >= 4 * MANY else [])]
    edits: list[Edit] = [ChangedFiles(root, count) for count in counts]
    process.timed(f"{snap} watch --detach", root, environment)
    try:
        for _ in range(2):  # the first may still walk, and the second tells what it left
            process.timed(f"{snap} create", root, environment)
        for number in range(rounds):
            print(f"{tree}: round {number + 1} of {rounds} with a watcher", file=sys.stderr)
            _round(tree, root, store, edits, number, environment, results)
        for edit in edits:
            edit.take_back()
        process.timed(f"{snap} create", root, environment)
        if serving.is_there(environment):
            case = Case(tree, peers.STATUS, serving.SERVER)
            words = ("status",)
            serving.measure(case, words, root, store, environment, results, rounds=5 * rounds)
    finally:
        for edit in edits:
            edit.take_back()
        process.timed(f"{snap} watch --stop", root, environment)


def _snap(root: Path, store: Path) -> str:
    return f"{peers.snap_command()} -q -C {root} --store {store}"


def _round(
    tree: str,
    root: Path,
    store: Path,
    edits: list[Edit],
    number: int,
    environment: Mapping[str, str],
    results: Results,
) -> None:
    snap = _snap(root, store)
    click = f"{sys.executable} -c 'import click'"
    outcome = process.timed(click, root, environment)
    note(results, Case("", floors.CLICK, floors.FLOOR), outcome)
    process.timed(f"{snap} create", root, environment)  # reads what the round before restored
    outcome = process.timed(f"{snap} create", root, environment)
    note(results, Case(tree, peers.SAME, WATCH), outcome)
    outcome = process.timed(f"{snap} status", root, environment)
    note(results, Case(tree, peers.STATUS, WATCH), outcome)
    for edit in edits:
        edit.apply(number)
        outcome = process.timed(f"{snap} create", root, environment)
        note(results, Case(tree, peers.CHANGED.format(edit=edit.name), WATCH), outcome)
        edit.apply(number + 1_000)
        outcome = process.timed(f"{snap} restore latest~1", root, environment)
        process.wait_for_background(store)
        note(results, Case(tree, peers.BACK.format(edit=edit.name), WATCH), outcome)
        if not edit.is_undone():
            results.leave_out(f"{tree}: roll back, {WATCH}: the content was not what it was.")
        process.timed(f"{snap} create", root, environment)


def note(results: Results, case: Case, outcome: process.Outcome) -> None:
    """Notes the time of a command, its processor time and its memory."""
    results.add(case, outcome.seconds)
    results.add(case._replace(quantity=CPU), outcome.cpu_seconds)
    results.add(case._replace(quantity=MEMORY), outcome.memory_bytes)


def measure_library(
    tree: str,
    root: Path,
    store: Path,
    environment: Mapping[str, str],
    results: Results,
    *,
    rounds: int,
    tools: Sequence[str],
) -> None:
    """Measures snapshots of one changed file in a process that stays. Raises CommandFailed."""
    for tool in tools:
        kind = "watch" if tool == LIBRARY_WATCH else "walk"
        taken = floors.inside(environment, "one_changed", root, store, str(rounds), kind)
        assert isinstance(taken, list)
        for seconds in taken:
            results.add(Case(tree, IN_PROCESS, tool), seconds)
