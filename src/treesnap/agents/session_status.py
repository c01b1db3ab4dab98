"""How far the capture of each session has come, kept where no root and no store is needed.

A root that is refused, a store that cannot be opened or a full disk leave no gap in the store. So
each hook leaves a small file in the user's state directory. It is the only thing that a status
line reads. It is not synced: what is lost comes with the next event.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress

from treesnap.agents.event import Event
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import ensure_directories, read_file, replace_file
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.ops.context import user_state_directory
from treesnap.core.ops.history.steps import EventPhase

SESSIONS_MAX = 200
"""Sessions that are kept; the oldest go."""
_SIZE_MAX = 1 << 16
_DIRECTORY = "agents"
_SUFFIX = ".json"


class SessionStatus(NamedTuple):
    """What became of the events of a session."""

    host: str
    session: str
    directory: str
    """Where the agent works, as the host said it with the newest prompt, or first."""
    time_ns: int
    """Of the newest event."""
    step: int | None = None
    """The newest step; None as long as nothing was captured."""
    gaps: int = 0
    """Events that were not captured."""
    problem: str | None = None
    """Why the newest event was not captured, if it was not."""


def note_status(
    fs: FileSystem, event: Event, time_ns: int, *, step: int | None, problem: str | None
) -> None:
    """Keeps what became of an event; does nothing where that cannot be kept.

    Of two hooks at one time the later one wins. ``step`` is None for what was not captured.
    """
    with suppress(TreesnapError, OSError):
        directory = os.path.join(user_state_directory(), _DIRECTORY)
        path = os.path.join(directory, _file_name(event.host, event.session))
        known = _read(fs, path)
        begins = event.phase in (EventPhase.SESSION, EventPhase.TURN)
        status = SessionStatus(
            host=event.host,
            session=event.session,
            directory=event.root if known is None or begins else known.directory,
            time_ns=time_ns,
            step=step if step is not None or known is None else known.step,
            gaps=(known.gaps if known is not None else 0) + (problem is not None),
            problem=problem,
        )
        if known is None:
            ensure_directories(fs, directory)
            _remove_oldest(fs, directory)
        content = json.dumps(status._asdict()).encode()
        replace_file(fs, path, content, temporary=directory, durable=False)


def session_status(fs: FileSystem, host: str, session: str) -> SessionStatus | None:
    """Returns what is known of a session, or None."""
    with suppress(TreesnapError, OSError):
        directory = os.path.join(user_state_directory(), _DIRECTORY)
        return _read(fs, os.path.join(directory, _file_name(host, session)))
    return None


def session_statuses(fs: FileSystem) -> list[SessionStatus]:
    """Returns what is known of all sessions, the one with the newest event first."""
    statuses: list[SessionStatus] = []
    with suppress(TreesnapError, OSError):
        directory = os.path.join(user_state_directory(), _DIRECTORY)
        paths = [os.path.join(directory, name) for name in _names(fs, directory)]
        statuses = [status for status in (_read(fs, path) for path in paths) if status is not None]
    return sorted(statuses, key=lambda status: status.time_ns, reverse=True)


def _file_name(host: str, session: str) -> str:
    return checksum(f"{host} {session}".encode(errors="surrogatepass"), 16).hex() + _SUFFIX


def _names(fs: FileSystem, directory: str) -> Iterator[str]:
    return (name for name in fs.list_names(directory) if name.endswith(_SUFFIX))


def _remove_oldest(fs: FileSystem, directory: str) -> None:
    ages = []
    for name in _names(fs, directory):
        path = os.path.join(directory, name)
        with suppress(OSError):
            ages.append((fs.lstat(path).st_mtime_ns, path))
    for _, path in sorted(ages)[: max(0, len(ages) - SESSIONS_MAX + 1)]:
        with suppress(OSError):
            fs.unlink(path)


def _read(fs: FileSystem, path: str) -> SessionStatus | None:
    """Returns what a file says, or None for one that is absent or damaged."""
    try:
        fields = json.loads(read_file(fs, path, _SIZE_MAX))
        status = SessionStatus(**fields)
    except (TreesnapError, OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (status.host, status.session, status.directory, status.problem or "")
    numbers = (status.time_ns, status.gaps, status.step or 0)
    is_sound = all(type(text) is str for text in texts)
    return status if is_sound and all(type(number) is int for number in numbers) else None
