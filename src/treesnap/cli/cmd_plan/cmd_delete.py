"""``snap plan delete``: removes a plan."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan import forms
from treesnap.cli.cmd_plan.session import planner
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command("delete", cls=SnapCommand, examples=["snap plan delete release"])
@click.argument("plan_ref", metavar="PLAN")
@pass_invocation
def command(invocation: Invocation, *, plan_ref: str) -> None:
    """Removes a plan, its output, and its checkpoints.

    Files are not touched, and pinned snapshots stay.
    """
    with planner(invocation) as plans:
        plan = plans.delete(plan_ref)
    invocation.output.result(
        "plan.delete",
        fields=lambda: forms.plan_fields(plan),
        lines=lambda: [f"Plan {plan.id} is deleted"],
    )
