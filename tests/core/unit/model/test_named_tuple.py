"""Named tuples of our own do what those of ``typing`` do."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pytest

from treesnap.core.model.named_tuple import NamedTuple


class Place(NamedTuple):
    """Where something is."""

    path: str
    line: int = 1
    column: int = 0

    @property
    def text(self) -> str:
        return f"{self.path}:{self.line}"


class Standard(typing.NamedTuple):
    """The same with ``typing``."""

    path: str
    line: int = 1
    column: int = 0


WAYS = {
    "by position": lambda record: record("a", 2, 3),
    "by name": lambda record: record(column=3, path="a", line=2),
    "by both": lambda record: record("a", column=3),
    "with defaults": lambda record: record("a"),
    "of an iterable": lambda record: record._make(iter(("a", 2, 3))),
    "replaced": lambda record: record("a")._replace(line=7),
    "as a dictionary": lambda record: record("a")._asdict(),
    "copied": lambda record: copy.copy(record("a", 2)),
    "copied deeply": lambda record: copy.deepcopy(record("a", 2)),
    "pickled": lambda record: pickle.loads(pickle.dumps(record("a", 2))),
    "fields": lambda record: record._fields,
    "defaults": lambda record: record._field_defaults,
    "for patterns": lambda record: record.__match_args__,
    "read": lambda record: (record("a").path, record("a").line, record("a")[1]),
    "compared": lambda record: record("a") == ("a", 1, 0) and record("a") < record("b"),
    "hashed": lambda record: hash(record("a")),
}
MISTAKES = {
    "too few": lambda record: record(),
    "too many": lambda record: record(1, 2, 3, 4),
    "unknown": lambda record: record("a", colour=1),
    "twice": lambda record: record("a", path="b"),
    "too short an iterable": lambda record: record._make("a"),
    "assigned": lambda record: setattr(record("a"), "line", 2),
    "another attribute": lambda record: setattr(record("a"), "colour", 2),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_it_is_as_with_typing(way):
    assert way(Place) == way(Standard)


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_those_of_typing(mistake):
    errors = []
    for record in (Place, Standard):
        with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
            mistake(record)
        errors.append((caught.type, str(caught.value).replace("Standard", "Place")))

    assert errors[0] == errors[1]


def test_a_replacement_of_an_unknown_field_is_a_mistake_of_type():
    """As with ``typing`` from Python 3.13 on; before, it is a ValueError there."""
    with pytest.raises(TypeError, match="colour"):
        Place("a")._replace(colour=1)


def test_text_of_one_has_the_names_of_the_fields():
    assert repr(Place("a")) == "Place(path='a', line=1, column=0)"


def test_properties_stay():
    assert Place("a", 7).text == "a:7"


def test_pickled_by_name():
    assert type(pickle.loads(pickle.dumps(Place("a")))) is Place


def test_nothing_is_kept_beside_the_fields():
    assert not hasattr(Place("a"), "__dict__")


def test_signature_is_known_before_one_is_made():
    class Unused(NamedTuple):
        size: int
        name: str = ""

    assert str(inspect.signature(Unused)).replace("'", "") == "(size: int, name: str = )"


def test_constructor_is_made_when_the_third_one_is():
    class Unused(NamedTuple):
        size: int
        name: str = "none"

    made, has_own = [], []
    for give in (lambda: Unused(1), lambda: Unused(name="b", size=2), lambda: Unused(3, "c")):
        made.append(give())
        has_own.append("__new__" in vars(Unused))

    assert has_own == [False, False, True]
    assert made == [(1, "none"), (2, "b"), (3, "c")]


@pytest.mark.parametrize(
    "wrong", [((), {}), ((1, "b", 3), {}), ((1,), {"size": 1}), ((1,), {"x": 1})]
)
def test_the_first_ones_refuse_what_later_ones_refuse(wrong):
    class Unused(NamedTuple):
        size: int
        name: str = ""

    values, named = wrong
    messages = []
    for _ in range(4):
        with pytest.raises(TypeError) as refused:
            Unused(*values, **named)
        messages.append(str(refused.value))

    assert len(set(messages)) == 1
