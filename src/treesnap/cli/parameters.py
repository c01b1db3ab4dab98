"""Values of options: numbers, choices, durations, sizes, parts, tags, counters.

Each kind reads the text of a value and raises InvalidArgument for one that it does not accept.
``cli.command`` makes click's types of them. None of them needs click to read a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.type_names import Any


class ValueKind:
    """What the values of a parameter are."""

    name: str
    """As messages call it."""

    def convert(self, text: str) -> Any:
        """Returns the value; raises InvalidArgument."""
        raise NotImplementedError


class Quantity(ValueKind):
    """A number with units, which a function reads."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, text: str) -> int:
        """Returns the number, of seconds or of bytes."""
        return self._parse(text)


def _duration(text: str) -> int:
    from treesnap.core.model.quantities import parse_duration

    return parse_duration(text)


def _size(text: str) -> int:
    from treesnap.core.model.quantities import parse_size

    return parse_size(text)


DURATION = Quantity("duration", _duration)
"""A length of time such as ``36h``, ``2w`` or ``1d12h``."""
SIZE = Quantity("size", _size)
"""A number of bytes such as ``500M``, ``1.5GiB`` or ``0``; units are powers of 1024."""


class OneOf(ValueKind):
    """One of some words."""

    name = "choice"

    def __init__(self, words: Iterable[str]) -> None:
        self.words: tuple[str, ...] = tuple(words)

    def convert(self, text: str) -> str:
        """Returns the word."""
        if text not in self.words:
            raise InvalidArgument(f"{text!r} is not one of {', '.join(self.words)}")
        return text


class WholeNumber(ValueKind):
    """A whole number in a range; errors call it that."""

    name = "whole number"

    def __init__(self, min: int | None = None, max: int | None = None) -> None:  # noqa: A002 - as click has them
        self.min: int | None = min
        self.max: int | None = max

    def convert(self, text: str) -> int:
        """Returns the number."""
        try:
            number = int(text)
        except ValueError:
            raise InvalidArgument(f"{text!r} is not a {self.name}") from None
        _check_range(number, self.min, self.max)
        return number


class Seconds(ValueKind):
    """A length of time in seconds, in a range that NaN is not in."""

    name = "number of seconds"

    def __init__(self, min: float | None = None, max: float | None = None) -> None:  # noqa: A002 - as click has them
        self.min: float | None = min
        self.max: float | None = max

    def convert(self, text: str) -> float:
        """Returns the seconds."""
        try:
            number = float(text)
        except ValueError:
            raise InvalidArgument(f"{text!r} is not a {self.name}") from None
        _check_range(number, self.min, self.max)
        return number


def _check_range(number: float, lowest: float | None, highest: float | None) -> None:
    """Raises InvalidArgument for a number outside of a range, and for NaN."""
    is_above = number == number if lowest is None else number >= lowest  # noqa: PLR0124 - NaN is not
    if not (is_above and (highest is None or number <= highest)):
        raise InvalidArgument(f"{number} is not in the range")


class SamplePart(ValueKind):
    """One of several parts, such as ``1/7``."""

    name = "part"

    def convert(self, text: str) -> tuple[int, int]:
        """Returns the number of the part, and how many there are."""
        import re

        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if match is None or int(match[2]) == 0:
            raise InvalidArgument(f"{text!r} is not of the form 1/7")
        if not 1 <= int(match[1]) <= int(match[2]):
            raise InvalidArgument(f"the part in {text!r} must be from 1 to {int(match[2])}")
        return int(match[1]), int(match[2])


class Pair(ValueKind):
    """A key and its value, of the form ``KEY=VALUE`` or ``KEY=NUMBER``."""

    name = "pair"

    def __init__(self, *, is_number: bool) -> None:
        self._is_number = is_number

    def convert(self, text: str) -> tuple[str, Any]:
        """Returns both."""
        key, sign, value = text.partition("=")
        if not key or not sign:
            form = "KEY=NUMBER" if self._is_number else "KEY=VALUE"
            raise InvalidArgument(f"{text!r} is not of the form {form}")
        if not self._is_number:
            return key, value
        from treesnap.core.model.reserved_tags import parse_number

        number = parse_number(value)
        if number is None:
            raise InvalidArgument(f"{value!r} is not a whole number of at most 64 bits")
        return key, number


TAG = Pair(is_number=False)
COUNTER = Pair(is_number=True)


def by_key(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the values of pairs by key; the last one of a key wins."""
    return dict(pairs)
