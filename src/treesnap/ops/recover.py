"""Finishing an interrupted restore, before anything else happens in a root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treesnap.errors import StoreMissing
from treesnap.ops.access import Opened, is_interrupted, opened
from treesnap.ops.transaction import Transaction

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle


def recover_locked(handle: Handle, pair: Opened) -> str | None:
    """Finishes an interrupted restore and says so. The caller holds the root's lock."""
    done = Transaction(handle, pair).recover()
    if done is not None:
        handle.monitor.remark(done[0].upper() + done[1:])
    return done


def recover(handle: Handle) -> str | None:
    """Finishes an interrupted restore; returns what was done, or None."""
    try:
        with opened(handle, "finish an interrupted restore", recover=False) as pair:
            if not is_interrupted(handle, pair.root):
                return None
            with pair.root.locked("recover", handle.wait_s):
                return recover_locked(handle, pair)
    except StoreMissing:
        return None
