"""Signed, chained heads of machines over the epochs of a remote: a model with a server that lies.

A commit carries a head: its machine, a sequence number, the head before it, and what its writer had
seen of others. Files are ``commits/<epoch>-<machine>-<sequence>-<id>`` and ``state/<n>``. Readers
list commits, and then read the state.

An honest server, with lost answers, crashes and collections, must raise no alarm. A lying one may
hide only what no head that it shows, and no mark of the reader, knows. Each rule can be broken on
purpose. A machine gives a number to one head, whatever becomes of it. The product carries this out
in ``remote/protocol.py``; there, a list is not read in one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from random import Random
from typing import NamedTuple

RULES = (
    "keeps marks",
    "looks at what others saw",
    "looks at the state that others read",
    "checks signatures",
    "a history is of one machine",
    "marks only what is certain",
    "sees only what is certain",
    "uses a number once",
    "names what may be void",
    "a fold keeps heads",
    "a fold joins the heads of the state before",
    "lists before it reads the state",
    "pins the state",
    "looks for gaps",
    "compares ids at one sequence number",
)
MODES = ("honest", "rollback", "hide", "fork", "forge", "copy")
"""What the server does from some moment on; ``copy`` is a machine that is copied with its key."""
STEPS = 900
NO_HEAD = (0, 0)

Heads = dict[str, tuple[int, int]]
"""Sequence number and id of the newest head of each machine."""
Steps = Iterator[None]
"""What yields between two requests."""


class Head(NamedTuple):
    """A commit, as far as this is about it."""

    machine: str
    sequence: int
    id: int
    epoch: int
    state: tuple[int, int]
    """Number and token of the state that its writer had read."""
    seen: tuple[tuple[str, int, int], ...]
    """Certain heads that its writer knew, above those of that state."""
    maybe_void: tuple[int, ...]
    """Own sequence numbers that may never count."""
    signer: str
    """The holder of the key that signed it."""
    history: str
    """The machine that its history is of."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"commits/{self.epoch:08d}-{self.machine}-{self.sequence}-{self.id}"


class State(NamedTuple):
    """What counts."""

    number: int = 0
    epoch: int = 1
    closing: int = 0
    floor: int = 0
    heads: tuple[tuple[str, int, int], ...] = ()
    """The join of all heads that ever counted."""
    catalog: tuple[int, ...] = ()
    """Ids of folded commits."""
    token: int = 0

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"state/{self.number:08d}"


File = Head | State


class Noticed(Exception):
    """A machine refuses what it is shown."""


class Wrong(AssertionError):
    """A lie was taken, or an alarm was raised although the server is honest."""


class World:
    """A server, which each machine may see in its own way, and what is true."""

    def __init__(self, random: Random, broken: str, mode: str) -> None:
        assert broken == "" or broken in RULES
        self.random = random
        self.mode = mode
        self._broken = broken
        self.files: dict[str, File] = {State().name: State()}
        self.saved: dict[str, File] = {}
        self._late: list[tuple[str, str, File]] = []
        self._branches: dict[str, dict[str, File]] = {}
        self._hidden: dict[str, set[str]] = {}
        self._ids = 1
        self.is_lying = False
        self.own: dict[int, dict[int, int]] = {}
        """Which own heads of the writer of a head had been acknowledged."""
        self.past: dict[int, dict[str, int]] = {}
        """What the writer of a head knew."""
        self.past_state: dict[int, int] = {}
        """The number of the state that it knew."""
        self.acknowledged: set[int] = set()

    def breaks(self, rule: str) -> bool:
        """Tells whether this run breaks a rule."""
        assert rule in RULES
        return self._broken == rule

    def new_id(self) -> int:
        """Returns an id that nothing has yet."""
        self._ids += 1
        return self._ids

    def _of(self, machine: str) -> dict[str, File]:
        return self._branches.get(machine, self.files)

    def put(self, machine: str, name: str, file: File) -> bool:
        """Writes a file; returns whether the answer arrives. A request may land later."""
        fate = self.random.random()
        if fate < 0.05:
            self._late.append((machine, name, file))
            return False
        self._of(machine)[name] = file
        if 0.10 <= fate < 0.13:
            self._late.append((machine, name, file))
        return fate >= 0.10

    def land(self) -> None:
        """Lets a late request land, now and then."""
        if self._late and self.random.random() < 0.03:
            machine, name, file = self._late.pop()
            self._of(machine)[name] = file

    def create(self, machine: str, state: State) -> bool:
        """Writes a state unless there is one; returns whether it did."""
        return self._of(machine).setdefault(state.name, state) is state

    def get(self, machine: str, name: str) -> File | None:
        """Returns a file."""
        return self._of(machine).get(name)

    def list(self, machine: str, prefix: str) -> list[str]:
        """Returns the names that begin so and that a machine is shown."""
        hidden = self._hidden.get(machine, ())
        return sorted(n for n in self._of(machine) if n.startswith(prefix) and n not in hidden)

    def delete(self, machine: str, name: str) -> None:
        """Removes a file."""
        self._of(machine).pop(name, None)

    def lie(self, machines: str) -> None:
        """Begins to lie, in the way of this run."""
        self.is_lying = True
        random = self.random
        if self.mode == "rollback":
            self.files = dict(self.saved)
        elif self.mode == "fork":
            other = dict(self.saved if random.random() < 0.5 else self.files)
            self._branches = {name: other for name in machines if random.random() < 0.5}
        elif self.mode == "hide":
            for machine in machines:
                hidden = {name for name in self.files if random.random() < 0.3}
                if random.random() < 0.6:
                    self._hidden[machine] = hidden
        elif self.mode == "forge":
            victim = random.choice(machines)
            void = tuple(range(50))
            forged = Head(victim, 50, self.new_id(), 10**6, (0, 0), (), void, "thief", victim)
            own = Head("thief", 1, self.new_id(), 10**6, (0, 0), (), (), "thief", victim)
            for head in (forged, own):
                self.past[head.id] = {}
                self.past_state[head.id] = 0
                self.own[head.id] = {}
                self.files[head.name] = head

    def merge(self) -> None:
        """Shows everything to all machines again."""
        for branch in self._branches.values():
            self.files |= branch
        self._branches.clear()
        self._hidden.clear()


class View(NamedTuple):
    """What a machine read."""

    state: State
    listed: tuple[Head, ...]

    def is_certain(self, head: Head) -> bool:
        """Tells whether a head counts for ever."""
        return head.id in self.state.catalog or head.epoch >= self.state.closing


def join(into: Heads, machine: str, sequence: int, identity: int) -> None:
    """Takes a head up where it is newer."""
    if sequence > into.get(machine, NO_HEAD)[0]:
        into[machine] = (sequence, identity)


def heads_of(state: State) -> Heads:
    """Returns the heads that a state has."""
    return {machine: (sequence, identity) for machine, sequence, identity in state.heads}


class Machine:
    """A machine that pushes, reads and collects, and remembers what it saw."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.marks: Heads = {}
        self.state_mark = (0, 0)
        self.sequence = 0
        """Journaled before a head is sent, as the next."""
        self.unsure: set[int] = set()
        """Own numbers of which it is not known whether they count."""
        self.own: dict[int, int] = {}
        """Ids of its acknowledged heads by their numbers; what is true, whatever it remembers."""
        self.stopped = ""
        """Why it refuses the server."""
        self.known: dict[str, int] = {}
        """What is true of what it saw, whatever rules it breaks."""
        self.known_state = 0

    def copied(self) -> Machine:
        """Returns a copy with the same key and the same memory."""
        other = Machine(self.world, self.name)
        for key, value in vars(self).items():
            setattr(other, key, value.copy() if isinstance(value, dict | set) else value)
        return other

    def steps(self) -> Steps:
        """Works until it notices something."""
        choices: tuple[Callable[[], Steps], ...] = (
            self.push,
            self.push,
            self.look,
            self.collect,
        )
        while not self.stopped:
            try:
                yield from self.world.random.choice(choices)()
            except Noticed as error:
                self.stopped = str(error)
                if not self.world.is_lying:
                    raise Wrong(f"a false alarm: {self.stopped}") from None
            yield

    def look(self) -> Steps:
        """Reads, and does nothing with it."""
        yield from self._read()

    # Reading

    def _read(self) -> Generator[None, None, View]:
        """Reads commits and the state; its result is a View."""
        world = self.world
        while True:
            state = None
            if world.breaks("lists before it reads the state"):
                state = yield from self._state()
            names = world.list(self.name, "commits/")
            yield
            if state is None:
                state = yield from self._state()
            listed: list[Head] = []
            for name in names:
                head = world.get(self.name, name)
                yield
                if not isinstance(head, Head):
                    break  # it was swept: again
                is_signed = head.signer == head.machine or world.breaks("checks signatures")
                is_own = head.history == head.machine or world.breaks("a history is of one machine")
                if (
                    is_signed
                    and is_own
                    and head.epoch >= state.floor
                    and head.id not in state.catalog
                ):
                    listed.append(head)
            else:
                view = View(state, tuple(listed))
                self._check(view)
                return view

    def _state(self) -> Generator[None, None, State]:
        while True:
            names = self.world.list(self.name, "state/")
            yield
            if not names:
                raise Noticed("no state")
            state = self.world.get(self.name, names[-1])
            yield
            if isinstance(state, State):
                return state

    def _check(self, view: View) -> None:
        """Raises Noticed where a view contradicts what is known; then takes it as known."""
        world, state = self.world, view.state
        number, token = self.state_mark
        is_older = state.number < number or (state.number == number and state.token != token)
        if is_older and not world.breaks("pins the state"):
            raise Noticed("an older or another state")
        by_number: dict[tuple[str, int], Head] = {}
        shown = heads_of(state)
        for head in view.listed:
            if by_number.setdefault((head.machine, head.sequence), head).id != head.id:
                raise Noticed(f"two heads of one number: a copy of {head.machine}")
            join(shown, head.machine, head.sequence, head.id)
        self._look_for_state(view)
        self._look_for(shown, view)
        if not world.breaks("looks for gaps"):
            self._look_for_gaps(state, by_number)
        self._look_for_lies(shown, view)
        self._take(view)

    def _look_for_state(self, view: View) -> None:
        """Raises Noticed where a head's writer had read a higher state, or another one."""
        if self.world.breaks("looks at the state that others read"):
            return
        state = view.state
        for head in view.listed:
            number, token = head.state
            if number > state.number or (number == state.number and token != state.token):
                raise Noticed(f"{head.machine} saw another state")

    def _look_for(self, shown: Heads, view: View) -> None:
        """Raises Noticed where a machine is behind what a mark or a shown head knows of it."""
        world = self.world
        known: list[tuple[str, int, int]] = []
        if not world.breaks("keeps marks"):
            known += [(machine, *head) for machine, head in self.marks.items()]
        if not world.breaks("looks at what others saw"):
            known += [item for head in view.listed for item in head.seen]
        for machine, sequence, identity in known:
            have = shown.get(machine, NO_HEAD)
            if have[0] < sequence:
                raise Noticed(f"{machine} was at {sequence}, and is shown at {have[0]}")
            is_other = have[0] == sequence and have[1] != identity
            if is_other and not world.breaks("compares ids at one sequence number"):
                raise Noticed(f"another head {sequence} of {machine}")

    def _look_for_gaps(self, state: State, by_number: dict[tuple[str, int], Head]) -> None:
        """Raises Noticed where a number is neither shown nor excused by a later head."""
        folded = heads_of(state)
        for machine, sequence in by_number:
            for number in range(folded.get(machine, NO_HEAD)[0] + 1, sequence):
                later = (
                    head
                    for (other, other_number), head in by_number.items()
                    if other == machine and other_number > number
                )
                is_excused = any(number in head.maybe_void for head in later)
                if (machine, number) not in by_number and not is_excused:
                    raise Noticed(f"a gap: {machine} {number}")

    def _look_for_lies(self, shown: Heads, view: View) -> None:
        """Raises Wrong where something of the past of what is shown, or was known here, lacks."""
        world = self.world
        truth = dict(self.known)
        for head in view.listed:
            if head.signer != head.machine:
                raise Wrong("a forged head was taken")
            if head.history != head.machine:
                raise Wrong("a machine spoke for another one")
            for machine, sequence in world.past[head.id].items():
                truth[machine] = max(sequence, truth.get(machine, 0))
        for machine, sequence in truth.items():
            if shown.get(machine, NO_HEAD)[0] < sequence:
                raise Wrong(f"a lie was taken: {machine} is at {sequence}")
        visible = {*view.state.catalog, *(head.id for head in view.listed)}
        for head in view.listed:  # all that its machine had pushed before
            for sequence, identity in world.own[head.id].items():
                if sequence < head.sequence and identity not in visible:
                    raise Wrong("a lie was taken: a hole in a chain")
            if world.past_state[head.id] > view.state.number:
                raise Wrong("a lie was taken: a state that a writer had read")
        if view.state.number < self.known_state:
            raise Wrong("a lie was taken: an older state")
        for machine, (sequence, identity) in self.marks.items():
            have = shown.get(machine, NO_HEAD)
            if have[0] == sequence and have[1] != identity:
                raise Wrong("a copy was taken for the machine itself")

    def _take(self, view: View) -> None:
        """Remembers what a view shows."""
        state = view.state
        self.known_state = state.number
        self.state_mark = (state.number, state.token)
        for machine, sequence, identity in state.heads:
            join(self.marks, machine, sequence, identity)
            self.known[machine] = max(sequence, self.known.get(machine, 0))
        for head in view.listed:
            if view.is_certain(head):
                self.known[head.machine] = max(head.sequence, self.known.get(head.machine, 0))
            if view.is_certain(head) or self.world.breaks("marks only what is certain"):
                join(self.marks, head.machine, head.sequence, head.id)

    # Writing

    def push(self) -> Steps:
        """Sends a head, and waits whether it counts."""
        world = self.world
        view = yield from self._read()
        head = self._next_head(view)
        while not world.put(self.name, head.name, head):
            yield
            if world.random.random() < 0.2:  # a crash
                if world.breaks("uses a number once"):
                    self.sequence -= 1
                return
        yield
        for _ in range(world.random.randrange(1, 6)):
            state = yield from self._state()
            if state.closing <= head.epoch or head.id in state.catalog:
                join(self.marks, self.name, head.sequence, head.id)
                self.known[self.name] = head.sequence
                self.own[head.sequence] = head.id
                self.unsure.discard(head.sequence)
                world.acknowledged.add(head.id)
                return
            if head.epoch < state.floor:
                return

    def _next_head(self, view: View) -> Head:
        world = self.world
        seen = dict(self.marks)
        if world.breaks("sees only what is certain"):
            for head in view.listed:
                join(seen, head.machine, head.sequence, head.id)
        folded = heads_of(view.state)
        void = () if world.breaks("names what may be void") else tuple(sorted(self.unsure))
        self.sequence += 1
        self.unsure.add(self.sequence)
        head = Head(
            self.name,
            self.sequence,
            world.new_id(),
            view.state.epoch,
            (view.state.number, view.state.token),
            tuple(
                (machine, *newest)
                for machine, newest in seen.items()
                if newest[0] > folded.get(machine, NO_HEAD)[0]
            ),
            void,
            self.name,
            self.name,
        )
        world.past[head.id] = dict(self.known)
        world.past_state[head.id] = self.known_state
        world.own[head.id] = dict(self.own)
        return head

    def collect(self) -> Steps:
        """Creates three states, of which the second closes an epoch, and sweeps."""
        world = self.world
        view = yield from self._read()
        state = view.state
        for phase in range(3):
            if phase == 2:
                view = yield from self._read()
                if view.state.number != state.number:
                    return
            heads, catalog = (state.heads, state.catalog) if phase == 1 else self._folded(view)
            state = State(
                state.number + 1,
                state.epoch + (phase == 0),
                state.epoch if phase == 1 else state.closing,
                state.closing if phase == 2 else state.floor,
                heads,
                catalog,
                world.new_id(),
            )
            if not world.create(self.name, state):
                return
            yield
            if world.list(self.name, "state/")[-1:] != [state.name]:  # a liar may show none
                return
            yield
        yield from self._sweep()

    def _folded(self, view: View) -> tuple[tuple[tuple[str, int, int], ...], tuple[int, ...]]:
        forgets = any(
            map(
                self.world.breaks,
                ("a fold keeps heads", "a fold joins the heads of the state before"),
            )
        )
        heads = {} if forgets else heads_of(view.state)
        if not self.world.breaks("a fold keeps heads"):
            for head in view.listed:
                join(heads, head.machine, head.sequence, head.id)
        catalog = {*view.state.catalog, *(head.id for head in view.listed)}
        rows = tuple((machine, *newest) for machine, newest in sorted(heads.items()))
        return rows, tuple(sorted(catalog))

    def _sweep(self) -> Steps:
        world = self.world
        commits, states = (world.list(self.name, kind) for kind in ("commits/", "state/"))
        yield
        state = yield from self._state()
        for name in commits:
            head = world.get(self.name, name)
            if isinstance(head, Head) and (head.epoch < state.floor or head.id in state.catalog):
                world.delete(self.name, name)
                yield
        for name in states:
            if name < state.name:
                world.delete(self.name, name)
                yield


class Outcome(NamedTuple):
    """What came of a run that went right."""

    noticed: int
    """How many machines refused the server."""
    pushes: int
    states: int


def run(seed: int, mode: str, broken: str = "") -> Outcome:
    """Lets some machines work, in an order drawn by lot; raises Wrong."""
    random = Random(seed)
    world = World(random, broken, mode)
    names = "abcd"[: random.randrange(2, 5)]
    machines = [Machine(world, name) for name in names]
    working = {machine.name: machine.steps() for machine in machines}
    lies_at, saved_at = random.randrange(100, 500), random.randrange(20, 300)
    for step in range(STEPS):
        if step in (0, saved_at):
            world.saved = dict(world.files)
        if step == lies_at and mode == "copy":
            world.is_lying = True
            machines.append(machines[0].copied())
            names += "z"
            working["z"] = machines[-1].steps()
        elif step == lies_at and mode != "honest":
            world.lie(names)
        elif step == lies_at + 150 and mode in {"fork", "hide"} and random.random() < 0.7:
            world.merge()
        world.land()
        name = random.choice(names)
        if name in working and next(working[name], "done") == "done":
            del working[name]
    return Outcome(
        sum(bool(machine.stopped) for machine in machines),
        len(world.acknowledged),
        max(_numbers(world.files), default=0),
    )


def _numbers(files: Iterable[str]) -> Iterator[int]:
    return (int(name.partition("/")[2]) for name in files if name.startswith("state/"))
