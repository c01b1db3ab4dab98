"""``snap run``: runs a command, and rolls back what it did if it fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.declarations import option
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import restore_line, restore_notes
from treesnap.cli.output.streams import stdout_to_stderr
from treesnap.cli.parameters import WholeNumber
from treesnap.core.ending_signals import ending_text, signal_name
from treesnap.core.interruption import Stopped

SIGNAL_BASE = 128
"""Shells add the number of the signal that ended a command to this."""


@command(
    "run",
    context_settings={"allow_interspersed_args": False},
    examples=["snap run -- make install", "snap run --retries 2 -- ./migrate.sh --all"],
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] CMD...")
@option(
    "--retries",
    type=WholeNumber(min=0),
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
        try:
            result = handle.run(words, retries=retries, label=label)
        except Stopped as stopped:
            why = [signal_name(stopped.signal), *getattr(stopped, "__notes__", ())]
            output.note(f"Stopped by {'; '.join(why)}")
            raise
    exit_code = result.exit_code if result.exit_code >= 0 else SIGNAL_BASE - result.exit_code
    restored = result.restore
    if restored is not None:
        output.note(
            f"{words[0]} {ending_text(result.exit_code)}; rolled back",
            restore_line(restored),
            *restore_notes(restored, invocation.command_text("undo")),
        )
    elif result.attempts > 1:
        before = result.attempts - 1
        rolled = "attempt 1 was" if before == 1 else f"{before:,} attempts before were"
        output.note(f"{words[0]} succeeded in attempt {result.attempts:,}; {rolled} rolled back")
    output.result(
        "run",
        lambda: {**result.to_dict(), "exit_code": exit_code},
        (),
    )
    click.get_current_context().exit(exit_code)
