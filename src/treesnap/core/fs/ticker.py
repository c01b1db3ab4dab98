"""A function that is called on a timer, in a thread that is never there when a process is forked.

A lock that another thread holds at the moment of a fork stays locked in the child, and a call
under way stays half done there. So a running ticker ends its thread before a fork and starts
another one in the parent after it. Helper processes (``fs.forked``) need not count it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

_running: set[Ticker] = set()
_is_registered = False


class Ticker:
    """Calls ``tick`` every so many seconds, between :meth:`start` and :meth:`stop`.

    Starts nothing in a child of the process that made it. ``tick`` has to raise nothing.
    """

    def __init__(self, tick: Callable[[], None], interval_s: float) -> None:
        self._tick = tick
        self._interval_s = interval_s
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._end: threading.Event | None = None

    def start(self) -> None:
        """Begins to tick, unless it does already; does nothing where no thread can be started."""
        if self._process != os.getpid() or self in _running:
            return
        _register()
        if self.resume():
            _running.add(self)

    def stop(self) -> None:
        """Ends ticking; a call that is under way is waited for. May be called again."""
        _running.discard(self)
        self.pause()

    def resume(self) -> bool:
        """Starts the thread; returns whether that was possible. For this module alone."""
        import threading

        self._end = threading.Event()
        thread = threading.Thread(
            target=self._run, args=(self._end,), name="treesnap-ticker", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the user's limit of processes: work goes on without ticks
            return False
        self._thread = thread
        return True

    def pause(self) -> None:
        """Ends the thread. For this module alone."""
        if self._thread is not None and self._end is not None:
            self._end.set()
            self._thread.join()
            self._thread = None

    def _run(self, end: threading.Event) -> None:
        import signal

        # A signal has to interrupt the main thread, where Python handles it.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not end.wait(self._interval_s):
            self._tick()


def running_count() -> int:
    """Returns how many threads of tickers there are."""
    return len(_running)


def _register() -> None:
    global _is_registered  # noqa: PLW0603 - a registration cannot be undone
    if not _is_registered:
        _is_registered = True
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork, after_in_child=_running.clear
        )


def _before_fork() -> None:
    for ticker in _running:
        ticker.pause()


def _after_fork() -> None:
    for ticker in list(_running):
        if not ticker.resume():
            _running.discard(ticker)
