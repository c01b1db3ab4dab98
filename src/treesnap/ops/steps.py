"""From a plan to steps: builds everything that will be put beside the tree, durably."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from treesnap import treepath
from treesnap.codec.reader import TreeReader
from treesnap.errors import TreesnapError
from treesnap.events import NullMonitor, Phase
from treesnap.model import Entry, IgnoreRules, Totals
from treesnap.ops.access import MemoryObjects, Opened
from treesnap.ops.capture import scan_settings
from treesnap.ops.narrow import totals_of_entry
from treesnap.ops.plan import Plan
from treesnap.ops.state import State, walked_state
from treesnap.worktree.apply import Applier
from treesnap.worktree.directory import path_of_root
from treesnap.worktree.observed import Observed
from treesnap.worktree.opened import open_files
from treesnap.worktree.scan import Scanner
from treesnap.worktree.stage import Item, Stager
from treesnap.worktree.staging import (
    StagePlaces,
    begin_building,
    end_building,
    open_stages,
    reserve,
)
from treesnap.worktree.step import UNSEEN, Action, Step, kept_name, staged_name

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle
    from treesnap.results import OpenFile

_RESERVE_BASE_BYTES = 64 << 10
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a restore has to do, and what it was planned from."""

    plan: Plan
    current: State
    """The state that it was planned from."""
    target: State
    """The state that the plan leads to."""
    observed: Observed
    """What was there when it was planned."""
    rules: tuple[IgnoreRules, ...] = ()
    """Exclusions that held beside those in the tree."""
    touch: bool
    """Whether restored files get the present time."""

    @property
    def reserve_bytes(self) -> int:
        """A bound on what moving may take: directories that grow, attributes that move out."""
        changed = len(self.plan.directories) + len(self.plan.metadata)
        return _RESERVE_BASE_BYTES + _BLOCK_BYTES * changed


class Steps:
    """The steps of one plan. ``paths`` are those that the journal numbers.

    A recovery may have steps below these: they get the numbers behind.
    """

    def __init__(self, handle: Handle, pair: Opened, work: Work, paths: Sequence[bytes]) -> None:
        self._handle = handle
        self._fs = handle.fs
        self._pair = pair
        self._work = work
        above = set(paths)
        below = [path for path in work.plan.touched if path not in above]
        self._numbers = {path: number for number, path in enumerate([*paths, *below])}
        self.degraded: tuple[bytes, ...] = ()
        """Paths whose owner or privileged attributes were not permitted to be put back."""
        self.open_files: tuple[OpenFile, ...] = ()
        """What processes had open of what is replaced, just before."""

    @contextmanager
    def staged(self, root_fd: int, stage_name: bytes, places: StagePlaces) -> Iterator[Applier]:
        """Builds all that will be put; yields what carries the steps out.

        Raises Conflict when a path is not what was planned from any more, and OSError,
        for want of space too: nothing in the tree was touched then.
        """
        fs, work = self._fs, self._work
        with open_stages(fs, root_fd, stage_name, places) as stages:
            main_fd = stages[treepath.ROOT]
            begin_building(fs, main_fd)
            built = [step for top in stages for step in self._build(stages[top], top, places)]
            steps = [self._expecting(step) for step in [*built, *self._others(places)]]
            touched = {step.before.identity for step in steps if step.before is not None}
            mapped = work.current.mapped

            def unchanged(fd: int, path: bytes) -> bool:
                return work.observed.is_unchanged_below(fs, fd, path, touched, mapped)

            with Applier(
                fs,
                root_fd,
                stages,
                work.plan.finishes,
                TreeReader(self._pair.store.get).xattrs,
                steps,
                unchanged_below=unchanged,
                second_look=SecondReading(self._handle, self._pair, work, root_fd, stage_name),
                mapped=mapped,
                touch=work.touch,
            ) as applier:
                applier.check()
                self.open_files = open_files(self._handle.root, steps)
                reserve(fs, main_fd, work.reserve_bytes)
                end_building(fs, main_fd)
                fs.sync_file_system(main_fd)
                self._handle.monitor.begin(Phase.APPLY, len(steps), None)
                yield applier

    def _build(self, stage_fd: int, top: bytes, places: StagePlaces) -> list[Step]:
        """Builds what will be put from one staging directory; returns the steps that put it."""
        work = self._work
        puts = {
            path: entry for path, (entry, _) in work.plan.puts.items() if places.of(path) == top
        }
        totals = Totals()
        for entry in puts.values():
            totals = totals.plus(totals_of_entry(entry, work.target.trees))
        self._handle.monitor.begin(Phase.STAGE, totals.files + totals.others, totals.size_bytes)
        stager = Stager(
            self._fs,
            stage_fd,
            self._pair.store.get,
            work.target.groups,
            self._handle.monitor,
            trees=work.target.trees,
            touch=work.touch,
        )
        steps = []
        try:
            items = [
                Item(entry, path, staged_name(self._numbers[path])) for path, entry in puts.items()
            ]
            stager.put_all(items)
            for entry, path, name in items:
                inode = self._fs.lstat(name, dir_fd=stage_fd).st_ino
                steps.append(Step(Action.PUT, path, name, top, inode, new=entry))
        finally:
            stager.close()
        self.degraded += tuple(stager.degraded)
        return steps

    def _others(self, places: StagePlaces) -> list[Step]:
        """Returns the steps for which nothing has to be built."""
        plan = self._work.plan
        removals = [
            Step(Action.REMOVE, path, kept_name(self._numbers[path]), places.of(path))
            for path in plan.removals
        ]
        return removals + [
            Step(Action.METADATA, path, b"m", old=old, new=new)
            for path, (old, new) in plan.metadata.items()
        ]

    def _expecting(self, step: Step) -> Step:
        """Returns a step with what was at its path when it was planned.

        A cached row may be damaged, and not say it: then the path is read again.
        """
        before = self._work.observed.key(step.path)
        puts_new = step.action == Action.PUT and self._work.plan.puts[step.path][1] is None
        if before is None and not puts_new:
            before = UNSEEN
        return step._replace(before=before)


class SecondReading:
    """Reads paths again, with all that they hold, and trusts no cached row.

    Implements :class:`treesnap.worktree.sight.SecondLook`.
    """

    def __init__(
        self, handle: Handle, pair: Opened, work: Work, root_fd: int, stage_name: bytes
    ) -> None:
        self._handle = handle
        self._pair = pair
        self._work = work
        self._root_fd = root_fd
        self._stage_name = stage_name

    def is_same(self, path: bytes) -> bool:
        """Returns whether the tree still has at a path what the plan saw, nothing included."""
        try:
            found = self._read(b"", path, self._work.rules, heeds=True)
        except (TreesnapError, OSError):
            return False
        return found == self._work.current.entry(path)

    def is_same_aside(self, path: bytes, stage: bytes, name: bytes) -> bool:
        """Returns whether what was moved from a path to a staging directory is what the plan saw.

        Moving a directory may give it permissions, and on some file systems a time.
        """
        try:
            found = self._read(os.path.join(stage, self._stage_name), name, (), heeds=False)
        except (TreesnapError, OSError):
            return False
        return _moved(found) == _moved(self._work.current.entry(path))

    def _read(
        self, below: bytes, path: bytes, rules: tuple[IgnoreRules, ...], *, heeds: bool
    ) -> Entry | None:
        root = path_of_root(self._handle.fs, self._root_fd, self._handle.root)
        top = os.path.join(root, os.fsdecode(below)) if below else root
        objects = MemoryObjects(self._pair.store)
        settings = replace(
            scan_settings(self._handle, (path,), rules), root=top, heeds_ignore_files=heeds
        )
        result = Scanner(self._handle.fs, settings, objects, NullMonitor()).scan()
        return walked_state(result, objects.get).entry(path)


def _moved(entry: Entry | None) -> Entry | None:
    """Returns what moving leaves as it was."""
    if entry is None:
        return None
    entry = entry._replace(name=b"")
    if entry.is_directory:
        return entry._replace(mode=entry.mode | 0o700, mtime_ns=0)
    return entry
