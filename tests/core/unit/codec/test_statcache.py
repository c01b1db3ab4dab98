"""Rows that are compressed, and bytes that only look like such rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies
from treesnap.core.codec.compress import BLOCK_RAW_SIZE_MAX, compress
from treesnap.core.codec.message import pack, unpack
from treesnap.core.codec.statcache import (
    compress_row,
    decode_observations,
    decode_row,
    encode_observations,
    encode_row,
    is_observed,
)
from treesnap.core.model.errors import Corrupt


@given(strategies.rows(), st.integers(0, 3000))
def test_a_compressed_row_comes_back_and_is_not_longer(row, size):
    row = row._replace(observations=bytes(size))
    payload = encode_row(row)
    packed = compress_row(payload)

    assert decode_row(memoryview(packed)) == row
    assert len(packed) <= len(payload)
    assert len(payload) < 512 or len(packed) < 512


@given(strategies.rows())
def test_a_row_that_does_not_hold_what_it_claims_is_damage(row):
    packed = compress_row(encode_row(row._replace(observations=bytes(3000))))
    size_bytes, stored = unpack(packed, "test")

    for claimed in (size_bytes - 1, size_bytes + 1, BLOCK_RAW_SIZE_MAX + 1, -1):
        with pytest.raises(Corrupt):
            decode_row(memoryview(pack((claimed, stored))))
    twice = pack((size_bytes, stored))
    ((_, frame),) = compress([twice], 1)
    with pytest.raises(Corrupt):
        decode_row(memoryview(pack((len(twice), frame))))


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
