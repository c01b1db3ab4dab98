"""Quantities in messages."""

import time
from datetime import datetime

import pytest

from treesnap.core.model import quantities
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.quantities import first_few, parse_moment


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (1, "<0>"), (3, "<0>, <1>, <2>"), (4, "<0>, <1>, <2> and 1 more")],
)
def test_the_first_few_are_named_and_the_others_counted(count, text):
    assert first_few(range(count), lambda number: f"<{number}>", 3) == text


def test_large_counts_have_commas():
    assert first_few(range(5005), str) == "0, 1, 2, 3, 4 and 5,000 more"


@pytest.fixture(params=["Europe/Berlin"])
def local_zone(monkeypatch, request):
    """A zone with summer time, or another one."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("local_zone")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", "2026-03-29T13:30:00+02:00"),
        ("1d12h", "2026-03-28T02:00:00+01:00"),
        ("0s", "2026-03-29T15:00:00+02:00"),
        ("14:30", "2026-03-29T14:30:00+02:00"),
        ("15:00:01", "2026-03-28T15:00:01+01:00"),
        ("2026-11-20T12:00", "2026-11-20T12:00:00+01:00"),
        ("2026-11-20T12:00Z", "2026-11-20T12:00:00+00:00"),
        ("2026-11-20t12:00:05.25+05:30", "2026-11-20T12:00:05.25+05:30"),
    ],
)
def test_moments_are_read_as_people_write_them(text, expected):
    now_ns = int(datetime.fromisoformat("2026-03-29T15:00:00+02:00").timestamp()) * 10**9

    assert (
        parse_moment(text, now_ns)
        == round(datetime.fromisoformat(expected).timestamp() * 100) * 10**7
    )


@pytest.mark.usefixtures("local_zone")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yesterday", "2026-03-29T00:00:00+01:00"),
        ("Today", "2026-03-30T00:00:00+02:00"),
        ("2026-03-28", "2026-03-29T00:00:00+01:00"),
    ],
)
def test_a_day_ends_just_before_the_next_one(text, expected):
    now_ns = int(datetime.fromisoformat("2026-03-29T15:00:00+02:00").timestamp()) * 10**9

    assert parse_moment(text, now_ns) == (
        int(datetime.fromisoformat(expected).timestamp()) * 10**9 - 1
    )


@pytest.mark.parametrize("local_zone", ["AAA+167:59:59"], indirect=True)
@pytest.mark.usefixtures("local_zone")
def test_a_zone_that_is_a_week_away_is_refused():
    with pytest.raises(InvalidArgument, match="set TZ"):
        parse_moment("yesterday", 1_700_000_000 * 10**9)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2x", "25:00", "2026-13-01", "2026-11-20T99:00", "9999-12-31", "-1h", "1h "],
)
def test_what_is_no_moment_is_refused(text):
    if text == "1h ":
        assert parse_moment(text, 7_200 * 10**9) == 3_600 * 10**9
        return
    with pytest.raises(InvalidArgument, match="is not a time"):
        parse_moment(text, 1_700_000_000 * 10**9)


@pytest.mark.parametrize("text", ["\u0661\u0662M", "\uff15G", "1.\u0665K"])
def test_a_size_has_digits_of_ascii(text):
    with pytest.raises(InvalidArgument):
        quantities.parse_size(text)
