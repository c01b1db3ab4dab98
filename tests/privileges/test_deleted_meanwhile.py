"""A snapshot that is deleted while it is restored: as it was captured, or not at all."""

from __future__ import annotations

from functools import partial

from beside import AtCall
from sampling import sized
from treesnap.errors import NotFound
from treesnap.ops import privileges
from treesnap.ops.context import context_at
from treesnap.ops.handle import Handle
from treesnap.testing.doubles import UnsyncedFileSystem


def test_a_snapshot_that_no_root_has_any_more_loses_no_privileges(tmp_path):
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
