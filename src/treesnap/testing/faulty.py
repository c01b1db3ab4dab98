"""A file system that fails on purpose, or dies.

A :class:`Fault` says which call fails, how, and whether its effect happens all the
same: an error may be reported for something that was done, and a process may die
before, after, and for a write also in the middle of a call.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from treesnap.fs.base import FileSystem
from treesnap.testing.wrapped import MUTATING, Call, Kind, WrappedFileSystem


class Killed(BaseException):
    """The process was killed, as far as the code under test can tell.

    No ``except Exception`` catches it. Whoever does catch it finds that nothing can
    be changed any more.
    """


class FaultMoment(StrEnum):
    """When a call fails, seen from its effect."""

    BEFORE = "before"
    HALFWAY = "halfway"
    """Half of what is written arrives; the same as BEFORE for all other calls."""
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which calls fail, and how."""

    number: int = 1
    """Which of the calls that match fails; 1 is the first."""
    errno: int | None = None
    """The error that is raised; None kills the process."""
    methods: frozenset[str] = frozenset()
    """Methods that are counted; all when this and ``kinds`` are empty."""
    kinds: frozenset[Kind] = frozenset()
    """Kinds of calls that are counted, beside the methods."""
    where: Callable[[Call], bool] | None = None
    """Which of those calls are counted; None counts them all."""
    lasting: bool = False
    """Whether all later calls that match fail too."""
    moment: FaultMoment = FaultMoment.BEFORE

    def matches(self, call: Call) -> bool:
        """Returns whether a call is one of those that are counted."""
        wanted = not (self.methods or self.kinds)
        wanted = wanted or call.method in self.methods or call.kind in self.kinds
        return wanted and (self.where is None or self.where(call))


def kill_at(number: int) -> Fault:
    """Returns the fault that kills the process before its n-th call that changes the disk."""
    return Fault(number=number, kinds=MUTATING)


def kill_halfway(number: int) -> Fault:
    """Returns the fault that kills the process in the middle of its n-th write."""
    return Fault(number=number, kinds=frozenset({Kind.WRITE}), moment=FaultMoment.HALFWAY)


def error_at(number: int, errno: int, *, lasting: bool = False) -> Fault:
    """Returns the fault that makes the n-th call fail that changes or syncs the disk."""
    return Fault(number=number, errno=errno, kinds=MUTATING | {Kind.SYNC}, lasting=lasting)


class FaultyFileSystem(WrappedFileSystem):
    """Lets faults happen.

    ``on_kill`` runs at the moment of death; by default it raises :class:`Killed`.
    After that every call raises Killed again, but descriptors can still be closed
    and locks given back, as the kernel does for the dead. Pass a function that calls
    ``os._exit`` in a forked child to die indeed.
    """

    def __init__(
        self,
        *faults: Fault,
        inner: FileSystem | None = None,
        on_kill: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(inner)
        self._faults = faults
        self._on_kill = on_kill
        self._seen: Counter[int] = Counter()
        self._hits: Counter[int] = Counter()
        self.is_dead = False

    def around(self, call: Call) -> Any:
        """Makes the call, unless it is its turn to fail."""
        if self.is_dead and call.kind != Kind.HANDLE:
            raise Killed
        for position, fault in enumerate(self._faults):
            if not fault.matches(call):
                continue
            self._seen[position] += 1
            seen = self._seen[position]
            if seen == fault.number or (fault.lasting and seen > fault.number):
                self._hits[position] += 1
                return self._fail(fault, call)
        return call.proceed()

    def hits_of(self, fault: Fault) -> int:
        """Returns how many calls a fault has made fail."""
        return self._hits[self._faults.index(fault)]

    def seen_of(self, fault: Fault) -> int:
        """Returns how many calls a fault has counted."""
        return self._seen[self._faults.index(fault)]

    def _fail(self, fault: Fault, call: Call) -> Any:
        if fault.moment == FaultMoment.AFTER:
            with suppress(OSError):  # a call that had no effect fails all the same
                result = call.proceed()
                if call.method == "open":
                    self._inner.close(result)
        elif fault.moment == FaultMoment.HALFWAY and call.data:
            self._write_half(call)
        if fault.errno is not None:
            raise OSError(fault.errno, os.strerror(fault.errno), call.path or None)
        self.is_dead = True
        if self._on_kill is not None:
            self._on_kill()
        raise Killed

    def _write_half(self, call: Call) -> None:
        fd, data, *rest = call.arguments
        half = bytes(data)[: len(data) // 2]
        if call.method == "write":
            self._inner.write(fd, half)
        else:
            self._inner.write_at(fd, half, *rest)
