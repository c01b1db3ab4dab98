"""Errors that callers of other checkpoint managers catch, which are errors of this library too.

Each is a TreesnapError, with its code, and an exception of the standard library:
ValueError if the caller must change something first, FileNotFoundError for what does not
exist, SubprocessError where git would have failed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from treesnap.core.model.errors import ErrorCode, InvalidArgument, NotFound, Refused, TreesnapError


class CheckpointRefused(Refused, ValueError):
    """The state does not allow it: unsaved changes, for example, or an unreadable file."""


class CheckpointNotFound(NotFound, FileNotFoundError):
    """The session, checkpoint or directory does not exist."""


class CheckpointFailed(TreesnapError, subprocess.SubprocessError):
    """The attempt failed: busy, no space, damage, a change by another program."""


_NOT_VALID = frozenset(
    {
        ErrorCode.DANGEROUS_ROOT,
        ErrorCode.NAME_TAKEN,
        ErrorCode.PINNED,
        ErrorCode.UNREADABLE,
        ErrorCode.UNSAVED_CHANGES,
    }
)
"""Problems that the caller can see and change before the call."""


@contextmanager
def translated() -> Iterator[None]:
    """Translates the library's errors to those above; InvalidArgument already is a ValueError."""
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
