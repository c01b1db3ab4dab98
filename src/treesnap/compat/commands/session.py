"""``snap session``: the checkpoints of Maestro sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

import click

from treesnap.cli.command import SnapGroup, pass_invocation
from treesnap.cli.declarations import Decorator, option
from treesnap.cli.failure import ExitCode
from treesnap.cli.invocation import Invocation
from treesnap.cli.output.as_text import restore_line, restore_notes, short_id
from treesnap.cli.parameters import COUNTER, by_key
from treesnap.compat.maestro import (
    MARKERS,
    Checkpoint,
    CheckpointManager,
    CheckpointPhase,
    StateSnapshot,
    ValidationResult,
    checkpoint_fields,
)
from treesnap.core.model.errors import printable
from treesnap.core.model.reserved_tags import CheckpointType

_EXAMPLE = "snap session create --session-id UUID --description"

session_id_option: Decorator = click.option(
    "--session-id", required=True, metavar="UUID", help="The session."
)
checkpoint_id_option: Decorator = click.option(
    "--checkpoint-id", required=True, metavar="UUID", help="The checkpoint."
)
write_log_option: Decorator = click.option(
    "--write-log",
    is_flag=True,
    help="Also write .flow/maestro/sessions/UUID/checkpoints.json in the root.",
)


@click.group("session", cls=SnapGroup)
def session() -> None:
    """Make and use the checkpoints of Maestro sessions.

    Names, options and results are those of Maestro's checkpoint manager; sessions and
    checkpoints are named by UUIDs.
    """


@contextmanager
def _manager(
    invocation: Invocation, *, makes_store: bool = False, **options: Any
) -> Iterator[CheckpointManager]:
    """Yields the checkpoint manager of the root."""
    with invocation.open(markers=MARKERS, makes_store=makes_store) as handle:
        yield CheckpointManager(handle=handle, **options)


@session.command(
    "create",
    examples=[
        f"{_EXAMPLE} 'Planning complete' --phase plan --checkpoint-type phase_complete",
        f"{_EXAMPLE} Milestone --phase implement --state tests_passing=42",
    ],
)
@session_id_option
@click.option("--description", required=True, metavar="TEXT", help="What the checkpoint is.")
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
@option(
    "--state",
    type=COUNTER,
    collect=by_key,
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
def create(
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
    """Make a checkpoint of the root and print its id.

    Exits 3 and makes none when something cannot be read or, with --no-commit-first,
    when something changed since the last capture or rollback.
    """
    names = [item.name for item in fields(StateSnapshot)]
    for name in state:
        if name not in names:
            raise click.BadParameter(
                f"{name!r} is not one of {', '.join(names)}", param_hint="'--state'"
            )
    with _manager(invocation, keep_log=write_log, makes_store=True) as checkpoints:
        checkpoint = checkpoints.create_checkpoint(
            session_id,
            description,
            CheckpointPhase(phase),
            CheckpointType(checkpoint_type),
            StateSnapshot(**state) if state else None,
            commit_first,
        )
    invocation.output.note(f"Commit SHA: {checkpoint.commit_sha}")
    invocation.output.result(
        "session.create", lambda: checkpoint_fields(checkpoint), [checkpoint.checkpoint_id]
    )


@session.command(
    "list",
    prints_only=True,
    examples=[
        "snap session list --session-id UUID --output pretty",
        "snap session list --session-id UUID --output json > checkpoints.json",
    ],
)
@session_id_option
@click.option(
    "--output",
    type=click.Choice(["pretty", "json"]),
    default="pretty",
    help="For people [pretty], or what checkpoints.json holds.",
)
@write_log_option
@pass_invocation
def list_checkpoints(
    invocation: Invocation, *, session_id: str, output: str, write_log: bool
) -> None:
    """List the checkpoints of a session, newest first."""
    with _manager(invocation) as checkpoints:
        listed = checkpoints.list_checkpoints(session_id)
        log = checkpoints.checkpoint_log(session_id)
        if write_log:
            checkpoints.write_log(session_id)
    if not listed:
        invocation.output.note("No checkpoints")
    lines = _list_lines(listed) if output == "pretty" else [json.dumps(log, indent=2)]
    invocation.output.result("session.list", lambda: log, lines)


def _list_lines(checkpoints: list[Checkpoint]) -> Iterator[str]:
    for number, checkpoint in enumerate(checkpoints, 1):
        yield f"{number}. {printable(checkpoint.description)}"
        for line in _facts(checkpoint):
            yield f"   {line}"


def _facts(checkpoint: Checkpoint) -> Iterator[str]:
    """Yields what is known of a checkpoint beside its description, a fact a line."""
    state = checkpoint.state_snapshot
    facts = {
        "ID": checkpoint.checkpoint_id,
        "Commit SHA": checkpoint.commit_sha,
        "Phase": checkpoint.phase.value,
        "Type": checkpoint.checkpoint_type.value,
        "Time": checkpoint.timestamp,
        "Message": checkpoint.commit_message,
        "State": state and ", ".join(f"{name}={count}" for name, count in vars(state).items()),
        "Tags": ", ".join(checkpoint.tags),
        "Rollbacks": checkpoint.rollback_count or None,
    }
    for name, fact in facts.items():
        if fact is not None:
            yield f"{name}: {printable(str(fact))}"


@session.command(
    "get", prints_only=True, examples=["snap session get --session-id UUID --checkpoint-id UUID"]
)
@session_id_option
@checkpoint_id_option
@pass_invocation
def get(invocation: Invocation, *, session_id: str, checkpoint_id: str) -> None:
    """Show one checkpoint."""
    with _manager(invocation) as checkpoints:
        checkpoint = checkpoints.get_checkpoint(session_id, checkpoint_id)
    invocation.output.result(
        "session.get",
        lambda: checkpoint_fields(checkpoint),
        [printable(checkpoint.description), *_facts(checkpoint)],
    )


@session.command(
    "rollback",
    examples=[
        "snap session rollback --session-id UUID --checkpoint-id UUID --hard-reset",
        "snap session rollback --session-id UUID --checkpoint-id UUID",
    ],
)
@session_id_option
@checkpoint_id_option
@click.option("--hard-reset", is_flag=True, help="Restore the files too; 'snap undo' undoes it.")
@write_log_option
@pass_invocation
def rollback(
    invocation: Invocation,
    *,
    session_id: str,
    checkpoint_id: str,
    hard_reset: bool,
    write_log: bool,
) -> None:
    """Go back to a checkpoint: the position, and with --hard-reset the files.

    Without --hard-reset no file is touched; what differs from the checkpoint then
    counts as not captured.
    """
    with _manager(invocation, keep_log=write_log) as checkpoints:
        result = checkpoints.rollback(session_id, checkpoint_id, hard_reset=hard_reset)
    restored = result.restore
    line = f"The position is {short_id(result.snapshot.id)}; the files are as they were"
    invocation.output.result(
        "session.rollback",
        lambda: {
            "checkpoint_id": result.snapshot.name,
            "commit_sha": result.snapshot.id,
            "position": result.position.id,
            "hard_reset": hard_reset,
            "restore": None if restored is None else restored.to_dict(),
        },
        [line if restored is None else restore_line(restored)],
    )
    if restored is not None:
        invocation.output.note(*restore_notes(restored, invocation.command_text("undo")))


@session.command(
    "validate",
    examples=["snap session validate", "snap session validate --test-command 'pytest -q'"],
)
@click.option(
    "--test-command", metavar="LINE", help="A line for the shell that succeeds when tests pass."
)
@pass_invocation
def validate(invocation: Invocation, *, test_command: str | None) -> None:
    """Check whether a checkpoint can be made, and what is not captured yet.

    Exits 3 when none can be made. Changes and failing tests are warnings.
    """
    with _manager(invocation, makes_store=True, test_command=test_command) as checkpoints:
        result = checkpoints.validate_checkpoint_state()
    warnings = [{"code": "validation", "message": text, "hint": None} for text in result.warnings]
    invocation.output.result(
        "session.validate",
        lambda: {**asdict(result), "warnings": warnings},
        _validation_lines(result),
    )
    if not result.is_valid:
        click.get_current_context().exit(ExitCode.REFUSED)


def _validation_lines(result: ValidationResult) -> Iterator[str]:
    words = {True: "yes", False: "no"}
    yield f"Valid: {words[result.is_valid]}"
    yield f"Uncommitted changes: {words[result.has_uncommitted_changes]}"
    if result.tests_passing is not None:
        yield f"Tests passing: {words[result.tests_passing]}"
    for error in result.errors:
        yield f"Error: {error}"
    for warning in result.warnings:
        yield f"Warning: {warning}"
    yield result.git_status


@session.command(
    "delete",
    examples=[
        "snap session delete --session-id UUID --checkpoint-id UUID",
        "snap session delete --session-id UUID --checkpoint-id UUID --keep-tag",
    ],
)
@session_id_option
@checkpoint_id_option
@click.option(
    "--delete-tag/--keep-tag",
    default=True,
    help="Delete its snapshot too, or only take it off the list.",
)
@write_log_option
@pass_invocation
def delete(
    invocation: Invocation,
    *,
    session_id: str,
    checkpoint_id: str,
    delete_tag: bool,
    write_log: bool,
) -> None:
    """Delete a checkpoint."""
    with _manager(invocation, keep_log=write_log) as checkpoints:
        checkpoint = checkpoints.get_checkpoint(session_id, checkpoint_id)
        checkpoints.delete_checkpoint(session_id, checkpoint_id, delete_tag)
    invocation.output.result(
        "session.delete",
        lambda: {
            "checkpoint_id": checkpoint.checkpoint_id,
            "commit_sha": checkpoint.commit_sha,
            "snapshot_deleted": delete_tag,
        },
        [checkpoint.checkpoint_id],
    )


@session.command(
    "summary", prints_only=True, examples=["snap session summary --session-id UUID --json"]
)
@session_id_option
@pass_invocation
def summary(invocation: Invocation, *, session_id: str) -> None:
    """Count the checkpoints of a session."""
    with _manager(invocation) as checkpoints:
        counts = checkpoints.get_checkpoint_summary(session_id)
    invocation.output.result(
        "session.summary",
        lambda: asdict(counts),
        [
            f"Total: {counts.total_checkpoints}",
            *(f"  {name}: {count}" for name, count in counts.checkpoints_by_type.items()),
            f"Used for rollback: {counts.checkpoints_used_for_rollback}",
            f"Latest: {counts.latest_checkpoint or 'none'}",
        ],
    )
