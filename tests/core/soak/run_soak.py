"""Lets many processes work on one store, kills and stops some, and looks at what is left.

``tox -e soak`` runs it, as ``python -m soak.run_soak`` with the paths that it needs.
Ends with 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from crash.scene import workspace
from soak.checks import Checker
from soak.place import Place
from soak.soak import Soak, timed

CAST = {
    "threads": 1,
    "deleter": 2,
    "pruner": 3,
    "collector": 1,
    "reader": 2,
    "caller": 1,
    "repairer": 1,
    "mover": 1,
    "settler": 1,
    "newcomer": 1,
    "damager": 1,
    "holder": 2,
    "planner": 1,
    "forgetter": 1,
}
"""The actors beside the writers."""


def soak(
    directory: Path, seed: int, writers: int, *, seconds: float | None = None, rounds: int = 0
) -> tuple[list[str], Counter[str]]:
    """Soaks for so many seconds, or so many rounds of the writers; returns problems and counts."""
    random = Random(seed)
    place = Place(directory, root_count=max(1, writers - 2))
    place.prepare(seed)
    run = Soak(place, random, {"writer": writers, **CAST})
    counts = place.counts()
    begun = time.monotonic()

    def goes_on() -> bool:
        if seconds is not None:
            return time.monotonic() < begun + seconds
        lines = counts.lines()
        return sum(is_writers(line) for line in lines) < rounds * writers

    def is_writers(line: dict[str, str]) -> bool:
        return line["what"] == "round" and line["who"].startswith("writer")

    with timed(run.done, "soaked"):
        run.run(goes_on)
    with timed(run.done, "checked"):
        checker = Checker(place)
        checker.run()
    shutil.rmtree(place.far, ignore_errors=True)
    for line in counts.lines():
        run.done[f"{line['who'].partition('-')[0]}: {line['what']}"] += 1
    run.done.update({f"at the end: {name}": number for name, number in checker.sizes.items()})
    return place.problems() + checker.problems, run.done


def main() -> int:
    """Runs what the options say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--rounds", type=int, default=0, help="of each writer, instead of seconds")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where to keep what was wrong")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with workspace("soak") as directory:
        seconds = None if options.rounds else options.seconds
        problems, counts = soak(
            directory, options.seed, options.writers, seconds=seconds, rounds=options.rounds
        )
        for what, count in sorted(counts.items()):
            print(f"{count:10,}  {what}")
        for problem in problems:
            print("PROBLEM", problem)
        if problems and options.keep is not None:
            subprocess.run(["cp", "-a", "--", directory, options.keep], check=True)
    print(f"{len(problems)} problems, seed {options.seed}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
