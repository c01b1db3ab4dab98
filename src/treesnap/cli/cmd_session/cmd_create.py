"""``snap session create``: a checkpoint."""

from __future__ import annotations

from dataclasses import fields

import click

from treesnap.cli.cmd_session.options import manager, session_id_option, write_log_option
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.purpose import parse_counters
from treesnap.compat.maestro_records import CheckpointPhase, StateSnapshot, checkpoint_fields
from treesnap.model import CheckpointType

_EXAMPLE = "snap session create --session-id UUID --description"


@click.command(
    "create",
    cls=SnapCommand,
    examples=[
        f"{_EXAMPLE} 'Planning complete' --phase plan --checkpoint-type phase_complete",
        f"{_EXAMPLE} Milestone --phase implement --state tests_passing=42",
    ],
)
@session_id_option
@click.option("--description", required=True, metavar="TEXT", help="What it is, for people.")
@click.option(
    "--phase",
    required=True,
    type=click.Choice([phase.value for phase in CheckpointPhase]),
    help="The phase of the session.",
)
@click.option(
    "--checkpoint-type",
    type=click.Choice([item.value for item in CheckpointType]),
    default=CheckpointType.MANUAL.value,
    help="What makes it worth going back to [manual].",
)
@click.option(
    "--state",
    callback=parse_counters,
    multiple=True,
    metavar="K=N",
    help="A number of the session's state, such as tasks_completed=15; repeatable.",
)
@click.option(
    "--commit-first/--no-commit-first",
    default=True,
    help="Capture the root, or only mark what was captured last.",
)
@write_log_option
@pass_invocation
def command(
    invocation: Invocation,
    *,
    session_id: str,
    description: str,
    phase: str,
    checkpoint_type: str,
    state: dict[str, int],
    commit_first: bool,
    write_log: bool,
) -> None:
    """Makes a checkpoint of the root and prints its id.

    Exits 3 and makes none when something cannot be read or, with --no-commit-first,
    when something changed since the last capture or rollback.
    """
    known = [item.name for item in fields(StateSnapshot)]
    for name in state:
        if name not in known:
            raise click.BadParameter(
                f"{name!r} is not one of {', '.join(known)}", param_hint="'--state'"
            )
    with manager(invocation, write_log=write_log, makes_store=True) as checkpoints:
        checkpoint = checkpoints.create_checkpoint(
            session_id,
            description,
            CheckpointPhase(phase),
            CheckpointType(checkpoint_type),
            StateSnapshot(**state) if state else None,
            commit_first,
        )
    if not invocation.output.as_json:
        invocation.output.warn(f"Commit SHA: {checkpoint.commit_sha}")
    invocation.output.result(
        "session.create",
        fields=lambda: checkpoint_fields(checkpoint),
        lines=lambda: [checkpoint.checkpoint_id],
    )
