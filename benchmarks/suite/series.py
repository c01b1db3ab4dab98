"""How cost grows: with the number of changes, and with the number of checkpoints."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.suite import floors, inside, peers, process, promises, trees
from benchmarks.suite.edits import ChangedFiles
from benchmarks.suite.results import Case, Results
from benchmarks.suite.works import Clock, Comparison, Contender

CHANGES = (1, 100, 1_000, 10_000)
"""Numbers of changed files beside the ten that all works change."""

TOOLS = ("treesnap", "git")


def measure_changes(
    tree: str,
    root: Path,
    contenders: Sequence[Contender],
    results: Results,
    clock: Clock,
    *,
    rounds: int,
) -> None:
    """Captures more and more changes, and rolls them back; the stores hold the tree already."""
    chosen = [contender for contender in contenders if contender.tool.name in TOOLS]
    for count in CHANGES:
        if count * 4 <= results.trees[tree]["files"]:
            edit = ChangedFiles(root, count)
            works = (peers.SAME, peers.CHANGED, peers.BACK)
            Comparison(tree, root, edit, chosen, results, clock, works).run(rounds)


def measure_checkpoints(
    tree: str,
    root: Path,
    contenders: Sequence[Contender],
    results: Results,
    clock: Clock,
    *,
    count: int,
) -> None:
    """Makes many checkpoints with one small change each, in stores of their own.

    treesnap as a library, which is how a program that makes many uses it; git as processes,
    which is all that it offers.
    """
    every = max(1, count // 100)
    for contender in contenders:
        if contender.tool.name not in TOOLS:
            continue
        if clock.is_over():
            results.leave_out(f"{count:,} checkpoints, {contender.tool.name}: no time was left.")
            continue
        print(f"{tree}: {count} checkpoints, {contender.tool.name}", file=sys.stderr)
        contender.begin_anew(root)
        points = _points(root, contender, count, every)
        results.checkpoints[contender.tool.name] = points
        part = max(1, len(points) // 10)
        for work, chosen in ((promises.EARLY, points[:part]), (promises.LATE, points[-part:])):
            value = statistics.median(point["seconds"] for point in chosen)
            results.add(Case(tree, work, contender.tool.name), value)


def _points(root: Path, contender: Contender, count: int, every: int) -> list[dict[str, float]]:
    if contender.tool.name == "treesnap":
        arguments = (root, contender.store, str(count), str(every))
        points = floors.inside(contender.environment, "checkpoints", *arguments)
        assert isinstance(points, list)
        return points
    contender.run(contender.tool.first, root)
    return inside.checkpoint_points(
        str(root),
        lambda: _quietly(contender, root),
        lambda: trees.measure(contender.store),
        count,
        every,
    )


def _quietly(contender: Contender, root: Path) -> None:
    """Captures once more, without syncing everything first: there are too many for that."""
    assert contender.tool.again
    contender.captures += 1
    line = contender.tool.again.format(store=contender.store, now=contender.captures)
    environment: Mapping[str, str] = contender.environment
    done = subprocess.run(
        ["bash", "-c", line], cwd=root, env=environment, capture_output=True, check=False
    )
    if done.returncode:
        raise process.CommandFailed(f"exit code {done.returncode}")
