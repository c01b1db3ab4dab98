"""The record of a restore to another directory: where its files are built.

It is durable before that directory is made, and locked while its writer lives. So
whoever finds it unlocked removes the directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from treesnap.codec.envelope import FileKind, Format
from treesnap.codec.journal import STAGE_PREFIX
from treesnap.codec.message import Fields, pack, require, unpack

EXPORT_STAGE_PREFIX = STAGE_PREFIX + b"to-"
"""How the names of these directories begin. None that a restore in a root uses begins so:
no record can make anybody remove a directory in which somebody's files are kept aside."""
EXPORT_SIZE_MAX = 1 << 16
"""The largest file that is read as a record."""

_DIGITS = frozenset(b"0123456789abcdef")


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """One restore to another directory."""

    stage_path: bytes
    """Absolute path, without links, of the directory in which the files are built."""


def encode_export(record: ExportRecord) -> bytes:
    """Returns the payload of a record."""
    return pack({"version": 1, "stage_path": record.stage_path})


def decode_export(payload: bytes) -> ExportRecord:
    """Returns the record of a payload, or raises Corrupt."""
    fields = Fields(unpack(payload, "export record"), "export record")
    fields.require_version(1)
    path = fields.get("stage_path", bytes)
    digits = os.path.basename(path).removeprefix(EXPORT_STAGE_PREFIX)
    require(
        path.startswith(b"/")
        and os.path.normpath(path) == path
        and b"\0" not in path
        and len(digits) == 16
        and not set(digits) - _DIGITS,
        "export record",
        "its staging directory is not possible",
    )
    return ExportRecord(path)


EXPORT = Format(FileKind.EXPORT, encode_export, decode_export, EXPORT_SIZE_MAX)
