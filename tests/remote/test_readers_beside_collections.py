"""What reads a remote while another machine deletes snapshots there and collects."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, repeat
from pathlib import Path

import pytest

import treesnap
from blob_doubles import MemoryBlobs, WrappedBlobs
from oracle import difference, record
from treesnap.core.handle import Handle
from treesnap.core.store.maintenance.retention import Policy
from treesnap.remote import Remotes
from treesnap.remote.blobs.base import Blobs

pytestmark = pytest.mark.sampled(10)

Event = Callable[[], object]


class Interrupted(WrappedBlobs):
    """Lets something happen before each request, as long as something is left."""

    def __init__(self, inner: Blobs, events: deque[Event]) -> None:
        super().__init__(inner)
        self._events = events

    def around(self, method, proceed, arguments):
        if self._events:
            self._events.popleft()()
        return proceed()


class Scene:
    """A reader and another machine, which share a remote in memory."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.content: dict[str, bytes] = {}
        for name in ("reader", "other"):
            (base / name).mkdir()
            self.remotes(self.handle(name)).add("backup", "s3://b", encrypted=False)
            for _ in range(3):
                self.theirs = self.push(self.handle(name))
        self._kept = dict(self.content)

    def handle(self, name: str, number: int = 0) -> Handle:
        return treesnap.open(self.base / name, self.base / f"store {number} of {name}")

    def remotes(self, handle: Handle, events: deque[Event] | None = None) -> Remotes:
        def place(_url: str, *, make: bool = False) -> Blobs:
            blobs = MemoryBlobs(self.content)
            return Interrupted(blobs, events) if events is not None else blobs

        return Remotes(handle, opener=place)

    def push(self, handle: Handle) -> str:
        """Pushes a new snapshot; returns the id of the history."""
        root = Path(handle.root)
        (root / "beds").mkdir(exist_ok=True)
        for name in ("plants", "beds/roses"):
            (root / name).write_bytes(os.urandom(30_000))
        handle.create()
        return self.remotes(handle).push().history_id

    def delete(self, remotes: Remotes) -> None:
        """Deletes all snapshots of a history but the newest one, and what only they needed."""
        remotes.prune(policy=Policy(keep_last=1))
        remotes.collect()
        remotes.collect()

    def interruptions(self) -> Iterator[tuple[Handle, deque[Event]]]:
        """Yields a reader, and what happens before its requests: one time, the other machine
        deletes all but its newest snapshot.

        It happens before every request in turn, until one has nothing after it.
        """
        for number in count(1):
            self.content = dict(self._kept)
            for name in ("reader", "other"):
                store = f"store {number} of {name}"
                shutil.copytree(self.base / f"store 0 of {name}", self.base / store)
                self.handle(name, number).store_trust()
            deletes = partial(self.delete, self.remotes(self.handle("other", number)))
            events = deque[Event]([*repeat(bool, number - 1), deletes])
            yield self.handle("reader", number), events
            if events:
                return


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.parametrize("read_data", [False, True])
def test_a_verification_finds_no_damage_where_snapshots_are_deleted(scene, read_data):
    counts = set()
    for reader, events in scene.interruptions():
        found = scene.remotes(reader, events).verify(read_data=read_data)
        assert found.problems == ()
        counts.add(found.snapshots)

    assert counts == {6, 4}


def test_a_fetch_brings_what_is_left_where_snapshots_are_deleted(scene):
    counts = set()
    for reader, events in scene.interruptions():
        counts.add(len(scene.remotes(reader, events).fetch().fetched.ids))

    assert counts == {3, 1}


def test_a_clone_brings_what_is_left_where_snapshots_are_deleted(scene, tmp_path):
    counts = set()
    for number, (_, events) in enumerate(scene.interruptions()):
        handle = treesnap.open(tmp_path / f"clone {number}", tmp_path / f"cloned store {number}")
        done = scene.remotes(handle, events).clone("s3://b", scene.theirs, encrypted=False)
        assert difference(record(tmp_path / "other"), record(Path(done.root))) == []
        counts.add(len(done.fetched.ids))

    assert counts == {3, 1}


def test_what_is_lost_is_damage_although_others_push_all_the_time(scene, tmp_path):
    """No two views are the same then."""
    lost = [name for name in scene.content if name.startswith("packs/")][-1]
    del scene.content[lost]
    pushes = deque[Event](repeat(lambda: scene.push(scene.handle("other")), 60))
    cloned = treesnap.open(tmp_path / "clone", tmp_path / "cloned store")

    found = scene.remotes(scene.handle("reader"), pushes).verify()
    done = scene.remotes(cloned, pushes).clone("s3://b", scene.theirs, encrypted=False)

    assert lost in {problem.where for problem in found.problems}
    assert [lost in item.message for item in done.fetched.left_out] == [True]
