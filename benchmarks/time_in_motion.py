"""How long a tree is in motion while some of its files are restored.

    python benchmarks/time_in_motion.py DIRECTORY [--changed 10] [--rounds 7]

Copies the directory, takes a snapshot, changes files spread over the tree and
restores them, with every sync. Prints for each number the median over the rounds:
from the first to the last call that changes something which a reader of the tree
can see, from there to the end of the sync, and the whole restore.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import MUTATING, Call, Kind, WrappedFileSystem


class Watch(WrappedFileSystem):
    """Notes when the tree was changed, and when that was made durable."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = os.fspath(root)
        self.first_s: float | None = None
        self.last_s = 0.0
        self.durable_s = 0.0

    def around(self, call: Call) -> object:
        """Makes the call and looks at the clock."""
        before_s = time.perf_counter()
        result = call.proceed()
        if call.kind in MUTATING and any(self._is_seen(path) for path in call.paths):
            self.first_s = before_s if self.first_s is None else self.first_s
            self.last_s = time.perf_counter()
        elif call.kind == Kind.SYNC and self.first_s is not None and not self.durable_s:
            self.durable_s = time.perf_counter()
        return result

    def _is_seen(self, path: str) -> bool:
        is_inside = path.startswith(self._root + "/")
        return is_inside and not path.startswith(self._root + "/.treesnap-")


def spread(root: Path, count: int) -> list[Path]:
    """Returns files at equal distances in the order of a walk."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return files[:: max(1, len(files) // count)][:count]


def measure(root: Path, store: Path, changed: list[Path], number: int) -> tuple[float, ...]:
    """Returns the seconds in motion, until durable, and of the whole restore."""
    for path in changed:
        with path.open("ab") as file:
            file.write(b"%d" % number)
    os.sync()
    watch = Watch(root)
    begin_s = time.perf_counter()
    Handle(context_at(root=root, store_path=str(store), fs=watch)).restore("first")
    end_s = time.perf_counter()
    assert watch.first_s is not None
    return watch.last_s - watch.first_s, watch.durable_s - watch.last_s, end_s - begin_s


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--changed", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="motion-"))
    try:
        root, store = place / "root", place / "store"
        subprocess.run(["cp", "-a", options.directory, root], check=True)
        Handle(context_at(root=root, store_path=str(store))).create(name="first")
        changed = spread(root, options.changed)
        rounds = [measure(root, store, changed, number) for number in range(options.rounds)]
    finally:
        shutil.rmtree(place)
    names = ("in motion", "until durable", "whole restore")
    for name, values in zip(names, zip(*rounds, strict=True), strict=True):
        median_ms = statistics.median(values) * 1000
        print(f"{name:14} {median_ms:8.1f} ms (longest {max(values) * 1000:.1f} ms)")


if __name__ == "__main__":
    main()
