"""``snap root move``: says that a root is at another path now."""

from __future__ import annotations

import click

from treesnap.cli.cmd_root import forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.errors import printable


@click.command(
    "move",
    cls=SnapCommand,
    examples=["snap root move /srv/old", "snap root move /srv/old /mnt/new --json"],
)
@click.argument("old")
@click.argument("new", required=False)
@click.option("--force", is_flag=True, help="Allow dangerous roots.")
@pass_invocation
def command(invocation: Invocation, *, old: str, new: str | None, force: bool) -> None:
    """Says that a root is at another path now.

    NEW is by default the directory of -C, else the current one. Moves the history, not the
    files. Needed after a move to another file system; other moves are noticed.
    """
    from treesnap.ops.places import current_directory

    given = new if new is not None else invocation.directory or current_directory()
    with invocation.open(progress=False, needs_root=False) as handle:
        info = handle.root_move(old, given, force=force)
    invocation.output.result(
        "root.move",
        fields=lambda: forms.fields(info),
        lines=lambda: [f"The history of {info.id[:12]} is at {printable(info.path)} now"],
    )
