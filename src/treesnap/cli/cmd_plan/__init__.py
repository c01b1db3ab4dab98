"""``snap plan``: steps that run in order, with checkpoints to go back to."""

from __future__ import annotations

import click

from treesnap.cli.group import LazyGroup

COMMANDS = {
    "run": "Carries out the plan in a YAML file.",
    "resume": "Goes on with a plan that was interrupted, failed, or rolled back.",
    "list": "Lists the plans of the root, newest first.",
    "show": "Shows the steps of a plan, and how far each has come.",
    "checkpoints": "Lists the checkpoints of a plan, newest first.",
    "checkpoint": "Takes a checkpoint of a plan as it stands.",
    "rollback": "Takes a plan and its files back to a checkpoint, or lists the checkpoints.",
    "correct": "Takes a plan back to before its error, or adds a step to it.",
    "apply": "Accepts what a completed plan did; it is not rolled back any more.",
    "delete": "Removes a plan, its output, and its checkpoints.",
}
"""The first sentence of each command's help."""


@click.group("plan", cls=LazyGroup, package=__name__, sentences=COMMANDS)
def command() -> None:
    """Runs steps in order, with checkpoints to go back to.

    A PLAN is an id or its unique beginning, of any root; 'latest'; or the name of a plan
    of the root. A step that fails is undone whole.
    """
