"""A restore is killed half-way, and then its journal is damaged in every way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sampling import sized
from state import tree_state
from treesnap.core.codec.envelope import FileKind, seal, unseal
from treesnap.core.codec.journal import Stage, decode_journal, encode_journal
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Corrupt, ErrorCode, TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault, UnsyncedFileSystem
from world import World, damage

pytestmark = pytest.mark.sampled(10)

GIVEN_UP_EVERY = sized(4, 16)
"""Of so many damages one is also given up, because all are refused alike."""
MOVES = frozenset({"exchange", "rename_to_absent"})


class Interrupted:
    """A root between two states, with its store; put back before each damage."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.world = World(base)
        fault = Fault(number=2, methods=MOVES)
        assert killed(lambda fs: self.world.handle(fs=fs).restore("second"), fault).was_killed
        self.journal = self.world.only("roots/*/journal")
        self.content = self.journal.read_bytes()
        for name in ("root", "store"):
            shutil.copytree(base / name, base / f"{name}-whole", symlinks=True)
        (self.stage,) = self.world.root.glob(".treesnap-restore-*")
        mine, earlier = (item.id for item in self.world.handle().list() if not item.name)
        states = self.world.states
        self.states = states | {mine: states["first"], earlier: states["second"]}

    def reset(self) -> None:
        for name in ("root", "store"):
            shutil.rmtree(self.base / name)
            shutil.copytree(self.base / f"{name}-whole", self.base / name, symlinks=True)
        self.world.handle().store_trust()  # a copy is not proven to be the user's

    def damages(self) -> Iterator[bytes]:
        """Yields every damaged journal; none is whole."""
        for position in range(len(self.content)):
            changed = bytearray(self.content)
            changed[position] ^= 1 << position % 8
            yield bytes(changed)
            yield self.content[:position]
        yield bytes(len(self.content))
        yield self.content + b"more"


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Interrupted:
    return Interrupted(tmp_path_factory.mktemp("interrupted"))


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.slow)])
def test_a_damaged_journal_costs_no_snapshot_and_is_given_up_on_request(interrupted, step):
    interrupted.reset()
    for number, content in enumerate(list(interrupted.damages())[::step]):
        check_refused(interrupted, content, number)
        if number % GIVEN_UP_EVERY == 0:
            check_given_up(interrupted)
            interrupted.reset()


def check_refused(interrupted: Interrupted, content: bytes, number: int) -> None:
    """Checks that nothing is done about a damage, and that one snapshot, in turn, restores."""
    interrupted.journal.write_bytes(content)
    world = interrupted.world
    before = tree_state(world.root)

    with pytest.raises(Corrupt):
        world.handle().create()
    names = list(interrupted.states)
    check_export(interrupted, names[number % len(names)])
    (problem,) = world.handle().verify(read_data=True).problems
    where = str(interrupted.journal.relative_to(world.store))
    assert (problem.code, problem.where) == ("bad-journal", where)
    assert tree_state(world.root) == before


def check_export(interrupted: Interrupted, name: str) -> None:
    target = interrupted.base / "target"
    interrupted.world.handle().restore(name, to=target)
    state = interrupted.states[name]
    assert without_times_of_root(tree_state(target)) == without_times_of_root(state)
    shutil.rmtree(target)


def check_given_up(interrupted: Interrupted) -> None:
    world = interrupted.world
    before = tree_state(world.root)
    for name in interrupted.states:
        check_export(interrupted, name)
    world.handle().gc()
    assert tree_state(world.root) == before

    (said,) = world.handle().verify(repair=True).repaired

    assert tree_state(world.root) == before
    assert interrupted.stage.exists()
    safety = next(item for item in world.handle().list() if item.id[:12] in said)
    assert safety.pinned
    assert world.handle().verify(read_data=True).ok
    assert world.handle().create().snapshot.complete
    shutil.rmtree(interrupted.stage)
    assert world.restores("second")
    world.handle().restore(safety.id)
    assert tree_state(world.root) == world.states["first"]


def without_times_of_root(state):
    return {path: item for path, item in state.items() if path}


def test_a_missing_journal_costs_no_snapshot(interrupted):
    interrupted.reset()
    interrupted.journal.unlink()
    world = interrupted.world

    assert world.handle().verify(read_data=True).ok
    assert world.handle().create().snapshot.complete
    assert interrupted.stage.exists()
    shutil.rmtree(interrupted.stage)
    assert world.restores("second")
    assert world.restores("first")


def test_a_restore_is_finished_once_its_snapshots_are_mended(interrupted):
    interrupted.reset()
    world = interrupted.world
    for path in world.store.glob("snapshots/*/*"):
        damage(path, "8")
    with pytest.raises(TreesnapError):
        world.handle().create()

    found = world.handle().verify(repair=True)

    assert {item.code for item in found.problems} == {"bad-snapshot", "bad-journal"}
    assert found.left == ()
    assert interrupted.journal.exists()
    assert world.handle().recover() == "completed an interrupted restore"
    assert tree_state(world.root) == world.states["second"]


@pytest.mark.parametrize("stage", list(Stage))
def test_the_journal_of_another_root_changes_nothing(interrupted, stage):
    """Not even the metadata of the root, which a journal brings back."""
    interrupted.reset()
    world = interrupted.world
    other = interrupted.base / "other"
    other.mkdir(exist_ok=True)
    os.chmod(other, 0o750)
    beside = Handle(context_at(root=other, store_path=str(world.store), fs=UnsyncedFileSystem()))
    beside.create()
    journal = world.store / "roots" / root_directory(world, other) / "journal"
    shutil.copy(interrupted.journal, journal)
    if stage == Stage.STAGING:
        payload = unseal(journal.read_bytes(), FileKind.JOURNAL, "journal")
        early = decode_journal(payload)._replace(commit=None)
        journal.write_bytes(seal(FileKind.JOURNAL, encode_journal(early)))
    before = tree_state(other)

    with pytest.raises(TreesnapError) as caught:
        beside.create()
    assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED
    (found,) = (item for item in beside.doctor().unfinished if item.root == os.fsencode(other))
    assert found.blocked
    assert "of another root" in found.resolution
    assert [item.code for item in beside.verify().problems] == ["bad-journal"]
    assert tree_state(other) == before
    if stage == Stage.STAGING:
        assert beside.doctor(forget=True).forgotten
    else:
        beside.verify(repair=True)

    assert tree_state(other) == before
    assert beside.create().snapshot.complete
    shutil.rmtree(other)


def root_directory(world: World, root: Path) -> str:
    from treesnap.core.model.ids import root_id

    return root_id(os.fsencode(os.path.realpath(root)))
