"""What every operation works with: where root and store are, and how the system is reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a command that asks no watcher needs none of it
    from treesnap.codec.watch import Answer, Mark
    from treesnap.events import Monitor
    from treesnap.fs.base import FileSystem

WAIT_DEFAULT_S = 30.0
"""How long an operation waits for another one in the same root."""


class ChangeSource(Protocol):
    """Something that knows what changed."""

    def answer(self, since: Mark | None) -> Answer | None:
        """Returns what changed since a mark, or None when it cannot work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A root and its store, by path, and what operations reach them through.

    Holds no lock and no open file, so that it survives ``fork`` and threads.
    """

    root: str
    """Real path of the root."""
    given_root: str
    """The root as it was given, of which the last component may be a link."""
    store_path: str
    """Path of the store's directory."""
    fs: FileSystem
    monitor: Monitor
    clock_ns: Callable[[], int]
    wait_s: float
    """How long an operation waits for another one in the same root."""
    watcher: ChangeSource | None = None
    """Knows what changed in the root, or None; then another process may."""
