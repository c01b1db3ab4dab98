"""``snap run``: runs a command, and rolls back what it did if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.json_output import restore_fields
from treesnap.cli.streams import stdout_to_stderr
from treesnap.cli.text_output import restore_line, restore_notes

SIGNAL_BASE = 128
"""Shells add the number of the signal that ended a command to this."""


@command(
    "run",
    context_settings={"allow_interspersed_args": False},
    examples=["snap run -- make install", "snap run --retries 2 -- ./migrate.sh --all"],
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] CMD...")
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Run a failing command again, up to N times, each time from the checkpoint.",
)
@click.option("-m", "--label", metavar="LABEL", help="A description of the checkpoint.")
@pass_invocation
def run(invocation: Invocation, *, words: Sequence[str], retries: int, label: str | None) -> None:
    """Run a command, and roll back what it did if it fails.

    A checkpoint is taken first. Exits as the command does, with 128 plus the
    number of the signal that ended it, or with 127 when it cannot be started.
    With --json the command's output goes to standard error.
    """
    output = invocation.output
    with (
        invocation.open(progress=False, makes_store=True) as handle,
        stdout_to_stderr() if output.as_json else nullcontext(),
    ):
        result = handle.run(words, retries=retries, label=label)
    exit_code = result.exit_code if result.exit_code >= 0 else SIGNAL_BASE - result.exit_code
    restored = result.restore
    if restored is not None:
        output.note(
            f"{words[0]} failed with exit code {exit_code}; rolled back",
            restore_line(restored),
            *restore_notes(restored, invocation.command_text("undo")),
        )
    output.result(
        "run",
        lambda: {
            "id": result.snapshot_id,
            "exit_code": exit_code,
            "attempts": result.attempts,
            "rolled_back": result.rolled_back,
            "restore": None if restored is None else restore_fields(restored),
        },
        (),
    )
    click.get_current_context().exit(exit_code)
