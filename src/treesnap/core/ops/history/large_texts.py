"""Texts that are too large to be held, and the parts of them that differ.

Both texts are read twice, in pieces that are not kept:

    cut each into pieces of whole lines where its content says so, and hash them
    compare the hashes, as the lines of small texts are compared
    read the pieces that differ, with one more on each side for the lines around them

Where a cut is depends on what is near to it, so an edit moves only those. Memory is what differs
and some 150 bytes for each piece: 4 KiB on average, so 80 MB for two texts of 1 GiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from treesnap.core.diff.texts import Edit, find_edits, is_binary
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import TextPart
from treesnap.core.worktree.scan.chunking import FINE_SIZE_MAX, cut_finely

SIZE_MAX = 1 << 30
"""Larger texts are not compared."""
_DIGEST_SIZE = 16
_LINE_SIZE_MAX = 1 << 20
"""Longer lines are not for people to read."""

Stream = Callable[[], Iterable[bytes]]
"""Begins to read a text from its start."""


class NotComparable(Exception):
    """One is not a text, or more of them differs than was asked for."""


class IsBinary(NotComparable):
    """One has no lines that a person could read, however much is read of it."""


class ChangedMeanwhile(Exception):
    """A text was another one when it was read again."""


class _Outline(NamedTuple):
    """The pieces of a text in order, each by its digest, its size and its lines."""

    digests: list[bytes]
    sizes: list[int]
    line_counts: list[int]


def differing_parts(old: Stream, new: Stream, size_max: int) -> tuple[TextPart, ...]:
    """Returns the parts of two texts that differ, from top to bottom.

    Raises NotComparable where they are more than ``size_max`` bytes on a side, ChangedMeanwhile,
    and what reading the texts raises.
    """
    left, right = _outline(old), _outline(new)
    parts = list(_with_neighbours(find_edits(left.digests, right.digests), left, right))
    old_ranges = [(part.old_start, part.old_end) for part in parts]
    new_ranges = [(part.new_start, part.new_end) for part in parts]
    for outline, ranges in ((left, old_ranges), (right, new_ranges)):
        if sum(sum(outline.sizes[start:end]) for start, end in ranges) > size_max:
            raise NotComparable
    return tuple(
        TextPart(*starts, *texts)
        for starts, *texts in zip(
            zip(_lines_above(left, old_ranges), _lines_above(right, new_ranges), strict=True),
            _texts(old, left, old_ranges),
            _texts(new, right, new_ranges),
            strict=True,
        )
    )


def _outline(text: Stream) -> _Outline:
    outline = _Outline([], [], [])
    for piece in _whole_lines(_cut(text())):
        outline.digests.append(checksum(piece, _DIGEST_SIZE))
        outline.sizes.append(len(piece))
        outline.line_counts.append(piece.count(b"\n"))
    return outline


def _cut(text: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the bytes of a text in pieces that end where their content says so."""
    rest = b""
    for data in text:
        if is_binary(data):
            raise IsBinary
        rest += data
        start = 0
        for size in cut_finely(memoryview(rest)):
            if start + FINE_SIZE_MAX > len(rest):  # more data could move the end of this one
                break
            yield rest[start : start + size]
            start += size
        rest = rest[start:]
    for size in cut_finely(memoryview(rest)):
        yield rest[:size]
        rest = rest[size:]


def _whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the same bytes in pieces that end with a line."""
    held = b""
    for piece in pieces:
        rest = piece
        if held and not held.endswith(b"\n"):
            end = piece.find(b"\n") + 1 or len(piece)
            held, rest = held + piece[:end], piece[end:]
            if len(held) > _LINE_SIZE_MAX:
                raise NotComparable
            if not held.endswith(b"\n"):
                continue
        if held:
            yield held
        held = rest
    if held:
        yield held


def _with_neighbours(edits: Iterable[Edit], left: _Outline, right: _Outline) -> Iterator[Edit]:
    """Yields ranges of pieces, each with the equal one before and after it; none overlap."""
    old_count, new_count = len(left.sizes), len(right.sizes)
    last: Edit | None = None
    for edit in edits:
        wider = Edit(
            max(edit.old_start - 1, 0),
            min(edit.old_end + 1, old_count),
            max(edit.new_start - 1, 0),
            min(edit.new_end + 1, new_count),
        )
        if last is not None and wider.old_start <= last.old_end:
            wider = wider._replace(old_start=last.old_start, new_start=last.new_start)
        elif last is not None:
            yield last
        last = wider
    if last is not None:
        yield last


def _lines_above(outline: _Outline, ranges: Sequence[tuple[int, int]]) -> Iterator[int]:
    totals = list(accumulate(outline.line_counts, initial=0))
    return (totals[start] for start, _ in ranges)


def _texts(text: Stream, outline: _Outline, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yields ranges of pieces of a text, which is read once more."""
    ends = list(accumulate(outline.sizes, initial=0))
    pieces = iter(text())
    at, held = 0, b""
    for start, end in ranges:
        while at + len(held) < ends[end]:
            skipped = min(max(ends[start] - at, 0), len(held))
            at, held = at + skipped, held[skipped:]
            more = next(pieces, None)
            if more is None:
                raise ChangedMeanwhile
            held += more
        lines = held[ends[start] - at : ends[end] - at]
        for number in range(start, end):
            piece = lines[ends[number] - ends[start] : ends[number + 1] - ends[start]]
            if checksum(piece, _DIGEST_SIZE) != outline.digests[number]:
                raise ChangedMeanwhile
        yield lines
