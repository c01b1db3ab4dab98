"""``snap plan resume``: goes on with a plan."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan.session import planner, report, runner_option
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "resume", cls=SnapCommand, examples=["snap plan resume latest", "snap plan resume 01J9"]
)
@click.argument("plan_ref", metavar="PLAN")
@runner_option
@pass_invocation
def command(invocation: Invocation, *, plan_ref: str, runner: str | None) -> None:
    """Goes on with a plan that was interrupted, failed, or rolled back.

    A step that was interrupted is undone and begins again; one that failed is tried
    again. Exits 1 when a step failed.
    """
    with planner(invocation, runner) as plans:
        plan = plans.resume(plan_ref)
    report(invocation, "plan.resume", plan)
