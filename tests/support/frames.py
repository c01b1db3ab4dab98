"""A stack too small for recursion over a tree, so that trees need not be deep to show it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

FRAMES = 200
"""What calls may need, imports among them, whatever the depth of a tree."""


@contextmanager
def few_frames() -> Iterator[None]:
    """Leaves 200 frames on the stack."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
