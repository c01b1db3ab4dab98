"""``snap session``: the checkpoints of Maestro sessions."""

from __future__ import annotations

from treesnap.cli.group import LazyGroup

COMMANDS = {
    "create": "Makes a checkpoint of the root and prints its id.",
    "list": "Lists the checkpoints of a session, newest first.",
    "get": "Shows one checkpoint.",
    "rollback": "Goes back to a checkpoint: the position, and with --hard-reset the files.",
    "validate": "Says whether a checkpoint can be made, and what is not captured yet.",
    "delete": "Removes a checkpoint.",
    "summary": "Counts the checkpoints of a session.",
}

command = LazyGroup(
    "session",
    package=__name__,
    sentences=COMMANDS,
    help="""Makes and uses the checkpoints of Maestro sessions.

    Names, options and results are those of Maestro's checkpoint manager; sessions and
    checkpoints are named by UUIDs.
    """,
)
