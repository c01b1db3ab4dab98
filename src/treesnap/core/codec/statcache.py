"""Rows of the stat cache: what one directory looked like when it was captured.

    header | rows ... | meta | hashes u64[] | offsets u64[] | trailer

A row is ``length u32 | CRC-32 u32 | payload``, and the payload is ``flags u8 | length of
the path u32 | length of the observations u32 | length of the hidden names u32 | path |
observations | hidden names | fields``. Observations and the other fields of :class:`Row` are
msgpack arrays of their own, and each hidden name is ``type u16 | length u16 | name``, so that
a look at a directory can be compared with its row where that lies. The hashes are those of
each row's path, sorted; the offsets say where each row is. The trailer is ``meta offset u64 |
count u64 | CRC-32 of all before the trailer u32 | "TSCT"``.
Rows are written in the order in which a walk finishes directories. The file is never synced:
every row and the meta carry a checksum of their own, and a row that is not whole is not used. Of a
file whose rows replace those of another one, none is used then: an older row would come back.
What a checksum has to find here is what a torn write leaves, so 32 bits do.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from itertools import chain

from treesnap.core.codec.message import (
    LONG_ARRAY_LENGTH_MAX,
    Fields,
    decode_time,
    pack,
    require,
    unpack,
)
from treesnap.core.codec.tree import decode_totals
from treesnap.core.fs import native
from treesnap.core.model.entries import ObjectId, SkipReason, Totals
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.ids import ID_SIZE
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.treepath import are_valid_names
from treesnap.core.model.type_names import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treesnap.core.codec.watch import WatchNote

TRAILER_MAGIC = b"TSCT"
TRAILER = struct.Struct("<QQI4s")
VERSION = 3
_FRAME = struct.Struct("<II")
FRAME_SIZE = _FRAME.size
_HEAD = struct.Struct("<BIII")
_HIDDEN = struct.Struct("<HH")
_MUST_BE_LOOKED_AT = 1
"""The flag of a row: equal observations do not say that its directory is unchanged."""
_MODE_MAX = 0xFFFFFFFF


class Observation(NamedTuple):
    """What ``lstat`` said about one name of a directory.

    All zeros for a name that exclusions hide: its changes do not count.
    """

    name: bytes
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


PlainObservation = tuple[bytes, int, int, int, int, int, int]
"""The fields of an observation: there are hundreds of thousands, and a class takes time."""


class Row(NamedTuple):
    """One directory: what was seen, and the tree that was stored for it."""

    path: bytes
    tree_id: ObjectId
    totals: Totals
    rules: bytes
    """Fingerprint of the exclusions that were in force."""
    racy: tuple[bytes, ...]
    """Names that must be looked at again whatever their observation says."""
    linked: bool
    """Whether a name has more than one hard link."""
    skipped: tuple[tuple[bytes, int], ...]
    """Names that were not captured, with the reason."""
    observations: bytes
    """The msgpack array of all observations, sorted by name."""
    hidden: tuple[tuple[bytes, int], ...] = ()
    """Names that exclusions hide, sorted, with the type that they had: of another type, the same
    rules may not hide them."""


def path_hash(path: bytes) -> int:
    """Returns the number under which a directory's row is found; other paths may have the same.

    The CRC-32 of the path, and of the path backwards: two that a lookup without this library can
    compute, too.
    """
    return zlib.crc32(path) << 32 | zlib.crc32(path[::-1])


def frame(payload: bytes) -> bytes:
    """Returns a payload with its length and checksum before it."""
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def unframe(data: memoryview, offset: int) -> memoryview | None:
    """Returns the payload at an offset, or None when it is not whole."""
    if offset < 0 or offset + FRAME_SIZE > len(data):
        return None
    length, check = _FRAME.unpack_from(data, offset)
    payload = data[offset + FRAME_SIZE : offset + FRAME_SIZE + length]
    if len(payload) != length or zlib.crc32(payload) != check:
        return None
    return payload


def encode_row(row: Row, *, is_listed: bool = False) -> bytes:
    """Returns the payload of a row; with ``is_listed`` its directory is looked at in any case."""
    fields = (row.tree_id, row.totals, row.rules, row.racy, row.linked, row.skipped)
    hidden = b"".join(_HIDDEN.pack(kind, len(name)) + name for name, kind in row.hidden)
    flags = _MUST_BE_LOOKED_AT * bool(row.racy or row.linked or is_listed)
    head = _HEAD.pack(flags, len(row.path), len(row.observations), len(hidden))
    return b"".join((head, row.path, row.observations, hidden, pack(fields)))


def path_of_row(payload: memoryview) -> bytes:
    """Returns the path in the payload of a row, or raises Corrupt."""
    require(len(payload) >= _HEAD.size, "stat cache row", "it is cut short")
    path_size = _HEAD.unpack_from(payload)[1]
    path = bytes(payload[_HEAD.size : _HEAD.size + path_size])
    require(len(path) == path_size, "stat cache row", "it is cut short")
    return path


def decode_row(payload: memoryview) -> Row:
    """Returns the row of a payload, or raises Corrupt."""
    path = path_of_row(payload)
    observed_at = _HEAD.size + len(path)
    _, _, observed_size, hidden_size = _HEAD.unpack_from(payload)
    hidden_at = observed_at + observed_size
    fields_at = hidden_at + hidden_size
    require(fields_at <= len(payload), "stat cache row", "it is cut short")
    observations = bytes(payload[observed_at:hidden_at])
    hidden = _decode_hidden(payload[hidden_at:fields_at]) if hidden_size else ()
    fields = unpack(payload[fields_at:], "stat cache row", LONG_ARRAY_LENGTH_MAX, maps=False)
    require(type(fields) is tuple, "stat cache row", "its fields are not an array")
    row = (path, *fields, observations)
    require(_is_row(row), "stat cache row", "its fields are of wrong types")
    tree_id, totals, *rest = fields
    return Row._make((path, tree_id, decode_totals(totals), *rest, observations, hidden))


def _decode_hidden(data: memoryview) -> tuple[tuple[bytes, int], ...]:
    hidden, place = [], 0
    while place < len(data):
        require(place + _HIDDEN.size <= len(data), "stat cache row", "a hidden name is cut short")
        kind, size = _HIDDEN.unpack_from(data, place)
        place += _HIDDEN.size
        require(place + size <= len(data), "stat cache row", "a hidden name is cut short")
        hidden.append((bytes(data[place : place + size]), kind))
        place += size
    return tuple(hidden)


def _is_row(value: Any) -> bool:
    if type(value) is not tuple or len(value) != len(Row._fields) - 1:
        return False
    path, tree_id, _, rules, racy, linked, skipped, observations = value
    return (
        type(path) is bytes
        and type(tree_id) is bytes
        and len(tree_id) == ID_SIZE
        and type(rules) is bytes
        and type(racy) is tuple
        and set(map(type, racy)) <= {bytes}
        and type(linked) is bool
        and type(skipped) is tuple
        and all(map(_is_skipped, skipped))
        and type(observations) is bytes
    )


def _is_skipped(item: Any) -> bool:
    return (
        type(item) is tuple
        and len(item) == 2
        and type(item[0]) is bytes
        and type(item[1]) is int
        and item[1] in SkipReason._value2member_map_
    )


def encode_observations(observations: list[Observation]) -> bytes:
    """Returns the bytes that stand for a whole directory; equal bytes, equal directory."""
    return pack(observations)


def is_observed(data: bytes, observations: Sequence[PlainObservation]) -> bool:
    """Returns whether bytes stand for just these; takes half the time of encoding them.

    False also for damaged bytes, and for some with times that msgpack has no integer for.
    """
    try:
        value = unpack(data, "observations", LONG_ARRAY_LENGTH_MAX, maps=False)
    except Corrupt:
        return False
    return bool(value == tuple(observations))


def decode_observations(data: bytes) -> dict[bytes, PlainObservation]:
    """Returns what was seen, by name, or raises Corrupt."""
    value = unpack(data, "observations", LONG_ARRAY_LENGTH_MAX, maps=False)
    if (
        native.module is None
        or type(value) is not tuple
        or not native.module.are_plain(value, len(Observation._fields))
    ):
        time_types = _time_types(value)
        require(time_types is not None, "observations", "they are not well formed")
        if time_types != {int}:
            value = tuple(_with_times(item) for item in value)
    return {item[0]: item for item in value}


def _with_times(item: tuple[Any, ...]) -> tuple[Any, ...]:
    times = (decode_time(time, "observations") for time in item[3:5])
    return (*item[:3], *times, *item[5:])


def _time_types(items: Any) -> set[type] | None:
    """Returns which types the times of observations have, or None if they are not well formed.

    Looks at one field of all after the other, as decoding a tree does.
    """
    if type(items) is not tuple:
        return None
    if not items:
        return {int}
    if set(map(type, items)) != {tuple} or set(map(len, items)) != {len(Observation._fields)}:
        return None
    names, modes, sizes, mtimes, ctimes, *others = zip(*items, strict=True)
    types = {*map(type, mtimes), *map(type, ctimes)}
    is_good = (
        set(map(type, names)) == {bytes}
        and are_valid_names(names)
        and set(map(type, chain(modes, sizes, *others))) == {int}
        and types <= {int, bytes}
        and 0 <= min(modes) <= max(modes) <= _MODE_MAX
    )
    return types if is_good else None


class Meta(NamedTuple):
    """What a file of rows says of itself."""

    snapshot_id: str
    tree_id: ObjectId
    """Root tree of the snapshot, below which the trees of all rows are."""
    base_id: str | None = None
    """For a file of recent rows, the snapshot of the file that they go before; else None."""
    removed: frozenset[bytes] = frozenset()
    """Directories whose rows in that file, and all below them, do not count any more."""
    watch: WatchNote | None = None
    """There when a watcher was asked before the walk began that the rows are from."""


def encode_meta(meta: Meta) -> bytes:
    """Returns the payload that says what the rows belong to."""
    fields: dict[str, Any] = {
        "version": 1,
        "snapshot": meta.snapshot_id,
        "tree": meta.tree_id,
    }
    if meta.base_id is not None:
        fields |= {"base": meta.base_id, "removed": tuple(sorted(meta.removed))}
    if meta.watch is not None:
        from treesnap.core.codec.watch import encode_note

        fields["watch"] = encode_note(meta.watch)
    return pack(fields)


def decode_meta(payload: memoryview) -> Meta:
    """Returns what the rows belong to, or raises Corrupt."""
    fields = Fields(unpack(payload, "stat cache", LONG_ARRAY_LENGTH_MAX), "stat cache")
    fields.require_version(1)
    removed = fields.optional("removed", tuple) or ()
    require(all(type(path) is bytes for path in removed), "stat cache", "a path is not bytes")
    watch = fields.optional("watch", dict)
    return Meta(
        fields.get("snapshot", str),
        ObjectId(fields.get("tree", bytes)),
        fields.optional("base", str),
        frozenset(removed),
        _decoded_note(watch) if watch is not None else None,
    )


def _decoded_note(fields: dict[str, object]) -> WatchNote:
    from treesnap.core.codec.watch import decode_note

    return decode_note(fields)
