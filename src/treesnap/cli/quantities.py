"""Parameter types of the command line: durations, sizes, parts."""

from __future__ import annotations

import math
import re
from typing import Any

import click

from treesnap.errors import InvalidArgument
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
    """A length of time in seconds, in a range. What is not a number lies in none."""

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
