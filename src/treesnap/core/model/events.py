"""How the library reports progress without printing.

Operations take a :class:`Monitor`. They call it rarely, about once per directory and every few MiB
of a large file, never per small file, so a slow one costs little; and never from two threads at
once.
"""

from __future__ import annotations

from enum import StrEnum

from treesnap.core.model.errors import WarningCode
from treesnap.core.model.type_names import Protocol


class Phase(StrEnum):
    """What a long operation is doing."""

    SCAN = "scan"
    STAGE = "stage"
    SYNC = "sync"
    """What was written is made durable: one long call, which tells nothing on its way."""
    APPLY = "apply"
    TIDY = "tidy"
    """A restore is done; what it put aside is removed."""
    MARK = "mark"
    REWRITE = "rewrite"
    VERIFY = "verify"
    PUSH = "push"
    FETCH = "fetch"
    COPY = "copy"
    ARCHIVE = "archive"


class Monitor(Protocol):
    """Receives progress and warnings of one operation."""

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        """A phase begins; the totals are estimates, or None when unknown."""

    def advance(self, files: int, size_bytes: int) -> None:
        """So many more files and bytes are done in the current phase."""

    def warn(self, code: WarningCode, message: str) -> None:
        """Something that the user should know, for example a recovery: a sentence of facts."""


class NullMonitor:
    """Ignores everything."""

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        """Ignores the phase."""

    def advance(self, files: int, size_bytes: int) -> None:
        """Ignores the progress."""

    def warn(self, code: WarningCode, message: str) -> None:
        """Ignores the warning."""


ADVANCE_SIZE = 4 << 20
"""Bytes of large files after which progress is reported."""


class LargeFileProgress:
    """Tells a monitor of bytes while large files are read or written, every ``ADVANCE_SIZE``.

    The whole of what was done, these bytes included, is told at the end of a directory or a part.
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._pending = 0
        self._told = 0

    def count(self, size_bytes: int) -> None:
        """Counts bytes of a large file."""
        self._pending += size_bytes
        if self._pending >= ADVANCE_SIZE:
            self._monitor.advance(0, self._pending)
            self._told += self._pending
            self._pending = 0

    def advance(self, files: int, size_bytes: int) -> None:
        """So many files and bytes are done, among them the bytes that were counted."""
        self._monitor.advance(files, max(0, size_bytes - self._told))
        self._told = self._pending = 0


class CollectingMonitor(NullMonitor):
    """Keeps the warnings; for programs that log them."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.codes: list[WarningCode] = []
        """The codes of ``warnings``, in the same order."""

    def warn(self, code: WarningCode, message: str) -> None:
        """Keeps the warning."""
        self.codes.append(code)
        self.warnings.append(message)
