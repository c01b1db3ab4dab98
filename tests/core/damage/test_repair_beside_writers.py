"""``verify --repair`` while others capture: what they were told is kept, is kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import treesnap
from blocks import chunk_blocks
from garbage import pack_files
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.core.store.index import PARTS_MAX
from treesnap.core.store.layout import Layout
from treesnap.core.store.packs import PackAppender
from treesnap.core.store.store import Store
from treesnap.core.store.writer_slot import acquire
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultMoment,
    FaultyFileSystem,
    Killed,
    UnsyncedFileSystem,
    WrappedFileSystem,
)


class Beside(WrappedFileSystem):
    """Does something once, just before the n-th call for a path under the collector's lock."""

    def __init__(
        self, method: str, path: Path, action: Callable[[], object], *, number: int = 1
    ) -> None:
        super().__init__(UnsyncedFileSystem())
        self.method, self.path, self.action, self.left = method, str(path), action, number
        self.is_locked = False

    @property
    def is_done(self) -> bool:
        return self.left <= 0

    def around(self, call: Call) -> Any:
        """Makes the call, after the action where it is its turn."""
        if call.method == "lock" and call.path.endswith("collector/lock"):
            self.is_locked = True
        if self.is_locked and call.method == self.method and call.path == self.path:
            self.left -= 1
            if self.left == 0:
                self.action()
        return call.proceed()


class Roots:
    """Two roots with one store, of which the only pack has a damaged block."""

    def __init__(self, base: Path) -> None:
        self.base, self.store = base, base / "store"
        self.contents: dict[str, bytes] = {}
        for name in ("one", "two"):
            (base / name).mkdir()
        self.capture("one", "first", b"lost " * 100)
        self.capture("one", "second", os.urandom(3000))
        (name,) = pack_files(self.store)
        self.pack = self.store / "packs" / name
        data = bytearray(self.pack.read_bytes())
        data[data.index(b"TSBK") + 40] ^= 1
        self.pack.write_bytes(data)
        del self.contents["first"]

    def handle(self, root: str, **options: Any) -> Handle:
        defaults = {"fs": UnsyncedFileSystem(), "wait_s": 0.0}
        context = context_at(self.base / root, str(self.store), **defaults | options)
        return Handle(context)

    def capture(self, root: str, name: str, content: bytes) -> None:
        (self.base / root / "file").write_bytes(content)
        self.handle(root).create(name=name)
        (self.base / root / "file").write_bytes(b"other")  # a repair finds content in live trees
        self.contents[name] = content

    def lost(self) -> list[str]:
        """Returns the names of snapshots that do not come back as they were."""
        found = []
        for number, (name, content) in enumerate(self.contents.items()):
            root = "two" if name.startswith("two") else "one"
            target = self.base / "back" / str(number)
            try:
                self.handle(root).restore(name, to=target)
                is_right = (target / "file").read_bytes() == content
            except TreesnapError as error:
                found.append(f"{name}: {error}")
                continue
            found += [] if is_right else [name]
        return found


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(tmp_path)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_capture_that_resumes_a_damaged_pack_meanwhile_loses_nothing(roots, number):
    """It comes before each look at the slots: one of them is that of the copy."""
    content = os.urandom(2000)
    fs = Beside(
        "list_names",
        roots.store / "slots",
        lambda: roots.capture("two", "two", content),
        number=number,
    )

    roots.handle("one", fs=fs).verify(read_data=True, repair=True)

    assert fs.is_done
    assert roots.lost() == []
    assert not roots.pack.exists()


@pytest.mark.parametrize("number", [4, 5])
def test_the_index_forgets_a_pack_that_went_although_writers_merged_it_meanwhile(roots, number):
    """Else no capture would rely on a stat cache."""

    def others() -> None:
        for one in range(PARTS_MAX + 2):
            roots.capture("two", f"two {one}", b"%d" % one * 200)

    fs = Beside("list_names", roots.store / "slots", others, number=number)
    roots.handle("one", fs=fs).verify(read_data=True, repair=True)

    assert fs.is_done
    with Store.open(UnsyncedFileSystem(), str(roots.store)) as store:
        assert store.missing_packs() == set()
    assert roots.lost() == []


def test_a_writer_that_has_a_damaged_pack_open_begins_again(roots):
    """It has appended to the pack, and the repair runs before that is synced."""
    content = os.urandom(2000)
    path = roots.base / "two" / "file"
    path.write_bytes(content)

    def repair() -> None:
        path.write_bytes(b"other")
        roots.handle("one").verify(read_data=True, repair=True)
        path.write_bytes(content)

    fs = Beside("sync_data", roots.pack, repair)
    fs.is_locked = True
    roots.handle("two", fs=fs).create(name="two")
    path.write_bytes(b"other")
    roots.contents["two"] = content

    assert fs.is_done
    assert roots.lost() == []
    assert not roots.pack.exists()


def test_what_an_earlier_repair_moved_away_is_read_again(roots):
    """As one did that looked once, and then worked for long: intact objects went with it."""
    layout = Layout(str(roots.store))
    roots.capture("two", "two", os.urandom(2000))
    os.mkdir(layout.quarantine)
    roots.pack.rename(Path(layout.quarantine, f"packs.{roots.pack.name}"))

    (roots.base / "one" / "file").unlink()

    result = roots.handle("one").verify(read_data=True, repair=True)

    assert roots.lost() == []
    assert any("quarantine" in done for done in result.repaired)


@pytest.mark.parametrize("maintain", [lambda it: it.verify(repair=True), lambda it: it.gc()])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7])
def test_what_a_writer_truncates_after_it_was_read_is_not_covered(tmp_path, number, maintain):
    """It has written a block and finds no room for the next: before each look at the packs."""
    root, store = tmp_path / "root", tmp_path / "store"
    root.mkdir()
    (root / "file").write_bytes(b"content")
    handle = treesnap.open(root, store)
    handle.create()
    for part in store.glob("index/*[0-9a-f]"):
        part.write_bytes(b"damaged")
    (name,) = pack_files(store)
    pack, plain, layout = store / "packs" / name, UnsyncedFileSystem(), Layout(str(store))
    size = pack.stat().st_size
    writers = []

    def write() -> None:
        slot = acquire(plain, layout)
        slot.write(1, bytes.fromhex(name))
        resumed = PackAppender.resume(plain, layout, bytes.fromhex(name), size)
        assert resumed is not None
        resumed[0].append(chunk_blocks(b"what is stored again"))
        writers.append((slot, resumed[0]))

    fs = Beside("scan", store / "packs", write, number=number)
    maintain(Handle(context_at(root, str(store), fs=fs, wait_s=0.0)))

    for slot, appender in writers:
        appender.close()
        os.truncate(pack, size)
        slot.release()
    assert treesnap.open(root, store).verify(read_data=True).problems == ()


@pytest.mark.parametrize(("method", "below"), [("rename", "/quarantine/"), ("unlink", "/index/")])
def test_a_capture_after_a_killed_repair_relies_on_nothing_that_was_damaged(roots, method, below):
    """The damaged pack was in quarantine by then, and the stat cache relied on it."""

    def later_ns() -> int:
        return time.time_ns() + 60 * 10**9  # no file is so young that captures read it again

    kept = roots.base / "one" / "sub" / "kept"
    kept.parent.mkdir()
    kept.write_bytes(os.urandom(3000))
    roots.handle("one", clock_ns=later_ns).create()
    data = bytearray(roots.pack.read_bytes())
    data[data.index(kept.read_bytes()[:100])] ^= 1
    roots.pack.write_bytes(data)
    fault = Fault(
        methods=frozenset({method}),
        where=lambda call: below in call.paths[-1],
        moment=FaultMoment.AFTER,
    )
    with pytest.raises(Killed):
        roots.handle("one", fs=FaultyFileSystem(fault)).verify(read_data=True, repair=True)
    assert not roots.pack.exists()

    made = roots.handle("one", clock_ns=later_ns).create()

    roots.handle("one").restore(made.snapshot.id, to=roots.base / "back")
    assert (roots.base / "back/sub/kept").read_bytes() == kept.read_bytes()


def test_a_capture_after_a_killed_repair_relies_on_nothing_in_a_pack_that_is_not_there(tmp_path):
    """The index had forgotten the pack by then, and the newest directory lies in another one."""

    def later_ns() -> int:
        return time.time_ns() + 60 * 10**9  # no file is so young that captures read it again

    def handle(**options: Any) -> Handle:
        defaults = {"fs": UnsyncedFileSystem(), "wait_s": 0.0, "clock_ns": later_ns}
        return Handle(context_at(tmp_path / "root", str(tmp_path / "store"), **defaults | options))

    kept = tmp_path / "root" / "kept"
    kept.parent.mkdir()
    kept.write_bytes(os.urandom(3000))
    handle().create()
    (first,) = pack_files(tmp_path / "store")
    slot = acquire(UnsyncedFileSystem(), Layout(str(tmp_path / "store")))  # so that it is left
    (tmp_path / "root" / "new").write_bytes(os.urandom(3000))
    handle().create()
    slot.release()
    (tmp_path / "store/packs" / first).unlink()
    fault = Fault(
        number=len(list((tmp_path / "store/index").iterdir())),  # the last part that names the pack
        methods=frozenset({"unlink"}),
        where=lambda call: "/index/" in call.paths[-1],
        moment=FaultMoment.AFTER,
    )
    with pytest.raises(Killed):
        handle(fs=FaultyFileSystem(fault)).verify(read_data=True, repair=True)

    made = handle().create()

    handle().restore(made.snapshot.id, to=tmp_path / "back")
    assert (tmp_path / "back/kept").read_bytes() == kept.read_bytes()
