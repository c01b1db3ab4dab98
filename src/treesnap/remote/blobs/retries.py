"""How long requests are repeated that fail for reasons that may pass: a server that restarts, a
network that is gone for a while.

A library below may repeat a request too, within seconds; this is about minutes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import TypeVar

from treesnap.core.model.errors import RemoteFailed
from treesnap.core.model.named_tuple import NamedTuple

_Result = TypeVar("_Result")

RETRY_FOR_S = 300.0
"""For how long a request is repeated, unless its user says otherwise."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.5, 30.0
TOLD_AFTER_S = 5.0
"""When a user is told why a command waits."""


class Retries(NamedTuple):
    """How requests are repeated, and what is needed of time for that."""

    for_s: float = RETRY_FOR_S
    """Counted from the first failure of a request; 0 repeats none."""
    tell: Callable[[str], None] | None = None
    """Gets a sentence of facts, in any thread, once an outage takes longer."""
    now_s: Callable[[], float] = time.monotonic
    wait: Callable[[Event, float], object] = Event.wait
    """Returns when the time has passed, or the event is set."""
    random: Callable[[int], bytes] = os.urandom
    """Returns so many random bytes."""


class Repeater:
    """Repeats the requests of one connection. Safe in threads."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._given_up = Event()
        """Of the requests that begin now."""
        self._lock = Lock()
        self._is_told = False

    def repeated(self, send: Callable[[], _Result]) -> _Result:
        """Returns what a request returns, which must do no harm when it is carried out twice.

        Raises the last failure where the time is over, and at once any that will not pass by
        itself, such as missing credentials.
        """
        given_up = self._given_up
        began_s: float | None = None
        longest_s = 2 * PAUSE_MIN_S
        while True:
            try:
                result = send()
            except RemoteFailed as error:
                now_s = self._retries.now_s()
                if began_s is None:
                    began_s = now_s
                pause_s = self._pause_s(longest_s)
                waited_s = now_s + pause_s - began_s
                if not error.may_pass or waited_s > self._retries.for_s or given_up.is_set():
                    raise
                if waited_s >= TOLD_AFTER_S:
                    self._tell(error, self._retries.for_s - (now_s - began_s))
            else:
                if began_s is not None:
                    self._is_told = False
                return result
            self._retries.wait(given_up, pause_s)
            longest_s = min(2 * longest_s, PAUSE_MAX_S)

    def _pause_s(self, longest_s: float) -> float:
        """Returns how long the next pause is: machines that were cut off together do not come back
        together.
        """
        part = int.from_bytes(self._retries.random(4)) / (1 << 32)
        return PAUSE_MIN_S + part * (longest_s - PAUSE_MIN_S)

    def _tell(self, error: RemoteFailed, left_s: float) -> None:
        with self._lock:
            is_told, self._is_told = self._is_told, True
        if not is_told and self._retries.tell is not None:
            self._retries.tell(f"{error.message}; it is tried again for {left_s:.0f} s")

    def give_up(self) -> None:
        """Lets the requests that other threads repeat fail now; later ones are repeated again."""
        given_up, self._given_up = self._given_up, Event()
        given_up.set()
