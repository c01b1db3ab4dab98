"""``snap plan rollback``: takes a plan and its files back."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan import forms
from treesnap.cli.cmd_plan.session import planner
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "rollback",
    cls=SnapCommand,
    examples=["snap plan rollback latest", "snap plan rollback 01J9 01J9ZK --json"],
)
@click.argument("plan_ref", metavar="PLAN")
@click.argument("checkpoint", required=False, metavar="[CHECKPOINT]")
@pass_invocation
def command(invocation: Invocation, *, plan_ref: str, checkpoint: str | None) -> None:
    """Takes a plan and its files back to a checkpoint, or lists the checkpoints.

    Both are undone, or neither. The state before becomes a checkpoint, to go forth to;
    'snap undo' goes there too, and takes the plan along.
    Columns of the list, newest first: id, time, next step, plan state hash, label.
    """
    output = invocation.output
    with planner(invocation) as plans:
        if checkpoint is None:
            found = plans.checkpoints(plan_ref)
            output.result(
                "plan.rollback",
                fields=lambda: forms.checkpoints_fields(found),
                lines=lambda: forms.checkpoint_lines(found),
            )
            return
        result = plans.rollback(plan_ref, checkpoint)
    output.result(
        "plan.rollback",
        fields=lambda: forms.rollback_fields(result),
        lines=lambda: forms.rollback_lines(result),
    )
