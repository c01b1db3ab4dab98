"""``snap ls``: a directory in a snapshot."""

from __future__ import annotations

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, pass_invocation, session_option
from treesnap.cli.invocation import Invocation


@click.command(
    "ls",
    cls=SnapCommand,
    prints_only=True,
    examples=["snap ls latest", "snap ls -l -R latest~1 src", "snap ls v1 ."],
)
@click.argument("ref")
@click.argument("path", required=False)
@click.option("-l", "--long", is_flag=True, help="Modes, owners, sizes, times and link targets.")
@click.option("-R", "--recursive", is_flag=True, help="Everything below, as paths.")
@session_option
@pass_invocation
def command(
    invocation: Invocation,
    *,
    ref: str,
    path: str | None,
    long: bool,
    recursive: bool,
    session: str | None,
) -> None:
    """Lists a directory in a snapshot.

    Without PATH it is the root. Names that the snapshot knows of but does not hold
    are listed with -l only.
    """
    with invocation.open(progress=False) as handle:
        target = handle.root if path is None else invocation.absolute(path, handle.root)
        snapshot = handle.resolve(ref, session=session, paths=[target])
        entries = handle.ls(snapshot.id, target, recursive=recursive)
    invocation.output.result(
        "ls",
        fields=lambda: json_forms.ls_fields(snapshot.id, entries),
        lines=lambda: text_forms.ls_lines(entries, long=long),
    )
