"""Patches for people: without_controls, in colour, with the words marked that changed; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from treesnap.cli.output.terminal import Style, styled
from treesnap.core.diff.texts import longest_common
from treesnap.core.model.errors import printable

_WORD = re.compile(r"\w+|\s+|.")
_LINE_LENGTH_MAX = 4000
_STEPS_MAX = 20_000
_COMMON_SHARE_MIN = 0.4
"""Lines that have less in common are not one line that changed, but two."""

_Span = tuple[str, bool]
"""A part of a line, and whether it differs from the other line."""


def without_controls(piece: bytes) -> str:
    """Returns lines of a text without anything that acts on a terminal but tabs and newlines."""
    lines = piece.split(b"\n")
    return "\n".join("\t".join(map(printable, line.split(b"\t"))) for line in lines)


def coloured_hunks(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yields the lines of :func:`~treesnap.core.diff.texts.hunks` in colour, without controls."""
    removed: list[str] = []
    added: list[str] = []
    for text in map(without_controls, pieces):
        if text[0] == "+":
            added.append(text[1:])
            continue
        if added or text[0] != "-":
            yield from _replaced(removed, added)
            removed, added = [], []
        if text[0] == "-":
            removed.append(text[1:])
        elif text[0] == "@":
            yield _in_style(text, Style.PLACE)
        else:
            yield text
    yield from _replaced(removed, added)


def _replaced(removed: Sequence[str], added: Sequence[str]) -> Iterator[str]:
    """Yields old lines and those in their place: compared one by one where they are as many."""
    if len(removed) == len(added):
        pairs = [changed_words(old, new) for old, new in zip(removed, added, strict=True)]
    else:
        pairs = []
    old_spans = [before for before, _ in pairs] or [[(line, False)] for line in removed]
    new_spans = [after for _, after in pairs] or [[(line, False)] for line in added]
    for spans in old_spans:
        yield _line("-", spans, Style.REMOVED, Style.REMOVED_WORD)
    for spans in new_spans:
        yield _line("+", spans, Style.ADDED, Style.ADDED_WORD)


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


def _line(mark: str, spans: Sequence[_Span], style: Style, word_style: Style) -> str:
    pieces: list[tuple[str, Style]] = [(mark, style)]
    for text, is_changed in spans:
        if is_changed or pieces[-1][1] is word_style:
            pieces.append((text, word_style if is_changed else style))
        else:
            pieces[-1] = (pieces[-1][0] + text, style)
    return "".join(_in_style(text, piece_style) for text, piece_style in pieces)


def _in_style(text: str, style: Style) -> str:
    """Returns lines in a style, which does not go over the end of a line."""
    line, newline, rest = text.partition("\n")
    return styled(line, style) + newline + rest
