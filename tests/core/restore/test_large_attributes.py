"""Attributes that a file system has no room for in one file, although its disk has."""

from __future__ import annotations

import errno
import os

import pytest

from treesnap.core.handle import Handle
from treesnap.core.model.errors import WarningCode
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import Fault, FaultyFileSystem


@pytest.mark.needs("attributes")
def test_what_no_file_there_can_hold_is_listed_and_the_rest_restored(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("content")
    os.setxattr(root / "file", "user.large", b"v" * 2_000)
    handle = Handle(context_at(root, str(tmp_path / "store")))
    handle.create()
    for number in (errno.ENOSPC, errno.E2BIG):
        fs = FaultyFileSystem(Fault(methods=frozenset({"set_xattr"}), errno=number))
        monitor = CollectingMonitor()
        there = Handle(context_at(root, handle.store_path, fs=fs, monitor=monitor))
        target = tmp_path / str(number)

        there.restore("latest", to=target)

        assert (target / "file").read_text() == "content"
        assert WarningCode.METADATA_NOT_RESTORED in monitor.codes
