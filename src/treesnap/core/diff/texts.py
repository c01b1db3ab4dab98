"""Patches: how the lines of two texts differ, in the unified format; pure.

Lines that occur once on both sides anchor the comparison, which keeps its cost near the size of
the texts. What is left between two anchors is compared by the algorithm of Myers (An O(ND)
difference algorithm, 1986), up to a number of steps for the whole text; what is left then is
replaced as a whole. Either way the patch is right, only perhaps not the shortest one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isqrt

from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING

if TYPE_CHECKING:
    from treesnap.core.model.results import Hunk

CONTEXT_LINES = 3
STEPS_MAX = 1_000_000
"""How many steps the lines between anchors are compared in: some 0.3 s."""

NO_NEWLINE = b"\\ No newline at end of file\n"


class Edit(NamedTuple):
    """Old lines that give way to new ones; either range may be empty."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


class LineCounts(NamedTuple):
    """How many lines a change adds and removes."""

    insertions: int
    deletions: int


def is_binary(content: bytes) -> bool:
    """Returns whether content has no lines that a person could read."""
    return b"\0" in content


def split_lines(content: bytes) -> list[bytes]:
    """Returns the lines with their newlines; the last one may lack it."""
    *lines, rest = content.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


def count_lines(old: bytes, new: bytes) -> LineCounts:
    """Returns how many lines differ."""
    if not old or not new:
        return LineCounts(insertions=_line_count(new), deletions=_line_count(old))
    edits = find_edits(split_lines(old), split_lines(new))
    return LineCounts(
        insertions=sum(edit.new_end - edit.new_start for edit in edits),
        deletions=sum(edit.old_end - edit.old_start for edit in edits),
    )


def _line_count(content: bytes) -> int:
    return content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))


def hunks(old: bytes, new: bytes, above: tuple[int, int] = (0, 0)) -> Iterator[bytes]:
    """Yields the lines of a unified diff, without the two lines that name the files.

    A line without a newline comes in one piece with the note that says so. ``above`` says how many
    lines of each file come before these.
    """
    old_lines, new_lines = split_lines(old), split_lines(new)
    for group in _grouped(find_edits(old_lines, new_lines)):
        yield from _hunk(group, old_lines, new_lines, above)


def find_edits(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit]:
    """Returns what turns the old lines into the new ones, from top to bottom."""
    edits: list[Edit] = []
    whole = _without_common_ends(old, new, Edit(0, len(old), 0, len(new)))
    old_from, new_from, steps = whole.old_start, whole.new_start, STEPS_MAX
    for old_anchor, new_anchor in [*_anchors(old, new, whole), (whole.old_end, whole.new_end)]:
        gap = _without_common_ends(old, new, Edit(old_from, old_anchor, new_from, new_anchor))
        if gap.old_start < gap.old_end and gap.new_start < gap.new_end:
            matches, steps = _matches(old, new, gap, steps)
            edits += _between(matches, gap)
        elif gap.old_start < gap.old_end or gap.new_start < gap.new_end:
            edits.append(gap)
        old_from, new_from = old_anchor + 1, new_anchor + 1
    return edits


def _without_common_ends(old: Sequence[bytes], new: Sequence[bytes], gap: Edit) -> Edit:
    old_start, old_end, new_start, new_end = gap
    while old_start < old_end and new_start < new_end and old[old_start] == new[new_start]:
        old_start, new_start = old_start + 1, new_start + 1
    while old_start < old_end and new_start < new_end and old[old_end - 1] == new[new_end - 1]:
        old_end, new_end = old_end - 1, new_end - 1
    return Edit(old_start, old_end, new_start, new_end)


def _anchors(old: Sequence[bytes], new: Sequence[bytes], part: Edit) -> list[tuple[int, int]]:
    """Returns equal lines that occur once on each side, as the longest rising sequence."""
    if part.old_start == part.old_end or part.new_start == part.new_end:
        return []
    old_part = old[part.old_start : part.old_end]
    new_part = new[part.new_start : part.new_end]
    old_counts, new_counts = Counter(old_part), Counter(new_part)
    new_positions = {
        line: number
        for number, line in enumerate(new_part, part.new_start)
        if new_counts[line] == 1
    }
    pairs = [
        (number, new_positions[line])
        for number, line in enumerate(old_part, part.old_start)
        if old_counts[line] == 1 and line in new_positions
    ]
    pile_tops: list[int] = []
    pile_pairs: list[int] = []
    previous: list[int | None] = []
    for index, (_, position) in enumerate(pairs):
        pile = bisect_left(pile_tops, position)
        previous.append(pile_pairs[pile - 1] if pile else None)
        pile_tops[pile : pile + 1] = [position]
        pile_pairs[pile : pile + 1] = [index]
    chain: list[tuple[int, int]] = []
    link = pile_pairs[-1] if pile_pairs else None
    while link is not None:
        chain.append(pairs[link])
        link = previous[link]
    return chain[::-1]


def _between(matches: Sequence[tuple[int, int]], gap: Edit) -> Iterator[Edit]:
    """Yields what lies between equal lines of a gap."""
    old_from, new_from = gap.old_start, gap.new_start
    for old_match, new_match in [*matches, (gap.old_end, gap.new_end)]:
        if old_match > old_from or new_match > new_from:
            yield Edit(old_from, old_match, new_from, new_match)
        old_from, new_from = old_match + 1, new_match + 1


def _matches(
    old: Sequence[bytes], new: Sequence[bytes], gap: Edit, steps: int
) -> tuple[list[tuple[int, int]], int]:
    """Returns equal lines of a gap, rising on both sides, and how many steps are left.

    They are as many as possible, unless the steps are used up before.
    """
    shared = {*old[gap.old_start : gap.old_end]}.intersection(new[gap.new_start : gap.new_end])
    left = [at for at in range(gap.old_start, gap.old_end) if old[at] in shared]
    right = [at for at in range(gap.new_start, gap.new_end) if new[at] in shared]
    common, steps = longest_common([old[at] for at in left], [new[at] for at in right], steps)
    return [(left[x], right[y]) for x, y in common], steps


def longest_common(
    left: Sequence[bytes] | Sequence[str], right: Sequence[bytes] | Sequence[str], steps: int
) -> tuple[list[tuple[int, int]], int]:
    """Returns the positions of a longest common subsequence, or a part of it, by Myers.

    Round by round, ``reach`` says for each diagonal (position left minus position right) how far
    one gets with so many lines left out; ``rounds`` keeps what it was before each round.
    """
    width, height = len(left), len(right)
    distance_max = min(width + height, isqrt(max(steps, 0)))
    middle = distance_max + 1
    reach = [-1] * (2 * middle + 1)
    reach[middle + 1] = 0
    rounds: list[list[int]] = []
    end = 0
    for distance in range(distance_max + 1 if width and height else 0):
        rounds.append(reach[middle - distance - 1 : middle + distance + 2])
        lowest = -distance + 2 * max(0, distance - height)
        highest = distance - 2 * max(0, distance - width)
        for diagonal in range(lowest, highest + 1, 2):
            at = middle + diagonal
            below, above = reach[at + 1], reach[at - 1]
            x = start = below if above < below else above + 1
            while x < width and x - diagonal < height and left[x] == right[x - diagonal]:
                x += 1
            reach[at] = x
            steps -= 1 + x - start
        end = width - height
        if abs(end) <= distance and reach[middle + end] >= width:
            break
        if steps <= 0 or distance == distance_max:
            end = max(
                range(lowest, highest + 1, 2),
                key=lambda each: _progress(reach[middle + each], each, width, height),
            )
            break
    pairs: list[tuple[int, int]] = []
    x = reach[middle + end]
    for distance in range(len(rounds) - 1, -1, -1):
        before, at = rounds[distance], end + distance + 1
        came_down = before[at - 1] < before[at + 1]
        start = before[at + 1] if came_down else before[at - 1] + 1
        pairs += ((each, each - end) for each in range(x - 1, start - 1, -1))
        end, x = (end + 1, start) if came_down else (end - 1, start - 1)
    return pairs[::-1], steps


def _progress(x: int, diagonal: int, width: int, height: int) -> int:
    """Returns how many lines of both sides are behind a position, if there is such a position."""
    y = x - diagonal
    return x + y if x <= width and y <= height else -1


def _grouped(edits: list[Edit]) -> Iterator[list[Edit]]:
    """Yields edits that are so close that their context would overlap."""
    group: list[Edit] = []
    for edit in edits:
        if group and edit.old_start - group[-1].old_end > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(edit)
    if group:
        yield group


def _hunk(
    group: list[Edit], old: list[bytes], new: list[bytes], above: tuple[int, int]
) -> Iterator[bytes]:
    before = min(CONTEXT_LINES, group[0].old_start, group[0].new_start)
    old_start, new_start = group[0].old_start - before, group[0].new_start - before
    after = min(CONTEXT_LINES, len(old) - group[-1].old_end)
    old_end, new_end = group[-1].old_end + after, group[-1].new_end + after
    old_range, new_range = (
        _range_text(start + lines, end + lines)
        for start, end, lines in ((old_start, old_end, above[0]), (new_start, new_end, above[1]))
    )
    yield f"@@ -{old_range} +{new_range} @@\n".encode("ascii")
    position = old_start
    for edit in group:
        yield from _marked(b" ", old[position : edit.old_start])
        yield from _marked(b"-", old[edit.old_start : edit.old_end])
        yield from _marked(b"+", new[edit.new_start : edit.new_end])
        position = edit.old_end
    yield from _marked(b" ", old[position:old_end])


def lines_of_hunk(hunk: Hunk) -> Iterator[bytes]:
    """Yields the lines of a unified diff from the live file to the snapshot, as :func:`hunks`."""
    above, below = len(hunk.lines_before), len(hunk.lines_after)
    ranges = [
        _range_text(start - above, start + len(lines) + below)
        for start, lines in (
            (hunk.live_start, hunk.live_lines),
            (hunk.snapshot_start, hunk.snapshot_lines),
        )
    ]
    yield f"@@ -{ranges[0]} +{ranges[1]} @@\n".encode("ascii")
    yield from _marked(b" ", hunk.lines_before)
    yield from _marked(b"-", hunk.live_lines)
    yield from _marked(b"+", hunk.snapshot_lines)
    yield from _marked(b" ", hunk.lines_after)


def _range_text(start: int, end: int) -> str:
    """Returns a range of lines as the format counts them: from 1, or the line before."""
    count = end - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def _marked(mark: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line if line.endswith(b"\n") else mark + line + b"\n" + NO_NEWLINE
