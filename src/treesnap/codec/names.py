"""The name table of a root: which snapshots had names, up to one of them."""

from __future__ import annotations

from dataclasses import dataclass

from treesnap.codec.envelope import FileKind, Format
from treesnap.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.hashing import ID_SIZE


@dataclass(frozen=True, slots=True)
class NameTable:
    """What was found in the records of a history when it was read."""

    through: int = 0
    """The number of the newest snapshot that was read; 0 when none was."""
    rows: tuple[tuple[str, int, bytes], ...] = ()
    """Name, number and id of each that has a name."""


def encode_names(table: NameTable) -> bytes:
    """Returns the payload of a name table."""
    return pack(
        {
            "version": 1,
            "through": table.through,
            "names": tuple(name for name, _, _ in table.rows),
            "sequences": tuple(sequence for _, sequence, _ in table.rows),
            "ids": b"".join(identity for _, _, identity in table.rows),
        }
    )


def decode_names(payload: bytes) -> NameTable:
    """Returns the table of a payload, or raises Corrupt."""
    what = "name table"
    fields = Fields(unpack(payload, what, LONG_ARRAY_LENGTH_MAX), what)
    fields.require_version(1)
    names, sequences = fields.get("names", tuple), fields.get("sequences", tuple)
    ids = fields.get("ids", bytes)
    require(len(names) == len(sequences), what, "its columns differ in length")
    require(len(names) * ID_SIZE == len(ids), what, "its columns differ in length")
    require(all(type(name) is str for name in names), what, "a name is no text")
    require(
        all(type(number) is int and number >= 0 for number in sequences),
        what,
        "a number is not possible",
    )
    each_id = (ids[start : start + ID_SIZE] for start in range(0, len(ids), ID_SIZE))
    return NameTable(fields.size("through"), tuple(zip(names, sequences, each_id, strict=True)))


NAMES = Format(FileKind.NAMES, encode_names, decode_names)
