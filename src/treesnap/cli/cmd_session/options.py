"""What the commands of ``snap session`` share: options, the manager, lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from treesnap.errors import printable

if TYPE_CHECKING:
    from treesnap.cli.invocation import Invocation
    from treesnap.compat.maestro import CheckpointManager
    from treesnap.compat.maestro_records import Checkpoint

session_id_option = click.option("--session-id", required=True, metavar="UUID", help="The session.")
checkpoint_id_option = click.option(
    "--checkpoint-id", required=True, metavar="UUID", help="The checkpoint."
)
write_log_option = click.option(
    "--write-log",
    is_flag=True,
    help="Also write .flow/maestro/sessions/UUID/checkpoints.json in the root.",
)


@contextmanager
def manager(
    invocation: Invocation,
    *,
    write_log: bool = False,
    test_command: str | None = None,
    makes_store: bool = False,
) -> Iterator[CheckpointManager]:
    """Yields the checkpoint manager of the root that the call is about."""
    from treesnap.compat.maestro import MARKERS, CheckpointManager

    with invocation.open(markers=MARKERS, makes_store=makes_store) as handle:
        yield CheckpointManager(handle=handle, keep_log=write_log, test_command=test_command)


def checkpoint_lines(checkpoint: Checkpoint, indent: str = "") -> Iterator[str]:
    """Yields what is known of a checkpoint beside its description."""
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
            yield f"{indent}{name}: {printable(str(fact))}"
