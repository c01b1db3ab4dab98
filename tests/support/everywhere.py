"""An operation that is killed, or fails, at every call that changes the disk.

``tox -e long`` tries every call; the suite tries the first, the last, and one between them.
``scene`` is what the tests in ``crash`` begin from: a root and its store, which can be
put back to what was kept of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sampling import IS_FULL, evenly
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.testing.children import killed
from treesnap.testing.doubles import Fault, FaultyFileSystem, UnsyncedFileSystem, kill_at

POINTS_MAX = 5000
SAMPLE = 3
"""How many points of an operation the suite tries, each of which costs a recovery."""


def points_of(
    scene,
    start: str,
    operation: Callable[[Handle], object],
    faults: tuple[Fault, ...],
    at: Callable[[int], Fault],
    every: int,
) -> Iterable[int]:
    """Returns the numbers of the calls at which an operation is killed or fails."""
    if IS_FULL:
        return range(1, POINTS_MAX, every)  # its callers stop where the operation lives
    scene.reset(start)
    unreached = at(POINTS_MAX)
    fs = FaultyFileSystem(*faults, unreached, inner=UnsyncedFileSystem())
    operation(scene.handle(fs))
    return evenly(fs.seen_of(unreached), SAMPLE)


def kill_everywhere(
    scene,
    start: str,
    operation: Callable[[Handle], object],
    check: Callable[[], str],
    *faults: Fault,
    at: Callable[[int], Fault] = kill_at,
    every: int = 1,
) -> list[str]:
    """Kills an operation at every point, or every n-th; returns what ``check`` said.

    How many calls an operation makes depends on how young its files are: one that ends before the
    last of a sample says what it says in whole.
    """
    outcomes = []
    for number in points_of(scene, start, operation, faults, at, every):
        scene.reset(start)
        ended = killed(lambda fs: operation(scene.handle(fs)), *faults, at(number))
        assert ended.error is None, ended.error
        if ended.was_killed or not IS_FULL:
            outcomes.append(check())
        if not ended.was_killed:
            return outcomes
    assert not IS_FULL, "The operation has no end"
    return outcomes


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
    """Lets an operation fail at every point, or every n-th; returns what ``check`` said."""
    outcomes: list[str] = []
    for number in points_of(scene, start, operation, faults, at, every):
        scene.reset(start)
        fault = at(number)
        fs = FaultyFileSystem(*faults, fault, inner=UnsyncedFileSystem())
        error = None
        try:
            operation(scene.handle(fs))
        except TreesnapError as caught:
            error = caught
        if not fs.hits_of(fault):
            return outcomes
        outcomes.append(check(error))
    assert not IS_FULL, "The operation has no end"
    return outcomes
