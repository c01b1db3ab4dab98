"""Searching for paths: which patterns mean what, and what it costs to read one."""

from __future__ import annotations

import fnmatch
import itertools
import sys
from types import FrameType
from typing import Any

import pytest

import treesnap
from treesnap.core.ops.history.browse import translatable

LETTERS = "[]!-ab"


def test_a_pattern_means_the_same_as_before_its_translation():
    names = [
        "".join(word).encode()
        for length in range(1, 4)
        for word in itertools.product(LETTERS, repeat=length)
    ]
    for length in range(5):
        for word in itertools.product(LETTERS, repeat=length):
            pattern = "".join(word).encode()
            wanted, found = pattern, translatable(pattern)
            if wanted != found:
                matches = [
                    [name for name in names if fnmatch.fnmatchcase(name, each)]
                    for each in (wanted, found)
                ]
                assert matches[0] == matches[1], (wanted, found)


def lines_of_a_search(handle: treesnap.Handle, pattern: str) -> int:
    """Returns how many lines of fnmatch a search executes."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != fnmatch.__file__:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        handle.find(pattern)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.sampled(5)
@pytest.mark.parametrize("part", ["[!", "[", "[a-", "[]", "[!]", "*[a", "?[!"])
def test_a_pattern_twice_as_long_takes_twice_the_steps(tmp_path, part):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").touch()
    handle = treesnap.open(tmp_path / "root", tmp_path / "store")
    handle.create()

    once, twice = (lines_of_a_search(handle, part * count) for count in (400, 800))

    assert 0 < twice < 2.5 * once
