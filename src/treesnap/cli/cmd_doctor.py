"""``snap doctor``: what was interrupted."""

from __future__ import annotations

from dataclasses import replace

import click

from treesnap.cli import doctor_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.exits import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.plans.planner import Planner


@click.command("doctor", cls=SnapCommand, examples=["snap doctor", "snap doctor --forget"])
@click.option("--forget", is_flag=True, help="Give up an interrupted restore of this root.")
@pass_invocation
def command(invocation: Invocation, *, forget: bool) -> None:
    """Shows work that was interrupted, in all roots, and what becomes of it.

    Changes nothing without --forget: 'snap status' finishes what can be finished.
    Exits 3 when something waits for a person.
    """
    invocation.output.prints_only = not forget
    with invocation.open() as handle:
        result = handle.doctor(forget=forget)
        plans = Planner(handle).unfinished()
    result = replace(result, unfinished=(*result.unfinished, *plans))
    invocation.output.result(
        "doctor",
        fields=lambda: doctor_forms.fields(result),
        lines=lambda: doctor_forms.lines(result),
    )
    if result.blocked:
        click.get_current_context().exit(ExitCode.REFUSED)
