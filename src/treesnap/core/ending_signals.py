"""The signals that end a program which does not handle them, and that it can handle.

Those that a fault of the program itself raises are not among them: a handler that returns would
meet the same instruction again, for ever.

A module of its own, without the enumerations of ``signal``, because clients of a fork server
import it when they start.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has only the slow one

_OTHERS = frozenset(
    getattr(_signal, name)
    for name in (
        *("SIGKILL", "SIGSTOP"),  # nothing handles these
        *("SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT"),
        *("SIGCHLD", "SIGURG", "SIGWINCH", "SIGINFO"),
        *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP", "SIGABRT", "SIGEMT"),
    )
    if hasattr(_signal, name)
)

ENDING: tuple[int, ...] = tuple(sorted(_signal.valid_signals() - _OTHERS))
"""In ascending order; those for real time are among them."""


def ending_text(exit_code: int) -> str:
    """Returns how a command failed, as ``subprocess`` tells: by a code, or negative by a signal."""
    if exit_code >= 0:
        return f"failed with exit code {exit_code}"
    return f"was killed by {signal_name(-exit_code)}"


def signal_name(number: int) -> str:
    """Returns the name of a signal."""
    from signal import Signals  # clients of a fork server start without it

    try:
        return Signals(number).name
    except ValueError:  # one of those for real time
        return f"signal {number}"
