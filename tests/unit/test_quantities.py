"""Quantities in messages."""

import pytest

from treesnap.quantities import first_few


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (1, "<0>"), (3, "<0>, <1>, <2>"), (4, "<0>, <1>, <2> and 1 more")],
)
def test_the_first_few_are_named_and_the_others_counted(count, text):
    assert first_few(range(count), lambda number: f"<{number}>", 3) == text


def test_large_counts_have_commas():
    assert first_few(range(5005), str) == "0, 1, 2, 3, 4 and 5,000 more"
