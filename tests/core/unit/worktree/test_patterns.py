"""What patterns cost; tests/core/ignore/test_gitignore.py tests that they match as git does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.worktree.scan.patterns import Matcher, expression, parse_lines, parse_pattern

DEPTH = 100
EVIL = {
    "stars in a name": ("*a" * 60 + "b", "a" * 200),
    "stars and any bytes": ("*?a" * 60 + "b", "a" * 200),
    "stars and brackets": ("*[ab]" * 60 + "c", "ab" * 100),
    "stars in a path": ("x/" + "*a" * 60 + "b", "x/" + "a" * 200),
    "any depth": ("**/a/" * 30 + "b", "/".join("a" * DEPTH)),
    "any depth, then a file": ("**/a/" * 30 + "**/b", "/".join("a" * DEPTH)),
    "any depth and stars": ("**/*a*/" * 30 + "b", "/".join(["aaaa"] * DEPTH)),
    "any depth twice": ("**/**/a/" * 30 + "b", "/".join("a" * DEPTH)),
    "many components": ("**/" + "*/" * 30 + "a/" * 30 + "b", "/".join("a" * DEPTH)),
    "an escaped slash": ("**\\/a" * 30 + "b", "/".join("a" * DEPTH)),
    "stars before a depth": ("x**/*a*a*a*a*a*a*a*a*a*a*b/**/c", "x" + "/".join(["a" * 200] * 20)),
}


@pytest.mark.parametrize("name", EVIL)
def test_no_pattern_takes_time_that_grows_exponentially(name):
    pattern, path = (text.encode() for text in EVIL[name])
    matcher = Matcher([pattern])

    # With exponential time this would not end.
    for is_directory in (True, False):
        assert matcher.verdict(path.split(b"/")[-1], path, is_directory=is_directory) is None


TOKENS = st.sampled_from(["a", "b", "/", "*", "**/", "/**/", "?", "[ab]", "[!a]", "**", "\\/"])


@given(st.lists(TOKENS, max_size=60).map("".join))
def test_an_expression_repeats_only_what_cannot_be_divided_in_two_ways(text):
    pattern = parse_pattern(text.encode())
    if pattern is None or pattern.literal is not None:
        return
    made = expression(pattern.tokens)

    # What is repeated is one set, or one component: neither can be divided in two ways. And it is
    # the first part of an atomic group, which is not entered again once it has matched.
    single = made.replace(b"(?>(?:[^/]*/)*?", b"(").replace(b"(?>(?:[^/]*/)+?", b"(")
    single = single.replace(b"(?>[^/]*?", b"(").replace(b"(?>[^/]*", b"(")
    assert not set(single) & set(b"*+{|")


@given(st.lists(st.binary(max_size=12), max_size=6))
def test_any_bytes_are_rules(lines):
    patterns, useless = parse_lines(b"\n".join(lines))

    Matcher(patterns).verdict(b"a", b"a/a", is_directory=False)
    assert len(patterns) + len(useless) <= sum(1 + line.count(b"\n") for line in lines)


def test_lines_that_can_match_nothing_are_reported():
    data = b"# no\n\n  \na\\\n!\n[a\nkept\n/\n//\na[[:none:]]\n[/]\nx/\n\\  \na//\n"

    patterns, useless = parse_lines(data)

    assert patterns == (b"kept", b"x/", b"\\ ")
    numbers = [number for number, _ in useless]
    assert numbers == [4, 5, 6, 8, 9, 10, 11, 14]


def test_a_short_path_is_not_matched_against_a_long_pattern():
    long = b"*a" * 20_000
    matcher = Matcher([long, b"*b*c", b"x/" + long])

    assert matcher.verdict(b"abc", b"x/abc", is_directory=False)
    assert matcher.verdict(b"aaa", b"x/aaa", is_directory=False) is None


def test_the_last_of_many_patterns_decides():
    lines = [f"{'!' if number % 2 else ''}*{number}?".encode() for number in range(500)]
    lines += [b"!*.o", b"a.o", b"**/b.o", b"d/c.o", b"!d/c.*", b"*"]
    without_last = Matcher(lines[:-1])

    def says(path: str) -> bool | None:
        return without_last.verdict(
            path.rpartition("/")[2].encode(), path.encode(), is_directory=False
        )

    assert [says(path) for path in ("x40y", "x41y", "x499y")] == [True, False, False]
    assert [says(path) for path in ("a.o", "c.o", "b.o", "d/b.o", "d/c.o", "d")] == [
        *(True, False, True, True),
        *(False, None),
    ]
    assert Matcher(lines).verdict(b"d", b"d", is_directory=False)


@pytest.mark.parametrize("one", [b"[!a]", b"[!-~]", b"[[:graph:]]", b"[^b-y]", b"[\xff]"])
def test_the_expression_of_a_bracket_is_about_as_long_as_the_bracket(one):
    """Compiling takes the length of the expression: 200 KB of ``[!a]`` took half a minute."""
    pattern = parse_pattern(one * 50)
    assert pattern is not None

    assert len(expression(pattern.tokens)) <= 50 * 6 * len(one)
