"""``snap rewind``: back to before a prompt or a tool call of an agent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import dry_run_option, session_option
from treesnap.cli.output.as_text import change_lines, gap_text, restore_line, restore_notes
from treesnap.cli.output.terminal import time_text
from treesnap.core.model.errors import printable
from treesnap.core.model.quantities import count_text, first_lines

if TYPE_CHECKING:
    from treesnap.agents.rewind import RewindResult

_SHOWN_MAX = 10
"""Conflicts and gaps that are named; the others are counted."""


@command(
    "rewind", examples=["snap rewind", "snap rewind 2 --dry-run", "snap rewind step:7 --theirs"]
)
@click.argument("where", default="1", metavar="[N|STEP]")
@dry_run_option
@click.option("--theirs", is_flag=True, help="Restore what others changed since, too.")
@click.option("--mine", is_flag=True, help="Keep what others changed since [default].")
@session_option
@pass_invocation
def rewind(invocation: Invocation, *, where: str, dry_run: bool, theirs: bool, mine: bool) -> None:
    """Undo what an agent did since its newest prompt, or since STEP.

    Goes back to before the N-th newest prompt, or to a step such as step:7, which is
    before a tool call; any other REF is fine as well. The session is the one that did
    something last, unless --session names it. All or nothing: 'snap undo' goes back.
    What others changed since the agent's turn ended is listed and kept.
    """
    if theirs and mine:
        raise click.UsageError("--theirs and --mine exclude each other")
    from treesnap.agents.rewind import RewindRequest
    from treesnap.agents.rewind import rewind as go_back

    request = RewindRequest(
        where=where,
        session_id=invocation.session,
        overwrites=theirs,
        dry_run=dry_run,
        list_changes=dry_run or invocation.output.as_json,
    )
    with invocation.open(ends_restored=True) as handle:
        result = go_back(handle.context, request)
    coloured = invocation.output.is_coloured
    plan = change_lines(result.restore.changes, coloured=coloured) if dry_run else ()
    invocation.output.result(
        "rewind",
        lambda: {
            **result.restore.to_dict(),
            "host": result.session.host,
            "session": result.session.id,
            "step": None if result.step is None else result.step.number,
            "gaps": result.gaps,
        },
        [*plan, restore_line(result.restore)],
    )
    others = ["--session", invocation.session] if invocation.session is not None else []
    with_theirs = invocation.command_text("rewind", where, *others, "--theirs")
    invocation.output.note(*_notes(result, None if theirs else with_theirs))
    invocation.output.note(*restore_notes(result.restore, invocation.command_text("undo")))


def _notes(result: RewindResult, with_theirs: str | None) -> Iterator[str]:
    """Yields what a person wants to know of a rewind; the command restores what was kept."""
    step, session = result.step, result.session
    where = f"session {printable(session.id)} of {session.host}"
    if step is not None:
        yield f"Step {step.number} of {where}, {time_text(step.snapshot.record.created_at_ns)}"
    for text in first_lines(result.gaps, gap_text, _SHOWN_MAX):
        yield text
    conflicts = result.restore.conflicts
    if not result.restore.base_ids:
        yield "It is not known how the agent left the files, so changes by others are not kept"
    if conflicts:
        done = "kept" if with_theirs is not None else "overwritten"
        yield f"{count_text(len(conflicts), 'path')} changed by others since, and {done}:"
        for text in first_lines(list(change_lines(conflicts)), str, _SHOWN_MAX):
            yield f"  {text}"
        if with_theirs is not None:
            yield f"To restore these too: {with_theirs}"
