"""When a timer elapses: a word or a cron expression, for cron and for systemd.

A cron expression is expanded to the values that it stands for, so nothing depends on what the two
mean by a step or a range. Where both days of the month and days of the week are restricted, cron
takes either and one expression of systemd demands both; such a schedule becomes two expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.named_tuple import NamedTuple

WORDS: Mapping[str, str] = {
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "weekly": "0 0 * * 1",
    "monthly": "0 0 1 * *",
    "yearly": "0 0 1 1 *",
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""What can be said in a word, as cron expressions."""
_WEEKDAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_LENGTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_RUN_MIN = 3
"""From so many values in a row a range is easier to read than a list."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: Mapping[str, int]


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of the month", 1, 31, {}),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of the week", 0, 7, {name.lower(): n for n, name in enumerate(_WEEKDAYS)}),
)


class When(NamedTuple):
    """When a timer elapses, in local time."""

    text: str
    """As it was given."""
    cron: str
    """The five fields of cron."""
    calendars: tuple[str, ...]
    """Expressions of systemd, of which any one suffices."""


def parse_when(text: str) -> When:
    """Returns what a word or a cron expression means; raises InvalidArgument with the reason."""
    words = text.split()
    expression = WORDS.get(text.strip().lower(), " ".join(words))
    fields = expression.split(" ")
    if text.strip().lower() == "@reboot":
        raise InvalidArgument("'@reboot' is not a time of the day, and cannot be scheduled")
    if len(fields) != len(_FIELDS):
        known = ", ".join(word for word in WORDS if not word.startswith("@"))
        raise InvalidArgument(
            f"{text!r} is neither one of {known} nor a cron expression of five fields, such as "
            "'30 3 * * mon-fri': minute, hour, day of the month, month, day of the week"
        )
    minutes, hours, days, months, weekdays = (
        _values(given, field, text) for given, field in zip(fields, _FIELDS, strict=True)
    )
    weekdays = sorted({number % 7 for number in weekdays})
    days_given, weekdays_given = fields[2], fields[4]
    # As cron has it: a field that begins with a star does not count as a restriction.
    is_either = not days_given.startswith("*") and not weekdays_given.startswith("*")
    is_never = min(days) > max(_MONTH_LENGTHS[month - 1] for month in months)
    if is_never and not is_either:
        raise InvalidArgument(f"{text!r} never comes: no such month has day {min(days)}")
    date = f"*-{_text(months, 12)}"
    time = f"{_text(hours, 24)}:{_text(minutes, 60)}:00"
    any_weekday = len(weekdays) == len(_WEEKDAYS)
    names = "" if any_weekday else ",".join(_WEEKDAYS[day] for day in weekdays) + " "
    if is_either and not any_weekday and len(days) < 31:
        by_day = f"{date}-{_text(days, 31)} {time}"
        calendars = (f"{names}{date}-* {time}",)
        return When(text, expression, (*((by_day,) if not is_never else ()), *calendars))
    if is_either:  # one of both is every day
        return When(text, expression, (f"{date}-* {time}",))
    return When(text, expression, (f"{names}{date}-{_text(days, 31)} {time}",))


def _values(given: str, field: _Field, text: str) -> list[int]:
    """Returns the values that a field of a cron expression stands for, sorted."""

    def refuse(why: str) -> InvalidArgument:
        return InvalidArgument(f"{given!r}, the {field.name} in {text!r}, {why}")

    def number(word: str) -> int:
        named = field.names.get(word.lower())
        if named is not None:
            return named
        if not (word.isascii() and word.isdigit() and len(word) <= 4):
            raise refuse(
                f"has {word!r}, which is neither a number nor a range; extensions of cron such as "
                "'L', 'W', '#' and '?' are not supported"
            )
        value = int(word)
        if not field.low <= value <= field.high:
            raise refuse(f"must be from {field.low} to {field.high}")
        return value

    numbers: set[int] = set()
    for part in given.split(","):
        span, slash, step_text = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            low, high = field.low, field.high
        elif dash:
            low, high = number(first), number(last)
        elif slash:
            raise refuse(f"steps from a single value; write {span}-{field.high}/{step_text}")
        else:
            low = high = number(span)
        if low > high:
            raise refuse("is a range that ends before it begins")
        step = 1
        if slash:
            if not (step_text.isascii() and step_text.isdigit() and 0 < int(step_text) <= 1000):
                raise refuse(f"has the step {step_text!r}, which is not a number from 1 on")
            step = int(step_text)
        numbers.update(range(low, high + 1, step))
    return sorted(numbers)


def _text(values: Sequence[int], count: int) -> str:
    """Returns values as systemd writes them: a star for all, ranges and a list otherwise."""
    if len(values) == count:
        return "*"
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    pieces: list[str] = []
    for run in runs:
        if len(run) >= _RUN_MIN:
            pieces.append(f"{run[0]:02d}..{run[-1]:02d}")
        else:
            pieces += [f"{value:02d}" for value in run]
    return ",".join(pieces)
