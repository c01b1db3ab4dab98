"""Where the forks are that are made for hosts, known by their paths alone."""

from __future__ import annotations

import os

from treesnap.core.model.errors import OperationFailed
from treesnap.core.ops.context import user_state_directory


def forks_directory() -> str:
    """Returns the real path of the directory of all; raises OperationFailed without a home."""
    return os.path.realpath(os.path.join(user_state_directory(), "worktrees"))


def fork_around(directory: str) -> str | None:
    """Returns the fork that holds a directory, or None: ``PROJECT/NAME`` below that directory."""
    try:
        above = forks_directory()
    except OperationFailed:
        return None
    real = os.path.realpath(directory)
    parts = os.path.relpath(real, above).split(os.sep)
    is_inside = real.startswith(above + os.sep) and len(parts) > 1
    return os.path.join(above, *parts[:2]) if is_inside else None
