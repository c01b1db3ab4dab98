"""What a restore to another directory writes down, so that nothing is left of one that is killed.

The record says where its files are built. It is durable before that directory is made, and
locked while its writer lives: a process that finds it unlocked removes the directory.

A mount point cannot be replaced by a rename. So the files are built in it, and moved up one by
one; the list of moves, in the staging directory, says how to make it empty again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from treesnap.codec.envelope import FileKind, Format
from treesnap.codec.journal import STAGE_PREFIX
from treesnap.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack

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
    in_place: bool = False
    """Whether that lies in the target itself, because nothing can be renamed to the target."""


def encode_export(record: ExportRecord) -> bytes:
    """Returns the payload of a record."""
    return pack({"version": 1, "stage_path": record.stage_path, "in_place": record.in_place})


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
    return ExportRecord(path, fields.get("in_place", bool))


EXPORT = Format(FileKind.EXPORT, encode_export, decode_export, EXPORT_SIZE_MAX)
EXPORT_MOVES_NAME = b"moves"
"""A file that is there in the staging directory while names are moved out of it."""


class Move(NamedTuple):
    """A name that an export puts into a directory which is there already."""

    name: bytes
    inode: int


@dataclass(frozen=True, slots=True)
class ExportMoves:
    """How to make a directory empty again that an export fills, and what it was before."""

    moves: tuple[Move, ...]
    mode: int
    uid: int
    gid: int
    mtime_ns: int


def encode_moves(record: ExportMoves) -> bytes:
    """Returns the payload of a list of moves."""
    return pack(
        {
            "version": 1,
            "moves": record.moves,
            "mode": record.mode,
            "uid": record.uid,
            "gid": record.gid,
            "mtime_ns": record.mtime_ns,
        }
    )


def decode_moves(payload: bytes) -> ExportMoves:
    """Returns the list of a payload, or raises Corrupt."""
    what = "list of moves"
    fields = Fields(unpack(payload, what, LONG_ARRAY_LENGTH_MAX), what)
    fields.require_version(1)
    moves = []
    for item in fields.get("moves", tuple):
        require(type(item) is tuple and len(item) == 2, what, "an item is not a name and an inode")
        name, inode = item
        is_name = type(name) is bytes and name not in (b"", b".", b"..")
        require(is_name and not set(name) & set(b"/\0"), what, "a name is not possible")
        require(type(inode) is int, what, "an inode is not a number")
        moves.append(Move(name, inode))
    mode = fields.size("mode")
    require(mode <= 0o7777, what, "its mode is not possible")
    return ExportMoves(
        tuple(moves), mode, fields.size("uid"), fields.size("gid"), fields.time("mtime_ns")
    )


EXPORT_MOVES = Format(FileKind.EXPORT_MOVES, encode_moves, decode_moves)
