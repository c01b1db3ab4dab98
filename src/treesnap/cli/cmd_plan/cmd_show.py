"""``snap plan show``: one plan."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan import forms
from treesnap.cli.cmd_plan.session import planner
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "show",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap plan show latest", "snap plan show release --output 2"],
)
@click.argument("plan_ref", metavar="PLAN")
@click.option(
    "--output",
    "number",
    type=click.IntRange(min=1),
    metavar="N",
    help="Print what step N wrote, of all its attempts, shortened where it is long.",
)
@pass_invocation
def command(invocation: Invocation, *, plan_ref: str, number: int | None) -> None:
    """Shows the steps of a plan, and how far each has come."""
    output = invocation.output
    with planner(invocation) as plans:
        plan = plans.show(plan_ref)
        is_at_work = plan.is_interrupted and plans.is_at_work(plan)
        about = forms.plan_fields(plan, is_at_work=is_at_work)
        if number is None:
            checkpoints = plans.checkpoints(plan.id)
            fields = {**about, **forms.checkpoints_fields(checkpoints)}
            output.result(
                "plan.show",
                fields=lambda: fields,
                lines=lambda: forms.show_lines(plan, checkpoints, is_at_work=is_at_work),
            )
            return
        pieces = plans.output(plan.id, number - 1)
        output.raw(
            "plan.show",
            fields=lambda: {
                **about,
                "output": b"".join(pieces).decode("utf-8", "replace"),
            },
            pieces=lambda: pieces,
        )
