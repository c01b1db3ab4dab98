"""First snapshots of large trees, which several processes capture.

A capture finds what one process finds, whatever becomes of the others. Every tree counts as large
here.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helping import CORES, InHelpers, Noting, die, fill, fork_in_turn, refuse
from oracle import difference, record, without
from sampling import evenly, sized
from trees import build
from treesnap.core.codec.envelope import HEADER_SIZE
from treesnap.core.fs import forked
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import StorageFull, WarningCode
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.results import CreateResult
from treesnap.core.ops.context import Context, context_at
from treesnap.core.ops.create import CreateOptions
from treesnap.core.store.collector import read_state, write_state
from treesnap.core.store.layout import Layout
from treesnap.core.store.writer_slot import acquire
from treesnap.core.worktree.scan import parallel_capture
from treesnap.testing.doubles import Call, WrappedFileSystem

pytestmark = [pytest.mark.needs("helpers"), pytest.mark.sampled(10)]

TIMEOUT_S = 60
LATER_NS = 3_600_000_000_000
SEEDS = range(sized(1, 20))
FILES = 90
SIZE = 100
"""Words of each file: more than lie in a tree."""


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Lets every tree count as large, and every machine have cores to spare."""
    monkeypatch.setattr(parallel_capture, "FILES_MIN", 1)
    monkeypatch.setattr(parallel_capture, "_ALONE_COUNT", 1)
    monkeypatch.setattr(parallel_capture, "_ITEMS_MIN", 12)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: CORES)


@pytest.fixture
def in_turn(monkeypatch):
    """Lets the first helper do most of the work."""
    monkeypatch.setattr(os, "fork", fork_in_turn())


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    fill(root, FILES, tops=5, inners=3)
    for path in root.rglob("file-*"):
        path.write_bytes(b"%s " % os.fsencode(path.name) * SIZE)
    os.link(root / "top-0" / "inner-0" / "file-0", root / "top-4" / "same")
    (root / "file").write_bytes(b"in the root")
    return root


class Monitor(CollectingMonitor):
    """Adds up the progress."""

    def __init__(self) -> None:
        super().__init__()
        self.files = self.size_bytes = 0

    def advance(self, files: int, size_bytes: int) -> None:
        self.files += files
        self.size_bytes += size_bytes


class Seen(NamedTuple):
    """What a capture says, apart from when and how it stored it."""

    root_hash: str
    record: Any
    stats: Any
    skipped: Any
    progress: tuple[int, int]
    warnings: list[str]


def context_of(root: Path, store: Path, **fields: Any) -> Context:
    """Returns a context for which nothing that was written until now is young any more."""
    now_ns = time.time_ns() + LATER_NS
    return context_at(root=root, store_path=str(store), clock_ns=lambda: now_ns, **fields)


def captured(root: Path, store: Path, fs: Any = None, **options: Any) -> Seen:
    """Returns what a capture says; checks that the store holds it and the cache fits it."""
    monitor = Monitor()
    context = context_of(root, store, fs=fs or LocalFileSystem(), monitor=monitor)
    result = Handle(context).create(options=CreateOptions(**options))
    check(root, store, result.root_hash, **options)
    return seen(result, monitor)


def seen(result: CreateResult, monitor: Monitor) -> Seen:
    same = {"created_at_ns": 0, "added_bytes": 0}
    return Seen(
        result.root_hash,
        result.snapshot.record._replace(**same),
        (result.stats.files, result.stats.files_read, result.stats.read_bytes),
        result.skipped,
        (monitor.files, monitor.size_bytes),
        sorted(
            text
            for code, text in zip(monitor.codes, monitor.warnings, strict=True)
            if code != WarningCode.STORE_MADE
        ),
    )


def check(root: Path, store: Path, root_hash: str, **options: Any) -> None:
    """Checks that the store holds what was captured, and that the next capture reads nothing."""
    handle = Handle(context_of(root, store))
    assert not handle.verify().problems
    again = handle.create(options=CreateOptions(**options))
    assert again.root_hash == root_hash
    assert again.stats.added_bytes == 0
    assert again.stats.files_read == 0


def alone(root: Path, store: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Seen:
    """Returns what one process says of the same tree."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        return captured(root, store, **options)


@pytest.mark.parametrize("seed", SEEDS)
def test_finds_what_one_process_finds(tmp_path, monkeypatch, seed):
    """A tree of everything, in several places, with links from one to the other."""
    chance = random.Random(seed)
    root = tmp_path / "root"
    root.mkdir()
    places = [root / f"part-{number}" for number in range(3)]
    for number, place in enumerate(places):
        build(place, seed + number % 2)
    everything = [path for path in root.rglob("*") if not path.is_symlink()]
    directories = sorted(path for path in everything if path.is_dir())
    files = sorted(path for path in everything if path.is_file())
    for number in range(12):
        name = chance.choice(directories) / f"link-{number}"
        os.link(chance.choice(files), name, follow_symlinks=False)
    for number, text in enumerate(["*-1\n", "!\nlink-*\n", "nested\n"]):
        (chance.choice(directories) / ".snapignore").write_text(f"{text}# {number}\n")
    before = record(root)

    found = captured(root, tmp_path / "store", exclude=["mode-3"])

    assert found == alone(root, tmp_path / "alone", monkeypatch, exclude=["mode-3"])
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store")))
    handle.restore("latest", to=tmp_path / "out")
    kept = without(before, *(item.path for item in found.skipped))
    for path, facts in kept.items():
        links = tuple(link for link in facts.links if link in kept)
        kept[path] = replace(facts, links=links if len(links) > 1 else ())
    assert not difference(kept, record(tmp_path / "out"))


def test_every_process_captures(root, tmp_path):
    fs = Noting("read_at")

    captured(root, tmp_path / "store", fs)

    by_process = [
        {path for path in paths if path.startswith(str(root))} for paths in fs.noted().values()
    ]
    assert len(by_process) == len(CORES)
    assert all(by_process)
    assert sum(map(len, by_process)) == len(set.union(*by_process))


@pytest.mark.parametrize(
    ("cores", "name", "value"),
    [({0, 1}, "FILES_MIN", 1), (CORES, "FILES_MIN", FILES + 30), (CORES, "_ALONE_COUNT", 500)],
)
def test_one_process_captures_small_trees_and_on_two_cores(
    root, tmp_path, monkeypatch, cores, name, value
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    monkeypatch.setattr(parallel_capture, name, value)
    monkeypatch.setattr(os, "fork", refuse)
    fs = Noting("read_at")

    captured(root, tmp_path / "store", fs)

    assert len(fs.noted()) == 1


def fail() -> None:
    """Fails as a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def fail_at_report(monkeypatch: pytest.MonkeyPatch, number: int, instead: Callable[[], Any]) -> Any:
    """Lets each helper do something else at its n-th report; returns how often one did."""
    process, dumps = os.getpid(), forked.marshal.dumps
    left = [number]
    read_fd, write_fd = os.pipe()

    def dumps_or_not(value: Any) -> bytes:
        if os.getpid() != process:
            left[0] -= 1
            if left[0] == 0:
                os.write(write_fd, b".")
                instead()
        return dumps(value)

    monkeypatch.setattr(forked.marshal, "dumps", dumps_or_not)
    return read_fd, write_fd


def break_pipe() -> None:
    """Fails as a pipe does that is read no longer."""
    raise BrokenPipeError(errno.EPIPE, "Broken pipe")


REPORTS = 15
"""Of the first helper, when helpers work in turn: 14 directories, and the rest."""


@pytest.mark.usefixtures("in_turn")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", evenly(REPORTS + 1, 5))
@pytest.mark.parametrize("instead", [die, break_pipe])
def test_does_itself_what_a_helper_did_not_report(root, tmp_path, monkeypatch, number, instead):
    expected = alone(root, tmp_path / "alone", monkeypatch)
    read_fd, write_fd = fail_at_report(monkeypatch, number, instead)

    found = captured(root, tmp_path / "store")

    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        assert bool(pipe.read()) == (number <= REPORTS)
    assert found == expected


@pytest.mark.usefixtures("in_turn")
@pytest.mark.sampled(6)
@pytest.mark.parametrize("instead", [die, fail])
@pytest.mark.parametrize(
    ("method", "at"),
    [
        ("write_at", "/packs/"),
        ("sync_data", "/packs/"),
        ("sync", "/packs"),
        ("rename", "/index/"),
        ("open", "/slots/"),
        ("lock", "/slots/"),
        ("read_at", "/file-4"),
        ("scan", "/inner-1"),
    ],
)
def test_does_itself_what_a_helper_failed_at(root, tmp_path, monkeypatch, method, at, instead):
    expected = alone(root, tmp_path / "alone", monkeypatch)
    fs = InHelpers(method, instead, at=at)

    found = captured(root, tmp_path / "store", fs)

    assert found == expected


class Growing(WrappedFileSystem):
    """Lets each file grow when a helper has read it."""

    def __init__(self) -> None:
        super().__init__(LocalFileSystem())
        self._process = os.getpid()

    def around(self, call: Call) -> Any:
        result = call.proceed()
        is_file = call.method == "read_at" and "/file-" in call.path
        if is_file and os.getpid() != self._process:
            with open(call.path, "ab") as file:
                file.write(b"more")
        return result


@pytest.mark.usefixtures("in_turn")
def test_names_files_that_changed_while_a_helper_read_them(root, tmp_path):
    result = Handle(context_of(root, tmp_path / "store", fs=Growing())).create()

    assert set(result.snapshot.record.unstable) == {
        os.fsencode(path.relative_to(root)) for path in root.rglob("file-*")
    }


def test_captures_itself_where_no_process_can_be_started(root, tmp_path, monkeypatch):
    expected = alone(root, tmp_path / "alone", monkeypatch)
    monkeypatch.setattr(os, "fork", refuse)

    assert captured(root, tmp_path / "store") == expected


@pytest.mark.usefixtures("in_turn")
def test_helpers_take_new_slots_where_others_are_held(root, tmp_path, monkeypatch):
    expected = alone(root, tmp_path / "alone", monkeypatch)
    store = tmp_path / "store"
    other = tmp_path / "other"
    other.mkdir()
    Handle(context_at(root=other, store_path=str(store))).create()
    held = acquire(LocalFileSystem(), Layout(str(store)))

    found = captured(root, store)

    held.release()
    assert found == expected
    # One is held, one is the capture's own, and one each helper leaves to the next.
    assert len(os.listdir(store / "slots")) == 3


class Full(Noting):
    """A disk that becomes full after some bytes of packs; notes who writes to them."""

    def __init__(self, store: Path, room: int, *, free: int = 0) -> None:
        super().__init__("write_at")
        self._free = free
        self._store = store
        self._room = room

    def around(self, call: Call) -> Any:
        if call.method == "write_at" and "/packs/" in call.path:
            if store_bytes(self._store) + len(call.arguments[1]) > self._room:
                fail()
        elif call.method == "free_bytes":
            return self._free
        return super().around(call)


def store_bytes(store: Path) -> int:
    return sum(path.stat().st_size for path in (store / "packs").iterdir())


def bytes_in_packs(store: Path) -> int:
    """How much was put into packs: a helper may go on with the pack of one that has ended."""
    return store_bytes(store) - HEADER_SIZE * len(os.listdir(store / "packs"))


@pytest.mark.usefixtures("in_turn")
def test_finds_room_alone_where_several_processes_found_none(root, tmp_path, monkeypatch):
    """What they store in several packs takes more room, and the last tree finds none."""
    expected = alone(root, tmp_path / "alone", monkeypatch)
    captured(root, tmp_path / "several")
    room = store_bytes(tmp_path / "several") - 1
    free = store_bytes(tmp_path / "alone")  # what one process needs is known to be no more
    assert free < room

    fs = Full(tmp_path / "store", room, free=free)
    found = captured(root, tmp_path / "store", fs)

    assert found.root_hash == expected.root_hash
    assert store_bytes(tmp_path / "store") == store_bytes(tmp_path / "alone")
    assert len(fs.noted()) == len(CORES)


@pytest.mark.usefixtures("in_turn")
def test_fails_as_one_process_does_on_a_full_disk(root, tmp_path):
    with pytest.raises(StorageFull):
        captured(root, tmp_path / "store", Full(tmp_path / "store", 1000))

    assert not Handle(context_at(root=root, store_path=str(tmp_path / "store"))).list()
    assert captured(root, tmp_path / "store").stats[0] == FILES + 2


def test_one_process_captures_under_a_limit(root, tmp_path, monkeypatch):
    expected = alone(root, tmp_path / "alone", monkeypatch)
    limit = sum(path.stat().st_size for path in (tmp_path / "alone").rglob("*")) + 10_000
    fs = Noting("read_at")

    found = captured(root, tmp_path / "store", fs, max_size_bytes=limit)

    assert found == expected
    assert len(fs.noted()) == 1


class AtOnce(WrappedFileSystem):
    """Lets each helper make its objects durable when the other one has stored its own, too."""

    def __init__(self) -> None:
        super().__init__(LocalFileSystem())
        self._process = os.getpid()
        self._barrier = get_context("fork").Barrier(len(CORES) - 1)

    def around(self, call: Call) -> Any:
        if os.getpid() != self._process and call.method == "sync_data" and "/packs/" in call.path:
            self._barrier.wait(TIMEOUT_S)
        return call.proceed()


def test_a_collection_keeps_one_of_what_was_stored_twice(root, tmp_path, monkeypatch):
    size = 3000
    contents = [random.Random(number).randbytes(size) for number in range(2)]
    for number in range(FILES):
        path = root / f"top-{number % 5}" / f"inner-{number % 3}" / f"file-{number}"
        path.write_bytes(contents[number % 2])
    expected = alone(root, tmp_path / "alone", monkeypatch)
    found = captured(root, tmp_path / "store", AtOnce())
    handle = Handle(context_at(root=root, store_path=str(tmp_path / "store")))
    once, before = store_bytes(tmp_path / "alone"), store_bytes(tmp_path / "store")
    assert once + len(contents) * size < before < len(CORES) * once

    handle.gc()

    assert store_bytes(tmp_path / "store") < once + size
    assert found == expected
    assert not handle.verify().problems


def test_counts_what_it_stored_when_collections_overtake_it(root, tmp_path, monkeypatch):
    """The second attempt finds everything, and counts it as its own."""
    (root / "top-4" / "same").unlink()  # or two processes may store what it holds
    store = tmp_path / "store"
    layout = Layout(str(store))

    def overtake() -> None:
        state = read_state(LocalFileSystem(), layout)
        if state.epoch == 0:
            write_state(LocalFileSystem(), layout, state._replace(epoch=2))

    context = context_at(
        root=root, store_path=str(store), fs=InHelpers("scan", overtake, at="/inner-")
    )
    result = Handle(context).create()

    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        expected = Handle(context_at(root=root, store_path=str(tmp_path / "alone"))).create()
    assert result.stats.objects_added == expected.stats.objects_added
    assert result.stats.added_bytes == bytes_in_packs(store)
    check(root, store, result.root_hash)


def remove_directory(root: Path) -> None:
    subprocess.run(["rm", "-r", root / "top-1" / "inner-2"], check=True)


def remove_large_directory(root: Path) -> None:
    subprocess.run(["rm", "-r", root / "top-1"], check=True)


def put_file_in_its_place(root: Path) -> None:
    remove_directory(root)
    (root / "top-1" / "inner-2").write_bytes(b"a file")


def put_link_in_its_place(root: Path) -> None:
    (root / "top-1" / "inner-2").rename(root / "top-1" / "elsewhere")
    (root / "top-1" / "inner-2").symlink_to("elsewhere")


def exclude_directory(root: Path) -> None:
    (root / "top-1" / ".snapignore").write_text("inner-2\n")


def exclude_files(root: Path) -> None:
    (root / "top-1" / ".snapignore").write_text("file-1*\n")


def shut_rules(root: Path) -> None:
    (root / "top-1" / ".snapignore").symlink_to("nowhere")


def exchange(root: Path) -> None:
    (root / "top-0").rename(root / "aside")
    (root / "top-1").rename(root / "top-0")
    (root / "aside").rename(root / "top-1")


def change_mode(root: Path) -> None:
    (root / "top-1" / "inner-2").chmod(0o711)


def add_directory(root: Path) -> None:
    (root / "top-1" / "new").mkdir()
    (root / "top-1" / "new" / "file").write_bytes(b"new")


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "change",
    [
        remove_directory,
        remove_large_directory,
        put_file_in_its_place,
        put_link_in_its_place,
        exclude_directory,
        exclude_files,
        shut_rules,
        exchange,
        change_mode,
        add_directory,
    ],
)
@pytest.mark.parametrize("helper", [1, 2])
def test_the_division_is_a_hint(root, tmp_path, monkeypatch, change, helper):
    """The tree changes before the first helper begins, or the second."""
    left = [helper]

    def change_once() -> None:
        left[0] -= 1
        if left[0] == 0:
            change(root)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fork_in_turn(change_once))
        found = Handle(context_of(root, tmp_path / "store")).create()
    expected = alone(root, tmp_path / "alone", monkeypatch)

    handle = Handle(context_of(root, tmp_path / "store"))
    assert not handle.verify().problems
    assert found.snapshot.record.root.content == expected.record.root.content
    assert found.skipped == expected.skipped
    assert found.stats.added_bytes == bytes_in_packs(tmp_path / "store")
    again = handle.create()
    assert again.root_hash == expected.root_hash
    assert again.stats.files_read == 0


INTERRUPTED_CREATE = """
import os, signal, sys
from treesnap.core.ops import capture
from treesnap.core.ops.context import context_at
from treesnap.core.handle import Handle
from treesnap.testing.doubles import WrappedFileSystem
from treesnap.core.worktree.scan import parallel_capture

os.sched_getaffinity = lambda _: {0, 1, 2}
parallel_capture.FILES_MIN = parallel_capture._ALONE_COUNT = 1
process = os.getpid()

class Waiting(WrappedFileSystem):
    def around(self, call):
        if os.getpid() != process and call.method == "scan":
            print(os.getpid(), flush=True)
            signal.pause()
        return call.proceed()

Handle(context_at(root=sys.argv[1], store_path=sys.argv[2], fs=Waiting())).create()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_helper_outlives_a_capture_that_ends(root, tmp_path, number):
    store = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED_CREATE, root, store],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    helpers = {process.stdout.readline() for _ in CORES - {0}}

    process.send_signal(number)

    assert process.communicate(timeout=TIMEOUT_S)[0] == b""  # until no process has it open
    assert process.returncode == -number
    assert len(helpers) == len(CORES) - 1
    assert not Handle(context_at(root=root, store_path=str(store))).list()
    assert captured(root, store).stats[0] == FILES + 2
