"""Which processes have which files open, by proc_pid_fd(5)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_DESCRIPTORS_MAX = 50_000
"""How many descriptors are looked at, at some 2 microseconds each."""


class Descriptor(NamedTuple):
    """A file that a process has open."""

    process_id: int
    link: str
    """Path through which the kernel leads to the file, whatever its name."""


def descriptors() -> Iterator[Descriptor]:
    """Yields the open files of all processes that may be looked into, this one's as well.

    Those are the user's own, and for root everybody's; none where processes are not shown.
    Ends after the first 50,000.
    """
    count = 0
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with suppress(OSError):  # it has ended, or is not shown
                for number in os.listdir(f"/proc/{name}/fd"):
                    count += 1
                    if count > _DESCRIPTORS_MAX:
                        return
                    yield Descriptor(int(name), f"/proc/{name}/fd/{number}")


def program_of(process_id: int) -> str:
    """Returns the name of the program that a process runs, or a question mark."""
    try:
        fd = os.open(f"/proc/{process_id}/comm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "?"
    try:
        return os.read(fd, 100).decode("utf-8", "replace").strip()
    except OSError:
        return "?"
    finally:
        os.close(fd)
