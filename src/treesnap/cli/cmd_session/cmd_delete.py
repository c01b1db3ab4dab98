"""``snap session delete``: one checkpoint less."""

from __future__ import annotations

import click

from treesnap.cli.cmd_session.options import (
    checkpoint_id_option,
    manager,
    session_id_option,
    write_log_option,
)
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "delete",
    cls=SnapCommand,
    examples=[
        "snap session delete --session-id UUID --checkpoint-id UUID",
        "snap session delete --session-id UUID --checkpoint-id UUID --keep-tag",
    ],
)
@session_id_option
@checkpoint_id_option
@click.option(
    "--delete-tag/--keep-tag",
    default=True,
    help="Remove its snapshot, or keep that and only list it no more.",
)
@write_log_option
@pass_invocation
def command(
    invocation: Invocation,
    *,
    session_id: str,
    checkpoint_id: str,
    delete_tag: bool,
    write_log: bool,
) -> None:
    """Removes a checkpoint."""
    with manager(invocation, write_log=write_log) as checkpoints:
        checkpoint = checkpoints.get_checkpoint(session_id, checkpoint_id)
        checkpoints.delete_checkpoint(session_id, checkpoint_id, delete_tag)
    invocation.output.result(
        "session.delete",
        fields=lambda: {
            "checkpoint_id": checkpoint.checkpoint_id,
            "commit_sha": checkpoint.commit_sha,
            "snapshot_deleted": delete_tag,
        },
        lines=lambda: [checkpoint.checkpoint_id],
    )
