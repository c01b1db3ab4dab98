"""What a first snapshot costs when one, two, three and four processes capture it.

    python benchmarks/processes.py [--files 40000] [--size 10000] [--rounds 5]
                                   [--directory DIR] [--json FILE]

Makes a tree of files of text, a hundred to a directory, and takes its first snapshot over and
over, into a new store each time, with each number of processes in turn. Prints for each the
smallest processor time, of all processes together, and the smallest wall time; the ratio of
each to that of one process; and what the store takes. With fewer cores than processes, or on a
busy machine, the wall time says little.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from treesnap.core.handle import Handle
from treesnap.core.ops import capture
from treesnap.core.ops.context import context_at

FILES_PER_DIRECTORY = 100
PROCESSES = (1, 2, 3, 4)
WORDS = 4096


class Took(NamedTuple):
    """The time of a first snapshot."""

    cpu_s: float
    """Of all its processes and threads."""
    wall_s: float
    store_bytes: int


def make_tree(root: Path, files: int, size: int) -> None:
    """Makes files whose sizes differ, of words, which compress as source code does."""
    chance = random.Random(1)
    letters = b"etaoinshrdlucmfw"
    words = [bytes(chance.choices(letters, k=chance.randrange(2, 12))) for _ in range(WORDS)]
    for number in range(files):
        path = root / f"top-{number // 4000}" / f"directory-{number // FILES_PER_DIRECTORY}"
        path.mkdir(parents=True, exist_ok=True)
        text = b" ".join(chance.choices(words, k=chance.randrange(size // 4)))
        (path / f"file-{number}").write_bytes(text)


def first_snapshot(root: Path, store: Path, processes: int) -> Took:
    """Takes the first snapshot of a tree in a new process, as on a machine with so many cores."""
    shutil.rmtree(store, ignore_errors=True)
    begin_s = time.perf_counter()
    process = os.fork()
    if process == 0:
        os.sched_getaffinity = lambda _: set(range(processes))  # type: ignore[assignment]  # fewer
        capture.HELPERS_MIN = 1
        Handle(context_at(root=root, store_path=str(store))).create()
        os._exit(0)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise SystemExit("the snapshot failed")
    wall_s = time.perf_counter() - begin_s
    store_bytes = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    return Took(usage.ru_utime + usage.ru_stime, wall_s, store_bytes)


def measure(root: Path, store: Path, rounds: int) -> dict[int, Took]:
    """Returns the smallest times for each number of processes, which take turns."""
    taken: dict[int, list[Took]] = {processes: [] for processes in PROCESSES}
    for _ in range(rounds):
        for processes in PROCESSES:
            taken[processes].append(first_snapshot(root, store, processes))
    return {
        processes: Took(*(min(column) for column in zip(*each, strict=True)))
        for processes, each in taken.items()
    }


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=40_000)
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        place = Path(directory)
        make_tree(place / "root", options.files, options.size)
        found = measure(place / "root", place / "store", options.rounds)
    alone = found[1]
    print(f"{'processes':>9} {'CPU s':>8} {'ratio':>7} {'wall s':>8} {'ratio':>7} {'store MB':>9}")
    rows: list[dict[str, Any]] = []
    for processes, took in found.items():
        cpu, wall = took.cpu_s / alone.cpu_s, took.wall_s / alone.wall_s
        print(
            f"{processes:>9} {took.cpu_s:>8.2f} {cpu:>7.3f} {took.wall_s:>8.2f} {wall:>7.2f}"
            f" {took.store_bytes / 1e6:>9.1f}"
        )
        rows.append({"processes": processes, **took._asdict()})
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
