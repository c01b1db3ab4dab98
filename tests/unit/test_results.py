"""Results are imported one by one, by names that are written in one place."""

from __future__ import annotations

import pytest

from treesnap import results


@pytest.mark.parametrize("name", results.__all__)
def test_every_result_is_there_under_its_name(name):
    assert getattr(results, name).__name__ == name


def test_a_result_that_there_is_not_is_an_error_of_the_caller():
    with pytest.raises(AttributeError, match="has no attribute 'NoResult'"):
        _ = results.NoResult
    with pytest.raises(ImportError, match="cannot import name 'NoResult'"):
        from treesnap.results import NoResult  # noqa: F401 - it is what fails
