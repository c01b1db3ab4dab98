"""Options that several commands share, each with one name, one sentence and one type.

Those that all commands have are in ``declarations``.
"""

from __future__ import annotations

from treesnap.cli.declarations import Decorator, Parameter, option, several_options
from treesnap.cli.parameters import DURATION, TAG, OneOf, WholeNumber, by_key
from treesnap.core.model.snapshots import SnapshotKind

session_option: Parameter = option(
    "--session",
    metavar="ID",
    help="The session that is meant, also by 'step:N'.",
    is_kept=True,
)


privileged_option: Parameter = option(
    "--privileged",
    is_flag=True,
    help="Also give set-user-ID bits, devices, capabilities and owners from elsewhere.",
)
text_option: Parameter = option(
    "--no-textconv",
    is_flag=True,
    help="Show files as they are, not by the commands of 'diff.PATTERN'.",
)
read_data_option: Parameter = option(
    "--read-data", is_flag=True, help="Read every byte and compare it with its hash."
)
dry_run_option: Parameter = option(
    "--dry-run", is_flag=True, help="Print what would change, and change nothing."
)

name_options: Decorator = several_options(
    option("--name", metavar="NAME", help="A name of your own for the snapshot; a REF."),
    option(
        "--tag",
        "tags",
        type=TAG,
        collect=by_key,
        multiple=True,
        metavar="K=V",
        help="A fact; repeatable.",
    ),
)
"""What a new snapshot is called."""

conflict_options: Decorator = several_options(
    option("--mine", is_flag=True, help="Keep paths in conflict as they are."),
    option("--theirs", is_flag=True, help="Take the other side of conflicts."),
    option("--markers", is_flag=True, help="Write both sides of a conflict into texts."),
)
"""What becomes of paths that both sides changed."""

only_session_option: Parameter = option(
    "--session", metavar="ID", help="Only snapshots of this session."
)
limit_option: Parameter = option(
    "-n", "limit", type=WholeNumber(min=0), metavar="N", help="List at most N."
)
since_option: Parameter = option(
    "--since", metavar="TIME", help="Only newer ones: 2h, yesterday, 2026-11-20T12:00."
)
kind_option: Parameter = option(
    "--kind", type=OneOf([kind.value for kind in SnapshotKind]), help="Only of this kind."
)
filter_options: Decorator = several_options(
    only_session_option,
    option("--tag", metavar="KEY[=VALUE]", help="Only snapshots with this tag."),
    option("--phase", metavar="PHASE", help="Only snapshots of this phase."),
    option("--type", metavar="TYPE", help="Only snapshots of this type."),
    limit_option,
    since_option,
    kind_option,
)
"""Which snapshots are wanted; ``Selection`` takes their values."""

_COUNT = WholeNumber(min=0)


keep_options: Decorator = several_options(
    option("--keep-last", type=_COUNT, metavar="N", help="Keep the newest N."),
    option(
        "--keep-within",
        "keep_within_s",
        type=DURATION,
        metavar="TIME",
        help="Keep those younger than TIME: 36h, 2w.",
    ),
    option("--keep-hourly", type=_COUNT, metavar="N", help="Keep one of each of N hours."),
    option("--keep-daily", type=_COUNT, metavar="N", help="Keep one of each of N days."),
    option("--keep-weekly", type=_COUNT, metavar="N", help="Keep one of each of N weeks."),
    option("--keep-monthly", type=_COUNT, metavar="N", help="Keep one of each of N months."),
    option("--keep-yearly", type=_COUNT, metavar="N", help="Keep one of each of N years."),
    option(
        "--keep-tag",
        "keep_tags",
        multiple=True,
        metavar="KEY[=VALUE]",
        help="Keep those with this tag; repeatable.",
    ),
)
"""The rules of a ``Policy``."""
