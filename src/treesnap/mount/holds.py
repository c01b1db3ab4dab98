"""Holds: the snapshots that were read last stay as long as they may be read.

A hold is the record with which ``snap run`` keeps its checkpoint, without paths: so it stops
deletions, and no other command that goes back. It ends with the process, however that ends.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from typing import Self

from treesnap.core.codec.root_files import HoldRecord
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.ops.context import Session
from treesnap.core.store.records import LockedRecord

_HELD_MAX = 16


class Holds:
    """The snapshots of a root that this process reads. Use as a context manager."""

    def __init__(self, session: Session, operation: str = "mount") -> None:
        self._session = session
        self._operation = operation
        self._held: OrderedDict[SnapshotId, LockedRecord[HoldRecord]] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._held:
            self._release()

    def take(self, identity: SnapshotId) -> None:
        """Holds a snapshot, and lets go the one that was read longest ago if there are many.

        Does not wait: while a command works in the root, and where the store cannot be written
        to, nothing is held, and reading fails if the snapshot is deleted. The next call retries.
        """
        if identity in self._held:
            self._held.move_to_end(identity)
            return
        with (
            suppress(TreesnapError, OSError),
            self._session.root.locked(self._operation, 0.0),
        ):
            self._hold(identity)
        while len(self._held) > _HELD_MAX:
            self._release()

    def _hold(self, identity: SnapshotId) -> None:
        root = self._session.root
        record = HoldRecord(os.getpid(), self._operation, ())
        self._held[identity] = root.hold(identity, record)

    def _release(self) -> None:
        _, hold = self._held.popitem(last=False)
        hold.release()
