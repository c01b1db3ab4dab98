"""Overlays of one lower layer: containers of one image, with the store on a volume."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mounting import mounting
from state import tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import ErrorCode, Refused
from treesnap.core.ops.context import context_at
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault


def test_a_restore_is_not_finished_in_the_next_container(tmp_path: Path):
    """Its root has the same path, file system id and inode, but another device number."""
    root, lower = tmp_path / "first/place/root", tmp_path / "image"
    store = str(tmp_path / "store")
    (lower / "root").mkdir(parents=True)
    (lower / "root/image").write_text("from the image")
    with mounting() as mounter:
        first = mounter.overlay(tmp_path / "first", lower, "uuid=null")
        second = mounter.overlay(tmp_path / "second", lower, "uuid=null")
        handle = Handle(context_at(root, store))
        (root / "image").unlink()
        (root / "made").write_text("made")
        handle.create(name="target")
        (root / "made").unlink()
        (root / "image").write_text("again")
        at_move = Fault(number=1, methods=frozenset({"exchange", "rename_to_absent"}))
        end = killed(lambda fs: Handle(context_at(root, store, fs=fs)).restore("target"), at_move)
        assert end.was_killed
        identity = os.statvfs(root).f_fsid, root.stat().st_ino
        mounter.bind(second, first)
        assert (os.statvfs(root).f_fsid, root.stat().st_ino) == identity
        before = tree_state(root)

        with pytest.raises(Refused) as caught:
            Handle(context_at(root, store)).create()

        assert caught.value.code == ErrorCode.RESTORE_INTERRUPTED
        assert tree_state(root) == before
