"""Colours of a language in the lines of a patch, where that costs little; never changes a text.

pygments is imported for the first patch that gets them: that and the lexer of a language take
some 0.04 s of a processor, the lines some 3 s for each MiB. So long patches, and those of many
files, which people leaf through, have the colours of a patch alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from treesnap.cli.output.colour import Style
from treesnap.core.model.errors import printable

if TYPE_CHECKING:
    from pygments.lexer import Lexer

CHANGES_MAX = 100
"""With more changed paths than that, none has the colours of its language."""
PATCH_SIZE_MAX = 32 << 10
"""Bytes of the patch of one file."""
TOTAL_SIZE_MAX = 64 << 10
"""Bytes of all patches that one command colours: some 0.2 s."""
_PLAIN = "text"

Piece = tuple[str, Style | None]
"""A part of a line, and what it is in the language."""


class SyntaxColours:
    """The lexers of a command's patches, and how much more it may colour."""

    def __init__(self) -> None:
        self._left = TOTAL_SIZE_MAX
        self._lexers: dict[str, Lexer | None] = {}

    def lexer_for(self, path: bytes, patch_size: int) -> Lexer | None:
        """Returns the lexer of a file by its name; None for none, and where it takes too long."""
        if patch_size > min(PATCH_SIZE_MAX, self._left):
            return None
        name = os.path.basename(printable(path))
        ending = os.path.splitext(name)[1] or name
        if ending not in self._lexers:
            self._lexers[ending] = _lexer(name)
        lexer = self._lexers[ending]
        if lexer is not None:
            self._left -= patch_size
        return lexer


def _lexer(name: str) -> Lexer | None:
    """Returns the lexer for a name or its ending; pygments' own search loads plugins as well."""
    from pygments.lexers import get_all_lexers, get_lexer_by_name

    patterns = {name, f"*{os.path.splitext(name)[1]}"}
    found = [
        get_lexer_by_name(aliases[0], stripnl=False, ensurenl=False)
        for _, aliases, filenames, _ in get_all_lexers(plugins=False)
        if aliases and aliases[0] != _PLAIN and not patterns.isdisjoint(filenames)
    ]
    return max(found, key=lambda lexer: lexer.priority, default=None)


def line_pieces(lexer: Lexer, lines: Sequence[str]) -> list[list[Piece]] | None:
    """Returns lines with newlines in pieces without; None where that would change the text."""
    found: list[list[Piece]] = [[]]
    for kind, text in lexer.get_tokens("".join(lines)):
        style = _style(kind)
        first, *rest = text.split("\n")
        _add(found[-1], first, style)
        for part in rest:
            found.append([])
            _add(found[-1], part, style)
    found.pop()
    texts = ["".join(text for text, _ in pieces) + "\n" for pieces in found]
    return found if texts == list(lines) else None


def _add(pieces: list[Piece], text: str, style: Style | None) -> None:
    if not text:
        return
    if pieces and pieces[-1][1] is style:
        pieces[-1] = (pieces[-1][0] + text, style)
    else:
        pieces.append((text, style))


@cache
def _style(kind: object) -> Style | None:
    from pygments.token import Token

    parents = (
        (Token.Comment, Style.COMMENT),
        (Token.Keyword, Style.KEYWORD),
        (Token.Name.Tag, Style.KEYWORD),
        (Token.Literal.String, Style.STRING),
        (Token.Literal.Number, Style.NUMBER),
    )
    return next((style for parent, style in parents if kind in parent), None)
