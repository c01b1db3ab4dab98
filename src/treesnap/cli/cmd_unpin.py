"""``snap unpin``: ends the protection of a snapshot."""

from __future__ import annotations

import click

from treesnap.cli import json_forms
from treesnap.cli.command import SnapCommand, pass_invocation, session_option
from treesnap.cli.invocation import Invocation, resolve_ref


@click.command("unpin", cls=SnapCommand, examples=["snap unpin latest", "snap unpin v1 --json"])
@click.argument("ref")
@session_option
@pass_invocation
def command(invocation: Invocation, *, ref: str, session: str | None) -> None:
    """Takes the protection of a snapshot away.

    Prints the id.
    """
    with invocation.open(progress=False) as handle:
        snapshot = handle.unpin(resolve_ref(handle, ref, session))
    invocation.output.result(
        "unpin",
        fields=lambda: json_forms.snapshot_fields(snapshot),
        lines=lambda: [snapshot.id],
    )
