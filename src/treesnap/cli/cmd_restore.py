"""``snap restore``, ``undo`` and ``redo``: back to a snapshot, and back from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation, session_option
from treesnap.cli.invocation import Invocation, resolve_ref
from treesnap.cli.json_output import restore_fields
from treesnap.cli.text_output import change_lines, restore_line, restore_notes

if TYPE_CHECKING:
    from treesnap.results import RestoreResult


@command(
    "restore",
    examples=[
        "snap restore latest",
        "snap restore latest~2 src/ notes.txt --dry-run",
        "snap restore before-upgrade --to ../old",
    ],
)
@click.argument("ref")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--to", metavar="DIR", help="Write into another directory, absent or empty.")
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option("--touch", is_flag=True, help="Give restored files the current time.")
@click.option(
    "--force",
    is_flag=True,
    help="Allow a dangerous root, and changes by other programs meanwhile.",
)
@session_option
@pass_invocation
def restore(
    invocation: Invocation,
    *,
    ref: str,
    paths: Sequence[str],
    to: str | None,
    dry_run: bool,
    touch: bool,
    force: bool,
    session: str | None,
) -> None:
    """Restore a snapshot, or only PATHs of it.

    All or nothing. The state before is captured first: 'snap undo' goes back to it.
    Relative PATHs and DIR start from the directory of -C, else from the current one.
    """
    with invocation.open() as handle:
        absolute = invocation.absolute_all(paths, handle.root)
        result = handle.restore(
            resolve_ref(handle, ref, session, absolute),
            absolute,
            to=None if to is None else invocation.absolute(to, handle.root),
            dry_run=dry_run,
            touch=touch,
            force=force,
        )
    _show(invocation, "restore", result, undone_by="undo")


@command("undo", examples=["snap undo", "snap -C project undo --json"])
@pass_invocation
def undo(invocation: Invocation) -> None:
    """Undo the newest restore.

    What changed since that restore is captured first: 'snap redo' goes back to it.
    """
    with invocation.open() as handle:
        result = handle.undo()
    _show(invocation, "undo", result, undone_by="redo")


@command("redo", examples=["snap redo", "snap -C project redo --json"])
@pass_invocation
def redo(invocation: Invocation) -> None:
    """Undo the newest undo.

    What changed since that undo is captured first: 'snap undo' goes back to it.
    """
    with invocation.open() as handle:
        result = handle.redo()
    _show(invocation, "redo", result, undone_by="undo")


def _show(invocation: Invocation, name: str, result: RestoreResult, *, undone_by: str) -> None:
    plan = change_lines(result.changes) if result.dry_run else ()
    invocation.output.result(name, lambda: restore_fields(result), [*plan, restore_line(result)])
    invocation.output.note(*restore_notes(result, invocation.command_text(undone_by)))
