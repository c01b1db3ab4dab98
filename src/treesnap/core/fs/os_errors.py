"""Turns operating system errors into treesnap's own, at the border of operations."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from treesnap.core.model.errors import (
    ErrorCode,
    OperationFailed,
    StorageFull,
    TreesnapError,
    quoted,
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""EFBIG: the process may not write files this large (``ulimit -f``)."""
_UNREADABLE = frozenset({errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)})
"""A bad sector, and what file systems raise that find a checksum of their own wrong."""


def is_full(error: OSError) -> bool:
    """Returns whether an error means that there is no room, on the disk or within a limit."""
    return error.errno in _FULL


def is_unreadable(error: OSError) -> bool:
    """Returns whether an error means that the disk does not give back what it holds."""
    return error.errno in _UNREADABLE


def error_text(error: Exception) -> str:
    """Returns an error's message for people: that of an OSError without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.strerror}{_where(error)}"


def _where(error: OSError) -> str:
    path = error.filename
    return f" at {quoted(os.fsencode(path))}" if isinstance(path, (str, bytes)) else ""


@contextmanager
def translating_os_errors(doing: str) -> Iterator[None]:
    """Re-raises OSError as StorageFull or OperationFailed.

    ``doing`` completes the sentence "Could not ...".
    """
    try:
        yield
    except TreesnapError:
        raise
    except OSError as error:
        path = error.filename if isinstance(error.filename, (str, bytes)) else None
        message = f"Could not {doing}{_where(error)}: {error.strerror or error}"
        if is_full(error):
            raise StorageFull(message, path=path) from error
        if isinstance(error, PermissionError):
            code = ErrorCode.NOT_PERMITTED
            raise OperationFailed(message, code=code, path=path, errno=error.errno) from error
        raise OperationFailed(message, path=path, errno=error.errno) from error
