"""Options that several commands share, each with one name, one sentence and one type.

Those that all commands have are in ``command``.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from treesnap.cli.command import keep_global
from treesnap.cli.parameters import DURATION, TAG, WholeNumber, by_key
from treesnap.core.model.snapshots import SnapshotKind


def several_options(
    *options: Callable[[Callable[..., None]], Callable[..., None]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes one decorator of those of several options, for commands that share them."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


session_option = click.option(
    "--session",
    metavar="ID",
    help="The session that 'step:N' is about.",
    expose_value=False,
    callback=keep_global,
)


privileged_option = click.option(
    "--privileged",
    is_flag=True,
    help="Also give set-user-ID bits, devices, capabilities and owners from elsewhere.",
)
text_option = click.option(
    "--no-textconv",
    is_flag=True,
    help="Show files as they are, not by the commands of 'diff.PATTERN'.",
)
read_data_option = click.option(
    "--read-data", is_flag=True, help="Read every byte and compare it with its hash."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would change, and change nothing."
)

name_options = several_options(
    click.option("--name", metavar="NAME", help="A name of your own for the snapshot; a REF."),
    click.option(
        "--tag",
        "tags",
        type=TAG,
        callback=by_key,
        multiple=True,
        metavar="K=V",
        help="A fact; repeatable.",
    ),
)
"""What a new snapshot is called."""

conflict_options = several_options(
    click.option("--mine", is_flag=True, help="Keep paths in conflict as they are."),
    click.option("--theirs", is_flag=True, help="Take the other side of conflicts."),
    click.option("--markers", is_flag=True, help="Write both sides of a conflict into texts."),
)
"""What becomes of paths that both sides changed."""

only_session_option = click.option(
    "--session", metavar="ID", help="Only snapshots of this session."
)
limit_option = click.option(
    "-n", "limit", type=WholeNumber(min=0), metavar="N", help="At most N snapshots."
)
since_option = click.option(
    "--since", metavar="TIME", help="Only newer ones: 2h, yesterday, 2026-11-20T12:00."
)
kind_option = click.option(
    "--kind", type=click.Choice([kind.value for kind in SnapshotKind]), help="Only of this kind."
)
filter_options = several_options(
    only_session_option,
    click.option("--tag", metavar="KEY[=VALUE]", help="Only snapshots with this tag."),
    click.option("--phase", metavar="PHASE", help="Only snapshots of this phase."),
    click.option("--type", metavar="TYPE", help="Only snapshots of this type."),
    limit_option,
    since_option,
    kind_option,
)
"""Which snapshots are wanted; ``Selection`` takes their values."""

_COUNT = WholeNumber(min=0)


keep_options = several_options(
    click.option("--keep-last", type=_COUNT, metavar="N", help="Keep the newest N."),
    click.option(
        "--keep-within",
        "keep_within_s",
        type=DURATION,
        metavar="TIME",
        help="Keep those younger than TIME: 36h, 2w.",
    ),
    click.option("--keep-hourly", type=_COUNT, metavar="N", help="Keep one of each of N hours."),
    click.option("--keep-daily", type=_COUNT, metavar="N", help="Keep one of each of N days."),
    click.option("--keep-weekly", type=_COUNT, metavar="N", help="Keep one of each of N weeks."),
    click.option("--keep-monthly", type=_COUNT, metavar="N", help="Keep one of each of N months."),
    click.option("--keep-yearly", type=_COUNT, metavar="N", help="Keep one of each of N years."),
    click.option(
        "--keep-tag",
        "keep_tags",
        multiple=True,
        metavar="KEY[=VALUE]",
        help="Keep those with this tag; repeatable.",
    ),
)
"""The rules of a ``Policy``."""
