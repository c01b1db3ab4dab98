"""What a watcher that runs by itself says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStatus:
    """What a watcher that runs by itself says of itself."""

    process_id: int
    started_at_ns: int
    directories: int
    """How many it watches."""
    every_ms: int | None
    """How often it makes a snapshot, or None when time is no reason for one."""
    on_change: bool
    """Whether it makes one after something changed."""
    snapshots: int
    """How many it has made."""
    last_snapshot: str | None
    last_error: str | None
    """Why its last attempt at a snapshot failed, or None."""
    why_lost: str | None
    """Why it gave up what it knew and began anew, the last time; or None."""
