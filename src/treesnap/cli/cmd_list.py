"""``snap list``: the history of a root."""

from __future__ import annotations

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation


@click.command(
    "list",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap list", "snap list --session build-7", "snap list --all --tag release --json"],
)
@click.option("--session", metavar="ID", help="Only snapshots of this session.")
@click.option("--tag", metavar="KEY[=VALUE]", help="Only snapshots with this tag.")
@click.option("--phase", metavar="PHASE", help="Only snapshots of this phase.")
@click.option("--type", "checkpoint_type", metavar="TYPE", help="Only snapshots of this type.")
@click.option("--all", "all_roots", is_flag=True, help="Snapshots of all roots of the store.")
@pass_invocation
def command(invocation: Invocation, /, *, all_roots: bool, **wanted: str | None) -> None:
    """Lists the root's snapshots, newest first.

    Columns: id, time, kind, flags (P pinned, ! incomplete), [name] and label.
    """
    with invocation.open(progress=False, needs_root=not all_roots) as handle:
        snapshots = handle.list(all_roots=all_roots, **wanted)
    if not snapshots and not invocation.output.as_json:
        which = "No such snapshots" if any(wanted.values()) else "No snapshots"
        of_root = "" if all_roots else f" of {handle.root}"
        invocation.output.warn(f"{which}{of_root} in {handle.store_path}")
    invocation.output.result(
        "list",
        fields=lambda: json_forms.list_fields(snapshots),
        lines=lambda: text_forms.list_lines(snapshots, with_roots=all_roots),
    )
