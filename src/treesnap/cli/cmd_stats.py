"""``snap stats``: sizes."""

from __future__ import annotations

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "stats", cls=SnapCommand, examples=["snap stats", "snap --store backup stats --json"]
)
@pass_invocation
def command(invocation: Invocation) -> None:
    """Shows the sizes of the store and of this root's history."""
    with invocation.open() as handle:
        result = handle.stats()
    invocation.output.result(
        "stats",
        fields=lambda: json_forms.stats_fields(result),
        lines=lambda: text_forms.stats_lines(result),
    )
