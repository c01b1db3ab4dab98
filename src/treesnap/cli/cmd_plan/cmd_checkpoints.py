"""``snap plan checkpoints``: lists the checkpoints of a plan."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan import forms
from treesnap.cli.cmd_plan.session import planner
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "checkpoints",
    cls=SnapCommand,
    examples=["snap plan checkpoints latest", "snap plan checkpoints release --json"],
)
@click.argument("plan_ref", metavar="PLAN")
@pass_invocation
def command(invocation: Invocation, *, plan_ref: str) -> None:
    """Lists the checkpoints of a plan, newest first.

    Columns: id, time, next step, plan state hash, label. The id stands for the checkpoint's
    snapshot in 'snap show', 'diff', 'pin', 'delete' and every other command with a REF.
    """
    with planner(invocation) as plans:
        found = plans.checkpoints(plan_ref)
    invocation.output.result(
        "plan.checkpoints",
        fields=lambda: forms.checkpoints_fields(found),
        lines=lambda: forms.checkpoint_lines(found),
    )
