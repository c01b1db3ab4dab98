"""``snap session rollback``: back to a checkpoint."""

from __future__ import annotations

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.cmd_session.options import (
    checkpoint_id_option,
    manager,
    session_id_option,
    write_log_option,
)
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "rollback",
    cls=SnapCommand,
    examples=[
        "snap session rollback --session-id UUID --checkpoint-id UUID --hard-reset",
        "snap session rollback --session-id UUID --checkpoint-id UUID",
    ],
)
@session_id_option
@checkpoint_id_option
@click.option("--hard-reset", is_flag=True, help="Restore the files too; 'snap undo' undoes it.")
@write_log_option
@pass_invocation
def command(
    invocation: Invocation,
    *,
    session_id: str,
    checkpoint_id: str,
    hard_reset: bool,
    write_log: bool,
) -> None:
    """Goes back to a checkpoint: the position, and with --hard-reset the files.

    Without --hard-reset no file is touched; what differs from the checkpoint then
    counts as not captured.
    """
    with manager(invocation, write_log=write_log) as checkpoints:
        result = checkpoints.rollback(session_id, checkpoint_id, hard_reset=hard_reset)
    restored = result.restore
    target = text_forms.short_id(result.snapshot.id)
    invocation.output.result(
        "session.rollback",
        fields=lambda: {
            "checkpoint_id": result.snapshot.name,
            "commit_sha": result.snapshot.id,
            "position": result.position.id,
            "hard_reset": hard_reset,
            "restore": json_forms.restore_fields(restored) if restored is not None else None,
        },
        lines=lambda: [
            text_forms.restore_line(restored)
            if restored is not None
            else f"The position is {target}; the files are as they were"
        ],
    )
    if restored is not None and restored.safety_id is not None and not invocation.output.as_json:
        for warning in text_forms.skipped_lines(restored.untouched, "left alone"):
            invocation.output.warn(warning)
        invocation.output.warn(f"To take this back: {invocation.command_text('undo')}")
