"""``snap redo``: back from an undo."""

from __future__ import annotations

import click

from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.restored import show_restore


@click.command("redo", cls=SnapCommand, examples=["snap redo", "snap -C project redo --json"])
@pass_invocation
def command(invocation: Invocation) -> None:
    """Takes the newest undo back.

    What changed since that undo is captured first, and 'snap undo' goes back to it.
    """
    with invocation.open() as handle:
        result = handle.redo()
    show_restore(invocation, "redo", result)
