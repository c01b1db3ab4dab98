"""The processes of a soak: each does one thing after the other until it is told to stop.

Run as ``python -m soak.actors DIRECTORY ROOTS ROLE NUMBER SEED``. Any of them may be killed
or stopped at any moment.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random
from threading import Thread

import treesnap
from oracle import record
from soak.damages import LOST, SECOND, TREE
from soak.ledger import Log, RootLedger
from soak.place import (
    LEFT,
    MOVED,
    NOTHING,
    REMOVED,
    RENAMED,
    SETTING,
    Place,
    remove_if_there,
    removed_afterwards,
)
from treesnap import plans
from treesnap.core.codec.root_files import HoldRecord
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    NotFound,
    OperationFailed,
    Refused,
    StoreMissing,
)
from treesnap.core.model.results import GcResult
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.access import opened
from treesnap.core.store.maintenance.retention import Policy

WRITER_WAIT_S = 15.0
DELETER_WAIT_S = 1.0
MOVER_WAIT_S, MOVER_LONG_WAIT_S = 0.3, 10.0
"""While the store cannot be moved for long, and while it can."""
ATTEMPTS = 20
"""Of one move: others are at work most of the time."""
LEFT_STORES_MAX = 3
"""So many of the stores that moves left stay: readers may have them open."""
NEWCOMERS_MAX = 6
PLAN_STEPS = 3
CONTENTS = (b"one thing ", b"another ", b"a third ")
"""Of a root that comes back: each is garbage for a while."""
DAMAGED = 7
"""The exit code of a command that found damage."""
UNFINISHED = 3
"""The exit code of ``doctor`` where work was interrupted."""
NOT_MOVED = "the store was not moved"
COMMAND_TIMEOUT_S = 120
PAUSE_S = 0.8
"""At most so long those wait who delete, so that something is left of what others make."""
DELETIONS_FAIL = {
    ErrorCode.BUSY,
    ErrorCode.PINNED,
    ErrorCode.RESTORE_INTERRUPTED,
    ErrorCode.SNAPSHOT_NOT_FOUND,
    ErrorCode.STORE_NOT_FOUND,
}
"""Why a deletion may remove nothing."""


class Actor:
    """What all actors share."""

    role = ""
    wait_s = WRITER_WAIT_S
    keeps_store = False
    """Whether it needs the store where it is, for longer than one command."""
    takes_turns = True
    """Whether it lets others go first while the store can be moved."""

    def __init__(self, place: Place, number: int, random: Random) -> None:
        self.place = place
        self.number = number
        self.name = f"{self.role}-{number}"
        self.random = random

    def run(self) -> None:
        """Does rounds until the soak is over."""
        self.place.count(self.name, "began")
        while not self.place.stop_file.exists():
            rests = self.keeps_store and self.place.moves_file.exists()
            with self.place.turn() if self.takes_turns else nullcontext(True) as has_turn:
                if has_turn:
                    self._once(self.rest if rests else self.round)
                if has_turn and not rests:
                    self.place.count(self.name, "round")
                    continue
            time.sleep(self.random.random() * PAUSE_S)

    def rest(self) -> None:
        """Leaves the store alone, but for what keeps it from being moved."""

    def _once(self, action: Callable[[], None]) -> None:
        try:
            action()
        except StoreMissing:
            time.sleep(PAUSE_S)  # no actor has made it yet
        except Busy as error:
            self.place.count(self.name, f"busy: {self.role}: {_why(error)}")
        except Exception:  # noqa: BLE001 - whatever it is, the soak is told
            self.place.report(self.name, traceback.format_exc())

    def round(self) -> None:
        """Does one thing."""
        raise NotImplementedError

    def handle(self, root_number: int) -> treesnap.Handle:
        """Returns a handle on a root."""
        return treesnap.open(self.place.roots[root_number], self.place.store, wait_s=self.wait_s)

    def own_handle(self, root: Path) -> treesnap.Handle:
        """Returns a handle on a root that this actor has for itself."""
        root.mkdir(exist_ok=True)
        return treesnap.open(root, self.place.store, wait_s=self.wait_s)

    def some_root(self) -> int:
        """Returns the number of a root that an actor has captured."""
        return self.random.randrange(len(self.place.roots))

    def phase(self, what: str) -> None:
        """Says what the actor is about to do, for a test that stops it there."""
        path = self.place.directory / "ledger" / f"phase-{self.name}"
        path.write_text(what)

    def check_export(self, ledger: RootLedger, handle: treesnap.Handle, one: Snapshot) -> None:
        """Restores a snapshot elsewhere; it has to be what was promised, unless it is gone."""
        allowed = ledger.allowed(one.id, one.label, one.kind.value)
        if allowed is None:
            self.place.report(self.name, f"no actor made {one.id} {one.kind} {one.label!r}")
            return
        with removed_afterwards(self.place.exports / self.name) as target:
            try:
                handle.restore(one.id, to=target)
            except NotFound:
                self.place.count(self.name, "gone")
                return
            for line in ledger.states.problems(record(target), allowed):
                self.place.report(self.name, f"{one.id} is not what was captured: {line}")
        self.place.count(self.name, "exported")


class Writer(Actor):
    """Changes its root, captures it, and goes back to earlier states."""

    role = "writer"

    def __init__(self, place: Place, number: int, random: Random) -> None:
        super().__init__(place, number, random)
        self.root_number = number % len(place.roots)
        self.ledger = place.ledger(self.root_number)
        self.root = place.roots[self.root_number]

    def round(self) -> None:
        """Changes the root if no other actor is at it, then captures or restores."""
        with self.ledger.exclusive() as is_alone:
            if is_alone:
                self._change()
        with self.ledger.shared() as is_fit:
            if is_fit:
                what = (self._create,) * 10 + (self._restore,) * 5 + (self._pin,)
                self.random.choice(what)()

    def _change(self) -> None:
        handle = self.handle(self.root_number)
        if self.root.exists():
            handle.status()  # finishes a restore that was killed
        for line in self.place.change(self.root_number, self.random):
            self.place.report(self.name, f"the root is in no state that it may be in: {line}")

    def _create(self) -> None:
        label = f"soak {os.urandom(8).hex()}"
        token = self.ledger.log.add(what="making", makes="manual", label=label)
        self.phase("create")
        is_named = self.random.random() < 0.1
        result = self.handle(self.root_number).create(
            label=label,
            name=label if is_named else None,
            options=treesnap.CreateOptions(skip_unchanged=self.random.random() < 0.2),
        )
        self.phase("")
        if not result.unchanged:
            self._made(token, result.id, named=is_named, automatic=False)
        self.place.count(self.name, "created")

    def _restore(self) -> None:
        handle = self.handle(self.root_number)
        snapshots = handle.list()
        if not snapshots:
            return
        target = self.random.choice(snapshots)
        states = self.ledger.allowed(target.id, target.label, target.kind.value)
        if states is None:
            self.place.report(self.name, f"no actor made {target.id} {target.label!r}")
            return
        label = f"before restore {target.id[:12]}"
        token = self.ledger.log.add(what="making", makes="safety", label=label, states=states)
        try:
            result = handle.restore(target.id)
        except NotFound:
            self.place.count(self.name, "restore: gone")
            return
        if result.safety_id is not None:
            self._made(token, result.safety_id, named=False, automatic=True)
        self.place.count(self.name, "restored")

    def _made(self, token: str, identity: str, **how: bool) -> None:
        self.ledger.log.add(what="made", by=token, id=identity, ids=[identity], **how)

    def _pin(self) -> None:
        handle = self.handle(self.root_number)
        snapshots = [one for one in handle.list() if not one.pinned]
        if len(self.ledger.ids("pinned")) >= 3 or not snapshots:
            return
        try:
            pinned = handle.pin(self.random.choice(snapshots).id)
        except NotFound:
            return
        self.ledger.log.add(what="pinned", ids=[pinned.id])


class ThreadedWriter(Writer):
    """Two writers in two threads of one process, on the same root."""

    role = "threads"

    def run(self) -> None:
        """Runs both."""
        twin = Writer(self.place, self.number, Random(self.random.random()))
        thread = Thread(target=twin.run)
        thread.start()
        super().run()
        thread.join()


class Deleter(Actor):
    """Deletes snapshots of any root."""

    role = "deleter"
    wait_s = DELETER_WAIT_S

    def round(self) -> None:
        """Deletes some snapshots, but for the newest."""
        number = self.some_root()
        ledger, handle = self.place.ledger(number), self.handle(number)
        time.sleep(self.random.random() * PAUSE_S)
        found = handle.list()[2:]
        ids = [one.id for one in found if not one.pinned or self.random.random() < 0.1]
        if not ids:
            return
        chosen = self.random.sample(ids, min(len(ids), self.random.randrange(1, 4)))
        token = ledger.log.add(what="deleting", ids=chosen)
        try:
            removed = handle.delete(*chosen)
        except (NotFound, Refused, Busy) as error:
            ledger.log.add(what="deleted nothing", by=token)
            if error.code not in DELETIONS_FAIL:
                raise
            self.place.count(self.name, f"deletes nothing: {error.code.value}")
            return
        ledger.log.add(what="gone", ids=[one.id for one in removed])
        self.place.count(self.name, f"deleted {len(removed)}")


class Pruner(Actor):
    """Prunes any root by some policy."""

    role = "pruner"
    wait_s = DELETER_WAIT_S

    def round(self) -> None:
        """Prunes one root."""
        number = self.some_root()
        ledger, handle = self.place.ledger(number), self.handle(number)
        time.sleep(self.random.random() * PAUSE_S)
        token = ledger.log.add(what="pruning", who=self.name)
        policy = Policy(keep_last=self.random.randrange(1, 4))
        size = 200_000 if self.random.random() < 0.2 else None
        removed: tuple[Snapshot, ...] = ()
        try:
            removed = handle.prune(policy, max_size_bytes=size).removed
        except NotFound:
            return  # no actor has captured the root yet
        finally:
            ledger.log.add(what="gone", by=token, ids=[one.id for one in removed])
        for one in removed:
            if one.pinned or one.name is not None:
                self.place.report(self.name, f"prune removed {one.id}, pinned or named")
        self.place.count(self.name, f"pruned {len(removed)}")


class Collector(Actor):
    """Collects garbage, one collection after the other."""

    role = "collector"

    def round(self) -> None:
        """Does one collection."""
        self.place.count(self.name, "begun")
        found, done = (self.handle(0).gc(dry_run=dry_run) for dry_run in (True, False))
        for identity in {*found.damaged, *done.damaged} - self.place.damages.snapshots():
            self.place.report(self.name, f"gc finds {identity} damaged")
        how = REMOVED if _removes(done) else LEFT if _removes(found) else NOTHING
        self.place.count(self.name, how)
        if how == LEFT and done.postponed is None:
            self.place.report(self.name, f"gc leaves what it found, and does not say why: {found}")
        if how == NOTHING:
            time.sleep(self.random.random() * PAUSE_S)  # until there is something again


class Reader(Actor):
    """Looks at history, and checks what it gets."""

    role = "reader"

    def round(self) -> None:
        """Looks once, in one of the ways that there are."""
        number = self.some_root()
        handle = self.handle(number)
        ways = (self._export,) * 6 + (self._verify, self._stats, self._browse)
        self.random.choice(ways)(number, handle)

    def _export(self, number: int, handle: treesnap.Handle) -> None:
        snapshots = handle.list()
        if snapshots:
            one = self.random.choice(snapshots)
            self.check_export(self.place.ledger(number), handle, one)

    def _verify(self, number: int, handle: treesnap.Handle) -> None:
        mark = self.place.damages.mark()
        found = handle.verify(read_data=True).problems
        for problem in self.place.damages.unexpected(found, mark):
            self.place.report(self.name, f"verify: {problem}")
        self.place.count(self.name, "verified")

    def _stats(self, number: int, handle: treesnap.Handle) -> None:
        stats = handle.stats()
        if stats.snapshots < 0 or stats.packs > stats.files:
            self.place.report(self.name, f"impossible sizes: {stats}")

    def _browse(self, number: int, handle: treesnap.Handle) -> None:
        try:
            newest = handle.resolve("latest").id
            for entry in handle.ls(newest):
                if entry.size:
                    b"".join(handle.cat(newest, entry.name))
        except NotFound:
            return


class Caller(Actor):
    """Calls the command line, as a process of its own each time."""

    role = "caller"

    def round(self) -> None:
        """Calls one command; it may find the store busy or a snapshot gone, and no more."""
        words = self.random.choice(
            (
                ("list", "--json"),
                ("list", "--all"),
                ("stats",),
                ("stats", "--json"),
                ("verify",),
                ("doctor",),
                ("gc", "--dry-run"),
                ("find", "file"),
                ("show", "latest"),
                ("prune", "--dry-run"),
            )
        )
        root, mark = self.place.roots[self.some_root()], self.place.damages.mark()
        done = subprocess.run(
            [sys.executable, "-m", "treesnap", "-C", str(root), *words],
            env={**os.environ, "SNAP_STORE": str(self.place.store)},
            capture_output=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
        )
        is_allowed = (
            done.returncode in {0, 5, 6}
            or (done.returncode == DAMAGED and self.place.damages.is_around(mark))
            or (done.returncode == UNFINISHED and words == ("doctor",))  # others are killed
        )
        if not is_allowed:
            said = (done.stdout + done.stderr).decode("utf-8", "replace")
            self.place.report(self.name, f"{words} exits with {done.returncode}: {said}")
        self.place.count(self.name, f"{words[0]} exits with {done.returncode}")


class Repairer(Actor):
    """Repairs the store, which has no damage but what the damager does to its own content."""

    role = "repairer"

    def round(self) -> None:
        """Repairs once."""
        mark = self.place.damages.mark()
        done = self.handle(0).verify(read_data=True, repair=True)
        for problem in self.place.damages.unexpected((*done.problems, *done.left), mark):
            self.place.report(self.name, f"repair: {problem}")
        self.place.count(self.name, "repaired" if done.repaired else "nothing to repair")
        time.sleep(PAUSE_S)


class Damager(Actor):
    """Damages what it alone has, and waits until another actor repairs the store."""

    role = "damager"
    takes_turns = False

    def round(self) -> None:
        """Does damage, or looks at what was done; repairs it if no other actor does for long.

        A store with damage is not moved: while it can be, there is none.
        """
        damages, handle = self.place.damages, self.own_handle(self.place.damages.root)
        line, is_moving = damages.doing(), self.place.moves_file.exists()
        if line is None and is_moving:
            time.sleep(PAUSE_S)
        elif line is None:
            where = damages.do(handle, self.random, self.random.choice((TREE, TREE, SECOND, LOST)))
            self.place.count(self.name, f"damaged what is {where}")
        elif line["where"] == SECOND and not damages.is_whole(handle, line):
            self.place.report(self.name, f"{line['id']} cannot be read, in spite of second copies")
        elif is_moving or self.random.random() < 0.1:
            for problem in damages.mend(handle, line):
                self.place.report(self.name, problem)
            self.place.count(self.name, f"mended what was {line['where']}")
        elif line["where"] != LOST and damages.is_whole(handle, line):
            self.place.count(self.name, "readable")
        time.sleep(self.random.random() * PAUSE_S)


class Mover(Actor):
    """Moves the store to and fro between two file systems, by one path."""

    role = "mover"
    takes_turns = False

    @property
    def wait_s(self) -> float:  # type: ignore[override]  # of the moment
        """How long it waits: long only while no actor needs the store where it is."""
        return MOVER_LONG_WAIT_S if self.place.moves_file.exists() else MOVER_WAIT_S

    def round(self) -> None:
        """Moves the store once, to a new place."""
        self._sweep()
        above = self.place.other_directory
        if not self.place.moves_file.exists():
            time.sleep(self.random.random() * 4 * PAUSE_S)
            above = self.random.choice(self.place.store_directories)
        above.mkdir(parents=True, exist_ok=True)
        mark = self.place.damages.mark()
        for _ in range(ATTEMPTS):
            try:
                done = self.handle(0).store_move(above / f"store-{os.urandom(4).hex()}")
            except Refused as error:
                if error.code != ErrorCode.RESTORE_INTERRUPTED:
                    raise
                self.place.count(self.name, "a restore was interrupted")
                time.sleep(self.random.random() * 4 * PAUSE_S)  # until its actor has ended it
                if self.place.moves_file.exists():
                    self._end_restore(error)
            except (Corrupt, OperationFailed) as error:
                # A store with damage stays where it is.
                is_told = isinstance(error, Corrupt) or NOT_MOVED in error.message
                if not (self.place.damages.is_around(mark) and is_told):
                    raise
                self.place.count(self.name, "declined: damage")
            except Busy as error:
                self.place.count(self.name, f"busy: {_why_not_moved(error)}")
                time.sleep(self.random.random() * PAUSE_S)  # else no other command gets its turn
                continue
            else:
                self.place.count(self.name, MOVED if done.left is not None else RENAMED)
            return
        self.place.count(self.name, "busy")

    def _end_restore(self, error: Refused) -> None:
        """Ends what an actor was killed in that rests now, as the message asks a user to do."""
        root = error.path or ""
        treesnap.open(root, self.place.store, wait_s=self.wait_s).status()
        self.place.count(self.name, f"ended the restore of {Path(root).name}")

    def _sweep(self) -> None:
        """Removes old stores that moves left, and the copies of moves that were killed."""
        above = (self.place.directory, *self.place.store_directories)
        left = [path for each in above for path in each.glob("store*.moved*")]
        left.sort(key=lambda path: path.lstat().st_ctime_ns)
        copies = [path for each in above for path in each.glob("store*.partial")]
        for path in (*left[:-LEFT_STORES_MAX], *copies):
            remove_if_there(path)


class Settler(Actor):
    """Gives one setting a new value in each round: the last acknowledged one holds."""

    role = "settler"

    def round(self) -> None:
        """Changes the setting, and reads what it was."""
        log, handle = self.place.settings, self.handle(0)
        value = str(self.random.randrange(1, 10**6))
        token = log.add(what="setting", value=value)
        if problem := self.place.wrong_setting(handle, before=token):
            self.place.report(self.name, problem)
        handle.config(SETTING, value)
        log.add(what="set", value=value)
        self.place.count(self.name, "set")
        time.sleep(PAUSE_S / 2)


class Newcomer(Actor):
    """Captures a root that no actor captured before, and forgets it after some rounds."""

    role = "newcomer"

    def round(self) -> None:
        """Captures one new root, and forgets an old one."""
        name = os.urandom(6).hex()
        root = self.place.newcomers / name
        root.mkdir()
        (root / "file").write_text(name)
        handle = treesnap.open(root, self.place.store, wait_s=self.wait_s)
        self.phase("create")
        made = handle.create(label=name).id
        self.phase("")
        self.place.arrivals.add(what="arrived", root=name, id=made)
        self.place.count(self.name, "arrived")
        for problem in self.place.missing_newcomers():
            self.place.report(self.name, problem)
        living = self.place.living_newcomers()
        if len(living) > NEWCOMERS_MAX:
            gone = next(iter(living))
            self.place.arrivals.add(what="forgetting", root=gone)
            self.handle(0).root_forget(self.place.newcomers / gone, force=True)
            self.place.count(self.name, "forgot")
        time.sleep(PAUSE_S / 2)


class Holder(Actor):
    """Needs snapshots for a while, as mounts do, or pins them: they stay as long."""

    role = "holder"
    keeps_store = True

    def __init__(self, place: Place, number: int, random: Random) -> None:
        super().__init__(place, number, random)
        self.pins = Log(place.directory / "ledger" / f"pins-{self.name}.log")

    def round(self) -> None:
        """Holds one snapshot, of which there may be other holders, or pins one."""
        number = self.some_root()
        self._unpin()
        handle = self.handle(number)
        snapshots = handle.list()
        if snapshots:
            # The oldest goes first, and is the one that other holders choose too.
            one = self.random.choice((snapshots[-1], self.random.choice(snapshots)))
            self.random.choice((self._hold, self._hold, self._pin))(number, handle, one)
        time.sleep(self.random.random() * 2 * PAUSE_S)  # a store with holders is not moved

    def _hold(self, number: int, handle: treesnap.Handle, one: Snapshot) -> None:
        with opened(handle.context, "hold a snapshot", recover=False) as session:
            root = session.root
            with root.locked("hold", self.wait_s):
                if session.store.snapshots.listing(root.id).find(one.id) is None:
                    return
                record = HoldRecord(os.getpid(), "hold", ())
                holds = [root.hold(one.id, record) for _ in range(self.random.randrange(1, 4))]
            while holds:
                time.sleep(self.random.random() * PAUSE_S)
                self._check(number, handle, one, "held")
                holds.pop(self.random.randrange(len(holds))).release()
        self.place.count(self.name, "held")

    def _pin(self, number: int, handle: treesnap.Handle, one: Snapshot) -> None:
        """Pins a snapshot unless it is pinned; writers cannot pin it meanwhile, or afterwards."""
        with self.place.ledger(number).exclusive() as is_alone:
            try:
                if not is_alone or handle.resolve(one.id).pinned:
                    return
                self.pins.add(what="pinning", root=number, id=one.id)
                handle.pin(one.id)
            except NotFound:
                return
        time.sleep(self.random.random() * PAUSE_S)
        self._check(number, handle, one, "pinned")
        self.place.count(self.name, "pinned")

    def _unpin(self) -> None:
        """Takes the last pin back, unless another actor is about to look at pins, or wants it."""
        lines = self.pins.lines()
        if not lines or lines[-1]["what"] != "pinning":
            return
        number, identity = lines[-1]["root"], lines[-1]["id"]
        ledger = self.place.ledger(number)
        with ledger.exclusive() as is_alone:
            if is_alone:
                if identity not in ledger.ids("pinned"):
                    with suppress(NotFound):
                        self.handle(number).unpin(identity)
                self.pins.add(what="unpinned")

    def _check(self, number: int, handle: treesnap.Handle, one: Snapshot, how: str) -> None:
        if self.random.random() < 0.5:
            self.check_export(self.place.ledger(number), handle, one)
        try:
            handle.resolve(one.id)
        except NotFound:
            self.place.report(self.name, f"{one.id} is {how}, and gone")


class Planner(Actor):
    """Runs plans and commands with a way back, in a root of its own."""

    role = "planner"
    keeps_store = True

    def __init__(self, place: Place, number: int, random: Random) -> None:
        super().__init__(place, number, random)
        self.root = place.directory / f"planned-{number}"
        self.file = self.root / "file"

    def rest(self) -> None:
        """Ends a restore that was killed: a store is not moved before."""
        self.own_handle(self.root).status()

    def round(self) -> None:
        """Finishes what was killed, then does something new."""
        handle = self.own_handle(self.root)
        handle.status()
        planner = plans.Planner(handle)
        for plan in planner.list():
            if plan.is_interrupted:
                self._check(planner.resume(plan.id, allow_commands=True).name, "a resumed plan")
                self.place.count(self.name, "resumed")
        self.random.choice((self._plan, self._run))(handle, planner)

    def _plan(self, handle: treesnap.Handle, planner: plans.Planner) -> None:
        """Runs a plan whose steps say in the file that they were done, and goes back at times."""
        name = os.urandom(4).hex()
        steps = [
            plans.Step(name=f"step {at}", run=f"echo {name} {at} >{'>' * (at > 0)} file")
            for at in range(PLAN_STEPS)
        ]
        plan = planner.run(name, steps, plans.Milestones())
        self._check(name, "a plan")
        if self.random.random() < 0.5:
            planner.rollback(plan.id, f"step:{PLAN_STEPS - 1}")
            self._check(name, "a plan that was rolled back", PLAN_STEPS - 1)
        if self.random.random() < 0.5:
            planner.delete(plan.id)
        self.place.count(self.name, "planned")

    def _run(self, handle: treesnap.Handle, planner: plans.Planner) -> None:
        before, is_failing = os.urandom(4).hex(), self.random.random() < 0.5
        self.file.write_text(before)
        handle.run(["sh", "-c", f"echo after > file; exit {int(is_failing)}"])
        if self.file.read_text() != (before if is_failing else "after\n"):
            self.place.report(self.name, f"run left {self.file.read_text()!r}, not {before}")
        self.place.count(self.name, "ran")

    def _check(self, name: str, what: str, count: int = PLAN_STEPS) -> None:
        found = self.file.read_text()
        if found != "".join(f"{name} {at}\n" for at in range(count)):
            self.place.report(self.name, f"{what} left {found!r}")


class Forgetter(Actor):
    """Lets its root be forgotten, and comes back with what it had or with something new."""

    role = "forgetter"

    def __init__(self, place: Place, number: int, random: Random) -> None:
        super().__init__(place, number, random)
        self.root = place.directory / f"forgotten-{number}"
        self.log = Log(place.directory / "ledger" / f"forgotten-{number}.log")

    def round(self) -> None:
        """Looks at what there is, then captures or forgets."""
        handle = self.own_handle(self.root)
        is_half = self._look(handle)
        if is_half or (self.random.random() < 0.3 and handle.list()):
            self.log.add(what="forgetting")
            with suppress(NotFound):
                handle.root_forget(force=True)
            self.log.add(what="forgot")
            if left := handle.list():
                self.place.report(self.name, f"forgotten, and still there: {left}")
            self.place.count(self.name, "forgot")
            return
        content = self.random.choice(CONTENTS)
        (self.root / "file").write_bytes(content * 300)
        self.log.add(what="made", id=handle.create(label="here again").id, content=content.hex())
        self.place.count(self.name, "captured")

    def _look(self, handle: treesnap.Handle) -> bool:
        """Looks for all that was captured since the last time; returns whether it is going."""
        made: dict[str, str] = {}
        lines = self.log.lines()
        is_half = bool(lines) and lines[-1]["what"] == "forgetting"
        for line in lines:
            if line["what"] == "made":
                made[line["id"]] = line["content"]
            elif line["what"] == "forgot":
                made = {}
        found = {one.id for one in handle.list()}
        lost = made.keys() - found
        if lost and not (is_half and not found):  # all of it may be gone, not a part
            self.place.report(self.name, f"{sorted(lost)} of {len(made)} are lost")
        for identity in found & made.keys():
            if b"".join(handle.cat(identity, "file")) != bytes.fromhex(made[identity]) * 300:
                self.place.report(self.name, f"{identity} is not what was captured")
        return is_half


ACTORS = (
    Writer,
    ThreadedWriter,
    Deleter,
    Pruner,
    Collector,
    Reader,
    Caller,
    Repairer,
    Mover,
    Settler,
    Newcomer,
    Damager,
    Holder,
    Planner,
    Forgetter,
)
ROLES = {role.role: role for role in ACTORS}


def _removes(result: GcResult) -> bool:
    return bool(result.removed_packs or result.rewritten_packs)


def _why(error: Busy) -> str:
    return "overtaken" if "overtaking" in error.message else "held"


def _why_not_moved(error: Busy) -> str:
    """Returns which of those who keep a store where it is was met."""
    reasons = ("garbage collector", "has a snapshot", "in use by another", "at work in the store")
    return next((reason for reason in reasons if reason in error.message), error.message)


def main() -> None:
    """Acts until the soak is over; SIGUSR1 prints where it is."""
    directory, root_count, role, number, seed = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    place = Place(Path(directory), int(root_count))
    ROLES[role](place, int(number), Random(seed)).run()


if __name__ == "__main__":
    main()
