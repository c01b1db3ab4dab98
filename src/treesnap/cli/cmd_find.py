"""``snap find``: paths by pattern."""

from __future__ import annotations

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, pass_invocation, session_option
from treesnap.cli.invocation import Invocation, resolve_ref


@click.command(
    "find",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap find '*.csv'", "snap find 'src/*/config.toml' --ref latest"],
)
@click.argument("pattern")
@click.option("--ref", metavar="REF", help="Only in this snapshot; prints paths alone.")
@session_option
@pass_invocation
def command(invocation: Invocation, *, pattern: str, ref: str | None, session: str | None) -> None:
    """Finds paths in all snapshots, or in one.

    PATTERN is compared with names, or with whole paths when it has a '/'.
    Columns: the newest snapshot that holds the path, how many do, the path.
    """
    with invocation.open() as handle:
        if ref is not None:
            ref = resolve_ref(handle, ref, session)
        found = handle.find(pattern, ref=ref)
    invocation.output.result(
        "find",
        fields=lambda: json_forms.find_fields(found),
        lines=lambda: text_forms.find_lines(found, with_ids=ref is None),
    )
