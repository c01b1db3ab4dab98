"""Any order of operations and ignore rules: an undo leads back to what was there, excluded or not.

The oracle knows no rules. It looks at the whole tree before and after each operation, and notes
what a user touches in between. After an undo or a redo each other path is as it was.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import treesnap
from machines import run
from oracle import Facts, Record, difference, record
from sampling import sized
from scopes import Scope, ancestors, is_inside, relinked
from treesnap.core.model.results import MergeResult, RestoreResult

PATHS = ("a", "b.log", "d/x", "d/y.log", "d/e/z", "out/f", "out/g/h.log", "p/q/r")
RULES = ("*.log\n", "out/\n", "d/\n", "*\n", "/d/*\n!x\n", "p/q\n", "a\nout/g/\n", "")
PLACES = ("", "d/", "out/")


class Step(NamedTuple):
    """Something that can be undone."""

    before: Record
    after: Record
    scope: Scope
    touched: frozenset[bytes] = frozenset()
    """What a user changed in the meantime."""
    timeless: frozenset[bytes] = frozenset()
    """Directories that got new times, because paths in them were restored."""


class Machine(RuleBasedStateMachine):
    """One root in which rules come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="excluded-"))
        self.root = self.directory / "root"
        self.root.mkdir()
        self.handle = treesnap.open(self.root, self.directory / "store")
        self.snapshots: list[str] = []
        self.undo_stack: list[Step] = []
        self.redo_stack: list[Step] = []

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    @initialize(seed=st.integers(0, 2**32))
    def build(self, seed: int) -> None:
        for path in PATHS:
            self.write(self.root / path, Random(seed))
        self.create()

    def write(self, path: Path, random: Random) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(random.choice(("1", "22", "333")))
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            return

    def touch(self, before: Record) -> None:
        """Notes what a user changed, for all steps that can be taken."""
        now = record(self.root)
        states = [{path: without_time(state[path]) for path in state} for state in (before, now)]
        changed = {path for path in {*before, *now} if states[0].get(path) != states[1].get(path)}
        for stack in (self.undo_stack, self.redo_stack):
            stack[:] = [step._replace(touched=step.touched | changed) for step in stack]

    # ------------------------------------------------------------------ the user

    @rule(place=st.sampled_from(PLACES), text=st.sampled_from(RULES))
    def exclude(self, place: str, text: str) -> None:
        before = record(self.root)
        if (self.root / place).is_dir():
            (self.root / place / ".snapignore").write_text(text)
            self.touch(before)

    @rule(path=st.sampled_from(PATHS), seed=st.integers(0, 2**32))
    def edit(self, path: str, seed: int) -> None:
        before = record(self.root)
        self.write(self.root / path, Random(seed))
        self.touch(before)

    def link(self, path: str, name: str) -> None:
        """Gives a file another name, which may be excluded or not."""
        if (self.root / path).is_file() and not (self.root / name).is_dir():
            with suppress(FileExistsError, NotADirectoryError):
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(self.root / path, self.root / "new")
                (self.root / "new").rename(self.root / name)
                (self.root / "new").unlink(missing_ok=True)

    @rule(path=st.sampled_from(PATHS), names=st.sets(st.sampled_from(PATHS)), is_all=st.booleans())
    def restore_linked(self, path: str, names: set[str], is_all: bool) -> None:
        """Restores a file, or all, after the file was edited and got other names."""
        before = record(self.root)
        self.create()
        self.write(self.root / path, Random(len(self.snapshots)))
        for name in sorted(names):
            self.link(path, name)
        self.touch(before)
        if is_all:
            self.restore(0)
        else:
            self.restore_path(0, path)

    @rule(path=st.sampled_from([*PATHS, "d", "out", "out/g", "p", ".snapignore"]))
    def remove(self, path: str) -> None:
        before = record(self.root)
        if (self.root / path).is_dir():
            shutil.rmtree(self.root / path)
        else:
            (self.root / path).unlink(missing_ok=True)
        self.touch(before)

    # ----------------------------------------------------------------- snapshots

    @rule()
    def create(self) -> None:
        self.snapshots.append(self.handle.create().id)

    @rule(seed=st.integers(0, 2**32), place=st.sampled_from(PLACES), text=st.sampled_from(RULES))
    def restore_archive(self, seed: int, place: str, text: str) -> None:
        """Imports files and an ignore file that hides some of them, and restores them."""
        random = Random(seed)
        files = {path: random.choice("123") for path in PATHS if random.random() < 0.7}
        archive = self.directory / "it.tar"
        with tarfile.open(archive, "w") as tar:
            for path, content in sorted({**files, f"{place}.snapignore": text}.items()):
                info = tarfile.TarInfo(path)
                info.size, info.uid, info.gid = len(content), os.getuid(), os.getgid()
                tar.addfile(info, io.BytesIO(content.encode()))
        snapshot = self.handle.import_from(archive).id
        self.snapshots.append(snapshot)
        self.carried_out(None, lambda: self.handle.restore(snapshot))

    # ---------------------------------------------------------------- operations

    def carried_out(
        self, scope: Scope, operation: Callable[[], RestoreResult | MergeResult]
    ) -> None:
        before = record(self.root)
        try:
            result = operation()
        except treesnap.Refused:
            assert difference(before, record(self.root)) == []
            return
        if result.safety_id is None:
            return
        after = record(self.root)
        self.renew_times(scope)
        self.undo_stack.append(Step(before, after, scope))
        self.redo_stack.clear()

    def renew_times(self, scope: Scope) -> None:
        above = ancestors(scope)
        for stack in (self.undo_stack, self.redo_stack):
            stack[:] = [step._replace(timeless=step.timeless | above) for step in stack]

    @rule(number=st.integers(0, 99))
    def restore(self, number: int) -> None:
        ref = self.snapshots[-1 - number % min(5, len(self.snapshots))]
        self.carried_out(None, lambda: self.handle.restore(ref))

    @rule(number=st.integers(0, 99), path=st.sampled_from([*PATHS, "d", "out", "p/q"]))
    def restore_path(self, number: int, path: str) -> None:
        ref = self.snapshots[-1 - number % min(5, len(self.snapshots))]

        def act() -> RestoreResult:
            try:
                return self.handle.restore(ref, [path])
            except (treesnap.NotFound, treesnap.InvalidArgument):
                raise treesnap.Refused("It is in neither state") from None

        self.carried_out((path.encode(),), act)

    @precondition(lambda self: len(self.snapshots) > 1)
    @rule(number=st.integers(0, 99))
    def revert(self, number: int) -> None:
        first, second = Random(number).sample(self.snapshots[-5:], 2)
        self.carried_out(None, lambda: self.handle.revert(f"{first}..{second}", conflicts="theirs"))

    @precondition(lambda self: self.undo_stack)
    @rule()
    def undo(self) -> None:
        self.step_back(self.undo_stack, self.redo_stack, self.handle.undo)

    @precondition(lambda self: self.redo_stack)
    @rule()
    def redo(self) -> None:
        self.step_back(self.redo_stack, self.undo_stack, self.handle.redo)

    def step_back(
        self, source: list[Step], target: list[Step], step_back: Callable[..., RestoreResult]
    ) -> None:
        """Takes a step, and compares what no step touched in the meantime."""
        step = source[-1]
        live = record(self.root)
        note(f"touched {sorted(step.touched)}")
        try:
            would = step_back(dry_run=True)
            done = step_back()
        except treesnap.Refused:
            assert step.touched
            assert difference(live, record(self.root)) == []
            return
        source.pop()
        now = record(self.root)
        self.renew_times(step.scope)
        assert [item.path for item in would.changes] == [item.path for item in done.changes]
        assert would.untouched == done.untouched
        self.compare(step, now)
        target.append(Step(live, now, step.scope))

    def compare(self, step: Step, now: Record) -> None:
        above = ancestors(tuple(step.touched))
        timeless = step.timeless | ancestors(step.scope)

        def rest(state: Record) -> Record:
            """Returns what is untouched; directories are as they hold something else or not."""
            return relinked(
                {
                    path: without_time(facts) if path in timeless else facts
                    for path, facts in state.items()
                    if path not in above and not is_inside(path, tuple(step.touched))
                }
            )

        assert difference(rest(step.before), rest(now)) == []


def without_time(facts: Facts) -> Facts:
    """Returns facts without the time of a directory, which follows from what is in it."""
    return replace(facts, mtime_ns=0) if facts.kind == "directory" else facts


def test_an_undo_leads_back_whatever_is_excluded() -> None:
    run(Machine, sized(6, 170), sized(20, 40))
