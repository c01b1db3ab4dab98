"""``snap restore``, ``undo`` and ``redo``: back to a snapshot, and back from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation, session_option
from treesnap.cli.invocation import Invocation
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
) -> None:
    """Restore a snapshot, or only PATHs of it.

    All or nothing. The state before is captured first: 'snap undo' goes back to it.
    Relative PATHs and DIR start from the directory of -C, else from the current one.
    """
    with invocation.open() as handle:
        absolute = invocation.absolute_all(paths, handle.root)
        result = handle.restore(
            invocation.resolve(handle, ref, absolute),
            absolute,
            to=None if to is None else invocation.absolute(to, handle.root),
            dry_run=dry_run,
            touch=touch,
            force=force,
        )
    _show(invocation, "restore", result, undone_by="undo")


def _step_back(name: str, undone: str, undone_by: str) -> click.Command:
    """Returns ``undo`` or ``redo``, which are the same but for what they undo."""

    @command(
        name,
        help=f"""Undo the newest {undone}.

        What changed since that {undone} is captured first: 'snap {undone_by}' goes back to it.
        """,
        examples=[f"snap {name}", f"snap -C project {name} --json"],
    )
    @pass_invocation
    def step_back(invocation: Invocation) -> None:
        with invocation.open() as handle:
            result = handle.undo() if name == "undo" else handle.redo()
        _show(invocation, name, result, undone_by=undone_by)

    return step_back


undo = _step_back("undo", "restore", undone_by="redo")
redo = _step_back("redo", "undo", undone_by="undo")


def _show(invocation: Invocation, name: str, result: RestoreResult, *, undone_by: str) -> None:
    plan = change_lines(result.changes) if result.dry_run else ()
    invocation.output.result(name, lambda: restore_fields(result), [*plan, restore_line(result)])
    invocation.output.note(*restore_notes(result, invocation.command_text(undone_by)))
