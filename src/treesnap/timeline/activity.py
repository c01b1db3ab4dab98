"""Small pictures of what happened when, as SVG in a page: of a whole history, and of a day.

They hold numbers alone, and no text but times and counts: labels stand beside them in the page,
where they have one size on each screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from html import escape

from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text, size_text, time_text
from treesnap.timeline.history import HistoryRow

BARS = 80
"""Bars of a history; each stands for an equal time."""
BAR_WIDTH = 10
_GAP = 2
_UPPER = 60
"""Height of the highest bar of snapshots."""
_LOWER = 30
"""Height of the highest bar of new content, which hangs below."""
_MIDDLE = _UPPER + 1
_MINUTES = 1440


class Origin(StrEnum):
    """Why a snapshot was taken, as the pictures and the filters of a page tell it."""

    PROMPT = "prompt"
    """Before a prompt of an agent."""
    STEP = "step"
    """For one of its steps."""
    OTHER = "other"
    """By hand, or for another program."""


def origin_of(row: HistoryRow) -> Origin:
    """Returns why a row's snapshot was taken."""
    if row.is_prompt:
        return Origin.PROMPT
    return Origin.STEP if row.step is not None else Origin.OTHER


class ActivityPoint(NamedTuple):
    """What the pictures know of a snapshot."""

    time_ns: int
    origin: Origin
    added_bytes: int
    """By how much it made the store grow."""


def moments_of(rows: Iterable[HistoryRow]) -> list[ActivityPoint]:
    """Returns the moments of all rows that can be read."""
    return [
        ActivityPoint(
            row.snapshot.record.created_at_ns, origin_of(row), row.snapshot.record.added_bytes or 0
        )
        for row in rows
        if row.snapshot is not None
    ]


def history_picture(moments: Sequence[ActivityPoint]) -> str:
    """Returns bars over the time of a history: snapshots upwards, new content downwards."""
    if not moments:
        return ""
    first_ns = min(moment.time_ns for moment in moments)
    last_ns = max(moment.time_ns for moment in moments)
    width_ns = (last_ns - first_ns) // BARS + 1
    counts = {origin: [0] * BARS for origin in Origin}
    added = [0] * BARS
    for moment in moments:
        place = (moment.time_ns - first_ns) // width_ns
        counts[moment.origin][place] += 1
        added[place] += moment.added_bytes
    sums = [sum(counts[origin][place] for origin in Origin) for place in range(BARS)]
    most, most_bytes = max(sums), max(*added, 1)
    below = [0] * BARS
    parts = []
    for origin in Origin:
        bars = []
        for place, count in enumerate(counts[origin]):
            if count:
                top = _UPPER * (below[place] + count) / most
                bars.append(_bar(place, _UPPER - top, _UPPER * count / most))
                below[place] += count
        parts.append(f'<path class="{origin.value}" d="{"".join(bars)}"/>')
    bars = [_bar(n, _MIDDLE, _LOWER * size / most_bytes) for n, size in enumerate(added) if size]
    parts.append(f'<path class="new" d="{"".join(bars)}"/>')
    for place, count in enumerate(sums):
        if count:
            begin = time_text(first_ns + place * width_ns, "%Y-%m-%d %H:%M")
            what = f"from {begin}: {count_text(count, 'snapshot')}, +{size_text(added[place])}"
            parts.append(
                f'<rect x="{place * BAR_WIDTH}" width="{BAR_WIDTH}" height="{_MIDDLE + _LOWER}">'
                f"<title>{escape(what)}</title></rect>"
            )
    times = [first_ns, (first_ns + last_ns) // 2, last_ns]
    labels = "".join(f"<span>{time_text(time, '%Y-%m-%d %H:%M')}</span>" for time in times)
    about = f"Snapshots over time, {count_text(most, 'snapshot')} in the highest bar"
    return (
        f'<svg class="history" role="img" aria-label="{about}" preserveAspectRatio="none" '
        f'viewBox="0 0 {BARS * BAR_WIDTH} {_MIDDLE + _LOWER}">{"".join(parts)}</svg>\n'
        f'<p class="axis">{labels if last_ns > first_ns else time_text(first_ns)}</p>\n'
    )


def day_picture(moments: Sequence[ActivityPoint]) -> str:
    """Returns the marks of the snapshots of a day, from midnight on the left to midnight."""
    parts = []
    for origin in Origin:
        minutes = {_minute(moment.time_ns) for moment in moments if moment.origin is origin}
        if minutes:
            marks = "".join(f"M{minute} 0v10" for minute in sorted(minutes))
            parts.append(f'<path class="{origin.value}" d="{marks}"/>')
    return (
        '<svg class="strip" role="img" aria-label="From 0 to 24 h" preserveAspectRatio="none" '
        f'viewBox="0 0 {_MINUTES} 10">{"".join(parts)}</svg>'
    )


def _minute(time_ns: int) -> int:
    hours, _, minutes = time_text(time_ns, "%H:%M").partition(":")
    return int(hours) * 60 + int(minutes) if minutes else 0


def _bar(place: int, top: float, height: float) -> str:
    left, width = place * BAR_WIDTH, BAR_WIDTH - _GAP
    return f"M{left} {top:.1f}h{width}v{max(height, 1):.1f}h-{width}z"
