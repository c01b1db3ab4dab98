"""Merging what two sides made of one text, line by line; pure.

Both sides are compared with the text that they come from. What only one side changed is taken
from it. Where changes of both overlap or touch, and are not the same, there is a conflict
(Khanna, Kunal and Pierce, A Formal Investigation of Diff3, 2007).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treesnap.core.diff.texts import Edit, find_edits, is_binary, split_lines
from treesnap.core.model.named_tuple import NamedTuple

TEXT_SIZE_MAX = 4 << 20
"""Bytes of the largest text that is merged; beyond it a line is no longer what people look at."""


class Labels(NamedTuple):
    """What the two sides of a conflict are called where it is written into the text."""

    mine: str
    theirs: str


def are_texts(*contents: bytes) -> bool:
    """Returns whether contents can be merged line by line."""
    return all(len(content) <= TEXT_SIZE_MAX and not is_binary(content) for content in contents)


def merge_texts(
    base: bytes, mine: bytes, theirs: bytes, labels: Labels | None = None
) -> tuple[bytes, bool]:
    """Returns the merge of two texts, and whether something was in conflict.

    A conflict is written as both sides between lines of ``<``, ``=`` and ``>`` with the labels,
    which end as the lines around them do; without labels my side stands there. Costs as much as
    two patches.
    """
    lines, my_lines, their_lines = split_lines(base), split_lines(mine), split_lines(theirs)
    merged: list[bytes] = []
    is_conflict = False
    at = 0
    for start, end, left, right in _regions(lines, my_lines, their_lines):
        merged += lines[at:start]
        at = end
        old = lines[start:end]
        if right in (left, old):
            merged += left
        elif left == old:
            merged += right
        else:
            is_conflict = True
            merged += left if labels is None else _marked(left, right, labels)
    merged += lines[at:]
    return b"".join(merged), is_conflict


def _regions(
    base: Sequence[bytes], mine: Sequence[bytes], theirs: Sequence[bytes]
) -> Iterator[tuple[int, int, Sequence[bytes], Sequence[bytes]]]:
    """Yields ranges of the base with what each side has there, from top to bottom.

    Between them all three are equal. Edits that touch are in one region.
    """
    sides = (find_edits(base, mine), find_edits(base, theirs))
    numbers = [0, 0]
    shifts = [0, 0]
    while any(number < len(edits) for number, edits in zip(numbers, sides, strict=True)):
        start = min(
            edits[number].old_start
            for number, edits in zip(numbers, sides, strict=True)
            if number < len(edits)
        )
        end = start
        begins = [start + shift for shift in shifts]
        grew = True
        while grew:
            grew = False
            for side, edits in enumerate(sides):
                while numbers[side] < len(edits) and edits[numbers[side]].old_start <= end:
                    edit = edits[numbers[side]]
                    end = max(end, edit.old_end)
                    shifts[side] += _growth(edit)
                    numbers[side] += 1
                    grew = True
        ends = [end + shift for shift in shifts]
        yield start, end, mine[begins[0] : ends[0]], theirs[begins[1] : ends[1]]


def _growth(edit: Edit) -> int:
    return (edit.new_end - edit.new_start) - (edit.old_end - edit.old_start)


def _marked(mine: Sequence[bytes], theirs: Sequence[bytes], labels: Labels) -> Iterator[bytes]:
    """Yields both sides of a conflict, without the lines at its ends that they share."""
    first = 0
    while first < min(len(mine), len(theirs)) and mine[first] == theirs[first]:
        first += 1
    last = 0
    while last < min(len(mine), len(theirs)) - first and mine[-1 - last] == theirs[-1 - last]:
        last += 1
    end = _line_ending([*mine, *theirs])
    yield from mine[:first]
    yield b"<<<<<<< %s%s" % (labels.mine.encode("utf-8", "surrogateescape"), end)
    yield from _ended(mine[first : len(mine) - last], end)
    yield b"=======" + end
    yield from _ended(theirs[first : len(theirs) - last], end)
    yield b">>>>>>> %s%s" % (labels.theirs.encode("utf-8", "surrogateescape"), end)
    yield from mine[len(mine) - last :]


def _line_ending(lines: Sequence[bytes]) -> bytes:
    """Returns how the first line that is ended is, so that marks do not mix two endings."""
    ended = next((line for line in lines if line.endswith(b"\n")), b"\n")
    return b"\r\n" if ended.endswith(b"\r\n") else b"\n"


def _ended(lines: Sequence[bytes], end: bytes) -> Iterator[bytes]:
    """Yields lines, the last one with a newline, so that a mark stands in a line of its own."""
    for line in lines:
        yield line if line.endswith(b"\n") else line + end
