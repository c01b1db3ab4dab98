"""All works on one tree, by several tools in turn, round by round.

All tools work on the same tree, which is read before every work that reads it: borg drops what
it has read from the cache, and the next tool would pay for that. A work that takes a tool long
is not repeated without end: it is skipped once its times add up to a limit.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.suite import peers, process, trees
from benchmarks.suite.edits import Edit
from benchmarks.suite.peers import Tool
from benchmarks.suite.results import ADDED, CPU, MEMORY, STORE, Case, Results


@dataclass
class Clock:
    """How much time there is for everything, and for repeating one work."""

    end_s: float
    repeat_s: float

    @classmethod
    def of(cls, minutes: float, repeat_s: float) -> Clock:
        """Returns a clock that starts now."""
        return cls(time.monotonic() + minutes * 60, repeat_s)

    def is_over(self) -> bool:
        """Returns whether nothing more should be begun."""
        return time.monotonic() > self.end_s


@dataclass
class Contender:
    """A tool with its store for one tree."""

    tool: Tool
    place: Path
    """A directory of its own, in which its store is made."""

    environment: Mapping[str, str]
    captures: int = 0
    has_failed: bool = False

    @property
    def store(self) -> Path:
        """Returns where the tool keeps what it captured."""
        return self.place / "store"

    @property
    def out(self) -> Path:
        """Returns where the tool restores to."""
        return self.place / "out"

    def run(self, command: str, root: Path) -> process.Outcome:
        """Runs a command line of the tool in the tree. Raises CommandFailed."""
        line = command.format(
            store=self.store, out=self.out, now=self.captures, before=self.captures - 1
        )
        return process.timed(line, root, self.environment)

    def begin_anew(self, root: Path) -> None:
        """Makes an empty store. Raises CommandFailed."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        self.captures = 0
        self.run(self.tool.setup, root)


@dataclass
class Comparison:
    """One tree, the tools that work on it, and where their numbers go."""

    tree: str
    root: Path
    edit: Edit
    contenders: Sequence[Contender]
    results: Results
    clock: Clock
    works: Sequence[str] = peers.WORKS
    _captured: dict[str, list[str]] = field(default_factory=dict)
    """For each tool the works of the running round in which it captured the tree."""

    def run(self, rounds: int) -> None:
        """Does all works, in so many rounds, and leaves the tree as it was."""
        try:
            for number in range(rounds):
                print(f"{self.tree}: round {number + 1} of {rounds}", file=sys.stderr)
                self._round(number)
        finally:
            self.edit.take_back()

    def _round(self, number: int) -> None:
        shift = number % max(1, len(self.contenders))
        order = [*self.contenders[shift:], *self.contenders[:shift]]
        self._captured.clear()
        for work in self.works:
            if work == peers.CHANGED:
                self.edit.apply(number)
            for contender in order:
                self._work(work, contender, number)
            if work == peers.CHANGED:
                self.edit.take_back()

    def _work(self, work: str, contender: Contender, number: int) -> None:
        name = work.format(edit=self.edit.name)
        case = Case(self.tree, name, contender.tool.name)
        command = contender.tool.command(work)
        if command is None or contender.has_failed or not self._is_due(work, contender):
            return
        if self.clock.is_over():
            if case not in self.results.samples:
                self.results.leave_out(f"{self.tree}: {name}, {case.tool}: no time was left.")
            return
        try:
            self._measure(work, case, contender, command, number)
        except process.CommandFailed as error:
            contender.has_failed = True
            self.results.leave_out(f"{self.tree}: {name}, {case.tool}: failed, {error}.")

    def _is_due(self, work: str, contender: Contender) -> bool:
        """Returns whether a work is done in this round.

        A way back leads to the capture before the last: it needs both of the same round.
        """
        tool = contender.tool
        if work == peers.BACK:
            captured = self._captured.get(tool.name, [])
            return captured[-2:] == [peers.SAME, peers.CHANGED] and self._may_repeat(work, tool)
        needs_it = work == peers.SAME and tool.back and self._may_repeat(peers.CHANGED, tool)
        return bool(needs_it) or self._may_repeat(work, tool)

    def _may_repeat(self, work: str, tool: Tool) -> bool:
        case = Case(self.tree, work.format(edit=self.edit.name), tool.name)
        return self.results.spent_s(case) < self.clock.repeat_s

    def _measure(
        self, work: str, case: Case, contender: Contender, command: str, number: int
    ) -> None:
        if work == peers.FIRST:
            contender.begin_anew(self.root)
        elif work in {peers.SAME, peers.CHANGED}:
            if work == peers.SAME and self._captured.get(case.tool) != [peers.FIRST]:
                contender.captures += 1  # or what the last round took back counts as a change
                contender.run(command, self.root)
            contender.captures += 1
            before_bytes = trees.measure(contender.store)["size_bytes"]
        elif work == peers.BACK:
            self.edit.apply(number + 1_000)
        if work in {peers.FIRST, peers.CHANGED}:
            subprocess.run("tar cf - . | cat >/dev/null", shell=True, cwd=self.root, check=True)
        outcome = contender.run(command, self.root)
        process.wait_for_background(contender.store)
        self.results.add(case, outcome.seconds)
        self.results.add(case._replace(quantity=CPU), outcome.cpu_seconds)
        self.results.add(case._replace(quantity=MEMORY), outcome.memory_bytes)
        print(f"  {case.work}, {case.tool}: {outcome.seconds:.2f} s", file=sys.stderr)
        if work == peers.BACK:
            self._check(self.edit.is_undone(), case)
        elif work == peers.RESTORE:
            self._check(_is_whole(contender.out, self.root), case)
            shutil.rmtree(contender.out)
        elif work != peers.STATUS:
            size_bytes = trees.measure(contender.store)["size_bytes"]
            if work == peers.FIRST:
                self.results.add(case._replace(quantity=STORE), size_bytes)
            else:
                self.results.add(case._replace(quantity=ADDED), size_bytes - before_bytes)
        if work in {peers.FIRST, peers.SAME, peers.CHANGED}:
            self._captured.setdefault(case.tool, []).append(work)

    def _check(self, is_right: bool, case: Case) -> None:  # noqa: FBT001 - what was seen
        if not is_right:
            self.results.leave_out(
                f"{self.tree}: {case.work}, {case.tool}: the content was not what it should be."
            )


def _is_whole(out: Path, root: Path) -> bool:
    """Returns whether as many files and bytes came back as there are."""
    restored, expected = trees.measure(out), trees.measure(root)
    return all(restored[name] == expected[name] for name in ("files", "size_bytes"))
