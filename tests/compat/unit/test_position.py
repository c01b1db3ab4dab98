"""Where a root stands, marks of that, and rollbacks."""

from __future__ import annotations

import os

import pytest

from sampling import sized
from state import tree_state
from treesnap.compat.position import compare_with_head, mark, mark_position, rollback
from treesnap.core.model.errors import Busy, ErrorCode, InvalidArgument, NotFound, Refused
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import is_retired, retired, rollback_count
from treesnap.core.model.snapshots import SnapshotKind, SnapshotState
from treesnap.core.ops.access import opened
from treesnap.core.ops.create import create
from treesnap.core.ops.history.listing import retag
from treesnap.core.store.collector import CollectorState, read_state, write_state
from treesnap.core.store.layout import Layout
from treesnap.core.store.maintenance.prune import prune_store
from treesnap.core.store.maintenance.retention import Policy
from treesnap.core.store.writer import ATTEMPTS
from treesnap.testing.children import killed
from treesnap.testing.doubles import (
    RecordingFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
    kill_at,
)


@pytest.fixture
def two(handle, root):
    """Two snapshots of different content; returns their names."""
    handle.create(name="first")
    (root / "one").write_bytes(b"1")
    (root / "new").write_bytes(b"new")
    handle.create(name="second")
    return "first", "second"


class Overtaken(WrappedFileSystem):
    """Raises the epoch twice, as collections do, just before a snapshot is published."""

    def __init__(self, store_path, times):
        super().__init__(UnsyncedFileSystem())
        self._layout = Layout(str(store_path))
        self.left = times

    def around(self, call):
        done = super().around(call)
        if self.left and call.method == "rename" and "/pending/" in str(call.paths[-1]):
            self.left -= 1
            epoch = read_state(self, self._layout).epoch + 2
            write_state(self, self._layout, CollectorState(epoch=epoch))
        return done


def stands_at(handle) -> str | None:
    """Returns the root hash of the position."""
    found = compare_with_head(handle.context).snapshot
    return found.root_hash if found else None


class TestPosition:
    def test_is_nowhere_before_the_first_snapshot(self, handle):
        assert compare_with_head(handle.context).snapshot is None

    def test_is_the_newest_snapshot_of_the_whole_root(self, handle, two):
        handle.create(["one"], name="scoped")

        assert compare_with_head(handle.context).snapshot.name == "second"

    def test_is_no_safety_snapshot(self, handle, root, two):
        (root / "one").write_bytes(b"2")
        handle.restore("first")

        assert compare_with_head(handle.context).snapshot.name == "second"

    def test_knows_times_alone_as_no_changes(self, handle, root, two):
        os.utime(root / "one", (7, 7))
        (root / "directory/two").write_bytes(b"two")
        assert compare_with_head(handle.context).changes == ()

        (root / "one").chmod(0o600)
        os.link(root / "new", root / "directory/three")

        found = [change.path for change in compare_with_head(handle.context).changes]
        assert found == [b"directory/three", b"new", b"one"]

    def test_of_a_root_that_is_gone_is_an_error(self, handle, root, two):
        root.rename(root.with_name("elsewhere"))

        with pytest.raises(NotFound) as caught:
            compare_with_head(handle.context)

        assert caught.value.code == ErrorCode.ROOT_NOT_FOUND


class TestMark:
    def test_has_the_state_of_the_other_and_its_own_words(self, handle, two):
        marked = mark(handle.context, "first", CaptureRequest(name="again", label="x", session="s"))

        first = handle.resolve("first")
        assert marked.root_hash == first.root_hash
        assert (marked.name, marked.label, marked.record.session) == ("again", "x", "s")
        assert (marked.record.parent, marked.sequence) == (first.id, 3)
        assert stands_at(handle) == first.root_hash

    def test_keeps_the_state_when_the_other_is_deleted(self, handle, root, two):
        mark(handle.context, "first", CaptureRequest(name="again"))
        handle.delete("first", "second")
        handle.gc()

        assert handle.verify(read_data=True).ok
        handle.restore("again")
        assert (root / "one").read_bytes() == b"one"
        assert not (root / "new").exists()

    def test_looks_at_no_file_and_writes_one_record(self, make_handle, two):
        fs = RecordingFileSystem()

        mark(make_handle(fs=fs).context, "first", CaptureRequest())

        assert "scan" not in fs.count("scan")
        assert [item.method for item in fs.syncs] == ["sync_data", "sync"]

    def test_needs_a_free_name(self, handle, two):
        with pytest.raises(Refused) as caught:
            mark(handle.context, "first", CaptureRequest(name="second"))

        assert caught.value.code == ErrorCode.NAME_TAKEN

    @pytest.mark.parametrize("captured", [False, True])
    def test_of_nothing_is_not_found(self, handle, captured):
        if captured:
            handle.create()

        with pytest.raises(NotFound, match="no snapshot 'nosuch'"):
            mark(handle.context, "nosuch", CaptureRequest())

    @pytest.mark.parametrize("times", [ATTEMPTS - 1, ATTEMPTS])
    def test_is_done_again_when_collections_overtake_it(self, store_path, make_handle, two, times):
        fs = Overtaken(store_path, times)

        if times < ATTEMPTS:
            assert mark(make_handle(fs=fs).context, "first", CaptureRequest()).sequence == 3
        else:
            with pytest.raises(Busy, match="kept overtaking the mark"):
                mark(make_handle(fs=fs).context, "first", CaptureRequest())
        assert fs.left == 0

    def test_of_the_position_refuses_what_is_not_captured(self, handle, root, two):
        for number in range(5):
            (root / f"file-{number}").touch()

        with pytest.raises(Refused, match=r"'file-0', 'file-1', 'file-2' and 2 more$") as caught:
            mark_position(handle.context, CaptureRequest())

        assert caught.value.code == ErrorCode.UNSAVED_CHANGES


class TestRollback:
    def test_restores_the_files_and_moves_the_position(self, handle, root, two):
        handle.restore("first")
        state = tree_state(root)
        handle.undo()

        result = rollback(handle.context, "first", of_session="s")

        assert tree_state(root) == state
        assert compare_with_head(handle.context).changes == ()
        assert (result.snapshot.name, result.restore.deleted) == ("first", 1)
        assert result.position.record.session == "s"
        assert result.position.kind == SnapshotKind.AUTOMATIC

    def test_may_keep_the_files(self, handle, root, two):
        before = tree_state(root)

        result = rollback(handle.context, "first", keep_files=True)

        assert result.restore is None
        assert tree_state(root) == before
        assert [change.path for change in compare_with_head(handle.context).changes] == [
            b"new",
            b"one",
        ]

    @pytest.mark.parametrize("keep_files", [False, True])
    def test_is_counted(self, handle, two, keep_files):
        for _ in range(2):
            rollback(handle.context, "first", keep_files=keep_files)

        assert rollback_count(handle.resolve("first")) == 2

    def test_to_the_position_makes_no_snapshot(self, handle, two):
        before = len(handle.list())

        rollback(handle.context, "second", keep_files=True)

        assert len(handle.list()) == before

    def test_to_some_paths_is_refused(self, handle, root, two):
        handle.create(["one"], name="scoped")
        before = tree_state(root)

        with pytest.raises(InvalidArgument, match="holds only some paths"):
            rollback(handle.context, "scoped")

        assert tree_state(root) == before

    @pytest.mark.sampled(5)
    @pytest.mark.parametrize("way", ["policy", "size", "store"])
    def test_holds_however_many_snapshots_go(self, handle, root, two, way):
        handle.create(["one"], tags={"stays": "yes"})
        rollback(handle.context, "first", keep_files=True)
        stands = stands_at(handle)
        for number in range(3):
            (root / "one").write_bytes(b"%d" % number)
            handle.restore("first")

        if way == "policy":
            removed = handle.prune(Policy(keep_tags=("stays",))).removed
        elif way == "size":
            removed = handle.prune(max_size_bytes=0).removed
        else:
            before = {item.id for item in handle.list()}
            with opened(handle.context, "make room", writing=True) as pair:
                prune_store(pair.store, [pair.root], 0, 1 << 30)
            removed = before - {item.id for item in handle.list()}

        assert removed
        assert stands_at(handle) == stands

    @pytest.mark.parametrize("keep_files", [False, True])
    def test_killed_anywhere_can_be_done_again(self, make_handle, root, two, keep_files):
        handle = make_handle()
        wanted = handle.resolve("first").root_hash
        states = [handle.resolve(name).root_hash for name in two]
        for number in range(1, 200, sized(11, 3)):
            rollback(handle.context, "second")
            ended = killed(
                lambda fs: rollback(make_handle(fs=fs).context, "first", keep_files=keep_files),
                kill_at(number),
            )
            handle.recover()
            assert stands_at(handle) in states
            assert handle.create(kind=SnapshotKind.AUTOMATIC).root_hash in states
            rollback(handle.context, "first", keep_files=keep_files)
            assert stands_at(handle) == wanted
            if not ended.was_killed:
                break

        assert not ended.was_killed
        assert handle.verify(read_data=True).ok


class TestRetag:
    def test_is_kept_beside_the_record(self, make_handle, two):
        retag(make_handle().context, "first", retired)

        found = make_handle().resolve("first")
        assert is_retired(found)
        assert found.record.tags == {}

    def test_leaves_the_pin(self, make_handle, two):
        make_handle().pin("first")

        tagged = retag(make_handle().context, "first", lambda tags: {**tags, "later": "1"})
        make_handle().unpin("first")

        assert tagged.state == SnapshotState(pinned=True, tags={"later": "1"})
        assert make_handle().resolve("first").state == SnapshotState(tags={"later": "1"})

    def test_hides_a_tag_of_the_record(self, handle):
        made = handle.create(tags={"a": "first", "b": "kept"})

        changed = retag(handle.context, made.id, lambda tags: {**tags, "a": "later"})

        assert changed.tags == {"a": "later", "b": "kept"}
        assert handle.list(tag="a=later")
        assert not handle.list(tag="a=first")


def test_create_may_insist_on_everything(handle, root):
    (root / "secret").write_bytes(b"x")
    (root / "secret").chmod(0)
    if os.geteuid() == 0:
        pytest.skip("the superuser reads everything; tests/compat has it")

    with pytest.raises(Refused) as caught:
        create(handle.context, CaptureRequest(complete_only=True))

    assert caught.value.code == ErrorCode.UNREADABLE
    assert handle.list() == ()
