"""What ``restore``, ``undo`` and ``redo`` say about what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treesnap.cli import json_forms, text_forms
from treesnap.errors import printable

if TYPE_CHECKING:
    from treesnap.cli.invocation import Invocation
    from treesnap.results import RestoreResult

BACK = {"restore": "undo", "undo": "redo", "redo": "undo"}
"""Which command takes which one back."""


def show_restore(invocation: Invocation, command_name: str, result: RestoreResult) -> None:
    """Prints the outcome, and how to undo it."""
    output = invocation.output
    plan = text_forms.change_lines(result.changes) if result.dry_run else ()
    output.result(
        command_name,
        fields=lambda: json_forms.restore_fields(result),
        lines=lambda: [*plan, text_forms.restore_line(result)],
    )
    if output.as_json:
        return
    for warning in text_forms.skipped_lines(result.untouched, "left alone"):
        output.warn(warning)
    for path in result.links_broken:
        output.warn(
            f"Link broken: {printable(path)!r} has a name elsewhere, which keeps the old file"
        )
    if result.plan_id is not None:
        output.warn(f"Plan {result.plan_id} went with the files")
    for line in text_forms.open_lines(result.open_files):
        output.warn(line)
    if result.safety_id is not None:
        output.warn(f"To take this back: {invocation.command_text(BACK[command_name])}")
