"""Which of two directories the store is, when a move to another file system was killed.

Such a move has the whole store twice, where it was and where it goes, and exchanges the first with
a link to the second. So the store is what its old name leads to, before the exchange and after it.
Both directories say before that which name this is, in the file ``moving``, and no process writes
to the one to which the name does not lead: what is written there would be lost.
"""

from __future__ import annotations

import os

from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.fs.durable import read_file, replace_file
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.store.layout import Layout

_SIZE_MAX = 1 << 16


class NotedMove(NamedTuple):
    """A move that may not have ended. Its names are empty while it has not begun."""

    old: str
    """The name that leads to the store."""
    new: str
    """Where it leads after the move."""

    @property
    def place(self) -> str:
        """Where the store is. Where the old name is gone, a user removed it after the move."""
        return os.path.realpath(self.old if os.path.lexists(self.old) else self.new)


WAITING = NotedMove("", "")
"""What a mover notes that waits until others have left the store."""


def note_move(fs: FileSystem, layout: Layout, move: NotedMove) -> None:
    """Says in one of the two directories what is about to happen, durably.

    The gate of the store is closed, unless the mover waits for that.
    """
    import json

    content = json.dumps(move._asdict(), indent=2).encode() + b"\n"
    replace_file(fs, layout.moving, content, temporary=layout.temporary)


def read_move(fs: ReadingFileSystem, layout: Layout) -> NotedMove | None:
    """Returns the move that a store was part of, or None. Costs one call where there was none."""
    try:
        data = read_file(fs, layout.moving, _SIZE_MAX)
    except FileNotFoundError:
        return None
    import json

    try:
        value = json.loads(data)
        return NotedMove(os.fspath(value["old"]), os.fspath(value["new"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
