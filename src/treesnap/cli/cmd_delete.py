"""``snap delete``: removes snapshots."""

from __future__ import annotations

from collections.abc import Sequence

import click

from treesnap.cli import json_forms
from treesnap.cli.command import SnapCommand, pass_invocation, session_option
from treesnap.cli.invocation import Invocation, resolve_ref


@click.command(
    "delete", cls=SnapCommand, examples=["snap delete latest~1", "snap delete 3f2a 9c01 --json"]
)
@click.argument("refs", nargs=-1, required=True, metavar="REF...")
@session_option
@pass_invocation
def command(invocation: Invocation, *, refs: Sequence[str], session: str | None) -> None:
    """Removes snapshots; gc then gives their space back.

    Every REF is looked up before the first is removed. Prints the ids.
    """
    output = invocation.output
    with invocation.open(progress=False) as handle:
        removed = handle.delete(*[resolve_ref(handle, ref, session) for ref in refs])
    output.result(
        "delete",
        fields=lambda: json_forms.list_fields(removed),
        lines=lambda: [*(snapshot.id for snapshot in removed), *removed.damaged],
    )
    if not output.as_json:
        output.warn(f"To get their space back: {invocation.command_text('gc')}")
