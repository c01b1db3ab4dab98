"""``snap stats``: sizes."""

from __future__ import annotations

import click

from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.text_forms import count_text


@click.command(
    "stats",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap stats --snapshots", "snap --store backup stats --json"],
)
@click.option("--snapshots", "with_snapshots", is_flag=True, help="Each snapshot of this root too.")
@pass_invocation
def command(invocation: Invocation, *, with_snapshots: bool) -> None:
    """Shows the sizes of the store, of each root, and of this root's history.

    What is unique to a root or a snapshot would be free without it.
    """
    from treesnap.cli import stats_forms

    with invocation.open() as handle:
        result = handle.stats()
    if result.damaged_snapshots:
        invocation.output.warn(
            f"{count_text(result.damaged_snapshots, 'snapshot')} could not be read whole: what "
            "they need is counted as waste"
        )
    invocation.output.result(
        "stats",
        fields=lambda: stats_forms.fields(result),
        lines=lambda: stats_forms.lines(result, handle.store_path, with_snapshots=with_snapshots),
    )
