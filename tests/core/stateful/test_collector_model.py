"""The protocol of writers and collectors as a model, explored step by step.

Nothing here is the product's code: the rules are written down a second time, in
``protocol``. The machine lets writers and collectors take steps in any order, leaves some
standing through whole collections, kills them, and removes snapshots.

A model that cannot fail proves nothing. So each rule is also broken on purpose, and the
machine has to find out.
"""

from __future__ import annotations

from random import Random
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from protocol import BROKEN_RULES, OBJECTS, Collector, Process, World, Writer
from sampling import IS_FULL, sized

EXAMPLES = sized(25, 1_000)
WALKS = sized(500, 50_000)
"""Each costs a thirtieth of an example."""
WALKS_TO_FIND_MAX = 50_000
HARD_TO_FIND = {"looks at snapshots before pending ones": 6156}
"""Walks that find what thousands of others do not, as long as the model does not change."""
STEPS = 40
PROCESSES_MAX = 3

Item = TypeVar("Item")

CHOICE = st.integers(0, 5)
STEPS_AT_ONCE = [1, 1, 1, 2, 3, 5, 8, 100]


def chosen(items: list[Item], which: int) -> Item:
    return items[which % len(items)]


class Machine(RuleBasedStateMachine):
    """Writers, collectors and people who remove snapshots, in any order."""

    broken: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.broken)
        self.processes: list[Process] = []

    @initialize(needs=st.lists(st.sets(st.integers(0, OBJECTS - 1), min_size=1), max_size=3))
    def begin_with_a_history(self, needs: list[set[int]]) -> None:
        for items in needs:
            self.finish(Writer(self.world, frozenset(items)))

    def finish(self, process: Process) -> None:
        while process.step():
            self.no_snapshot_misses_an_object()

    def take_steps(self, process: Process, count: int) -> None:
        for _ in range(count):
            if not process.step():
                self.processes.remove(process)
                return
            self.no_snapshot_misses_an_object()

    @precondition(lambda self: len(self.processes) < PROCESSES_MAX)
    @rule(
        needs=st.sets(st.integers(0, OBJECTS - 1), min_size=1, max_size=3),
        is_full=st.booleans(),
        is_helped=st.booleans(),
        count=st.integers(1, 12),
    )
    def start_a_writer(self, needs: set[int], is_full: bool, is_helped: bool, count: int) -> None:
        writer = Writer(self.world, frozenset(needs), is_full=is_full, is_helped=is_helped)
        self.processes.append(writer)
        self.take_steps(self.processes[-1], count)

    @precondition(lambda self: len(self.processes) < PROCESSES_MAX)
    @rule(count=st.integers(1, 20))
    def start_a_collector(self, count: int) -> None:
        self.processes.append(Collector(self.world))
        self.take_steps(self.processes[-1], count)

    @precondition(lambda self: self.processes)
    @rule(which=CHOICE, count=st.sampled_from(STEPS_AT_ONCE))
    def go_on(self, which: int, count: int) -> None:
        self.take_steps(chosen(self.processes, which), count)

    @rule()
    def collect(self) -> None:
        """A whole collection, while everybody else stands still."""
        self.finish(Collector(self.world))

    @precondition(lambda self: self.processes)
    @rule(which=CHOICE)
    def kill(self, which: int) -> None:
        process = chosen(self.processes, which)
        self.processes.remove(process)
        process.die()

    @precondition(lambda self: self.world.snapshots)
    @rule(which=CHOICE)
    def delete(self, which: int) -> None:
        del self.world.snapshots[chosen(sorted(self.world.snapshots), which)]

    @invariant()
    def no_snapshot_misses_an_object(self) -> None:
        there = {item for pack in self.world.linked for item in pack.objects}
        for number, needs in self.world.snapshots.items():
            assert needs <= there, f"snapshot {number} misses {needs - there}"

    def teardown(self) -> None:
        """When all are dead, one collection takes everything that is not needed."""
        for process in self.processes:
            process.die()
        self.finish(Collector(self.world))
        needed = sorted({item for needs in self.world.snapshots.values() for item in needs})
        found = sorted(item for pack in self.world.linked for item in pack.objects)
        assert self.broken or found == needed
        assert not any(slot.pending for slot in self.world.slots)


def wander(broken: str, seed: int) -> None:
    """Takes the machine's rules at random: as it does, but without the cost of shrinking."""
    random = Random(seed)
    machine = Machine()
    machine.world.broken = machine.broken = broken

    def needs() -> set[int]:
        return set(random.choices(range(OBJECTS), k=random.randrange(1, 4)))

    machine.begin_with_a_history([needs() for _ in range(random.randrange(4))])
    for _ in range(STEPS):
        has_room = len(machine.processes) < PROCESSES_MAX
        turn, which = random.random(), random.randrange(6)
        if has_room and turn < 0.2:
            is_full, is_helped = random.random() < 0.5, random.random() < 0.3
            machine.start_a_writer(needs(), is_full, is_helped, random.randrange(1, 13))
        elif has_room and turn < 0.3:
            machine.start_a_collector(random.randrange(1, 30))
        elif turn < 0.33:
            machine.collect()
        elif machine.processes and turn < 0.35:
            machine.kill(which)
        elif machine.world.snapshots and turn < 0.5:
            machine.delete(which)
        elif machine.processes:
            machine.go_on(which, random.choice(STEPS_AT_ONCE))
    machine.teardown()


def test_no_order_of_steps_loses_anything():
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            derandomize=not IS_FULL,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_order_of_steps_loses_anything_when_many_are_tried():
    for seed in range(WALKS):
        wander("", seed)


@pytest.mark.parametrize("broken", sorted(BROKEN_RULES))
def test_a_broken_rule_is_found(broken):
    def search() -> None:
        for seed in (HARD_TO_FIND.get(broken, 0), *range(WALKS_TO_FIND_MAX)):
            wander(broken, seed)

    with pytest.raises(AssertionError, match="misses"):
        search()
