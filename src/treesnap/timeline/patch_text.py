"""A patch with colours: the language of the file, and what was added and removed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice

from rich.syntax import Syntax
from rich.text import Text

from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import size_text

LINES_MAX = 5000
"""Lines of a patch that are shown; the rest is counted."""
HIGHLIGHTED_SIZE_MAX = 256 * 1024
"""A patch of more characters has the colours of a patch alone: a language takes too long."""
_BACKGROUNDS = {"+": "on #12321c", "-": "on #3b1a1e", " ": ""}


def patch_lines(patch: Iterable[bytes], path: bytes) -> list[Text]:
    """Returns the lines of a patch of one file, which need not be UTF-8."""
    texts = [_harmless(line) for line in islice(patch, LINES_MAX + 1)]
    if len(texts) > LINES_MAX:
        texts[LINES_MAX:] = [f"@@ only the first {LINES_MAX} lines are shown @@"]
    first_hunk = next((n for n, text in enumerate(texts) if text.startswith("@@")), len(texts))
    lines = [Text(text, "bold") for text in texts[:first_hunk]]
    body = texts[first_hunk:]
    coloured = highlighted([text[1:] if text[:1] in _BACKGROUNDS else "" for text in body], path)
    for text, content in zip(body, coloured, strict=True):
        if text[:1] in _BACKGROUNDS:
            line = Text(text[0], _BACKGROUNDS[text[0]] or "")
            content.stylize_before(_BACKGROUNDS[text[0]])
            lines.append(line.append_text(content))
        else:
            lines.append(Text(text, "cyan"))
    return lines


def content_lines(content: bytes, path: bytes) -> list[Text]:
    """Returns the lines of a file with the colours of its language."""
    if b"\0" in content:
        return [Text(f"Binary file: {size_text(len(content))}", "italic")]
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    texts = [_harmless(line) for line in lines[:LINES_MAX]]
    shown = highlighted(texts, path)
    if len(lines) > LINES_MAX:
        shown.append(Text(f"(only the first {LINES_MAX} lines of {len(lines)} are shown)", "cyan"))
    return shown


def highlighted(lines: list[str], path: bytes) -> list[Text]:
    """Returns lines with the colours of the language that a file's name stands for."""
    code = "\n".join(lines)
    lexer = Syntax.guess_lexer(os.path.basename(printable(path)))
    if lexer == "default" or len(code) > HIGHLIGHTED_SIZE_MAX:
        return [Text(line) for line in lines]
    text = Syntax(code, lexer, theme="ansi_dark").highlight(code)
    styled = list(text.split("\n", allow_blank=True))[: len(lines)]
    return styled + [Text("") for _ in range(len(lines) - len(styled))]


def _harmless(line: bytes) -> str:
    return "    ".join(printable(part) for part in line.rstrip(b"\n").split(b"\t"))
