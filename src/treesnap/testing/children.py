"""Running a piece of code in a forked child, and letting it die there.

What a child held when it died, locks and descriptors, the kernel undoes, as it
does for a process that is killed.
"""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from treesnap.core.fs.base import FileSystem
from treesnap.testing.doubles import Fault, FaultyFileSystem, UnsyncedFileSystem

KILLED_CODE = 77
"""Exit code of a child that a fault killed."""
_FAILED_CODE = 78


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedChild:
    """How a child ended."""

    was_killed: bool
    error: str | None
    """Its traceback when it raised, or None."""


def in_child(action: Callable[[], object]) -> EndedChild:
    """Runs an action in a forked child and waits for its end."""
    read_fd, write_fd = os.pipe()
    with warnings.catch_warnings():
        # Other threads may exist; the child uses nothing of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _run(action, write_fd)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        text = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in {0, KILLED_CODE, _FAILED_CODE}:
        raise RuntimeError(f"The child ended with {code}")
    return EndedChild(was_killed=code == KILLED_CODE, error=text if code == _FAILED_CODE else None)


def _run(action: Callable[[], object], write_fd: int) -> None:
    code = _FAILED_CODE
    try:
        action()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the parent is told
        os.write(write_fd, traceback.format_exc().encode()[:60_000])
    finally:
        os._exit(code)


def killed(action: Callable[[FileSystem], object], *faults: Fault) -> EndedChild:
    """Runs an action on a file system in a child that dies, uncleanly, at a fault.

    A kill loses nothing that was not synced, so the child waits for no sync.
    """
    fs = FaultyFileSystem(
        *faults, inner=UnsyncedFileSystem(), on_kill=lambda: os._exit(KILLED_CODE)
    )
    return in_child(lambda: action(fs))
