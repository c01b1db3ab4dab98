"""Ids that sort in the order in which they were made."""

from __future__ import annotations

import pytest

from treesnap.plans.plan import is_ulid, may_begin_ulid, new_ulid

NOW_NS = 1_700_000_000_123 * 10**6


def test_an_id_is_canonical_and_begins_with_its_time():
    made = new_ulid(NOW_NS)

    assert is_ulid(made)
    assert made[:10] == "01HF7YAT3V"


def test_ids_of_one_time_differ():
    assert len({new_ulid(NOW_NS) for _ in range(100)}) == 100


@pytest.mark.parametrize("now_ns", [NOW_NS, NOW_NS - 365 * 86_400 * 10**9, -5, 0])
def test_an_id_sorts_behind_another_whatever_the_clock_says(now_ns):
    before = new_ulid(NOW_NS)

    assert new_ulid(now_ns, after=before) > before


def test_a_clock_beyond_all_bounds_is_no_error():
    assert is_ulid(new_ulid(1 << 90))
    assert is_ulid(new_ulid(NOW_NS, after=new_ulid(1 << 90)))
    assert is_ulid(new_ulid(-(1 << 90)))


@pytest.mark.parametrize(
    "text",
    ["", "01HF7YAT3V", "8" + "0" * 25, "01HF7YAT3VU" + "0" * 15, "01hf7yat3v" + "0" * 16, "é" * 26],
)
def test_what_is_no_id(text):
    assert not is_ulid(text)


@pytest.mark.parametrize(
    ("text", "is_beginning"),
    [("01hf", True), ("01HF7", True), ("01h", False), ("0" * 27, False), ("nope!", False)],
)
def test_what_may_begin_an_id(text, is_beginning):
    assert may_begin_ulid(text) == is_beginning
