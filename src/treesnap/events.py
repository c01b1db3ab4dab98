"""How the library reports progress without printing.

Operations take a :class:`Monitor`. They call it rarely, about once per directory and never per
file, so a slow one costs little; and never from two threads at once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from treesnap.errors import WarningCode


class Phase(StrEnum):
    """What a long operation is doing."""

    SCAN = "scan"
    STAGE = "stage"
    APPLY = "apply"
    TIDY = "tidy"
    """A restore is done; what it put aside is removed."""
    MARK = "mark"
    REWRITE = "rewrite"
    VERIFY = "verify"
    PUSH = "push"
    FETCH = "fetch"
    COPY = "copy"


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
