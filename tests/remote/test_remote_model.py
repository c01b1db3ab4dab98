"""The protocol of remotes as a model, explored request by request.

Nothing here is the product's code: the rules are written down a second time, in
``remote_protocol``. Machines push, delete and collect in any order; requests lose their answers
or land again long after; machines stop for whole collections, or die.

A model that cannot fail proves nothing. So each rule is also broken on purpose, and has to be
found out.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from remote_protocol import (
    BROKEN_RULES,
    COPY,
    DAMAGED,
    FAULTS,
    JUNK,
    PARTIAL_EPOCHS,
    Collector,
    Delete,
    Deleter,
    Deletion,
    Intruder,
    Machine,
    Rebuilder,
    Repairer,
    Revoker,
    Steps,
    Thief,
    World,
    Writer,
    closures,
    is_catalog,
    number_in,
    state_name,
)
from sampling import IS_FULL, sized

EXAMPLES = sized(25, 1_000)
RUNS = sized(60, 6_000)
RUNS_TO_FIND_MAX = 20_000
MACHINES_MAX = 4
HARD_TO_FIND = {
    "checks for a state, then puts it": 536,
    "counts commits below the floor": 25,
    "counts removed commits": 25,
    "creates states although it is barred": 1377,
    "deletes from one commit of a number": 54,
    "does not look at the state after its commit": 13,
    "looks for no newer list with a new state": 76,
    "relies on what barred machines push": 78,
    "revokes a machine that it did not bar": 25,
    "lists what was there some time ago": 95,
    "numbers parts by the state that it read": 209,
    "reads the state before it lists commits": 256,
    "passes a state that no member signed before it is there": 118,
    "rebuilds what is not whole": 41,
    "relies on condemned packs": 9,
    "relies on uncertain commits": 72,
    "reuses its packs of an earlier epoch": 30,
    "spares nothing that new commits need": 12,
    "sweeps by a state that lost": 38,
    "sweeps what no member signed above the state": 702,
    "takes a damaged state for one that no member signed": 195,
    "writes the copy of a state first": 175,
}
"""Runs that find what those before do not, as long as the model does not change."""
FOUND_BY_LOSSES = {
    "lets go of packs that the server lost",
    "repairs what no pack lists alone",
}
FOUND_BY_DAMAGE = {
    "collects as if damaged commits held nothing",
    "takes a damaged state for one that no member signed",
    "writes the copy of a state first",
}
FOUND_BY_REBUILDS = {
    "rebuilds what is not whole",
    "deletes from one commit of a number",
    "removes what a rebuild does not show",
}
FOUND_BY_JUNK = {
    "passes a state that no member signed before it is there",
    "sweeps what no member signed above the state",
}
FOUND_BY_REVOCATIONS = {
    "acknowledges what it pushed when it was barred",
    "creates states although it is barred",
    "looks for no newer list with a new state",
    "relies on what barred machines push",
    "revokes a machine of which it folded nothing",
    "revokes a machine that it did not bar",
}
COLLECTORS = {
    "creates states although it is barred": 5,
    **dict.fromkeys(FOUND_BY_JUNK, 6),
}
FOUND_BY_THIEVES = {"carries out what a member deletes"}

CHOICE = st.integers(0, 7)


class Actor:
    """A machine, and the request that it waits for."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.request = next(self.steps, None)
        self.asleep_until = 0

    def answer(self, answer: object) -> bool:
        """Gives the machine an answer; returns whether it goes on."""
        try:
            self.request = self.steps.send(answer)
        except StopIteration:
            self.request = None
        return self.request is not None


def finish(world: World, steps: Steps) -> None:
    """Lets a machine work alone, without faults."""
    actor = Actor(steps)
    while actor.request is not None:
        actor.answer(world.answer(actor.request))


def wander(
    broken: str,
    seed: int,
    *,
    machines: int = 8,
    collectors: int = 0,
    steps: int = 900,
    loses: bool = False,
    damages: bool = False,
    plants: bool = False,
    rebuilds: bool = False,
    part_size: int = 1 << 30,
    revokes: bool = False,
    steals: bool = False,
) -> None:
    """Runs many machines at once, in an order drawn by lot; some of them always collect.

    A new part of index or catalog holds no more than ``part_size`` says.

    With ``loses`` the server loses packs, and with ``damages`` commits, deletions and states cannot
    be read any more, the states for a while. With ``plants`` a thief writes among the states. With
    ``rebuilds`` parts of catalog and index cannot be read, until machines write them anew. With
    ``revokes`` machines are revoked, and their keys used on; with ``steals`` a thief deletes with
    the key of a member.
    """
    random = Random(seed)
    world = World(broken, 1 if machines < 100 else 100, part_size, revokes=revokes)

    def start(which: int) -> Actor:
        if loses and random.random() < 0.1:
            return Actor(Repairer(world, random).steps())
        if revokes and random.random() < 0.2:
            return Actor(random.choice([Revoker, Revoker, Intruder])(world, random).steps())
        if steals and random.random() < 0.1:
            return Actor(Thief(world, random).steps())
        if rebuilds and random.random() < 0.15:
            return Actor(Rebuilder(world, random).steps())
        kind = random.choices([Collector, Deleter, Writer], [25, 15, 60])[0]
        if collectors:
            kind = Collector if which < collectors else random.choice([Writer, Writer, Deleter])
        return Actor(kind(world, random).steps())

    actors = [start(which) for which in range(machines)]
    for step in range(steps):
        if world.late and random.random() < 0.05:
            world.land(random.randrange(len(world.late)))
        if loses and random.random() < 0.01:
            world.lose(random)
        if damages and random.random() < 0.02:
            world.damage(random, random.choice(["commits/", "commits/", "deletions/", "state/"]))
        if damages and random.random() < 0.05:
            world.mend()
        if rebuilds and random.random() < 0.01:
            part = world.damage(random, "index/")
            if part and not is_catalog(part):
                # Garbage is not known from what this part alone named: no machine may sweep now.
                world.late = [item for item in world.late if not isinstance(item, Delete)]
                actors = [start(which) for which in range(machines)]
        if plants and random.random() < 0.02:
            world.plant(random)
        which = random.randrange(len(actors))
        actor = actors[which]
        if actor.asleep_until > step:
            continue
        if random.random() < 0.01:
            actor.asleep_until = step + random.randrange(20, 300)
        if actor.request is None or random.random() < 0.003:
            actors[which] = start(which)
            continue
        fault = random.choices(["", *FAULTS], [84, 6, 6, 4])[0]
        lag = random.randrange(1, 8) if random.random() < 0.3 else 0
        actor.answer(world.answer(actor.request, fault, lag))
    settle(world, random)


def settle(world: World, random: Random) -> None:
    """When all machines have stopped, a few collections leave what is needed and no more."""
    while world.late:
        world.land(0)
    world.mend()
    world.check()
    if world.lost:
        finish(world, Repairer(world, random).steps())
    for _ in range(PARTIAL_EPOCHS + 2):
        finish(world, Collector(world, random).collect())
    world.lost.clear()
    world.check()
    view = world.view()
    shown = {snapshot for held in view.visible.values() for snapshot in held.roots}
    gone = {snapshot for _, snapshot in world.gone}
    assert not shown & gone, "a deleted snapshot is still there"
    needed = closures(root for held in view.visible.values() for root in held.roots.values())
    for name, held in view.packs.items():
        assert held & needed, f"{name} holds waste alone"
    lists = [name for name in world.files if name.startswith("members/")]
    named = {*lists, state_name(view.number), *view.state.index, *view.state.catalog, *view.packs}
    left = {
        name
        for name, held in world.files.items()
        if held is not DAMAGED
        and (not name.endswith(COPY) or number_in(name) < view.number)
        and (held is not JUNK or number_in(name) < view.number)
        and (not isinstance(held, Deletion) or not held.is_of_member)
    }
    assert left == named, "garbage is left"


class Remote(RuleBasedStateMachine):
    """A few machines and one remote, in any order of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.actors: list[Actor] = []

    @precondition(lambda self: len(self.actors) < MACHINES_MAX)
    @rule(kind=st.sampled_from([Writer, Writer, Collector, Deleter]), seed=st.integers(0, 99))
    def start(self, kind: type[Machine], seed: int) -> None:
        self.actors.append(Actor(kind(self.world, Random(seed)).steps()))

    @precondition(lambda self: self.actors)
    @rule(which=CHOICE, count=st.sampled_from([1, 1, 2, 5, 20, 100]))
    def go_on(self, which: int, count: int) -> None:
        actor = self.actors[which % len(self.actors)]
        for _ in range(count):
            if actor.request is None or not actor.answer(self.world.answer(actor.request)):
                self.actors.remove(actor)
                return

    @precondition(lambda self: self.actors)
    @rule(which=CHOICE, fault=st.sampled_from(FAULTS))
    def meet_a_fault(self, which: int, fault: str) -> None:
        actor = self.actors[which % len(self.actors)]
        if actor.request is not None:
            actor.answer(self.world.answer(actor.request, fault))

    @precondition(lambda self: self.world.late)
    @rule(which=CHOICE)
    def land(self, which: int) -> None:
        self.world.land(which)

    @precondition(lambda self: self.actors)
    @rule(which=CHOICE)
    def kill(self, which: int) -> None:
        del self.actors[which % len(self.actors)]

    def teardown(self) -> None:
        settle(self.world, Random(0))


def test_no_order_of_requests_loses_anything():
    run_state_machine_as_test(
        Remote,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=60,
            derandomize=not IS_FULL,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("share", range(4))
def test_no_order_of_requests_loses_anything_when_many_are_tried(share):
    for seed in range(share, RUNS, 4):
        wander("", seed)


def test_an_index_of_several_new_parts_loses_nothing():
    """A collector may die between them."""
    for seed in range(sized(10, 1_000)):
        wander("", seed, part_size=1 + seed % 3)


def test_a_thousand_machines_and_eight_collectors_lose_nothing():
    for seed in range(sized(1, 6)):
        wander("", seed, machines=1_000, collectors=8, steps=sized(10_000, 100_000))


def test_one_collector_alone_needs_no_server_that_creates_a_file_once():
    """It dies now and then, and the next one meets requests of it that land late."""
    for seed in range(sized(10, 600)):
        wander("checks for a state, then puts it", seed, collectors=1)


def test_what_a_server_loses_is_stored_again():
    """Until then it stays named, and nothing else is lost."""
    for seed in range(sized(10, 1_000)):
        wander("", seed, loses=True)


def test_a_commit_that_is_damaged_is_read_from_its_packs():
    """So collections go on beside it, and nothing is lost."""
    for seed in range(sized(10, 1_000)):
        wander("", seed, damages=True)


def test_a_rebuild_loses_nothing_beside_other_machines():
    """Parts of catalog and index are damaged in both their places."""
    for seed in range(sized(10, 1_000)):
        wander("", seed, rebuilds=True)


def test_what_no_member_signed_among_the_states_stops_nothing():
    """Collections pass its number, as long as it is there."""
    for seed in range(sized(10, 1_000)):
        wander("", seed, plants=True, collectors=6 * (seed % 2))


def test_what_a_machine_pushed_before_it_was_revoked_stays():
    """And what it pushes later counts for nothing, also to those that were at work meanwhile."""
    for seed in range(sized(10, 1_000)):
        wander("", seed, revokes=True, collectors=2 * (seed % 2))


def test_a_member_removes_nothing():
    for seed in range(sized(10, 600)):
        wander("", seed, steals=True)


@pytest.mark.parametrize("broken", sorted(BROKEN_RULES))
def test_a_broken_rule_is_found(broken):
    def search() -> None:
        for seed in (HARD_TO_FIND.get(broken, 0), *range(RUNS_TO_FIND_MAX)):
            wander(
                broken,
                seed,
                loses=broken in FOUND_BY_LOSSES,
                damages=broken in FOUND_BY_DAMAGE,
                plants=broken in FOUND_BY_JUNK,
                collectors=COLLECTORS.get(broken, 0),
                rebuilds=broken in FOUND_BY_REBUILDS,
                revokes=broken in FOUND_BY_REVOCATIONS,
                steals=broken in FOUND_BY_THIEVES,
            )

    with pytest.raises(AssertionError):
        search()
