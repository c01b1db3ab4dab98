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


def styled(text: str, style: Style) -> str:
    """Returns a text in a style; an empty one as it is."""
    return f"\x1b[{style!s}m{text}\x1b[0m" if text else ""
