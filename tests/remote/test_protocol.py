"""The protocol's own code with many machines at once, in orders drawn by lot.

The rules are proved by the model in ``remote/test_remote_model.py``; here is what carries
them out. Machines push, delete and collect; requests lose their answers or land again long
after; machines stop for whole collections, or die. Now and then, and in the end, everything
that was acknowledged is read back and compared with its identity.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from remote_world import PAGE_SIZE, Client, Machine, Objects, Server, new_snapshot
from sampling import sized
from treesnap.core.codec.reader import Reference
from treesnap.core.codec.snapshot import snapshot_id
from treesnap.core.model.entries import ObjectId
from treesnap.core.model.errors import Busy
from treesnap.remote import collector
from treesnap.remote.collector import Collector
from treesnap.remote.objects import RemoteObjects, needed_objects
from treesnap.remote.protocol import Remote, View
from treesnap.remote.push import push_snapshots
from treesnap.remote.records import (
    DELETION,
    Deletion,
    Folder,
    HistoryName,
    Marks,
    RemoteName,
    RemoteState,
    state_name,
)

pytestmark = pytest.mark.sampled(10)

RUNS = sized(3, 30)


class Checked(Remote):
    """Looks with each view whether the server seems to hide a push, which this one never does."""

    def read(self, *arguments, **options) -> View:
        view = super().read(*arguments, **options)
        assert not view.contradiction
        return view


class Scene:
    """A server, the machines that use it, and what they were told."""

    def __init__(self, seed: int, page_size: int = PAGE_SIZE) -> None:
        self.random = Random(seed)
        self.server = Server(self.random, page_size)
        self.numbers = iter(range(1, 1 << 30))
        self.acknowledged: set[bytes] = set()
        self.deleted: set[bytes] = set()
        """Those that a machine asked to delete, from the moment of asking."""
        self.gone: set[tuple[RemoteName, bytes]] = set()
        """Those of which the deletion was acknowledged."""
        self.collections = 0
        assert self.remote().create_state(0, RemoteState())

    def remote(self, client: Client | None = None, reads_max: int = 4) -> Remote:
        return Checked(client or Client(self.server), lambda count_read: count_read < reads_max)

    def start(self, work: Callable[[Client], None]) -> Machine:
        client = Client(self.server)
        client.machine = Machine(lambda: work(client))
        client.machine.start()
        return client.machine

    def push(self, client: Client) -> None:
        remote, objects, random = self.remote(client), Objects(), self.random
        history = HistoryName.new(client.id, "garden@laptop")
        for _ in range(random.randrange(1, 4)):
            snapshots = [
                new_snapshot(objects, random, next(self.numbers))
                for _ in range(random.choice([1, 1, 2]))
            ]
            try:
                push_snapshots(remote, history, objects, snapshots, random.choice([1, 64]))
            except Busy:
                continue
            self.acknowledged.update(snapshots)

    def collect(self, client: Client) -> None:
        for _ in range(self.random.randrange(1, 4)):
            here, lot = Collector(self.remote(client)), self.random.random()
            if lot < 0.05:
                with suppress(Busy):
                    here.rebuild(Marks())
            elif lot < 0.3:
                here.fold()
            elif here.collect() is not None:
                self.collections += 1

    def delete(self, client: Client) -> None:
        for _ in range(self.random.randrange(1, 4)):
            view = self.remote(client).read()
            for entry in view.visible.values():
                chosen = [item for item in entry.snapshots if self.random.random() < 0.2]
                if chosen:
                    self.deleted.update(chosen)
                    ids = tuple(bytes.fromhex(snapshot_id(item)) for item in chosen)
                    content = DELETION.seal(Deletion(entry.name, ids))
                    client.put(Folder.DELETIONS, view.state.epoch, content)
                    self.gone.update((entry.name, item) for item in chosen)

    def check(self) -> View:
        """Reads back everything that must be there."""
        view = self.remote().read()
        shown = {item for entry in view.visible.values() for item in entry.snapshots}
        assert self.acknowledged - self.deleted <= shown
        objects, seen = RemoteObjects(Client(self.server), view), set[ObjectId]()

        def is_known(reference: Reference) -> bool:
            known = reference.id in seen
            seen.add(reference.id)
            return known

        for reference in needed_objects(objects, shown - self.deleted, is_known):
            objects.get(reference.kind, reference.id)
        return view

    def run(self, machines: int, steps: int, collectors: int = 0, checks: int = 50) -> None:
        """Lets machines take turns, and starts others in the place of those that end."""
        random = self.random

        def new(which: int) -> Machine:
            kinds = [self.collect, self.delete, self.push]
            kind = random.choices(kinds, [25, 15, 60])[0]
            if collectors:
                is_collector = which < collectors
                kind = self.collect if is_collector else random.choices(kinds[1:], [20, 80])[0]
            return self.start(kind)

        working = [new(which) for which in range(machines)]
        asleep_until = [0] * machines
        for step in range(steps):
            if self.server.late and random.random() < 0.05:
                self.server.land(random.randrange(len(self.server.late)))
            is_collecting = collectors and random.random() < 0.5  # or no collection ever ends
            which = random.randrange(collectors if is_collecting else machines)
            if asleep_until[which] > step:
                continue
            if random.random() < 0.01:
                asleep_until[which] = step + random.randrange(20, 300)
            if random.random() < 0.003:
                working[which].kill()
            if working[which].is_done:
                working[which] = new(which)
            else:
                working[which].go_on()
            if step % (steps // checks) == 0:
                self.check()
        for machine in working:
            machine.kill()

    def settle(self) -> None:
        """When all have stopped, a few collections leave what is needed and no more."""
        while self.server.late:
            self.server.land(0)
        self.check()
        for _ in range(collector.PARTIAL_EPOCHS + 2):
            assert Collector(self.remote()).collect() is not None
        view = self.check()
        shown = {(entry.name, item) for entry in view.visible.values() for item in entry.snapshots}
        assert not shown & self.gone
        state = view.state
        packs = [name for part in view.index for name in part.packs.values()]
        named = {*map(str, (*state.index_parts, *state.catalog_parts, *packs))}
        assert set(self.server.files) == named | {state_name(view.number)}


@pytest.mark.parametrize("seed", range(RUNS))
def test_no_order_of_requests_loses_anything(seed):
    scene = Scene(seed)

    scene.run(machines=8, steps=4_000)
    scene.settle()

    assert scene.acknowledged


def test_many_machines_at_once_lose_nothing():
    scene = Scene(1, page_size=sized(3, 1_000))

    scene.run(
        machines=sized(12, 1_000),
        steps=sized(6_000, 400_000),
        collectors=sized(3, 8),
        checks=sized(3, 10),
    )
    scene.settle()

    assert scene.acknowledged
    assert scene.collections
