"""``snap revert``: undo of what happened in the middle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from treesnap.cli.command import command, pass_invocation, session_option
from treesnap.cli.invocation import Invocation
from treesnap.cli.text_output import change_lines, short_id
from treesnap.errors import printable
from treesnap.quantities import count_text, first_lines

if TYPE_CHECKING:
    from treesnap.results import RevertResult

_SHOWN_MAX = 10
"""Conflicts that are named; the others are counted."""


@command(
    "revert",
    examples=[
        "snap revert latest",
        "snap revert step:5 --session fix-login --dry-run",
        "snap revert 4f2a..81c0 src/ --markers",
    ],
)
@click.argument("ref", metavar="REF|A..B")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--mine", is_flag=True, help="Keep paths in conflict as they are.")
@click.option("--theirs", is_flag=True, help="Make paths in conflict as they were before.")
@click.option("--markers", is_flag=True, help="Write both sides of a conflict into texts.")
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Allow a dangerous root, and changes by other programs meanwhile.",
)
@session_option
@pass_invocation
def revert(
    invocation: Invocation,
    *,
    ref: str,
    paths: Sequence[str],
    mine: bool,
    theirs: bool,
    markers: bool,
    dry_run: bool,
    force: bool,
) -> None:
    """Undo what happened between two snapshots, and keep everything since.

    REF alone stands for what changed since the snapshot before it, or for what that
    step of an agent did. Texts that changed since in other lines are merged. Where the
    same lines changed, nothing is changed at all, unless an option says which side wins.
    All or nothing: 'snap undo' goes back.
    """
    rules = [
        rule
        for rule, is_given in (("mine", mine), ("theirs", theirs), ("markers", markers))
        if is_given
    ]
    if len(rules) > 1:
        raise click.UsageError(f"--{rules[0]} and --{rules[1]} exclude each other")
    with invocation.open(ends_restored=not dry_run) as handle:
        wanted = invocation.absolute_all(paths, handle.root)
        result = handle.revert(
            ref,
            wanted,
            conflicts=rules[0] if rules else "refuse",
            session=invocation.session,
            dry_run=dry_run,
            force=force,
        )
    lines = [*(change_lines(result.changes) if dry_run else ()), _summary(result)]
    invocation.output.result("revert", result.to_dict, lines)
    invocation.output.note(*_notes(result, rules[0] if rules else None, invocation))


def _summary(result: RevertResult) -> str:
    paths = count_text(len(result.changes), "path")
    if result.dry_run:
        return f"Would change {paths}"
    if not result.changes:
        return "Nothing to revert: nothing of it is left"
    assert result.snapshot is not None
    return f"Reverted: {paths} changed, now {short_id(result.snapshot.id)}"


def _notes(result: RevertResult, rule: str | None, invocation: Invocation) -> Iterator[str]:
    outcomes = {
        None: "it would be refused",
        "mine": "kept as they are",
        "theirs": "as they were before",
        "markers": "texts have marks, all else is kept",
    }
    if result.conflicts:
        paths = count_text(len(result.conflicts), "path")
        yield f"{paths} changed since in another way, {outcomes[rule]}:"
        for text in first_lines(result.conflicts, printable, _SHOWN_MAX):
            yield f"  C  {text}"
    if result.kept:
        yield f"{count_text(len(result.kept), 'path')} changed meanwhile by others, and kept:"
        for text in first_lines(list(change_lines(result.kept)), str, _SHOWN_MAX):
            yield f"  {text}"
    if result.safety_id is not None:
        yield f"To go back: {invocation.command_text('undo')}"
