"""``snap restore``: back to a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

import click

from treesnap.cli.command import SnapCommand, pass_invocation, session_option
from treesnap.cli.invocation import Invocation, resolve_ref
from treesnap.cli.restored import show_restore


@click.command(
    "restore",
    cls=SnapCommand,
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
    "--force", is_flag=True, help="Restore a dangerous root too, and while others change it."
)
@session_option
@pass_invocation
def command(
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
    """Makes the root, or only PATHs of it, exactly as in a snapshot.

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
    show_restore(invocation, "restore", result)
