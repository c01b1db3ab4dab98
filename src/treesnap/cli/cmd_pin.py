"""``snap pin``: protects a snapshot."""

from __future__ import annotations

import click

from treesnap.cli import json_forms
from treesnap.cli.command import SnapCommand, pass_invocation, session_option
from treesnap.cli.invocation import Invocation, resolve_ref


@click.command("pin", cls=SnapCommand, examples=["snap pin latest", "snap pin v1 --json"])
@click.argument("ref")
@session_option
@pass_invocation
def command(invocation: Invocation, *, ref: str, session: str | None) -> None:
    """Protects a snapshot from deletion.

    Prints the id.
    """
    with invocation.open(progress=False) as handle:
        snapshot = handle.pin(resolve_ref(handle, ref, session))
    invocation.output.result(
        "pin",
        fields=lambda: json_forms.snapshot_fields(snapshot),
        lines=lambda: [snapshot.id],
    )
