"""``snap create``: captures a directory."""

from __future__ import annotations

from collections.abc import Sequence

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, parse_tags, pass_invocation
from treesnap.cli.exits import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.cli.purpose import purpose_options
from treesnap.cli.quantities import Size
from treesnap.model import Purpose, SnapshotKind


@click.command(
    "create",
    cls=SnapCommand,
    examples=[
        'snap create -m "before the upgrade"',
        "snap create config/ notes.txt --exclude '*.log'",
        "snap create --session build-7 --step 3 --skip-unchanged --json",
    ],
)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-m", "--label", metavar="LABEL", help="A warning for people.")
@click.option("--name", metavar="NAME", help="A name of your own for the snapshot; a REF.")
@click.option(
    "--tag", "tags", callback=parse_tags, multiple=True, metavar="K=V", help="A fact; repeatable."
)
@click.option("--session", metavar="ID", help="The work that the snapshot belongs to.")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Its place in the session.")
@purpose_options
@click.option("--allow-absent", is_flag=True, help="Capture that there is nothing at a PATH, too.")
@click.option("--skip-unchanged", is_flag=True, help="Make none when nothing changed.")
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Do not capture, in gitignore syntax; repeatable.",
)
@click.option(
    "--max-size", type=Size(), metavar="SIZE", help="What the store may take; else 'snap config'."
)
@click.option("--automatic", is_flag=True, help="It may go when the policy says so.")
@click.option("--force", is_flag=True, help="Capture a dangerous root, such as / or $HOME, too.")
@pass_invocation
def command(
    invocation: Invocation,
    *,
    paths: Sequence[str],
    label: str | None,
    name: str | None,
    tags: dict[str, str],
    session: str | None,
    step: int | None,
    purpose: Purpose,
    allow_absent: bool,
    skip_unchanged: bool,
    exclude: Sequence[str],
    max_size: int | None,
    automatic: bool,
    force: bool,
) -> None:
    """Captures the root, or only PATHs of it, and prints the snapshot's id.

    Exits 4 when something could not be read: the snapshot exists and lists it.
    """
    with invocation.open(makes_store=True) as handle:
        result = handle.create(
            invocation.absolute_all(paths, handle.root),
            allow_absent=allow_absent,
            label=label,
            name=name,
            tags=tags,
            session=session,
            step=step,
            purpose=purpose,
            skip_unchanged=skip_unchanged,
            exclude=exclude,
            kind=SnapshotKind.AUTOMATIC if automatic else SnapshotKind.MANUAL,
            force=force,
            max_size_bytes=max_size,
        )
    if not invocation.output.as_json:
        for warning in text_forms.create_warnings(result):
            invocation.output.warn(warning)
    invocation.output.result(
        "create", fields=lambda: json_forms.create_fields(result), lines=lambda: [result.id]
    )
    if not result.complete:
        click.get_current_context().exit(ExitCode.INCOMPLETE)
