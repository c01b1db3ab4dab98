"""Rows that are compressed, and bytes that only look like such rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.codec.compress import BLOCK_RAW_SIZE_MAX, compress
from treesnap.codec.message import pack, unpack
from treesnap.codec.statcache import compress_row, decode_row, encode_row
from treesnap.errors import Corrupt
from treesnap.testing import strategies


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
