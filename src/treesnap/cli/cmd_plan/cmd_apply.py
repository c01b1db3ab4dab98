"""``snap plan apply``: accepts what a plan did."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan import forms
from treesnap.cli.cmd_plan.session import planner
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command("apply", cls=SnapCommand, examples=["snap plan apply latest"])
@click.argument("plan_ref", metavar="PLAN")
@pass_invocation
def command(invocation: Invocation, *, plan_ref: str) -> None:
    """Accepts what a completed plan did; it is not rolled back any more."""
    with planner(invocation) as plans:
        plan = plans.apply(plan_ref)
    invocation.output.result(
        "plan.apply",
        fields=lambda: forms.plan_fields(plan),
        lines=lambda: [f"Plan {plan.id} is applied"],
    )
