"""Ten working copies of 78,000 files, and other ways to make them: docs/benchmarks/forks.md.

    python -m benchmarks.forks [--files 78000] [--forks 10] [--rounds 1] [--directory DIR]
        [--file-systems btrfs xfs ext4] [--json FILE]

Each file system is made in an image below DIR, and mounted; so it needs root. The tree, a store
with a snapshot of it, and a git repository of it are made once. Each tool gets a copy of that
image of its own, mounted anew. Times are from the start of the first command to the end of a sync
of the file system: `snap fork` syncs itself, and the others would have the advantage that their
copies are not durable yet. Bytes are what the file system has less of after that. In each round
the tools run in turn. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.suite.machine import commit, system_name
from benchmarks.suite.trees import FILES_IN_DIRECTORY, measure

SNAP = str(Path(sys.executable).with_name("snap"))
MEDIAN_SIZE, SIGMA, SIZE_MAX = 2200, 1.2, 1 << 20
"""Of the sizes of files, which are distributed as those of a source tree: few are large."""
IMAGE_SIZE = 12 << 30
MKFS = {
    "btrfs": ["mkfs.btrfs", "-q"],
    "xfs": ["mkfs.xfs", "-q", "-m", "reflink=1"],
    "ext4": ["mkfs.ext4", "-q", "-N", "1200000"],
}
CAN_SHARE = {"btrfs", "xfs"}
FACTOR_MAX = 1.2
"""The promise, beside the fastest other tool whose copies are independent."""


class Way(NamedTuple):
    """A way to make working copies."""

    title: str
    is_independent: bool
    """Whether a change in a copy, or in the original, shows nowhere else."""
    make: Callable[[Path, Sequence[Path]], None]


def _run(*words: object, cwd: Path | None = None) -> None:
    subprocess.run([str(word) for word in words], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def _fork(place: Path, copies: Sequence[Path]) -> None:
    _run(SNAP, "-q", "-C", place / "root", "--store", place / "store", "fork", "latest", *copies)


def _copy(place: Path, copies: Sequence[Path]) -> None:
    for copy in copies:
        _run("cp", "-a", "--reflink=auto", place / "root", copy)


def _worktree(place: Path, copies: Sequence[Path]) -> None:
    for copy in copies:
        _run("git", "--git-dir", place / "git", "worktree", "add", "-q", "--detach", copy)


def _link(place: Path, copies: Sequence[Path]) -> None:
    for copy in copies:
        _run("rsync", "-a", f"--link-dest={place / 'root'}", f"{place / 'root'}/", f"{copy}/")


def _overlay(place: Path, copies: Sequence[Path]) -> None:
    for copy in copies:
        upper, work = copy.with_suffix(".upper"), copy.with_suffix(".work")
        for directory in (copy, upper, work):
            directory.mkdir()
        layers = f"lowerdir={place / 'root'},upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "-o", layers, "overlay", copy)


WAYS = {
    "fork": Way("`snap fork`", is_independent=True, make=_fork),
    "cp": Way("`cp -a --reflink=auto`", is_independent=True, make=_copy),
    "git": Way("`git worktree add`", is_independent=True, make=_worktree),
    "rsync": Way("`rsync --link-dest`", is_independent=False, make=_link),
    "overlay": Way("overlayfs", is_independent=False, make=_overlay),
}


def make_tree(root: Path, count: int) -> None:
    """Makes files of sizes as in a source tree, a hundred in each directory, none like another."""
    chance = random.Random(1)  # the same tree each time
    for begin in range(0, count, FILES_IN_DIRECTORY):
        number = begin // FILES_IN_DIRECTORY
        directory = root / f"{number // 100:04}" / f"{number % 100:02}"
        directory.mkdir(parents=True)
        for position in range(begin, min(count, begin + FILES_IN_DIRECTORY)):
            size = min(SIZE_MAX, int(chance.lognormvariate(0, SIGMA) * MEDIAN_SIZE))
            half = chance.randbytes(size // 4).hex().encode()
            (directory / f"file-{position:07}.c").write_bytes(half + half)


@contextmanager
def _mounted(image: Path, place: Path) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    _run("mount", "-o", "loop", image, place)
    try:
        yield
    finally:
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            point = line.split()[1]
            if point == str(place) or point.startswith(f"{place}/"):
                _run("umount", point)


def prepare(kind: str, image: Path, place: Path, count: int) -> dict[str, int]:
    """Makes an image with a tree, a store and a repository; returns what the tree holds."""
    with image.open("wb") as file:
        file.truncate(IMAGE_SIZE)
    _run(*MKFS[kind], image)
    with _mounted(image, place):
        (place / "root").mkdir()
        make_tree(place / "root", count)
        time.sleep(0.1)  # so that no file is so young that the stat cache does not trust it
        _run(SNAP, "-q", "-C", place / "root", "--store", place / "store", "create")
        git = ["git", "--git-dir", place / "git", "--work-tree", place / "root"]
        _run(*git, "init", "-q", cwd=place)
        _run(*git, "config", "gc.auto", "0", cwd=place)  # no process keeps the mount busy
        _run(*git, "add", "-A", cwd=place / "root")
        person = ["-c", "user.name=Anna", "-c", "user.email=anna@example.org"]
        _run(*git, *person, "commit", "-q", "-m", "first", cwd=place / "root")
        _run("git", "--git-dir", place / "git", "config", "--unset", "core.worktree")
        return measure(place / "root")


def _used_bytes(place: Path) -> int:
    numbers = os.statvfs(place)
    return (numbers.f_blocks - numbers.f_bfree) * numbers.f_frsize


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure_way(way: Way, image: Path, place: Path, forks: int) -> dict[str, float]:
    """Makes the copies on a file system of their own; returns seconds and bytes."""
    own = image.with_suffix(".own")
    _run("cp", "--sparse=always", image, own)
    try:
        with _mounted(own, place):
            # What the page cache holds of the tree is the same for each tool: everything.
            _run("sh", "-c", f"tar -C {place} -cf - root | cat > /dev/null")
            before = _used_bytes(place)
            cpu_s, begin_s = _cpu_s(), time.perf_counter()
            way.make(place, [place / f"copy-{number}" for number in range(forks)])
            made_s = time.perf_counter() - begin_s
            _run("sync", "-f", place)
            return {
                "seconds": time.perf_counter() - begin_s,
                "before_sync_seconds": made_s,
                "cpu_seconds": _cpu_s() - cpu_s,
                "bytes": _used_bytes(place) - before,
            }
    finally:
        own.unlink()


def first_snapshot(image: Path, place: Path) -> dict[str, Any]:
    """Returns what the first snapshot in a fork costs."""
    own = image.with_suffix(".own")
    _run("cp", "--sparse=always", image, own)
    try:
        with _mounted(own, place):
            _fork(place, [place / "fork"])
            begin_s = time.perf_counter()
            words = [SNAP, "-C", place / "fork", "--store", place / "store", "create", "--json"]
            ended = subprocess.run(words, check=True, capture_output=True)
            stats = json.loads(ended.stdout)["stats"]
            return {
                "seconds": time.perf_counter() - begin_s,
                "files_read": stats["files_read"],
            }
    finally:
        own.unlink()


def run(directory: Path, kinds: Sequence[str], count: int, forks: int, rounds: int) -> Any:
    """Returns all numbers."""
    results: dict[str, Any] = {}
    tree: dict[str, int] = {}
    place, image = directory / "mounted", directory / "prepared.image"
    for kind in kinds:
        tree = prepare(kind, image, place, count)
        rows: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
        for _ in range(rounds):
            for name, way in WAYS.items():
                rows[name].append(measure_way(way, image, place, forks))
                print(kind, name, rows[name][-1], file=sys.stderr)
        results[kind] = {
            "ways": {
                name: {key: statistics.median(row[key] for row in found) for key in found[0]}
                for name, found in rows.items()
            },
            "first_snapshot": first_snapshot(image, place),
        }
        image.unlink()
    return {
        "machine": {
            "cores": os.cpu_count(),
            "system": system_name(),
            "kernel": os.uname().release,
            "load": os.getloadavg()[0],
            "commit": commit(),
        },
        "tree": tree,
        "forks": forks,
        "rounds": rounds,
        "results": results,
    }


def tables(numbers: Mapping[str, Any]) -> str:
    """Returns the numbers as Markdown: a table for each file system, and the verdicts."""
    lines: list[str] = []
    for kind, result in numbers["results"].items():
        ways = result["ways"]
        own_s = ways["fork"]["seconds"]
        lines += [
            f"## {kind}",
            "",
            "| | independent | s | before the sync, s | processor, s | MB on disk |",
            "| --- | --- | ---: | ---: | ---: | ---: |",
        ]
        lines += [
            f"| {way.title} | {'yes' if way.is_independent else '**no**'} "
            f"| {ways[name]['seconds']:.1f} | {ways[name]['before_sync_seconds']:.1f} "
            f"| {ways[name]['cpu_seconds']:.1f} | {ways[name]['bytes'] / 1e6:,.0f} |"
            for name, way in WAYS.items()
        ]
        others = {
            name: ways[name]["seconds"]
            for name, way in WAYS.items()
            if way.is_independent and name != "fork"
        }
        fastest = min(others, key=others.__getitem__)
        factor = own_s / others[fastest]
        verdict = f"`snap fork` takes {factor:.2f} × the time of {WAYS[fastest].title}"
        if kind in CAN_SHARE:
            is_met = "met" if factor <= FACTOR_MAX else "**missed**"
            verdict += f"; promised are {FACTOR_MAX} ×: {is_met}"
        first = result["first_snapshot"]
        lines += [
            "",
            f"{verdict}.",
            "",
            f"The first snapshot in a fork takes {first['seconds']:.2f} s and reads "
            + ("no file." if not first["files_read"] else f"{first['files_read']:,} files."),
            "",
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs everything and prints Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=78_000)
    parser.add_argument("--forks", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm/treesnap-forks"))
    parser.add_argument("--file-systems", nargs="+", default=list(MKFS), choices=list(MKFS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    given.directory.mkdir(parents=True)
    try:
        numbers = run(given.directory, given.file_systems, given.files, given.forks, given.rounds)
    finally:
        shutil.rmtree(given.directory)
    if given.json is not None:
        given.json.write_text(json.dumps(numbers, indent=1) + "\n")
    print(tables(numbers))


if __name__ == "__main__":
    main()
