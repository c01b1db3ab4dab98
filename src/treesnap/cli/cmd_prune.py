"""``snap prune``: removes the snapshots that a policy does not keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from treesnap.cli import prune_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.quantities import Duration, Size

_COUNT = click.IntRange(min=0)


@click.command(
    "prune",
    cls=SnapCommand,
    examples=[
        "snap prune --dry-run",
        "snap prune --keep-last 10 --keep-daily 7",
        "snap prune --keep-within 2w --keep-tag release --max-size 10G",
    ],
)
@click.option("--keep-last", type=_COUNT, metavar="N", help="Keep the newest N.")
@click.option(
    "--keep-within", type=Duration(), metavar="TIME", help="Keep those younger than TIME: 36h, 2w."
)
@click.option("--keep-hourly", type=_COUNT, metavar="N", help="Keep one of each of N hours.")
@click.option("--keep-daily", type=_COUNT, metavar="N", help="Keep one of each of N days.")
@click.option("--keep-weekly", type=_COUNT, metavar="N", help="Keep one of each of N weeks.")
@click.option(
    "--keep-tag", multiple=True, metavar="KEY[=VALUE]", help="Keep those with this tag; repeatable."
)
@click.option(
    "--max-size", type=Size(), metavar="SIZE", help="Remove the oldest until SIZE holds the rest."
)
@click.option("--session", metavar="ID", help="Remove snapshots of this session only.")
@click.option("-n", "--dry-run", is_flag=True, help="Say what goes and why; remove nothing.")
@pass_invocation
def command(
    invocation: Invocation,
    /,
    *,
    keep_tag: Sequence[str],
    keep_within: int | None,
    max_size: int | None,
    session: str | None,
    dry_run: bool,
    **counts: Any,
) -> None:
    """Removes the root's snapshots that no rule keeps; gc then gives their space back.

    Without a rule, automatic snapshots are thinned out and those made by hand stay.
    Pinned and named snapshots always stay.
    """
    from treesnap.store.maintenance.retention import Policy

    policy = Policy(keep_within_s=keep_within, keep_tags=tuple(keep_tag), **counts)
    with invocation.open() as handle:
        result = handle.prune(policy, session=session, max_size_bytes=max_size, dry_run=dry_run)
    output = invocation.output
    output.result(
        "prune",
        fields=lambda: prune_forms.fields(result),
        lines=lambda: prune_forms.lines(result),
    )
    if result.removed and not (dry_run or output.as_json):
        output.warn(f"To get their space back: {invocation.command_text('gc')}")
