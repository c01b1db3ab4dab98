"""Errors that callers of other checkpoint managers catch, and of this library too.

Each is a TreesnapError, with its code, and an exception of the standard library:
ValueError where the state has to change first, FileNotFoundError for what does not
exist, SubprocessError where git would have failed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from treesnap.errors import ErrorCode, InvalidArgument, NotFound, Refused, TreesnapError


class CheckpointRefused(Refused, ValueError):
    """The state does not allow it: there are unsaved changes, something is unreadable."""


class CheckpointNotFound(NotFound, FileNotFoundError):
    """There is no such session, checkpoint or directory."""


class CheckpointFailed(TreesnapError, subprocess.SubprocessError):
    """It was tried and failed: busy, no space, damage, a change by another program."""


_NOT_VALID = frozenset(
    {
        ErrorCode.DANGEROUS_ROOT,
        ErrorCode.NAME_TAKEN,
        ErrorCode.PINNED,
        ErrorCode.UNREADABLE,
        ErrorCode.UNSAVED_CHANGES,
    }
)
"""What the caller can see, and change, before the call."""


@contextmanager
def translated() -> Iterator[None]:
    """Raises the library's errors as those above; InvalidArgument is a ValueError already."""
    try:
        yield
    except (InvalidArgument, CheckpointRefused, CheckpointNotFound, CheckpointFailed):
        raise
    except TreesnapError as error:
        raise _documented(error)(error.message, code=error.code, path=error.path) from error


def _documented(error: TreesnapError) -> type[TreesnapError]:
    if isinstance(error, NotFound):
        return CheckpointNotFound
    return CheckpointRefused if error.code in _NOT_VALID else CheckpointFailed
