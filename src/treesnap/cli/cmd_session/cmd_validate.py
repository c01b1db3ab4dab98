"""``snap session validate``: whether a checkpoint can be made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from treesnap.cli.cmd_session.options import manager
from treesnap.cli.command import SnapCommand, pass_invocation
from treesnap.cli.exits import ExitCode
from treesnap.cli.invocation import Invocation

if TYPE_CHECKING:
    from treesnap.compat.maestro_records import ValidationResult


@click.command(
    "validate",
    cls=SnapCommand,
    examples=["snap session validate", "snap session validate --test-command 'pytest -q'"],
)
@click.option(
    "--test-command", metavar="LINE", help="A line for the shell that succeeds when tests pass."
)
@pass_invocation
def command(invocation: Invocation, *, test_command: str | None) -> None:
    """Says whether a checkpoint can be made, and what is not captured yet.

    Exits 3 when none can be made. Changes and failing tests are warnings.
    """
    with manager(invocation, test_command=test_command) as checkpoints:
        result = checkpoints.validate_checkpoint_state()
    invocation.output.result(
        "session.validate", fields=lambda: asdict(result), lines=lambda: _lines(result)
    )
    if not result.is_valid:
        click.get_current_context().exit(ExitCode.REFUSED)


def _lines(result: ValidationResult) -> Iterator[str]:
    yield f"Valid: {_word(result.is_valid)}"
    yield f"Uncommitted changes: {_word(result.has_uncommitted_changes)}"
    if result.tests_passing is not None:
        yield f"Tests passing: {_word(result.tests_passing)}"
    for error in result.errors:
        yield f"Error: {error}"
    for warning in result.warnings:
        yield f"Warning: {warning}"
    yield result.git_status


def _word(value: bool) -> str:  # noqa: FBT001 - the word for it
    return "yes" if value else "no"
