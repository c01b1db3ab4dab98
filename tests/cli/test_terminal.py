"""What a terminal shows: times, widths, tables, colours, the pager; a pipe has none."""

from __future__ import annotations

import time

import pytest

from treesnap.cli.output import streams
from treesnap.cli.output.streams import Output, pager_command
from treesnap.cli.output.terminal import Cell, Style, Terminal, cut, table, width_of

NOON_NS = 1_790_000_000 * 10**9 // 86_400 // 10**9 * 86_400 * 10**9 + 43_200 * 10**9


@pytest.fixture
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (0, "just now"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3_599, "59 min ago"),
        (3_600, "1 h ago"),
        (28_800, "today 04:00"),
        (43_201, "yesterday 23:59"),
        (86_400 + 43_200, "yesterday 00:00"),
        (-3_600, "today 13:00"),
    ],
)
def test_times_are_said_as_seen_from_now(age_s, text):
    assert Terminal(80, now_ns=NOON_NS).when(NOON_NS - age_s * 10**9) == text


@pytest.mark.usefixtures("utc")
def test_older_times_have_their_date_and_pipes_have_all_of_it():
    then_ns = NOON_NS - 100 * 86_400 * 10**9
    shown = time.gmtime(then_ns // 10**9)

    same_year = Terminal(80, now_ns=then_ns + 3 * 86_400 * 10**9).when(then_ns)
    assert same_year == time.strftime("%b %d 12:00", shown)
    assert Terminal(80, now_ns=then_ns + 400 * 86_400 * 10**9).when(then_ns) == time.strftime(
        "%Y-%m-%d", shown
    )
    assert Terminal(None, now_ns=NOON_NS).when(then_ns) == time.strftime("%Y-%m-%d %H:%M:%S", shown)
    assert Terminal(80, now_ns=NOON_NS).when(10**30).startswith("@")


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        ("plain", 5, "plain"),
        ("plainer", 5, "plai…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
        ("text", 0, ""),
    ],
)
def test_texts_are_cut_by_the_columns_that_they_take_up(text, columns, expected):
    assert cut(text, columns) == expected
    assert width_of(expected) <= columns


@pytest.mark.parametrize("columns", range(30, 90, 7))
def test_no_line_of_a_table_is_wider_than_the_terminal(columns):
    rows = [[Cell("id"), Cell("日本" * (n % 4)), Cell("label " * n)] for n in range(12)]

    lines = list(table(rows, Terminal(columns), (1,), ["A", "B", "C"]))

    assert len(lines) == 13
    assert all(width_of(line) <= columns for line in lines)


def test_a_pipe_gets_whole_lines_and_no_codes():
    (line,) = table([[Cell("a", Style.ADDED), Cell("b" * 500, Style.DIM)]], Terminal())

    assert line == "a  " + "b" * 500


@pytest.mark.parametrize(
    ("colour", "is_shown", "environment", "expected"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {}, False),
    ],
)
def test_who_gets_colours(monkeypatch, colour, is_shown, environment, expected):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)

    monkeypatch.setattr(streams, "is_terminal", lambda _stream: is_shown)
    output = Output("snap")
    output.colour = colour

    assert output.terminal(0).has_colours is expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SNAP_PAGER": "head -n 3", "PAGER": "cat"}, ["head", "-n", "3"]),
        ({"SNAP_PAGER": "", "PAGER": "head"}, None),
        ({"PAGER": "cat"}, None),
        ({}, ["less"]),
    ],
)
def test_the_pager_is_chosen_as_git_does(monkeypatch, environment, expected):
    for name in ("SNAP_PAGER", "PAGER"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)

    assert pager_command() == expected
