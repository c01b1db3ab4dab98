"""What goes on beside a collection, a repair or a move: writers that stand still, and clocks that
jump; a process that writes or reads at any call of a collection neither waits nor fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from garbage import use_new_pack
from oracle import Record, difference, record
from sampling import sized
from treesnap.core.codec.reader import Reference
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Busy
from treesnap.core.ops.context import context_at
from treesnap.core.store.maintenance.reachability import Reachability
from treesnap.core.store.store import Store
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem

pytestmark = pytest.mark.sampled(10)

YEAR_NS = 365 * 24 * 3600 * 10**9
TIMEOUT_S = 120

STOPPING_CREATE = """
import os, signal, sys
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import WrappedFileSystem

root, store, *words = sys.argv[1:]
places = [words[at : at + 3] for at in range(0, len(words), 3)]

class Stopping(WrappedFileSystem):
    def stop(self, call, moment):
        if places and [call.method, moment] == places[0][::2] and places[0][1] in (
            call.paths[-1].removeprefix(store)
        ):
            del places[0]
            os.kill(os.getpid(), signal.SIGSTOP)

    def around(self, call):
        self.stop(call, "before")
        result = call.proceed()
        self.stop(call, "after")
        return result

Handle(context_at(root=root, store_path=store, fs=Stopping(), wait_s=0)).create(name="stopped")
"""


PLACES = [
    ("write_at", "slots", "after"),  # it knows the epoch, and nothing else
    ("write_at", "packs", "after"),  # it has looked most objects up
    ("sync_data", "packs", "after"),
    ("rename", "index", "after"),
    ("rename", "pending", "before"),
    ("rename", "pending", "after"),  # it was announced, and will look at the epoch
    ("rename", "snapshots", "before"),  # it has looked, and will publish
]
"""Calls of a capture at which it is stopped, and what it knows there."""


class EveryCall(WrappedFileSystem):
    """Does something before each n-th call."""

    def __init__(self, every: int, action: Callable[[], object]) -> None:
        super().__init__(UnsyncedFileSystem())
        self.every = every
        self.action = action
        self.count = 0

    def around(self, call: Call):
        self.count += 1
        if self.count % self.every == 0:
            self.action()
        return call.proceed()


def fill(root: Path, seed: str, *, count: int = 12) -> None:
    """Writes files of which some are the same in every root."""
    for number in range(count):
        path = root / f"directory-{number % 3}" / f"file-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = seed if number % 2 else "the same everywhere"
        path.write_bytes(f"{text} {number} ".encode() * 300)


class Shared:
    """Two roots with one store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store"
        self.roots = [directory / "one", directory / "two"]
        self.states: dict[tuple[int, str], Record] = {}

    def handle(self, number: int, **options) -> Handle:
        defaults = {"fs": UnsyncedFileSystem(), "wait_s": 0.0}
        return Handle(
            context_at(root=self.roots[number], store_path=str(self.store), **defaults | options)
        )

    def create(self, number: int, name: str, **options) -> None:
        self.handle(number, **options).create(name=name)
        self.states[number, name] = record(self.roots[number])

    def delete(self, number: int, name: str) -> None:
        self.handle(number).delete(name)
        del self.states[number, name]

    def assert_nothing_is_lost(self) -> None:
        """Asserts that every snapshot comes back, and that the store has no damage."""
        for (number, name), state in self.states.items():
            target = self.directory / "back" / f"{number}-{name}"
            self.handle(number).restore(name, to=target)
            assert difference(state, record(target)) == [], name
        assert self.handle(0).verify(read_data=True).problems == ()

    def add_waste(self) -> None:
        """Leaves a pack with waste, one without use, and a snapshot of which parts lie in both."""
        fill(self.roots[0], "first")
        self.create(0, "first")
        fill(self.roots[0], "gone")
        self.create(0, "gone")
        use_new_pack(self.store)
        fill(self.roots[1], "dead")
        self.create(1, "dead")
        use_new_pack(self.store)
        fill(self.roots[1], "second")
        self.create(1, "second")
        self.delete(0, "gone")
        self.delete(1, "dead")


@contextmanager
def stopped_writer(shared: Shared, *places: str) -> Iterator[Callable[[], None]]:
    """Lets a capture of the second root stand still at a call, and go on at the end.

    A place is three words; of several, each call of what is yielded leads to the next one.
    """
    arguments = [shared.roots[1], shared.store, *places]
    child = subprocess.Popen([sys.executable, "-c", STOPPING_CREATE, *map(str, arguments)])

    def wait() -> None:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status

    def go_on() -> None:
        child.send_signal(signal.SIGCONT)
        wait()

    try:
        wait()
        yield go_on
    finally:
        child.send_signal(signal.SIGCONT)
        code = child.wait(TIMEOUT_S)
    assert code == 0


def with_donor(shared: Shared) -> Record:
    """Lets the second root need what only a snapshot of the first has; returns its state."""
    for root in shared.roots:
        fill(root, "shared")
    shared.create(0, "donor")
    use_new_pack(shared.store)
    (shared.roots[1] / "own").write_bytes(b"its own" * 1000)
    return record(shared.roots[1])


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("method", "fragment", "moment"), PLACES)
def test_a_writer_that_stands_through_two_collections_loses_nothing(
    shared, method, fragment, moment
):
    """What it found in the store was needed by a snapshot of the other root only, which goes."""
    expected = with_donor(shared)
    with stopped_writer(shared, method, fragment, moment):
        shared.delete(0, "donor")
        results = [shared.handle(0).gc()]
        for name in ("more", "still more"):
            fill(shared.roots[0], name)
            shared.create(0, name)
            shared.delete(0, name)
            results.append(shared.handle(0).gc())

    assert sum(result.removed_packs + result.rewritten_packs > 0 for result in results) >= 2
    shared.states[1, "stopped"] = expected
    shared.assert_nothing_is_lost()


@pytest.mark.parametrize("listing", ["/pending", "/snapshots", None])
def test_a_writer_that_is_pending_when_a_collection_looks_again_loses_nothing(shared, listing):
    """It began before anything was condemned, and relies on what goes.

    It is pending before the epoch is raised again, and published just before one of the two
    listings behind the fence; or it is not pending before the collection has ended.
    """
    expected = with_donor(shared)
    places = ("rename", "pending", "before", "rename", "snapshots", "before")
    raised = 0
    with ExitStack() as writer:
        go_on = writer.enter_context(stopped_writer(shared, *places[: 3 if not listing else 6]))

        class Collecting(WrappedFileSystem):
            def around(self, call: Call):
                nonlocal raised
                if call.method == "rename" and call.paths[-1].endswith("collector/state"):
                    raised += 1
                    if raised == 1 and listing:
                        go_on()
                is_listing = call.method == "list_names" and call.paths[0].endswith(listing or "-")
                if is_listing and raised == 2:
                    writer.close()
                return call.proceed()

        shared.delete(0, "donor")
        result = shared.handle(0, fs=Collecting(UnsyncedFileSystem())).gc()

    # Garbage that a snapshot came to need is garbage no more, and the result says so.
    is_said = "1 pack is needed by snapshots taken meanwhile" in (result.postponed or "")
    assert (result.removed_packs, is_said) == ((0, True) if listing else (1, False))
    shared.states[1, "stopped"] = expected
    shared.assert_nothing_is_lost()


def test_a_pack_goes_although_a_writer_has_stored_the_same_again(shared):
    """It began behind the fence, so it relies on its own copies, and needs none of the old ones."""
    fill(shared.roots[1], "shared")
    shared.create(1, "before")
    shared.delete(1, "before")
    use_new_pack(shared.store)
    raised = 0

    class Collecting(WrappedFileSystem):
        def around(self, call: Call):
            nonlocal raised
            raised += call.method == "rename" and call.paths[-1].endswith("collector/state")
            is_listing = call.method == "list_names" and call.paths[0].endswith("/snapshots")
            if is_listing and raised == 2 and not shared.states:
                shared.create(1, "beside")
            return call.proceed()

    result = shared.handle(0, fs=Collecting(UnsyncedFileSystem())).gc()

    assert shared.states
    assert (result.removed_packs, result.postponed) == (1, None)
    shared.assert_nothing_is_lost()


def test_a_writer_that_begins_when_packs_are_about_to_go_relies_on_none_of_them(shared):
    for root in shared.roots:
        fill(root, "shared")
    shared.create(0, "donor")
    shared.delete(0, "donor")
    use_new_pack(shared.store)

    class Collecting(WrappedFileSystem):
        def around(self, call: Call):
            if call.method == "unlink" and "/packs/" in call.paths[0] and not shared.states:
                shared.create(1, "beside")
            return call.proceed()

    shared.handle(0, fs=Collecting(UnsyncedFileSystem())).gc()

    assert shared.states
    shared.assert_nothing_is_lost()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("method", "fragment", "moment"), PLACES)
def test_a_writer_that_stands_through_two_repairs_loses_nothing(shared, method, fragment, moment):
    """Its pack has a damaged block: it is moved away, with what the writer has appended."""
    fill(shared.roots[0], "spoiled")
    shared.create(0, "spoiled")
    (pack,) = shared.store.glob("packs/*")
    content = bytearray(pack.read_bytes())
    content[content.index(b"TSBK") + 40] ^= 1
    pack.write_bytes(content)
    del shared.states[0, "spoiled"]
    fill(shared.roots[0], "else")
    fill(shared.roots[1], "own")
    expected = record(shared.roots[1])

    with stopped_writer(shared, method, fragment, moment):
        for _ in range(2):
            shared.handle(0).verify(read_data=True, repair=True)

    shared.states[1, "stopped"] = expected
    shared.handle(0).delete("spoiled")
    shared.assert_nothing_is_lost()
    assert not pack.exists()


@pytest.mark.needs("exchange")
@pytest.mark.sampled(6)
@pytest.mark.parametrize(("method", "fragment", "moment"), PLACES)
def test_a_store_is_not_moved_while_a_writer_stands_in_it(shared, method, fragment, moment):
    fill(shared.roots[0], "first")
    shared.create(0, "first")
    fill(shared.roots[1], "own")
    expected = record(shared.roots[1])
    target = shared.directory / "target"

    with stopped_writer(shared, method, fragment, moment), pytest.raises(Busy):
        shared.handle(0).store_move(target)
    litter = {path.name for path in shared.directory.iterdir()}
    shared.handle(0).store_move(target)

    assert litter == {"one", "two", "store"}
    shared.states[1, "stopped"] = expected
    shared.assert_nothing_is_lost()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shift_ns", [YEAR_NS, -YEAR_NS])
def test_clocks_that_jump_by_a_year_lose_nothing(shared, shift_ns):
    """The clock of every process, and the times of all files of the store."""
    now_ns = 1_700_000_000 * 10**9

    def jump(time_ns: int) -> None:
        for path in shared.store.rglob("*"):
            os.utime(path, ns=(time_ns, time_ns))

    for turn in range(4):
        time_ns = now_ns + shift_ns * (turn % 2)
        clock = {"clock_ns": lambda time_ns=time_ns: time_ns}
        fill(shared.roots[0], f"turn {turn}")
        shared.create(0, f"turn-{turn}", **clock)
        fill(shared.roots[0], f"garbage {turn}")
        shared.create(0, "garbage", **clock)
        jump(now_ns - shift_ns * (turn % 2))
        shared.delete(0, "garbage")
        shared.handle(0, **clock).prune()
        shared.handle(0, **clock).gc()
        jump(time_ns)

    assert len(shared.states) == 4
    shared.assert_nothing_is_lost()


def test_no_process_waits_for_a_collection(shared):
    """A capture of each root and a restore, whole, at its calls; they would fail if they had
    to wait.
    """
    shared.add_waste()
    done = []

    def work() -> None:
        done.append(f"snapshot-{len(done)}")
        for number, root in enumerate(shared.roots):
            (root / "changing").write_text(f"{len(done)} {number}")
            shared.create(number, done[-1])
        shared.handle(0).restore("first")

    # More often would have no end: each snapshot gives the collection more to look at. And not
    # at every seventh: a file takes seven calls, so that a sweep would meet each of its
    # attempts between the call that opens it and the one that locks it.
    fs = EveryCall(sized(61, 9), work)
    result = shared.handle(0, fs=fs).gc()

    assert len(done) > 1
    assert result.rewritten_packs + result.removed_packs > 0
    shared.assert_nothing_is_lost()


def test_reading_never_fails_beside_a_collection(shared):
    """By a reader that comes at any of its calls, and by one that opened the store before."""
    shared.add_waste()
    reading = Store.open(UnsyncedFileSystem(), str(shared.store))
    reachable = Reachability(reading)
    needed: list[Reference] = []
    for root_id, name in reading.snapshots.all_names():
        needed += reachable.add(reading.snapshots.load(root_id, name).record)
    expected = {
        (number, name): (shared.roots[number] / "directory-1/file-1").read_bytes()
        for number, name in [(1, "second")]
    }
    looks = []

    def look() -> None:
        looks.append(None)
        reading.packs.close()  # it knows where things were, and holds no pack open
        for reference in needed:
            reading.get(reference.kind, reference.id)
        for (number, name), content in expected.items():
            read = b"".join(shared.handle(number).cat(name, "directory-1/file-1"))
            assert read == content
        shared.handle(0).restore("first", to=shared.directory / f"to-{len(looks)}")

    with reading:
        result = shared.handle(0, fs=EveryCall(sized(3, 1), look)).gc()
        look()

    assert len(looks) > 10
    assert min(result.rewritten_packs, result.removed_packs) > 0
    shared.assert_nothing_is_lost()
