"""Doing something as a user without privileges, whoever runs the tests."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from treesnap.testing.children import in_child

NOBODY_ID = 65534
PR_SET_DUMPABLE = 4


def as_nobody(action: Callable[[], object]) -> None:
    """Runs an action in a child without privileges; everything it imports is loaded already."""
    if os.geteuid() != 0:
        action()
        return

    def run() -> None:
        os.setgroups([])
        os.setresgid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
        os.setresuid(NOBODY_ID, NOBODY_ID, NOBODY_ID)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc/self stays closed
        action()

    ended = in_child(run)
    assert ended.error is None, ended.error
