"""Part of an operation's work in another process, on another core.

Threads take turns at the interpreter for every system call, so that two of them make
files more slowly than one. A process that is forked here has all that its parent had: open
files, and the locks, too, which other children lack. They stay held until it ends as well, so
that the work of one that outlived its parent does not count as abandoned.

What is done in it has to be what the parent could do itself: a helper that fails or is
killed says nothing, and the parent does what was not reported. So no error has to travel.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Self, TypeVar

from treesnap.fs import locks

HELPERS_MAX = 3
_PR_SET_PDEATHSIG = 1
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a helper leaves to its parent, with whom it ends."""

Report = Callable[[bytes], None]
Item = TypeVar("Item")


def helper_count() -> int:
    """Returns how many helpers are of use: one for each further core, none beside threads.

    A lock that another thread holds at the moment of a fork stays locked in the child.
    """
    if sys.platform != "linux":
        return 0
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        return 0
    return min(HELPERS_MAX, len(os.sched_getaffinity(0)) - 1)


def share_out(
    shares: Sequence[Item],
    weights: Sequence[int],
    helpers: int,
    *,
    work: Callable[[list[Item]], None],
    help_with: Callable[[list[Item], Report], None],
    take: Callable[[list[Item], bytes], None],
) -> None:
    """Does the work on some shares here and in so many helpers, each with about the same weight.

    ``help_with`` is called in a helper with its shares. ``take`` is called here for each that
    has ended, with its shares and all that it reported. ``work`` is called here with the shares
    that have no helper, which are all where no process can be started. Whatever is raised
    here ends the helpers first.
    """
    own, *piles = _dealt(shares, weights, helpers + 1)
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


def _dealt(shares: Sequence[Item], weights: Sequence[int], piles: int) -> list[list[Item]]:
    """Returns all shares in piles of about the same weight."""
    found: list[list[Item]] = [[] for _ in range(piles)]
    sums = [0] * piles
    for number in sorted(range(len(shares)), key=lambda number: -weights[number]):
        lightest = sums.index(min(sums))
        found[lightest].append(shares[number])
        sums[lightest] += weights[number]
    return found


class Helper:
    """A forked process that works at once. Leaving the block ends it, done or not.

    ``work`` gets a function that sends bytes to :meth:`reports`. Raises OSError when
    there can be no further process.
    """

    def __init__(self, work: Callable[[Report], None]) -> None:
        self._read_fd, write_fd = os.pipe()
        self._has_ended = False
        parent = os.getpid()
        # An interrupt must not reach the child before it is where nothing is cleaned up.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            with locks.shared_with_children():
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
        """Returns what the helper sent, when it has ended."""
        pieces = []
        while piece := os.read(self._read_fd, 1 << 16):
            pieces.append(piece)
        self._has_ended = True
        return b"".join(pieces)


def _work_as_child(work: Callable[[Report], None], parent: int, write_fd: int) -> None:
    """Does the work and ends this process; never returns, and runs nothing else of it."""
    try:
        _end_with_parent(parent)
        work(lambda data: _send(write_fd, data))
    finally:
        os._exit(0)


def _send(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _end_with_parent(parent: int) -> None:
    """Lets the kernel kill this process when its parent ends, however that comes."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
