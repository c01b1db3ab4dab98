"""An operation that is killed, or fails, at every call that changes the disk.

``scene`` is what the tests in ``crash`` begin from: a root and its store, which can be
put back to what was kept of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from treesnap.errors import TreesnapError
from treesnap.ops.handle import Handle
from treesnap.testing.children import killed
from treesnap.testing.faulty import Fault, FaultyFileSystem, kill_at
from treesnap.testing.unsynced import UnsyncedFileSystem

POINTS_MAX = 5000
SPARSE = 1 if os.environ.get("TREESNAP_TEST_SIZE") == "full" else 4
"""Every how manieth point is tried where another test tries them all in much the same way."""


def kill_everywhere(
    scene,
    start: str,
    operation: Callable[[Handle], object],
    check: Callable[[], str],
    *faults: Fault,
    at: Callable[[int], Fault] = kill_at,
    every: int = 1,
) -> list[str]:
    """Kills an operation at every point, or every n-th; returns what ``check`` said."""
    outcomes = []
    for number in range(1, POINTS_MAX, every):
        scene.reset(start)
        ended = killed(lambda fs: operation(scene.handle(fs)), *faults, at(number))
        assert ended.error is None, ended.error
        if not ended.was_killed:
            assert outcomes
            return outcomes
        outcomes.append(check())
    raise AssertionError("The operation has no end")


def assert_turns_once(outcomes: list[str], old: str, new: str) -> None:
    """Asserts that there is a moment before which the old state came back, then the new."""
    turn = outcomes.index(new)

    assert outcomes == [old] * turn + [new] * (len(outcomes) - turn)
    assert turn > 0


def fail_everywhere(
    scene,
    start: str,
    operation: Callable[[Handle], object],
    check: Callable[[TreesnapError | None], str],
    at: Callable[[int], Fault],
    *faults: Fault,
    every: int = 1,
) -> list[str]:
    """Lets an operation fail at every point; returns what ``check`` said of the error."""
    outcomes: list[str] = []
    for number in range(1, POINTS_MAX, every):
        scene.reset(start)
        fault = at(number)
        fs = FaultyFileSystem(*faults, fault, inner=UnsyncedFileSystem())
        error = None
        try:
            operation(scene.handle(fs))
        except TreesnapError as caught:
            error = caught
        if not fs.hits_of(fault):
            assert outcomes
            return outcomes
        outcomes.append(check(error))
    raise AssertionError("The operation has no end")
