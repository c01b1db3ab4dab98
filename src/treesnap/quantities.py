"""Durations, sizes and counts as people write them, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from treesnap.errors import InvalidArgument

_Item = TypeVar("_Item")

_SECONDS = {"w": 7 * 86_400, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_BYTES = {"t": 1 << 40, "g": 1 << 30, "m": 1 << 20, "k": 1 << 10, "": 1}
_DURATION_PART = re.compile(r"(\d{1,9})([wdhms])")
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,3}))?\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_duration(text: str) -> int:
    """Returns the seconds of ``36h``, ``2w`` or ``1d12h``; raises InvalidArgument."""
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidArgument(f"{text!r} is not of the form 36h, 2w or 1d12h")
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)


def parse_size(text: str) -> int:
    """Returns the bytes of ``500M``, ``1.5GiB`` or ``0``; raises InvalidArgument.

    Units are powers of 1024.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"{text!r} is not of the form 500M or 1.5GiB")
    whole, fraction, unit = found.groups()
    scale = _BYTES[unit.lower()]
    part = int(fraction or "0") * scale // int("1" + "0" * len(fraction or "0"))
    return int(whole) * scale + part


def duration_text(duration_s: int) -> str:
    """Returns seconds in the form that :func:`parse_duration` reads, in the largest units."""
    pieces = []
    for unit, seconds in _SECONDS.items():
        count, duration_s = divmod(duration_s, seconds)
        if count:
            pieces.append(f"{count}{unit}")
    return "".join(pieces) or "0s"


def size_text(size_bytes: int) -> str:
    """Returns bytes in the form that :func:`parse_size` reads, exactly."""
    for unit, scale in _BYTES.items():
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes // scale}{unit.upper()}"
    return "0"


def first_few(items: Sequence[_Item], text: Callable[[_Item], str], shown_max: int = 5) -> str:
    """Returns the first items on one line, and how many more there are: ``a, b and 7 more``."""
    shown = ", ".join(text(item) for item in items[:shown_max])
    more = len(items) - shown_max
    return f"{shown} and {more:,} more" if more > 0 else shown
