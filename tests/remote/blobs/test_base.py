"""Names and ranges, which every place for blobs treats alike."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.remote.blobs.base import NEAR_BYTES, check_name, cut_ranges, is_name, merged_ranges

DATA = bytes(range(256)) * (4 * NEAR_BYTES // 256)
RANGES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 50), st.integers(0, 5 * NEAR_BYTES)),
        st.one_of(st.integers(0, 50), st.integers(0, 2 * NEAR_BYTES)),
    ),
    max_size=6,
)


@pytest.mark.parametrize("name", ["format", "packs/0", "packs/-", "state/00ff-a", "a/" + "0" * 128])
def test_what_is_a_name(name):
    assert is_name(name)
    check_name(name)


@given(RANGES)
def test_ranges_are_read_by_requests_that_are_apart(ranges):
    requests = merged_ranges(ranges)

    assert requests == sorted(requests)
    for (start, size), (following, _) in pairwise(requests):
        assert following >= start + size + NEAR_BYTES
    parts = [DATA[start : start + size] for start, size in requests]
    assert cut_ranges(ranges, requests, parts) == [
        DATA[start : start + size] for start, size in ranges
    ]


@given(RANGES)
def test_requests_read_no_more_than_the_gaps_between_near_ranges(ranges):
    wanted = [item for item in ranges if item[1]]
    for start, size in merged_ranges(ranges):
        inside = sorted(item for item in wanted if start <= item[0] < start + size)
        assert inside[0][0] == start
        assert max(map(sum, inside)) == start + size
        reached = start
        for item in inside:
            assert item[0] < reached + NEAR_BYTES
            reached = max(reached, sum(item))


def test_ranges_with_a_gap_of_just_one_mebibyte_are_apart():
    assert merged_ranges([(0, 1), (NEAR_BYTES, 1)]) == [(0, NEAR_BYTES + 1)]
    assert merged_ranges([(0, 1), (NEAR_BYTES + 1, 1)]) == [(0, 1), (NEAR_BYTES + 1, 1)]
