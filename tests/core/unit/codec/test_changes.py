"""Records with changes behind them: whole, torn, damaged, and when a file is written anew."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies as ours
from sampling import sized
from treesnap.core.codec.changes import (
    ARRAY_CHANGED_MAX,
    CHANGES_BYTES_MIN,
    next_change,
    unseal_changed,
)
from treesnap.core.codec.envelope import FileKind, header, seal
from treesnap.core.codec.message import pack
from treesnap.core.model.errors import Corrupt, NewerVersion, UnsupportedFormat
from treesnap.core.model.ids import checksum

KIND = FileKind.PLAN


def record(**fields: Any) -> bytes:
    return pack({"version": 1, "texts": ("long" * 100,) * 5, **fields})


def wide(number: int) -> bytes:
    """Returns a record of which each change takes 6,000 bytes."""
    return record(state=f"{number}".ljust(6_000), list=())


def changed(data: bytes, payload: bytes) -> bytes:
    """Returns a file with one more change, which has to be possible."""
    change = next_change(data, KIND, payload, "here")
    assert change is not None
    return data + change


@pytest.fixture
def states() -> list[bytes]:
    return [record(state=number, list=tuple(range(number))) for number in range(4)]


def file_of(states: list[bytes]) -> bytes:
    """Returns a record with a change for each further state."""
    data = seal(KIND, states[0])
    for state in states[1:]:
        data = changed(data, state)
    return data


@pytest.fixture
def file(states: list[bytes]) -> bytes:
    """A record with three changes."""
    return file_of(states)


def meaning(data: bytes) -> bytes:
    return unseal_changed(data, KIND, "here")


@settings(max_examples=sized(60, 2_000), deadline=None)
@given(records=st.lists(ours.plain_maps(), min_size=2, max_size=5))
def test_a_file_means_its_record_after_all_changes(records):
    """Or, where it says so, it has to be written anew: as where a flag becomes a number."""
    data = seal(KIND, pack(records[0]))
    for each in records[1:]:
        change = next_change(data, KIND, pack(each), "here")
        data = data + change if change is not None else seal(KIND, pack(each))

        assert meaning(data) == pack(each)


def test_a_change_holds_what_changed_alone():
    texts = tuple("text" * 500 + str(number) for number in range(100))
    before = {"texts": texts, "done": tuple(range(50)), "state": {"name": "a" * 500, "step": 1}}
    after = {
        "texts": texts,
        "done": (*range(7, 50), 50, 51),
        "state": before["state"] | {"step": 2},
    }

    change = next_change(seal(KIND, pack(before)), KIND, pack(after), "here")

    assert change is not None
    assert len(change) < 200


def test_a_file_that_is_cut_short_in_a_change_means_the_record_before_that(file, states):
    found = [
        states.index(meaning(file[:end])) for end in range(len(seal(KIND, states[0])), len(file))
    ]

    assert found == sorted(found)
    assert set(found) == {0, 1, 2}


@pytest.mark.parametrize("rest", [b"\0" * 7, b"\0" * 300], ids=["few", "many"])
def test_zeros_behind_the_last_change_count_for_nothing(file, states, rest):
    assert meaning(file + rest) == states[-1]


def test_a_last_change_of_which_a_part_is_zeros_counts_for_nothing(file, states):
    for end in range(len(file_of(states[:-1])) + 1, len(file) - 32, 7):
        assert meaning(file[:end] + bytes(len(file) - end)) == states[-2]


def test_what_no_change_begins_with_is_damage(file):
    with pytest.raises(Corrupt, match="damaged change"):
        meaning(file + b"more")


def test_a_byte_that_is_hit_before_the_last_change_is_damage(file, states):
    last = next_change(file_of(states[:-1]), KIND, states[-1], "here")
    assert last is not None
    for position in range(len(file) - len(last)):
        spoilt = bytearray(file)
        spoilt[position] ^= 0x10

        with pytest.raises((Corrupt, UnsupportedFormat)):
            meaning(bytes(spoilt))


def test_a_change_of_a_newer_version_is_no_damage(file):
    body = header(FileKind.CHANGE, 2) + (3).to_bytes(8, "little") + b"new"

    with pytest.raises(NewerVersion):
        meaning(file + body + checksum(body, 32))


@pytest.mark.parametrize(
    "row",
    [
        (),
        1,
        ((), 1),
        (("nothing",), 1),
        (("state", "below"), 1),
        ((1,), 1),
        (("state",), 0, 0, ()),
        (("list",), 1, 0, ()),
        (("list",), 0, 1, ()),
        (("list",), -1, 1, ()),
        (("list",), 0, -1, ()),
        (("list",), True, 0, ()),
        (("list",), 0, 0, 1),
        (("list",), 0, 0),
    ],
)
def test_a_whole_change_that_is_not_possible_is_damage(states, row):
    change = seal(FileKind.CHANGE, pack({"version": 1, "rows": (row,)}))

    with pytest.raises(Corrupt):
        meaning(seal(KIND, states[0]) + change)


def test_more_changes_than_a_writer_appends_are_damage():
    """A long array would be moved for each row of a few bytes, and a record is 256 MiB at most."""
    data = seal(KIND, record(list=(0,) * ARRAY_CHANGED_MAX))
    rows = ((("list",), 0, 0, ()),) * 5_000
    change = seal(FileKind.CHANGE, pack({"version": 1, "rows": rows}))
    assert len(change) < CHANGES_BYTES_MIN < 2 * len(change)

    assert meaning(data + change) == meaning(data)
    with pytest.raises(Corrupt, match="longer changes than its record may have"):
        meaning(data + 2 * change)


def test_values_that_changes_nest_more_deeply_than_any_record_are_damage():
    value: dict[str, Any] = {"a": None}
    for _ in range(100):
        value = {"a": value}
    rows = tuple((("state", *["a"] * (100 * depth)), value) for depth in range(20))
    change = seal(FileKind.CHANGE, pack({"version": 1, "rows": rows}))

    with pytest.raises(Corrupt, match="recursion"):
        meaning(seal(KIND, record(state=0)) + change)


class TestWrittenAnew:
    """Where no change can be appended."""

    def test_behind_a_torn_end(self, file, states):
        assert next_change(file[:-1], KIND, states[0], "here") is None

    def test_instead_of_a_damaged_file(self, states):
        assert next_change(b"damaged", KIND, states[0], "here") is None

    def test_with_other_fields(self, file, states):
        assert next_change(file, KIND, record(state=1), "here") is None

    def test_when_the_changes_are_as_long_as_the_record(self, states):
        record_size = len(data := seal(KIND, states[0]))
        number = 0
        while (change := next_change(data, KIND, wide(number), "here")) is not None:
            data += change
            number += 1

        assert number > 5
        assert 0 <= CHANGES_BYTES_MIN - (len(data) - record_size) < len(wide(number))

    def test_not_because_of_a_long_array(self):
        long = tuple(range(ARRAY_CHANGED_MAX + 1))
        before, after = record(long=long), record(long=(*long, 1))

        change = next_change(seal(KIND, before), KIND, after, "here")

        assert change is not None
        assert meaning(seal(KIND, before) + change) == after
