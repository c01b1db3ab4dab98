"""The protocol with which machines share a remote, as a model: its rules, and no bytes.

Every machine is a generator. It yields a request and is sent the answer, so that its driver
decides in which order requests of many machines land, which answers are lost, and which
requests land once more, long after. Lists come in pages of three names.

An object is a tuple: ``("leaf", n)``, or ``("tree", child, ...)``. A name says when its file was
written: packs and commits carry the epoch that their writer read, parts of the index and of the
catalog the number of the first state that names them. A pack also says of which commit it is.
Commits and states say which machine signed them, and deletions whether it may delete;
``members/<number>`` has the machines that were revoked.

Each rule can be broken on purpose.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, islice
from random import Random
from typing import Any, NamedTuple

Object = tuple[Any, ...]
Objects = frozenset[Object]
Packs = Mapping[str, Objects]
"""What lies in each pack."""

LEAVES = 6
PAGE_SIZE = 3
PARTIAL_EPOCHS = 2
"""So many epochs a partial commit keeps its packs; four in the product."""

BROKEN_RULES = {
    # what a writer owes
    "does not look at the state after its commit",
    "reuses its packs of an earlier epoch",
    "relies on condemned packs",
    "relies on uncertain commits",
    "prunes at any tree that is there",
    "prunes at trees of its partial commits",
    "reads the state before it lists commits",
    # what a reader owes
    "counts commits below the floor",
    "counts removed commits",
    # what a collector owes
    "spares nothing that new commits need",
    "spares nothing that partial commits keep",
    "lists commits before it closes the epoch",
    "checks for a state, then puts it",
    "names parts that are not there yet",
    "numbers parts by the state that it read",
    "keeps a part of which something goes",
    "removes a commit of which snapshots are left",
    "lets go of packs that the server lost",
    "collects as if damaged commits held nothing",
    "takes a damaged state for one that no member signed",
    "passes a state that no member signed before it is there",
    "carries out what a member deletes",
    # what roles and a revocation ask
    "creates states although it is barred",
    "acknowledges what it pushed when it was barred",
    "relies on what barred machines push",
    "revokes a machine that it did not bar",
    "revokes a machine of which it folded nothing",
    "looks for no newer list with a new state",
    # what who writes a copy owes
    "writes the copy of a state first",
    # what a repair owes
    "repairs what no pack lists alone",
    "rebuilds what is not whole",
    "deletes from one commit of a number",
    "removes what a rebuild does not show",
    # what a sweep owes
    "sweeps packs of the current epoch",
    "sweeps by a state that lost",
    "sweeps deletions that are not carried out",
    "sweeps what no member signed above the state",
    # what a server owes
    "lists what was there some time ago",
}


class Lost(AssertionError):
    """Something that was acknowledged is not there."""


def children(item: Object) -> tuple[Object, ...]:
    """Returns what an object references."""
    return item[1:] if item[0] == "tree" else ()


@cache
def closure(root: Object) -> Objects:
    """Returns an object and everything below it."""
    return frozenset({root}).union(*(closure(child) for child in children(root)))


def closures(roots: Iterable[Object]) -> Objects:
    """Returns some objects and everything below them."""
    return frozenset().union(*(closure(root) for root in roots))


class Snapshots(NamedTuple):
    """What a catalog says of a commit."""

    epoch: int
    roots: Mapping[int, Object]
    """The root tree of each snapshot; a partial commit has none."""
    kept: Objects
    """What a partial commit keeps, each object for itself: nothing is known of what is below."""

    @property
    def needed(self) -> Objects:
        """Everything that must be there."""
        return closures(self.roots.values()) | self.kept

    def without(self, snapshots: Iterable[int]) -> Snapshots:
        """Returns what is left when some snapshots are deleted."""
        gone = set(snapshots)
        return self._replace(roots={k: v for k, v in self.roots.items() if k not in gone})


def of_snapshots(commits: Iterable[Snapshots]) -> Objects:
    """Returns what the snapshots of commits need, without what partial commits keep."""
    return frozenset().union(*(closures(item.roots.values()) for item in commits))


class Commit(NamedTuple):
    """One push, or a part of one: what ``commits/<epoch>-<id>`` holds."""

    id: int
    snapshots: Snapshots
    packs: Packs
    machine: int = 0

    @property
    def epoch(self) -> int:
        """The epoch that its writer read; all its packs carry it."""
        return self.snapshots.epoch


class Pack(NamedTuple):
    """What ``packs/<epoch>-<commit>-<id>`` holds; that of a collector is of commit 0."""

    objects: Objects
    snapshots: Snapshots | None = None
    """Those of its commit."""
    machine: int = 0


DAMAGED = "damaged"
"""What a server has in the place of a file that cannot be read."""
COPY = "-c"
"""What the name of the copy of a state ends with."""
JUNK = "junk"
"""What a thief put in the place of a state: no member signed it, and it was never one."""


class Deletion(NamedTuple):
    """What ``deletions/<id>`` holds."""

    commit: int
    epoch: int
    snapshots: frozenset[int]
    is_of_member: bool = False
    """Whether a machine signed it that may not delete."""


@dataclass(frozen=True)
class State:
    """What ``state/<number>`` holds."""

    epoch: int = 1
    closing: int = 0
    floor: int = 0
    condemned: frozenset[str] = frozenset()
    index: tuple[str, ...] = ()
    """Parts, each of which says what lies in some packs."""
    catalog: tuple[str, ...] = ()
    """Parts, each of which says what some commits hold."""
    removed: frozenset[int] = frozenset()
    """Commits that lost all their snapshots since the floor rose."""
    barred: frozenset[int] = frozenset()
    """Machines that are being revoked: they create no state after it, and of what they push only
    the catalog counts for certain."""
    machine: int = 0
    """The one that signed it."""
    token: object = None
    """Which attempt wrote it."""


@dataclass(frozen=True)
class View:
    """What a machine has read."""

    number: int
    state: State
    commits: Mapping[int, Commit]
    """Listed commits that count and are not in the catalog."""
    catalog: Mapping[int, Snapshots]
    index: Packs

    @property
    def visible(self) -> dict[int, Snapshots]:
        """Commits that count."""
        return {**self.catalog, **{k: commit.snapshots for k, commit in self.commits.items()}}

    @property
    def packs(self) -> dict[str, Objects]:
        """Packs that some visible commit or the index lists."""
        listed = (commit.packs for commit in self.commits.values())
        return dict(self.index) | {name: held for packs in listed for name, held in packs.items()}


# Requests. A list begins after a name, and ends after a page.


class Put(NamedTuple):
    """Writes a file, whether or not there is one."""

    name: str
    content: Any


class Create(NamedTuple):
    """Writes a file if there is none; answers whether it did."""

    name: str
    content: Any


class Delete(NamedTuple):
    """Removes a file, if there is one."""

    name: str


class Get(NamedTuple):
    """Answers the content, or None."""

    name: str


class List(NamedTuple):
    """Answers a page of names."""

    prefix: str
    after: str = ""


Request = Put | Create | Delete | Get | List
Steps = Generator[Request, Any, Any]
NO_ANSWER = "no answer"
DONE_LATER, DONE_UNHEARD, DONE_TWICE = "done later", "done, but unheard", "done twice"
FAULTS = (DONE_LATER, DONE_UNHEARD, DONE_TWICE)


def state_name(number: int) -> str:
    """Returns the name of a state."""
    return f"state/{number:016x}"


def number_in(name: str) -> int:
    """Returns the epoch or the number that a name carries."""
    return int(name.split("/")[1][:16], 16)


def is_catalog(part: str) -> bool:
    """Tells whether a part is one of the catalog, rather than of the index."""
    return "-catalog-" in part


class World:
    """A server, and what its users were told."""

    def __init__(
        self,
        broken: str = "",
        changes_per_check: int = 1,
        part_size: int = 1 << 30,
        *,
        revokes: bool = False,
    ) -> None:
        self.broken = broken
        self.part_size = part_size
        """So many packs a new part of the index lists, or commits one of the catalog."""
        self.revokes = revokes
        """Whether machines are told apart, and look for a list of those that were revoked."""
        self.changes_per_check = changes_per_check
        self.changes = 0
        self.files: dict[str, Any] = {state_name(0): State()}
        self.names = list(self.files)
        self.late: list[Request] = []
        """Requests that will land some time, or land again."""
        self.acknowledged: set[tuple[int, int]] = set()
        """Commit and snapshot."""
        self.deleted: set[tuple[int, int]] = set()
        """Those that a machine asked to delete, from the moment of asking."""
        self.gone: set[tuple[int, int]] = set()
        """Those of which the deletion was acknowledged."""
        self.lost: dict[str, Objects] = {}
        """Packs that the server lost. What lies in them is missed once they are named no more."""
        self.damaged: dict[str, Any] = {}
        """What commits and states held that the server damaged."""
        self.numbers = count(1)
        self.revoked: set[int] = set()
        """Machines of which a revocation was acknowledged."""
        self.intruded: set[int] = set()
        """What they pushed later."""
        self.past: list[list[str]] = []

    def breaks(self, rule: str) -> bool:
        """Tells whether a rule is broken in this world."""
        assert rule in BROKEN_RULES
        return self.broken == rule

    def answer(self, request: Request, fault: str = "", lag: int = 0) -> Any:
        """Carries a request out, with a fault if it changes something."""
        if isinstance(request, Put | Create | Delete) and fault:
            if fault != DONE_UNHEARD:
                self.late.append(request)
            answer = NO_ANSWER if fault == DONE_LATER else self.carry_out(request)
            return answer if fault == DONE_TWICE else NO_ANSWER
        return self.carry_out(request, lag)

    def carry_out(self, request: Request, lag: int = 0) -> Any:
        """Does what a server does; a change is followed by a look at everything."""
        match request:
            case Get(name):
                return self.files.get(name)
            case List(prefix, after):
                is_late = lag and self.past and self.breaks("lists what was there some time ago")
                names = self.past[-lag:][0] if is_late else self.names
                first = bisect_right(names, max(prefix, after))
                page = names[first : first + PAGE_SIZE]
                return [name for name in page if name.startswith(prefix)]
            case Create(name, _) if name in self.files:
                return False
            case Put(name, content) | Create(name, content):
                self.change(name, content)
            case Delete(name):
                self.change(name, None)
        return True

    def change(self, name: str, content: object) -> None:
        """Changes something, and looks whether everything that was promised is there.

        What is lost stays lost, so in a large world it is enough to look now and then.
        """
        if self.breaks("lists what was there some time ago"):
            self.past.append(list(self.names))
            del self.past[:-8]
        if name not in self.files and content is not None:
            insort(self.names, name)
        if name in self.files and content is None:
            del self.names[bisect_left(self.names, name)]
            del self.files[name]
        if content is not None:
            self.files[name] = content
        self.changes += 1
        if self.changes % self.changes_per_check == 0:
            self.check()

    def land(self, which: int) -> None:
        """Lets a late request land."""
        self.carry_out(self.late.pop(which % len(self.late)))

    def lose(self, random: Random) -> None:
        """Lets the server lose a pack."""
        packs = [name for name in self.view().packs if name in self.files]
        if packs:
            name = random.choice(packs)
            self.names.remove(name)
            self.lost[name] = self.files.pop(name).objects

    def damage(self, random: Random, kind: str = "commits/") -> str:
        """Lets the server damage a file; returns its name.

        A deletion that cannot be read deletes nothing. What a part of the catalog did not show may
        come back, for it is not known any more.
        """
        names = [name for name in self.names if name.startswith(kind) and self.is_whole(name)]
        if not names:
            return ""
        name = random.choice(names)
        both = (name.removesuffix(COPY), name.removesuffix(COPY) + COPY)
        for each in both if random.random() < 0.5 else (name,):
            if each in names:
                self.damaged[each] = self.files[each]
                self.files[each] = DAMAGED
        held = self.damaged[name]
        if isinstance(held, Deletion):
            self.gone -= {(held.commit, item) for item in held.snapshots}
        if is_catalog(name):
            self.gone.clear()
        return name

    def is_whole(self, name: str) -> bool:
        """Tells whether a file is what its writer made."""
        return self.files[name] not in (DAMAGED, JUNK)

    def mend(self) -> None:
        """Puts states and parts back that were damaged, from what a machine has kept."""
        for name in [name for name in self.damaged if name.startswith(("state/", "index/"))]:
            held = self.damaged.pop(name)
            if self.files.get(name) is DAMAGED:
                self.files[name] = held

    def plant(self, random: Random) -> None:
        """Lets a thief without a key write a file among the states, where none is."""
        highest = max(number_in(name) for name in self.names if name.startswith("state/"))
        name = state_name(random.choice([highest + 1, highest + 1, highest + 2]))
        insort(self.names, name)
        self.files[name] = JUNK

    def view(self) -> View:
        """Returns what a reader would read that reads everything at this instant."""
        states = {
            number_in(name): self.damaged[name] if held is DAMAGED else held
            for name, held in self.files.items()
            if name.startswith("state/") and not name.endswith(COPY) and held is not JUNK
        }
        revoked = newest_list(self.files)
        states = {number: item for number, item in states.items() if item.machine not in revoked}
        if not states:
            raise Lost("there is no state")
        number, state = max(states.items())
        commits = [
            self.damaged[name] if value is DAMAGED else value
            for name, value in self.files.items()
            if name.startswith("commits/")
        ]
        return seen(self, number, state, commits, {**self.files, **self.damaged}, revoked)

    def check(self) -> None:
        """Raises Lost when something is not there that must be."""
        try:
            view = self.view()
        except KeyError as error:
            raise Lost(f"the state names {error}, which is not there") from None
        there: set[Object] = set()
        for name, held in view.packs.items():
            if name in self.files or name in self.lost:
                there |= held
        if self.intruded & view.catalog.keys():
            raise Lost("a machine pushed that was revoked")
        deleted = {snapshot for _, snapshot in self.deleted}
        shown = {snapshot for held in view.visible.values() for snapshot in held.roots}
        for commit, snapshots in view.visible.items():
            for snapshot, root in snapshots.roots.items():
                if snapshot not in deleted and not closure(root) <= there:
                    raise Lost(f"snapshot {snapshot} of commit {commit} is not whole")
            if not snapshots.kept <= there.union(*self.lost.values()):
                raise Lost(f"partial commit {commit} is not whole")
        for commit, snapshot in self.acknowledged:
            if snapshot not in deleted and snapshot not in shown:
                raise Lost(f"snapshot {snapshot} of commit {commit} was acknowledged")


def newest_list(files: Mapping[str, Any]) -> frozenset[int]:
    """Returns the machines that were revoked."""
    lists = [name for name in files if name.startswith("members/")]
    revoked: frozenset[int] = files[max(lists)] if lists else frozenset()
    return revoked


def seen(
    world: World,
    number: int,
    state: State,
    commits: Iterable[Commit],
    parts: Mapping[str, Any],
    revoked: Collection[int],
) -> View:
    """Returns a view; raises KeyError where a part is missing."""
    catalog = {k: v for name in state.catalog for k, v in parts[name].items()}
    index = {k: v for name in state.index for k, v in parts[name].items()}
    counted = {
        commit.id: commit
        for commit in commits
        if commit.id not in catalog
        and commit.machine not in revoked
        and (commit.epoch >= state.floor or world.breaks("counts commits below the floor"))
        and (commit.id not in state.removed or world.breaks("counts removed commits"))
    }
    return View(number, state, counted, catalog, index)


@dataclass
class Machine:
    """A user with access to the remote."""

    world: World
    random: Random
    own: list[Commit] = field(default_factory=list)
    """Commits that it wrote and that were acknowledged."""
    junk: set[int] = field(default_factory=set)
    """Numbers of files among the states that no member signed."""
    revoked: frozenset[int] = frozenset()
    """By the newest list that it read."""
    newest_state: int = -1

    def __post_init__(self) -> None:
        self.identity = next(self.world.numbers) if self.world.revokes else 0

    def steps(self) -> Steps:
        """Yields its requests."""
        raise NotImplementedError

    def breaks(self, rule: str) -> bool:
        """Tells whether a rule is broken."""
        return self.world.breaks(rule)

    # Requests that are repeated until they are answered

    def put(self, name: str, content: object) -> Steps:
        """Writes a file."""
        while (yield Put(name, content)) == NO_ANSWER:
            pass

    def delete(self, name: str) -> Steps:
        """Removes a file."""
        while (yield Delete(name)) == NO_ANSWER:
            pass

    def list(self, prefix: str) -> Steps:
        """Returns all names with a prefix."""
        names: list[str] = []
        while page := (yield List(prefix, names[-1] if names else "")):
            names += page
        return names

    def get_all(self, names: Iterable[str]) -> Steps:
        """Returns the contents of files, or None when one is gone."""
        found = {}
        for name in names:
            found[name] = yield Get(name)
            if found[name] is None:
                return None
        return found

    def get_parts(self, state: State) -> Steps:
        """Returns the parts that a state names, or None when one is gone or damaged."""
        parts = yield from self.get_all([*state.catalog, *state.index])
        return None if parts is None or DAMAGED in parts.values() else parts

    # Reading

    def read_state(self) -> Steps:
        """Returns the number and the content of the highest state.

        What no member signed is none. One that is damaged may be the newest: nothing is read until
        it is whole again.
        """
        while True:
            names = yield from self.list("state/")
            for name in reversed([name for name in names if not name.endswith(COPY)]):
                state = yield Get(name)
                if state is DAMAGED or state is JUNK:
                    copy = yield Get(name + COPY)
                    state = copy if isinstance(copy, State) else state
                is_unsigned = state is JUNK or (
                    state is DAMAGED
                    and self.breaks("takes a damaged state for one that no member signed")
                )
                if is_unsigned:
                    self.junk.add(number_in(name))
                    continue
                if state is None or state is DAMAGED:
                    break
                number = number_in(name)
                if number > self.newest_state:
                    is_rash = self.breaks("looks for no newer list with a new state")
                    if self.world.revokes and not is_rash:
                        yield from self.read_list()
                    self.newest_state = number
                if state.machine in self.revoked:
                    self.junk.add(number)
                    continue
                return number, state

    def read_list(self) -> Steps:
        """Reads the newest list of the machines; returns its number."""
        while True:
            names = yield from self.list("members/")
            if not names:
                return 0
            found = yield Get(names[-1])
            if found is not None:
                self.revoked = found
                return number_in(names[-1])

    def next_number(self, number: int) -> int:
        """Returns the number of the state after one: what no member signed has a number too.

        Who passes it has read it. It stays until a higher state is there: so no other machine can
        create a state of that number.
        """
        number += 1
        is_rash = self.breaks("passes a state that no member signed before it is there")
        if is_rash and self.random.random() < 0.5:
            number += 1
        while number in self.junk:
            number += 1
        return number

    def read(self, *, is_frugal: bool = False) -> Steps:
        """Returns a view: first what is listed, then the state, or a commit could be trusted
        that is void already.

        A frugal reader lists no commits: it knows those that it wrote itself.
        """
        while True:
            view = yield from self.read_once(is_frugal)
            if view is not None:
                return view

    def read_once(self, is_frugal: bool) -> Steps:
        """Returns a view, or None when a file that it needs is gone: the state has moved on."""
        is_early = self.breaks("reads the state before it lists commits")
        number, state = (yield from self.read_state()) if is_early else (0, State())
        names = [] if is_frugal else (yield from self.list("commits/"))
        if not is_early:
            number, state = yield from self.read_state()
        parts = yield from self.get_parts(state)
        if parts is None:
            return None
        cataloged = {commit for name in state.catalog for commit in parts[name]}
        commits = list(self.own) if is_frugal else []
        for name in names:
            is_counted = number_in(name) >= state.floor
            is_counted = is_counted or self.breaks("counts commits below the floor")
            if is_counted and int(name.rsplit("-")[-1]) not in cataloged:
                commit = yield from self.get_commit(name)
                if commit is None:
                    return None
                commits.append(commit)
        return seen(self.world, number, state, commits, parts, self.revoked)

    def get_commit(self, name: str) -> Steps:
        """Returns a commit; one that is damaged as its packs say it. None where it is gone."""
        found = yield Get(name)
        if found is not DAMAGED:
            return found
        epoch, identity = number_in(name), int(name.rsplit("-", maxsplit=1)[-1])
        packs = yield from self.get_all((yield from self.list(f"packs/{epoch:016x}-{identity}-")))
        if not packs or self.breaks("collects as if damaged commits held nothing"):
            return None if not packs else Commit(identity, Snapshots(epoch, {}, frozenset()), {})
        held = {pack: content.objects for pack, content in packs.items()}
        first = next(iter(packs.values()))
        return Commit(identity, first.snapshots, held, first.machine)

    def create_state(self, number: int, state: State) -> Steps:
        """Writes a state if no other machine did; returns whether it counts."""
        if self.identity in state.barred and not self.breaks(
            "creates states although it is barred"
        ):
            return False
        name, state = state_name(number), replace(state, token=object(), machine=self.identity)
        if self.breaks("checks for a state, then puts it"):
            if name in (yield from self.list("state/")):
                return False
            yield from self.put(name, state)
            return True
        if self.breaks("writes the copy of a state first"):
            yield Put(name + COPY, state)
        while True:
            answer = yield Create(name, state)
            if answer is True:
                break
            found = yield Get(name)
            if isinstance(found, State) and found.token is state.token:
                break
            if found is not None or answer is False:
                return False  # written by another, or already swept
        yield Put(name + COPY, state)
        newest, _ = yield from self.read_state()
        return newest == number

    def is_acknowledged(self, commit: Commit) -> Steps:
        """Looks at the state until it is clear whether a commit counts, or patience ends."""
        for _ in range(self.random.randrange(1, 20)):
            _, state = yield from self.read_state()
            is_barred = self.identity in state.barred and not self.breaks(
                "acknowledges what it pushed when it was barred"
            )
            if (state.closing <= commit.epoch and not is_barred) or self.breaks(
                "does not look at the state after its commit"
            ):
                return True
            parts = yield from self.get_all(state.catalog)
            if parts is not None and DAMAGED not in parts.values():
                if any(commit.id in part for part in parts.values()):
                    return True
                if commit.epoch < state.floor:
                    return False
        return False


class Writer(Machine):
    """Pushes a few times."""

    def steps(self) -> Steps:
        """Takes new snapshots and pushes them, until each push is acknowledged."""
        for _ in range(self.random.randrange(1, 5)):
            roots = [self.new_tree(2) for _ in range(self.random.choice([1, 1, 2, 3]))]
            self.old_packs: dict[str, Objects] = {}
            for _attempt in range(4):
                if (yield from self.push(roots)):
                    break

    def new_tree(self, depth: int) -> Object:
        """Returns a tree; few leaves make many trees alike."""
        if not depth:
            return ("leaf", self.random.randrange(LEAVES))
        return ("tree", *(self.new_tree(depth - 1) for _ in range(2)))

    def push(self, roots: Iterable[Object]) -> Steps:
        """Tries once; returns whether the push is acknowledged."""
        needed = closures(roots)
        partial: set[Object] = set()
        while True:
            view = yield from self.read(is_frugal=bool(self.own) and self.random.random() < 0.3)
            missing = self.missing(view, needed, partial)
            self.random.shuffle(missing)
            is_partial = len(missing) > 2 and self.random.random() < 0.4
            stored = missing[: len(missing) // 2] if is_partial else missing
            identity = next(self.world.numbers)
            snapshots = Snapshots(
                view.state.epoch,
                {} if is_partial else {next(self.world.numbers): root for root in roots},
                frozenset(stored) if is_partial else frozenset(),
            )
            packs = yield from self.store(identity, stored, snapshots)
            commit = Commit(identity, snapshots, packs, self.identity)
            yield from self.put(f"commits/{commit.epoch:016x}-{commit.id}", commit)
            if not (yield from self.is_acknowledged(commit)):
                self.old_packs.update(packs)
                return False
            self.own.append(commit)
            if not is_partial:
                held = {(commit.id, snapshot) for snapshot in commit.snapshots.roots}
                self.world.acknowledged |= held
                return True
            partial |= set(stored)

    def missing(self, view: View, needed: Objects, partial: set[Object]) -> list[Object]:
        """Returns what must be stored: not what lies in packs that stay."""
        state = view.state
        certain = {
            k: commit
            for k, commit in view.commits.items()
            if (commit.epoch >= state.closing or self.breaks("relies on uncertain commits"))
            and (
                commit.machine not in state.barred
                or self.breaks("relies on what barred machines push")
            )
        }
        packs = dict(view.index)
        for commit in certain.values():
            packs.update(commit.packs)
        avoided = frozenset() if self.breaks("relies on condemned packs") else state.condemned
        held = {item for name, items in packs.items() if name not in avoided for item in items}
        complete = [*view.catalog.values(), *(commit.snapshots for commit in certain.values())]
        for snapshots in complete:
            held |= closures(snapshots.roots.values())
        missing = needed - held
        if self.breaks("prunes at any tree that is there"):
            missing -= closures(needed & held)
        if self.breaks("prunes at trees of its partial commits"):
            missing -= closures(needed & held & partial)
        if self.breaks("reuses its packs of an earlier epoch"):
            missing = missing.difference(*self.old_packs.values())
        return sorted(missing)

    def store(self, commit: int, items: list[Object], snapshots: Snapshots) -> Steps:
        """Writes the packs of a commit, at least one; returns what lies in each."""
        packs = {}
        cut = self.random.randrange(len(items) + 1)
        for part in (items[:cut], items[cut:]):
            if part or not (items or packs):
                name = f"packs/{snapshots.epoch:016x}-{commit}-{next(self.world.numbers)}"
                packs[name] = frozenset(part)
                yield from self.put(name, Pack(packs[name], snapshots, self.identity))
        if self.breaks("reuses its packs of an earlier epoch"):
            packs |= self.old_packs
        return packs


class Repairer(Machine):
    """Stores again what the server lost; it has everything that was ever stored."""

    def steps(self) -> Steps:
        """Looks which packs are there, and repairs until nothing is lost."""
        while True:
            view = yield from self.read()
            listed = set((yield from self.list("packs/")))
            needed = of_snapshots(view.visible.values())
            is_rash = self.breaks("repairs what no pack lists alone")
            there = (held for name, held in view.packs.items() if is_rash or name in listed)
            lost = needed.difference(*there)
            identity = next(self.world.numbers)
            name = f"packs/{view.state.epoch:016x}-{identity}-{next(self.world.numbers)}"
            if not lost:
                return
            held = Snapshots(view.state.epoch, {}, lost)
            yield from self.put(name, Pack(lost, held, self.identity))
            commit = Commit(identity, held, {name: lost}, self.identity)
            yield from self.put(f"commits/{commit.epoch:016x}-{commit.id}", commit)
            yield from self.is_acknowledged(commit)


class Deleter(Machine):
    """Deletes some snapshots that it sees."""

    def steps(self) -> Steps:
        """Says of each commit at once which of its snapshots go."""
        for _ in range(self.random.randrange(1, 6)):
            view = yield from self.read()
            for commit, snapshots in view.visible.items():
                gone = frozenset(item for item in snapshots.roots if self.random.random() < 0.2)
                if gone:
                    self.world.deleted |= {(commit, item) for item in gone}
                    name = f"deletions/{next(self.world.numbers)}"
                    yield from self.put(name, Deletion(commit, snapshots.epoch, gone))
                    self.world.gone |= {(commit, item) for item in gone}


class Thief(Machine):
    """Has the key of a member, and deletes what it sees."""

    def steps(self) -> Steps:
        """Does so once."""
        view = yield from self.read()
        for commit, snapshots in view.visible.items():
            if snapshots.roots:
                gone = Deletion(commit, snapshots.epoch, frozenset(snapshots.roots), True)
                yield from self.put(f"deletions/{next(self.world.numbers)}", gone)


class Collector(Machine):
    """Gives space back, or folds commits into the index."""

    def steps(self) -> Steps:
        """Does so a few times."""
        for _ in range(self.random.randrange(1, 4)):
            if self.random.random() < 0.3:
                yield from self.fold()
            else:
                yield from self.collect()

    def collect(self) -> Steps:
        """One whole collection, or as much of it as no other machine overtakes."""
        random, view = self.random, (yield from self.read())
        state, number = view.state, view.number
        deletions = yield from self.read_deletions()
        live = self.live(view, deletions)
        needed = self.needed(live.values())
        packs, condemned = dict(view.packs), set()
        listed = yield from self.list("packs/")
        gone = packs.keys() - set(listed)
        there = {item for name, held in packs.items() if name not in gone for item in held}
        for name, held in list(packs.items()):
            wanted = held & needed
            if name in gone:
                is_missed = not of_snapshots(live.values()) & wanted <= there
                if is_missed and not self.breaks("lets go of packs that the server lost"):
                    continue
            elif wanted and len(wanted) * 2 <= len(held) and random.random() < 0.5:
                copy = f"packs/{state.epoch:016x}-0-{next(self.world.numbers)}"
                packs[copy] = wanted
                yield from self.put(copy, Pack(wanted))
            elif wanted:
                continue
            condemned.add(name)
        removed = set(view.visible) - set(live)
        deciding = replace(
            state,
            epoch=state.epoch + 1,
            condemned=frozenset(condemned),
            removed=state.removed | removed,
        )
        done = yield from self.publish(number, deciding, view, live, packs)
        if done is None:
            return
        number, deciding = done
        early = (
            (yield from self.list_commits(deciding))
            if self.breaks("lists commits before it closes the epoch")
            else None
        )
        closing, number = replace(deciding, closing=deciding.epoch), self.next_number(number)
        if not (yield from self.create_state(number, closing)):
            return
        commits = early or (yield from self.list_commits(closing))
        parts = yield from self.get_parts(closing)
        if commits is None or parts is None:
            return
        last = seen(self.world, number, closing, commits, parts, self.revoked)
        new = of_snapshots(last.visible.values()) - of_snapshots(live.values())
        dead = {name for name in condemned if not last.packs.get(name, frozenset()) & new}
        if self.breaks("spares nothing that new commits need"):
            dead = condemned
        packs = {name: held for name, held in last.packs.items() if name not in dead}
        final = replace(closing, floor=closing.closing, condemned=frozenset(), removed=frozenset())
        done = yield from self.publish(number, final, last, last.visible, packs)
        if done is not None:
            yield from self.sweep()
        elif self.breaks("sweeps by a state that lost"):
            yield from self.sweep(number + 1, packs, final)

    def needed(self, live: Iterable[Snapshots]) -> Objects:
        """Returns everything that is live."""
        if self.breaks("spares nothing that partial commits keep"):
            return of_snapshots(live)
        return frozenset().union(*(item.needed for item in live))

    def live(self, view: View, deletions: Mapping[str, Deletion]) -> dict[int, Snapshots]:
        """Returns the commits that stay, without the snapshots that were deleted."""
        gone: dict[int, set[int]] = {}
        for item in deletions.values():
            gone.setdefault(self.number_of(item.commit), set()).update(item.snapshots)
        live = {}
        for commit, snapshots in view.visible.items():
            if snapshots.kept:
                if snapshots.epoch + PARTIAL_EPOCHS > view.state.epoch:
                    live[commit] = snapshots
                continue
            rest = snapshots.without(gone.get(self.number_of(commit), ()))
            is_whole = len(rest.roots) == len(snapshots.roots)
            if rest.roots and (
                is_whole or not self.breaks("removes a commit of which snapshots are left")
            ):
                live[commit] = rest
        return live

    def fold(self) -> Steps:
        """Moves visible commits into the catalog and the index; condemns nothing."""
        view = yield from self.read()
        if view.state.closing == view.state.floor:
            done = yield from self.publish(view.number, view.state, view, view.visible, view.packs)
            if done is not None:
                yield from self.sweep()

    def publish(
        self,
        number: int,
        state: State,
        view: View,
        catalog: Mapping[int, Snapshots],
        packs: Packs,
    ) -> Steps:
        """Writes the parts that are new, then the state after a number; returns its number and
        the state, or None when another machine wrote it."""
        written: dict[str, object] = {}
        number, old_number = self.next_number(number), number
        names = {}
        for kind, old, wanted in (
            ("catalog", view.state.catalog, catalog),
            ("index", view.state.index, packs),
        ):
            is_early = self.breaks("numbers parts by the state that it read")
            first = old_number if is_early else number
            names[kind] = yield from self.merged(first, kind, old, wanted, written)
        state = replace(state, catalog=names["catalog"], index=names["index"])
        if not self.breaks("names parts that are not there yet"):
            for name, content in written.items():
                yield from self.put(name, content)
        if not (yield from self.create_state(number, state)):
            return None
        if self.breaks("names parts that are not there yet"):
            for name, content in written.items():
                yield from self.put(name, content)
        return number, state

    def merged(
        self,
        first: int,
        kind: str,
        old: tuple[str, ...],
        wanted: Mapping[Any, Any],
        written: dict[str, object],
    ) -> Steps:
        """Returns the names of parts that hold what is wanted: old ones where nothing changed,
        and new ones for the rest, which list no more than fits."""
        names, rest = [], dict(wanted)
        for name in old:
            part = yield Get(name)
            is_same = isinstance(part, dict) and (
                all(wanted.get(key) == value for key, value in part.items())
                or self.breaks("keeps a part of which something goes")
            )
            if is_same and self.random.random() < 0.6:
                names.append(name)
                for key in part:
                    rest.pop(key, None)
        left = iter(rest.items())
        while part := dict(islice(left, self.world.part_size)):
            name = f"index/{first:016x}-{kind}-{next(self.world.numbers)}"
            written[name] = part
            names.append(name)
        return tuple(names)

    def read_deletions(self) -> Steps:
        """Returns the deletions that are there."""
        while True:
            names = yield from self.list("deletions/")
            found = yield from self.get_all(names)
            if found is not None:
                return {
                    name: item
                    for name, item in found.items()
                    if item is not DAMAGED
                    and (not item.is_of_member or self.breaks("carries out what a member deletes"))
                }

    def list_commits(self, state: State) -> Steps:
        """Returns the commits that are listed now, or None when one is gone."""
        found = []
        for name in (yield from self.list("commits/")):
            if number_in(name) >= state.floor:
                commit = yield from self.get_commit(name)
                if commit is None:
                    return None
                found.append(commit)
        return found

    def sweep(
        self, number: int | None = None, index: Packs | None = None, state: State | None = None
    ) -> Steps:
        """Deletes what one state and one list say is garbage; anybody may do so at any time."""
        packs = yield from self.list("packs/")
        commits = yield from self.list("commits/")
        deletions = yield from self.read_deletions()
        parts = yield from self.list("index/")
        if state is None or number is None or index is None:
            number, state = yield from self.read_state()
            found = yield from self.get_parts(state)
            if found is None:
                return
            index = {name: held for part in state.index for name, held in found[part].items()}
            catalog = {k: v for part in state.catalog for k, v in found[part].items()}
        else:
            catalog = {}
        for name in packs:
            limit = (
                state.epoch + 1 if self.breaks("sweeps packs of the current epoch") else state.floor
            )
            if number_in(name) < limit and name not in index:
                yield from self.delete(name)
        for name in commits:
            commit = int(name.rsplit("-")[-1])
            if commit in catalog or commit in state.removed or number_in(name) < state.floor:
                yield from self.delete(name)
        for name, item in deletions.items():
            if self.breaks("sweeps deletions that are not carried out") or self.is_carried_out(
                item, state, catalog
            ):
                yield from self.delete(name)
        for name in parts:
            if number_in(name) <= number and name not in {*state.index, *state.catalog}:
                yield from self.delete(name)
        for name in (yield from self.list("state/")):
            is_above = self.breaks("sweeps what no member signed above the state")
            if number_in(name) < number or (is_above and number_in(name) in self.junk):
                yield from self.delete(name)

    def is_carried_out(
        self, deletion: Deletion, state: State, catalog: Mapping[int, Snapshots]
    ) -> bool:
        """Tells whether nothing can ever show the deleted snapshots again."""
        for commit, snapshots in catalog.items():
            is_same = self.number_of(commit) == self.number_of(deletion.commit)
            if is_same and deletion.snapshots & set(snapshots.roots):
                return False
        is_removed = deletion.commit in state.removed or deletion.epoch < state.floor
        return deletion.commit in catalog or is_removed

    def number_of(self, commit: int) -> int:
        """Returns what a commit, and the one that a rebuild made of its packs, have in common."""
        return commit if self.breaks("deletes from one commit of a number") else abs(commit)


class Rebuilder(Collector):
    """Writes catalog and index anew, of what packs say, where parts of them cannot be read."""

    def steps(self) -> Steps:
        """Does so once. Removes nothing, and condemns nothing."""
        names = yield from self.list("commits/")
        number, state = yield from self.read_state()
        parts = yield from self.get_all([*state.catalog, *state.index])
        if parts is None:
            return
        lost = {name for name, part in parts.items() if part is DAMAGED}
        state = replace(
            state,
            catalog=tuple(name for name in state.catalog if name not in lost),
            index=tuple(name for name in state.index if name not in lost),
        )
        commits = yield from self.get_all(names)
        found = yield from self.get_all((yield from self.list("packs/")))
        deletions = yield from self.read_deletions()
        if commits is None or found is None:
            return
        listed = [commit for commit in commits.values() if commit is not DAMAGED]
        view = seen(self.world, number, state, listed, parts, self.revoked)
        named, visible = dict(view.packs), view.visible
        floors = {
            kind: 0 if any(is_catalog(name) is kind for name in lost) else state.floor
            for kind in (True, False)
        }
        for name, pack in found.items():
            if number_in(name) >= floors[False]:
                named.setdefault(name, pack.objects)
        there = frozenset().union(*(held for name, held in named.items() if name in found))
        gone = {snapshot for item in deletions.values() for snapshot in item.snapshots}
        rest: dict[int, Snapshots] = {}
        for name, pack in found.items():
            if name in named and pack.snapshots is not None and number_in(name) >= floors[True]:
                self.take(pack.snapshots.without(gone), name, view, there, rest)
        done = yield from self.publish(number, state, view, {**visible, **rest}, named)
        if done is not None and self.breaks("removes what a rebuild does not show"):
            shown = {**visible, **rest}
            for name, pack in found.items():
                if pack.snapshots not in shown.values() and name not in view.packs:
                    yield from self.delete(name)

    def take(
        self,
        snapshots: Snapshots,
        pack: str,
        view: View,
        there: Objects,
        rest: dict[int, Snapshots],
    ) -> None:
        """Adds what a pack says of its commit to the ``rest``, if that is whole and not visible.

        It is another commit, where its own file is not listed.
        """
        commit = int(pack.split("-")[1])
        is_visible = commit in view.visible or -commit in view.visible
        is_removed = commit in view.state.removed or -commit in view.state.removed
        is_whole = closures(snapshots.roots.values()) <= there
        if (
            snapshots.roots
            and not is_visible
            and not is_removed
            and (is_whole or self.breaks("rebuilds what is not whole"))
        ):
            rest[-commit] = snapshots


class Revoker(Collector):
    """Takes a machine off the list; what it pushed before stays."""

    def steps(self) -> Steps:
        """Bars a machine, folds what it pushed, and writes the next list, and a state after it."""
        view = yield from self.read()
        machines = {commit.machine for commit in view.commits.values()} | {view.state.machine}
        machines -= {0, self.identity}
        if not machines:
            return
        machine = self.random.choice(sorted(machines))
        if not self.breaks("revokes a machine that it did not bar") and not (
            yield from self.bar(machine)
        ):
            return
        if not self.breaks("revokes a machine of which it folded nothing") and not (
            yield from self.fold_all()
        ):
            return
        while True:
            number = yield from self.read_list()
            name = f"members/{number + 1:016x}"
            answer = yield Create(name, self.revoked | {machine})
            if answer is True:
                self.revoked |= {machine}
                break
        for _ in range(5):
            number, state = yield from self.read_state()
            if (yield from self.create_state(self.next_number(number), state)):
                self.world.revoked.add(machine)
                return

    def bar(self, machine: int) -> Steps:
        """Creates a state that bars a machine; returns whether there is one."""
        for _ in range(5):
            number, state = yield from self.read_state()
            if machine in state.barred:
                return True
            barred = replace(state, barred=state.barred | {machine})
            if (yield from self.create_state(self.next_number(number), barred)):
                return True
        return False

    def fold_all(self) -> Steps:
        """Moves all that is visible into the catalog; returns whether that was done.

        Where another collector decides meanwhile, it takes a whole collection.
        """
        for _ in range(5):
            view = yield from self.read()
            if view.state.closing != view.state.floor:
                yield from self.collect()
                continue
            done = yield from self.publish(view.number, view.state, view, view.visible, view.packs)
            if done is not None:
                return True
        return False


class Intruder(Machine):
    """Has the key of a machine that was revoked, and pushes with it."""

    def steps(self) -> Steps:
        """Does so once."""
        if not self.world.revoked:
            return
        view = yield from self.read()
        identity = next(self.world.numbers)
        self.world.intruded.add(identity)
        roots = {next(self.world.numbers): ("leaf", 0)}
        snapshots = Snapshots(view.state.epoch, roots, frozenset())
        machine = self.random.choice(sorted(self.world.revoked))
        name = f"packs/{view.state.epoch:016x}-{identity}-{next(self.world.numbers)}"
        held = closure(("leaf", 0))
        yield from self.put(name, Pack(held, snapshots, machine))
        commit = Commit(identity, snapshots, {name: held}, machine)
        yield from self.put(f"commits/{commit.epoch:016x}-{commit.id}", commit)


KINDS: tuple[type[Machine], ...] = (Writer, Deleter, Collector)
