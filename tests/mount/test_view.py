"""The history as directories, without FUSE: names, attributes, ranges of files."""

from __future__ import annotations

import os
import random
import stat

import pytest

from treesnap.cli.failure import from_error
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Busy, HeldByMount, NotFound
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import context_at
from treesnap.mount import HistoryView
from treesnap.mount.view import BoundedCache
from treesnap.testing.doubles import UnsyncedFileSystem


@pytest.fixture
def view(handle, root):
    root.mkdir()
    (root / "file").write_text("first")
    handle.create(name="v1")
    with HistoryView(handle.context) as view:
        yield view


def names(view, path: bytes) -> list[bytes]:
    return sorted(item.name for item in view.names(path))


def content(view, path: bytes) -> bytes:
    return view.read(view.open(path), 0, 1 << 20)


def test_a_snapshot_is_found_by_every_word_for_it(view, handle, root):
    (root / "file").write_text("second")
    made = handle.create(session="work", step=3, name="a/b")

    identity = made.id.encode()
    assert names(view, b"/") == [b"ids", b"latest", b"names", b"sessions", b"times"]
    assert identity in names(view, b"/ids")
    assert names(view, b"/names") == [b"a%2Fb", b"v1"]
    assert names(view, b"/sessions") == [b"work"]
    assert names(view, b"/sessions/work") == [b"3"]
    assert len(names(view, b"/times")) == 2
    for path in (
        b"/latest",
        b"/ids/" + identity,
        b"/ids/" + identity[:12],
        b"/names/a%2Fb",
        b"/sessions/work/3",
        *(b"/times/" + name for name in names(view, b"/times") if name.endswith(identity[:12])),
    ):
        assert content(view, path + b"/file") == b"second"
    assert content(view, b"/names/v1/file") == b"first"


def test_a_step_without_a_number_has_the_name_of_its_time(view, handle):
    made = handle.create(session="work")

    (name,) = names(view, b"/sessions/work")
    assert name in names(view, b"/times")
    assert name.endswith(made.id[:12].encode())


def test_latest_leaves_safety_snapshots_and_parts_out(view, handle, root):
    first = content(view, b"/latest/file")
    (root / "file").write_text("second")
    handle.create(paths=["file"])
    assert content(view, b"/latest/file") == first

    handle.create(kind=SnapshotKind.RUN)
    assert content(view, b"/latest/file") == b"second"
    (root / "file").write_text("third")
    handle.restore("v1")  # the safety snapshot holds "third"
    assert len(names(view, b"/ids")) == 4
    assert content(view, b"/latest/file") == b"second"


def test_without_snapshots_there_is_no_latest(handle, root):
    root.mkdir()
    made = handle.create()
    handle.delete(made.id)

    with HistoryView(handle.context) as view:
        assert names(view, b"/") == [b"ids", b"names", b"sessions", b"times"]
        assert names(view, b"/ids") == []
        with pytest.raises(NotFound):
            view.node(b"/latest")


@pytest.mark.parametrize(
    "path", [b"/absent", b"/ids/0000", b"/ids/" + b"0" * 64, b"/latest/no", b"/latest/file/x"]
)
def test_what_is_not_there_is_not_found(view, path):
    with pytest.raises(NotFound):
        view.node(path)
    with pytest.raises(NotFound):
        view.open(path)


def test_a_deleted_snapshot_is_gone(view, handle):
    identity = handle.resolve("latest").id
    handle.create()
    handle.delete(identity)

    assert identity.encode() not in names(view, b"/ids")
    with pytest.raises(NotFound):
        view.node(b"/ids/" + identity.encode())


def test_an_open_file_stays_what_it_was(view, handle, root):
    file = view.open(b"/latest/file")
    (root / "file").write_text("second, and longer")
    handle.create()

    assert view.read(file, 0, 100) == b"first"
    assert content(view, b"/latest/file") == b"second, and longer"


def test_only_paths_that_never_change_are_fixed(view, handle):
    identity = handle.resolve("latest").id.encode()
    (time,) = names(view, b"/times")

    assert view.node(b"/ids/" + identity + b"/file").is_fixed
    assert view.node(b"/times/" + time + b"/file").is_fixed
    assert not view.node(b"/ids/" + identity[:8] + b"/file").is_fixed
    assert not view.node(b"/latest/file").is_fixed
    assert not view.node(b"/names/v1/file").is_fixed


def test_ranges_and_holes_are_those_of_the_file(handle, root):
    root.mkdir()
    seed = random.Random(7)
    size = 40 << 20
    with (root / "file").open("wb") as file:
        for _ in range(60):  # more extents than fit without a chunk list
            file.seek(seed.randrange(size))
            file.write(seed.randbytes(seed.randrange(1, 200_000)))
        file.truncate(size)
    expected = (root / "file").read_bytes()
    handle.create()

    with HistoryView(handle.context) as view:
        node = view.node(b"/latest/file")
        assert node.entry is not None
        assert node.entry.file_content.level > 0
        opened = view.open(b"/latest/file")
        for _ in range(300):
            start, length = seed.randrange(size + 10), seed.randrange(1, 300_000)
            assert view.read(opened, start, length) == expected[start : start + length]
        at, data = 0, 0
        while (begin := view.next_data(opened, at)) is not None:
            end = view.next_hole(opened, begin)
            assert not any(expected[at:begin])
            assert end > begin
            at, data = end, data + end - begin
        assert not any(expected[at:])
        assert 0 < data <= view.stat(node)["st_blocks"] * 512 < size


def test_names_of_one_file_have_its_number(handle, root):
    root.mkdir()
    (root / "one").write_text("x")
    os.link(root / "one", root / "two")
    (root / "other").write_text("x")
    handle.create()

    with HistoryView(handle.context) as view:
        one, two, other = (view.node(b"/latest/" + name) for name in (b"one", b"two", b"other"))
        assert (one.inode, one.link_count) == (two.inode, 2)
        assert (other.link_count, other.inode == one.inode) == (1, False)
        assert {item.inode for item in view.names(b"/latest")} == {one.inode, other.inode}


def test_what_was_not_captured_is_not_shown(handle, root):
    root.mkdir()
    (root / ".snapignore").write_text("secret\n")
    (root / "secret").write_text("x")
    handle.create()

    with HistoryView(handle.context) as view:
        assert names(view, b"/latest") == [b".snapignore"]
        with pytest.raises(NotFound):
            view.node(b"/latest/secret")


class CountingFileSystem(UnsyncedFileSystem):
    """Counts the files that are opened."""

    opened_files = 0

    def open(self, *words, **options):
        self.opened_files += 1
        return super().open(*words, **options)


def test_ten_thousand_ids_are_listed_without_reading_a_record(handle, root, tmp_path):
    root.mkdir()
    handle.create()
    (directory,) = (tmp_path / "store" / "snapshots").iterdir()
    for number in range(2, 10_001):
        (directory / f"{number:016x}-{number:064x}").touch()
    fs = CountingFileSystem()
    store = str(tmp_path / "store")
    counted = Handle(context_at(root=root, store_path=store, fs=fs))

    with HistoryView(counted.context) as view:
        before = fs.opened_files
        found = list(view.names(b"/ids"))

        assert len(found) == 10_000
        assert fs.opened_files == before
        assert all(stat.S_ISDIR(item.file_type) for item in found)


def test_a_hold_of_a_reader_hinders_deletions_and_moves_of_the_store_alone(view, handle, tmp_path):
    identity = handle.resolve("latest").id
    newer = handle.create().id
    assert content(view, b"/ids/" + identity.encode() + b"/file") == b"first"

    with pytest.raises(HeldByMount, match=r"is what process \d+ reads") as held:
        handle.delete(identity)
    assert "'snap umount DIR'" in from_error(held.value).hint
    with pytest.raises(HeldByMount):
        handle.store_move(tmp_path / "elsewhere")
    with handle.rollback_on_error("step"):
        pass
    handle.delete(newer)


def test_a_hold_of_a_process_that_goes_back_is_left_alone(handle, root):
    root.mkdir()
    (root / "file").write_text("first")
    with handle.rollback_on_error("step") as checkpoint:
        path = b"/ids/" + checkpoint.id.encode() + b"/file"
        with HistoryView(handle.context) as view:
            assert content(view, path) == b"first"
        with pytest.raises(Busy, match="goes back to if it fails"):
            handle.delete(checkpoint.id)


def test_while_a_command_works_in_the_root_a_reader_does_not_wait(view, handle):
    identity = handle.resolve("latest").id
    file = view.open(b"/latest/file")
    with opened(handle.context, "test") as session, session.root.locked("test", 0.0):
        assert view.read(file, 0, 10) == b"first"
    handle.create()
    assert view.read(file, 0, 10) == b"first"
    with pytest.raises(Busy):
        handle.delete(identity)


def test_a_cache_keeps_no_more_than_its_limit():
    cache = BoundedCache(100)
    for number in range(50):
        cache.add(number, number, 30)
        assert cache.size_bytes <= 100
    assert cache.get(49) == 49
    assert cache.get(0) is None
    cache.add("large", "large", 101)
    assert cache.get("large") is None
    assert cache.size_bytes <= 100
