"""``snap run``: runs a command that can be undone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import click

from treesnap.cli import json_forms, text_forms
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.render import stdout_to_stderr

SIGNAL_BASE = 128
"""Shells add the number of the signal that ended a command to this."""


@click.command(
    "run",
    cls=SnapCommand,
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
@click.option("-m", "--label", metavar="LABEL", help="A warning for people on the checkpoint.")
@pass_invocation
def command(
    invocation: Invocation, *, words: Sequence[str], retries: int, label: str | None
) -> None:
    """Runs a command, and rolls back what it did if it fails.

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
    if result.restore is not None and not output.as_json:
        output.warn(f"{words[0]} failed with exit code {exit_code}; rolled back")
        output.warn(text_forms.restore_line(result.restore))
        for warning in text_forms.skipped_lines(result.restore.untouched, "left alone"):
            output.warn(warning)
        if result.restore.safety_id is not None:
            output.warn(f"To take this back: {invocation.command_text('undo')}")
    output.result("run", fields=lambda: json_forms.run_fields(result, exit_code), lines=lambda: ())
    click.get_current_context().exit(exit_code)
