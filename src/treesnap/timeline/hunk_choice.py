"""The hunks of a file to choose from, and how they are shown; nothing is restored here."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from treesnap.core.diff.texts import lines_of_hunk, split_lines
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import count_text
from treesnap.core.model.results import FileHunks, Hunk
from treesnap.timeline.patch_text import LINES_MAX, patch_lines

HUNKS_SHOWN_MAX = 5
"""Hunks that a plan lists; the others are counted."""


class HunkChoice:
    """Which hunks of a file are marked, and which one the keys are about."""

    def __init__(self, found: FileHunks) -> None:
        self.found = found
        self.marked: set[int] = set()
        self.current: int = 0
        lines, starts = list[bytes](), list[int]()
        for hunk in found.hunks:
            starts.append(len(lines))
            lines += _patch(hunk)
            if len(lines) > LINES_MAX:
                break
        self.lines: list[Text] = patch_lines(lines, found.path)
        """What the pane shows: for each hunk a heading, and its lines as a restore changes them."""
        self._starts = [start for start in starts if start < LINES_MAX]
        for number in range(len(self._starts)):
            self._show_heading(number)

    @property
    def line(self) -> int:
        """The line on which the current hunk begins."""
        return self._starts[self.current]

    def move(self, hunks: int) -> None:
        """Makes another hunk the current one, as far as there are some."""
        old, self.current = self.current, self.current + hunks
        self.current = max(0, min(self.current, len(self._starts) - 1))
        self._show_heading(old)
        self._show_heading(self.current)

    def mark(self) -> None:
        """Marks the current hunk to be restored, or not any more."""
        self.marked ^= {self.current}
        self._show_heading(self.current)

    def plan(self) -> list[str]:
        """Returns what a restore of the marked ones would do, as a dialog says it."""
        chosen = [self.found.hunks[number] for number in sorted(self.marked)]
        removed = sum(len(hunk.live_lines) for hunk in chosen)
        added = sum(len(hunk.snapshot_lines) for hunk in chosen)
        of_all = f"{len(chosen)} of {count_text(len(self.found.hunks), 'hunk')}"
        lines = [
            f"in {printable(self.found.path)}:",
            f"  {of_all}, {count_text(added, 'line')} added, {removed:,} removed",
            "",
            *(f"  {_place(hunk)}" for hunk in chosen[:HUNKS_SHOWN_MAX]),
        ]
        if len(chosen) > HUNKS_SHOWN_MAX:
            lines.append(f"  and {count_text(len(chosen) - HUNKS_SHOWN_MAX, 'hunk')} more")
        return [*lines, "", "All other lines stay.", "The state before is kept: u undoes it."]

    def _show_heading(self, number: int) -> None:
        box = "[x]" if number in self.marked else "[ ]"
        hunk = self.found.hunks[number]
        text = f"{box} hunk {number + 1} of {len(self.found.hunks)}, {_place(hunk)}"
        style = "bold reverse" if number == self.current else "cyan"
        self.lines[self._starts[number]] = Text(text, style)


def _place(hunk: Hunk) -> str:
    return f"line {hunk.live_start + 1}: +{len(hunk.snapshot_lines)} -{len(hunk.live_lines)}"


def _patch(hunk: Hunk) -> Iterator[bytes]:
    """Yields the lines of a heading and of a patch from the live file to the snapshot."""
    for piece in lines_of_hunk(hunk):
        yield from split_lines(piece)
