"""Signals that end a program must not interrupt a roll-back.

Handlers belong to the main thread; in other threads nothing is done, because signals do not
interrupt them. Signals that the program ignores stay ignored, and handlers in C code stay.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from treesnap.ending_signals import ENDING

EXIT_BASE = 128
"""Shells add the number of the signal that ended a command to this."""


class Stopped(SystemExit):
    """A signal asked the program to end; its code is 128 plus the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_BASE + number)
        self.signal = number


class Interruptions:
    """The signals that arrived since :func:`raise_first_signal`."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._is_deferring = False

    def arrived(self, number: int, _frame: FrameType | None) -> None:
        """Records a signal, and raises for the first one."""
        self.numbers.append(number)
        if len(self.numbers) == 1 and not self._is_deferring:
            self._raise()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Raises for a signal that arrives in the body once the body has ended.

        A process that is being started has no name yet by which it could be ended.
        """
        self._is_deferring = True
        try:
            yield
        finally:
            self._is_deferring = False
            if self.numbers:
                self._raise()

    def _raise(self) -> None:
        number = self.numbers[0]
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)

    @property
    def is_urgent(self) -> bool:
        """Whether there was more than one: the user does not want to wait."""
        return len(self.numbers) > 1


@contextmanager
def raise_first_signal() -> Iterator[Interruptions]:
    """Raises KeyboardInterrupt or :class:`Stopped` in the body for the first signal only.

    So later signals do not interrupt how the body reacts. The program's own handlers stay.
    """
    found = Interruptions()
    ours = (signal.SIG_DFL, signal.default_int_handler)
    with _handled(found.arrived, lambda handler: handler in ours):
        yield found


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delays the signals that arrive in the body until it has ended.

    These are the ones that end a program, and the ones that it handles in Python, where handlers
    may raise.
    """
    numbers: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        numbers.append(number)

    try:
        with _handled(
            note, lambda handler: handler not in (signal.SIG_IGN, None), _python_signals()
        ):
            yield
    finally:
        for number in dict.fromkeys(numbers):
            signal.raise_signal(number)


def _python_signals() -> list[int]:
    """Returns the signals that end a program, and those that it handles in Python."""
    return [
        number
        for number in signal.valid_signals()
        if number in ENDING or callable(signal.getsignal(number))
    ]


@contextmanager
def _handled(
    context: Callable[[int, FrameType | None], None],
    concerns: Callable[[Any], bool],
    numbers: Iterable[int] = ENDING,
) -> Iterator[None]:
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                handler = signal.getsignal(number)
                if concerns(handler):
                    before[number] = handler
                    signal.signal(number, context)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
