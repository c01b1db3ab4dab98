"""Progress of one operation, as a bar on a terminal.

Invariants: rich is imported after an operation has lasted for ``DELAY_S``, so that short
commands do not pay for it. Only the ticks draw, in a thread of their own, so that time moves on
during one long call: a sync, a request, the reading of one huge file. That thread alone touches
the bar, or has ended (``Ticker.stop``) before the main thread does; so no lock guards the bar, and
none can be held while a process is forked (``fs.ticker`` ends the thread before each fork). The
invocation decides whether a bar is wanted at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from treesnap.core.fs.ticker import Ticker
from treesnap.core.model.errors import WarningCode
from treesnap.core.model.events import NullMonitor, Phase
from treesnap.core.model.quantities import count_text, size_text
from treesnap.core.model.type_names import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

DELAY_S = 0.5
"""How long an operation lasts before its bar appears."""
REFRESH_S = 0.1
"""How long the bar stays as it is."""


class Ticks(Protocol):
    """What calls :meth:`ProgressMonitor.tick` again and again."""

    def start(self) -> None:
        """Begins to tick, unless it does already."""

    def stop(self) -> None:
        """Ends ticking; no tick is under way afterwards."""


PHASE_WORDS = {
    Phase.SCAN: "Reading",
    Phase.STAGE: "Preparing",
    Phase.SYNC: "Saving to disk",
    Phase.APPLY: "Replacing",
    Phase.TIDY: "Tidying up",
    Phase.MARK: "Marking",
    Phase.REWRITE: "Rewriting",
    Phase.VERIFY: "Verifying",
    Phase.PUSH: "Sending",
    Phase.FETCH: "Fetching",
    Phase.COPY: "Copying",
    Phase.ARCHIVE: "Archiving",
}
_UNITS = dict.fromkeys(
    (Phase.MARK, Phase.REWRITE, Phase.VERIFY, Phase.PUSH, Phase.FETCH), "objects"
)
"""What is counted instead of files."""
_UNCOUNTED = (Phase.SYNC, Phase.TIDY)
"""Phases that tell nothing on their way."""


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
    """Shows phase, files, bytes, rate, time so far and time left once an operation takes long.

    ``clock`` gives seconds; ``make_console`` gives the terminal to draw on, and ``make_ticks`` what
    calls :meth:`tick` from the first phase on. ``ask`` asks a person whether to go on with a large
    root; without it, that is a warning. The answer no ends the operation as Ctrl-C does.
    """

    def __init__(
        self,
        warn: Callable[[WarningCode, str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        delay_s: float = DELAY_S,
        make_console: Callable[[], Console] | None = None,
        make_ticks: Callable[[Callable[[], None]], Ticks] | None = None,
        ask: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__(warn)
        self._ask = ask
        self._clock = clock
        self._visible_from = clock() + delay_s
        self._make_console = make_console or _console_of_stderr
        self._ticks = (make_ticks or _ticks_of_thread)(self.tick)
        self._is_ticking = False
        self._bar: Progress | None = None
        self._running = _RunningPhase(Phase.SCAN, None, None, clock())
        self._shown: _RunningPhase | None = None
        """The phase that the bar is about."""

    @property
    def is_visible(self) -> bool:
        """Whether the bar is on the terminal."""
        return self._bar is not None

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        """Starts counting from nothing; the next tick shows the new phase."""
        super().begin(phase, files, size_bytes)
        self._running = _RunningPhase(phase, files, size_bytes, self._clock())
        self._is_ticking = True
        self._ticks.start()

    def advance(self, files: int, size_bytes: int) -> None:
        """Counts; the next tick shows it."""
        self._running.files += files
        self._running.size_bytes += size_bytes

    def tick(self) -> None:
        """Draws the bar, once the operation has lasted long enough for one."""
        if self._clock() >= self._visible_from:
            with suppress(OSError):  # losing the terminal ends no work
                self._draw(self._running)

    def warn(self, code: WarningCode, message: str) -> None:
        """Passes the warning on, above the bar if there is one."""
        self._ticks.stop()
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()
        if code is WarningCode.ROOT_LARGE and self._ask is not None:
            if not self._ask(message):
                declined = KeyboardInterrupt("Nothing was captured")
                declined.add_note("'snap config ask-above SIZE' says from which size on it asks")
                raise declined
        else:
            self._warn(code, message)
        if self._is_ticking:
            self._ticks.start()

    def close(self) -> None:
        """Takes the bar off the terminal, until the next phase begins."""
        self._is_ticking = False
        self._ticks.stop()
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()
            self._bar = None

    def _draw(self, running: _RunningPhase) -> None:
        if self._bar is None:
            self._bar = _new_bar(self._make_console(), self._clock)
            self._shown = None
        if running is not self._shown:  # a task cannot lose its total, so each phase has its own
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            words = PHASE_WORDS[running.phase]
            self._bar.add_task(words, total=running.total, amounts="", lasted="")
            self._shown = running
        now_s = self._clock()
        self._bar.update(
            self._bar.task_ids[0],
            completed=running.done,
            amounts=running.amounts_text(now_s),
            lasted=running.lasted_text(now_s),
        )
        self._bar.start()  # only once
        self._bar.refresh()


class _RunningPhase:
    """A phase and how far it is. A new one begins with a new object, so that no tick mixes two."""

    def __init__(
        self, phase: Phase, files_total: int | None, bytes_total: int | None, began_s: float
    ) -> None:
        self.phase = phase
        self._files_total, self._bytes_total = files_total, bytes_total
        self._began_s = began_s
        self.files = self.size_bytes = 0

    @property
    def total(self) -> int | None:
        """What a full bar means: bytes, files where no bytes are expected, or nothing known."""
        return self._bytes_total if self._bytes_total is not None else self._files_total

    @property
    def done(self) -> int:
        """How much of ``total`` is done."""
        return self.size_bytes if self._bytes_total is not None else self.files

    def lasted_text(self, now_s: float) -> str:
        """Returns how long the phase has lasted, as hours, minutes and seconds."""
        minutes, seconds = divmod(int(now_s - self._began_s), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}"

    def amounts_text(self, now_s: float) -> str:
        """Returns files, bytes and rate; totals and bytes only when they are known."""
        if self.phase in _UNCOUNTED:
            return ""
        unit = _UNITS.get(self.phase, "files")
        if self._files_total is not None:
            files = f"{self.files:,} of {self._files_total:,} {unit}"
        else:
            files = count_text(self.files, unit.removesuffix("s"))
        if not self.size_bytes and self._bytes_total is None:
            return files
        size = size_text(self.size_bytes)
        if self._bytes_total is not None:
            size += f" of {size_text(self._bytes_total)}"
        lasted_s = now_s - self._began_s
        rate = f"  {size_text(int(self.size_bytes / lasted_s))}/s" if lasted_s > 0 else ""
        return f"{files}  {size}{rate}"


def _ticks_of_thread(tick: Callable[[], None]) -> Ticks:
    return Ticker(tick, REFRESH_S)


def _console_of_stderr() -> Console:
    from rich.console import Console

    class ConsoleWithCursor(Console):
        """Never hides the cursor: a command that is killed could not show it again."""

        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002, FBT001, FBT002 - rich's
            return False

    return ConsoleWithCursor(stderr=True)


def _new_bar(console: Console, clock: Callable[[], float]) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[amounts]}"),
        TextColumn("{task.fields[lasted]}", style="progress.elapsed"),
        TimeRemainingColumn(),
        console=console,
        get_time=clock,
        transient=True,
        auto_refresh=False,  # the ticks refresh it: its own thread would not end before a fork
    )
