"""What differs of two large texts, put into the old one, gives the new one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling import sized
from treesnap.core.model.results import TextPart
from treesnap.core.ops.history.large_texts import (
    ChangedMeanwhile,
    NotComparable,
    Stream,
    differing_parts,
)

LARGE = 1 << 20


def text_of(random: Random, count: int) -> list[bytes]:
    return [b"%d,%d\n" % (number, random.randrange(50)) for number in range(count)]


def edited(random: Random, lines: list[bytes], count: int) -> list[bytes]:
    lines = list(lines)
    for _ in range(count):
        start = random.randrange(len(lines) + 1)
        end = min(len(lines), start + random.choice((0, 0, 1, 1, 400)))
        lines[start:end] = random.choice(([], [b"new\n"], text_of(random, 300), lines[:200]))
    return lines


def pieces(text: bytes, size: int) -> Stream:
    return lambda: (text[at : at + size] for at in range(0, len(text), size))


def put_into(old: bytes, parts: tuple[TextPart, ...]) -> bytes:
    """Returns the old lines with those of the parts in their place."""
    lines = old.splitlines(keepends=True)
    for part in reversed(parts):
        start = part.old_line_count
        end = start + len(part.old.splitlines())
        assert b"".join(lines[start:end]) == part.old
        lines[start:end] = part.new.splitlines(keepends=True)
    return b"".join(lines)


@given(
    st.integers(0, 2**32), st.integers(0, 9000), st.integers(0, 6), st.sampled_from([100, 70_000])
)
@settings(max_examples=sized(25, 2000), deadline=None)
def test_parts_in_the_old_text_give_the_new_one(seed, line_count, edit_count, piece_size):
    random = Random(seed)
    lines = text_of(random, line_count)
    ends = [
        text[: len(text) - random.randrange(2)]
        for text in (b"".join(lines), b"".join(edited(random, lines, edit_count)))
    ]
    old, new = ends

    parts = differing_parts(pieces(old, piece_size), pieces(new, piece_size), LARGE)

    assert put_into(old, parts) == new
    assert (
        put_into(
            new,
            tuple(
                part._replace(
                    old_line_count=part.new_line_count,
                    new_line_count=part.old_line_count,
                    old=part.new,
                    new=part.old,
                )
                for part in parts
            ),
        )
        == old
    )
    assert bool(parts) == (old != new)


def test_little_is_held_of_a_text_in_which_little_changed():
    lines = text_of(Random(1), 200_000)
    old = b"".join(lines)
    del lines[150_000]
    lines[0] = b"first\n"

    parts = differing_parts(pieces(old, 65_536), pieces(b"".join(lines), 65_536), 1 << 16)

    assert len(parts) == 2
    assert (parts[0].old_line_count, parts[0].new_line_count) == (0, 0)
    assert parts[1].old_line_count == parts[1].new_line_count > 140_000


@pytest.mark.parametrize(
    "text",
    [b"a\n\0\n", b"x" * (2 << 20), b"".join(text_of(Random(2), 9000))],
    ids=["nul", "line", "much"],
)
def test_what_is_no_text_or_too_much_is_not_compared(text):
    with pytest.raises(NotComparable):
        differing_parts(pieces(b"old\n" * 9000, 4096), pieces(text, 4096), 16_384)


@pytest.mark.parametrize("later", [b"old\n", b"other\n" * 900])
def test_a_text_that_changes_in_between_is_noticed(later):
    texts = iter([b"new\n" * 900, later])

    with pytest.raises(ChangedMeanwhile):
        differing_parts(pieces(b"old\n" * 900, 4096), lambda: [next(texts)], LARGE)
