"""``snap plan checkpoint``: takes a checkpoint of a plan."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan import forms
from treesnap.cli.cmd_plan.session import planner
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "checkpoint",
    cls=SnapCommand,
    examples=["snap plan checkpoint latest -m 'tests pass'"],
)
@click.argument("plan_ref", metavar="PLAN")
@click.option("-m", "--label", default="by hand", help="What the checkpoint is, for people.")
@click.option("--reason", help="Why it is taken.")
@click.option("--source-tool", metavar="NAME", help="What takes it; 'snap plan' if left out.")
@click.option("--phase", help="The phase of the work; the sub-plan if left out.")
@pass_invocation
def command(
    invocation: Invocation,
    *,
    plan_ref: str,
    label: str,
    reason: str | None,
    source_tool: str | None,
    phase: str | None,
) -> None:
    """Takes a checkpoint of a plan as it stands.

    Prints its id. A plan that a process works on is busy.
    """
    with planner(invocation) as plans:
        taken = plans.checkpoint(
            plan_ref, label=label, reason=reason, source_tool=source_tool, phase=phase
        )
    invocation.output.result(
        "plan.checkpoint",
        fields=lambda: {"checkpoint": forms.checkpoint_fields(taken)},
        lines=lambda: [taken.id],
    )
