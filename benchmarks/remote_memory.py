"""The most memory of pushing and cloning a tree of very many files.

    python -m benchmarks.remote_memory [--files 1000000] [--tree DIR] [--work DIR] [--json FILE]

Makes the tree, or takes one that is there, captures it into a new store, pushes that to a
directory that is not encrypted, and clones it into another store. Prints seconds, processor time
and the most resident memory of each command, the largest process of it. A million files take
14 GB of disk, and some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.suite import process, trees
from benchmarks.suite.floors import PROJECT
from benchmarks.suite.peers import snap_command

LIMIT_BYTES = 250 * 10**6
"""What is promised of a push and a clone of 1,000,000 files."""


def measure(tree: Path, place: Path) -> dict[str, process.Outcome]:
    """Returns what each command took."""
    environment = process.environment_of(place / "home")
    snap, remote = f"{snap_command()} -q", place / "remote"
    commands = {
        "create": f"{snap} create",
        "remote add": f"{snap} remote add disk '{remote}'",
        "push": f"{snap} push",
        "clone": f"{snap} clone '{remote}' '{place / 'again'}'",
    }
    found = {}
    for name, command in commands.items():
        store = place / ("other-store" if name == "clone" else "store")
        found[name] = process.timed(command, tree, environment | {"SNAP_STORE": str(store)})
        process.wait_for_background(store)
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--tree", type=Path, help="a tree that is there; it is only read")
    parser.add_argument("--work", type=Path, default=PROJECT / "build" / "benchmark")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    tree = options.tree
    if tree is None:
        tree = trees.prepare(trees.tree_named(f"files-{options.files}"), options.work)
    place = Path(tempfile.mkdtemp(prefix="remote-memory-", dir=options.work))
    load = os.getloadavg()[0]
    try:
        found = measure(tree.absolute(), place)
    finally:
        shutil.rmtree(place)
    for name, outcome in found.items():
        print(
            f"{name:12} {outcome.seconds:8.1f} s  {outcome.cpu_seconds:8.1f} s CPU"
            f"  {outcome.memory_bytes / 1e6:8.1f} MB"
        )
    print(f"limit {LIMIT_BYTES / 1e6:.0f} MB for push and clone; load {load:.1f} before")
    if options.json is not None:
        numbers = {name: asdict(outcome) for name, outcome in found.items()}
        options.json.write_text(json.dumps({"load_before": load, **numbers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
