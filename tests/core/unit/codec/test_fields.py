"""A table of fields writes and reads the records of a class."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import pytest

from treesnap.core.codec.fields import (
    BYTES,
    FLAG,
    INTEGER,
    SCOPE,
    SIZE,
    TEXT,
    Table,
    array,
    omitted,
    optional,
    row,
    single,
    split_ids,
    word,
)
from treesnap.core.codec.message import pack, unpack
from treesnap.core.model.errors import Corrupt, NewerVersion
from treesnap.core.model.named_tuple import NamedTuple


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: int
    is_last: bool = False


class Drawing(NamedTuple):
    name: str
    points: tuple[Point, ...]
    colour: Colour
    size: int
    note: str | None
    marks: tuple[bytes, ...] = ()
    hidden: bool = False


POINT = row(Point, is_last=omitted(FLAG, absent=False))
TABLE = Table(
    Drawing,
    "drawing",
    names={"size": "size_mm"},
    problem_of=lambda drawing: "it is nameless" if not drawing.name else None,
    points=array(POINT),
    colour=word(Colour),
    size=SIZE,
    hidden=omitted(FLAG, absent=False),
)
DRAWING = Drawing("a", (Point(1, -2), Point(3, 4, is_last=True)), Colour.RED, 5, None, (b"m",))
STORED = {
    "version": 1,
    "name": "a",
    "points": ((1, -2), (3, 4, True)),
    "colour": "red",
    "size_mm": 5,
    "note": None,
    "marks": (b"m",),
}


def test_fields_are_stored_in_order_under_their_names_as_their_annotations_say():
    assert list(unpack(TABLE.encode(DRAWING), "drawing").items()) == list(STORED.items())
    assert TABLE.decode(TABLE.encode(DRAWING)) == DRAWING


def test_a_field_that_may_be_absent_has_its_value_then_and_unknown_ones_are_ignored():
    stored = {name: value for name, value in STORED.items() if name != "note"}

    assert TABLE.decode(pack({**stored, "hidden": True, "later": 1})) == DRAWING._replace(
        hidden=True
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": b"a"}, "name is not of type str"),
        ({"name": None}, "name is not of type str"),
        ({"points": ((1,),)}, "points is not whole"),
        ({"points": ((1, 2, False),)}, "points holds what is left out"),
        ({"points": ((1, True),)}, "y is not of type int"),
        ({"points": [1]}, "points is not whole"),
        ({"colour": "blue"}, "colour is unknown"),
        ({"colour": {}}, "colour is unknown"),
        ({"size_mm": -1}, "size_mm is negative"),
        ({"note": 1}, "note is not of type str"),
        ({"marks": (1,)}, "marks is not of type bytes"),
        ({"hidden": 1}, "hidden is not of type bool"),
        ({"name": ""}, "it is nameless"),
        ({"version": 0}, "its version 0 is unknown"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_the_name_of_the_field(changes, problem):
    with pytest.raises(Corrupt, match=f"Stored drawing is not valid: {problem}"):
        TABLE.decode(pack({**STORED, **changes}))


def test_what_is_not_a_map_is_refused_and_a_newer_version_is_told_apart():
    with pytest.raises(Corrupt, match="not a map"):
        TABLE.decode(pack((1, 2)))
    with pytest.raises(NewerVersion):
        TABLE.decode(pack({**STORED, "version": 2}))


def test_a_file_of_one_field_is_the_value_of_that():
    encode, decode = single("list", words=array(TEXT))

    assert unpack(encode(("a", "b")), "list") == {"version": 1, "words": ("a", "b")}
    assert decode(encode(("a", "b"))) == ("a", "b")


def test_given_fields_are_not_in_the_map():
    class Part(NamedTuple):
        owner: object
        number: int

    table = Table(Part, "part", version=None, given=["owner"])

    assert table.map_of(Part("x", 3)) == {"number": 3}
    assert table.record_of({"number": 3}, owner="x") == Part("x", 3)


def test_a_table_refuses_a_field_whose_annotation_tells_no_kind():
    class Odd(NamedTuple):
        value: object

    with pytest.raises(KeyError, match="object"):
        Table(Odd, "odd")
    with pytest.raises(AssertionError, match="a kind is that of no field"):
        Table(Point, "point", z=INTEGER)


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (optional(BYTES), None, None),
        (optional(array(word(Level))), (Level.HIGH,), (3,)),
        (split_ids(2), (b"ab", b"cd"), b"abcd"),
        (SCOPE, (b"a", b"b"), (b"a", b"b")),
    ],
)
def test_a_value_comes_back(kind, value, stored):
    written = value if kind.write is None else kind.write(value)

    assert written == stored
    assert kind.read(stored, "record", "field") == value


@pytest.mark.parametrize(
    ("kind", "stored"),
    [(split_ids(2), b"abc"), (SCOPE, (b"b", b"..")), (SCOPE, ("a",)), (word(Level), True)],
)
def test_a_value_of_another_form_is_refused(kind, stored):
    with pytest.raises(Corrupt):
        kind.read(stored, "record", "field")
