"""Changes: what a record became, sealed one after the other behind it in its file.

    sealed record | sealed change | sealed change | ...

A change is a list of rows, each a path of names in the record's map and what is done there: a
value is set, or items of an array are replaced. So a large record costs what changed, one sync,
and no new name. The file means the record after all changes that are whole. What follows the
last of them is the torn end of one that was never acknowledged, and counts for nothing; where
that does not begin as a change does, or another change begins in it, the file is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from treesnap.core.codec.envelope import (
    FRAME_SIZE,
    HEADER_SIZE,
    FileKind,
    Format,
    header,
    unseal,
)
from treesnap.core.codec.message import (
    LONG_ARRAY_LENGTH_MAX,
    Fields,
    pack,
    refused,
    require,
    unpack,
)
from treesnap.core.model.errors import Corrupt, NewerVersion, UnsupportedFormat, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import Any

CHANGES_BYTES_MIN = 64 << 10
"""So many bytes of changes follow any record; a larger one is followed by as many as it has."""
ARRAY_CHANGED_MAX = 1 << 14
"""Items of the longest array of which some are replaced; a longer one is set as a whole.

A plan has 10,000 steps and checkpoints at most. A row of eight bytes can move all items of an
array, which takes 3 µs of one that is so long.
"""
_WHAT = "change"
_VERSION = 1
_LENGTH = struct.Struct("<Q")
_HEADER = header(FileKind.CHANGE)


def unseal_changed(data: bytes, kind: FileKind, where: str) -> bytes:
    """Returns the payload of a file after its changes; raises what ``unseal`` does."""
    return _read(data, kind, where).payload


def next_change(data: bytes, kind: FileKind, payload: bytes, where: str) -> bytes | None:
    """Returns what makes a payload of a file when it is written behind its content.

    None where the file has to be written anew: it is damaged, its end is torn, its changes are as
    long as the record, or no change says it.
    """
    try:
        found = _read(data, kind, where)
        before = unpack(found.payload, _WHAT, LONG_ARRAY_LENGTH_MAX)
        after = unpack(payload, _WHAT, LONG_ARRAY_LENGTH_MAX)
    except (Corrupt, UnsupportedFormat):
        return None
    if found.end < len(data) or type(before) is not dict or before.keys() != after.keys():
        return None
    rows = tuple(_rows((), before, after))
    change = CHANGE.seal(rows)
    if found.end + len(change) > _end_max(found.record_size):
        return None
    _apply(before, rows)
    return change if pack(before) == payload else None


def has_changes(data: bytes) -> bool:
    """Returns whether a file has anything behind its record, whole or torn."""
    return _end(data, 0) < len(data)


class _Read(NamedTuple):
    payload: bytes
    """After all changes."""
    record_size: int
    """Where the first change begins."""
    end: int
    """Where the last one ends."""


def _read(data: bytes, kind: FileKind, where: str) -> _Read:
    record_size = end = _end(data, 0)
    payload = unseal(data[:end], kind, where)
    changes = []
    while end < len(data):
        start, end = end, _end(data, end)
        try:
            changes.append(unseal(data[start:end], FileKind.CHANGE, where))
        except NewerVersion:
            raise
        except (Corrupt, UnsupportedFormat) as error:
            if not _is_torn(data, start):
                message = f"File {quoted(where)} has a damaged change"
                raise Corrupt(message, path=where) from error
            end = start
            break
    if end > _end_max(record_size):
        raise Corrupt(
            f"File {quoted(where)} has longer changes than its record may have", path=where
        )
    if not changes:
        return _Read(payload, record_size, end)
    record = unpack(payload, _WHAT, LONG_ARRAY_LENGTH_MAX)
    for change in changes:
        _apply(record, CHANGE.decode(change))
    try:
        return _Read(pack(record), record_size, end)
    except (ValueError, RecursionError) as error:  # it nests more deeply than can be written
        raise refused(_WHAT, str(error)) from error


def _end_max(record_size: int) -> int:
    """Returns where the last change of a record ends at most."""
    return record_size + max(CHANGES_BYTES_MIN, record_size)


def _is_torn(data: bytes, start: int) -> bool:
    """Returns whether what begins at a place may be what a crash left of the last change.

    A block that did not reach the disk is short or zeros.
    """
    begin = data[start : start + HEADER_SIZE]
    is_header = all(found in {0, wanted} for found, wanted in zip(begin, _HEADER, strict=False))
    return is_header and data.find(_HEADER, start + 1) < 0


def _end(data: bytes, start: int) -> int:
    """Returns where the frame ends that begins at a place, as far as it is there."""
    if len(data) < start + FRAME_SIZE:
        return len(data)
    length: int = _LENGTH.unpack_from(data, start + HEADER_SIZE)[0]
    return min(len(data), start + FRAME_SIZE + length)


def _rows(path: tuple[str, ...], before: Any, after: Any) -> Iterator[tuple[Any, ...]]:
    """Yields what makes one value of another; both are maps with the same keys."""
    for name, new in after.items():
        old, place = before[name], (*path, name)
        if type(old) is type(new) is dict and old.keys() == new.keys():
            yield from _rows(place, old, new)
        elif type(old) is type(new) is tuple and len(old) <= ARRAY_CHANGED_MAX:
            yield from _replaced_items(place, old, new)
        elif old != new:
            yield place, new


def _replaced_items(
    path: tuple[str, ...], old: tuple[Any, ...], new: tuple[Any, ...]
) -> Iterator[tuple[Any, ...]]:
    """Yields what makes one array of another: the oldest items go, others are replaced."""
    gone = old.index(new[0]) if new and new[0] in old else 0
    if gone:
        yield path, 0, gone, ()
        old = old[gone:]
    shorter = min(len(old), len(new))
    same = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    rest = shorter - same
    after = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    removed, items = len(old) - same - after, new[same : len(new) - after]
    if removed or items:
        yield path, same, removed, items


def _encode(rows: tuple[Any, ...]) -> bytes:
    return pack({"version": _VERSION, "rows": rows})


def _decode(payload: bytes) -> tuple[Any, ...]:
    fields = Fields(unpack(payload, _WHAT, LONG_ARRAY_LENGTH_MAX), _WHAT)
    fields.require_version(_VERSION)
    return fields.get("rows", tuple)


CHANGE: Format[tuple[Any, ...]] = Format(FileKind.CHANGE, _encode, _decode)
"""A change, as its rows."""


def _apply(record: Any, rows: tuple[Any, ...]) -> None:
    """Makes a change in a record's map, or raises Corrupt."""
    for row in rows:
        require(type(row) is tuple and len(row) in {2, 4}, _WHAT, "a row is not possible")
        path = row[0]
        require(type(path) is tuple and path, _WHAT, "a path is not possible")
        holder = record
        for name in path[:-1]:
            holder = holder.get(name) if type(holder) is dict and type(name) is str else None
        is_there = type(holder) is dict and type(path[-1]) is str and path[-1] in holder
        require(is_there, _WHAT, "its record has no such place")
        holder[path[-1]] = row[1] if len(row) == 2 else _with_items(holder[path[-1]], *row[1:])


def _with_items(array: Any, at: Any, removed: Any, items: Any) -> list[Any]:
    """Returns an array with other items in it: a list, which is copied with the first row alone."""
    is_array = type(array) in {tuple, list} and len(array) <= ARRAY_CHANGED_MAX
    require(is_array and type(items) is tuple, _WHAT, "what it replaces is not an array")
    is_possible = type(at) is type(removed) is int and 0 <= at <= at + removed <= len(array)
    require(is_possible and removed >= 0, _WHAT, "what it replaces is not there")
    changed = array if type(array) is list else [*array]
    changed[at : at + removed] = items
    return changed
