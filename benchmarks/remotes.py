"""What a remote in a bucket costs, beside restic to the same server.

    PYTHONPATH=tests/remote/support python -m benchmarks.remotes [--tree source] [--source DIR]
                                    [--rounds 3] [--work DIR] [--json FILE] [--page FILE]

Starts a Ceph cluster of one storage in memory with one gateway, on this machine. Each round has a
new store, a new remote and a new repository of restic, both encrypted with a passphrase, and does
each work with both tools, which take turns; so both meet the same machine with warm caches.
What a person does only once is not measured: ``snap remote add`` and ``restic init``. Clones and
restores are those of a machine that never saw the remote: without a store, without a cache. Prints
Markdown: medians of seconds, of processor time of the clients, and of the servers for them; the
most memory; the ratios to restic, and what is promised. Requests are counted by the gateway. Needs
Ceph, restic and ``treesnap[remote]``; no network.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.suite import process, trees
from benchmarks.suite.floors import PROJECT
from benchmarks.suite.peers import snap_command
from ceph import ACCESS_KEY, SECRET_KEY, Ceph, missing_programs, running_ceph

TREESNAP, RESTIC = "treesnap", "restic"
SNAP = f"{snap_command()} -q"
BUCKET = "benchmark"

FIRST = "first: create + push, backup"
PUSH = "first: push alone, backup"
SAME = "nothing changed: create + push, backup"
CHANGED = "10 files changed: create + push, backup"
CLONE = "clone, restore of all"
ONE = "restore of one file"
ROWS = (FIRST, PUSH, SAME, CHANGED, CLONE, ONE)
LIMITS = {FIRST: 0.95, PUSH: 0.3, SAME: 0.25, CLONE: 0.85, ONE: 0.5}
"""What is promised, as a ratio to the seconds of restic."""
MARKS = ("<!-- measured -->", "<!-- end -->")
REQUESTS_MAX = 6
"""What is promised of a small push."""


@dataclass(frozen=True)
class Cost:
    """What a work took."""

    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    memory_bytes: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
            self.server_cpu_seconds + other.server_cpu_seconds,
            max(self.memory_bytes, other.memory_bytes),
        )


Costs = dict[str, list[Cost]]
"""Of one row, by tool."""


class Round:
    """A new remote, store and repository; what is done with them is measured."""

    def __init__(self, cluster: Ceph, tree: Path, place: Path, number: int) -> None:
        self._cluster = cluster
        self._tree = tree
        self._place = place / f"round-{number}"
        self._place.mkdir()
        self._url = f"s3://{BUCKET}/snap-{number}?endpoint={cluster.endpoint}"
        self._environment = process.environment_of(place / "home") | {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "RESTIC_CACHE_DIR": str(self._place / "cache"),
            "RESTIC_REPOSITORY": f"s3:{cluster.endpoint}/{BUCKET}/restic-{number}",
            "TREESNAP_REMOTE_PASSPHRASE": "benchmark",
            "SNAP_STORE": str(self._place / "store"),
        }
        self._environment.pop("PYTHONPATH", None)  # is ours, and slows the start of Python
        self._add_remote()
        self._run("restic -q init")

    def end(self) -> None:
        """Removes what is on the disk."""
        shutil.rmtree(self._place)

    def create(self) -> Cost:
        """Captures the tree."""
        return self._snap("create")

    def push(self) -> Cost:
        """Pushes what was captured."""
        return self._snap("push")

    def create_and_push(self) -> Cost:
        """Does both."""
        return self.create() + self.push()

    def backup(self) -> Cost:
        """Lets restic do the same as both."""
        return self._run("restic -q backup .")

    def requests_of_push(self) -> int:
        """Returns how many requests the gateway answers for a push."""
        self.create()
        before = self._cluster.requests()
        self.push()
        return self._cluster.requests() - before

    def clone(self) -> Cost:
        """Clones as a new machine does."""
        with self._aside() as aside:
            return self._snap(f"clone '{self._url}' {aside}/tree", SNAP_STORE=f"{aside}/store")

    def restore_all(self) -> Cost:
        """Lets restic do the same."""
        with self._aside() as aside:
            words = f"restic -q restore latest --target {aside}/tree"
            return self._run(words, RESTIC_CACHE_DIR=f"{aside}/cache")

    def restore_one(self, path: str) -> Cost | None:
        """Restores a file as a new machine does; returns None while no command can."""
        if "REMOTE/" not in self._said("restore", "--help"):
            return None
        histories = json.loads(self._said("remote", "show", "--json"))["histories"]
        with self._aside() as aside:
            own = {"SNAP_STORE": f"{aside}/store"}
            self._add_remote(**own)
            ref = f"shared/{histories[0]['id']}"
            return self._snap(f"restore {ref} '{path}' --to {aside}/tree", **own)

    def restore_one_by_restic(self, path: str) -> Cost:
        """Lets restic do the same."""
        with self._aside() as aside:
            words = f"restic -q restore latest --target {aside}/tree --include '{path}'"
            return self._run(words, RESTIC_CACHE_DIR=f"{aside}/cache")

    def _add_remote(self, **variables: str) -> None:
        self._snap(f"remote add shared '{self._url}'", **variables)

    def _snap(self, words: str, **variables: str) -> Cost:
        cost = self._run(f"{SNAP} {words}", **variables)
        process.wait_for_background(Path({**self._environment, **variables}["SNAP_STORE"]))
        return cost

    def _said(self, *words: str) -> str:
        done = subprocess.run(
            [*SNAP.split(), *words],
            cwd=self._tree,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def _run(self, command: str, **variables: str) -> Cost:
        before = self._cluster.cpu_seconds()
        done = process.timed(command, self._tree, {**self._environment, **variables})
        server = self._cluster.cpu_seconds() - before
        return Cost(done.seconds, done.cpu_seconds, server, done.memory_bytes)

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        """Makes a directory that is removed afterwards."""
        path = Path(tempfile.mkdtemp(dir=self._place))
        try:
            yield path
        finally:
            shutil.rmtree(path)


def measure(cluster: Ceph, tree: Path, place: Path, rounds: int) -> dict[str, Any]:
    """Returns the numbers of so many rounds."""
    costs: dict[str, Costs] = {row: {TREESNAP: [], RESTIC: []} for row in ROWS}
    requests: list[int] = []
    edit = trees.ten_files(tree)
    try:
        for number in range(rounds):
            measured = Round(cluster, tree, place, number)
            _first(measured, costs, number)
            _take_turns(costs[SAME], number, measured.create_and_push, measured.backup)
            edit.apply(number)
            _take_turns(costs[CHANGED], number, measured.create_and_push, measured.backup)
            edit.apply(rounds + number)
            requests.append(measured.requests_of_push())
            _take_turns(costs[CLONE], number, measured.clone, measured.restore_all)
            _one_file(measured, costs, number, tree)
            measured.end()
    finally:
        edit.take_back()
    return {
        "rows": {row: _summary(found, LIMITS.get(row)) for row, found in costs.items()},
        "requests": {"small push": statistics.median(requests), "limit": REQUESTS_MAX},
    }


def _first(measured: Round, costs: dict[str, Costs], number: int) -> None:
    """Measures the first capture, and of treesnap both of its halves."""

    def create_and_push() -> Cost:
        created, pushed = measured.create(), measured.push()
        costs[PUSH][TREESNAP].append(pushed)
        return created + pushed

    _take_turns(costs[FIRST], number, create_and_push, measured.backup)
    costs[PUSH][RESTIC].append(costs[FIRST][RESTIC][-1])


def _one_file(measured: Round, costs: dict[str, Costs], number: int, tree: Path) -> None:
    """Measures one file, which lies somewhere in the middle."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    path = str(files[len(files) // 2].relative_to(tree))
    _take_turns(
        costs[ONE],
        number,
        lambda: measured.restore_one(path),
        lambda: measured.restore_one_by_restic(path),
    )


def _take_turns(
    costs: Costs, number: int, by_treesnap: Callable[[], Cost | None], by_restic: Callable[[], Cost]
) -> None:
    """Measures a work of both; in every other round restic comes first."""
    works = ((TREESNAP, by_treesnap), (RESTIC, by_restic))
    for tool, work in works if number % 2 == 0 else works[::-1]:
        cost = work()
        if cost is not None:
            costs[tool].append(cost)


def _summary(costs: Costs, limit: float | None) -> dict[str, Any]:
    """Returns the medians of a row, the ratio of the seconds, and what is promised."""
    medians = {
        tool: {
            field.name: round(statistics.median(getattr(cost, field.name) for cost in found), 3)
            for field in fields(Cost)
        }
        for tool, found in costs.items()
        if found
    }
    if len(medians) < len(costs):
        return {**medians, "missing": "no command of treesnap does this", "limit": limit}
    cpu = {tool: found["cpu_seconds"] for tool, found in medians.items()}
    return {
        **medians,
        "ratio": round(medians[TREESNAP]["seconds"] / medians[RESTIC]["seconds"], 3),
        "cpu_ratio": round(cpu[TREESNAP] / cpu[RESTIC], 3),
        "limit": limit,
    }


def table(result: dict[str, Any]) -> list[str]:
    """Returns the numbers as Markdown; in each cell treesnap stands first."""
    lines = [
        "| work | seconds | ratio | promised | client CPU, s | ratio | servers' CPU, s | most MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row, found in result["rows"].items():
        cells = [
            row,
            _both(found, "seconds"),
            f"{found['ratio']:.2f}" if "ratio" in found else found["missing"],
            f"≤ {found['limit']}" if found["limit"] else "",
            _both(found, "cpu_seconds"),
            f"{found['cpu_ratio']:.2f}" if "cpu_ratio" in found else "",
            _both(found, "server_cpu_seconds"),
            _both(found, "memory_bytes", 1e-6, 0),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    requests = result["requests"]
    lines += [
        "",
        "Requests of a small push: {small push:g}, promised ≤ {limit}.".format(**requests),
        "",
        "{files:,} files, {megabytes:,.0f} MB; medians of {rounds} rounds; restic {restic}; "
        "load {load_before} before, {load_after} after.".format(
            **result, megabytes=result["size_bytes"] / 1e6
        ),
    ]
    return lines


def write_page(page: Path, lines: list[str]) -> None:
    """Puts the table into a page, between its two marks."""
    begin, rest = page.read_text().split(MARKS[0])
    _, end = rest.split(MARKS[1])
    page.write_text(begin + "\n".join([MARKS[0], "", *lines, "", MARKS[1]]) + end)


def _both(found: dict[str, Any], name: str, scale: float = 1.0, digits: int = 2) -> str:
    values = (found[tool][name] * scale for tool in (TREESNAP, RESTIC) if tool in found)
    return " / ".join(f"{value:.{digits}f}" for value in values)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", default=trees.SOURCE, help="source, or files-N")
    parser.add_argument("--source", type=Path, help="a source tree instead of Linux; is copied")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=PROJECT / "build" / "benchmark")
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    parser.add_argument("--page", type=Path, help="a page of the docs, of which the table is new")
    options = parser.parse_args()
    if missing := [*missing_programs(), *([] if shutil.which("restic") else ["restic"])]:
        parser.error(f"not installed: {', '.join(missing)}")
    options.work.mkdir(parents=True, exist_ok=True)
    tree = trees.prepare(trees.tree_named(options.tree, source=options.source), options.work)
    place = Path(tempfile.mkdtemp(prefix="remotes-", dir=options.work))
    said = subprocess.run(["restic", "version"], capture_output=True, text=True, check=True)
    result: dict[str, Any] = {
        "tree": options.tree,
        **trees.measure(tree),  # which also reads every inode
        "rounds": options.rounds,
        "restic": said.stdout.split()[1],
        "load_before": round(os.getloadavg()[0], 2),
    }
    try:
        # The sockets of the cluster have paths, whose length the system limits.
        with running_ceph(Path(tempfile.mkdtemp(prefix="ceph-"))) as cluster:
            cluster.make_bucket(BUCKET)
            result |= measure(cluster, tree, place, options.rounds)
    finally:
        shutil.rmtree(place)
    result["load_after"] = round(os.getloadavg()[0], 2)
    print("\n".join(table(result)))
    if options.page is not None:
        write_page(options.page, table(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
