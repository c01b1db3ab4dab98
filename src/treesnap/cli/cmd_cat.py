"""``snap cat``: a file of a snapshot."""

from __future__ import annotations

import click

from treesnap.cli import json_forms
from treesnap.cli.command import SnapCommand, pass_invocation, session_option
from treesnap.cli.invocation import Invocation


@click.command(
    "cat",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap cat latest notes.txt", "snap cat latest~3 data.db > old.db"],
)
@click.argument("ref")
@click.argument("path")
@session_option
@pass_invocation
def command(invocation: Invocation, *, ref: str, path: str, session: str | None) -> None:
    """Prints a file of a snapshot, verified.

    Every piece is checked against its hash before it is printed. With --json the
    content is one field, in base64 unless it is UTF-8.
    """
    with invocation.open(progress=False) as handle:
        target = invocation.absolute(path, handle.root)
        snapshot = handle.resolve(ref, session=session, paths=[target])
        pieces = handle.cat(snapshot.id, target)
        invocation.output.raw(
            "cat",
            fields=lambda: json_forms.cat_fields(snapshot.id, path, b"".join(pieces)),
            pieces=lambda: pieces,
        )
