"""Writes the man page of ``snap`` from the reference of the commands.

``docs/reference/cli.md`` is the source: what stands there stands in ``docs/man/snap.1``, which the
wheel installs into ``share/man/man1``. The build of a wheel runs it (``native/hatch_build.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

HERE = Path(__file__).parent
SOURCE = HERE.parent / "reference" / "cli.md"
HEAD = """\
.\\" Made by docs/man/make_man_page.py from docs/reference/cli.md; do not edit.
.TH SNAP 1 "" treesnap "User commands"
.SH NAME
snap, treesnap \\- undo for any directory
.SH SYNOPSIS
.B snap
[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]
.SH DESCRIPTION
"""
ALIAS = ".so man1/snap.1\n"
"""The page of ``treesnap``, which is the same command."""


def page() -> str:
    """Returns the man page."""
    tokens = MarkdownIt().enable("table").parse(SOURCE.read_text(encoding="utf-8"))
    text = HEAD + "".join(f"{line}\n" for line in roff_lines(tokens) if line)
    return text.replace(".SH DESCRIPTION\n.SH COMMANDS\n", ".SH DESCRIPTION\n")


def roff_lines(tokens: Sequence[Token]) -> Iterator[str]:
    """Yields the lines of blocks; each begins with a macro, or with text that is none."""
    rows: list[list[str]] = []
    in_item = False
    for position, token in enumerate(tokens):
        following = tokens[position + 1] if position + 1 < len(tokens) else None
        match token.type:
            case "heading_open":
                assert following is not None
                title = inline(following)
                if token.tag == "h1":
                    yield ".SH COMMANDS"
                else:
                    yield f".SH {plain(following).upper()}" if token.tag == "h2" else f".SS {title}"
            case "paragraph_open" if not in_item and tokens[position - 1].type != "heading_close":
                yield ".PP"
            case "list_item_open":
                in_item = True
                yield ".IP \\(bu 2"
            case "list_item_close":
                in_item = False
            case "fence":
                yield ".PP\n.RS 4\n.nf"
                yield from (text_line(escaped(line)) for line in token.content.splitlines())
                yield ".fi\n.RE"
            case "tr_open":
                rows.append([])
            case "inline" if token.level and tokens[position - 1].type in {"th_open", "td_open"}:
                rows[-1].append(inline(token))
            case "table_close":
                for name, *meaning in rows[1:]:  # the heading of a table says nothing in a man page
                    yield f".TP\n{text_line(name)}\n{text_line('; '.join(meaning))}"
                rows = []
            case "inline" if tokens[position - 1].type == "paragraph_open":
                yield text_line(inline(token))
            case _:
                continue


def inline(token: Token) -> str:
    """Returns text with code in bold; a link is its text, since a man page has none."""
    pieces = []
    for child in token.children or ():
        match child.type:
            case "text":
                pieces.append(escaped(child.content))
            case "code_inline":
                pieces.append(f"\\fB{escaped(child.content)}\\fR")
            case "strong_open":
                pieces.append("\\fB")
            case "em_open":
                pieces.append("\\fI")
            case "strong_close" | "em_close":
                pieces.append("\\fR")
            case "softbreak":
                pieces.append(" ")
    return "".join(pieces)


def plain(token: Token) -> str:
    """Returns text without fonts."""
    return re.sub(r"\\f[BIR]", "", inline(token))


def escaped(text: str) -> str:
    """Returns text that roff prints as it stands."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")


def text_line(text: str) -> str:
    """Returns a line that is text even if it begins like a macro; an empty one too."""
    return f"\\&{text}" if text.startswith((".", "'")) or not text else text


def main() -> None:
    """Writes both pages."""
    (HERE / "snap.1").write_text(page(), encoding="utf-8")
    (HERE / "treesnap.1").write_text(ALIAS, encoding="utf-8")


if __name__ == "__main__":
    main()
