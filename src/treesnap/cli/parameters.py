"""Values of options: durations, sizes, parts, tags, counters; options that are tags."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.quantities import parse_duration, parse_size
from treesnap.core.model.reserved_tags import parse_number


class Quantity(click.ParamType[int]):
    """A number with units, which a function reads."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the number, of seconds or of bytes."""
        try:
            return self._parse(value)
        except InvalidArgument as error:
            self.fail(error.message, param, ctx)


DURATION = Quantity("duration", parse_duration)
"""A length of time such as ``36h``, ``2w`` or ``1d12h``."""
SIZE = Quantity("size", parse_size)
"""A number of bytes such as ``500M``, ``1.5GiB`` or ``0``; units are powers of 1024."""


class WholeNumber(click.IntRange):
    """A whole number in a range; errors call it that."""

    name = "whole number"


class Seconds(click.FloatRange):
    """A length of time in seconds, in a range that NaN is not in."""

    name = "number of seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the seconds."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


class SamplePart(click.ParamType[tuple[int, int]]):
    """One of several parts, such as ``1/7``."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Returns the number of the part, and how many there are."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", value)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            self.fail(f"{value!r} is not of the form 1/7", param, ctx)
        return int(match[1]), int(match[2])


class Pair(click.ParamType[tuple[str, Any]]):
    """A key and its value, of the form ``KEY=VALUE`` or ``KEY=NUMBER``."""

    name = "pair"

    def __init__(self, *, is_number: bool) -> None:
        self._is_number = is_number

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """Returns both."""
        key, sign, text = value.partition("=")
        if not key or not sign:
            form = "KEY=NUMBER" if self._is_number else "KEY=VALUE"
            self.fail(f"{value!r} is not of the form {form}", param, ctx)
        if not self._is_number:
            return key, text
        number = parse_number(text)
        if number is None:
            self.fail(f"{text!r} is not a whole number of at most 64 bits", param, ctx)
        return key, number


class TagOption(click.Option):
    """An option that says something of the new snapshot: it is stored as the tag of its name.

    A flag has the value ``true``. The command gets these tags by :func:`tags_of_options`, and not
    as a parameter each; the library has no keyword for them but ``tags``.
    """

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, expose_value=False, callback=_note_tag, **attributes)


def _note_tag(context: click.Context, option: click.Parameter, value: Any) -> None:
    if value is not None and value is not False:
        tags = context.meta.setdefault(_TAGS_OF_OPTIONS, {})
        tags[option.name] = "true" if value is True else value


_TAGS_OF_OPTIONS = "treesnap.tags"


def tags_of_options() -> dict[str, str]:
    """Returns the tags that options of the current command stand for."""
    return dict(click.get_current_context().meta.get(_TAGS_OF_OPTIONS, {}))


TAG = Pair(is_number=False)
COUNTER = Pair(is_number=True)


def by_key(
    _context: click.Context, _parameter: click.Parameter, pairs: Sequence[tuple[str, Any]]
) -> dict[str, Any]:
    """Returns the values of pairs by key; the last one of a key wins."""
    return dict(pairs)
