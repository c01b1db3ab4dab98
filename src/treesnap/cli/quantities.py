"""Durations and sizes as people write them."""

from __future__ import annotations

import re
from typing import Any

import click

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION_PART = re.compile(r"(\d{1,9})([smhdw])")
_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,3}))?\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


class Duration(click.ParamType[int]):
    """A length of time such as ``36h``, ``2w`` or ``1d12h``, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the seconds."""
        if isinstance(value, int):
            return value
        parts = _DURATION_PART.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is not of the form 36h, 2w or 1d12h", param, ctx)
        return sum(int(number) * _SECONDS[unit] for number, unit in parts)


class Size(click.ParamType[int]):
    """A number of bytes such as ``500M``, ``1.5GiB`` or ``0``; units are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the bytes."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not of the form 500M or 1.5GiB", param, ctx)
        whole, fraction, unit = found.groups()
        scale: int = _BYTES[unit.lower()]
        part = int(fraction or "0") * scale // 10 ** len(fraction or "0")
        size_bytes: int = int(whole) * scale + part
        return size_bytes


class Part(click.ParamType[tuple[int, int]]):
    """One of several parts, such as ``1/7``."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Returns the number of the part, and how many there are."""
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", value)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            self.fail(f"{value!r} is not of the form 1/7", param, ctx)
        return int(found[1]), int(found[2])
