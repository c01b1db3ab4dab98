"""Doing something just before a system call of this process, no matter which code makes it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

_BY_NAME = frozenset({"open_whole", "_rename_with"})
"""Functions that make a system call by a way on which it cannot be seen."""


class Calls:
    """Counts the calls, and does something before some of them."""

    def __init__(self, actions: Mapping[int, Callable[[], object]]) -> None:
        self.count = 0
        self._actions = actions
        self._is_acting = False

    def see(self, frame: FrameType, event: str, called: Any) -> None:
        """Is told of each call of a function; see sys.setprofile."""
        if self._is_acting:
            return
        if event == "c_call":
            is_system_call = getattr(called, "__module__", None) == "posix"
        else:
            is_system_call = event == "call" and frame.f_code.co_name in _BY_NAME
        if is_system_call:
            self.count += 1
            if (action := self._actions.get(self.count)) is not None:
                self._is_acting = True
                try:
                    action()
                finally:
                    self._is_acting = False


@contextmanager
def before_calls(actions: Mapping[int, Callable[[], object]]) -> Iterator[Calls]:
    """Does something before the N-th system calls of the block (1-based)."""
    calls = Calls(actions)
    before = sys.getprofile()
    sys.setprofile(calls.see)
    try:
        yield calls
    finally:
        sys.setprofile(before)
