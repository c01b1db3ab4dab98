"""A snapshot that is deleted while it is used: it is what it was, or it is not found."""

from __future__ import annotations

from functools import partial

from beside import AtCall
from sampling import sized
from treesnap.core.handle import Handle
from treesnap.core.model.errors import NotFound
from treesnap.core.ops import privileges
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnsyncedFileSystem


def test_a_snapshot_that_is_deleted_while_it_is_restored_loses_no_privileges(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("x")
    root.chmod(0o2755)
    handle = Handle(context_at(root, str(tmp_path / "store"), fs=UnsyncedFileSystem()))
    refused = 0
    for number in range(1, 140, sized(3, 1)):
        made = handle.create().id
        privileges._captured.clear()  # as in another process
        fs = AtCall(UnsyncedFileSystem(), number, partial(handle.delete, made))
        target = tmp_path / str(number)
        try:
            Handle(context_at(root, handle.store_path, fs=fs)).restore(made, to=target)
        except NotFound:
            refused += 1
            assert not target.exists()
        else:
            assert target.stat().st_mode & 0o7777 == 0o2755

    assert refused


def test_a_snapshot_that_is_deleted_while_the_tree_is_compared_with_it_fails_nothing(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("x")
    root.chmod(0o2755)
    handle = Handle(context_at(root, str(tmp_path / "store"), fs=UnsyncedFileSystem()))
    kept = handle.create().id
    (root / "file").write_text("longer")
    compared_with = set()
    for number in range(1, 70, sized(3, 1)):
        made = handle.create().id
        privileges._captured.clear()  # as in another process
        fs = AtCall(UnsyncedFileSystem(), number, partial(handle.delete, made))
        result = Handle(context_at(root, handle.store_path, fs=fs)).status()
        is_older = result.snapshot.id == kept
        compared_with.add(is_older)
        assert [change.path for change in result.changes] == ([b"file"] if is_older else [])

    assert compared_with == {True, False}
