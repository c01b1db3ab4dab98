"""Values of options: durations, sizes, parts, tags, counters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import click

from treesnap.errors import InvalidArgument
from treesnap.facts import parse_number
from treesnap.quantities import parse_duration, parse_size


class Duration(click.ParamType[int]):
    """A length of time such as ``36h``, ``2w`` or ``1d12h``, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the seconds."""
        try:
            return parse_duration(value)
        except InvalidArgument as error:
            self.fail(error.message, param, ctx)


class Seconds(click.FloatRange):
    """A length of time in seconds, in a range that NaN is not in."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Returns the seconds."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """A number of bytes such as ``500M``, ``1.5GiB`` or ``0``; units are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the bytes."""
        try:
            return parse_size(value)
        except InvalidArgument as error:
            self.fail(error.message, param, ctx)


class SamplePart(click.ParamType[tuple[int, int]]):
    """One of several parts, such as ``1/7``."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Returns the number of the part, and how many there are."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", value)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            self.fail(f"{value!r} is not of the form 1/7", param, ctx)
        return int(found[1]), int(found[2])


def parse_tags(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> dict[str, str]:
    """Returns tags of the form KEY=VALUE by key; the last one of a key wins."""
    return _pairs(context, parameter, values, "KEY=VALUE", r"([^=]+)=(.*)")


def parse_counters(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> dict[str, int]:
    """Returns counters of the form KEY=NUMBER by key; the last one of a key wins."""
    counters: dict[str, int] = {}
    for key, text in _pairs(context, parameter, values, "KEY=NUMBER", r"([^=]+)=(.*)").items():
        number = parse_number(text)
        if number is None:
            message = f"{text!r} is not a whole number of at most 64 bits"
            raise click.BadParameter(message, ctx=context, param=parameter)
        counters[key] = number
    return counters


def _pairs(
    context: click.Context,
    parameter: click.Parameter,
    values: Sequence[str],
    form: str,
    pattern: str,
) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for value in values:
        found = re.fullmatch(pattern, value, re.DOTALL)
        if found is None:
            message = f"{value!r} is not of the form {form}"
            raise click.BadParameter(message, ctx=context, param=parameter)
        pairs[found[1]] = found[2]
    return pairs
