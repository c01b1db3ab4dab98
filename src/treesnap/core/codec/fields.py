"""How records are stored: one table of fields, from which writing and reading follow.

A record is a map, with its fields under their names and in their order. The kind of a field
follows from its annotation, which is written once, in the class. A table says only what differs:
another name in the map, a rule that an annotation cannot tell, a value that is left out.

What is read is not trusted: each value has the type of its kind and keeps its rules, or Corrupt
is raised. Fields that no table knows are ignored, so that a later version may add some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import zip_longest

from treesnap.core.codec.message import (
    LONG_ARRAY_LENGTH_MAX,
    Fields,
    decode_time,
    pack,
    refused,
    require,
    unpack,
)
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.ids import is_snapshot_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.treepath import parse, parse_scope
from treesnap.core.model.type_names import Any, Generic, TypeVar

T = TypeVar("T")


class FieldKind(NamedTuple):
    """How the values of a field are stored."""

    read: Callable[[Any, str, str], Any]
    """Returns the value of what is stored, nil for an absent field; raises Corrupt. For messages
    it is given what the record is called, and the field."""
    write: Callable[[Any], Any] | None = None
    """Returns what is stored of a value; None if that is the value itself."""
    left_out: tuple[Any, ...] = ()
    """Values for which the field is left out of a map."""


def plain(kind: type) -> FieldKind:
    """Returns the kind of values of a type that msgpack has."""

    def read(value: Any, what: str, name: str) -> Any:
        if type(value) is not kind:
            raise refused(what, f"{name} is not of type {kind.__name__}")
        return value

    return FieldKind(read)


def where(kind: FieldKind, is_right: Callable[[Any], object], problem: str) -> FieldKind:
    """Returns a kind of which only some values are right; the problem follows the field's name."""

    def read(value: Any, what: str, name: str) -> Any:
        value = kind.read(value, what, name)
        if not is_right(value):
            raise refused(what, f"{name} {problem}")
        return value

    return kind._replace(read=read)


def parsed(
    kind: FieldKind, parse: Callable[[Any], Any], write: Callable[[Any], Any] | None = None
) -> FieldKind:
    """Returns a kind whose values a function makes, which raises InvalidArgument."""

    def read(value: Any, what: str, name: str) -> Any:
        try:
            return parse(kind.read(value, what, name))
        except InvalidArgument as error:
            raise refused(what, f"{name}: {error}") from error

    return FieldKind(read, write)


def optional(kind: FieldKind, *, absent: Any = None) -> FieldKind:
    """Returns a kind that may be nil, or absent: a value of its own then."""

    def read(value: Any, what: str, name: str) -> Any:
        return absent if value is None else kind.read(value, what, name)

    write = kind.write
    if write is None:
        return FieldKind(read)
    return FieldKind(read, lambda value: None if value is None else write(value))


def omitted(kind: FieldKind, *, absent: Any = None) -> FieldKind:
    """Returns a kind whose field is left out for one value, which an absent field has."""
    return optional(kind, absent=absent)._replace(left_out=(absent,))


def array(item: FieldKind) -> FieldKind:
    """Returns the kind of tuples of items of a kind."""

    def read(value: Any, what: str, name: str) -> tuple[Any, ...]:
        if type(value) is not tuple:
            raise refused(what, f"{name} is not of type tuple")
        return tuple([item.read(each, what, name) for each in value])

    write = item.write
    return (
        FieldKind(read)
        if write is None
        else FieldKind(read, lambda values: tuple(map(write, values)))
    )


def word(words: type[Enum]) -> FieldKind:
    """Returns the kind of the members of an enumeration, which are stored by their values."""
    by_value = words._value2member_map_
    of_type = {type(value) for value in by_value}

    def read(value: Any, what: str, name: str) -> Any:
        if type(value) not in of_type or value not in by_value:
            raise refused(what, f"{name} is unknown")
        return by_value[value]

    return FieldKind(read)


def row(
    record: Callable[..., Any], given: Mapping[str, Any] | None = None, **kinds: FieldKind
) -> FieldKind:
    """Returns the kind of records that are arrays: their fields in order, without names.

    The last ones are left out if all that follows may be. ``given`` are fields that are not
    stored, and their values.
    """
    given = given or {}
    fields = list(_kinds_of(record, kinds, given).items())
    least = sum(not kind.left_out for _, kind in fields)

    def read(stored: Any, what: str, name: str) -> Any:
        if type(stored) is not tuple or not least <= len(stored) <= len(fields):
            raise refused(what, f"{name} is not whole")
        pairs = zip_longest(fields, stored)
        values = {field: kind.read(each, what, field) for (field, kind), each in pairs}
        made = record(**given, **values)
        if least < len(fields) and len(write(made)) != len(stored):
            raise refused(what, f"{name} holds what is left out")
        return made

    def write(record: Any) -> tuple[Any, ...]:
        values = [getattr(record, field) for field, _ in fields]
        while len(values) > least and values[-1] in fields[len(values) - 1][1].left_out:
            del values[-1]
        pairs = zip(fields, values, strict=False)
        return tuple(each if kind.write is None else kind.write(each) for (_, kind), each in pairs)

    return FieldKind(read, write)


class Table(Generic[T]):
    """The fields of a record, and how each is stored.

    ``kinds`` are those of fields for which the annotation is not enough, ``names`` what fields
    are called in the map. ``given`` are fields that are not in the map: the reader knows
    them. ``problem_of`` returns what is wrong with a record that was read, or None.
    """

    def __init__(
        self,
        record: Callable[..., T],
        what: str,
        *,
        version: int | None = 1,
        names: Mapping[str, str] | None = None,
        given: Iterable[str] = (),
        problem_of: Callable[[T], str | None] | None = None,
        **kinds: FieldKind,
    ) -> None:
        self._record = record
        self.what = what
        self._version = version
        self._problem_of = problem_of
        names = names or {}
        self._fields = [
            (name, names.get(name, name), kind)
            for name, kind in _kinds_of(record, kinds, given).items()
        ]

    def encode(self, record: T) -> bytes:
        """Returns the payload of a record."""
        version = {} if self._version is None else {"version": self._version}
        return pack({**version, **self.map_of(record)})

    def decode(self, payload: bytes) -> T:
        """Returns the record of a payload, or raises Corrupt."""
        return self.record_of(unpack(payload, self.what, LONG_ARRAY_LENGTH_MAX))

    def map_of(self, record: T) -> dict[str, Any]:
        """Returns the fields of a record as they are stored."""
        stored = {}
        for name, key, kind in self._fields:
            value = getattr(record, name)
            if not any(value == left_out for left_out in kind.left_out):
                stored[key] = value if kind.write is None else kind.write(value)
        return stored

    def record_of(self, stored: Any, **given: Any) -> T:
        """Returns the record of a map, or raises Corrupt; ``given`` are fields not in the map."""
        what = self.what
        require(type(stored) is dict, what, "it is not a map")
        if self._version is not None:
            Fields(stored, what).require_version(self._version)
        get = stored.get
        for name, key, kind in self._fields:
            given[name] = kind.read(get(key), what, key)
        record = self._record(**given)
        if self._problem_of is not None:
            problem = self._problem_of(record)
            require(problem is None, what, f"{problem}")
        return record

    @property
    def kind(self) -> FieldKind:
        """The kind of a field that holds such a map."""
        return FieldKind(lambda stored, _what, _name: self.record_of(stored), self.map_of)


def single(
    what: str, *, version: int | None = 1, **field: FieldKind
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Returns how a file is written and read that holds one field, and is the value of that."""

    class Single(NamedTuple):
        value: Any

    ((key, kind),) = field.items()
    table = Table(Single, what, version=version, names={"value": key}, value=kind)
    return lambda value: table.encode(Single(value)), lambda payload: table.decode(payload).value


def _kinds_of(
    record: Callable[..., Any], kinds: Mapping[str, FieldKind], given: Iterable[str] = ()
) -> dict[str, FieldKind]:
    """Returns the kind of each field of a record, in their order."""
    annotations: Mapping[str, str] = record.__annotations__
    left = {name: text for name, text in annotations.items() if name not in given}
    assert kinds.keys() <= left.keys(), "a kind is that of no field"
    return {name: kinds.get(name) or _kind_of(text) for name, text in left.items()}


def _kind_of(annotation: str) -> FieldKind:
    """Returns the kind that an annotation tells; raises KeyError for any other."""
    if annotation.endswith(" | None"):
        return optional(_kind_of(annotation.removesuffix(" | None")))
    if annotation.startswith("tuple[") and annotation.endswith(", ...]"):
        return array(_kind_of(annotation.removeprefix("tuple[").removesuffix(", ...]")))
    return _BY_ANNOTATION[annotation]


def split_ids(size: int) -> FieldKind:
    """Returns the kind of ids of a size that are stored in one string of bytes."""
    joined = where(BYTES, lambda ids: len(ids) % size == 0, "has an id of another length")

    def split(ids: bytes) -> tuple[bytes, ...]:
        return tuple(ids[start : start + size] for start in range(0, len(ids), size))

    return parsed(joined, split, b"".join)


INTEGER, TEXT, BYTES, FLAG, MAP, ARRAY = map(plain, (int, str, bytes, bool, dict, tuple))
SIZE = where(INTEGER, lambda number: number >= 0, "is negative")
"""A number of at least 0."""
TIME = FieldKind(lambda value, what, name: decode_time(value, f"{what}, field {name},"))
"""A moment, in nanoseconds since 1970."""
SNAPSHOT_ID = where(TEXT, is_snapshot_id, "is not the id of a snapshot")
PATH = parsed(BYTES, parse)
"""A path below a root, or the root itself."""
SCOPE = parsed(array(BYTES), parse_scope)
"""Paths that are sorted, of which none lies below another one."""
_BY_ANNOTATION = {
    "int": INTEGER,
    "str": TEXT,
    "bytes": BYTES,
    "bool": FLAG,
    "SnapshotId": SNAPSHOT_ID,
}
