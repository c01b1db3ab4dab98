"""``snap create``: captures a directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.failure import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import name_options
from treesnap.cli.output.as_text import create_notes
from treesnap.cli.parameters import COUNTER, SIZE, TagOption, WholeNumber, by_key, tags_of_options
from treesnap.core.model.reserved_tags import CheckpointType, counter_tags
from treesnap.core.model.snapshots import SnapshotKind


@command(
    "create",
    examples=[
        'snap create -m "before the upgrade"',
        "snap create config/ notes.txt --exclude '*.log'",
        "snap create --session build-7 --step 3 --skip-unchanged --json",
    ],
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-m", "--label", metavar="LABEL", help="A description.")
@name_options
@click.option("--session", metavar="ID", help="The work that the snapshot belongs to.")
@click.option("--step", type=WholeNumber(min=0), metavar="N", help="Its place in the session.")
@click.option("--step-name", cls=TagOption, metavar="NAME", help="The name of the step.")
@click.option(
    "--phase", cls=TagOption, metavar="PHASE", help="The phase of the work, such as 'validate'."
)
@click.option(
    "--type",
    cls=TagOption,
    type=click.Choice([item.value for item in CheckpointType]),
    help="What makes it worth going back to.",
)
@click.option("--reason", cls=TagOption, metavar="TEXT", help="Why it is taken.")
@click.option("--source-tool", cls=TagOption, metavar="NAME", help="The program that asks for it.")
@click.option(
    "--counter",
    "counters",
    type=COUNTER,
    callback=by_key,
    multiple=True,
    metavar="K=N",
    help="A number, such as tests_passing=42; repeatable.",
)
@click.option("--allow-absent", is_flag=True, help="Allow PATHs that do not exist.")
@click.option("--skip-unchanged", is_flag=True, help="Make no snapshot if nothing changed.")
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Do not capture these, in gitignore syntax; repeatable.",
)
@click.option(
    "--max-size",
    "max_size_bytes",
    type=SIZE,
    metavar="SIZE",
    help="The limit of the store; default: 'snap config max-size'.",
)
@click.option(
    "--validate",
    metavar="CMD",
    help="Run CMD in the root first, by sh; capture nothing if it fails.",
)
@click.option("--automatic", is_flag=True, help="Let the policy of 'snap prune' remove it.")
@click.option("--force", is_flag=True, help="Allow a dangerous root, such as / or $HOME.")
@pass_invocation
def create(
    invocation: Invocation,
    /,
    *,
    paths: Sequence[str],
    tags: dict[str, str],
    counters: dict[str, int],
    allow_absent: bool,
    skip_unchanged: bool,
    exclude: Sequence[str],
    max_size_bytes: int | None,
    validate: str | None,
    automatic: bool,
    force: bool,
    **words: Any,
) -> None:
    """Capture the root, or only PATHs of it.

    Prints the snapshot's id. Exits 4 when something could not be read: the snapshot
    exists and lists it; 3 when CMD of --validate fails, and captures nothing.
    """
    from treesnap.core.ops.create import CreateOptions

    facts = {**tags_of_options(), **counter_tags(counters)}
    if twice := sorted(tags.keys() & facts.keys()):
        raise click.UsageError(f"--tag and another option both set {twice[0]!r}")
    options = CreateOptions(
        exclude=exclude,
        allow_absent=allow_absent,
        skip_unchanged=skip_unchanged,
        force=force,
        max_size_bytes=max_size_bytes,
        validate=validate,
    )
    with invocation.open(makes_store=True) as handle:
        result = handle.create(
            invocation.absolute_all(paths, handle.root),
            tags={**tags, **facts},
            kind=SnapshotKind.AUTOMATIC if automatic else SnapshotKind.MANUAL,
            options=options,
            **words,
        )
    invocation.output.note(*create_notes(result))
    invocation.output.result("create", result.to_dict, [result.id])
    if not result.complete:
        click.get_current_context().exit(ExitCode.INCOMPLETE)
