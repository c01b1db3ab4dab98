"""Interrupts the installed ``snap`` at every writing system call, and at random instants.

``tox -e crash`` runs it, as ``python -m crash.run_black_box`` with the paths that it needs.
Ends with 1 when anything was lost. A case that is printed is repeated by giving it, and the
seed, as ``--only``.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from random import Random

from crash.black_box import Case, cases, instants, interrupt
from crash.scene import OPERATIONS, Operation, Scene, populate, workspace
from crash.system_calls import Point, has_strace


class Report:
    """What came of the cases so far."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], Counter[str]] = {}
        self.losses: list[tuple[Case, list[str]]] = []

    def add(self, case: Case, outcome: str, problems: list[str]) -> None:
        """Counts a case, and prints it when something was lost."""
        self.outcomes.setdefault((case.operation.name, case.how), Counter())[outcome] += 1
        if problems:
            self.losses.append((case, problems))
            print(f"LOSS {case}", *problems, sep="\n    ", flush=True)

    def print_operation(self, operation: Operation) -> None:
        """Prints the counts of an operation."""
        for (name, how), counts in self.outcomes.items():
            if name == operation.name:
                words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
                print(f"{name:14}{how:9}{counts.total():6} cases: {words}", flush=True)


class Bench:
    """Scenes with the same states, one for each case that runs at the same time."""

    def __init__(self, directory: Path, seed: int, count: int) -> None:
        self._free: SimpleQueue[Scene] = SimpleQueue()
        self._count = count
        for number in range(count):
            scene = Scene(directory / f"{number}")
            populate(scene, seed)
            self._free.put(scene)
        self.changes = len(scene.done)
        self.entries = len(scene.states["before"])

    def points(self, operation: Operation) -> list[Point]:
        """Returns the points of an operation."""
        scene = self._free.get()
        found = scene.points(operation)
        self._free.put(scene)
        return found

    def duration_s(self, operation: Operation) -> float:
        """Returns how long an operation takes."""
        scene = self._free.get()
        scene.reset(operation.start)
        begun = time.monotonic()
        scene.must(*operation.words)
        self._free.put(scene)
        return time.monotonic() - begun

    def run(self, todo: Sequence[Case], report: Report, duration_s: float) -> None:
        """Runs cases."""

        def one(case: Case) -> tuple[Case, str, list[str]]:
            scene = self._free.get()
            try:
                return case, *interrupt(scene, case, duration_s)
            finally:
                self._free.put(scene)

        with ThreadPoolExecutor(self._count) as pool:
            try:
                for outcome in pool.map(one, todo):
                    report.add(*outcome)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def run_operation(
    bench: Bench, operation: Operation, report: Report, options: argparse.Namespace
) -> None:
    """Interrupts one operation everywhere."""
    found = bench.points(operation)
    duration_s = bench.duration_s(operation)
    last = {point.call: point for point in found}
    ends = [Point(point.call, point.number + 1) for point in last.values()]
    todo = list(cases(operation, found, options.seed))
    todo += [Case(operation=operation, how="kill", point=point) for point in ends]
    random = Random(f"{options.seed} {operation.name}")
    todo = [case for case in todo if random.random() < options.share]
    todo += instants(operation, random, options.instants)
    if options.only:
        todo = [case for case in todo if str(case).startswith(options.only)]
    calls = Counter(point.call for point in found)
    print(
        f"{operation.name}: {len(found)} writing calls in {duration_s:.2f} s, "
        f"{len(todo)} cases: " + ", ".join(f"{count} {call}" for call, count in calls.items()),
        flush=True,
    )
    bench.run(todo, report, duration_s)
    report.print_operation(operation)


def main() -> int:
    """Runs what the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    parser.add_argument("--share", type=float, default=1.0, help="of the cases to run")
    parser.add_argument("--instants", type=int, default=100, help="random kills per operation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--operation", action="append", choices=OPERATIONS)
    parser.add_argument("--only", metavar="CASE", help="run cases that begin so")
    options = parser.parse_args()
    if not has_strace():
        print("SKIPPED: strace is not installed, nothing was tested", file=sys.stderr)
        return 0
    print(f"seed {options.seed}", flush=True)
    report = Report()
    begun = time.monotonic()
    with workspace("black-box") as directory:
        bench = Bench(directory, options.seed, options.jobs)
        print(f"{bench.entries} entries, {bench.changes} changes", flush=True)
        for name in options.operation or OPERATIONS:
            run_operation(bench, OPERATIONS[name], report, options)
    count = sum(counts.total() for counts in report.outcomes.values())
    print(f"{count} cases, seed {options.seed}, {time.monotonic() - begun:.0f} s")
    print(f"{len(report.losses)} losses")
    for case, _ in report.losses:
        again = f"--seed {options.seed} --instants {options.instants} --only '{case}'"
        print(f"repeat: python -m crash.run_black_box {again}")
    return 1 if report.losses or not count else 0


if __name__ == "__main__":
    sys.exit(main())
