"""What a process at work goes back to stays, whatever a policy says, and goes afterwards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import treesnap
from changing import World
from oracle import difference, record
from treesnap import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.core.store.maintenance.retention import Policy
from treesnap.testing.children import in_child
from treesnap.testing.doubles import Call, Kind, WrappedFileSystem

pytestmark = pytest.mark.sampled(10)

ONE = Policy(keep_tags=("stays",))


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path)
    found.change(1000)
    for key in ("keep.last", "keep.hourly", "keep.daily", "keep.weekly"):
        found.handle.config(key, "0")
    return found


def holds(world: World) -> list[Path]:
    return list(world.store.glob("roots/*/hold-*"))


PRUNING = """
import sys, treesnap
from treesnap.core.store.maintenance.retention import Policy
handle = treesnap.open(sys.argv[1], sys.argv[2])
for number in range(3):
    with open(sys.argv[1] + "/file", "w") as file:
        file.write(str(number))
    handle.create(kind=treesnap.SnapshotKind.AUTOMATIC)
handle.prune(Policy(keep_last=1))
handle.gc()
sys.exit(3)
"""


def test_that_of_a_run_survives_what_its_command_prunes(world):
    before = record(world.root)
    words = [sys.executable, "-c", PRUNING, str(world.root), str(world.store)]

    result = world.handle.run(words, retries=1)

    assert result.rolled_back
    assert difference(before, record(world.root)) == []
    assert holds(world) == []


def test_that_of_a_block_survives_a_policy_that_keeps_one_other(world):
    world.handle.create(tags={"stays": "yes"})
    for _ in range(31):
        world.create(SnapshotKind.MANUAL)
    before = record(world.root)

    def fail() -> None:
        with world.handle.rollback_on_error():
            assert len(world.handle.prune(ONE, dry_run=True).removed) == 31
            world.handle.prune(ONE)
            world.change(10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert difference(before, record(world.root)) == []


def test_a_process_that_died_holds_nothing(world):
    block = treesnap.open(world.root, world.store).rollback_on_error()

    def die() -> None:
        block.__enter__()

    assert in_child(die).error is None
    assert len(holds(world)) == 1

    kept = world.handle.create(tags={"stays": "yes"}).id
    world.handle.prune(ONE)

    assert world.ids() == [kept]
    with world.handle.rollback_on_error():
        assert len(holds(world)) == 1
    assert holds(world) == []


@pytest.mark.parametrize("way", ["policy", "size"])
def test_what_was_just_made_stays(world, way):
    if way == "size":
        world.handle.config("max-size", "1", for_root=True)
        world.handle.config("keep.last", "50")
    for _ in range(31):
        world.create(SnapshotKind.MANUAL)

    made = world.create(SnapshotKind.RUN)

    assert world.ids()[0] == made


class InterruptedFileSystem(WrappedFileSystem):
    """Raises KeyboardInterrupt once, as Ctrl-C may, at the first call after a hold is there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_due = False
        self.is_done = False

    def around(self, call: Call) -> Any:
        if self.is_due and not self.is_done and call.kind != Kind.HANDLE:
            self.is_done = True
            raise KeyboardInterrupt
        result = call.proceed()
        self.is_due = self.is_due or (call.method != "open" and "/hold-" in str(call.arguments))
        return result


def test_one_that_is_interrupted_before_its_block_begins_holds_nothing(world):
    for _ in range(31):  # so that old snapshots are removed right after the checkpoint is taken
        world.create(SnapshotKind.MANUAL)
    fs = InterruptedFileSystem()
    handle = treesnap.Handle(context_at(root=world.root, store_path=str(world.store), fs=fs))

    with pytest.raises(KeyboardInterrupt), handle.rollback_on_error():
        pytest.fail("the block has begun")

    assert fs.is_done
    assert holds(world) == []
    with handle.rollback_on_error(overlap="refuse"):
        pass
