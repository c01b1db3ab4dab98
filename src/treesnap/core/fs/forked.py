"""Helper processes, which do part of an operation's work on other cores.

Threads take turns at the interpreter for every system call, so two threads make files more
slowly than one. A helper shares the open files of its parent and, unlike other children, the
locks. They stay held until the helper has ended too, so its work does not count as abandoned if
it outlives its parent.

A helper only does what the parent could do itself. When it fails or is killed, it reports
nothing more, and the parent does the rest; so errors need not be passed on.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # typeshed has only the slow one
import fcntl
import io
import marshal
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import chain

from treesnap.core.fs import HAS_HELPERS
from treesnap.core.fs.posix import core_count, shared_with_children
from treesnap.core.fs.ticker import running_count
from treesnap.core.model.type_names import Any, Generic, Self, TypeVar

HELPERS_MAX = 3
_PR_SET_PDEATHSIG = 1
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A helper leaves these to its parent, and ends with it."""

_PIPE_SIZE = 1 << 20
"""Results wait in the pipe while the parent does one item; if it is full, so does the helper."""

_ENTRY = struct.Struct("H")
_QUEUE_LENGTH = 1024
_FINISHED = -1
"""Stands in the place of an item's number."""

Report = Callable[[Any], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


def helper_count() -> int:
    """Returns how many helpers are useful: one per further core, none if there are threads.

    A lock that another thread holds at the moment of a fork stays locked in the child. Threads of
    tickers do not count: they end before each fork.
    """
    if not HAS_HELPERS:
        return 0
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() - running_count() > 1:
        return 0
    return min(HELPERS_MAX, core_count() - 1)


class Work(Generic[Item, Result]):
    """What is done with an item, in this process and in a helper.

    A helper calls ``there`` for each of its items. When it has ended, ``take`` gets here what that
    returned, and ``again`` each item of which nothing was reported, which may be half done.
    ``here`` does the items of this process: all of them if no other can be started.

    With ``finish``, which a helper calls after its last item, all that it did counts or nothing:
    it counts if ``finish`` returned, and ``accept`` returns True for the items with their results
    and for what ``finish`` returned. Results have to be what :mod:`marshal` can write.
    """

    def __init__(
        self,
        *,
        here: Callable[[Item], None],
        there: Callable[[Item], Result],
        take: Callable[[Item, Result], None],
        again: Callable[[Item], None],
        finish: Callable[[], Any] | None = None,
        accept: Callable[[list[tuple[Item, Result]], Any], bool] | None = None,
    ) -> None:
        self.here = here
        self.there = there
        self.take = take
        self.again = again
        self.finish = finish
        self.accept = accept


def share_out(
    items: Sequence[Item], weight: Callable[[Item], int], helpers: int, work: Work[Item, Result]
) -> None:
    """Does the work on items in this process and in helpers; each takes the next when it is free.

    Heavy items come first, the heaviest in this process, and each helper gets one at least. An
    exception here ends the helpers first.
    """
    ordered = sorted(items, key=weight, reverse=True)
    queue = None
    if helpers and len(ordered) > 1:
        with suppress(OSError):
            queue = _Queue(len(ordered), 1 + helpers)
    if queue is None:
        for item in ordered:
            work.here(item)
        return
    left = dict(enumerate(ordered))
    own = [0]
    started: list[Helper] = []
    with closing(queue), ExitStack() as ends:

        def help_with(first: int, report: Report) -> None:
            for number in queue.work_items([first]):
                report((number, work.there(ordered[number])))
            if work.finish is not None:
                report((_FINISHED, work.finish()))

        for first in range(1, min(1 + helpers, len(ordered))):
            try:
                started.append(ends.enter_context(Helper(partial(help_with, first))))
            except OSError:
                own.append(first)
        for number in queue.work_items(own):
            work.here(left.pop(number))
            for helper in started:
                helper.receive()
        for helper in started:
            results = dict(helper.results())
            finished = results.pop(_FINISHED, None)
            done = [(left[number], result) for number, result in results.items()]
            if work.accept is not None and (finished is None or not work.accept(done, finished)):
                continue
            for number, (item, result) in zip(results, done, strict=True):
                del left[number]
                work.take(item, result)
        for item in left.values():
            work.again(item)


class _Queue:
    """The numbers of items, which several processes take, each number once.

    A pipe: each read of it is one step. It takes one page, which every pipe has; where there are
    more items, an entry stands for several, as heavy together as those of any other entry.
    """

    def __init__(self, count: int, taken: int) -> None:
        """Makes a queue without the first entries, which are ``taken``; raises OSError."""
        self._count = count
        self._entry_count = min(count, _QUEUE_LENGTH)
        self._read_fd, write_fd = os.pipe()
        try:
            os.write(write_fd, b"".join(map(_ENTRY.pack, range(taken, self._entry_count))))
        finally:
            os.close(write_fd)

    def work_items(self, taken: Sequence[int]) -> Iterator[int]:
        """Yields the numbers of entries that are taken, and then of all that this process takes."""
        for entry in chain(taken, iter(self._take, None)):
            yield from range(entry, self._count, self._entry_count)

    def _take(self) -> int | None:
        data = os.read(self._read_fd, _ENTRY.size)
        return _ENTRY.unpack(data)[0] if data else None

    def close(self) -> None:
        """Closes the queue, in this process."""
        os.close(self._read_fd)


class Helper:
    """A forked process that starts to work at once. Leaving the block ends it, done or not.

    ``work`` gets a function that sends values to :meth:`results`. Raises OSError if no process
    can be started.
    """

    def __init__(self, work: Callable[[Report], None]) -> None:
        self._read_fd, write_fd = os.pipe()
        if sys.platform == "linux":
            with suppress(OSError):  # the user's pipes take no more memory
                fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        os.set_blocking(self._read_fd, False)
        self._received = bytearray()
        self._has_ended = False
        parent = os.getpid()
        # The child must not be interrupted where it would run the parent's clean-up.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            with shared_with_children():
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

    def receive(self) -> None:
        """Makes room in the pipe for what the helper sends; does not wait."""
        with suppress(BlockingIOError):
            while data := os.read(self._read_fd, _PIPE_SIZE):
                self._received += data

    def results(self) -> list[Any]:
        """Returns the values that the helper sent whole, once it has ended."""
        os.set_blocking(self._read_fd, True)
        self.receive()
        reports = io.BytesIO(self._received)
        reported = []
        with suppress(EOFError):
            while True:
                reported.append(marshal.load(reports))  # noqa: S302  # written by our own child
        self._has_ended = True
        return reported


def _work_as_child(work: Callable[[Report], None], parent: int, write_fd: int) -> None:
    """Does the work and ends this process, without running any of the parent's clean-up."""
    try:
        _end_with_parent(parent)
        work(lambda value: _send(write_fd, marshal.dumps(value)))
    finally:
        os._exit(0)


def _send(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends for any reason."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
