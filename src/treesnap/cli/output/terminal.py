"""What a person sees on a terminal: colours, tables that fit, how long ago; pure.

In a pipe there is none of it: text is as wide as it is, and times are times.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import time_text

NARROW = 60
"""Columns below which a table leaves out what can be done without."""
_DAY_S = 86_400
_ELLIPSIS = "…"


class Style(StrEnum):
    """What a text means; the value is how a terminal is told (SGR).

    The colours are those of the terminal's own palette, which fit its background.
    """

    ADDED = "32"
    REMOVED = "31"
    CHANGED = "33"
    PLACE = "36"
    """Where something is: a line in a file, a path."""
    HERE = "1;36"
    """Where the tree stands in its history."""
    HEADING = "1"
    DIM = "2"
    ADDED_WORD = "32;7"
    REMOVED_WORD = "31;7"


def styled(text: str, style: Style) -> str:
    """Returns a text in a style; an empty one as it is."""
    return f"\x1b[{style!s}m{text}\x1b[0m" if text else ""


class Cell(NamedTuple):
    """A text in a table, and what it means."""

    text: str
    style: Style | None = None


class Terminal(NamedTuple):
    """What output is for: a terminal of some columns, or something else."""

    columns: int | None = None
    """None where it is not a terminal: lines are as long as they are."""
    has_colours: bool = False
    now_ns: int = 0

    @property
    def is_narrow(self) -> bool:
        """Whether there is room for what matters most alone."""
        return self.columns is not None and self.columns < NARROW

    def styled(self, text: str, style: Style | None) -> str:
        """Returns a text in the colour of what it means."""
        return styled(text, style) if self.has_colours and style is not None else text

    def when(self, time_ns: int) -> str:
        """Returns a time as a person says it, seen from now; in a pipe the time itself."""
        if self.columns is None:
            return time_text(time_ns)
        age_s = (self.now_ns - time_ns) // 1_000_000_000
        if age_s < 0:
            return _calendar_text(time_ns, self.now_ns)
        if age_s < 10:
            return "just now"
        if age_s < 60:
            return f"{age_s} s ago"
        if age_s < 3600:
            return f"{age_s // 60} min ago"
        if age_s < 8 * 3600:
            return f"{age_s // 3600} h ago"
        return _calendar_text(time_ns, self.now_ns)


def _calendar_text(time_ns: int, now_ns: int) -> str:
    """Returns the day, as far as it is not clear, and the time."""
    try:
        then = time.localtime(time_ns // 1_000_000_000)
    except (OverflowError, OSError):
        return time_text(time_ns)
    days = [time.localtime(now_ns // 1_000_000_000 - back * _DAY_S)[:3] for back in (0, 1)]
    clock = time.strftime("%H:%M", then)
    if then[:3] == days[0]:
        return f"today {clock}"
    if then[:3] == days[1]:
        return f"yesterday {clock}"
    if then.tm_year == days[0][0]:
        return time.strftime("%b %d %H:%M", then)
    return time.strftime("%Y-%m-%d", then)


def width_of(text: str) -> int:
    """Returns how many columns a text takes up: East Asian letters two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text
    )


def cut(text: str, columns: int) -> str:
    """Returns a text that takes up so many columns at most; a mark says that it was cut."""
    if width_of(text) <= columns:
        return text
    kept, room = "", columns - 1
    for letter in text:
        room -= width_of(letter)
        if room < 0:
            break
        kept += letter
    return kept + _ELLIPSIS if columns > 0 else ""


def table(
    rows: Iterable[Sequence[Cell]],
    terminal: Terminal,
    to_the_right: Sequence[int] = (),
    head: Sequence[str] = (),
) -> Iterator[str]:
    """Yields rows in columns, under a head if there is one; the last column is cut to fit."""
    heads = [tuple(Cell(text, Style.DIM) for text in head)] if head else []
    all_rows = [*heads, *rows]
    if not all_rows:
        return
    widths = [
        max(width_of(row[number].text) for row in all_rows) for number in range(len(all_rows[0]))
    ]
    left = sum(widths[:-1]) + 2 * (len(widths) - 1)
    for row in all_rows:
        parts = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            text = cell.text
            is_last = number == len(row) - 1
            if is_last and terminal.columns is not None:
                text = cut(text, max(terminal.columns - left, 1))
            space = " " * (width - width_of(text))
            painted = terminal.styled(text, cell.style)
            if number in to_the_right:
                parts.append(space + painted)
            else:
                parts.append(painted if is_last else painted + space)
        yield "  ".join(parts).rstrip()
