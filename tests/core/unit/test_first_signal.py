"""The first signal that would end a program, and others that arrive at the same time."""

from __future__ import annotations

import signal
import sys
from itertools import count
from typing import Any

import pytest

from treesnap.core.interruption import FirstSignal, Stopped


class Repeat:
    """Sends the signal again at the n-th instruction of what counts it."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        if frame.f_code is not FirstSignal.arrived.__code__:
            return None
        if event == "call":
            frame.f_trace_opcodes = True
            if sys.version_info[:2] == (3, 12):
                sys.settrace(self)  # or it reports no instructions
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return self


def interrupted(repeat: Repeat) -> None:
    with FirstSignal():
        sys.settrace(repeat)
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            sys.settrace(None)


def test_one_that_arrives_while_the_first_is_counted_takes_nothing_from_it():
    for number in count(1):
        repeat = Repeat(number)
        with pytest.raises(Stopped):
            interrupted(repeat)
        if repeat.left > 0:
            break

    assert number > 5  # it was sent again at each instruction before
