"""What was written can be read, whatever the kernel, a clock or a caller came up with."""

from __future__ import annotations

import os

import pytest

import treesnap
from calling import run_forked
from state import tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import InvalidArgument, TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault, UnsyncedFileSystem

SECOND_NS = 10**9
TIMES_NS = {
    "in 2300": 10_413_792_000 * SECOND_NS,
    "in 2600": 19_880_899_200 * SECOND_NS + 1,
    "before 1970": -1,
    "in 1600": -11_676_096_000 * SECOND_NS + 5,
    "the first": -(1 << 63) * SECOND_NS,
    "the last": ((1 << 63) - 1) * SECOND_NS,
}


def date(path, time_ns: int) -> None:
    """Gives a path a time; skips the test where the file system cannot keep it."""
    os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)
    if os.lstat(path).st_mtime_ns != time_ns:
        pytest.skip("the file system cannot keep this time")


class Place:
    """A root with names of every kind, all of one odd time."""

    def __init__(self, base, time_ns: int) -> None:
        self.root = base / "root"
        self.store = base / "store"
        (self.root / "below").mkdir(parents=True)
        (self.root / "file").write_bytes(b"content")
        (self.root / "below" / "other").write_bytes(b"content below")
        (self.root / "link").symlink_to("nowhere")
        os.mkfifo(self.root / "fifo")
        for name in ("file", "below/other", "link", "fifo", "below", "."):
            date(self.root / name, time_ns)
        self.before = tree_state(self.root)

    def handle(self, **options) -> Handle:
        options = {"fs": UnsyncedFileSystem()} | options
        return Handle(context_at(root=self.root, store_path=str(self.store), **options))

    def edit(self) -> None:
        (self.root / "file").write_bytes(b"edited")
        (self.root / "below" / "other").unlink()
        (self.root / "new").write_bytes(b"new")


@pytest.fixture(params=TIMES_NS.values(), ids=TIMES_NS.keys())
def place(request, tmp_path) -> Place:
    return Place(tmp_path, request.param)


class TestTimes:
    @pytest.mark.sampled(5)
    def test_a_snapshot_comes_back(self, place):
        created = place.handle().create()
        place.edit()

        place.handle().restore(created.id)

        assert tree_state(place.root) == place.before
        assert not place.handle().status().changes
        assert place.handle().verify(read_data=True).ok

    @pytest.mark.sampled(5)
    def test_an_edit_with_such_a_time_is_in_the_safety_snapshot(self, place):
        created = place.handle().create()
        place.edit()
        for name in ("file", "new"):
            os.utime(place.root / name, ns=(10_413_792_001 * SECOND_NS,) * 2)
        edited = tree_state(place.root)
        place.handle().restore(created.id)

        place.handle().undo()

        assert tree_state(place.root) == edited
        place.handle().redo()
        assert tree_state(place.root) == place.before

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("number", [1, 3])
    def test_a_killed_restore_is_finished(self, place, number):
        created = place.handle().create()
        place.edit()
        fault = Fault(number=number, methods=frozenset({"exchange", "rename_to_absent"}))
        assert killed(lambda fs: place.handle(fs=fs).restore(created.id), fault).was_killed

        place.handle().list()

        assert tree_state(place.root) == place.before

    def test_collection_and_comparison_go_on(self, place):
        first = place.handle().create()
        place.edit()
        second = place.handle().create()

        place.handle().gc()

        found = {change.path for change in place.handle().diff(first.id, second.id)}
        assert {b"file", b"new", b"below/other"} <= found
        assert place.handle().verify(read_data=True).ok

    @pytest.mark.sampled(6)
    def test_the_command_line_says_them(self, place):
        place.handle().create()
        (place.root / "file").write_bytes(b"edited")

        for arguments in (["ls", "-l", "latest"], ["diff"], ["status"], ["--json", "ls", "latest"]):
            words = ["--store", str(place.store), *arguments]
            done = run_forked(words, cwd=place.root, variables=os.environ)
            assert done.code in (0, 1), done.err


@pytest.mark.sampled(5)
@pytest.mark.parametrize("now_ns", TIMES_NS.values(), ids=TIMES_NS.keys())
def test_a_clock_may_say_anything(tmp_path, now_ns):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"before")
    store = str(tmp_path / "store")
    handle = Handle(context_at(root=root, store_path=store, clock_ns=lambda: now_ns))
    created = handle.create()
    (root / "file").write_bytes(b"after")

    handle.restore(created.id)

    assert (root / "file").read_bytes() == b"before"
    found = handle.list()
    assert {item.record.created_at_ns for item in found} == {now_ns}
    assert all(item.created_at for item in found)
    assert handle.gc().removed_objects >= 0
    handle.prune(treesnap.Policy(keep_last=1, keep_daily=2))


WRONG = [
    {"step": 1.5},
    {"step": True},
    {"step": "1"},
    {"tags": {"a": None}},
    {"tags": {"a": 1}},
    {"tags": {1: "a"}},
    {"label": 5},
    {"label": b"bytes"},
    {"session": 1.0},
    {"name": 7},
    {"tags": {"tests_passing": True}},
    {"tags": {"tests_passing": 1.5}},
    {"tags": {"step_name": b"x"}},
    {"tags": {"treesnap.phase": "plan"}},
]


@pytest.mark.parametrize("fields", WRONG, ids=repr)
def test_metadata_of_wrong_types_is_refused_and_nothing_is_published(tmp_path, fields):
    (tmp_path / "root").mkdir()
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    handle.create()

    with pytest.raises((InvalidArgument, TypeError)):
        handle.create(**fields)

    assert len(handle.list()) == 1
    assert handle.verify().ok
    handle.gc()


def fill(path, names, size: int) -> None:
    """Adds attributes; skips the test where the file system has no room for so many."""
    try:
        for name in names:
            os.setxattr(path, b"user." + name, bytes(size))
    except OSError as error:
        pytest.skip(f"the file system keeps no such attributes: {error}")


class TestAttributes:
    @pytest.fixture
    def root(self, tmp_path):
        root = tmp_path / "root"
        root.mkdir()
        (root / "fine").write_bytes(b"fine")
        (root / "large").write_bytes(b"large")
        (root / "directory").mkdir()
        (root / "directory" / "below").write_bytes(b"below")
        return root

    @pytest.mark.parametrize("name", ["large", "directory"])
    def test_more_than_an_object_holds_make_one_path_unreadable(self, tmp_path, root, name):
        fill(root / name, (b"%d" % number for number in range(280)), 60_000)
        handle = treesnap.open(root, tmp_path / "store")

        created = handle.create()

        assert not created.snapshot.complete
        assert [item.path for item in created.skipped] == [os.fsencode(name)]
        (root / "fine").write_bytes(b"edited")
        handle.restore(created.id)
        assert (root / "fine").read_bytes() == b"fine"
        assert (root / name).exists()
        handle.gc()

    def test_very_many_come_back(self, tmp_path, root):
        names = [bytes([number]) for number in range(1, 256)]
        names += [one + two for one in names[:32] for two in names][:7960]
        fill(root / "large", names, 0)
        handle = treesnap.open(root, tmp_path / "store")
        created = handle.create()
        before = tree_state(root)
        (root / "large").unlink()

        handle.restore(created.id)

        assert tree_state(root) == before
        assert created.snapshot.complete


def test_a_root_with_attributes_that_cannot_be_stored_is_named(tmp_path):
    (tmp_path / "root").mkdir()
    fill(tmp_path / "root", (b"%d" % number for number in range(280)), 60_000)
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")

    with pytest.raises(TreesnapError, match="root"):
        handle.create()
