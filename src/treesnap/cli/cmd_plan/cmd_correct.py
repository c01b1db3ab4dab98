"""``snap plan correct``: mends a plan."""

from __future__ import annotations

import click

from treesnap.cli.cmd_plan import forms
from treesnap.cli.cmd_plan.session import planner
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.plans import CorrectionMode, RollbackResult


@click.command(
    "correct",
    cls=SnapCommand,
    examples=[
        "snap plan correct latest --mode revert",
        "snap plan correct latest --mode append --step 'make lint' --name lint",
    ],
)
@click.argument("plan_ref", metavar="PLAN")
@click.option(
    "--mode",
    required=True,
    type=click.Choice([mode.value for mode in CorrectionMode]),
    help="Back to before the error, or one more step.",
)
@click.option("--step", metavar="COMMAND", help="The step to append, for the shell.")
@click.option("--name", help="Its name; 'correction-N' if left out.")
@pass_invocation
def command(
    invocation: Invocation, *, plan_ref: str, mode: str, step: str | None, name: str | None
) -> None:
    """Takes a plan back to before its error, or adds a step to it.

    'revert' rolls back to the last checkpoint before the error, and keeps all steps. 'append'
    adds a step before the one that failed, else at the end, and leaves files and other steps
    as they are. 'snap plan resume' then goes on.
    """
    with planner(invocation) as plans:
        result = plans.correct(plan_ref, CorrectionMode(mode), step, name=name)
    output = invocation.output
    if isinstance(result, RollbackResult):
        output.result(
            "plan.correct",
            fields=lambda: forms.rollback_fields(result),
            lines=lambda: forms.rollback_lines(result),
        )
        return
    index = result.insertion_index - 1
    output.result(
        "plan.correct",
        fields=lambda: {**forms.plan_fields(result), "added_step": index},
        lines=lambda: [f"Added {forms.step_text(result, index)}"],
    )
