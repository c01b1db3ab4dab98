"""``snap plan list``: the plans of a root."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan import forms
from treesnap.cli.cmd_plan.session import planner
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "list",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap plan list", "snap plan list --all --json"],
)
@click.option("--all", "all_roots", is_flag=True, help="Plans of all roots of the store.")
@pass_invocation
def command(invocation: Invocation, *, all_roots: bool) -> None:
    """Lists the plans of the root, newest first.

    Columns: id, time, state, completed steps, name.
    """
    with planner(invocation) as plans:
        found = plans.list(all_roots=all_roots)
        at_work = {plan.id for plan in found if plan.is_interrupted and plans.is_at_work(plan)}
    if not found and not invocation.output.as_json:
        invocation.output.warn("No plans")
    invocation.output.result(
        "plan.list",
        fields=lambda: {
            "plans": [forms.plan_fields(plan, is_at_work=plan.id in at_work) for plan in found]
        },
        lines=lambda: forms.list_lines(found, at_work),
    )
