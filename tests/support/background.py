"""The process that commands leave maintenance to.

It has its lock from its start to its end, so waiting for the lock is waiting for it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treesnap.core.handle import Handle


@contextmanager
def background_lock(store: Path) -> Iterator[None]:
    """Holds the lock, once the process that has it has ended."""
    with (store / "collector" / "background").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wait_for_background(store: Path) -> None:
    with background_lock(store):
        pass


def as_command(handle: Handle) -> Handle:
    """Returns a handle that may leave work to a process, as the command's."""
    return Handle(handle.context._replace(may_start_processes=True))
