"""Any order of operations on a real tree, against records of what the tree was.

The machine keeps for every snapshot what the naive oracle saw when it was taken.
After every step that restores, the oracle looks again, and the two must be equal.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

import trees
import treesnap
from machines import run
from mutations import mutate
from oracle import Record, difference, record
from sampling import SEED, sized
from scopes import Scope, ancestors, captured, common_scope, inside, is_inside, outside
from treesnap.compat import position
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.results import RestoreResult
from treesnap.core.model.snapshots import SnapshotKind

SEEDS = range(SEED, SEED + sized(1, 3))
EXAMPLES = sized(3, 25)
STEPS = sized(15, 40)

Made = str | MultipleResults[str]
"""The id of a new snapshot, or none."""


class Moment(NamedTuple):
    """A state that can be gone back to."""

    id: str
    state: Record
    scope: Scope
    reached: frozenset[bytes] = frozenset()
    """Names out of scope that the restore which it was taken for reached, for its links."""


class Machine(RuleBasedStateMachine):
    """One root, one store, and everything that ever was in them."""

    seed = 0
    maker: Callable[..., None] = staticmethod(trees.build)
    snapshots: Bundle[str] = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="machine-"))
        self.root = self.directory / "root"
        self.handle = treesnap.open(self.root, self.directory / "store")
        self.moments: dict[str, Moment] = {}
        self.pinned: set[str] = set()
        self.collected: set[str] = set()
        """What there was at the last collection; another would find nothing to do."""
        self.undo_stack: list[str] = []
        self.redo_stack: list[str] = []

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    @initialize(target=snapshots)
    def build(self) -> Made:
        self.maker(self.root, self.seed)
        self.live = record(self.root)
        return self.create()

    def look(self) -> Record:
        """Looks at the tree anew; returns what it was when it was last looked at."""
        before, self.live = self.live, record(self.root)
        return before

    def paths(self, seed: int, *, gone: Record | None = None) -> tuple[bytes, ...]:
        """Returns some paths that exist, or existed in another state, or never did."""
        random = Random(seed)
        known = sorted({b"never", *self.live, *(gone or {})} - {b""})
        chosen = random.sample(known, random.randrange(1, min(4, len(known)) + 1))
        if random.random() < 0.3:
            chosen.append(random.choice(known) + b"/was")
        return tuple(
            path
            for path in chosen
            if not path.startswith(trees.STILL) and not ancestors((path,)) & {*chosen}
        )

    def keep(self, identity: str, scope: Scope) -> None:
        self.moments[identity] = Moment(identity, captured(self.live), scope)

    # ------------------------------------------------------------------ changes

    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 12))
    def mutate(self, seed: int, count: int) -> None:
        for done in mutate(self.root, Random(seed), count):
            note(done)
        self.live = record(self.root)

    # ---------------------------------------------------------------- snapshots

    @rule(target=snapshots)
    def create(self) -> Made:
        result = self.handle.create()
        assert result.complete
        assert difference(self.live, record(self.root)) == []
        now = without_extents(captured(self.live))
        for moment in self.moments.values():
            if moment.scope is None:
                is_same = without_extents(moment.state) == now
                hash_is_same = self.handle.resolve(moment.id).root_hash == result.root_hash
                assert is_same == hash_is_same
        self.keep(result.id, None)
        return result.id

    @rule(target=snapshots)
    def create_again(self) -> Made:
        result = self.handle.create(options=treesnap.CreateOptions(skip_unchanged=True))
        if result.unchanged:
            assert difference(self.moments[result.id].state, captured(self.live)) == []
            return multiple()
        self.keep(result.id, None)
        return result.id

    @rule(target=snapshots, seed=st.integers(0, 2**32), allow_absent=st.booleans())
    def create_paths(self, seed: int, allow_absent: bool) -> Made:
        scope = self.paths(seed)
        if not scope:
            return multiple()
        note(f"paths {scope!r}")
        unknown = [path for path in scope if path not in self.live and not self.was_held(path)]
        try:
            result = self.handle.create(
                scope, options=treesnap.CreateOptions(allow_absent=allow_absent)
            )
        except treesnap.InvalidArgument:
            assert self.leads_through_link(scope)
            return multiple()
        except treesnap.NotFound:
            assert unknown
            assert not allow_absent
            return multiple()
        assert allow_absent or all(self.was_above(path) for path in unknown)
        self.keep(result.id, self.handle.resolve(result.id).record.scope)
        return result.id

    def was_held(self, path: bytes) -> bool:
        held = (inside(moment.state, moment.scope) for moment in self.moments.values())
        return any(path in state for state in held)

    def was_above(self, path: bytes) -> bool:
        """Returns whether a snapshot may have a path for the sake of what is below it."""
        return any(
            path in ancestors(moment.scope) and path in moment.state
            for moment in self.moments.values()
        )

    def leads_through_link(self, scope: Scope) -> bool:
        above = ancestors(scope)
        return any(path in above and self.live[path].kind == "symlink" for path in self.live)

    def leads_through_other(self, scope: Scope) -> bool:
        above = ancestors(scope)
        return any(path in above and self.live[path].kind != "directory" for path in self.live)

    # ---------------------------------------------------------------- restores

    @rule(identity=snapshots)
    def restore(self, identity: str) -> None:
        if identity not in self.moments:
            with pytest.raises(treesnap.NotFound):
                self.handle.restore(identity)
            return
        moment = self.moments[identity]
        if self.leads_through_other(moment.scope):
            return
        self.restored(moment, moment.scope, self.handle.restore(identity))

    @rule(identity=snapshots, seed=st.integers(0, 2**32))
    def restore_paths(self, identity: str, seed: int) -> None:
        if identity not in self.moments:
            return
        moment = self.moments[identity]
        wanted = self.paths(seed, gone=moment.state)
        scope = common_scope(moment.scope, wanted)
        note(f"paths {wanted!r} of {moment.scope!r}")
        if not scope or self.leads_through_other(scope):
            return
        known = {*moment.state, *captured(self.live)} if moment.scope is None else {*wanted}
        if any(not common_scope(moment.scope, (path,)) or path not in known for path in wanted):
            with pytest.raises(treesnap.NotFound):
                self.handle.restore(identity, wanted or None)
            assert difference(self.live, record(self.root)) == []
            return
        self.restored(moment, scope, self.handle.restore(identity, wanted or None))

    @rule(target=snapshots, identity=snapshots)
    def mark(self, identity: str) -> Made:
        if identity not in self.moments:
            with pytest.raises(treesnap.NotFound):
                position.mark(self.handle.context, identity, CaptureRequest())
            return multiple()
        marked = position.mark(self.handle.context, identity, CaptureRequest()).id
        self.moments[marked] = self.moments[identity]._replace(id=marked)
        return marked

    @rule(target=snapshots, identity=snapshots, keep_files=st.booleans())
    def roll_back(self, identity: str, keep_files: bool) -> Made:
        moment = self.moments.get(identity)
        if moment is None or moment.scope is not None:
            with pytest.raises((treesnap.NotFound, treesnap.InvalidArgument)):
                position.rollback(self.handle.context, identity, keep_files=keep_files)
            return multiple()
        result = position.rollback(self.handle.context, identity, keep_files=keep_files)
        if result.restore is None:
            assert difference(self.live, record(self.root)) == []
        else:
            self.restored(moment, None, result.restore)
            assert position.compare_with_head(self.handle.context).changes == ()
        stands_at = result.position.id
        is_new = stands_at not in self.moments
        self.moments[stands_at] = Moment(stands_at, moment.state, None)
        return stands_at if is_new else multiple()

    def restored(self, moment: Moment, scope: Scope, result: RestoreResult) -> None:
        """Compares after a restore, and notes how it is undone."""
        before = self.look()
        self.compare(moment, scope, before, is_step=False)
        if result.safety_id is None:
            assert difference(outside(before, ()), outside(self.live, ())) == []
            return
        self.keep_safety(result.safety_id, before, moment.state, scope)
        self.undo_stack.append(result.safety_id)
        self.redo_stack.clear()

    def keep_safety(self, identity: str, before: Record, goal: Record, scope: Scope) -> None:
        linked = (facts.links for path, facts in goal.items() if is_inside(path, scope))
        reached = frozenset(name for names in linked for name in names)
        self.moments[identity] = Moment(identity, captured(before), scope, reached)

    def compare(self, moment: Moment, scope: Scope, before: Record, *, is_step: bool) -> None:
        """Checks that a restore changed what it had to change, and nothing else.

        A step back also removes the directories that were made for the paths in scope.
        """
        now = captured(self.live)
        assert difference(inside(moment.state, scope), inside(now, scope)) == []
        if scope is not None:
            made = {path for path in ancestors(scope) if path not in before}
            rest = {path: facts for path, facts in self.live.items() if path not in made}
            gone = {path for path in ancestors(scope) if path in before and path not in self.live}
            assert not gone or (is_step and gone.isdisjoint(moment.state))
            before = {path: facts for path, facts in before.items() if path not in gone}
            assert difference(outside(before, scope), outside(rest, scope)) == []
        else:
            left_out = before.keys() - captured(before).keys()
            for path in left_out:
                assert before[path] == self.live[path]
        known = [path for path in scope or () if path in now]
        if known or scope is None:
            assert self.handle.diff(moment.id, None, known or None) == ()

    @rule()
    def look_at_latest(self) -> None:
        """The newest snapshot that counts is of the whole root, and no restore made it."""
        listed = [item for item in self.handle.list() if item.kind != SnapshotKind.SAFETY]
        whole = [item.id for item in listed if self.moments[item.id].scope is None]
        for back, identity in enumerate(whole[:3]):
            assert self.handle.resolve(f"latest~{back}").id == identity
        for back, item in enumerate(listed[:3]):
            assert self.handle.resolve(f"newest~{back}").id == item.id
        assert getattr(self.handle.status().snapshot, "id", None) == next(iter(whole), None)
        if not whole:
            with pytest.raises(treesnap.NotFound):
                self.handle.resolve("latest")

    @rule()
    def undo(self) -> None:
        self.step_back(self.undo_stack, self.redo_stack, self.handle.undo)

    @rule()
    def redo(self) -> None:
        self.step_back(self.redo_stack, self.undo_stack, self.handle.redo)

    def step_back(
        self, source: list[str], target: list[str], step: Callable[[], RestoreResult]
    ) -> None:
        """Goes to the moment on top of one stack; what was goes onto the other."""
        if not source or source[-1] not in self.moments:
            with pytest.raises(treesnap.NotFound):
                step()
            return
        moment = self.moments[source[-1]]
        if self.leads_through_other(moment.scope):
            return
        result = step()
        before = self.look()
        source.pop()
        self.compare(moment, moment.scope, before, is_step=True)
        if result.safety_id is None:
            target.append(moment.id)
            return
        self.keep_safety(result.safety_id, before, moment.state, moment.scope)
        target.append(result.safety_id)

    # -------------------------------------------------------------------- space

    @rule(identity=snapshots)
    def delete(self, identity: str) -> None:
        if identity in self.pinned:
            with pytest.raises(treesnap.Refused):
                self.handle.delete(identity)
        elif identity in self.moments:
            self.handle.delete(identity)
            del self.moments[identity]

    @precondition(lambda self: self.undo_stack)
    @rule()
    def delete_safety(self) -> None:
        identity = self.undo_stack[-1]
        if identity in self.moments and identity not in self.pinned:
            self.handle.delete(identity)
            del self.moments[identity]

    @rule(identity=snapshots)
    def pin(self, identity: str) -> None:
        if identity in self.moments:
            self.handle.pin(identity)
            self.pinned.add(identity)

    @precondition(lambda self: self.collected != {*self.moments})
    @rule()
    def collect(self) -> None:
        would_free = self.handle.gc(dry_run=True)
        result = self.handle.gc()
        assert result.removed_objects == would_free.removed_objects
        assert self.handle.gc().removed_objects == 0
        self.collected = {*self.moments}
        self.verify()
        for moment in list(self.moments.values())[-4:]:
            self.export(moment)

    @rule(identity=snapshots)
    def restore_elsewhere(self, identity: str) -> None:
        if identity in self.moments:
            self.export(self.moments[identity])

    def export(self, moment: Moment) -> None:
        """Compares a snapshot that is restored into a directory of its own."""
        target = self.directory / "elsewhere"
        self.handle.restore(moment.id, to=target)
        found = record(target)
        assert difference(inside(moment.state, moment.scope), inside(found, moment.scope)) == []
        if moment.scope is not None:
            within = inside(found, moment.scope)
            linked = {name for path in within for name in found[path].links}  # see format.md
            linked |= moment.reached
            above = ancestors([*moment.scope, *linked])
            assert {*outside(found, moment.scope)} <= above | linked
        shutil.rmtree(target)

    @rule()
    def verify(self) -> None:
        result = self.handle.verify(read_data=True)
        assert result.problems == ()

    # --------------------------------------------------------------- always true

    @invariant()
    def history_is_what_was_made_and_not_deleted(self) -> None:
        assert {snapshot.id for snapshot in self.handle.list()} == {*self.moments}

    @invariant()
    def no_litter_is_in_the_root(self) -> None:
        if self.root.exists():
            assert not [name for name in os.listdir(self.root) if name.startswith(".treesnap")]


def without_extents(state: Record) -> Record:
    """Returns a record that does not say which zeros are stored: they are the same as holes."""
    return {path: replace(facts, extents=()) for path, facts in state.items()}


class SmallMachine(Machine):
    """The same with a tree of few paths, so that operations meet on the same ones."""

    maker = staticmethod(trees.build_small)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_order_of_operations_agrees_with_naive_records(seed: int) -> None:
    run(type("SeededMachine", (Machine,), {"seed": seed}), EXAMPLES, STEPS)


def test_every_order_of_operations_on_a_few_paths_agrees_with_naive_records() -> None:
    run(SmallMachine, sized(3, 5) * EXAMPLES, 2 * STEPS)
