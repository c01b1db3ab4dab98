"""Rows, and bytes that only look like rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from treesnap.core.codec.statcache import (
    decode_observations,
    decode_row,
    encode_observations,
    encode_row,
    is_observed,
)
from treesnap.core.model.errors import Corrupt


@given(strategies.rows(), st.binary(max_size=40))
def test_a_row_comes_back_whatever_its_observations_are(row, observations):
    row = row._replace(observations=observations)

    assert decode_row(memoryview(encode_row(row))) == row


@given(strategies.rows(), st.data())
def test_a_row_that_is_cut_is_damage(row, data):
    payload = encode_row(row)
    size_bytes = data.draw(st.integers(0, len(payload) - 1))

    with pytest.raises(Corrupt):
        decode_row(memoryview(payload[:size_bytes]))


@pytest.mark.parametrize("count", [0, 1, 3, 9000])
def test_bytes_are_compared_with_what_is_seen_as_if_they_were_made_again(count):
    seen = [(b"%06d" % number, 0o100644, number, 1, 2, 3, 4) for number in range(count)]
    data = encode_observations(seen)

    assert is_observed(data, seen)
    assert not is_observed(data, [*seen, (b"x", 0o100644, 0, 1, 2, 3, 4)])
    assert not is_observed(data[:-1], seen)
    for place in range(7) if seen else ():
        changed = list(seen[-1])
        changed[place] = b"z" if place == 0 else changed[place] + 1
        assert not is_observed(data, [*seen[:-1], tuple(changed)])


def test_a_time_that_is_wide_is_compared_after_decoding():
    seen = [(b"name", 0o100644, 1, 1 << 65, 2, 3, 4)]
    data = encode_observations(seen)

    assert not is_observed(data, seen)
    assert list(decode_observations(data).values()) == seen
