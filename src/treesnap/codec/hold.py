"""The record of a hold: a snapshot that a process at work goes back to if it fails.

It is locked while the process lives, so that a hold of a dead process counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from treesnap.codec.envelope import FileKind, Format
from treesnap.codec.message import Fields, pack, refused, require, unpack
from treesnap.errors import InvalidArgument
from treesnap.treepath import parse_scope

HOLD_SIZE_MAX = 16 << 20
"""The largest file that is read as a record."""


@dataclass(frozen=True, slots=True)
class HoldRecord:
    """Who holds a snapshot, and what going back to it changes."""

    process_id: int
    operation: str
    """What the process does, in words for people."""
    scope: tuple[bytes, ...] | None
    """The paths that are gone back to, or None for the whole root."""


def encode_hold(record: HoldRecord) -> bytes:
    """Returns the payload of a record."""
    scope = list(record.scope) if record.scope is not None else None
    return pack(
        {
            "version": 1,
            "process": record.process_id,
            "operation": record.operation,
            "scope": scope,
        }
    )


def decode_hold(payload: bytes) -> HoldRecord:
    """Returns the record of a payload, or raises Corrupt."""
    fields = Fields(unpack(payload, "hold"), "hold")
    fields.require_version(1)
    scope = fields.optional("scope", tuple)
    require(all(type(path) is bytes for path in scope or ()), "hold", "a path is not bytes")
    try:
        checked_scope = None if scope is None else parse_scope(scope)
    except InvalidArgument as error:
        raise refused("hold", error.message) from error
    return HoldRecord(
        process_id=fields.size("process"),
        operation=fields.get("operation", str),
        scope=checked_scope,
    )


HOLD = Format(FileKind.HOLD, encode_hold, decode_hold, HOLD_SIZE_MAX)
