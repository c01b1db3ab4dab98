"""``snap root list``: all roots of the store."""

from __future__ import annotations

import click

from treesnap.cli.cmd_root import forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "list", cls=SnapCommand, prints_only=True, examples=["snap root list", "snap root list --json"]
)
@pass_invocation
def command(invocation: Invocation) -> None:
    """Lists all roots of the store.

    Each with its id, the time of its newest snapshot, their number, and its path.
    """
    with invocation.open(progress=False, needs_root=False) as handle:
        found = handle.root_list()
    if not found and not invocation.output.as_json:
        invocation.output.warn("No roots")
    invocation.output.result(
        "root.list",
        fields=lambda: {"roots": [forms.fields(info) for info in found]},
        lines=lambda: forms.lines(found),
    )
