"""Part of an operation's work in another process, on another core.

Threads take turns at the interpreter for every system call, so two threads make files more
slowly than one. A process that is forked here shares the open files of its parent and, unlike
other children, the locks. They stay held until the child has ended too, so that its work does
not count as abandoned if it outlives its parent.

A helper only does what the parent could do itself. When it fails or is killed, it reports
nothing more, and the parent does the rest; so no error is passed on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Self, TypeVar

from treesnap.fs import held_locks

HELPERS_MAX = 3
_PR_SET_PDEATHSIG = 1
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A helper leaves these to its parent, and ends with it."""

Report = Callable[[bytes], None]
Item = TypeVar("Item")


def helper_count() -> int:
    """Returns how many helpers are useful: one per further core, none if there are threads.

    A lock that another thread holds at the moment of a fork stays locked in the child.
    """
    if sys.platform != "linux":
        return 0
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return 0
    return min(HELPERS_MAX, len(os.sched_getaffinity(0)) - 1)


def share_out(
    items: Sequence[Item],
    weights: Sequence[int],
    helpers: int,
    *,
    work: Callable[[list[Item]], None],
    help_with: Callable[[list[Item], Report], None],
    take: Callable[[list[Item], bytes], None],
) -> None:
    """Does the work on items in this process and in helpers, each with about the same weight.

    ``help_with`` is called in a helper with its items. ``take`` is called here for each helper
    that has ended, with its items and all that it reported. ``work`` is called here with the
    items that have no helper: all of them if no process can be started. An exception here ends
    the helpers first.
    """
    own, *piles = _dealt(items, weights, helpers + 1)
    with ExitStack() as ends:
        helped = []
        left = [own]
        for pile in piles:
            try:
                helper = ends.enter_context(Helper(partial(help_with, pile)))
            except OSError:
                left.append(pile)
            else:
                helped.append((pile, helper))
        for pile in left:
            work(pile)
        for pile, helper in helped:
            take(pile, helper.reports())


def _dealt(items: Sequence[Item], weights: Sequence[int], piles: int) -> list[list[Item]]:
    """Returns all items in piles of about the same weight."""
    found: list[list[Item]] = [[] for _ in range(piles)]
    sums = [0] * piles
    for number in sorted(range(len(items)), key=lambda number: -weights[number]):
        lightest = sums.index(min(sums))
        found[lightest].append(items[number])
        sums[lightest] += weights[number]
    return found


class Helper:
    """A forked process that starts to work at once. Leaving the block ends it, done or not.

    ``work`` gets a function that sends bytes to :meth:`reports`. Raises OSError when
    no process can be started.
    """

    def __init__(self, work: Callable[[Report], None]) -> None:
        self._read_fd, write_fd = os.pipe()
        self._has_ended = False
        parent = os.getpid()
        # The child must not be interrupted where it would run the parent's clean-up.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            with held_locks.shared_with_children():
                self._process = os.fork()
            if self._process == 0:
                _work_as_child(work, parent, write_fd)
        except OSError:
            os.close(self._read_fd)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(write_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._read_fd)
        if not self._has_ended:
            with suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
        with suppress(ChildProcessError):  # the program waits for all of its children itself
            os.waitpid(self._process, 0)

    def reports(self) -> bytes:
        """Waits until the helper has ended; returns what it sent."""
        pieces = []
        while piece := os.read(self._read_fd, 1 << 16):
            pieces.append(piece)
        self._has_ended = True
        return b"".join(pieces)


def _work_as_child(work: Callable[[Report], None], parent: int, write_fd: int) -> None:
    """Does the work and ends this process, without running any of the parent's clean-up."""
    try:
        _end_with_parent(parent)
        work(lambda data: _send(write_fd, data))
    finally:
        os._exit(0)


def _send(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, in whatever way."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
