"""Words of error messages that people stumbled over."""

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prune", "--keep-last", "x"], "'x' is not a valid whole number"),
        (["create", "--step", "first"], "'first' is not a valid whole number"),
        (["run", "--retries", "1.5", "--", "true"], "'1.5' is not a valid whole number"),
        (["plan", "show", "p", "--output", "x"], "'x' is not a valid whole number"),
        (["push", "--jobs", "many"], "'many' is not a valid whole number"),
        (["watch", "--every", "hourly"], "'hourly' is not a valid number of seconds"),
        (["list", "--wait", "long"], "'long' is not a valid number of seconds"),
    ],
)
def test_value_that_is_no_number_is_called_so(snap, words, said):
    result = snap(*words)

    assert result.code == 2
    assert said in result.err
    assert "range" not in result.err


@pytest.mark.parametrize("words", [["diff", "latest", "--", "x"], ["restore", "latest", "x"]])
def test_path_that_is_nowhere_is_called_so(snap, words):
    snap("create")

    result = snap(*words)

    assert result.code == 5
    assert result.err.startswith("snap: There is no 'x', neither before nor after\n")
