"""Colours of a language in patches: which words have them, and that no text changes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from treesnap.cli.output.coloured_patch import coloured_hunks, harmless
from treesnap.cli.output.syntax_colours import PATCH_SIZE_MAX, SyntaxColours
from treesnap.core.diff.texts import hunks

SGR = re.compile(r"\x1b\[[0-9;]*m")
PROGRAM = b'''def area(width):
    """Return it."""
    if width:  # known
        return width * 2
    return "none"
'''


def coloured(old: bytes, new: bytes, path: bytes = b"a.py") -> str:
    pieces = list(hunks(old, new))
    lexer = SyntaxColours().lexer_for(path, sum(map(len, pieces)))
    return "".join(coloured_hunks(pieces, lexer))


def test_words_of_the_language_have_colours():
    screen = coloured(PROGRAM, PROGRAM.replace(b"* 2", b"* 3"))

    assert " \x1b[34mdef\x1b[0m area(width):\n" in screen
    assert "\x1b[3;2m# known\x1b[0m\n" in screen
    assert '\x1b[35m"none"\x1b[0m\n' in screen


def test_added_and_removed_lines_stay_green_and_red():
    screen = coloured(PROGRAM, PROGRAM.replace(b"* 2", b"* 3"))

    assert "\x1b[31m-        \x1b[0m\x1b[31;1mreturn\x1b[0m\x1b[31m width * \x1b[0m" in screen
    assert "\x1b[32;7m3\x1b[0m\n" in screen


@pytest.mark.parametrize("path", [b"a.py", b"a.c", b"a.json", b"a.md", b"a.sh", b"a.html", b"a"])
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
def test_colours_never_change_the_text(path, old):
    for new in (b"first\n" + old, old + b"last", b"", old.replace(b"\n", b"\n\n")):
        pieces = list(hunks(old, new))

        assert SGR.sub("", coloured(old, new, path)) == "".join(map(harmless, pieces))


def test_colours_end_at_the_end_of_a_line():
    for line in coloured(b"", b'"""\nmany\nlines\n"""\n').splitlines():
        assert line.endswith("\x1b[0m")
        assert len(re.findall(r"\x1b\[[1-9]", line)) == line.count("\x1b[0m")


def test_long_patches_and_the_rest_of_many_have_no_lexer():
    colours = SyntaxColours()

    assert colours.lexer_for(b"a.py", PATCH_SIZE_MAX + 1) is None
    found = [colours.lexer_for(b"a.py", PATCH_SIZE_MAX) for _ in range(4)]
    assert [lexer is not None for lexer in found] == [True] * 2 + [False] * 2
    assert SyntaxColours().lexer_for(b"notes.txt", 10) is None


def test_diff_and_log_show_them(snap, root):
    (root / "a.py").write_bytes(PROGRAM)
    snap("create")
    (root / "a.py").write_bytes(PROGRAM.replace(b"* 2", b"* 3"))

    word = "\x1b[34mdef\x1b[0m"
    assert word in snap("diff", "--color", "always").out
    assert word not in snap("diff").out
    snap("create")
    assert word in snap("log", "a.py", "-p", "--color", "always").out


@pytest.mark.parametrize("words", [["--color", "never"], ["--color", "always"]])
def test_no_lexer_is_loaded_without_colours_or_for_many_files(run_snap, root, environment, words):
    for number in range(101 if "always" in words else 1):
        (root / f"{number}.py").write_bytes(PROGRAM)
    run_snap("create", cwd=root)
    for path in root.iterdir():
        path.write_bytes(b"# new\n" + PROGRAM)
    program = (
        "import os, sys; from treesnap.cli.main import main; sys.argv[0] = 'snap'; "
        "os._exit = lambda _: print(*sys.modules, file=sys.stderr); main()"
    )

    result = subprocess.run(
        [sys.executable, "-P", "-c", program, "diff", *words],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "+# new" in result.stdout
    assert "pygments" not in result.stderr.split()
    assert "treesnap.cli.output.patches" in result.stderr.split()
