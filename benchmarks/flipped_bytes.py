"""What one flipped byte in a store can cost: python -m benchmarks.flipped_bytes DIR [--bytes N].

Captures DIR, flips one byte at a time, at places chosen by a seed over all files of the store, and
asks ``verify --read-data`` which paths cannot be restored then. Prints how many files are lost at
most and on average, once with nothing done, and how large the second copies are.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import treesnap
from treesnap.core.model.errors import TreesnapError


def lost_files(handle: treesnap.Handle, identity: str, all_paths: list[bytes]) -> int:
    """Returns how many files of a snapshot cannot be restored."""
    try:
        result = handle.verify(read_data=True)
    except TreesnapError:
        return len(all_paths)
    if identity not in {item.id for item in handle.list()}:
        return len(all_paths)
    gone = [path for item in result.partial for path in item.paths]
    hidden = sum(item.path_count - len(item.paths) for item in result.partial)
    within = [
        path
        for path in all_paths
        if any(not top or path == top or path.startswith(top + b"/") for top in gone)
    ]
    return len(within) + hidden


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bytes", type=int, default=100, help="how many bytes are flipped")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random = Random(options.seed)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as place:
        store = Path(place) / "store"
        handle = treesnap.open(options.directory, store)
        made = handle.create(options=treesnap.CreateOptions(force=True))
        entries = handle.ls(made.id, recursive=True)
        paths = [entry.name for entry in entries if entry.kind == 1]
        files = [path for path in sorted(store.rglob("*")) if path.is_file()]
        sizes = [path.stat().st_size for path in files]
        costs: Counter[str] = Counter()
        lost: list[int] = []
        for path in random.choices(files, weights=sizes, k=options.bytes):
            whole = path.read_bytes()
            damaged = bytearray(whole)
            damaged[random.randrange(len(whole))] ^= 0xFF
            path.write_bytes(damaged)
            count = lost_files(handle, made.id, paths)
            path.write_bytes(whole)
            lost.append(count)
            costs[path.parent.name] = max(costs[path.parent.name], count)
        total = sum(sizes)
    sys.stdout.write(
        f"{options.directory}: {len(paths):,} files, store of {total:,} bytes\n"
        f"one flipped byte: at most {max(lost):,} files lost, on average "
        f"{sum(lost) / len(lost):.1f}; by directory of the store, at most: {dict(costs)}\n"
    )


if __name__ == "__main__":
    main()
