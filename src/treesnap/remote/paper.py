"""A paper key: 32 random bytes as lines that a person can print, keep, and type again.

    1  7K3M-9QXA-M0VC-E5TD

Each of the four lines has 8 bytes and a check of 2, in 16 digits of base 32 that people do not
mistake for each other. The check has the number of the line in it, so a line that was mistyped,
or stands in the place of another, is named. What else is on the paper is for people.
"""

from __future__ import annotations

import re

from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.ids import checksum

LINE_COUNT = 4
_LINE_SIZE = 8
_CHECK_SIZE = 2
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_DIGIT_COUNT = 16
_MISREAD = str.maketrans("OIL", "011")
_LINE = re.compile(r"\s*([1-4])[\s.:)]+([0-9A-Za-z]{1,8}[0-9A-Za-z\s-]*)\Z")


def lines_of(key: bytes) -> tuple[str, ...]:
    """Returns the lines of a key."""
    parts = (key[start : start + _LINE_SIZE] for start in range(0, len(key), _LINE_SIZE))
    return tuple(f"{number}  {_typed(number, part)}" for number, part in enumerate(parts, start=1))


def has_lines(text: str) -> bool:
    """Tells whether a text has a line of a paper key, be it mistyped."""
    return any(map(_LINE.match, text.splitlines()))


def read_line(number: int, typed: str) -> bytes | None:
    """Returns the bytes of the line with a number, typed with it or without, or None where the
    check does not fit.
    """
    match = _LINE.match(typed)
    if match is not None and int(match[1]) == number:
        typed = match[2]
    digits = re.sub(r"[\s-]", "", typed).upper().translate(_MISREAD)
    if len(digits) != _DIGIT_COUNT or set(digits) - set(_DIGITS):
        return None
    value = 0
    for digit in digits:
        value = value << 5 | _DIGITS.index(digit)
    data = value.to_bytes(_LINE_SIZE + _CHECK_SIZE, "big")
    part = data[:_LINE_SIZE]
    return part if _check(number, part) == data[_LINE_SIZE:] else None


def key_of(text: str) -> bytes:
    """Returns the key whose lines are in a text; raises InvalidArgument, which names bad lines."""
    matches = [_LINE.match(line) for line in text.splitlines()]
    typed = {int(line[1]): line[2] for line in matches if line is not None}
    parts = [read_line(number, typed.get(number, "")) for number in range(1, LINE_COUNT + 1)]
    wrong = [number for number, part in enumerate(parts, start=1) if part is None]
    missing = [number for number in wrong if number not in typed]
    key = b"".join(part or b"" for part in parts)
    del text, matches, typed, parts
    if not wrong:
        return key
    del key
    bad = [number for number in wrong if number not in missing] or missing
    word = "missing" if bad == missing else "mistyped"
    raise InvalidArgument(
        f"Line {bad[0]} of the paper key is {word}"
        if len(bad) == 1
        else f"Lines {', '.join(map(str, bad))} of the paper key are {word}"
    )


def _check(number: int, part: bytes) -> bytes:
    return checksum(b"treesnap paper key 1" + bytes([number]) + part, _CHECK_SIZE)


def _typed(number: int, part: bytes) -> str:
    value = int.from_bytes(part + _check(number, part), "big")
    digits = "".join(_DIGITS[value >> 5 * at & 31] for at in reversed(range(_DIGIT_COUNT)))
    return "-".join(digits[start : start + 4] for start in range(0, _DIGIT_COUNT, 4))
