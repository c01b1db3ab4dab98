"""``snap root forget``: removes the whole history of a root."""

from __future__ import annotations

import click

from treesnap.cli.cmd_root import forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.text_forms import count_text
from treesnap.errors import printable


@click.command(
    "forget",
    cls=SnapCommand,
    examples=["snap root forget /srv/old", "snap root forget 3f2a9c01 --force --json"],
)
@click.argument("root")
@click.option("--force", is_flag=True, help="Also what is pinned, named or made by hand.")
@pass_invocation
def command(invocation: Invocation, *, root: str, force: bool) -> None:
    """Removes the whole history of a root; gc then gives its space back.

    Snapshots, settings and plans go; the directory itself is not touched. Refused without
    --force where snapshots are pinned, named or made by hand.
    """
    output = invocation.output
    with invocation.open(progress=False, needs_root=False) as handle:
        info = handle.root_forget(root, force=force)
    output.result(
        "root.forget",
        fields=lambda: forms.fields(info),
        lines=lambda: [f"Forgot {printable(info.path)}: {count_text(info.snapshots, 'snapshot')}"],
    )
    if not output.as_json:
        output.warn(f"To get their space back: {invocation.command_text('gc')}")
