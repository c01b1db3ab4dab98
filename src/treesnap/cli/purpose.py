"""The options that say what work a snapshot belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from treesnap.model import CheckpointType, Purpose

_NUMBER = re.compile(r"-?\d{1,19}")


def parse_counters(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> dict[str, int]:
    """Returns counters of the form KEY=NUMBER by key; the last one of a key wins."""
    counters: dict[str, int] = {}
    for value in values:
        key, _, number = value.partition("=")
        if not key or not _NUMBER.fullmatch(number):
            message = f"{value!r} is not of the form KEY=NUMBER"
            raise click.BadParameter(message, ctx=context, param=parameter)
        counters[key] = int(number)
    return counters


_OPTIONS = (
    click.option("--step-name", metavar="NAME", help="What the step is called."),
    click.option("--phase", metavar="PHASE", help="The phase of the work, such as 'validate'."),
    click.option(
        "--type",
        "checkpoint_type",
        type=click.Choice([item.value for item in CheckpointType]),
        help="What makes it worth going back to.",
    ),
    click.option("--reason", metavar="TEXT", help="Why it is taken."),
    click.option("--source-tool", metavar="NAME", help="The program that asks for it."),
    click.option(
        "--counter",
        "counters",
        callback=parse_counters,
        multiple=True,
        metavar="K=N",
        help="A number, such as tests_passing=42; repeatable.",
    ),
)


def purpose_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the function gets what they say as ``purpose``."""

    @wraps(function)
    def with_purpose(
        *arguments: Any, checkpoint_type: str | None, counters: dict[str, int], **options: Any
    ) -> Any:
        words = {key: options.pop(key) for key in ("step_name", "phase", "reason", "source_tool")}
        kind = CheckpointType(checkpoint_type) if checkpoint_type is not None else None
        purpose = Purpose(type=kind, counters=counters, **words)
        return function(*arguments, purpose=purpose, **options)

    for option in reversed(_OPTIONS):
        with_purpose = option(with_purpose)
    return with_purpose
