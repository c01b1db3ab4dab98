"""One run: prepares the trees, lets every tool work on them, and writes the results."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.suite import (
    floors,
    machine,
    peers,
    plots,
    process,
    promises,
    report,
    series,
    trees,
    watching,
)
from benchmarks.suite.peers import Tool
from benchmarks.suite.results import Case, Results
from benchmarks.suite.trees import Tree
from benchmarks.suite.works import Clock, Comparison, Contender

TREES = (
    "files-1000",
    promises.CHECKPOINT_TREE,
    trees.MILLION,
    "database",
    trees.SOURCE,
    "node_modules",
    "venv",
)
"""What no promise speaks of comes last: it is what a short time leaves out."""

QUICK_TREES = ("files-1000", trees.SOURCE, "database-128", promises.CHECKPOINT_TREE)
FEW_FILES_MAX = 200_000
"""Trees with more files are captured only by the tools that are quick with them."""

SOURCE_TITLE = trees.LINUX_TITLE
QUICK_WITH_MANY = {"treesnap", "tar | zstd"}
RESTORED_MAX_BYTES = 2_000_000_000
LIBRARY_ROUNDS = 5
START_ROUNDS = 5
"""For each round, how often the library makes a snapshot, and how often programs are started."""


@dataclass(frozen=True)
class Options:
    """What a run does."""

    work: Path
    out: Path
    """Where the page and its pictures go."""

    numbers: Path
    """The file that all numbers go to."""

    trees: tuple[str, ...] = TREES
    tools: tuple[str, ...] = ()
    """Empty: all that are installed."""

    rounds: int = 3
    repeat_s: float = 12.0
    minutes: float = 25.0
    checkpoints: int = 1_000
    source: Path | None = None
    source_title: str = SOURCE_TITLE
    all_tools_with_many: bool = False
    quick: bool = False

    def made_quick(self) -> Options:
        """Returns the same with less of everything."""
        return replace(self, trees=QUICK_TREES, rounds=1, repeat_s=0.1, checkpoints=100, quick=True)


class Session:
    """The state of one run."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stores = options.work / "stores"
        self._trees = options.work / "trees"
        self.results = Results()
        shutil.rmtree(self._stores, ignore_errors=True)
        for directory in (self._stores, self._trees):
            directory.mkdir(parents=True, exist_ok=True)
        self._environment: Mapping[str, str] = process.environment_of(self._stores / "home")
        self._tools = self._chosen_tools()
        self.results.facts = machine.facts(options.work, self._tools, self._environment)
        self.results.facts["quick"] = options.quick
        self.results.facts["source"] = options.source_title
        self._clock = Clock.of(options.minutes, options.repeat_s)
        self._has_watch = watching.is_there(self._environment)
        if not self._has_watch:
            self.results.leave_out("`snap watch`: this version has none.")

    def _chosen_tools(self) -> list[Tool]:
        chosen = []
        for tool in peers.all_tools():
            if self._options.tools and tool.name not in self._options.tools:
                continue
            if peers.is_installed(tool):
                chosen.append(tool)
            else:
                self.results.leave_out(
                    f"{tool.name}: not installed (`apt install {tool.package}`)."
                )
        return chosen

    def run(self) -> None:
        """Measures everything that was chosen; what cannot be measured is noted, and no more."""
        for name in self._options.trees:
            tree = trees.tree_named(name, source=self._options.source)
            if self._clock.is_over():
                self.results.leave_out(f"{name}: no time was left.")
                continue
            print(f"{name}: preparing", file=sys.stderr)
            try:
                root = trees.prepare(tree, self._trees)
                self.results.trees[name] = trees.measure(root)
                self._measure_tree(tree, root)
            except (trees.Unavailable, process.CommandFailed) as error:
                self.results.leave_out(f"{name}: {error}.")
            except (OSError, subprocess.SubprocessError) as error:  # their words name places
                print(f"{name}: {error}", file=sys.stderr)
                self.results.leave_out(f"{name}: not measured whole, {type(error).__name__}.")
            shutil.rmtree(self._stores / name, ignore_errors=True)
        for name in sorted(set(TREES) - set(self._options.trees)):
            self.results.leave_out(f"{name}: not chosen.")

    def _measure_tree(self, tree: Tree, root: Path) -> None:
        options, name = self._options, tree.name
        size = self.results.trees[name]
        has_many = size["files"] > FEW_FILES_MAX
        works = tuple(
            work for work in peers.WORKS if work != peers.RESTORE or not name.startswith("database")
        )
        contenders = self._contenders(name, only_quick=has_many and not options.all_tools_with_many)
        rounds = 1 if has_many else options.rounds
        edit = tree.edit(root)
        Comparison(name, root, edit, contenders, self.results, self._clock, works).run(rounds)
        floors.measure_tree(
            name,
            root,
            self._stores,
            self._environment,
            self.results,
            rounds=rounds,
            content=not has_many,
        )
        store = self._stores / name / "treesnap" / "store"
        if not store.exists():
            return
        self._measure_own(tree, root, store, has_many=has_many)
        if has_many:
            self._measure_collection(name, root, store)
        if self.results.median(promises.START) is None:  # of whatever tree comes first
            starts = START_ROUNDS * options.rounds
            floors.measure_starts(root, store, self._environment, self.results, rounds=starts)
        if name == trees.SOURCE:
            rounds = options.rounds
            series.measure_changes(
                name, root, contenders, self.results, self._clock, rounds=min(2, rounds)
            )
        if name == promises.CHECKPOINT_TREE:
            self._measure_checkpoints(name, root)

    def _contenders(self, name: str, *, only_quick: bool) -> list[Contender]:
        contenders = []
        for tool in self._tools:
            if only_quick and tool.name not in QUICK_WITH_MANY:
                self.results.leave_out(
                    f"{name}: {tool.name}: takes too long, `--all-tools-with-many` includes it."
                )
                continue
            place = self._stores / name / tool.name.replace(" ", "").replace("|", "-")
            contenders.append(Contender(tool, place, self._environment))
        return contenders

    def _measure_own(self, tree: Tree, root: Path, store: Path, *, has_many: bool) -> None:
        """Measures the library and the watcher, where the tree's edit is one of files."""
        if tree.edit is not trees.ten_files:
            return
        arguments = (tree.name, root, store, self._environment, self.results)
        rounds = self._options.rounds
        kinds = [] if has_many else [watching.LIBRARY]  # it walks each time
        if self._has_watch:
            kinds.append(watching.LIBRARY_WATCH)
        try:
            if self._has_watch:
                watching.measure(*arguments, self._clock, rounds=rounds)
            watching.measure_library(*arguments, rounds=rounds * LIBRARY_ROUNDS, tools=kinds)
        except process.CommandFailed as error:
            self.results.leave_out(f"{tree.name}: library or watcher: failed, {error}.")

    def _measure_collection(self, name: str, root: Path, store: Path) -> None:
        """Measures a collection after everything but one snapshot was deleted."""
        snap = f"{peers.snap_command()} -q --store {store}"
        process.timed(f"{snap} prune --keep-last 1", root, self._environment)
        outcome = process.timed(f"{snap} gc", root, self._environment)
        watching.note(self.results, Case(name, peers.COLLECT, "treesnap"), outcome)

    def _measure_checkpoints(self, name: str, root: Path) -> None:
        contenders = self._contenders(f"{name}-checkpoints", only_quick=False)
        try:
            series.measure_checkpoints(
                name, root, contenders, self.results, self._clock, count=self._options.checkpoints
            )
        except process.CommandFailed as error:
            self.results.leave_out(f"Checkpoints: failed, {error}.")


def write(results: Results, options: Options) -> None:
    """Writes numbers, pictures and page; without matplotlib the pictures are left out."""
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    if plots.is_possible():
        pictures = plots.draw(results, out)
    else:
        pictures = []
        print("no pictures: matplotlib is not installed", file=sys.stderr)
    options.numbers.write_text(results.to_json(), encoding="utf-8")
    (out / "index.md").write_text(report.page(results, pictures), encoding="utf-8")
