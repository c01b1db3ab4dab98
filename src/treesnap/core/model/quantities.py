"""Durations, moments, sizes and counts as people write them, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from time import localtime, strftime

from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.type_names import TypeVar

_Item = TypeVar("_Item")

_SECONDS = {"w": 7 * 86_400, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_BYTES = {"t": 1 << 40, "g": 1 << 30, "m": 1 << 20, "k": 1 << 10, "": 1}
_DURATION_PART = LateRegex(r"([0-9]{1,9})([wdhms])")
_TIME_OF_DAY = LateRegex(r"(?a)\d\d:\d\d(:\d\d)?")
_DATE = LateRegex(r"(?a)\d{4}-\d\d-\d\d")
_SIZE = LateRegex(r"(?ai)(\d{1,15})(?:\.(\d{1,3}))?\s*([kmgt]?)(?:i?b)?")


def parse_duration(text: str) -> int:
    """Returns the seconds of ``36h``, ``2w`` or ``1d12h``; raises InvalidArgument."""
    parts = _DURATION_PART.compiled.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidArgument(f"{text!r} is not of the form 36h, 2w or 1d12h")
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)


def parse_moment(text: str, now_ns: int, sign: str = "") -> int:
    """Returns the nanoseconds since 1970 of a moment as people write it, in the local zone.

    ``2h`` is so long ago. ``14:30`` is the last time that it was half past two. ``yesterday``,
    ``today`` and a date such as ``2026-11-20`` are the end of that day, and
    ``2026-11-20T14:30`` is that moment, with a zone of its own if one is given (``Z``,
    ``+02:00``). Raises InvalidArgument, whose message has the ``sign`` that stood before the text.
    """
    try:
        now = datetime.fromtimestamp(now_ns // 1_000_000_000).astimezone()
    except ValueError as error:  # a zone of POSIX may be a week away
        raise InvalidArgument(
            "The local time zone is a day or more from UTC, so times cannot be read in it; set TZ"
        ) from error
    try:
        return _moment_ns(text.strip().lower(), now, now_ns)
    except (ValueError, OverflowError, OSError):
        raise InvalidArgument(
            f"{sign + text!r} is not a time such as {sign}2h, {sign}14:30, {sign}yesterday or "
            f"{sign}2026-11-20T14:30"
        ) from None


def _moment_ns(text: str, now: datetime, now_ns: int) -> int:
    days_ago = {"today": 0, "yesterday": 1}.get(text)
    if days_ago is not None:
        return _end_of_day_ns(now.date() - timedelta(days=days_ago))
    if _DURATION_PART.compiled.match(text):
        return now_ns - parse_duration(text) * 1_000_000_000
    if _TIME_OF_DAY.compiled.fullmatch(text):
        moment = datetime.combine(now.date(), time.fromisoformat(text)).astimezone()
        if moment > now:
            moment = datetime.combine(now.date() - timedelta(days=1), moment.time()).astimezone()
    elif _DATE.compiled.fullmatch(text):
        return _end_of_day_ns(date.fromisoformat(text))
    else:
        moment = datetime.fromisoformat(text.upper())
        moment = moment if moment.tzinfo is not None else moment.astimezone()
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def _end_of_day_ns(day: date) -> int:
    """Returns the last nanosecond of a day, which need not have 24 hours."""
    following = datetime.combine(day + timedelta(days=1), time()).astimezone()
    return int(following.timestamp()) * 1_000_000_000 - 1


def time_text(time_ns: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Returns a time in the local zone; beyond calendars, seconds as date(1) takes them."""
    try:
        return strftime(form, localtime(time_ns // 1_000_000_000))
    except (OverflowError, OSError):
        return f"@{time_ns // 1_000_000_000}"


def parse_size(text: str) -> int:
    """Returns the bytes of ``500M``, ``1.5GiB`` or ``0``; raises InvalidArgument.

    Units are powers of 1024.
    """
    match = _SIZE.compiled.fullmatch(text)
    if match is None:
        raise InvalidArgument(f"{text!r} is not of the form 500M or 1.5GiB")
    whole, fraction, unit = match.groups()
    scale = _BYTES[unit.lower()]
    part = int(fraction or "0") * scale // int("1" + "0" * len(fraction or "0"))
    return int(whole) * scale + part


def format_duration(duration_s: int) -> str:
    """Returns seconds in the form that :func:`parse_duration` reads, in the largest units."""
    pieces = []
    for unit, seconds in _SECONDS.items():
        count, duration_s = divmod(duration_s, seconds)
        if count:
            pieces.append(f"{count}{unit}")
    return "".join(pieces) or "0s"


def format_size(size_bytes: int) -> str:
    """Returns bytes in the form that :func:`parse_size` reads, exactly."""
    for unit, scale in _BYTES.items():
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes // scale}{unit.upper()}"
    return "0"


def size_text(size_bytes: int) -> str:
    """Returns bytes as messages show them: ``512 B``, ``1.5 GiB``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def count_text(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a count with its noun: ``1 file``, ``2,000 files``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def first_few(items: Sequence[_Item], text: Callable[[_Item], str], shown_max: int = 5) -> str:
    """Returns the first items on one line, and how many more there are: ``a, b and 7 more``."""
    lines = first_lines(items, text, shown_max)
    return " ".join([", ".join(lines[:shown_max]), *lines[shown_max:]])


def first_lines(
    items: Sequence[_Item], text: Callable[[_Item], str], shown_max: int, count: int | None = None
) -> list[str]:
    """Returns a line for each of the first items, then ``and 7 more`` if there are others.

    ``count`` is how many there are, where ``items`` lacks the last of them.
    """
    more = (len(items) if count is None else count) - shown_max
    lines = [text(item) for item in items[:shown_max]]
    return [*lines, f"and {more:,} more"] if more > 0 else lines
