"""``snap root``: the roots of a store."""

from __future__ import annotations

from treesnap.cli.group import LazyGroup

COMMANDS = {
    "list": "Lists all roots of the store.",
    "move": "Says that a root is at another path now.",
    "forget": "Removes the whole history of a root; gc then gives its space back.",
}

command = LazyGroup(
    "root",
    package=__name__,
    sentences=COMMANDS,
    help="""Lists, moves and forgets the roots of a store.

    A directory that was renamed is recognised by itself. OLD and ROOT are paths, which need
    not exist any more, or beginnings of the ids that 'list' shows.
    """,
)
