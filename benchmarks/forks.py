"""Ten working copies of 78,000 files, and other ways to make them: docs/benchmarks/forks.md.

    python -m benchmarks.forks [--files 78000] [--forks 10] [--rounds 1] [--directory DIR]
        [--file-systems btrfs xfs ext4] [--json FILE] [--projects]

Each file system is made in an image below DIR, and mounted; so it needs root. Run it in `unshare
-m` where other processes make namespaces of mounts: one would keep a copy of an image mounted, and
the next copy has the same UUID. The tree, a store with a snapshot of it, and a git repository of
it are made once. Each tool gets a copy of that image of its own, mounted anew. Times are from the
start of the first command to the end of a sync of the file system: `snap fork` syncs itself, and
the others would have the advantage that their copies are not durable yet. Bytes are what the file
system has less of after that. In each round the tools run in turn. Prints Markdown.

With --projects it makes one copy of a project instead, which has what projects have beside their
commits: a change and a file that git does not know, `.env`, `.venv` and `node_modules`, which git
ignores. Then it looks which of these the copy has, and commits in it. FILE keeps its other numbers.
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


SUBJECTS = {
    "repository": "a repository",
    "worktree": "a working tree that `git worktree add` made of another one",
}
"""What a project is, by name."""
TRACKED, INSTALLED = 2_000, {".venv/lib": 4_000, "node_modules": 20_000}
"""Files of a project: those that git knows, and those of a package manager."""
BROUGHT = {
    "tracked": "files that are committed",
    "changed": "a change that is not committed",
    "untracked": "a file that git does not know",
    "env": "`.env`, which git ignores",
    "venv": "`.venv`, which git ignores",
    "node_modules": "`node_modules`, which git ignores",
}
"""What a copy may have of a project."""
_GIT = ["git", "-c", "user.name=Anna", "-c", "user.email=anna@example.org"]


def _project_fork(place: Path, copy: Path) -> None:
    words = [SNAP, "-q", "-C", place / "root", "--store", place / "store"]
    _run(*words, "create")  # what has changed since the newest snapshot is part of the copy
    _run(*words, "fork", "latest", copy)


PROJECT_WAYS: Mapping[str, tuple[str, Callable[[Path, Path], None]]] = {
    "fork": ("`snap create` and `snap fork`", _project_fork),
    "git": (
        "`git worktree add`",
        lambda place, copy: _run(
            "git", "-C", place / "root", "worktree", "add", "-q", "-b", "copy", copy
        ),
    ),
    "cp": (
        "`cp -a --reflink=auto`",
        lambda place, copy: _run("cp", "-a", "--reflink=auto", place / "root", copy),
    ),
}


def prepare_project(kind: str, subject: str, image: Path, place: Path, share: float) -> None:
    """Makes an image with a project, and a store with a snapshot of it before its last changes.

    ``share`` is how many files it has, of those of the page.
    """
    with image.open("wb") as file:
        file.truncate(IMAGE_SIZE)
    _run(*MKFS[kind], image)
    with _mounted(image, place):
        root = place / ("root" if subject == "repository" else "main")
        make_tree(root / "src", int(TRACKED * share))
        (root / ".gitignore").write_text(".env\n.venv/\nnode_modules/\n")
        _run(*_GIT, "init", "-q", "-b", "main", cwd=root)
        _run(*_GIT, "config", "gc.auto", "0", cwd=root)
        _run(*_GIT, "add", "-A", cwd=root)
        _run(*_GIT, "commit", "-q", "-m", "first", cwd=root)
        if subject == "worktree":
            _run(*_GIT, "worktree", "add", "-q", "-b", "feature", place / "root", cwd=root)
        root = place / "root"
        for name, count in INSTALLED.items():
            make_tree(root / name, int(count * share))
        (root / ".venv/bin").mkdir()
        (root / ".venv/bin/tool").write_text(f"#!/bin/sh\necho {root}\n")
        (root / ".env").write_text("TOKEN=1\n")
        time.sleep(0.1)
        _run(SNAP, "-q", "-C", root, "--store", place / "store", "create")
        (root / "src/0000/00/file-0000000.c").write_text("changed\n")
        (root / "untracked.txt").write_text("untracked\n")


def measure_project(name: str, image: Path, place: Path) -> dict[str, Any]:
    """Makes one copy of a project; returns its cost, and what it has of the project."""
    _, make = PROJECT_WAYS[name]
    own, copy, root = image.with_suffix(".own"), place / "copy", place / "root"
    _run("cp", "--sparse=always", image, own)
    try:
        with _mounted(own, place):
            _run("sh", "-c", f"tar -C {place} -cf - root | cat > /dev/null")
            before = _used_bytes(place)
            begin_s = time.perf_counter()
            make(place, copy)
            _run("sync", "-f", place)
            seconds = time.perf_counter() - begin_s
            used = _used_bytes(place) - before
            return {"seconds": seconds, "bytes": used, **_compared(root, copy)}
    finally:
        own.unlink()


def _compared(root: Path, copy: Path) -> dict[str, bool]:
    """Returns what a copy has of a project, and where a commit in it shows."""

    def count(name: str) -> int:
        return sum(len(files) for _, _, files in os.walk(copy / name))

    def asked(directory: Path, *words: str) -> str:
        done = subprocess.run(
            [*_GIT, *words], cwd=directory, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = "src/0000/00/file-0000000.c"
    head = asked(root, "rev-parse", "HEAD")
    found = {
        "tracked": count("src") == sum(len(files) for _, _, files in os.walk(root / "src")),
        "changed": (copy / changed).read_bytes() == (root / changed).read_bytes(),
        "untracked": (copy / "untracked.txt").exists(),
        "env": (copy / ".env").exists(),
        "venv": count(".venv") > 0,
        "node_modules": count("node_modules") > 0,
    }
    asked(copy, "commit", "-q", "--allow-empty", "-m", "in the copy")
    made = asked(copy, "rev-parse", "HEAD")
    return found | {
        "commits": made != head,
        "moves_branch": asked(root, "rev-parse", "HEAD") != head,
        "is_known": asked(root, "cat-file", "-t", made) == "commit",
    }


def run_projects(directory: Path, kinds: Sequence[str], rounds: int, share: float) -> Any:
    """Returns all numbers of projects; times are the shortest of the rounds."""
    results: dict[str, Any] = {}
    place, image = directory / "mounted", directory / "prepared.image"
    for kind in kinds:
        for subject in SUBJECTS:
            prepare_project(kind, subject, image, place, share)
            rows: dict[str, list[dict[str, Any]]] = {name: [] for name in PROJECT_WAYS}
            for _ in range(rounds):
                for name in PROJECT_WAYS:
                    rows[name].append(measure_project(name, image, place))
                    print(kind, subject, name, rows[name][-1], file=sys.stderr)
            results.setdefault(subject, {})[kind] = {
                name: {**found[0], "seconds": min(row["seconds"] for row in found)}
                for name, found in rows.items()
            }
            image.unlink()
    files = {"src": TRACKED, **INSTALLED}
    return {
        "machine": _machine(),
        "rounds": rounds,
        "files": {name: int(count * share) for name, count in files.items()},
        "results": results,
    }


def project_tables(numbers: Mapping[str, Any]) -> str:
    """Returns the numbers of projects as Markdown: what copies have, and what they cost."""
    lines: list[str] = []
    titles = [title for title, _ in PROJECT_WAYS.values()]
    for subject, by_kind in numbers["results"].items():
        found = next(iter(by_kind.values()))
        lines += [
            f"### Of {SUBJECTS[subject]}",
            "",
            f"| | {' | '.join(titles)} |",
            f"| --- |{' --- |' * len(titles)}",
        ]
        for key, text in BROUGHT.items():
            cells = ["yes" if found[name][key] else "**no**" for name in PROJECT_WAYS]
            lines.append(f"| {text} | {' | '.join(cells)} |")
        cells = [_commit_text(found[name]) for name in PROJECT_WAYS]
        lines.append(f"| a commit in the copy | {' | '.join(cells)} |")
        for kind, ways in by_kind.items():
            least = ways["git"]["seconds"]
            cells = [
                f"{ways[name]['seconds']:.1f} s ({ways[name]['seconds'] / least:.1f} ×), "
                f"{ways[name]['bytes'] / 1e6:,.0f} MB"
                for name in PROJECT_WAYS
            ]
            lines.append(f"| cost on {kind} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _commit_text(found: Mapping[str, bool]) -> str:
    """Returns in a few words where a commit in a copy shows."""
    if not found["commits"]:
        return "is not possible"
    if found["moves_branch"]:
        return "**moves the branch of the original**"
    return "is in the same repository" if found["is_known"] else "is in the copy alone"


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
        "machine": _machine(),
        "tree": tree,
        "forks": forks,
        "rounds": rounds,
        "results": results,
    }


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "system": system_name(),
        "kernel": os.uname().release,
        "load": os.getloadavg()[0],
        "commit": commit(),
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
    parser.add_argument("--projects", action="store_true")
    parser.add_argument("--share", type=float, default=1.0, help="of the files of a project")
    given = parser.parse_args(arguments)
    given.directory.mkdir(parents=True)
    known = given.json is not None and given.json.exists()
    numbers = json.loads(given.json.read_text()) if known else {}
    kinds = given.file_systems
    try:
        if given.projects:
            found = run_projects(given.directory, kinds, given.rounds, given.share)
            numbers["projects"] = found
        else:
            numbers |= run(given.directory, kinds, given.files, given.forks, given.rounds)
    finally:
        shutil.rmtree(given.directory)
    if given.json is not None:
        given.json.write_text(json.dumps(numbers, indent=1) + "\n")
    print(project_tables(numbers["projects"]) if given.projects else tables(numbers))


if __name__ == "__main__":
    main()
