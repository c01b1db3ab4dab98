"""Each warning that tells of something half done is really given, and nothing else is lost."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from contextlib import suppress

import pytest

from treesnap.core.model.errors import WarningCode
from treesnap.core.ops.restore.plan import RestoreRequest
from treesnap.core.ops.undo import restore
from treesnap.testing.doubles import MUTATING, Fault, FaultyFileSystem

CODE = WarningCode


@pytest.fixture
def first(handle, root):
    """A snapshot, since which something changed in the root."""
    snapshot = handle.create(name="first").snapshot
    (root / "one").write_bytes(b"changed")
    (root / "directory/two").write_bytes(b"changed")
    return snapshot


@pytest.fixture
def failing(make_handle):
    """Opens handles for which calls of some methods, about paths with a word in them, fail."""

    def make(number: int, word: str, *methods: str):
        fault = Fault(
            errno=number,
            methods=frozenset(methods),
            kinds=frozenset() if methods else MUTATING,
            where=lambda call: any(word in path for path in call.paths),
            lasting=True,
        )
        return make_handle(fs=FaultyFileSystem(fault))

    return make


def codes(handle) -> list[WarningCode]:
    return handle.context.monitor.codes


def test_a_restore_that_cannot_tidy_up_is_done_and_tidied_up_later(
    first, failing, make_handle, root
):
    stuck = failing(errno.EIO, ".treesnap-restore", "remove_directory")
    stuck.restore("first")
    stuck.list()
    later = make_handle()
    later.list()

    assert codes(stuck) == [CODE.NOT_CLEANED_UP, CODE.NOT_CLEANED_UP]
    assert codes(later) == [CODE.RESTORE_RECOVERED]
    assert (root / "one").read_bytes() == b"one"
    assert sorted(os.listdir(root)) == ["directory", "one"]


def test_a_restore_elsewhere_that_cannot_tidy_up_is_done_and_tidied_up_later(
    first, failing, make_handle, tmp_path
):
    stuck = failing(errno.EIO, ".treesnap-restore", "remove_directory")
    stuck.restore("first", to=tmp_path / "to")
    later = make_handle()
    later.status()

    assert codes(stuck) == [CODE.NOT_CLEANED_UP]
    assert codes(later) == [CODE.EXPORT_CLEANED_UP]
    assert (tmp_path / "to/one").read_bytes() == b"one"


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives a directory away")
def test_the_time_of_a_directory_of_another_user_may_stay(first, failing, root):
    os.chown(root / "directory", 1, 1)
    first_again = failing(errno.EPERM, str(root / "directory"), "change_times")
    first_again.create(name="theirs")
    (root / "directory/new").touch()

    first_again.restore("theirs")

    assert codes(first_again) == [CODE.METADATA_NOT_RESTORED]
    assert sorted(os.listdir(root / "directory")) == ["two"]


def test_history_can_be_read_while_a_restore_cannot_be_finished(first, make_handle, failing, root):
    with pytest.raises(Exception, match="Input/output"):
        failing(errno.EIO, str(root), "exchange", "remove_directory").restore("first")
    stuck = failing(errno.EIO, ".treesnap-restore")

    assert len(stuck.list()) == 2
    assert codes(stuck) == [CODE.RESTORE_UNFINISHED]
    make_handle().list()


def test_files_are_back_although_their_snapshot_could_not_be_tagged(first, failing, root):
    full = failing(errno.ENOSPC, "states", "rename", "link")

    restore(full.context, RestoreRequest("first", reason="a"))

    assert codes(full) == [CODE.RESTORE_NOT_NOTED]
    assert (root / "one").read_bytes() == b"one"


def test_what_cannot_be_repaired_is_said_and_left(first, handle, failing, store_path):
    handle.restore("first")
    (history,) = store_path.glob("roots/*/history")
    history.write_bytes(b"damaged")
    stuck = failing(errno.EIO, "history")

    result = stuck.verify(repair=True)

    assert codes(stuck) == [CODE.NOT_REPAIRED]
    assert [problem.code for problem in result.left] == [result.problems[0].code]


def test_a_root_that_was_absent_and_cannot_be_removed_again_is_named(first, make_handle, root):
    shutil.rmtree(root)
    fault = Fault(
        errno=errno.EACCES,
        methods=frozenset({"remove_directory"}),
        where=lambda call: call.path == str(root),
        lasting=True,
    )
    stuck = make_handle(fs=FaultyFileSystem(fault))
    stuck.restore("first")

    stuck.undo()

    assert codes(stuck) == [CODE.LEFT_ALONE]
    assert list(root.iterdir()) == []


def test_a_damaged_snapshot_is_deleted_when_asked(first, make_handle, store_path):
    (path,) = store_path.glob(f"snapshots/*/*{first.id}*")
    path.write_bytes(b"damaged")
    handle = make_handle()

    assert handle.delete(first.id).damaged == (first.id,)
    assert codes(handle) == [CODE.DAMAGED_SNAPSHOT_DELETED]


def test_a_roll_back_names_what_no_snapshot_holds(first, handle, root):
    with suppress(ZeroDivisionError), handle.rollback_on_error():
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(root / "directory/socket"))
        (root / "one").unlink()
        raise ZeroDivisionError

    assert codes(handle) == [CODE.STORE_MADE, CODE.LEFT_ALONE]
    assert (root / "one").read_bytes() == b"changed"


def test_rules_that_cannot_be_read_are_named(handle, root):
    (root / "directory/.snapignore").symlink_to("nowhere")

    assert not handle.create().complete
    assert codes(handle) == [CODE.STORE_MADE, CODE.RULES_UNREADABLE]
