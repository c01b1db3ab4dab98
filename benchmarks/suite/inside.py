"""What is measured inside a process of its own, so that it shares no memory with the rest.

    python -m benchmarks.suite.inside WORK ARGUMENTS...

Prints one JSON value: seconds, or a list of seconds or points.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

BATCH_BYTES = 4 << 20


def walk(root: str) -> float:
    """Returns the seconds that looking at every file once takes with ``scandir`` and ``stat``."""
    begin_s = time.perf_counter()
    pending = [root]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
    return time.perf_counter() - begin_s


def read_hash_compress(root: str) -> float:
    """Returns the seconds of reading, hashing and compressing everything, in a thread per core.

    Nothing is written: no tool that hashes and compresses from Python can be faster.
    """
    import zstandard
    from blake3 import blake3

    def digest(batch: list[str]) -> None:
        contents = []
        for path in batch:
            with open(path, "rb") as file:
                contents.append(file.read())
            blake3(contents[-1]).digest()
        compressor = zstandard.ZstdCompressor(level=1)
        compressor.multi_compress_to_buffer([content for content in contents if content])

    begin_s = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(digest, _batches(root)))
    return time.perf_counter() - begin_s


def _batches(root: str) -> list[list[str]]:
    """Returns the regular files of a tree in runs of about ``BATCH_BYTES``."""
    batches: list[list[str]] = [[]]
    batch_bytes = 0
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.islink(path):
                continue
            if batch_bytes > BATCH_BYTES:
                batches.append([])
                batch_bytes = 0
            batches[-1].append(path)
            batch_bytes += os.stat(path).st_size
    return batches


def checkpoints(root: str, store: str, count: str, every: str) -> list[dict[str, float]]:
    """Makes so many snapshots with one small change each; returns a point for each few of them."""
    import treesnap
    from benchmarks.suite.trees import measure

    handle = treesnap.open(root, store)
    handle.create()
    return checkpoint_points(
        root, handle.create, lambda: measure(Path(store)), int(count), int(every)
    )


def checkpoint_points(
    root: str,
    capture: Callable[[], object],
    measured: Callable[[], dict[str, int]],
    count: int,
    every: int,
) -> list[dict[str, float]]:
    """Changes one file, captures, and so on; returns the median of each few, and the store."""
    import statistics

    from benchmarks.suite.edits import ChangedFiles

    edit = ChangedFiles(Path(root), 100)
    points: list[dict[str, float]] = []
    taken: list[float] = []
    for number in range(1, count + 1):
        edit.apply_one(number)
        begin_s = time.perf_counter()
        capture()
        taken.append(time.perf_counter() - begin_s)
        if number % every == 0:
            store = measured()
            point = {"number": number, "seconds": statistics.median(taken)}
            sizes = {"store_bytes": store["size_bytes"], "store_files": store["files"]}
            points.append({**point, **sizes})
            taken.clear()
    edit.take_back()
    return points


def one_changed(root: str, store: str, count: str, watch: str) -> list[float]:
    """Returns the seconds of each of some snapshots with one file changed, in one process."""
    from contextlib import nullcontext

    import treesnap
    from benchmarks.suite.edits import ChangedFiles

    handle: Any = treesnap.open(root, store)
    edit = ChangedFiles(Path(root), 1)
    taken = []
    with handle.watch() if watch == "watch" else nullcontext(handle) as used:
        for _ in range(2):  # the first looks at everything, the second tells what it left
            used.create()
        for number in range(int(count)):
            edit.apply(number)
            begin_s = time.perf_counter()
            used.create()
            taken.append(time.perf_counter() - begin_s)
        edit.take_back()
    return taken


WORKS: dict[str, Callable[..., object]] = {
    "walk": walk,
    "read_hash_compress": read_hash_compress,
    "checkpoints": checkpoints,
    "one_changed": one_changed,
}


if __name__ == "__main__":
    print(json.dumps(WORKS[sys.argv[1]](*sys.argv[2:])))
