"""Restores that end before they are committed, and those that do not know that they are done."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from state import differences, tree_state
from treesnap.core.model.errors import ErrorCode, OperationFailed, TreesnapError
from treesnap.testing.children import killed
from treesnap.testing.doubles import (
    Fault,
    FaultyFileSystem,
    UnreachableFileSystem,
    WrappedFileSystem,
)

STAGED = Fault(
    methods=frozenset({"write_at"}), where=lambda call: "/.treesnap-restore-" in call.path
)
"""The first bytes are written in the staging directory."""
ALL_MOVED = Fault(number=2, methods=frozenset({"sync_file_system"}))


@pytest.fixture
def before(handle, root):
    """The state that is restored; it is not the present one."""
    (root / "directory").chmod(0o750)
    os.utime(root, ns=(10**18, 10**18))
    handle.create(name="before")
    state = tree_state(root)
    (root / "one").write_bytes(b"changed")
    (root / "directory/two").unlink()
    return state


@pytest.fixture
def crash(make_handle, after):
    """Kills a restore at a call."""

    def crasher(fault: Fault) -> None:
        assert killed(lambda fs: make_handle(fs=fs).restore("before"), fault).was_killed

    return crasher


def test_what_was_prepared_is_forgotten_when_the_root_is_gone(handle, root, before, crash):
    crash(STAGED)
    shutil.rmtree(root)

    said = handle.recover()

    assert said == "forgot a restore that was interrupted early: the root is gone"
    assert handle.recover() is None
    handle.restore("before")
    assert differences(tree_state(root), before) == []


def test_nothing_is_forgotten_while_the_root_cannot_be_looked_at(
    make_handle, handle, root, before, after, crash
):
    crash(STAGED)
    unreachable = make_handle(fs=UnreachableFileSystem(errno.ENOTCONN, root))

    with pytest.raises(OperationFailed, match="cannot be looked at: Transport endpoint"):
        unreachable.recover()

    assert handle.recover().startswith("removed what an interrupted restore had prepared")
    assert differences(tree_state(root), after) == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "damaged", [b"", b"no history", bytes(100)], ids=["empty", "text", "zeros"]
)
def test_it_is_finished_although_the_history_is_damaged(
    handle, root, store_path, before, after, crash, damaged
):
    """The history says whether a restore is done; when it cannot, all of it is looked at."""
    crash(ALL_MOVED)
    (directory,) = Path(store_path).glob("roots/*/")
    (directory / "history").write_bytes(damaged)

    said = handle.recover()

    assert said == "completed an interrupted restore"
    assert differences(tree_state(root), before) == []
    handle.undo()
    assert differences(tree_state(root), after) == []


def test_a_root_whose_time_cannot_be_put_back_waits_for_the_next_command(
    make_handle, handle, root, after
):
    """The disk is full, and our own root does not let its time be changed."""
    full = Fault(errno=errno.ENOSPC, methods=STAGED.methods, where=STAGED.where)
    refused = Fault(
        errno=errno.EPERM,
        methods=frozenset({"change_times"}),
        where=lambda call: call.path == str(root),
        lasting=True,
    )

    with pytest.raises((TreesnapError, OSError), match="not permitted"):
        make_handle(fs=FaultyFileSystem(full, refused)).restore("before")

    assert handle.recover().startswith("removed what an interrupted restore had prepared")
    assert differences(tree_state(root), after) == []


class BrokenAfterCommit(WrappedFileSystem):
    """A disk that takes nothing any more once the journal that commits a restore has its name."""

    journals = 0

    def around(self, call):
        if self.journals == 2 and call.method in {"write", "sync", "sync_data", "rename"}:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        result = call.proceed()
        self.journals += call.method == "rename" and call.paths[-1].endswith("/journal")
        return result


def test_a_restore_that_may_be_committed_is_not_said_to_have_failed_alone(
    make_handle, root, before
):
    with pytest.raises(OperationFailed, match="the next command on this root") as failed:
        make_handle(fs=BrokenAfterCommit()).restore("before")

    assert failed.value.code == ErrorCode.RESTORE_INTERRUPTED
    assert (root / "one").read_bytes() == b"changed"
    make_handle().recover()
    assert differences(before, tree_state(root)) == []
