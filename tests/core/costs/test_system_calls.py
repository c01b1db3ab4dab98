"""What operations cost, counted in system calls: no clock can disprove these.

Hundreds of files with old times, one snapshot, and a file system that writes down
every call. Where a number of syncs is stated, each one's reason is stated with it;
none grows with the tree, and hardly one with the change.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from sampling import sized
from state import tree_state
from treesnap import CreateOptions
from treesnap.core.codec.envelope import HEADER_SIZE
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.store.index import PARTS_MAX
from treesnap.testing.doubles import MUTATING, Kind, RecordingFileSystem

pytestmark = pytest.mark.sampled(10)

FILES = sized(200, 1000)
EACH = FILES // 10
"""Files of a directory."""
UNCHECKED_ENTRIES = 400
"""So many make an index that is too large to be checked when it is opened."""
OLD_NS = 1_600_000_000_000_000_000
LATER_NS = 3_600_000_000_000

CREATE_SYNCS_UNCHANGED = [
    ("sync_data", "temporary"),  # the snapshot's content, before it gets its name
    ("sync", "snapshots"),  # its name
]
CREATE_SYNCS = [
    ("sync_data", "packs"),  # the objects, before anything refers to them
    *CREATE_SYNCS_UNCHANGED,
]
RESTORE_SYNCS = [
    *CREATE_SYNCS,  # the safety snapshot
    ("sync_data", "temporary"),  # the journal that lets a crash remove what is staged:
    ("sync", "roots"),  # content and name, before anything is made in the root
    ("sync_data", "temporary"),  # the history for undo, so that later it only needs its name
    ("sync_file_system", "root"),  # everything staged, before the commit
    ("sync_data", "temporary"),  # the journal that lets a crash carry the restore on:
    ("sync", "roots"),  # content and name; the commit point
    ("sync_file_system", "root"),  # all renames, before what was kept aside may go
    ("sync", "roots"),  # the name of the history, which says that all is done
    ("sync", "root"),  # the root's own time, and that the staging directory is gone
    ("sync", "roots"),  # that the journal is gone
]


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    for number in range(FILES):
        path = root / f"directory-{number // EACH}" / f"file-{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content of %d\n" % number * 10)  # stored apart from the trees
    for path in [root, *root.rglob("*")]:
        os.utime(path, ns=(OLD_NS, OLD_NS))
    return root


@pytest.fixture
def fs():
    return RecordingFileSystem()


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def handle(root, store, fs):
    """A handle on the root after its first snapshot, an hour later: nothing is racy."""
    handle = Handle(
        context_at(
            root=root, store_path=str(store), fs=fs, clock_ns=lambda: time.time_ns() + LATER_NS
        )
    )
    handle.create(name="first")
    fs.clear()
    return handle


@pytest.fixture
def syncs(fs, root, store):
    """Returns the syncs so far: the method, and the part of the store or the root."""

    def place(path: str) -> str:
        if os.path.commonpath([path, root]) == str(root):
            return "root"
        return os.path.relpath(path, store).split(os.sep)[0]

    return lambda: [(item.method, place(item.path)) for item in fs.syncs]


def change_files(root, count: int) -> None:
    """Changes files that are spread over the directories."""
    for number in range(count):
        position = number * FILES // count
        (root / f"directory-{position // EACH}" / f"file-{position}").write_bytes(b"changed")


class TestCreate:
    def test_of_an_unchanged_tree_reads_no_file(self, handle, fs, root):
        result = handle.create()

        assert fs.read_bytes(below=str(root)) == 0
        assert fs.calls("open", below=str(root / "directory-0" / "file-0")) == []
        assert (result.stats.files_read, result.stats.read_bytes) == (0, 0)

    def test_of_an_unchanged_tree_looks_into_each_directory_once(self, handle, fs, root, store):
        handle.create()

        assert len(fs.calls("scan", below=str(root))) == 11
        listed = [call.paths for call in fs.calls("scan", below=str(store))]
        assert listed == [(str(store / "packs"),)]  # is one cut off that the stat cache relies on?

    def test_of_an_unchanged_tree_writes_one_small_file(self, handle, fs, store):
        handle.create()

        made = {item.paths[1] for item in fs.calls("rename")}
        assert len(made) == 2  # pending, and from there among the snapshots
        assert fs.written_bytes() < 1024
        assert fs.written_bytes(below=str(store / "packs")) == 0

    def test_of_an_unchanged_tree_costs_two_syncs(self, handle, syncs):
        handle.create()

        assert syncs() == CREATE_SYNCS_UNCHANGED

    def test_of_an_unchanged_tree_grows_the_store_by_little(self, handle, store):
        before = handle.stats().disk_bytes

        handle.create()

        assert handle.stats().disk_bytes - before <= 4096

    def test_that_skips_costs_no_sync(self, handle, syncs, fs):
        assert handle.create(options=CreateOptions(skip_unchanged=True)).unchanged

        assert syncs() == []
        assert fs.calls("rename") == []

    def test_of_one_changed_file_reads_that_one(self, handle, fs, root):
        change_files(root, 1)

        handle.create()

        assert fs.read_bytes(below=str(root)) == len(b"changed")

    def test_of_one_changed_file_looks_at_it_once_and_reads_it_once(self, handle, fs, root):
        change_files(root, 1)

        handle.create()

        calls = fs.calls(below=str(root / "directory-0" / "file-0"))
        assert [item.method for item in calls] == [
            "open",
            "list_xattrs",
            "next_hole",
            "read_at",
            "fstat",  # compared with what the listing says, which came before all of these
            "close",
        ]

    def test_of_one_changed_file_appends_once_to_one_pack(self, handle, fs, root, store):
        change_files(root, 1)

        handle.create()

        (append,) = fs.calls(kinds=[Kind.WRITE], below=str(store / "packs"))
        assert append.method == "write_at"
        assert append.size_bytes < 8192  # the chunk, the directory's tree, the root's tree
        assert len(list((store / "packs").iterdir())) == 1

    def test_asks_with_two_looks_whether_there_is_a_watcher(self, handle, fs, store):
        handle.create()

        (directory,) = store.glob("roots/*/")
        looks = [(item.method, item.path) for item in fs.calls(below=str(directory / "watch"))]
        # The first one, that no link leads elsewhere, is at the beginning of each operation.
        paths = [directory / "watch", directory / "watch" / "socket"]
        assert looks == [("lstat", str(path)) for path in paths]

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("count", [1, 10, 100])
    def test_of_changed_files_costs_three_syncs(self, handle, syncs, root, count):
        change_files(root, count)

        handle.create()

        assert syncs() == CREATE_SYNCS

    @pytest.mark.needs("notices")
    def test_beside_a_watcher_gives_no_block_of_a_file_back(self, handle, fs, root):
        """To empty a file, or to put another one in its place, takes milliseconds on ext4."""
        with handle.watch() as watching:
            for count in (1, 2, 3):
                fs.clear()
                change_files(root, count)
                watching.create()

        names = [item for item in fs.log if item.method in {"rename", "unlink"}]
        put = [item.paths[1] for item in names if item.method == "rename"]
        (recent,) = (path for path in put if path.endswith("cache-recent"))
        gone = [item.path for item in names if item.method == "unlink"]
        assert recent in gone
        assert len(put) == len(set(put))
        assert fs.calls("truncate") == []

    @pytest.mark.needs("notices")
    def test_beside_a_watcher_reads_no_directory_again(self, handle, fs, root, store):
        with handle.watch() as watching:
            for count in (1, 1, 1):
                fs.clear()
                change_files(root, count)
                watching.create()

        header_size = fs.read_bytes(below=str(store / "packs"))
        assert header_size <= 16

    def test_done_often_leaves_few_files(self, handle, fs, root, store):
        parts = []
        for number in range(sized(70, 200)):
            (root / "changing").write_bytes(b"%d" % number)
            handle.create()
            parts.append(len(os.listdir(store / "index")) - (store / "index/lock").exists())

        assert max(parts) <= PARTS_MAX + 1
        assert len(os.listdir(store / "packs")) <= 2
        assert len(os.listdir(store / "slots")) == 1


class TestRestore:
    def test_costs_a_handful_of_syncs(self, handle, syncs, root):
        change_files(root, 10)

        handle.restore("first")

        assert syncs() == RESTORE_SYNCS

    def test_costs_no_more_syncs_for_more_files(self, handle, syncs, root):
        change_files(root, 200)

        handle.restore("first")

        assert len(syncs()) == len(RESTORE_SYNCS)

    def test_undone_costs_as_many_syncs(self, handle, syncs, fs, root):
        change_files(root, 10)
        handle.restore("first")
        fs.clear()

        handle.undo()

        assert len(syncs()) <= len(RESTORE_SYNCS)

    def test_that_changes_nothing_costs_no_sync_and_leaves_the_root(self, handle, syncs, fs, root):
        handle.restore("first")

        assert syncs() == []
        assert fs.calls(kinds=MUTATING, below=str(root / "directory-0")) == []

    def test_touches_only_what_differs(self, handle, fs, root):
        before = {path: path.lstat() for path in root.rglob("*")}
        change_files(root, 10)
        changed = {
            path for path, stat in before.items() if path.lstat().st_ctime_ns != stat.st_ctime_ns
        }

        handle.restore("first")

        touched = {
            path
            for path, stat in before.items()
            if (path.lstat().st_ino, path.lstat().st_ctime_ns) != (stat.st_ino, stat.st_ctime_ns)
        }
        assert len(changed) == 10
        assert touched == changed | {path.parent for path in changed}

    def test_to_another_directory_sets_of_files_only_their_times(self, handle, fs, tmp_path):
        handle.restore("first", to=tmp_path / "out")

        below = str(tmp_path)
        files = [item for item in fs.calls("change_times") if "file-" in item.path]
        assert len(files) == FILES
        for method in ("change_mode", "change_owner"):
            assert [item for item in fs.calls(method, below=below) if "file-" in item.path] == []

    def test_looks_three_times_at_what_it_replaces_and_at_what_it_puts(self, handle, fs, root):
        change_files(root, 10)

        handle.restore("first")

        looks = Counter(item.path for item in fs.calls("lstat", below=str(root)))
        replaced = str(root / "directory-3" / f"file-{3 * EACH}")
        staged = next(path for path in looks if path.endswith("/n3"))
        assert looks[replaced] == 3  # before the commit point, before it moves, and at the end
        assert looks[staged] == 3  # when it is built, and after each move as what was there before

    def test_reads_each_block_once(self, handle, fs, root, store):
        change_files(root, 10)

        handle.restore("first")

        reads = fs.calls("read_at", below=str(store / "packs"))
        blocks = [item for item in reads if item.size_bytes > HEADER_SIZE]
        assert len(blocks) == 2  # of the directories as they were, and of the files

    def test_asks_each_directory_once_whether_anything_may_move_in_it(self, handle, fs, root):
        change_files(root, 200)

        handle.restore("first")

        asked = Counter(item.path for item in fs.calls("is_protected", below=str(root)))
        assert set(asked.values()) == {1}
        assert len(asked) == 200 + 10 + 1  # the files, their directories, the root

    @pytest.mark.needs("exchange")
    def test_moves_each_changed_file_once(self, handle, fs, root):
        change_files(root, 10)

        handle.restore("first")

        assert fs.count("exchange", "rename_to_absent") == {"exchange": 10}


class TestLooking:
    """What only looks writes nothing, neither to the store nor to the root."""

    @pytest.mark.sampled(6)
    @pytest.mark.parametrize(
        "look",
        [
            pytest.param(lambda handle: handle.restore("first", dry_run=True), id="dry run"),
            pytest.param(lambda handle: handle.status(), id="status"),
            pytest.param(lambda handle: handle.diff(), id="diff"),
            pytest.param(lambda handle: handle.diff("first", "second"), id="diff of two"),
            pytest.param(lambda handle: handle.list(), id="list"),
            pytest.param(lambda handle: handle.ls("first", recursive=True), id="ls"),
            pytest.param(lambda handle: list(handle.cat("first", "directory-0/file-0")), id="cat"),
            pytest.param(lambda handle: handle.find("file-1*"), id="find"),
            pytest.param(lambda handle: handle.show("first"), id="show"),
            pytest.param(lambda handle: handle.stats(), id="stats"),
            pytest.param(lambda handle: handle.verify(read_data=True), id="verify"),
            pytest.param(lambda handle: handle.recover(), id="recover"),
        ],
    )
    def test_changes_nothing(self, handle, fs, root, store, look):
        change_files(root, 5)
        handle.create(name="second")
        change_files(root, 3)
        before = tree_state(root), tree_state(store)
        fs.clear()

        look(handle)

        assert (tree_state(root), tree_state(store)) == before
        assert fs.mutations == []
        assert fs.syncs == []

    def test_list_reads_no_pack_and_no_index(self, handle, fs, store):
        handle.list()

        for directory in ("packs", "index"):
            assert fs.calls("open", "scan", "list_names", below=str(store / directory)) == []

    def test_list_looks_at_nothing_in_the_root(self, handle, fs, root):
        handle.list()

        assert fs.calls(below=str(root)) == []

    def test_status_of_an_unchanged_tree_reads_no_file(self, handle, fs, root):
        assert handle.status().changes == ()

        assert fs.read_bytes(below=str(root)) == 0


def test_pin_costs_two_syncs(handle, syncs):
    handle.pin("first")

    assert syncs() == [
        ("sync_data", "temporary"),  # the state's content
        ("sync", "states"),  # its name
    ]


def test_delete_costs_one_sync_for_any_number(handle, syncs, fs):
    ids = [handle.create().id for _ in range(5)]
    fs.clear()

    handle.delete(*ids)

    assert syncs() == [("sync", "snapshots")]  # that the names are gone


def test_collecting_costs_nine_syncs(handle, syncs, fs, root, store):
    for number in range(UNCHECKED_ENTRIES - FILES):
        (root / f"more-{number}").write_bytes(b"more content of %d\n" % number * 10)
    handle.create(name="more")
    (root / "garbage").write_bytes(os.urandom(100_000))
    handle.create(name="garbage")
    handle.delete("garbage")
    fs.clear()

    assert handle.gc().rewritten_packs == 1

    assert syncs() == [
        ("sync_data", "packs"),  # the copies, content and name, before the originals go
        ("sync", "packs"),
        ("sync_data", "temporary"),  # the state's content, each time that it is replaced
        ("sync_data", "temporary"),
        ("sync_data", "temporary"),  # the index of the copies, too large to be checked when opened
        ("sync_data", "temporary"),  # the index, content and name, before the old one goes
        ("sync", "index"),
        ("sync", "index"),  # that the old one went, before what it names may count as lost
        ("sync_data", "temporary"),  # the state again
    ]


def test_collecting_nothing_costs_no_sync(handle, syncs):
    handle.gc()

    assert syncs() == []
