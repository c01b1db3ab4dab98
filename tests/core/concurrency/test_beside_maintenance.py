"""Whatever runs, whole, at a call of another command: all that was acknowledged holds afterwards.

No chance is involved. In the suite a few places of a few pairs are tried; in full size one
place of each pair out of eighty-one, from a place of its own, and each of eighty-one seeds tries
others: all places of all pairs take a day.
"""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import pytest

from beside import ACTS, DAMAGES, lost
from capabilities import require
from sampling import IS_FULL, SEED, sized

pytestmark = pytest.mark.sampled(3)

STEP = 81
FEW, FAR = 3, 47
"""Places of a pair in the suite, and how far apart: most commands make some hundred calls."""


ONE_OF_THEM = frozenset(
    {
        ("move", "hold", None),
        ("delete", "delete", None),
        ("forget", "forget", None),
        ("undo", "undo", None),
        ("repair", "move far", "pack"),
        ("repair", "undo", "history"),
    }
)
"""Pairs of which one always declines, with the damage.

A held snapshot keeps the store where it is; nothing is deleted, forgotten or undone twice; a
damaged store is not moved far; and a root whose history is lost has nothing to undo.
"""


def problems(
    base: Path, command: str, other: str, damage: str | None, places, *, whole: bool = False
) -> list[str]:
    """Returns the first thing that does not hold, with its place.

    Of all places of a pair, both commands have to succeed at one at least.
    """
    if whole:
        return _problems_of_pair(base, command, other, damage, places)
    return _found(base, command, other, damage, places)[0]


def _found(base: Path, command: str, other: str, damage: str | None, places):
    """Returns the first problem with its place, and at how many places both succeeded."""
    both = 0
    for number in places:
        outcome = lost(base / str(number), command, other, damage, number)
        if outcome is None:
            break
        if outcome.problems:
            return [f"at call {number}: {problem}" for problem in outcome.problems], both
        both += outcome.both
    return [], both


def _problems_of_pair(base: Path, command: str, other: str, damage: str | None, places):
    """Returns what does not hold; a pair that never succeeds where it is tried is tried everywhere.

    A command may make few calls, most of them with the lock held that the other one needs.
    """
    found, both = _found(base, command, other, damage, places)
    if found or both or (command, other, damage) in ONE_OF_THEM:
        return found
    for number in count(1):
        outcome = lost(base / f"every-{number}", command, other, damage, number)
        if outcome is None:
            return ["one of the two always declines"]
        if outcome.problems:
            return [f"at call {number}: {problem}" for problem in outcome.problems]
        if outcome.both:
            return []
    raise AssertionError("a command makes calls without end")


def some_places(command: str, other: str):
    """Returns the places at which a pair is tried."""
    offset = sum(f"{command} {other}".encode())
    if IS_FULL:
        return count(1 + (SEED + offset) % STEP, STEP)
    return islice(count(1 + offset % FAR, FAR), FEW)


def _require_what_moves_need(*commands: str) -> None:
    if any(command.startswith("move") for command in commands):
        require("exchange")


PAIRS = [(command, other) for command in ACTS for other in ACTS]


@pytest.mark.sampled(50)
@pytest.mark.parametrize(("command", "other"), PAIRS)
def test_nothing_is_lost_beside_a_command(tmp_path, command, other):
    _require_what_moves_need(command, other)
    places = some_places(command, other)

    assert problems(tmp_path, command, other, None, places, whole=IS_FULL) == []


@pytest.mark.sampled(30)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("other", ACTS)
def test_nothing_is_lost_beside_a_repair(tmp_path, damage, other):
    _require_what_moves_need(other)
    places = some_places("repair", other)

    assert problems(tmp_path, "repair", other, damage, places, whole=IS_FULL) == []


def test_both_of_two_settings_hold(tmp_path):
    assert problems(tmp_path, "config", "other config", None, count(22, sized(12, 1))) == []


@pytest.mark.needs("exchange")
@pytest.mark.parametrize("command", ["move", "move far"])
def test_a_root_that_is_new_during_a_move_is_there_afterwards(tmp_path, command):
    assert problems(tmp_path, command, "new root", None, islice(count(5, 60), 3)) == []
