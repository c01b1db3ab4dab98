"""From a plan to steps: builds everything that will be put beside the tree, durably."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treesnap.codec.reader import TreeReader
from treesnap.errors import Conflict, shown
from treesnap.events import Phase
from treesnap.model import Totals
from treesnap.ops.access import Opened
from treesnap.ops.narrow import totals_of_entry
from treesnap.ops.plan import Plan
from treesnap.ops.state import State
from treesnap.worktree.apply import Applier
from treesnap.worktree.observed import Observed
from treesnap.worktree.stage import Item, Stager
from treesnap.worktree.staging import begin_building, end_building, make_stage, reserve
from treesnap.worktree.step import Action, Step, kept_name, staged_name

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

_RESERVE_BASE_BYTES = 64 << 10
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a restore has to do, and what it was planned from."""

    plan: Plan
    target: State
    """The state that the plan leads to."""
    observed: Observed
    """What was there when it was planned."""
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

    @contextmanager
    def staged(self, root_fd: int, stage_name: bytes) -> Iterator[Applier]:
        """Builds all that will be put; yields what carries the steps out.

        Raises Conflict when a path is not what was planned from any more, and OSError,
        for want of space too: nothing in the tree was touched then.
        """
        fs, work = self._fs, self._work
        stage_fd = make_stage(fs, root_fd, stage_name)
        try:
            begin_building(fs, stage_fd)
            steps = [self._expecting(step) for step in [*self._build(stage_fd), *self._others()]]
            touched = {step.before.inode for step in steps if step.before is not None}

            def unchanged(fd: int, path: bytes) -> bool:
                return work.observed.is_unchanged_below(fs, fd, path, touched)

            with Applier(
                fs,
                root_fd,
                stage_fd,
                work.plan.finishes,
                TreeReader(self._pair.store.get).xattrs,
                steps,
                unchanged,
                touch=work.touch,
            ) as applier:
                applier.check()
                reserve(fs, stage_fd, work.reserve_bytes)
                end_building(fs, stage_fd)
                fs.sync_file_system(stage_fd)
                self._handle.monitor.begin(Phase.APPLY, len(steps), None)
                yield applier
        finally:
            fs.close(stage_fd)

    def _build(self, stage_fd: int) -> list[Step]:
        """Builds what will be put; returns the steps that put it."""
        work = self._work
        totals = Totals()
        for entry, _ in work.plan.puts.values():
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
                Item(entry, path, staged_name(self._numbers[path]))
                for path, (entry, _) in work.plan.puts.items()
            ]
            stager.put_all(items)
            for entry, path, name in items:
                inode = self._fs.lstat(name, dir_fd=stage_fd).st_ino
                steps.append(Step(Action.PUT, path, name, inode, new=entry))
        finally:
            stager.close()
        self.degraded = tuple(stager.degraded)
        return steps

    def _others(self) -> list[Step]:
        """Returns the steps for which nothing has to be built."""
        plan = self._work.plan
        removals = [
            Step(Action.REMOVE, path, kept_name(self._numbers[path])) for path in plan.removals
        ]
        return removals + [
            Step(Action.METADATA, path, b"m", old=old, new=new)
            for path, (old, new) in plan.metadata.items()
        ]

    def _expecting(self, step: Step) -> Step:
        """Returns a step with what was at its path when it was planned."""
        before = self._work.observed.key(step.path)
        puts_new = step.action == Action.PUT and self._work.plan.puts[step.path][1] is None
        if before is None and not puts_new:
            raise Conflict(f"{shown(step.path)!r} was not seen when it should have been")
        return step._replace(before=before)
