"""``snap gc``: gives space back."""

from __future__ import annotations

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command("gc", cls=SnapCommand, examples=["snap gc", "snap gc --dry-run --json"])
@click.option("--dry-run", is_flag=True, help="Print what would be freed, and free nothing.")
@pass_invocation
def command(invocation: Invocation, *, dry_run: bool) -> None:
    """Gives the space of everything that no snapshot needs back.

    It may run at any time, beside any other command.
    """
    with invocation.open(needs_root=False) as handle:
        result = handle.gc(dry_run=dry_run)
    if result.postponed is not None and not invocation.output.as_json:
        invocation.output.warn(result.postponed)
    if result.damaged and not invocation.output.as_json:
        shown = ", ".join(text_forms.short_id(identity) for identity in result.damaged)
        invocation.output.warn(
            f"What can still be read of damaged snapshots was kept ({shown}); "
            "'snap verify --repair' is next"
        )
    invocation.output.result(
        "gc",
        fields=lambda: json_forms.gc_fields(result),
        lines=lambda: [text_forms.gc_line(result)],
    )
