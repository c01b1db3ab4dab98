"""What a list of snapshots is: cheap to import, because most commands look at a history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from treesnap.model import Snapshot, SnapshotId


class SnapshotList(tuple[Snapshot, ...]):
    """The snapshots that ``list`` found or ``delete`` removed: a tuple of the readable ones."""

    damaged: tuple[SnapshotId, ...]
    """The others, of which nothing but the id is known."""

    def __new__(cls, readable: Iterable[Snapshot] = (), damaged: Iterable[SnapshotId] = ()) -> Self:
        """Returns both as one value."""
        made = super().__new__(cls, readable)
        made.damaged = tuple(damaged)
        return made
