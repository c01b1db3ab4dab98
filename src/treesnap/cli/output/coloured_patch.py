"""Patches for people: harmless, in colour, with the words marked that changed; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from treesnap.cli.output.colour import Style, styled, within_change
from treesnap.cli.output.syntax_colours import Piece, line_pieces
from treesnap.core.diff.texts import longest_common
from treesnap.core.model.errors import printable
from treesnap.core.model.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pygments.lexer import Lexer

_WORD = re.compile(r"\w+|\s+|.")
_LINE_LENGTH_MAX = 4000
_STEPS_MAX = 20_000
_COMMON_SHARE_MIN = 0.4
"""Lines that have less in common are not one line that changed, but two."""

_Span = tuple[str, bool]
"""A part of a line, and whether it differs from the other line."""


class _Line(NamedTuple):
    """A line without its mark."""

    text: str
    words: Sequence[Piece]
    """In the colours of a language; none where it has none."""


def harmless(piece: bytes) -> str:
    """Returns lines of a text without anything that acts on a terminal but tabs and newlines."""
    lines = piece.split(b"\n")
    return "\n".join("\t".join(map(printable, line.split(b"\t"))) for line in lines)


def coloured_hunks(pieces: Iterable[bytes], lexer: Lexer | None = None) -> Iterator[str]:
    """Yields the lines of :func:`~treesnap.core.diff.texts.hunks` in colour, and harmless.

    With a lexer, words of the language are marked: in lines that stayed by colours, in others,
    which are green and red, by weight and slant.
    """
    texts = [harmless(piece) for piece in pieces]
    words = _words_of(texts, lexer) if lexer is not None else {}
    removed: list[_Line] = []
    added: list[_Line] = []
    for number, text in enumerate(texts):
        line = _Line(text[1:], words.get(number, ()))
        if text[0] == "+":
            added.append(line)
            continue
        if added or text[0] != "-":
            yield from _replaced(removed, added)
            removed, added = [], []
        if text[0] == "-":
            removed.append(line)
        elif text[0] == "@":
            yield _in_style(text, Style.PLACE)
        else:
            yield _unchanged(text, line.words)
    yield from _replaced(removed, added)


def _words_of(texts: Sequence[str], lexer: Lexer) -> dict[int, Sequence[Piece]]:
    """Returns the words of lines by their numbers: of the new side, and of lines removed.

    Each hunk is read by itself, so a text that spans lines may be seen to begin where it ends.
    """
    found: dict[int, Sequence[Piece]] = {}
    starts = [number for number, text in enumerate(texts) if text[0] == "@"]
    for start, end in pairwise([*starts, len(texts)]):
        for marks in (" -", " +"):
            numbers = [number for number in range(start, end) if texts[number][0] in marks]
            lines = [texts[number][1:].partition("\n")[0] + "\n" for number in numbers]
            found.update(zip(numbers, line_pieces(lexer, lines) or (), strict=False))
    return found


def _unchanged(text: str, words: Sequence[Piece]) -> str:
    if not words:
        return text
    _, newline, rest = text.partition("\n")
    shown = "".join(styled(word, style) if style else word for word, style in words)
    return text[0] + shown + newline + rest


def _replaced(removed: Sequence[_Line], added: Sequence[_Line]) -> Iterator[str]:
    """Yields old lines and those in their place: compared one by one where they are as many."""
    if len(removed) == len(added):
        pairs = [changed_words(old.text, new.text) for old, new in zip(removed, added, strict=True)]
    else:
        pairs = []
    old_spans = [before for before, _ in pairs] or [[(line.text, False)] for line in removed]
    new_spans = [after for _, after in pairs] or [[(line.text, False)] for line in added]
    for spans, line in zip(old_spans, removed, strict=True):
        yield _line("-", spans, line.words, Style.REMOVED, Style.REMOVED_WORD)
    for spans, line in zip(new_spans, added, strict=True):
        yield _line("+", spans, line.words, Style.ADDED, Style.ADDED_WORD)


def changed_words(before: str, after: str) -> tuple[list[_Span], list[_Span]]:
    """Returns both lines in spans; nothing is marked where too little is common or too long."""
    plain = [(before, False)], [(after, False)]
    if max(len(before), len(after)) > _LINE_LENGTH_MAX:
        return plain
    old_line, new_line = before.partition("\n")[0], after.partition("\n")[0]
    old, new = _WORD.findall(old_line), _WORD.findall(new_line)
    common, _ = longest_common(old, new, _STEPS_MAX)
    kept = sum(len(old[at]) for at, _ in common if not old[at].isspace())
    whole = max(sum(len(word) for word in words if not word.isspace()) for words in (old, new))
    if kept < _COMMON_SHARE_MIN * whole:
        return plain
    return (
        _spans(old, {at for at, _ in common}, before[len(old_line) :]),
        _spans(new, {at for _, at in common}, after[len(new_line) :]),
    )


def _spans(words: Sequence[str], common: set[int], end: str) -> list[_Span]:
    """Returns words in spans, as few as possible."""
    spans: list[_Span] = []
    for at, word in enumerate(words):
        is_changed = at not in common
        if spans and spans[-1][1] == is_changed:
            spans[-1] = (spans[-1][0] + word, is_changed)
        else:
            spans.append((word, is_changed))
    return [*spans, (end, False)]


def _line(
    mark: str, spans: Sequence[_Span], words: Sequence[Piece], style: Style, word_style: Style
) -> str:
    pieces: list[tuple[str, str]] = [(mark, style.value)]
    for text, is_changed, word in _overlaid(spans, words):
        sgr = within_change(word_style if is_changed else style, word)
        if pieces[-1][1] == sgr:
            pieces[-1] = (pieces[-1][0] + text, sgr)
        else:
            pieces.append((text, sgr))
    return "".join(_in_style(text, sgr) for text, sgr in pieces)


def _overlaid(
    spans: Sequence[_Span], words: Sequence[Piece]
) -> Iterator[tuple[str, bool, Style | None]]:
    """Yields the spans of a line, cut where the words of its language begin and end."""
    rest = iter(words)
    left, style = 0, None
    for text, is_changed in spans:
        at = 0
        while at < len(text):
            if left == 0:
                word, style = next(rest, (text[at:], None))
                left = len(word)
            cut = min(at + left, len(text))
            left -= cut - at
            yield text[at:cut], is_changed, style
            at = cut


def _in_style(text: str, style: str) -> str:
    """Returns lines in a style, which does not go over the end of a line."""
    line, newline, rest = text.partition("\n")
    return styled(line, style) + newline + rest
