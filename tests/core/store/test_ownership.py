"""Whose a store is: proven where it was made, by its maker, and not by a copy."""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import suppress

import pytest

import treesnap
from mounting import mounting
from state import tree_state
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, OperationFailed, Refused
from treesnap.core.ops.context import context_at
from treesnap.core.store.layout import Layout
from treesnap.core.store.ownership import note_made_here
from treesnap.plans import CorrectionMode, PlanMonitor, Planner
from treesnap.plans.plan import Step
from treesnap.testing.children import killed
from treesnap.testing.doubles import MUTATING, Fault

pytestmark = pytest.mark.sampled(10)

OTHER_USER = 12345


@pytest.fixture
def handle(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("text")
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    handle.create()
    return handle


def copied(handle, tmp_path):
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    return treesnap.open(tmp_path / "root", tmp_path / "copy")


def test_a_store_is_own_where_it_was_made(handle, tmp_path):
    assert handle.store_info().own
    (tmp_path / "store").rename(tmp_path / "moved")
    assert treesnap.open(tmp_path / "root", tmp_path / "moved").store_info().own


@pytest.mark.parametrize(("kind", "size_mib"), [("ext4", 64), ("xfs", 320), ("btrfs", 256)])
def test_a_store_is_own_when_its_device_has_another_number(tmp_path, kind, size_mib):
    """As after a restart, when disks are found in another order."""
    (tmp_path / "root").mkdir()
    with mounting() as mounter:
        place = tmp_path / "disk"
        mounter.image(place, kind, size_mib)
        handle = treesnap.open(tmp_path / "root", place / "store")
        handle.create()
        shutil.copytree(place / "store", place / "copy")
        before = place.stat().st_dev
        mounter.unmount(place)
        mounter.image(tmp_path / "other", "ext4", 64)
        mounter.image_again(place)

        assert (place.stat().st_dev != before) or kind == "btrfs"
        assert handle.store_info().own
        assert not treesnap.open(tmp_path / "root", place / "copy").store_info().own


def test_a_copy_is_not_own_until_the_user_says_so(handle, tmp_path):
    copy = copied(handle, tmp_path)

    assert not copy.store_info().own
    copy.store_trust()
    assert copy.store_info().own


def test_a_format_file_that_was_written_to_proves_nothing(handle, tmp_path):
    """An inode alone may be that of a file that was removed: many file systems use them again."""
    path = tmp_path / "store" / "format"
    inode = path.stat().st_ino
    with path.open("r+b") as file:
        file.write(path.read_bytes())

    assert path.stat().st_ino == inode
    assert not handle.store_info().own


def test_a_copy_by_the_command_is_as_own_as_its_source(handle, tmp_path):
    handle.store_copy(tmp_path / "second")
    copied(handle, tmp_path).store_copy(tmp_path / "third")

    assert treesnap.open(tmp_path / "root", tmp_path / "second").store_info().own
    assert not treesnap.open(tmp_path / "root", tmp_path / "third").store_info().own


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_store_that_others_may_write_to_is_no_ones_own(handle, tmp_path, mode):
    (tmp_path / "store").chmod(mode)

    assert not handle.store_info().own
    with pytest.raises(Refused) as refused:
        handle.store_trust()
    assert refused.value.code is ErrorCode.STORE_NOT_TRUSTED


def test_trust_that_was_refused_proves_nothing(handle, tmp_path):
    copy = copied(handle, tmp_path)
    (tmp_path / "copy").chmod(0o720)
    with pytest.raises(Refused):
        copy.store_trust()
    (tmp_path / "copy").chmod(0o700)

    assert not copy.store_info().own


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives a store away")
def test_a_store_of_another_user_is_not_roots_own(handle, tmp_path):
    for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]:
        os.chown(path, OTHER_USER, OTHER_USER)

    assert not handle.store_info().own
    with pytest.raises(Refused):
        handle.store_trust()


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives a file away")
def test_what_another_user_made_is_not_own_in_a_directory_of_ones_own(handle, tmp_path):
    """Its maker can write the right proof; then it is moved out of the maker's directory."""
    os.chown(tmp_path / "store" / "format", OTHER_USER, OTHER_USER)
    note_made_here(LocalFileSystem(), Layout(str(tmp_path / "store")))

    assert not handle.store_info().own
    with pytest.raises(Refused) as refused:
        handle.store_trust()
    assert refused.value.code is ErrorCode.STORE_NOT_TRUSTED


def test_a_store_of_an_earlier_version_is_not_proven(handle, tmp_path):
    (tmp_path / "store" / "made-here").unlink()

    assert not handle.store_info().own
    assert handle.verify().ok


def test_two_processes_that_make_a_store_leave_a_proof(handle, tmp_path):
    """The format file of the one may take the place of the other's before the proof is written."""
    handle.store_trust()
    handle.store_trust()

    assert handle.store_info().own


def test_commands_of_a_plan_run_in_an_own_store_alone(handle, tmp_path):
    marker = tmp_path / "marker"
    failed = Planner(handle).run("plan", [Step(name="one", run=f"test -e {marker}.x; false")])
    assert failed.state == "failed"
    copy = copied(handle, tmp_path)

    with pytest.raises(Refused, match=r"would run 'test -e ") as refused:
        Planner(copy).resume("latest")

    assert refused.value.code is ErrorCode.STORE_NOT_OWN
    assert Planner(copy).resume("latest", allow_commands=True).state == "failed"
    assert Planner(handle).resume("latest").state == "failed"


@pytest.mark.needs("exit codes")
def test_a_plan_in_a_store_of_others_changes_no_root_that_was_not_named(handle, tmp_path):
    failed = Planner(handle).run("plan", [Step(name="one", run="false")])
    (tmp_path / "root" / "file").write_text("later")
    before = tree_state(tmp_path / "root")
    copied(handle, tmp_path)
    (tmp_path / "here").mkdir()
    plans = Planner(treesnap.open(tmp_path / "here", tmp_path / "copy"))

    for change in (
        lambda: plans.rollback(failed.id, "step:0"),
        lambda: plans.correct(failed.id, CorrectionMode.REVERT),
        lambda: plans.checkpoint(failed.id, label="mine"),
        lambda: plans.resume(failed.id, allow_commands=True),
        lambda: plans.delete(failed.id),
    ):
        with pytest.raises(Refused, match=re.escape(str(tmp_path / "root"))) as refused:
            change()
        assert refused.value.code is ErrorCode.ROOT_NOT_NAMED

    assert plans.show(failed.id) == failed
    assert tree_state(tmp_path / "root") == before
    named = Planner(treesnap.open(tmp_path / "root", tmp_path / "copy"))
    assert named.rollback(failed.id, "step:0").restored == 1


def test_a_plan_of_another_root_is_changed_in_an_own_store_and_the_root_is_told(handle, tmp_path):
    failed = Planner(handle).run("plan", [Step(name="one", run="false")])
    (tmp_path / "here").mkdir()
    told = []

    class Monitor(PlanMonitor):
        def other_root_entered(self, plan):
            told.append(plan.root)

    here = treesnap.open(tmp_path / "here", tmp_path / "store")
    Planner(here, monitor=Monitor()).rollback(failed.id, "step:0")
    Planner(handle, monitor=Monitor()).rollback(failed.id, "step:0")

    assert told == [os.fsencode(tmp_path / "root")]


def test_a_proof_without_a_format_file_is_what_a_power_cut_left_of_a_store(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store/made-here").write_text("old\n")

    treesnap.open(tmp_path / "root", tmp_path / "store").create()

    assert treesnap.open(tmp_path / "root", tmp_path / "store").store_info().own


@pytest.mark.parametrize("error", [None, errno.EDQUOT], ids=["killed", "failed"])
def test_a_store_whose_making_was_cut_off_is_own_when_it_is_made(tmp_path, error):
    (tmp_path / "root").mkdir()
    store, number, is_over = tmp_path / "store", 0, False

    def create(fs):
        with suppress(OperationFailed):
            Handle(context_at(tmp_path / "root", str(store), fs=fs)).create()

    while not is_over:
        number += 1
        killed(create, Fault(number=number, errno=error, kinds=MUTATING))
        is_over = (store / "made-here").exists()
        treesnap.open(tmp_path / "root", store).create()
        assert treesnap.open(tmp_path / "root", store).store_info().own, number
        shutil.rmtree(store)

    assert number > 5
