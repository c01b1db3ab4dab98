"""Which files this process has open, on each system."""

from __future__ import annotations

import os
from contextlib import suppress

_LISTED = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


def open_descriptors() -> list[str]:
    """Returns the numbers of the open files, and of the one that lists them."""
    return sorted(os.listdir(_LISTED))


def descriptors_of(path: str | os.PathLike[str]) -> int:
    """Returns how many descriptors this process has of a file."""
    status = os.stat(path)
    count = 0
    for name in open_descriptors():
        with suppress(OSError):  # it is the one that listed them
            count += os.path.samestat(os.fstat(int(name)), status)
    return count
