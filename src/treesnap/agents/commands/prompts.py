"""``snap prompts``: what agents were asked for, and what they changed for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from treesnap.cli.command import command, pass_invocation
from treesnap.cli.declarations import argument
from treesnap.cli.invocation import Invocation
from treesnap.cli.options import limit_option, session_option
from treesnap.cli.output.terminal import Terminal
from treesnap.cli.parameters import WholeNumber
from treesnap.core.model.errors import printable

if TYPE_CHECKING:
    from treesnap.agents.prompts import Prompt
    from treesnap.agents.root_history import JudgedPath

_LISTED = 20
"""Prompts of the session, where nothing else was asked for."""
_ID_LENGTH = 8
"""Characters of a session's id that are shown."""


@command(
    "prompts",
    prints_only=True,
    examples=["snap prompts", "snap prompts 2", "snap prompts --session 9c1f --json"],
)
@argument("number", type=WholeNumber(min=1), required=False, metavar="[N]")
@limit_option
@session_option
@pass_invocation
def prompts(invocation: Invocation, *, number: int | None, limit: int | None) -> None:
    """List what an agent was asked for, newest first, and what it changed.

    N is what 'snap rewind N' takes. CHANGED counts the paths that the agent changed for
    a prompt; with a '?' those that another session, or work in the background, may have
    changed. Prompts of other sessions have no number: --session names theirs. With N,
    each path that changed since that prompt has a verdict, as 'snap rewind N' would do.
    """
    if number is not None:
        _show_paths(invocation, number)
        return
    from treesnap.agents.prompts import prompts as listed_in
    from treesnap.agents.repository_part import repository_part

    with invocation.open(progress=False) as handle:
        listed = listed_in(handle.context, invocation.session, _LISTED if limit is None else limit)
        terminal = invocation.output.terminal(handle.context.clock_ns())
        part = repository_part(handle.root, handle.store_path)
    invocation.output.result(
        "prompts",
        lambda: {"prompts": [_fields(prompt) for prompt in listed]},
        _lines(listed, terminal),
    )
    invocation.output.note(*([part.text] if part is not None else []))


def _show_paths(invocation: Invocation, number: int) -> None:
    from treesnap.agents.rewind import RewindRequest, rewind

    with invocation.open(progress=False, ends_restored=True) as handle:
        request = RewindRequest(f"{number}", invocation.session, dry_run=True, list_changes=False)
        result = rewind(handle.context, request)
    invocation.output.result(
        "prompts", lambda: {"paths": result.paths}, map(_path_line, result.paths)
    )


def _path_line(item: JudgedPath) -> str:
    who = f"  ({', '.join(map(printable, item.sessions))})" if item.sessions else ""
    return f"{item.verdict.value:14}  {printable(item.path)}{who}"


def _fields(prompt: Prompt) -> dict[str, object]:
    """Returns a prompt as JSON has it."""
    record = prompt.step.snapshot.record
    return {
        "number": prompt.number,
        "id": prompt.step.snapshot.id,
        "step": prompt.step.number,
        "host": prompt.session.host,
        "session": prompt.session.id,
        "created_at_ns": record.created_at_ns,
        "prompt": record.label,
        "changed": prompt.changed,
        "uncertain": prompt.uncertain,
        "gaps": prompt.gaps,
    }


def _lines(listed: tuple[Prompt, ...], terminal: Terminal) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("N", "WHEN", "SESSION", "CHANGED", "GAPS", "PROMPT")]
    rows += [_row(prompt, terminal) for prompt in listed]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows if listed else ():
        cells = [
            f"{cell:>{width}}" if column == 0 else f"{cell:{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _row(prompt: Prompt, terminal: Terminal) -> tuple[str, ...]:
    record = prompt.step.snapshot.record
    uncertain = f" + {prompt.uncertain}?" if prompt.uncertain else ""
    return (
        f"{prompt.number}" if prompt.number is not None else "-",
        terminal.when(record.created_at_ns),
        f"{printable(prompt.session.host)} {printable(prompt.session.id[:_ID_LENGTH])}",
        f"{prompt.changed}{uncertain}",
        f"{prompt.gaps}" if prompt.gaps else "-",
        printable(record.label or ""),
    )
