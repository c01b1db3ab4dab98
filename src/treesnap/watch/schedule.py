"""When a watcher makes a snapshot on its own."""

from __future__ import annotations

QUIET_S = 1.0
"""How long nothing has to change before a snapshot of the changes is made."""
LATEST_S = 30.0
"""How long after a change its snapshot is made at the latest."""
AGAIN_S = 30.0
"""How long after a failed snapshot the next one is tried at the latest."""


class Schedule:
    """Tells when a snapshot is due; the first one is at once. Times are of a monotonic clock."""

    def __init__(self, *, every_s: float | None, on_change: bool, now_s: float) -> None:
        self.every_s = every_s
        self.on_change = on_change
        self._last_s: float | None = None
        self._failed_s: float | None = None
        self._changed_first_s: float | None = None
        self._changed_last_s = now_s

    def noticed(self, now_s: float) -> None:
        """Notes that something changed."""
        if self._changed_first_s is None:
            self._changed_first_s = now_s
        self._changed_last_s = now_s

    def done(self, now_s: float) -> None:
        """Notes that a snapshot was made of everything noticed."""
        self._last_s = now_s
        self._changed_first_s = None
        self._failed_s = None

    def failed(self, now_s: float) -> None:
        """Notes that a snapshot could not be made, so that it is due again later."""
        self._last_s = now_s
        self._changed_first_s = None
        self._failed_s = now_s

    def due_in_s(self, now_s: float) -> float | None:
        """Returns the time until a snapshot is due, 0 if one is, or None if none will be."""
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
