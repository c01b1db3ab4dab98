"""What a handle knows: two paths, how patient it is, and what it reaches the system through."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from treesnap.arguments import checked
from treesnap.errors import InvalidArgument
from treesnap.events import Monitor, NullMonitor
from treesnap.ops.places import based
from treesnap.treepath import from_user

if TYPE_CHECKING:
    from treesnap.fs.base import FileSystem
    from treesnap.ops.watching import ChangeSource

WAIT_DEFAULT_S = 30.0
"""How long an operation waits for another one in the same root."""

PathLike = str | bytes | os.PathLike[str]


class HandleState:
    """The state of a handle, without its methods; frozen after it was made."""

    def __init__(
        self,
        *,
        root: PathLike,
        store_path: str,
        monitor: Monitor | None = None,
        wait_s: float = WAIT_DEFAULT_S,
        fs: FileSystem | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        watcher: ChangeSource | None = None,
    ) -> None:
        root_text = os.fsdecode(root)
        if not root_text or "\0" in root_text:
            raise InvalidArgument("The root must be a path", path=root_text)
        root_text = based(root_text)
        self.root = os.path.realpath(root_text)
        """Real path of the root."""
        above, name = os.path.split(os.path.abspath(root_text))
        self.given_root = os.path.join(os.path.realpath(above), name)
        """The root as it was given, of which the last component may be a link."""
        self.store_path = os.path.abspath(based(store_path))
        """Path of the store's directory."""
        self.monitor: Monitor = monitor or NullMonitor()
        self.wait_s = wait_s
        self.fs: FileSystem = fs or _file_system(self.store_path)
        self.clock_ns = clock_ns
        self.watcher = watcher
        """Knows what changed in the root, or None; then another process may."""

    def __repr__(self) -> str:
        return f"Handle(root={self.root!r}, store={self.store_path!r})"

    @checked
    def tree_path(self, path: PathLike) -> bytes:
        """Returns a path of the caller as a tree path; raises InvalidArgument outside the root."""
        return from_user(path, root=self.root, base=self.root)

    @checked
    def tree_paths(self, paths: Sequence[PathLike] | None) -> tuple[bytes, ...]:
        """Returns paths of the caller as tree paths, none for None, which means the whole root.

        Raises InvalidArgument for an empty list, which would mean the whole root otherwise.
        """
        if paths is None:
            return ()
        if not paths:
            raise InvalidArgument("paths must name a path at least, or be None for the whole root")
        return tuple(self.tree_path(path) for path in paths)


def _file_system(store_path: str) -> FileSystem:
    """Returns the real one; for root, one that keeps a store of another user that user's."""
    if os.geteuid() != 0:
        from treesnap.fs.local import LocalFileSystem

        return LocalFileSystem()
    from treesnap.fs.owner import for_store

    return for_store(store_path)
