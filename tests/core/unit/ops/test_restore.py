"""What a restore says and leaves where it may not do everything, or fails half-way."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from interfering import Interfering
from state import tree_state
from treesnap.core.model.errors import OperationFailed
from treesnap.testing.doubles import Fault, FaultyFileSystem

NOBODY_ID = 65534
AT_STAGING = Fault(errno=errno.EIO, methods=frozenset({"sync_file_system"}))


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives a file away")
@pytest.mark.parametrize(("count", "end"), [(2, ""), (7, " and 2 more")])
def test_owners_that_may_not_be_put_back_are_named_up_to_a_number(
    make_handle, handle, root, count, end
):
    names = [f"file{number}" for number in range(count)]
    for name in names:
        (root / name).write_text(name)
        os.chown(root / name, 1, 1)
    handle.create()
    for name in names:
        (root / name).unlink()
    fault = Fault(errno=errno.EPERM, methods=frozenset({"change_owner"}), lasting=True)
    refusing = make_handle(fs=FaultyFileSystem(fault))

    refusing.restore("latest")

    assert [(root / name).read_text() for name in names] == names
    (said,) = refusing.context.monitor.warnings
    assert said.startswith("The owner or some attributes could not be put back")
    assert said.endswith(", ".join(map(repr, names[:5])) + end)


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives a file away")
@pytest.mark.parametrize("name", ["one", "one-link", "directory", "."])
@pytest.mark.parametrize("is_export", [False, True])
def test_an_owner_that_is_not_put_back_is_named_whatever_has_it(
    make_handle, handle, root, tmp_path, name, is_export
):
    if name == "one-link":
        (root / name).symlink_to("two")
    os.chown(root / name, 1, 1, follow_symlinks=False)
    if name == "one":
        (root / name).chmod(0o6755)
    handle.create()
    os.chown(root / name, 2, 2, follow_symlinks=False)
    fault = Fault(errno=errno.EPERM, methods=frozenset({"change_owner"}), lasting=True)
    refusing = make_handle(fs=FaultyFileSystem(fault))

    refusing.restore("latest", to=tmp_path / "other" if is_export else None)

    (said,) = refusing.context.monitor.warnings
    assert said.startswith("The owner or some attributes could not be put back")
    assert said.endswith(f": {name!r}")
    restored = (tmp_path / "other" if is_export else root) / "one"
    assert restored.stat().st_mode & 0o6000 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives a directory away")
def test_a_root_of_another_user_keeps_no_failed_restore_from_being_undone(
    make_handle, handle, root
):
    handle.create()
    (root / "one").write_bytes(b"changed")
    os.chown(root, NOBODY_ID, NOBODY_ID)
    before = tree_state(root)
    refused = Fault(
        errno=errno.EPERM,
        methods=frozenset({"change_times"}),
        where=lambda call: call.path == str(root),
        lasting=True,
    )
    fs = FaultyFileSystem(AT_STAGING, refused)

    with pytest.raises(OperationFailed, match="Input/output error"):
        make_handle(fs=fs).restore("latest")

    assert fs.hits_of(refused) == 1
    found = tree_state(root)
    assert {path: item for path, item in found.items() if path} == {
        path: item for path, item in before.items() if path
    }
    assert handle.recover() is None


def test_what_another_process_makes_in_a_root_that_is_made_anew_stays_when_that_fails(
    make_handle, handle, root
):
    handle.create()
    shutil.rmtree(root)
    interfering = Interfering("remove_directory", 1, lambda: (root / "new").write_text("new"))
    interfering.where = lambda call: call.path == str(root)

    with pytest.raises(OperationFailed, match="Input/output error"):
        make_handle(fs=FaultyFileSystem(AT_STAGING, inner=interfering)).restore("latest")

    assert [path.name for path in root.iterdir()] == ["new"]
    assert handle.recover() is None
    handle.restore("latest")
    assert (root / "one").read_bytes() == b"one"


def test_a_comparison_reads_a_long_table_of_hard_links_that_is_not_stored(handle, root):
    """It would be one chunk of more than 4 KiB, of which a walk that stores nothing keeps none."""
    handle.create()
    (root / "linked").write_bytes(b"1")
    for number in range(100):
        os.link(root / "linked", root / f"{'name' * 20}-{number}")

    status = handle.status()

    assert len(status.changes) == 101
    handle.restore("latest")
    assert sorted(path.name for path in root.iterdir()) == ["directory", "one"]
