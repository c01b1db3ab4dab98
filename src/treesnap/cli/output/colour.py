"""Colours: what the styles are called, and text in them; pure.

They are those of the terminal's own palette, which fit its background.
"""

from __future__ import annotations

from enum import StrEnum


class Style(StrEnum):
    """What a text means; the value is how a terminal is told (SGR)."""

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
    KEYWORD = "34"
    STRING = "35"
    NUMBER = "36"
    COMMENT = "3;2"


_WITHIN_CHANGES = {Style.KEYWORD: ";1", Style.COMMENT: ";3"}
"""What a word of a language adds to green and red, which go on to say what was changed."""


def within_change(style: Style, word: Style | None) -> str:
    """Returns how a terminal is told of a word of a language in an added or removed line."""
    return style.value + _WITHIN_CHANGES.get(word, "") if word is not None else style.value


def styled(text: str, style: str) -> str:
    """Returns a text in a style, or as SGR says; an empty one as it is."""
    return f"\x1b[{style!s}m{text}\x1b[0m" if text else ""
