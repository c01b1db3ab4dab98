"""Holds: the snapshots that were read last stay as long as they may be read.

A hold is the record with which ``snap run`` keeps its checkpoint, without paths: so it stops
deletions, and no other command that goes back. It ends with the process, however that ends.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from typing import Self

from treesnap.codec.root_files import HoldRecord
from treesnap.errors import TreesnapError
from treesnap.model import SnapshotId
from treesnap.ops.context import Session, identity_of
from treesnap.store.records import LockedRecord

_HELD_MAX = 16
_Hold = tuple[LockedRecord[HoldRecord], tuple[int, int] | None]


class Holds:
    """The snapshots of a root that this process reads. Use as a context manager."""

    def __init__(self, session: Session, operation: str = "mount") -> None:
        self._session = session
        self._operation = operation
        self._held: OrderedDict[SnapshotId, _Hold] = OrderedDict()

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
        if identity in root.holds():  # another process keeps it; its record is not replaced
            return
        record = HoldRecord(os.getpid(), self._operation, ())
        hold = root.hold(identity, record)
        self._held[identity] = hold, identity_of(self._session.fs, hold.path)

    def _release(self) -> None:
        _, (hold, written) = self._held.popitem(last=False)
        if identity_of(self._session.fs, hold.path) == written:
            hold.release()
        else:  # another process has put its own record there
            hold.close()
