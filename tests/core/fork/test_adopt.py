"""Adopting a fork: what comes into the origin, and what is refused."""

from __future__ import annotations

import os
import shutil

import pytest

from oracle import difference, record
from treesnap.core.codec.pack import PACK_SIZE_TARGET
from treesnap.core.handle import Handle
from treesnap.core.handle import open as open_handle
from treesnap.core.model.entries import SkipReason
from treesnap.core.model.errors import ErrorCode, MergeConflict, NotFound, Refused
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnsyncedFileSystem, WrappedFileSystem

pytestmark = pytest.mark.sampled(10)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def handle(root, tmp_path):
    return open_handle(root, tmp_path / "store")


@pytest.fixture
def tree(root):
    (root / "texts").mkdir()
    (root / "texts" / "lines").write_text("1\n2\n3\n4\n5\n")
    (root / "script").write_text("true\n")
    (root / "old").write_text("old")
    return root


@pytest.fixture
def fork(handle, tree, tmp_path):
    handle.create()
    handle.fork("latest", [tmp_path / "fork"])
    return tmp_path / "fork"


@pytest.mark.needs("attributes")
def test_a_fork_that_alone_changed_is_adopted_as_it_is(handle, tree, fork):
    (fork / "texts" / "lines").write_text("other\n")
    (fork / "script").chmod(0o755)
    (fork / "old").unlink()
    (fork / "new").symlink_to("script")
    os.link(fork / "script", fork / "same")
    os.setxattr(fork / "script", "user.mine", b"1")
    os.utime(fork / "texts", ns=(5, 6))

    adopted = handle.adopt(fork)

    assert difference(record(fork), record(tree)) == []
    assert adopted.conflicts == ()
    assert handle.list()[0].id == adopted.snapshot.id or adopted.safety_id is not None


def test_what_happened_in_the_origin_since_is_kept_and_an_undo_goes_back(handle, tree, fork):
    (fork / "texts" / "lines").write_text("one\n2\n3\n4\n5\n")
    (tree / "texts" / "lines").write_text("1\n2\n3\n4\nfive\n")
    (tree / "mine").write_text("mine")
    before = record(tree)

    handle.adopt(fork)

    assert (tree / "texts" / "lines").read_text() == "one\n2\n3\n4\nfive\n"
    assert (tree / "mine").read_text() == "mine"
    handle.undo()
    assert difference(before, record(tree)) == []


def test_a_conflict_changes_nothing_until_a_side_is_chosen(handle, tree, fork):
    (fork / "texts" / "lines").write_text("fork\n")
    (fork / "new").write_text("new")
    (tree / "texts" / "lines").write_text("origin\n")
    before, before_fork = record(tree), record(fork)

    with pytest.raises(MergeConflict, match="1 path changed on both sides") as raised:
        handle.adopt(fork)

    assert raised.value.paths == (b"texts/lines",)
    assert difference(before, record(tree)) == []
    assert difference(before_fork, record(fork)) == []
    texts = {
        "mine": "origin\n",
        "theirs": "fork\n",
        "markers": "<<<<<<< root\norigin\n=======\nfork\n>>>>>>> fork\n",
    }
    for rule, text in texts.items():
        would = handle.adopt(fork, conflicts=rule, dry_run=True)
        done = handle.adopt(fork, conflicts=rule)
        assert done.conflicts == would.conflicts == (b"texts/lines",)
        assert [change.path for change in done.changes] == [item.path for item in would.changes]
        assert (tree / "texts" / "lines").read_text() == text.replace("root", tree.name)
        assert (tree / "new").read_text() == "new"
        handle.undo()
        assert difference(before, record(tree)) == []


def test_as_it_is_drops_what_happened_in_the_origin(handle, tree, fork):
    (fork / "new").write_text("new")
    (tree / "mine").write_text("mine")
    (tree / "old").write_text("changed")

    handle.adopt(fork, as_it_is=True)

    assert difference(record(fork), record(tree)) == []


def test_only_some_paths_are_adopted(handle, tree, fork):
    (fork / "texts" / "lines").write_text("fork\n")
    (fork / "script").write_text("false\n")

    handle.adopt(fork, ["texts"])

    assert (tree / "texts" / "lines").read_text() == "fork\n"
    assert (tree / "script").read_text() == "true\n"


def test_a_fork_without_the_snapshot_that_it_began_with_is_refused(handle, fork):
    there = open_handle(fork, handle.store_path)
    there.unpin("forked")
    there.delete("forked")

    with pytest.raises(Refused, match="or its snapshot 'forked' was deleted") as refused:
        handle.adopt(fork)

    assert refused.value.code == ErrorCode.NOT_A_FORK


def test_a_directory_that_is_no_fork_of_the_root_is_refused(handle, tree, fork, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    before = record(tree)
    for directory in (other, tree):
        with pytest.raises(Refused) as raised:
            handle.adopt(directory)
        assert raised.value.code == ErrorCode.NOT_A_FORK
    with pytest.raises(NotFound) as absent:
        handle.adopt(tmp_path / "absent")
    assert absent.value.code == ErrorCode.ROOT_NOT_FOUND
    with pytest.raises(Refused) as reverse:
        open_handle(fork, handle.store_path).adopt(tree)
    assert reverse.value.code == ErrorCode.NOT_A_FORK
    shutil.rmtree(fork)
    with pytest.raises(NotFound):
        handle.adopt(fork)
    assert difference(before, record(tree)) == []


def test_a_directory_that_both_made_holds_what_each_put_there(handle, tree, fork):
    for side, name in ((tree, "mine"), (fork, "theirs")):
        (side / "new" / name).mkdir(parents=True)
        (side / "new" / name / "file").write_text(name)

    assert handle.adopt(fork).conflicts == ()

    assert sorted(os.listdir(tree / "new")) == ["mine", "theirs"]


def test_a_path_that_neither_side_has_is_refused(handle, tree, fork):
    (fork / "script").write_text("false\n")
    before = record(tree)

    for dry_run in (True, False):
        with pytest.raises(NotFound, match="'mistyped'"):
            handle.adopt(fork, ["script", "mistyped"], dry_run=dry_run)

    assert difference(before, record(tree)) == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_another_directory_in_the_place_of_a_fork_is_refused(handle, tree, fork, dry_run):
    before = record(tree)
    shutil.rmtree(fork)
    fork.mkdir()
    (fork / "other").write_text("of something else")

    with pytest.raises(Refused) as raised:
        handle.adopt(fork, dry_run=dry_run)

    assert raised.value.code == ErrorCode.FORK_REPLACED
    assert difference(before, record(tree)) == []
    assert handle.list()[0].label is None
    handle.adopt(fork, force=True)
    assert sorted(os.listdir(tree)) == ["other"]
    (fork / "other").write_text("changed")
    handle.adopt(fork)
    assert (tree / "other").read_text() == "changed"


@pytest.mark.needs("birth times")
def test_a_fork_that_was_moved_or_restored_is_the_fork(handle, tree, fork, tmp_path):
    (fork / "script").write_text("fork\n")
    open_handle(fork, handle.store_path).create()
    shutil.rmtree(fork)
    open_handle(fork, handle.store_path).restore("latest")
    handle.adopt(fork)
    (fork / "script").write_text("moved\n")
    os.rename(fork, tmp_path / "moved")

    handle.adopt(tmp_path / "moved")

    assert (tree / "script").read_text() == "moved\n"


class TestTheSecondTime:
    def test_what_was_adopted_may_be_changed_again(self, handle, tree, fork):
        (fork / "texts" / "lines").write_text("one\n2\n3\n4\n5\n")
        (fork / "script").write_text("first\n")
        (fork / "new").write_text("new")
        handle.adopt(fork)
        (tree / "texts" / "lines").write_text("one\n2\n3\n4\nfive\n")
        (fork / "texts" / "lines").write_text("uno\n2\n3\n4\n5\n")
        (fork / "script").write_text("second\n")
        (fork / "new").unlink()

        adopted = handle.adopt(fork)

        assert adopted.conflicts == ()
        assert (tree / "texts" / "lines").read_text() == "uno\n2\n3\n4\nfive\n"
        assert (tree / "script").read_text() == "second\n"
        assert not (tree / "new").exists()

    def test_brings_back_what_the_fork_had_first(self, handle, tree, fork):
        before = (fork / "script").read_bytes()
        (fork / "script").write_text("first\n")
        (fork / "old").unlink()
        handle.adopt(fork)
        (fork / "script").write_bytes(before)
        (fork / "old").write_text("old")

        handle.adopt(fork)

        assert (tree / "script").read_bytes() == before
        assert (tree / "old").read_text() == "old"

    def test_an_adoption_that_was_undone_does_not_count(self, handle, tree, fork):
        (fork / "texts" / "lines").write_text("one\n2\n3\n4\n5\n")
        (fork / "script").write_text("first\n")
        handle.adopt(fork)
        handle.undo()
        (tree / "texts" / "lines").write_text("1\n2\n3\n4\nfive\n")
        (fork / "texts" / "lines").write_text("one\n2\nthree\n4\n5\n")

        handle.adopt(fork)

        assert (tree / "texts" / "lines").read_text() == "one\n2\nthree\n4\nfive\n"
        assert (tree / "script").read_text() == "first\n"

    def test_knows_what_was_moved_the_first_time(self, handle, tree, fork):
        os.rename(fork / "texts", fork / "moved")
        (tree / "texts" / "lines").write_text("1\n2\n3\n4\nfive\n")
        handle.adopt(fork)
        (fork / "moved" / "lines").write_text("one\n2\n3\n4\n5\n")

        assert handle.adopt(fork).conflicts == ()

        assert (tree / "moved" / "lines").read_text() == "one\n2\n3\n4\nfive\n"

    def test_counts_for_the_paths_that_were_adopted(self, handle, tree, fork):
        (fork / "texts" / "lines").write_text("one\n2\n3\n4\n5\n")
        (fork / "script").write_text("first\n")
        handle.adopt(fork, ["texts"])
        (fork / "texts" / "lines").write_text("uno\n2\n3\n4\n5\n")

        assert handle.adopt(fork).conflicts == ()

        assert (tree / "texts" / "lines").read_text() == "uno\n2\n3\n4\n5\n"
        assert (tree / "script").read_text() == "first\n"

    def test_a_conflict_that_was_decided_against_the_fork_is_one_again(self, handle, tree, fork):
        (fork / "script").write_text("fork\n")
        (tree / "script").write_text("origin\n")
        handle.adopt(fork, conflicts="mine")

        with pytest.raises(MergeConflict):
            handle.adopt(fork)

        handle.adopt(fork, conflicts="theirs")
        (fork / "script").write_text("fork again\n")
        handle.adopt(fork)
        assert (tree / "script").read_text() == "fork again\n"

    def test_what_both_had_made_alike_may_be_changed_again(self, handle, tree, fork):
        for directory in (tree, fork):
            (directory / "script").write_text("first\n")
        count = len(handle.list())
        for _ in range(2):
            assert handle.adopt(fork).changes == ()
        assert len(handle.list()) == count + 2  # my side, and the merge, which keeps what was alike
        (fork / "script").write_text("second\n")

        assert handle.adopt(fork).conflicts == ()

        assert (tree / "script").read_text() == "second\n"

    def test_without_a_change_changes_nothing(self, handle, tree, fork):
        (fork / "texts" / "lines").write_text("one\n2\n3\n4\n5\n")
        (tree / "texts" / "lines").write_text("1\n2\n3\n4\nfive\n")
        handle.adopt(fork)
        before = record(tree)

        assert handle.adopt(fork).changes == ()

        assert difference(before, record(tree)) == []


@pytest.mark.parametrize("as_it_is", [False, True])
@pytest.mark.parametrize("dry_run", [False, True])
def test_what_a_merge_leaves_out_is_listed(handle, tree, fork, as_it_is, dry_run):
    """Here it is excluded, there it is not, or the other way round."""
    (fork / "out").mkdir()
    (fork / "out" / "file").write_text("of the fork")
    (fork / "old").write_text("changed")
    (fork / "new").write_text("new")
    (fork / "made.o").write_text("object")
    (fork / ".snapignore").write_text("*.o\n")
    (tree / "out").mkdir()
    (tree / "out" / "file").write_text("of the root")
    (tree / ".snapignore").write_text("out/\nold\n")

    result = handle.adopt(fork, as_it_is=as_it_is, conflicts="theirs", dry_run=dry_run)

    left_out = {item.path: item.reason for item in result.left_out}
    assert left_out == dict.fromkeys([b"made.o", b"old", b"out"], SkipReason.EXCLUDED)
    assert (tree / "out" / "file").read_text() == "of the root"
    assert (tree / "old").read_text() == "old"
    assert (tree / "new").exists() == (not dry_run)


def test_what_both_sides_exclude_is_not_listed(handle, tree, fork):
    for directory in (tree, fork):
        (directory / ".snapignore").write_text("out/\n")
        (directory / "out").mkdir()
        (directory / "out" / "file").write_text(directory.name)
    (fork / "new").write_text("new")

    assert handle.adopt(fork).left_out == ()


def test_a_directory_that_was_moved_below_an_excluded_one_stays(handle, tree, tmp_path):
    """There is no room for it where it went, and it would be nowhere."""
    (tree / ".snapignore").write_text("out/\n")
    (tree / "out").mkdir()
    handle.create()
    handle.fork("latest", [tmp_path / "fork"])
    fork = tmp_path / "fork"
    (fork / ".snapignore").write_text("")
    (fork / "texts" / "more").write_text("more")
    (fork / "out").mkdir()
    (fork / "texts").rename(fork / "out" / "texts")

    result = handle.adopt(fork)

    assert (tree / "texts" / "lines").read_text() == "1\n2\n3\n4\n5\n"
    assert (tree / "texts" / "more").read_text() == "more"
    assert [item.path for item in result.left_out] == [b"out"]


def test_what_was_left_out_is_merged_once_it_is_no_longer_excluded(handle, tree, fork):
    (fork / "old").write_text("changed")
    (tree / ".snapignore").write_text("old\n")
    assert [item.path for item in handle.adopt(fork).left_out] == [b"old"]
    assert [item.path for item in handle.adopt(fork).left_out] == [b"old"]
    (tree / ".snapignore").unlink()

    assert handle.adopt(fork).left_out == ()

    assert (tree / "old").read_text() == "changed"


class WhenLocked(WrappedFileSystem):
    """Does something once, when the origin is locked to be merged."""

    def __init__(self, action):
        super().__init__(UnsyncedFileSystem())
        self._actions = [action]

    def around(self, call):
        if call.method == "write_at" and call.data.endswith(b": adopt\n") and self._actions:
            self._actions.pop()()
        return call.proceed()


def test_what_is_deleted_and_collected_before_the_merge_is_not_adopted(handle, tree, fork):
    """Its directories may be readable all the same: they lie in a pack that stays."""
    (fork / "large").write_bytes(os.urandom(PACK_SIZE_TARGET + (1 << 20)))
    store = handle.store_path
    other, theirs = fork.parent / "other", open_handle(fork, store)
    other.mkdir()

    def delete_and_collect():
        (fork / "large").unlink()
        theirs.create()
        (other / "file").write_bytes(os.urandom(4 << 20))
        open_handle(other, store).create()
        adopted = [item.id for item in theirs.list() if item.kind == SnapshotKind.SAFETY]
        assert len(theirs.delete(*adopted)) == 1
        assert handle.gc().freed_bytes > PACK_SIZE_TARGET

    context = context_at(tree, store, fs=WhenLocked(delete_and_collect))
    with pytest.raises(NotFound, match="was deleted meanwhile"):
        Handle(context).adopt(fork)

    assert handle.verify(read_data=True).problems == ()
    assert not (tree / "large").exists()
