"""``snap session summary``: numbers about a session's checkpoints."""

from __future__ import annotations

from dataclasses import asdict

import click

from treesnap.cli.cmd_session.options import manager, session_id_option
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "summary",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap session summary --session-id UUID --json"],
)
@session_id_option
@pass_invocation
def command(invocation: Invocation, *, session_id: str) -> None:
    """Counts the checkpoints of a session."""
    with manager(invocation) as checkpoints:
        summary = checkpoints.get_checkpoint_summary(session_id)
    invocation.output.result(
        "session.summary",
        fields=lambda: asdict(summary),
        lines=lambda: [
            f"Total: {summary.total_checkpoints}",
            *(f"  {name}: {count}" for name, count in summary.checkpoints_by_type.items()),
            f"Used for rollback: {summary.checkpoints_used_for_rollback}",
            f"Latest: {summary.latest_checkpoint or 'none'}",
        ],
    )
