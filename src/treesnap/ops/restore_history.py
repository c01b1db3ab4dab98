"""The restore history of a root: what undo and redo go back and forth over."""

from __future__ import annotations

from treesnap.codec.envelope import FileKind
from treesnap.codec.history import RestoreHistory, decode_history
from treesnap.errors import Corrupt
from treesnap.store.roots import Root


def load_history(root: Root) -> RestoreHistory:
    """Returns a root's restore history; an unreadable one counts as empty."""
    try:
        payload = root.read("history", FileKind.HISTORY)
        return decode_history(payload) if payload is not None else RestoreHistory()
    except Corrupt:
        return RestoreHistory()
