"""The restore history of a root: what undo and redo go back and forth over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from treesnap.codec.envelope import FileKind, Format
from treesnap.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.codec.snapshot import is_snapshot_id
from treesnap.errors import Corrupt, InvalidArgument
from treesnap.model import SnapshotId
from treesnap.treepath import parse_scope

LENGTH_MAX = 1000
"""Restores that can be undone one after the other; older ones are forgotten."""


class Moment(NamedTuple):
    """A state to go back to: a snapshot, and the paths that the way there concerns."""

    snapshot_id: SnapshotId
    scope: tuple[bytes, ...] | None
    is_absent: bool = False
    """Whether there was no root at all; the snapshot holds an empty one."""


@dataclass(frozen=True, slots=True)
class RestoreHistory:
    """Two stacks of moments; the last is the next."""

    undo: tuple[Moment, ...] = ()
    redo: tuple[Moment, ...] = ()

    def restored(self, before: Moment) -> RestoreHistory:
        """Returns the history after a restore that began at ``before``."""
        return RestoreHistory((*self.undo, before)[-LENGTH_MAX:])

    def undone(self, before: Moment) -> RestoreHistory:
        """Returns the history after an undo that began at ``before``."""
        return replace(self, undo=self.undo[:-1], redo=(*self.redo, before)[-LENGTH_MAX:])

    def redone(self, before: Moment) -> RestoreHistory:
        """Returns the history after a redo that began at ``before``."""
        return replace(self, undo=(*self.undo, before)[-LENGTH_MAX:], redo=self.redo[:-1])


def encode_history(history: RestoreHistory) -> bytes:
    """Returns the payload of a history file."""
    undo, redo = (tuple(map(_row, stack)) for stack in (history.undo, history.redo))
    return pack({"version": 1, "undo": undo, "redo": redo})


def decode_history(payload: bytes) -> RestoreHistory:
    """Returns the history of a payload, or raises Corrupt."""
    fields = Fields(unpack(payload, "restore history", LONG_ARRAY_LENGTH_MAX), "restore history")
    fields.require_version(1)
    return RestoreHistory(
        tuple(_moment(row) for row in fields.get("undo", tuple)),
        tuple(_moment(row) for row in fields.get("redo", tuple)),
    )


HISTORY = Format(FileKind.HISTORY, encode_history, decode_history)


def _row(moment: Moment) -> tuple[Any, ...]:
    return tuple(moment) if moment.is_absent else tuple(moment[:2])


def _moment(row: Any) -> Moment:
    require(
        type(row) is tuple
        and (len(row) == 2 or (len(row) == 3 and row[2] is True))
        and type(row[0]) is str
        and is_snapshot_id(row[0])
        and (row[1] is None or type(row[1]) is tuple),
        "restore history",
        "a moment is not whole",
    )
    scope = row[1]
    if scope is not None:
        require(
            all(type(path) is bytes for path in scope),
            "restore history",
            "a path is no byte string",
        )
        try:
            parse_scope(scope)
        except InvalidArgument as error:
            raise Corrupt(f"Stored restore history is not valid: {error}") from error
    return Moment(SnapshotId(row[0]), scope, len(row) == 3)
