"""What words and cron expressions mean, for cron and for systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from treesnap.core.model.errors import InvalidArgument
from treesnap.schedule import parse_when

BASE = datetime(2028, 1, 30, 22, 10)  # noqa: DTZ001 - a leap year, in local time as cron has it
ITERATIONS = 30
EXPRESSIONS = [
    "0 * * * *",
    "*/15 9-17 * * 1-5",
    "30 3 1,15 * *",
    "0 0 29 2 *",
    "5-59/20 */6 * * *",
    "0 12 13 * fri",
    "15 4 */2 * mon",
    "0 6 1-31 * 1",
    "0 6 31 2 sun",
    "59 23 * jan,dec 0,6-7",
    "0 0 * 2-11/3 sat-sat",
]


@pytest.mark.parametrize(
    ("text", "calendars"),
    [
        ("hourly", ("*-*-* *:00:00",)),
        ("daily", ("*-*-* 00:00:00",)),
        ("weekly", ("Mon *-*-* 00:00:00",)),
        ("@weekly", ("Sun *-*-* 00:00:00",)),
        ("Monthly", ("*-*-01 00:00:00",)),
        ("30 3 * * mon-fri", ("Mon,Tue,Wed,Thu,Fri *-*-* 03:30:00",)),
        ("0 12 13 * fri", ("*-*-13 12:00:00", "Fri *-*-* 12:00:00")),
        ("0-3,7,9 * * * *", ("*-*-* *:00..03,07,09:00",)),
    ],
)
def test_systemd_is_told_the_values(text, calendars):
    assert parse_when(text).calendars == calendars


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sometimes", "neither one of hourly, daily, weekly, monthly, yearly nor"),
        ("* * * *", "five fields"),
        ("0 0 3 * * *", "five fields"),
        ("@reboot", "not a time"),
        ("60 * * * *", "'60', the minute in '60 \\* .*' must be from 0 to 59|must be from 0 to 59"),
        ("0 0 0 * *", "day of the month .* must be from 1 to 31"),
        ("0 0 L * *", "extensions of cron"),
        ("0 0 * * 5#2", "extensions of cron"),
        ("0 22-2 * * *", "ends before it begins"),
        ("5/15 * * * *", "write 5-59/15"),
        ("*/0 * * * *", "is not a number from 1 on"),
        ("*/ * * * *", "is not a number from 1 on"),
        ("1,, * * * *", "neither a number nor a range"),
        ("0 0 30 2 *", "never comes: no such month has day 30"),
        ("0 0 ² * *", "neither a number"),
        ("", "five fields"),
    ],
)
def test_what_is_not_understood_is_refused_in_words(text, why):
    with pytest.raises(InvalidArgument, match=why):
        parse_when(text)


def values(field: str, low: int, high: int) -> set[int]:
    """The values of a field, as crontab(5) has them."""
    names = ["jan feb mar apr may jun jul aug sep oct nov dec", "sun mon tue wed thu fri sat"]
    for first, words in zip((1, 0), names, strict=True):
        for number, word in enumerate(words.split(), first):
            field = field.replace(word, str(number))
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        ends = (low, high) if span == "*" else [int(end) for end in span.split("-")]
        found |= set(range(ends[0], ends[-1] + 1, int(step or 1)))
    return found


def by_cron(expression: str) -> Iterator[datetime]:
    """The minutes in which cron runs something, looked for one by one."""
    minute, hour, day, month, weekday = expression.split()
    minutes, hours = values(minute, 0, 59), values(hour, 0, 23)
    days, months = values(day, 1, 31), values(month, 1, 12)
    weekdays = {number % 7 for number in values(weekday, 0, 7)}
    date = BASE.replace(hour=0, minute=0)
    while True:
        by_day, by_weekday = date.day in days, date.isoweekday() % 7 in weekdays
        is_and = day.startswith("*") or weekday.startswith("*")
        if date.month in months and (by_day and by_weekday if is_and else by_day or by_weekday):
            for at in sorted((h, m) for h in hours for m in minutes):
                found = date.replace(hour=at[0], minute=at[1])
                if found > BASE:
                    yield found
        date += timedelta(days=1)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_systemd_elapses_when_cron_does(expression):
    found: set[datetime] = set()
    for calendar in parse_when(expression).calendars:
        result = subprocess.run(
            [
                *("systemd-analyze", "calendar", f"--iterations={ITERATIONS}"),
                *("--base-time", BASE.strftime("%Y-%m-%d %H:%M:%S"), calendar),
            ],
            env={"TZ": "UTC", "LC_ALL": "C", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        times = re.findall(r"(?:elapse|#\d+): \w+ (\S+ \S+) UTC", result.stdout)
        assert times
        found |= {datetime.fromisoformat(time) for time in times}

    expected = by_cron(expression)
    firsts = sorted(found)[:ITERATIONS]
    assert firsts == [next(expected) for _ in firsts]
    assert len(firsts) >= 15
