"""Progress of one operation, as a bar on a terminal.

Invariant: rich is imported after an operation has lasted for ``DELAY_S``, so that short
commands do not pay for it. The invocation decides whether a bar is wanted at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from treesnap.errors import WarningCode
from treesnap.events import NullMonitor, Phase
from treesnap.quantities import size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

DELAY_S = 0.5
"""How long an operation lasts before its bar appears."""
REFRESH_S = 0.1
"""How long the bar stays as it is."""

PHASE_WORDS = {
    Phase.SCAN: "Reading",
    Phase.STAGE: "Preparing",
    Phase.APPLY: "Replacing",
    Phase.TIDY: "Tidying up",
    Phase.MARK: "Marking",
    Phase.REWRITE: "Rewriting",
    Phase.VERIFY: "Verifying",
    Phase.PUSH: "Sending",
    Phase.FETCH: "Fetching",
    Phase.COPY: "Copying",
}
_UNITS = dict.fromkeys(
    (Phase.MARK, Phase.REWRITE, Phase.VERIFY, Phase.PUSH, Phase.FETCH), "objects"
)
"""What is counted instead of files."""


class WarningMonitor(NullMonitor):
    """Passes warnings on and shows no progress."""

    def __init__(self, warn: Callable[[WarningCode, str], None]) -> None:
        self._warn = warn
        self.when_committed: Callable[[], None] | None = None
        """Called when a restore begins to change files; from then on it completes."""
        self.when_restored: Callable[[], None] | None = None
        """Called when a restore is done and has only to tidy up."""

    def begin(
        self,
        phase: Phase,
        files: int | None,  # noqa: ARG002 - the signature is Monitor's
        size_bytes: int | None,  # noqa: ARG002 - likewise
    ) -> None:
        """Shows nothing."""
        if phase is Phase.APPLY and self.when_committed is not None:
            self.when_committed()
        if phase is Phase.TIDY and self.when_restored is not None:
            self.when_restored()

    def warn(self, code: WarningCode, message: str) -> None:
        """Passes the warning on."""
        self._warn(code, message)

    def close(self) -> None:
        """Does nothing: there is nothing on the terminal."""


class ProgressMonitor(WarningMonitor):
    """Shows files, bytes, rate and time left once an operation takes long.

    ``clock`` gives seconds; ``make_console`` gives the terminal to draw on.
    """

    def __init__(
        self,
        warn: Callable[[WarningCode, str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        delay_s: float = DELAY_S,
        make_console: Callable[[], Console] | None = None,
    ) -> None:
        super().__init__(warn)
        self._clock = clock
        self._phase_from = clock()
        self._visible_from = self._phase_from + delay_s
        self._make_console = make_console or _console_of_stderr
        self._drawn_at = 0.0
        self._bar: Progress | None = None
        self._phase = Phase.SCAN
        self._files_total: int | None = None
        self._bytes_total: int | None = None
        self._files = 0
        self._bytes = 0

    @property
    def is_visible(self) -> bool:
        """Whether the bar is on the terminal."""
        return self._bar is not None

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        """Starts counting from nothing; a visible bar changes to the new phase."""
        super().begin(phase, files, size_bytes)
        self._phase = phase
        self._phase_from = self._clock()
        self._files_total, self._bytes_total = files, size_bytes
        self._files = self._bytes = 0
        if self._bar is not None:
            self._bar.reset(self._bar.task_ids[0], total=size_bytes)
            self._draw()

    def advance(self, files: int, size_bytes: int) -> None:
        """Counts, and draws the bar when it is time for one."""
        self._files += files
        self._bytes += size_bytes
        now = self._clock()
        if self._bar is None:
            is_due = now >= self._visible_from
        else:
            is_due = not 0 <= now - self._drawn_at < REFRESH_S
        if is_due:
            with suppress(OSError):  # losing the terminal ends no work
                self._draw()

    def warn(self, code: WarningCode, message: str) -> None:
        """Passes the warning on, above the bar if there is one."""
        if self._bar is None:
            self._warn(code, message)
        else:
            self._bar.stop()
            self._warn(code, message)
            self._bar.start()

    def close(self) -> None:
        """Takes the bar off the terminal."""
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()
            self._bar = None

    def _draw(self) -> None:
        if self._bar is None:
            self._bar = _new_bar(self._make_console(), self._clock)
            self._bar.add_task("", total=self._bytes_total, amounts="")
        self._bar.update(
            self._bar.task_ids[0],
            description=PHASE_WORDS[self._phase],
            completed=self._bytes,
            amounts=self._amounts_text(),
        )
        self._bar.start()  # only once
        self._bar.refresh()
        self._drawn_at = self._clock()

    def _amounts_text(self) -> str:
        """Returns files, bytes and rate; totals only when they are known."""
        files = f"{self._files:,}"
        if self._files_total is not None:
            files += f" of {self._files_total:,}"
        size = size_text(self._bytes)
        if self._bytes_total is not None:
            size += f" of {size_text(self._bytes_total)}"
        lasted_s = self._clock() - self._phase_from
        rate = f"  {size_text(int(self._bytes / lasted_s))}/s" if lasted_s > 0 else ""
        return f"{files} {_UNITS.get(self._phase, 'files')}  {size}{rate}"


def _console_of_stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _new_bar(console: Console, clock: Callable[[], float]) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[amounts]}"),
        TimeRemainingColumn(),
        console=console,
        get_time=clock,
        transient=True,
        auto_refresh=False,  # its thread would prevent forking helpers (fs.forked)
    )
