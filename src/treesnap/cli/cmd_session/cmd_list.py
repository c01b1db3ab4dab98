"""``snap session list``: the checkpoints of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from treesnap.cli.cmd_session.options import (
    checkpoint_lines,
    manager,
    session_id_option,
    write_log_option,
)
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.errors import printable

if TYPE_CHECKING:
    from treesnap.compat.maestro_records import Checkpoint


@click.command(
    "list",
    cls=SnapCommand,
    prints_only=True,
    examples=[
        "snap session list --session-id UUID --output pretty",
        "snap session list --session-id UUID --output json > checkpoints.json",
    ],
)
@session_id_option
@click.option(
    "--output",
    type=click.Choice(["pretty", "json"]),
    default="pretty",
    help="For people [pretty], or what checkpoints.json holds.",
)
@write_log_option
@pass_invocation
def command(invocation: Invocation, *, session_id: str, output: str, write_log: bool) -> None:
    """Lists the checkpoints of a session, newest first."""
    with manager(invocation) as checkpoints:
        found = checkpoints.list_checkpoints(session_id)
        log = checkpoints.checkpoint_log(session_id)
        if write_log:
            checkpoints.write_log(session_id)
    if not found and not invocation.output.as_json:
        invocation.output.warn("No checkpoints")
    invocation.output.result(
        "session.list",
        fields=lambda: log,
        lines=lambda: _lines(found) if output == "pretty" else _json_lines(log),
    )


def _lines(found: list[Checkpoint]) -> Iterator[str]:
    for number, checkpoint in enumerate(found, 1):
        yield f"{number}. {printable(checkpoint.description)}"
        yield from checkpoint_lines(checkpoint, "   ")


def _json_lines(log: dict[str, object]) -> list[str]:
    import json

    return [json.dumps(log, indent=2)]
