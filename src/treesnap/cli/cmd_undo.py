"""``snap undo``: back from a restore."""

from __future__ import annotations

import click

from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.restored import show_restore


@click.command("undo", cls=SnapCommand, examples=["snap undo", "snap -C project undo --json"])
@pass_invocation
def command(invocation: Invocation) -> None:
    """Takes the newest restore back.

    What changed since that restore is captured first, and 'snap redo' goes back to it.
    """
    with invocation.open() as handle:
        result = handle.undo()
    show_restore(invocation, "undo", result)
