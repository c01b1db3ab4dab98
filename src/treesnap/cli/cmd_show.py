"""``snap show``: one snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, pass_invocation, session_option
from treesnap.cli.invocation import Invocation

if TYPE_CHECKING:
    from treesnap.model import Skipped


@click.command(
    "show",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap show latest", "snap show step:3 --session build-7 --json"],
)
@click.argument("ref")
@session_option
@pass_invocation
def command(invocation: Invocation, *, ref: str, session: str | None) -> None:
    """Shows everything that is known of one snapshot.

    Paths that it does not hold are listed, each with the reason.
    """
    with invocation.open(progress=False) as handle:
        snapshot = handle.show(ref, session=session)
        skipped: tuple[Skipped, ...] = ()
        if snapshot.record.totals.skipped:
            from treesnap.ops import browse

            skipped = tuple(browse.skipped(handle.context, snapshot.id))
    invocation.output.result(
        "show",
        fields=lambda: json_forms.show_fields(snapshot, skipped),
        lines=lambda: text_forms.show_lines(snapshot, skipped),
    )
