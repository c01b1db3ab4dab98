"""Contents that are checked together are refused where one alone is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.codec.chunklist import check_content, check_contents
from treesnap.core.model.errors import Corrupt

ID = bytes(range(32))
GOOD = [((0, ID, 7), 7), ((b"some",), 4), ((0,), 0), ((0, ID, 1, ID, 2), 3), ((1, ID, 9), 9)]
SOME = st.lists(st.sampled_from(GOOD), max_size=3)
BAD = [
    ((0, ID, 7), 8),
    ((0, ID, 0), 0),
    ((0, ID, -1), -1),
    ((0, ID, True), 1),
    ((False, ID, 7), 7),
    ((0, ID[1:], 7), 7),
    ((0, "x" * 32, 7), 7),
    ((0, None, 7), 8),
    ((0, ID, 1 << 70), 1 << 70),
    ((2, ID), 0),
    ((), 0),
    (b"abc", 3),
    (None, 0),
    ([0, ID, 7], 7),
]


def is_refused(content, size):
    try:
        return check_content(content) != size
    except Corrupt:
        return True


@given(st.lists(st.sampled_from(GOOD), max_size=6))
def test_good_contents_are_accepted_together(pairs):
    check_contents([content for content, _ in pairs], [size for _, size in pairs])


@pytest.mark.parametrize(("content", "size"), BAD)
@given(
    before=st.lists(st.sampled_from(GOOD), max_size=3),
    after=st.lists(st.sampled_from(GOOD), max_size=3),
)
def test_one_bad_content_is_refused_among_others(before, after, content, size):
    pairs = [*before, (content, size), *after]

    assert is_refused(content, size)
    with pytest.raises(Corrupt):
        check_contents([item for item, _ in pairs], [number for _, number in pairs])
