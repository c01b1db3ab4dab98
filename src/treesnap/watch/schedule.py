"""When a watcher makes a snapshot by itself."""

from __future__ import annotations

QUIET_S = 1.0
"""After a change, how long nothing more has to happen."""
LATEST_S = 30.0
"""After a change, how long it may take at most, however much goes on."""
AGAIN_S = 30.0
"""After a snapshot that failed, in what time at most it is tried again."""


class Schedule:
    """Says when a snapshot is due. Times are those of any clock that goes on evenly.

    The first one is due at once.
    """

    def __init__(self, *, every_s: float | None, on_change: bool, now_s: float) -> None:
        self.every_s = every_s
        self.on_change = on_change
        self._last_s: float | None = None
        self._failed_s: float | None = None
        self._changed_first_s: float | None = None
        self._changed_last_s = now_s

    def noticed(self, now_s: float) -> None:
        """Something changed."""
        if self._changed_first_s is None:
            self._changed_first_s = now_s
        self._changed_last_s = now_s

    def done(self, now_s: float) -> None:
        """A snapshot was made of all that was noticed."""
        self._last_s = now_s
        self._changed_first_s = None
        self._failed_s = None

    def failed(self, now_s: float) -> None:
        """A snapshot could not be made. It is due again, but not at once."""
        self._last_s = now_s
        self._changed_first_s = None
        self._failed_s = now_s

    def due_in_s(self, now_s: float) -> float | None:
        """Returns in what time a snapshot is due, 0 if it is, or None if nothing is known."""
        if self.every_s is None and not self.on_change:
            return None
        if self._last_s is None:
            return 0.0
        times = []
        if self.every_s is not None:
            times.append(self._last_s + self.every_s)
        if self.on_change and self._changed_first_s is not None:
            times.append(min(self._changed_last_s + QUIET_S, self._changed_first_s + LATEST_S))
        if self._failed_s is not None:
            times.append(self._failed_s + AGAIN_S)
        return max(0.0, min(times) - now_s) if times else None
