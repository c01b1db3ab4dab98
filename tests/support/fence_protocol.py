"""The fence of a store as a model: who may remove, move or rewrite what, and when.

A process is a generator that stops after each step that others can see. ``RULES`` are what
``fence`` keeps; each can be broken, and ``LOSSES`` says what was lost where some
were not kept. ``tests/core/stateful/test_fence_model.py`` explores the scenes. The finer steps of
packs are in ``protocol``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

RULES = {
    # packs: others rely on them without a lock, so an epoch keeps them apart
    "one way": "no command takes packs away but by retire",
    "announce": "packs are condemned before they go",
    "fence": "the epoch is raised twice before anything goes",
    "settle": "what is needed is looked at again behind the fence",
    "pending first": "pending snapshots are read before published ones",
    "copy first": "copies are made before the original goes",
    "avoid": "a writer neither relies on condemned packs nor appends to them",
    "publish": "a writer reads the epoch when its snapshot is pending",
    # small files: a lock keeps processes apart
    "judge": "what a file holds is judged under its lock",
    "own hold": "a hold is a file of its own",
    # the state of a snapshot that several roots have: a lock that they share keeps them apart
    "shared": "what is said of such a snapshot changes under the common lock",
    "last": "who lets go of it looks at the others under that lock, and keeps it until the end",
    "state first": "its state goes before it does",
    # the whole store: a gate keeps processes apart
    "enter": "who changes anything in a store is inside its gate",
    "close": "who moves a store closes the gate before it looks for the last time",
    "same": "a lock counts only while its file is where the path leads",
    "alive": "a store is not moved while a hold in it outlives its session",
    "order": "the collector's lock is taken before the gate",
    # the two directories of a move to another file system: both say which is the store
    "note copy": "the copy says so before it has its name",
    "note left": "what the move leaves says so before the name leads elsewhere",
    "heed": "who writes looks at what the directory says",
    "unnote": "who takes that back is inside the gate",
}
STEP, BLOCKED = "step", "blocked"
LOST = 9
"""An object that is damaged from the beginning: nothing is promised of it."""

Steps = Generator[str, None, None]
Needs = frozenset[int]
Body = Callable[["Process"], Steps]
Settle = Callable[[], Generator[str, None, "frozenset[Pack]"]]


@dataclass(eq=False)
class Pack:
    objects: list[int] = field(default_factory=list)
    is_damaged: bool = False
    is_linked: bool = True


@dataclass(eq=False)
class Slot:
    pack: Pack | None = None
    holder: Process | None = None
    pending: Needs = frozenset()


@dataclass(eq=False)
class Store:
    """A directory. The path leads to one; who has opened files in it keeps these."""

    packs: list[Pack] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    snapshots: dict[str, Needs] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    roots: set[str] = field(default_factory=set)
    sharers: set[str] = field(default_factory=set)
    """Roots that have one and the same snapshot, which was fetched."""
    forgotten: int = 0
    """How many roots that had it are forgotten, and are still to be removed."""
    state: frozenset[str] | None = None
    """What was said of it."""
    is_noted: bool = False
    """It says that it is the store only if the name leads here."""
    holds: dict[object, str] = field(default_factory=dict)
    epoch: int = 0
    condemned: frozenset[Pack] = frozenset()
    locks: dict[str, Process] = field(default_factory=dict)
    inside: set[Process] = field(default_factory=set)
    closed_by: Process | None = None

    @property
    def linked(self) -> list[Pack]:
        return [pack for pack in self.packs if pack.is_linked]

    def objects(self, avoid: frozenset[Pack] = frozenset()) -> set[int]:
        return {item for pack in {*self.linked} - avoid for item in pack.objects}


class World:
    """The stores, where the path leads, and what was promised to callers."""

    def __init__(self, broken: set[str]) -> None:
        self.broken = broken
        damaged, whole = Pack([2], is_damaged=True), Pack([0, 1])
        self.at = Store([damaged, whole, Pack([3]), Pack([6, 7])], [Slot(damaged), Slot(whole)])
        self.at.snapshots = {"old": frozenset({0, 1, 6}), "hurt": frozenset({2, LOST})}
        self.at.roots = {"A"}
        self.at.files = {"settings": "", "plan": "damaged"}
        self.at.sharers = {"A", "C"}
        self.stores = [self.at]
        self.names: dict[str, Store] = {}
        """Other names of directories: of the copy that a move made, and of what one left."""
        self.promised = set(self.at.snapshots)
        self.written: set[tuple[str, str]] = set()
        self.said: dict[str, set[str]] = {}
        """What was said of the shared snapshot: it holds as long as one of these roots has it."""
        self.held: dict[Process, str] = {}
        self.working: set[Process] = set()

    def check(self) -> None:
        at, intact = self.at, self.at.objects() | {LOST}
        for name in self.promised:
            assert name in at.snapshots, f"{name} is lost"
        for name, needs in at.snapshots.items():
            assert needs <= intact, f"{name} misses {needs - intact}"
        for name, word in self.written:
            assert word in at.files.get(name, ""), f"{word} is lost from {name}"
        for name in self.held.values():
            assert name in at.snapshots, f"{name} is held, and gone"
        assert len(self.working) < 2, "two restores work in one root"
        for word, roots in self.said.items():
            assert not roots & at.sharers or word in (at.state or ()), (
                f"{word} is not said any more"
            )
        is_whole = at.state is None or at.sharers or at.forgotten or "shared" in at.locks
        assert is_whole, "a state is left of no snapshot"

    def let_go(self, root: str) -> None:
        """A root asked for the end of the shared snapshot."""
        for roots in self.said.values():
            roots.discard(root)


class Process:
    """What all share: the ways into a store, and out of it."""

    def __init__(self, world: World, body: Body) -> None:
        self.world, self.steps = world, body(self)

    def keeps(self, rule: str) -> bool:
        return rule not in self.world.broken

    def end(self) -> None:
        """What the kernel does for a process that ends or is killed."""
        for at in self.world.stores:
            at.locks = {name: who for name, who in at.locks.items() if who is not self}
            at.inside.discard(self)
            at.closed_by = None if at.closed_by is self else at.closed_by
            at.holds.pop(self, None)
            for slot in at.slots:
                slot.holder = None if slot.holder is self else slot.holder
        self.world.held.pop(self, None)
        self.world.working.discard(self)

    def lock(self, name: str) -> Steps:
        """Opens a lock file by its path, and waits for it."""
        while True:
            at = self.world.at
            yield STEP
            while at.locks.setdefault(name, self) is not self:
                yield BLOCKED
            if at is self.world.at or not self.keeps("same"):
                yield STEP
                return
            del at.locks[name]

    def enter(self) -> Steps:
        """Passes the gate: any number of processes may be inside."""
        while self.keeps("enter"):
            at = self.world.at
            yield STEP
            while at.closed_by is not None:
                yield BLOCKED
            at.inside.add(self)
            if at is self.world.at or not self.keeps("same"):
                at.is_noted = False  # no move is under way
                yield STEP
                return
            at.inside.discard(self)

    def maintain(self) -> Steps:
        """How every command begins that takes packs away."""
        ways = [self.lock("collector"), self.enter()]
        for way in ways if self.keeps("order") else reversed(ways):
            yield from way

    def slot(self) -> Slot:
        at = self.world.at
        slot = next((slot for slot in at.slots if slot.holder is None), None) or Slot()
        at.slots += [slot] if slot not in at.slots else []
        slot.holder, slot.pending = self, frozenset()
        return slot

    def append(self, slot: Slot, own: Pack | None, avoid: frozenset[Pack], item: int) -> Pack:
        """Appends to the session's pack, else to that of the slot, else to a new one."""
        pack = own or slot.pack
        if pack is None or (own is None and (not pack.is_linked or pack in avoid)):
            self.world.at.packs.append(pack := Pack())
        slot.pack = pack
        pack.objects.append(item)
        return pack

    def copy(self, items: set[int], avoid: frozenset[Pack]) -> Steps:
        """Copies objects into packs that stay, in a session of its own."""
        slot, own = self.slot(), None
        for item in sorted(items):
            own = self.append(slot, own, avoid, item)
            yield STEP
        slot.holder = None

    def retire(self, packs: frozenset[Pack], settle: Settle) -> Steps:
        """The one way by which packs go: announce, fence, look again, take away."""
        at = self.world.at
        if self.keeps("announce"):
            at.epoch, at.condemned = at.epoch + 1, packs
            yield STEP
            at.epoch += 1 if self.keeps("fence") else 0
            yield STEP
        going = (yield from settle()) if self.keeps("settle") else packs
        for pack in [pack for pack in at.packs if pack in going]:
            pack.is_linked = False
            yield STEP
        at.condemned = frozenset()


def writer(root: str, *needs: int) -> Body:
    """Captures a root that may be new: registers, stores, publishes."""

    def body(me: Process) -> Steps:
        world = me.world
        yield from me.enter()
        world.at.roots.add(root)
        yield from me.lock(f"root {root}")
        slot, own = me.slot(), None
        yield STEP
        begun, avoid = world.at.epoch, world.at.condemned if me.keeps("avoid") else frozenset()
        yield STEP
        for item in needs:
            is_there = item in world.at.objects(avoid)
            yield STEP
            if not is_there:
                own = me.append(slot, own, avoid, item)
                yield STEP
        slot.pending = frozenset(needs)
        yield STEP
        seen = world.at.epoch
        yield STEP
        if (seen <= begun + 1 or not me.keeps("publish")) and slot in world.at.slots:
            world.at.snapshots[root] = frozenset(needs)  # a rename, by paths
            slot.pending = frozenset()
            yield STEP
            world.promised.add(root)

    return body


def restore(me: Process) -> Steps:
    yield from me.enter()
    yield from me.lock("root A")
    me.world.working.add(me)
    yield STEP
    me.world.working.discard(me)


def setter(file: str, word: str) -> Body:
    """Reads a file, and writes it with one more word; a damaged one it writes anew."""

    def body(me: Process) -> Steps:
        yield from me.enter()
        if me.keeps("judge"):
            yield from me.lock(file)
        text = me.world.at.files.get(file, "").replace("damaged", "")
        yield STEP
        me.world.at.files[file] = text + word
        yield STEP
        me.world.written.add((file, word))

    return body


def repair_file(me: Process) -> Steps:
    """Moves a damaged file to quarantine, long after it was found."""
    is_damaged = me.world.at.files.get("plan") == "damaged"
    yield from me.maintain()
    if me.keeps("judge"):
        yield from me.lock("plan")
        is_damaged = me.world.at.files.get("plan") == "damaged"
    if is_damaged:
        me.world.at.files.pop("plan", None)
        yield STEP


def hold(me: Process) -> Steps:
    """Needs a snapshot for longer than its session, as a mount or ``run`` does."""
    yield from me.enter()
    yield from me.lock("root A")
    at, held, key = me.world.at, me.world.held, me if me.keeps("own hold") else "old"
    if "old" in at.snapshots:
        at.holds[key] = held[me] = "old"
    yield STEP
    at.locks.pop("root A", None)
    at.inside.discard(me)
    yield STEP
    if held.pop(me, None):
        at.holds.pop(key, None)


def prune(me: Process) -> Steps:
    yield from me.enter()
    is_free = "old" not in me.world.at.holds.values()
    yield from me.lock("root A")
    if me.keeps("judge"):
        is_free = "old" not in me.world.at.holds.values()
    if is_free:
        me.world.promised.discard("old")
        me.world.at.snapshots.pop("old", None)
    yield STEP


def say(root: str, word: str, *, is_fetched: bool = False) -> Body:
    """Says something of the shared snapshot, such as a tag; at first a root may fetch it."""

    def body(me: Process) -> Steps:
        yield from me.enter()
        at = me.world.at
        if is_fetched:
            at.sharers.add(root)
            yield STEP
        yield from me.lock(f"root {root}")
        if root not in at.sharers:
            return
        if me.keeps("shared"):
            yield from me.lock("shared")
        text = at.state or frozenset()
        yield STEP
        at.state = text | {word}
        yield STEP
        me.world.said[word] = set(at.sharers)

    return body


def let_go(root: str) -> Body:
    """Deletes the shared snapshot of a root, or prunes it; a repair takes a damaged one so."""

    def body(me: Process) -> Steps:
        yield from me.enter()
        at = me.world.at
        yield from me.lock(f"root {root}")
        if root not in at.sharers:
            return
        if me.keeps("last"):
            yield from me.lock("shared")
        is_last = at.state is not None and at.sharers == {root}
        yield STEP
        me.world.let_go(root)
        for is_state in (me.keeps("state first"), not me.keeps("state first")):
            if not is_state:
                at.sharers.discard(root)
            elif is_last:
                at.state = None
            yield STEP

    return body


def forget(root: str) -> Body:
    """Forgets a root: all its snapshots go at once, and then what is left of them."""

    def body(me: Process) -> Steps:
        yield from me.enter()
        at = me.world.at
        yield from me.lock(f"root {root}")
        if root in at.sharers:
            me.world.let_go(root)
            at.sharers.discard(root)
            at.forgotten += 1
            yield STEP
        yield from finish(me)

    return body


def finish(me: Process) -> Steps:
    """Removes what is left of forgotten roots, as a collection does too."""
    at = me.world.at
    for _ in range(at.forgotten):
        if me.keeps("last"):
            yield from me.lock("shared")
        is_last = at.state is not None and not at.sharers
        yield STEP
        if is_last:
            at.state = None
        yield STEP
        at.forgotten = max(0, at.forgotten - 1)
        at.locks.pop("shared", None)
        yield STEP


def by_name(name: str, root: str) -> Body:
    """Captures a root in a directory that is, was or will be the store, by its own name."""

    def body(me: Process) -> Steps:
        at = me.world.names.get(name)
        if at is None:
            return
        yield STEP
        while at.closed_by is not None:
            yield BLOCKED
        at.inside.add(me)
        if at.is_noted and at is not me.world.at and me.keeps("heed"):
            return
        at.is_noted = False
        yield STEP
        at.snapshots[root] = frozenset()
        yield STEP
        me.world.promised.add(root)

    return body


def look(me: Process) -> Steps:
    """Only reads, so it is not inside the gate."""
    at = me.world.at
    is_noted = at.is_noted
    yield STEP
    if is_noted and not me.keeps("unnote"):
        at.is_noted = False
        yield STEP


def gc(me: Process) -> Steps:
    needed: set[int] = set()

    def mark() -> Steps:
        for at_pending in (me.keeps("pending first"), not me.keeps("pending first")):
            pending = [slot.pending for slot in at.slots]
            needed.update(*(pending if at_pending else at.snapshots.values()))
            yield STEP

    yield from me.maintain()
    at = me.world.at
    yield from mark()
    busy = {slot.pack for slot in at.slots if slot.holder is not None}
    idle = [pack for pack in at.linked if pack not in busy and not pack.is_damaged]
    packs = frozenset(pack for pack in idle if not needed >= {*pack.objects})
    wanted, known = needed - at.objects(packs) - {LOST}, set(needed)
    yield STEP
    if me.keeps("copy first"):
        yield from me.copy(wanted, packs)

    def settle() -> Generator[str, None, frozenset[Pack]]:
        yield from mark()
        new = needed - known - at.objects(packs)
        return frozenset(pack for pack in packs if not new & {*pack.objects})

    yield from me.retire(packs, settle)


def repair(me: Process) -> Steps:
    """Copies what is intact of damaged packs, and moves these to quarantine."""
    yield from me.maintain()
    at = me.world.at
    busy = {slot.pack for slot in at.slots if slot.holder is not None}
    is_safe = me.keeps("one way")
    bad = frozenset(p for p in at.linked if p.is_damaged and (is_safe or p not in busy))
    yield STEP

    def copied() -> Generator[str, None, frozenset[Pack]]:
        yield from me.copy({item for p in bad for item in p.objects} - at.objects(bad), bad)
        return bad

    yield from copied()
    if is_safe:
        yield from me.retire(bad, copied)
    for pack in bad:
        pack.is_linked = False


def move(me: Process) -> Steps:
    """Moves the store to another file system: the path leads to the copy then."""
    yield from me.lock("collector")
    at, new = me.world.at, Store()
    for root in sorted(at.roots) if not me.keeps("enter") else ():
        yield from me.lock(f"root {root}")
    while at.inside and me.keeps("close"):
        yield BLOCKED
    at.closed_by = me if me.keeps("close") else None
    yield STEP
    if at.holds and me.keeps("alive"):
        return
    new.snapshots, new.roots, new.epoch = dict(at.snapshots), set(at.roots), at.epoch
    yield STEP
    new.files = dict(at.files)
    yield STEP
    new.sharers, new.forgotten, new.state = set(at.sharers), at.forgotten, at.state
    new.packs = [Pack([*pack.objects], pack.is_damaged) for pack in at.linked]
    yield STEP
    new.is_noted = me.keeps("note copy")
    yield STEP
    at.is_noted = me.keeps("note left")
    yield STEP
    me.world.stores.append(new)
    me.world.names["copy"] = new
    yield STEP
    me.world.names["left"], me.world.at = at, new
    yield STEP


Scene = tuple[Body, ...]
new_root, resumed = writer("N", 0, 4), writer("B", 2, 3, 5)
x, y, healer = setter("settings", "x"), setter("settings", "y"), setter("plan", "healed")
by_copy, by_left = by_name("copy", "M"), by_name("left", "L")
say_a, say_c, say_d = say("A", "rare"), say("C", "ripe"), say("D", "red", is_fetched=True)
let_go_a, let_go_c, forget_a, forget_c = let_go("A"), let_go("C"), forget("A"), forget("C")
COMMANDS = (gc, repair, repair_file, move, prune)
SCENES: list[tuple[Scene, int]] = [  # each with how many switches are tried
    *(((one, other), 2) for one in COMMANDS for other in COMMANDS),
    *(((one, o), 2) for one in COMMANDS for o in (new_root, resumed, restore, x, healer, hold)),
    *(((one, resumed), 3) for one in (gc, repair)),
    *(((hold, one, prune), 2) for one in (hold, move)),
    *(((one, resumed, other), 2) for one, other in ((repair, gc), (gc, prune))),
    *(((x, y), 2), ((move, restore, restore), 2), ((move, new_root, move), 3)),
    *(((one, o), 2) for one in (say_a, let_go_a, forget_a) for o in (say_c, let_go_c, forget_c)),
    *(((one, say_c, o), 2) for one in (let_go_a, forget_a) for o in (let_go_c, forget_c, say_d)),
    *(((move, o), 3) for o in (say_a, let_go_a, forget_a, by_copy, by_left)),
    *(((move, one, look, by_left), 2) for one in (by_copy, new_root)),
    ((move, move, by_left, by_copy), 2),
]
LOSSES: dict[str, tuple[set[str], Scene]] = {
    "verify --repair loses a snapshot": ({"one way"}, (repair, resumed)),
    "store move loses a new root": ({"enter", "close"}, (move, new_root)),
    "store move loses a setting": ({"enter", "close", "judge"}, (move, x)),
    "two restores in one root": ({"enter", "close", "same"}, (move, restore, restore)),
    "two config at once": ({"judge"}, (x, y)),
    "verify --repair takes a good file": ({"judge"}, (repair_file, healer)),
    "one hold ends another": ({"own hold"}, (hold, hold, prune)),
    "two deletions leave the state of no snapshot": ({"last"}, (let_go_a, say_c, let_go_c)),
    "a killed move has two stores": ({"note copy", "note left"}, (move, by_copy)),
}


class Choices:
    """Chooses as it was told, then always the first; remembers between what."""

    def __init__(self, told: list[int]) -> None:
        self.told = told
        self.seen: list[tuple[int, int]] = []

    def __call__(self, options: int, free: int) -> int:
        """Returns which of some options is taken; the first ``free`` of them cost nothing."""
        self.seen.append((options, free))
        return self.told[len(self.seen) - 1] if len(self.seen) <= len(self.told) else 0


def run(scene: Scene, broken: set[str], choose: Choices, done: list[str]) -> None:
    """Runs a scene, and notes what was done: who took how many steps."""
    world = World(broken)
    living = [Process(world, body) for body in scene]
    words = [body.__qualname__.partition(".")[0] for body in scene]
    names = {who: f"{word}-{n}" for n, (who, word) in enumerate(zip(living, words, strict=True), 1)}
    waiting: set[Process] = set()
    current, taken, may_kill = living[0], 0, True
    while living:
        ready = [process for process in living if process not in waiting]
        assert ready, "all wait for one another"
        others = [process for process in ready if process is not current]
        goes_on = current in ready
        options = [(process, False) for process in ([current] if goes_on else []) + others]
        free = 1 if goes_on else len(options)
        options += [(process, True) for process in others if goes_on and may_kill]
        process, kills = options[choose(len(options), free)]
        if process is not current:
            done.append(f"{names[current]}:{taken}{' killed' if kills else ''}")
            taken = 0
        if kills:
            current.end()
            living.remove(current)
            waiting.clear()
            may_kill = False
        current, taken = process, taken + 1
        step = next(current.steps, "ended")
        if step == BLOCKED:
            waiting.add(current)
            continue
        waiting.clear()
        if step == "ended":
            current.end()
            living.remove(current)
        world.check()


def explore(scene: Scene, broken: set[str], switches: int) -> tuple[int, str | None]:
    """Runs a scene in all orders with few switches; returns how many, and the first loss.

    The fewest choices come first, so what is found is short. A process that is switched away from
    may stand still until all others have ended, or be killed.
    """
    todo, runs = deque[list[int]]([[]]), 0
    while todo:
        prefix, done = todo.popleft(), list[str]()
        choices, runs = Choices(prefix), runs + 1
        try:
            run(scene, broken, choices, done)
        except AssertionError as error:
            return runs, f"{error}: {' '.join(done)}"
        seen = choices.seen
        spent = sum(choice >= free for choice, (_, free) in zip(prefix, seen, strict=False))
        for position in range(len(prefix), len(seen)):
            options, free = seen[position]
            for choice in range(1, options):
                if spent + (choice >= free) <= switches:
                    todo.append([*prefix, *[0] * (position - len(prefix)), choice])
    return runs, None
