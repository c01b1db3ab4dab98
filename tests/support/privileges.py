"""Doing something as a user without privileges, no matter who runs the tests."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

import treesnap
from treesnap.testing.children import in_child

NOBODY_ID = 65534
PR_SET_DUMPABLE = 4


def everything_is_loaded(directory: Path) -> None:
    """Runs every operation that the children of a test use, so that all modules are loaded."""
    (directory / "load").mkdir()
    handle = treesnap.open(directory / "load", directory / "load-store")
    identity = handle.create(options=treesnap.CreateOptions(exclude=["x"])).id
    (directory / "load" / "file").write_text("file")
    handle.restore(identity)
    handle.undo()
    handle.redo()


def as_nobody(action: Callable[[], object]) -> None:
    """Runs an action in a child without privileges; everything it imports is loaded already."""
    if os.geteuid() != 0:
        action()
        return

    def run() -> None:
        os.setgroups([])
        os.setgid(NOBODY_ID)
        os.setuid(NOBODY_ID)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc/self stays closed
        action()

    ended = in_child(run)
    assert ended.error is None, ended.error
