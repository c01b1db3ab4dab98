"""``snap verify``: checks the store."""

from __future__ import annotations

import click

from treesnap.cli import verify_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.exits import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.cli.quantities import SamplePart


@click.command(
    "verify",
    cls=SnapCommand,
    examples=["snap verify", "snap verify --read-data --json", "snap verify --sample 1/7"],
)
@click.option("--read-data", is_flag=True, help="Read every byte and compare it with its hash.")
@click.option(
    "--sample",
    type=SamplePart(),
    metavar="N/T",
    help="Read the N-th of T parts of the data: T runs read everything.",
)
@click.option("--repair", is_flag=True, help="Mend what can be mended, list what cannot.")
@pass_invocation
def command(
    invocation: Invocation, *, read_data: bool, sample: tuple[int, int] | None, repair: bool
) -> None:
    """Checks the store, and repairs it if asked.

    Exits 7 when there is damage, and names the snapshots and paths that it costs.
    """
    with invocation.open(needs_root=False) as handle:
        result = handle.verify(read_data=read_data, repair=repair, sample=sample)
    invocation.output.result(
        "verify",
        fields=lambda: verify_forms.fields(result),
        lines=lambda: verify_forms.lines(result),
    )
    if not result.ok:
        click.get_current_context().exit(ExitCode.DAMAGED)
