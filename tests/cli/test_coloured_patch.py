"""Patches in colour: what is marked, and that no text changes."""

from __future__ import annotations

import re

import pytest

from treesnap.cli.output.coloured_patch import coloured_hunks, without_controls
from treesnap.core.diff.texts import hunks

SGR = re.compile(r"\x1b\[[0-9;]*m")
PROGRAM = b'''def area(width):
    """Return it."""
    if width:  # known
        return width * 2
    return "none"
'''


def coloured(old: bytes, new: bytes) -> str:
    return "".join(coloured_hunks(hunks(old, new)))


def test_words_that_changed_within_a_line_are_marked():
    screen = coloured(PROGRAM, PROGRAM.replace(b"* 2", b"* 3"))

    assert "\x1b[31m-        return width * \x1b[0m\x1b[31;7m2\x1b[0m\n" in screen
    assert "\x1b[32m+        return width * \x1b[0m\x1b[32;7m3\x1b[0m\n" in screen
    assert " def area(width):\n" in screen


def test_what_follows_a_changed_word_is_in_the_colour_of_the_line():
    screen = coloured(b"one two three\n", b"one six three\n")

    assert "\x1b[31m-one \x1b[0m\x1b[31;7mtwo\x1b[0m\x1b[31m three\x1b[0m\n" in screen


@pytest.mark.parametrize(
    "old",
    [
        PROGRAM,
        b"",
        b"\r\n\t x\r\n" * 3,
        b'"""\nopen\n',
        b"/* \x00\x1b[31m\xff */\n\n\n",
        "{\u2028é\x85}\n\x0c\n".encode(),
        b"no newline",
        b'{"a": [1, "x',
    ],
)
def test_colours_never_change_the_text(old):
    for new in (b"first\n" + old, old + b"last", b"", old.replace(b"\n", b"\n\n")):
        pieces = list(hunks(old, new))

        assert SGR.sub("", coloured(old, new)) == "".join(map(without_controls, pieces))


def test_colours_end_at_the_end_of_a_line():
    for line in coloured(b"", b'"""\nmany\nlines\n"""\n').splitlines():
        assert line.endswith("\x1b[0m")
        assert len(re.findall(r"\x1b\[[1-9]", line)) == line.count("\x1b[0m")


def test_diff_and_log_show_them(snap, root):
    (root / "a.py").write_bytes(PROGRAM)
    snap("create")
    (root / "a.py").write_bytes(PROGRAM.replace(b"* 2", b"* 3"))

    word = "\x1b[32;7m3\x1b[0m"
    assert word in snap("diff", "--color", "always").out
    assert word not in snap("diff").out
    snap("create")
    assert word in snap("log", "a.py", "-p", "--color", "always").out
