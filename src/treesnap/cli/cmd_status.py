"""``snap status``: what changed since the newest snapshot."""

from __future__ import annotations

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "status",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap status", "snap -C project status --json"],
)
@pass_invocation
def command(invocation: Invocation) -> None:
    """Shows what changed since the newest snapshot.

    Letters: A added, D deleted, M modified, T another type, P properties alone
    (mode, owner, time, extended attributes). Exits 0 with and without changes.
    """
    with invocation.open() as handle:
        result = handle.status()
    if result.snapshot is None:
        invocation.output.warn(f"No snapshot of the whole of {handle.root} in {handle.store_path}")
    elif not result.changes and not invocation.output.as_json:
        invocation.output.warn(f"Nothing changed since {text_forms.short_id(result.snapshot.id)}")
    if not invocation.output.as_json:
        for line in text_forms.unreadable_warnings(result.skipped):
            invocation.output.warn(line)
    invocation.output.result(
        "status",
        fields=lambda: json_forms.status_fields(result),
        lines=lambda: text_forms.change_lines(result.changes),
    )
