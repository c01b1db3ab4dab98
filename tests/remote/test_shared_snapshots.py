"""One snapshot in several roots of one store: what is said of it holds until the last has let go.

A fetched snapshot keeps its id, so its pin, its later label and tags are those of all its roots.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import treesnap
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, Refused
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import context_at
from treesnap.core.ops.maintenance.roots import forget_root
from treesnap.core.ops.run.checkpoint import held_snapshot
from treesnap.core.store.maintenance.retention import Policy
from treesnap.core.store.store import Store
from treesnap.remote import Remotes
from treesnap.testing.children import killed
from treesnap.testing.doubles import (
    Call,
    FaultyFileSystem,
    Killed,
    UnsyncedFileSystem,
    WrappedFileSystem,
    kill_at,
)

pytestmark = pytest.mark.sampled(12)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Returns a directory with two clones, one and two, and the store of both."""
    garden, disk = tmp_path / "garden", str(tmp_path / "disk")
    garden.mkdir()
    (garden / "plants").write_text("roses")
    laptop = treesnap.open(garden, tmp_path / "laptop")
    laptop.create()
    Remotes(laptop).add("disk", disk)
    Remotes(laptop).push()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Remotes(handle(tmp_path, name)).clone(disk)
    return tmp_path


def handle(base: Path, name: str, **options: object) -> Handle:
    defaults = {"fs": UnsyncedFileSystem(), "wait_s": 0.0}
    return Handle(
        context_at(root=base / name, store_path=str(base / "store"), **defaults | options)
    )


def common(base: Path, name: str = "one") -> Snapshot:
    """Returns the snapshot that both roots have, as one of them has it."""
    return handle(base, name).list()[-1]


def forget(base: Path, name: str, *, force: bool = True, **options: object) -> None:
    forget_root(handle(base, name, **options).context, str(base / name), force=force)


def damage(base: Path, name: str) -> None:
    """Damages a root's file of the snapshot beyond repair, and repairs the store."""
    root = Store(LocalFileSystem(), str(base / "store")).root(str(base / name).encode())
    identity = common(base, name).id
    (path,) = (base / "store" / "snapshots" / root.id).glob(f"*-{identity}")
    path.write_bytes(b"damaged")
    assert handle(base, name).verify(repair=True).problems


def prune(base: Path, name: str) -> None:
    handle(base, name).create(name="newer")
    handle(base, name).prune(Policy(keep_last=1))


WAYS: dict[str, Callable[[Path, str], object]] = {
    "delete": lambda base, name: handle(base, name).delete(common(base, name).id),
    "prune": prune,
    "forget": forget,
    "repair": damage,
}
"""How a root comes to be without a snapshot."""


def has_it(base: Path, name: str, identity: str) -> bool:
    return identity in {item.id for item in handle(base, name).list()}


def test_both_roots_have_one_snapshot(shared):
    assert common(shared, "one").id == common(shared, "two").id


@pytest.mark.parametrize("way", WAYS)
def test_what_was_said_of_a_snapshot_stays_when_another_root_lets_it_go(shared, way):
    identity = common(shared).id
    handle(shared, "one").describe(identity, "as delivered")
    handle(shared, "one").tag(identity, {"customer": "Ada"})

    WAYS[way](shared, "two")

    assert not has_it(shared, "two", identity)
    assert common(shared).label == "as delivered"
    assert common(shared).tags["customer"] == "Ada"
    assert handle(shared, "one").verify(read_data=True).problems == ()


@pytest.mark.parametrize("way", ["forget", "repair"])
def test_a_pin_stays_when_another_root_loses_the_snapshot(shared, way):
    identity = common(shared).id
    handle(shared, "one").pin(identity)

    WAYS[way](shared, "two")

    assert not has_it(shared, "two", identity)
    assert common(shared).pinned
    with pytest.raises(Refused):
        handle(shared, "one").delete(identity)
    prune(shared, "one")
    assert has_it(shared, "one", identity)


def test_a_pin_of_one_root_protects_the_snapshot_in_the_other(shared):
    identity = common(shared).id
    handle(shared, "one").pin(identity)

    with pytest.raises(Refused) as caught:
        handle(shared, "two").delete(identity)
    prune(shared, "two")

    assert caught.value.code == ErrorCode.PINNED
    assert has_it(shared, "two", identity)
    with pytest.raises(Refused) as caught:
        forget(shared, "two", force=False)
    assert caught.value.code == ErrorCode.HISTORY_KEPT
    handle(shared, "two").unpin(identity)
    assert not common(shared).pinned


@pytest.mark.parametrize("way", ["delete", "forget"])
def test_nothing_is_left_of_it_when_the_last_root_lets_it_go(shared, way):
    identity = common(shared).id
    handle(shared, "one").tag(identity, {"customer": "Ada"})

    WAYS[way](shared, "two")
    WAYS[way](shared, "one")

    assert not (shared / "store" / "states" / identity).exists()
    assert treesnap.open(shared, shared / "store").verify().problems == ()


class AtACall(WrappedFileSystem):
    """Does something once, before the n-th call while the list of roots is not locked."""

    def __init__(self, number: int, action: Callable[[], object]) -> None:
        super().__init__(UnsyncedFileSystem())
        self.number = number
        self.action = action
        self.is_locked = False

    def around(self, call: Call):
        is_lock = call.method in {"lock", "unlock"} and call.path.endswith("roots/lock")
        if not self.is_locked:
            self.number -= 1
            if self.number == 0:
                self.action()
        result = call.proceed()
        if is_lock:
            self.is_locked = call.method == "lock" and bool(result)
        return result


def interleavings(
    base: Path, command: Callable[[Handle], object], other: Callable[[], object]
) -> Iterator[None]:
    """Runs a command of root one with another whole at each of its calls; yields after each."""
    for number, _ in enumerate(fresh_stores(base), start=1):
        fs = AtACall(number, other)
        command(handle(base, "one", fs=fs))
        if fs.number > 0:
            return
        yield


def fresh_stores(base: Path) -> Iterator[None]:
    """Yields again and again when the store is as it was at first."""
    store, copy = base / "store", base / "store-at-first"
    shutil.copytree(store, copy)
    while True:
        yield
        shutil.rmtree(store)
        shutil.copytree(copy, store)


def test_what_two_roots_say_at_once_both_holds(shared):
    identity = common(shared).id

    def tag() -> None:
        handle(shared, "two").tag(identity, {"other": "yes"})

    for _ in interleavings(shared, lambda it: it.tag(identity, {"customer": "Ada"}), tag):
        assert common(shared).tags.items() >= {"customer": "Ada", "other": "yes"}.items()


def test_a_pin_holds_that_begins_at_any_call_of_a_deletion_in_another_root(shared):
    identity = common(shared).id
    handle(shared, "two").tag(identity, {"customer": "Ada"})

    def delete(it: Handle) -> None:
        with suppress(Refused):  # where the pin comes first
            it.delete(identity)

    for _ in interleavings(shared, delete, lambda: handle(shared, "two").pin(identity)):
        assert common(shared, "two").pinned
        assert common(shared, "two").tags["customer"] == "Ada"


@pytest.mark.parametrize("way", ["delete", "forget"])
def test_nothing_is_left_when_another_root_says_something_and_lets_go_at_any_call(shared, way):
    identity = common(shared).id

    def say_and_let_go() -> None:
        handle(shared, "two").tag(identity, {"other": "yes"})
        WAYS[way](shared, "two")

    def let_go(it: Handle) -> None:
        if way == "delete":
            it.delete(identity)
        else:
            forget_root(it.context, str(shared / "one"), force=True)

    for _ in interleavings(shared, let_go, say_and_let_go):
        assert os.listdir(shared / "store" / "states") == []
        assert treesnap.open(shared, shared / "store").verify().problems == ()


def test_a_kill_at_any_call_of_the_last_deletion_leaves_nothing_said_of_nothing(shared):
    """A snapshot may be left without its label, but no label without its snapshot."""
    identity = common(shared).id
    handle(shared, "one").describe(identity, "as delivered")
    handle(shared, "two").delete(identity)
    kills = 0
    for _ in fresh_stores(shared):
        fs = FaultyFileSystem(kill_at(kills + 1), inner=UnsyncedFileSystem())
        try:
            handle(shared, "one", fs=fs).delete(identity)
            break
        except Killed:
            kills += 1
        assert has_it(shared, "one", identity) or os.listdir(shared / "store" / "states") == []
    assert kills > 1


def test_a_kill_at_any_call_of_forgetting_leaves_the_pin_of_another_root(shared):
    identity = common(shared).id
    handle(shared, "one").pin(identity)
    kills = 0
    for _ in fresh_stores(shared):
        fs = FaultyFileSystem(kill_at(kills + 1), inner=UnsyncedFileSystem())
        try:
            forget(shared, "two", fs=fs)
            break
        except Killed:
            kills += 1
        assert common(shared).pinned
        handle(shared, "one").gc()
        assert common(shared).pinned
    assert kills > 5


def fetched(base: Path) -> tuple[Handle, str]:
    """Fetches the history of another machine; returns a handle on one, and a REF there."""
    here = handle(base, "one")
    other = base / "other"
    other.mkdir()
    (other / "plants").write_text("tulips")
    (other / "photo").write_bytes(os.urandom(100_000))
    theirs = treesnap.open(other, base / "desk")
    theirs.create()
    Remotes(theirs).add("disk", str(base / "disk"))
    Remotes(theirs).push()
    Remotes(here).add("disk", str(base / "disk"))
    return here, Remotes(here).fetch("disk", "other").ref


def test_a_fetched_snapshot_is_deleted_where_it_is(shared):
    here, ref = fetched(shared)
    here.pin(ref)
    with pytest.raises(Refused):
        here.delete(ref)
    here.unpin(ref)
    own = here.list()[-1].id
    with (
        held_snapshot(handle(shared, "two").context, here.resolve(ref).id, "step"),
        pytest.raises(treesnap.Busy),
    ):
        here.delete(ref)

    gone = here.delete(ref, own)

    assert [item.id for item in gone] == [ref.rpartition("@")[2], own]
    assert own not in {item.id for item in here.list()}
    for left in (ref, ref.rpartition("@")[0]):
        with pytest.raises(treesnap.NotFound):
            here.resolve(left)
    assert here.verify(read_data=True).problems == ()


class Beside(WrappedFileSystem):
    """Calls something once, before the lock of all roots is taken."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self._actions = [action]

    def around(self, call: Call) -> object:
        if call.method == "open" and call.path.endswith("/roots/lock") and self._actions:
            self._actions.pop()()
        return call.proceed()


def test_what_is_said_of_a_fetched_snapshot_does_not_outlast_it(shared):
    here, ref = fetched(shared)
    history_id = next(item.id for item in here.root_list() if item.fetched)

    def forget_history() -> None:
        with suppress(treesnap.Busy):
            forget_root(here.context, history_id, force=True)

    handle(shared, "one", fs=Beside(forget_history)).tag(ref, {"customer": "Ada"})

    assert here.verify().problems == ()


@pytest.mark.needs("exchange")
def test_a_fetched_snapshot_that_an_interrupted_restore_needs_stays(shared):
    """Also where another root of the store is the one from which it is to be removed."""
    here, ref = fetched(shared)
    live = shared / "one"
    (live / "paths").write_text("mine")
    mine = here.create().id
    there = shared / "other"
    (there / "paths").write_text("theirs")
    theirs = treesnap.open(there, shared / "desk")
    theirs.create()
    Remotes(theirs).push()
    ref = Remotes(here).fetch("disk", "other").ref
    mixes = ({"roses", "theirs"}, {"tulips", "mine"})
    for number in range(20, 200):
        killed(lambda fs: handle(shared, "one", fs=fs).restore(ref), kill_at(number))
        if {(live / name).read_text() for name in ("plants", "paths")} in mixes:
            break
        here.list()
        here.restore(mine)
    else:
        pytest.fail("no kill left a part of the restore")
    history_id = next(item.id for item in handle(shared, "two").root_list() if item.fetched)

    for remove in (
        lambda: forget_root(handle(shared, "two").context, history_id, force=True),
        lambda: handle(shared, "two").delete(ref),
    ):
        with pytest.raises(Refused) as refused:
            remove()
        assert refused.value.code == ErrorCode.RESTORE_INTERRUPTED
    handle(shared, "two").gc()

    assert here.status() is not None
    assert [(live / name).read_text() for name in ("plants", "paths")] == ["tulips", "theirs"]
    forget_root(handle(shared, "two").context, history_id, force=True)


class Forgetting(WrappedFileSystem):
    """Forgets the fetched history once, and collects, before the n-th call of a sort."""

    def __init__(self, base: Path, method: str, name: str, number: int) -> None:
        super().__init__(UnsyncedFileSystem())
        self._other = handle(base, "two")
        self._history_id = next(item.id for item in self._other.root_list() if item.fetched)
        self._sort, self.left = (method, name), number

    def around(self, call: Call) -> object:
        if (call.method, os.path.basename(call.paths[-1] if call.paths else "")) == self._sort:
            self.left -= 1
            if self.left == 0:
                forget_root(self._other.context, self._history_id, force=True)
                assert self._other.gc().freed_bytes > 90_000
        return call.proceed()


def test_no_restore_is_committed_to_a_snapshot_that_is_gone(shared):
    """After a kill it could neither be finished nor undone."""
    here, ref = fetched(shared)
    live = shared / "one"
    before = {path.name: path.read_bytes() for path in live.iterdir()}
    fs = Forgetting(shared, "unlink", "building", 1)  # all is staged

    with pytest.raises(treesnap.NotFound, match="was deleted meanwhile"):
        handle(shared, "one", fs=fs).restore(ref)

    assert fs.left == 0
    assert {path.name: path.read_bytes() for path in live.iterdir()} == before
    assert here.doctor().unfinished == ()


def test_a_snapshot_to_which_a_restore_is_being_committed_stays(shared):
    here, ref = fetched(shared)

    with pytest.raises(treesnap.Busy):
        handle(shared, "one", fs=Forgetting(shared, "rename", "journal", 2)).restore(ref)

    assert here.resolve(ref)
    assert here.doctor().unfinished == ()
