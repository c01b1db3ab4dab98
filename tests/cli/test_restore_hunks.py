"""``snap restore --patch``: asks on a terminal which hunks of a file to restore."""

from __future__ import annotations

import sys

import pytest

from terminal import shown_on_a_terminal

pytestmark = pytest.mark.sampled(10)

OLD = "".join(f"line {number}\n" for number in range(30))
LIVE = OLD.replace("line 3\n", "three\n").replace("line 20\n", "").replace("line 29\n", "last")


@pytest.fixture
def changed(snap, root):
    (root / "text").write_text(OLD)
    snap("create", "--name", "old")
    (root / "text").write_text(LIVE)
    return root / "text"


@pytest.fixture
def asked(root, environment):
    """Runs ``restore old text --patch`` on a terminal with some answers; returns what it shows."""

    def run(*answers: str, code: int = 0) -> str:
        shown = shown_on_a_terminal(
            [sys.executable, "-m", "treesnap", "restore", "old", "text", "-p"],
            cwd=root,
            env={**environment, "NO_COLOR": "1"},
            answers=answers,
            code=code,
        )
        return shown.decode().replace("\r\n", "\n")

    return run


def test_it_restores_what_is_answered_with_yes(asked, changed):
    shown = asked("y", "?", "n", "y")

    assert changed.read_text() == OLD.replace("line 20\n", "")
    assert "@@ -1,7 +1,7 @@\n line 0\n line 1\n line 2\n-three\n+line 3\n" in shown
    assert "Restore hunk 3 of 3? [y,n,a,q,?] " in shown
    assert "-last\n\\ No newline at end of file\n+line 29\n" in shown
    assert "a: restore this hunk and all below" in shown
    assert "To undo this: snap undo" in shown.replace("treesnap undo", "snap undo")


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        (["a"], OLD),
        (["n", "a"], OLD.replace("line 3\n", "three\n")),
        (["y", "q"], LIVE.replace("three\n", "line 3\n")),
        (["q"], LIVE),
        (["n", "wrong", "n", "n"], LIVE),
    ],
)
def test_all_and_quit_end_the_questions(asked, changed, answers, text):
    shown = asked(*answers)

    assert changed.read_text() == text
    assert ("Nothing was restored" in shown) == (text == LIVE)


def test_undo_goes_back(asked, changed, snap):
    asked("a")

    assert snap("undo").code == 0
    assert changed.read_text() == LIVE


def test_without_a_difference_nothing_is_asked(asked, changed):
    changed.write_text(OLD)

    assert "no line differs" in asked()


def test_control_characters_are_shown_as_escapes(asked, changed):
    changed.write_text("\x1b[31mred\n")

    shown = asked("q")

    assert "-\\x1b[31mred" in shown
    assert "\x1b[31m" not in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["text"], "needs a terminal"),
        ([], "--patch is about one PATH"),
        (["text", "other"], "--patch is about one PATH"),
        (["text", "--dry-run"], "--patch excludes"),
        (["text", "--json"], "--patch excludes"),
        (["text", "--to", "elsewhere"], "--patch excludes"),
    ],
)
def test_what_it_cannot_do_is_refused(snap, changed, words, message):
    result = snap("restore", "old", "--patch", *words)

    assert result.code == 2
    assert message in result.err + result.out
    assert changed.read_text() == LIVE
