"""The machines of a soak of a remote: each is a process with a root and a store of its own.

Run as ``python -m remote.soak.remote_actors DIRECTORY MACHINES ROLE NUMBER SEED``. The servers fail
under them at any moment; they themselves are not killed.
"""

from __future__ import annotations

import faulthandler
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import treesnap
from soak.place import Place
from treesnap.core.model.errors import Busy, ErrorCode, RemoteFailed
from treesnap.core.store.maintenance.retention import Policy
from treesnap.remote import Remotes
from treesnap.remote.commands.secret import secret_of

PAUSE_S = 0.5
"""After a failure of the remote."""
COLLECTOR_PAUSE_S = (1.0, 8.0)
"""Between two collections of one machine."""
PRUNE_PART, FORGET_PART = 0.08, 0.08
"""In so many rounds a writer prunes its history on the remote, or its own store."""
PASSING = {ErrorCode.REMOTE_FAILED, ErrorCode.REMOTE_UNREACHABLE, ErrorCode.REMOTE_THROTTLED}
"""What a server may answer that was killed, or whose storages were."""


class RemotePlace(Place):
    """A place where each root has a store of its own."""

    def store_of(self, number: int) -> Path:
        """Returns the store of a machine."""
        return self.directory / "stores" / f"{number}"

    def add_remote(self, urls: Sequence[str], *, encrypted: bool = True) -> None:
        """Gives each machine a store that knows the remote, by one of its addresses.

        They are copies of one store for each address, as of one image of a machine: adding a
        remote tries its server out, which is a lot of work.
        """
        for position, url in enumerate(urls):
            first = self.directory / f"first-store-{position}"
            handle = treesnap.open(self.directory / "nothing", first)
            Remotes(handle, secret_of(handle)).add("shared", url, encrypted=encrypted)
            for number in range(position, len(self.roots), len(urls)):
                shutil.copytree(first, self.store_of(number))
                treesnap.open(self.directory / "nothing", self.store_of(number)).store_trust()

    def progress_file(self, number: int) -> Path:
        """Returns the file that a writer touches when something was acknowledged."""
        return self.directory / "ledger" / f"progress-{number}"


class Machine:
    """What all machines share."""

    role = ""

    def __init__(self, place: RemotePlace, number: int, random: Random) -> None:
        self.place = place
        self.number = number
        self.name = f"{self.role}-{number}"
        self.random = random
        self.handle = treesnap.open(place.roots[number], place.store_of(number))
        self.remotes = Remotes(self.handle, secret_of(self.handle))

    def run(self) -> None:
        """Does rounds until the soak is over, and a last one with servers that work."""
        is_last = False
        while not is_last:
            is_last = self.place.stop_file.exists()
            try:
                self.round()
            except Exception:  # noqa: BLE001 - whatever it is, the soak is told
                self.place.report(self.name, traceback.format_exc())
                time.sleep(PAUSE_S)
            self.place.count(self.name, "round")

    def round(self) -> None:
        """Does one thing."""
        raise NotImplementedError

    def succeeds(self, act: Callable[[], object]) -> bool:
        """Does something on the remote; returns whether that was possible just now."""
        try:
            act()
        except Busy:
            self.place.count(self.name, "busy")
            return False
        except RemoteFailed as error:
            if error.code not in PASSING:
                self.place.report(self.name, traceback.format_exc())
            self.place.count(self.name, f"failed: {error.code.value}")
            return False
        return True


class Writer(Machine):
    """Changes its root, captures it, and pushes until that is acknowledged."""

    role = "writer"

    def __init__(self, place: RemotePlace, number: int, random: Random) -> None:
        super().__init__(place, number, random)
        self.ledger = place.ledger(number)

    def round(self) -> None:
        """Makes one snapshot and pushes it; rarely forgets some."""
        self.push_one()
        if self.random.random() < PRUNE_PART:
            self.succeeds(lambda: self.prune(keep_last=self.random.randrange(2, 12)))
        if self.random.random() < FORGET_PART:
            self.handle.prune(Policy(keep_last=self.random.randrange(1, 10)))

    def push_one(self) -> None:
        """Changes the root, captures it, and pushes until that is acknowledged."""
        for line in self.place.change(self.number, self.random):
            self.place.report(self.name, f"the root is not as it was left: {line}")
        captured = self.handle.create().id
        self.ledger.log.add(what="captured", ids=[captured], states=self.ledger.now())
        while not self.succeeds(self.remotes.push):
            time.sleep(PAUSE_S)
        # A push whose answer was lost may have been carried out; then the next finds nothing to do.
        self.ledger.log.add(what="acknowledged", ids=[captured])
        self.place.progress_file(self.number).touch()
        self.place.count(self.name, "acknowledged")

    def prune(self, keep_last: int) -> None:
        """Deletes old snapshots of the root on the remote."""
        policy = Policy(keep_last=keep_last)
        chosen = self.remotes.prune(policy=policy, dry_run=True).removed
        self.ledger.log.add(what="deleting", ids=[one.id for one in chosen])
        removed = self.remotes.prune(policy=policy).removed
        if {one.id for one in removed} - {one.id for one in chosen}:
            self.place.report(self.name, "a prune removed more than the plan of it said")
        self.place.count(self.name, "pruned")


class Collector(Machine):
    """Collects garbage on the remote, one collection after the other."""

    role = "collector"

    def round(self) -> None:
        """Does one collection."""
        time.sleep(self.random.uniform(*COLLECTOR_PAUSE_S))
        self.place.count(self.name, "begun")
        self.succeeds(self._collect)

    def _collect(self) -> None:
        collected = self.remotes.collect()
        self.place.count(self.name, "collected" if collected.packs else "found nothing")


ROLES = {role.role: role for role in (Writer, Collector)}


def main() -> None:
    """Works until the soak is over; SIGUSR1 prints where it is."""
    directory, machines, role, number, seed = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    place = RemotePlace(Path(directory), int(machines))
    ROLES[role](place, int(number), Random(int(seed))).run()


if __name__ == "__main__":
    main()
