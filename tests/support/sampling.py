"""How much is run of what tests enumerate: everything in ``tox -e long``, else a sample."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

IS_FULL = os.environ.get("TREESNAP_TEST_SIZE") == "full"
_SEED = os.environ.get("TREESNAP_TEST_SEED", "0")
IS_EVERY_SEED = _SEED == "all"
SEED = 0 if IS_EVERY_SEED else int(_SEED)
"""Of what is drawn by lot or would take days to enumerate; each number tries something else."""
LOT = os.environ.get("TREESNAP_TEST_LOT", "0")
"""Which tests the suite takes of those that ``sampled`` is said of: a number, or ``all``."""

Value = TypeVar("Value")


def sized(sample: Value, full: Value) -> Value:
    """Returns the size that this run has."""
    return full if IS_FULL else sample


def seeded(values: Sequence[Value], parts: int) -> Sequence[Value]:
    """Returns the part of some values that this seed tries in full size, or all for all seeds."""
    return values if IS_EVERY_SEED else values[SEED % parts :: parts]


def evenly(count: int, sample: int) -> Sequence[int]:
    """Returns numbers from 1 to a count: all of them, or evenly spread, with both ends."""
    if IS_FULL or count <= sample:
        return range(1, count + 1)
    return [1 + step * (count - 1) // (sample - 1) for step in range(sample)]


def chosen(names: Sequence[str], every: int) -> set[str]:
    """Returns every n-th of some names as if drawn by lot, in each run the same ones.

    So many lots as ``every`` says have each name once.
    """
    if LOT == "all":
        return set(names)
    drawn = sorted(names, key=lambda name: crc32(name.encode()))
    return set(drawn[int(LOT) % every :: every])
