"""Reverts in any order, against a naive merge in memory.

The machine keeps what the tree was at each snapshot and what it was after each operation. What a
revert has to come to, and which paths are in conflict, is said by ``naive_merge``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import volumes
from machines import run
from naive_merge import (
    MERGE_TIME_NS,
    Merge,
    above,
    find_moves,
    is_directory,
    is_wanted,
    lines_of,
    merged,
)
from sampling import sized
from state import TreeState, differences, tree_state
from treesnap import NotFound
from treesnap.core.handle import Handle
from treesnap.core.model.errors import MergeConflict
from treesnap.core.model.results import MergeResult
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnsyncedFileSystem

EXAMPLES = sized(4, 320)
STEPS = sized(20, 40)

NAMES = (b"a", b"b", b"c", b"d", b"e", b"\xff\n" if volumes.can_keep(b"\xff") else b"\n")
RULES = ("refuse", "mine", "theirs", "markers")
Rules = st.sampled_from(RULES)
Seeds = st.integers(0, 2**32)


def without_links(tree: TreeState) -> TreeState:
    return {path: replace(item, links=()) for path, item in tree.items()}


def has_marks(tree: TreeState) -> bool:
    return any(b"=======\n" in item.content for item in tree.values())


class RevertMachine(RuleBasedStateMachine):
    """One root, the history of its states, and what every revert has to make of it."""

    seen: ClassVar[Counter[str]] = Counter()
    """What all machines did together."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="revert-machine-"))
        self.root = self.directory / "root"
        self.root.mkdir()
        store = str(self.directory / "store")
        self.handle = Handle(context_at(self.root, store, fs=UnsyncedFileSystem()))
        self.lines = count()
        self.states: dict[str, TreeState] = {}
        """What the tree was at each snapshot."""
        self.left: dict[str, TreeState] = {}
        """What it was after the operation that took the snapshot."""
        self.history: list[str] = []
        self.undo_stack: list[TreeState] = []
        self.redo_stack: list[TreeState] = []
        self.live: TreeState = {}

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def new_line(self) -> bytes:
        """Returns a line that is in no text yet."""
        ending = b"\r\n" if next(self.lines) % 3 == 0 else b"\n"
        return b"line %d" % next(self.lines) + ending

    @invariant()
    def counts_a_step(self) -> None:
        self.seen["steps"] += 1

    def look(self, before: TreeState) -> None:
        """Notes the tree as it is, and the snapshots that came since."""
        self.live = tree_state(self.root)
        known = {*self.history}
        new = [item for item in reversed(self.handle.list()) if item.id not in known]
        for item in new:
            is_outcome = (item.label or "").startswith("revert of ")
            is_before = item.kind is SnapshotKind.SAFETY and not is_outcome
            self.states[item.id] = before if is_before else self.live
            self.left[item.id] = self.states[item.id]
            self.history.append(item.id)
        if new:
            self.left[new[-1].id] = self.live

    @initialize()
    def build(self) -> None:
        for name in (b"a", b"d/a", b"d/b", b"d/e/a", b".git/a"):
            path = self.path_of(name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self.write(path, 9)
        self.look({})
        self.capture()

    # -------------------------------------------------------------- changes

    def path_of(self, name: bytes) -> bytes:
        return os.path.join(os.fsencode(self.root), name)

    def write(self, path: bytes, lines: int) -> None:
        with open(path, "wb") as file:
            file.write(b"".join(self.new_line() for _ in range(lines)))

    def pick(self, random: Random, *, directories: bool | None = None) -> bytes | None:
        """Returns the path of something below the root, or None."""
        found = [
            path
            for path in sorted(tree_state(self.root))
            if path and directories in (None, is_directory(tree_state(self.root)[path]))
        ]
        return self.path_of(random.choice(found)) if found else None

    def pick_place(self, random: Random) -> bytes | None:
        """Returns a path at which nothing is, or None."""
        tree = tree_state(self.root)
        directories = sorted(path for path in tree if is_directory(tree[path]))
        place = os.path.join(self.path_of(random.choice(directories)), random.choice(NAMES))
        return None if os.path.lexists(place) else place

    @rule(seed=Seeds, changes=st.integers(1, 5))
    def work(self, seed: int, changes: int) -> None:
        self.change(Random(seed), changes)
        self.capture()

    def change(self, random: Random, changes: int) -> None:
        for _ in range(changes):
            name = random.choice(
                [
                    *("edit",) * 8,
                    "write",
                    "write",
                    "delete",
                    "rename",
                    "rename_place",
                    *("touch", "mode", "attribute", "mkdir", "symlink", "link", "binary", "owner"),
                ]
            )
            note(f"{name} {self.change_once(name, random)!r}")
        self.live = tree_state(self.root)

    def change_once(self, name: str, random: Random) -> bytes | None:
        if name in ("write", "mkdir", "symlink", "binary", "link"):
            place = self.pick_place(random)
            return place and self.make(name, place, random)
        if name in ("edit", "touch", "mode", "attribute", "owner", "delete"):
            path = self.pick(random, directories=False if name == "edit" else None)
            if path is not None:
                self.alter(name, path, random)
            return path
        path = self.pick(random, directories=True if name == "rename" else None)
        place = self.pick_place(random)
        if path is None or place is None or place.startswith(path + b"/"):
            return None
        os.rename(path, place)
        return path + b" -> " + place

    def make(self, name: str, place: bytes, random: Random) -> bytes | None:
        if name == "write":
            self.write(place, random.randrange(10))
        elif name == "mkdir":
            os.mkdir(place)
        elif name == "symlink":
            os.symlink(random.choice(NAMES), place)
        elif name == "binary":
            with open(place, "wb") as file:
                file.write(b"\0%d" % random.randrange(4))
        else:
            source = self.pick(random, directories=False)
            if source is None or b"/.git/" in source + place:
                return None
            os.link(source, place, follow_symlinks=False)
        return place

    def alter(self, name: str, path: bytes, random: Random) -> None:
        is_link = os.path.islink(path)
        if name == "touch":
            moment = random.choice([10**18, 10**18 + 1, -5])
            os.utime(path, ns=(moment, moment), follow_symlinks=False)
        elif name == "mode" and not is_link:
            os.chmod(path, random.choice([0o600, 0o640, 0o755, 0o700]))
        elif name == "owner":
            if os.geteuid() == 0:
                os.chown(path, random.randrange(3), 0, follow_symlinks=False)
        elif name == "attribute" and not is_link:
            key = random.choice(["user.one", "user.other"])
            if key in os.listxattr(path) and random.random() < 0.4:
                os.removexattr(path, key)
            else:
                with suppress(OSError):  # not every file system has attributes
                    os.setxattr(path, key, random.choice([b"", b"1", b"2" * 300]))
        elif name == "delete":
            shutil.rmtree(path) if os.path.isdir(path) and not is_link else os.unlink(path)
        elif name == "edit" and not is_link:
            self.edit(path, random)

    def edit(self, path: bytes, random: Random) -> None:
        lines = lines_of(Path(os.fsdecode(path)).read_bytes())
        if b"\0" in b"".join(lines) or any(line.startswith(b"=====") for line in lines):
            self.write(path, 3)
            return
        at = random.randrange(len(lines) + 1)
        new = [self.new_line() for _ in range(random.randrange(3))]
        lines[at : at + random.randrange(3)] = new
        if random.random() < 0.1 and lines:
            lines[-1] = b"end %d" % next(self.lines)
        elif lines and not lines[-1].endswith(b"\n"):
            lines[-1] = self.new_line()
        elif any(not line.endswith(b"\n") for line in lines[:-1]):
            lines = [line if line.endswith(b"\n") else self.new_line() for line in lines]
        with open(path, "wb") as file:
            file.write(
                b"".join(line if line.endswith(b"\n") else line + b"\n" for line in lines[:-1])
            )
            file.write(b"".join(lines[-1:]))

    # ------------------------------------------------------------ snapshots

    @rule()
    def capture(self) -> None:
        self.handle.create()
        self.look(self.live)

    @rule(
        seed=Seeds,
        what=st.sampled_from(["step", "step", "range", "one", "latest", "since"]),
        conflicts=Rules,
        narrow=st.sampled_from([False, False, True]),
        changes=st.integers(0, 4),
    )
    def revert_something(
        self, seed: int, what: str, conflicts: str, narrow: bool, changes: int
    ) -> None:
        random = Random(seed)
        self.change(random, changes)
        paths = self.paths(random) if narrow else []
        kinds = {item.id: item.kind for item in self.handle.list()}
        made = [
            item
            for item in self.history
            if kinds[item] is not SnapshotKind.SAFETY and not has_marks(self.states[item])
        ]
        at = random.randrange(len(made))
        if what in ("step", "range"):
            first, last = (at - 1, at) if what == "step" else (random.randrange(len(made)), at)
            one, other = made[max(0, first)], made[last]
            self.revert(f"{one}..{other}", self.states[one], self.states[other], conflicts, paths)
        elif what == "since":
            one = made[at]
            is_left_out = has_marks(self.live)
            self.revert(f"{one}..", self.states[one], self.live, conflicts, [])
            assert is_left_out or differences(self.live, self.states[one]) == []
        else:
            newest = next(
                item for item in reversed(self.history) if kinds[item] is not SnapshotKind.SAFETY
            )
            one = newest if what == "latest" else random.choice(self.history)
            number = self.history.index(one)
            ref = what if what == "latest" else one
            if number == 0:
                with pytest.raises(NotFound):
                    self.handle.revert(ref)
                return
            before = self.left[self.history[number - 1]]
            self.revert(ref, before, self.states[one], conflicts, paths)

    def paths(self, random: Random) -> list[bytes]:
        """Returns some paths of the tree or its history."""
        known = sorted(
            {path for state in [self.live, *self.states.values()] for path in state} - {b""}
        )
        found = random.sample(known, min(len(known), random.randrange(1, 3)))
        return [path for path in found if not {*above(path)} & {*found}]

    def revert(
        self, ref: str, theirs: TreeState, base: TreeState, conflicts: str, paths: list[bytes]
    ) -> None:
        before = self.live
        if any(map(has_marks, (before, theirs, base))):
            return  # the same line stands there twice, which the naive merge does not take
        if any(path not in side for path in paths for side in [{**before, **theirs, **base}]):
            with pytest.raises(NotFound):
                self.handle.revert(ref, [os.fsdecode(path) for path in paths], conflicts=conflicts)
            self.look(before)
            assert differences(self.live, before) == []
            return
        expected = merged(before, theirs, base, wanted=paths, rule=conflicts)
        self.tally(expected, before, paths, theirs, base)
        note(f"{ref} {paths} {conflicts}: {sorted(expected.conflicts)}")
        wanted = [self.path_of(path) for path in paths] or None
        dry = self.handle.revert(ref, wanted, conflicts=conflicts, dry_run=True)
        self.look(before)
        assert differences(self.live, before) == []
        assert set(dry.conflicts) == expected.conflicts
        if expected.conflicts and conflicts == "refuse":
            with pytest.raises(MergeConflict) as caught:
                self.handle.revert(ref, wanted)
            assert set(caught.value.paths) == expected.conflicts
            self.look(before)
            assert differences(self.live, before) == []
            return
        result = self.handle.revert(ref, wanted, conflicts=conflicts)
        self.look(before)
        if result.snapshot is not None and conflicts == "markers":
            what = (result.snapshot.label or "").removeprefix("revert of ").encode()
            labels = (b"now", b"before " + what)
            expected = merged(before, theirs, base, wanted=paths, rule=conflicts, labels=labels)
        self.compare(expected, before, result, dry, paths)
        if has_marks(self.live):
            self.undo()

    def tally(
        self,
        expected: Merge,
        before: TreeState,
        paths: list[bytes],
        theirs: TreeState,
        base: TreeState,
    ) -> None:
        """Counts what is merged, so that a run shows that it tried what it is for."""
        here, there = find_moves(base, before), find_moves(base, theirs)
        changed = expected.tree not in (before, theirs)
        RevertMachine.seen.update(
            {
                "reverts": 1,
                "of some paths": bool(paths),
                "both sides changed": changed,
                "with conflicts": bool(expected.conflicts),
                "texts merged": len(expected.merged_texts),
                "directories moved": bool(here or there),
                "hard links": any(item.links for item in expected.tree.values()),
            }
        )

    def compare(
        self,
        expected: Merge,
        before: TreeState,
        result: MergeResult,
        dry: MergeResult,
        paths: list[bytes],
    ) -> None:
        """Checks the tree after a revert, and what was said of it."""
        found = dict(self.live)
        for path in expected.merged_texts & {*found}:
            assert found[path].mtime_ns > 10**18 + 1
            found[path] = replace(found[path], mtime_ns=MERGE_TIME_NS)
        assert differences(found, expected.tree) == []
        assert set(result.conflicts) == expected.conflicts
        assert [(item.path, item.change) for item in result.changes] == [
            (item.path, item.change) for item in dry.changes
        ]
        assert result.kept == ()
        for path in before.keys() | self.live.keys():
            touched = without_links(before).get(path) != without_links(self.live).get(path)
            if touched and not is_wanted(path, paths):
                assert any(path in above(wanted) for wanted in paths)
                assert is_directory(self.live.get(path)), path
        if result.safety_id is not None:
            self.undo_stack.append(before)
            self.redo_stack.clear()
            assert differences(self.states[result.safety_id], before) == []
        else:
            assert differences(before, self.live) == []

    @precondition(lambda self: self.undo_stack)
    @rule()
    def undo(self) -> None:
        before = self.live
        self.handle.undo()
        self.look(before)
        assert differences(self.live, self.undo_stack.pop()) == []
        self.redo_stack.append(before)

    @precondition(lambda self: self.redo_stack)
    @rule()
    def redo(self) -> None:
        before = self.live
        self.handle.redo()
        self.look(before)
        assert differences(self.live, self.redo_stack.pop()) == []
        self.undo_stack.append(before)


def test_every_order_of_reverts_agrees_with_a_naive_merge(request: pytest.FixtureRequest) -> None:
    run(RevertMachine, EXAMPLES, STEPS)

    request.node.add_report_section("call", "what was tried", str(dict(RevertMachine.seen)))
