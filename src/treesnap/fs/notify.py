"""The kernel's reports of changes, by inotify(7). The only module that imports inotify_simple.

A notifier is one queue. The kernel puts a report into it before the system call returns
that made the change, so that all reports are in the order of the changes, whatever
directories they are of.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections import deque
from contextlib import suppress
from typing import NamedTuple, Protocol

CLOSED = 0x8
"""IN_CLOSE_WRITE: what was open for writing is closed, and mapped no more."""
CHANGED = 0x2 | 0x4 | CLOSED
"""With IN_MODIFY and IN_ATTRIB."""
MOVED_FROM, MOVED_TO, CREATED, DELETED = 0x40, 0x80, 0x100, 0x200
SELF_GONE = 0x400 | 0x800
"""IN_DELETE_SELF and IN_MOVE_SELF: asked for with roots only."""
UNMOUNTED, OVERFLOWED, IGNORED = 0x2000, 0x4000, 0x8000
IS_DIRECTORY = 0x40000000
NAMES = CHANGED | MOVED_FROM | MOVED_TO | CREATED | DELETED
_ONLY_DIRECTORIES = 0x01000000
_READ_SIZE = 64 << 10
_UNREAD_MAX = 1024
"""Pieces that are read and not taken; with more, the kernel's queue may overflow."""


class Report(NamedTuple):
    """One change."""

    watch: int
    """The number of the watch that saw it, or -1 for what concerns the queue."""
    mask: int
    name: bytes
    """The name in the watched directory, or nothing for the directory itself."""


class Notifier(Protocol):
    """A queue of reports."""

    def watch(self, fd: int, mask: int) -> int:
        """Watches the directory that is open as ``fd``; returns the watch's number.

        A directory has one watch: the same number comes again. Raises OSError, with ENOSPC
        when the user may have no more watches.
        """

    def unwatch(self, watch: int) -> None:
        """Ends a watch, if it has not ended by itself."""

    def take(self) -> list[Report]:
        """Takes some of the reports that are there, in order; none when there are none."""

    def wait(self, timeout_s: float) -> bool:
        """Waits until there are reports to take; returns whether there are.

        Another thread may close the queue meanwhile, and before.
        """

    def close(self) -> None:
        """Ends all watches."""


class KernelNotifier:
    """Implements :class:`Notifier`. Raises OSError where the kernel has no such thing."""

    def __init__(self) -> None:
        import inotify_simple  # type: ignore[import-untyped]  # none

        if inotify_simple._libc is None:  # noqa: SLF001 - or it runs ldconfig to find the library
            inotify_simple._libc = ctypes.CDLL(None, use_errno=True)  # noqa: SLF001 - as above
        self._queue = inotify_simple.INotify(nonblocking=True)
        self._fd: int = self._queue.fileno()
        self._parse = inotify_simple.parse_events
        self._unread: deque[bytes] = deque()

    def watch(self, fd: int, mask: int) -> int:
        """Watches an open directory."""
        flags = mask | _ONLY_DIRECTORIES
        # The path through /proc leads to what is open, wherever that has gone, at any depth.
        number: int = self._queue.add_watch(f"/proc/self/fd/{fd}", flags)
        return number

    def unwatch(self, watch: int) -> None:
        """Ends a watch."""
        with suppress(OSError):  # it ended with its directory
            self._queue.rm_watch(watch)

    def take(self) -> list[Report]:
        """Takes some reports; empties the kernel's queue first, because it overflows."""
        with suppress(BlockingIOError):
            while len(self._unread) < _UNREAD_MAX:
                self._unread.append(os.read(self._fd, _READ_SIZE))
        if not self._unread:
            return []
        events = self._parse(self._unread.popleft())
        return [Report(event.wd, event.mask, os.fsencode(event.name)) for event in events]

    def wait(self, timeout_s: float) -> bool:
        """Waits until there are reports to take, or the queue is closed."""
        if self._unread:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def close(self) -> None:
        """Ends all watches."""
        self._queue.close()
