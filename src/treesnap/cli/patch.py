"""Patches: how the lines of two texts differ, in the unified format; pure.

Lines that occur once on both sides anchor the comparison, which keeps its cost
near the size of the texts; what is left between two anchors goes to difflib, or
is replaced as a whole where that would take long. Either way the patch is right,
only perhaps not the shortest one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from treesnap.named_tuple import NamedTuple

CONTEXT_LINES = 3
GAP_PRODUCT_MAX = 1_000_000
"""Lines of one side times lines of the other that difflib is still asked about."""

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
    edits = find_edits(split_lines(old), split_lines(new))
    return LineCounts(
        insertions=sum(edit.new_end - edit.new_start for edit in edits),
        deletions=sum(edit.old_end - edit.old_start for edit in edits),
    )


def hunks(old: bytes, new: bytes) -> Iterator[bytes]:
    """Yields the lines of a unified diff, without the two lines that name the files."""
    old_lines, new_lines = split_lines(old), split_lines(new)
    for group in _grouped(find_edits(old_lines, new_lines)):
        yield from _hunk(group, old_lines, new_lines)


def find_edits(old: Sequence[bytes], new: Sequence[bytes]) -> list[Edit]:
    """Returns what turns the old lines into the new ones, from top to bottom."""
    edits: list[Edit] = []
    old_from = new_from = 0
    for old_anchor, new_anchor in [*_anchors(old, new), (len(old), len(new))]:
        old_start, new_start = old_from, new_from
        old_end, new_end = old_anchor, new_anchor
        while old_start < old_end and new_start < new_end and old[old_start] == new[new_start]:
            old_start, new_start = old_start + 1, new_start + 1
        while old_start < old_end and new_start < new_end and old[old_end - 1] == new[new_end - 1]:
            old_end, new_end = old_end - 1, new_end - 1
        edits += _gap_edits(old, new, Edit(old_start, old_end, new_start, new_end))
        old_from, new_from = old_anchor + 1, new_anchor + 1
    return edits


def _anchors(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """Returns equal lines that occur once on each side, as the longest rising sequence."""
    old_counts, new_counts = Counter(old), Counter(new)
    new_positions = {line: number for number, line in enumerate(new) if new_counts[line] == 1}
    pairs = [
        (number, new_positions[line])
        for number, line in enumerate(old)
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


def _gap_edits(old: Sequence[bytes], new: Sequence[bytes], gap: Edit) -> list[Edit]:
    old_count, new_count = gap.old_end - gap.old_start, gap.new_end - gap.new_start
    if not old_count and not new_count:
        return []
    if not old_count or not new_count or old_count * new_count > GAP_PRODUCT_MAX:
        return [gap]
    old_part, new_part = old[gap.old_start : gap.old_end], new[gap.new_start : gap.new_end]
    matcher = SequenceMatcher(None, old_part, new_part, autojunk=False)
    return [
        Edit(gap.old_start + a, gap.old_start + b, gap.new_start + c, gap.new_start + d)
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != "equal"
    ]


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


def _hunk(group: list[Edit], old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    before = min(CONTEXT_LINES, group[0].old_start, group[0].new_start)
    old_start, new_start = group[0].old_start - before, group[0].new_start - before
    after = min(CONTEXT_LINES, len(old) - group[-1].old_end)
    old_end, new_end = group[-1].old_end + after, group[-1].new_end + after
    old_range, new_range = _range_text(old_start, old_end), _range_text(new_start, new_end)
    yield f"@@ -{old_range} +{new_range} @@\n".encode("ascii")
    position = old_start
    for edit in group:
        yield from _marked(b" ", old[position : edit.old_start])
        yield from _marked(b"-", old[edit.old_start : edit.old_end])
        yield from _marked(b"+", new[edit.new_start : edit.new_end])
        position = edit.old_end
    yield from _marked(b" ", old[position:old_end])


def _range_text(start: int, end: int) -> str:
    """Returns a range of lines as the format counts them: from 1, or the line before."""
    count = end - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def _marked(mark: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line
        if not line.endswith(b"\n"):
            yield b"\n" + NO_NEWLINE
