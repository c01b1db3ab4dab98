"""``snap session get``: one checkpoint."""

from __future__ import annotations

import click

from treesnap.cli.cmd_session.options import (
    checkpoint_id_option,
    checkpoint_lines,
    manager,
    session_id_option,
)
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.compat.maestro_records import checkpoint_fields
from treesnap.errors import printable


@click.command(
    "get",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap session get --session-id UUID --checkpoint-id UUID"],
)
@session_id_option
@checkpoint_id_option
@pass_invocation
def command(invocation: Invocation, *, session_id: str, checkpoint_id: str) -> None:
    """Shows one checkpoint."""
    with manager(invocation) as checkpoints:
        found = checkpoints.get_checkpoint(session_id, checkpoint_id)
    invocation.output.result(
        "session.get",
        fields=lambda: checkpoint_fields(found),
        lines=lambda: [printable(found.description), *checkpoint_lines(found)],
    )
