"""Watching a tree: which paths changed since a mark that the watcher gave.

Every directory of the tree has a watch of one inotify queue. A new directory is watched
before it is listed, and counts as changed whole, so that nothing can appear in it unseen.
To answer, the watcher renames a file of its own, which the same queue reports: when that
report has come, all earlier ones have, and the answer holds for everything that was done
before the question. The idea is that of Watchman's cookies.

Whenever it cannot be sure, the watcher gives up what it knows and begins anew: the queue
overflowed, a watch was refused or lost, file systems were mounted or unmounted, the root
is another directory. The next answer says then that anything may have changed.

What the kernel does not report is looked for elsewhere or not at all: writes through
memory mappings, see :mod:`treesnap.worktree.mappings`; files that are changed under another
name outside of the tree, and asynchronous writes to files that stay open, both found by
the whole walks that are done now and then. See docs/explanation/watching.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Self

from treesnap.codec.watch import Answer, Mark
from treesnap.errors import ErrorCode, Refused, shown
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import sweep_abandoned, sweep_temporary
from treesnap.fs.notify import KernelNotifier, Notifier
from treesnap.worktree.mounts import Mounts
from treesnap.worktree.watched import COOKIE_PREFIX, Lost, WatchedTree

REPORTING = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems that nobody but this kernel changes, so that it can report every change."""
RETRY_S = 60.0
"""How long it does not try to begin anew after that failed: the next walks look at everything."""
PAUSE_S = 5.0
"""After giving up, how long it waits to begin anew if nobody asks: much may be going on."""
_GATHER_S = 0.02
"""How long it lets reports gather, so that it does not wake for each: the queue holds thousands."""
_LOOK_S = 0.2
"""How long the thread waits for reports before it looks whether it is over."""


class Watcher:
    """Watches one root, in a thread of its own. Use as a context manager.

    All methods may be called from any thread. After ``fork`` the child has no watcher: it
    gets no answers, and leaving the block there ends nothing.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        cookies: str,
        *,
        store: tuple[int, int] | None = None,
        notifier: Callable[[], Notifier] = KernelNotifier,
        reads_ahead: bool = True,
    ) -> None:
        """Prepares to watch ``root``, a real path.

        ``cookies`` is a directory outside of the tree for watchers alone; ``store`` is device and
        inode of what is never captured. Without ``reads_ahead`` reports are taken from the
        queue only when somebody asks.
        """
        self._fs = fs
        self._root = root
        self._cookies = cookies
        self._store = store
        self._make_notifier = notifier
        self._reads_ahead = reads_ahead
        self._lock = threading.Lock()
        self._process_id = os.getpid()
        self._tree: WatchedTree | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._not_before_s = 0.0
        self._again_s = 0.0
        self.changed = threading.Event()
        """Set when something changed, or may have; whoever waits for it clears it."""
        self.why_lost = ""
        """Why all that was known was given up last, or nothing."""

    def __enter__(self) -> Self:
        """Begins to watch. Costs an open, a watch and a listing per directory.

        Raises Refused where not every change is reported, or when the kernel gives the user no
        more watches; OSError.
        """
        refuse_unreported(self._fs, self._root)
        sweep_abandoned(self._fs, self._cookies, lambda name: name.startswith(COOKIE_PREFIX))
        sweep_temporary(self._fs, self._cookies)
        with self._lock:
            try:
                self._begin()
            except Lost as error:
                raise _refused(self._root, str(error)) from error
        if self._reads_ahead:
            thread = threading.Thread(target=self._read_ahead, name="treesnap-watch", daemon=True)
            try:
                thread.start()
            except BaseException:
                self._close()
                raise
            self._thread = thread
        return self

    def __exit__(self, *exception: object) -> None:
        if os.getpid() != self._process_id:
            return  # the queue and the cookie are the parent's
        with self._lock:
            self._is_over = True
            self._close()
        if self._thread is not None:
            self._thread.join()

    @property
    def directories(self) -> int:
        """How many directories are watched."""
        with self._lock:
            return self._tree.count if self._tree is not None else 0

    def answer(self, since: Mark | None, timeout_s: float = 10.0) -> Answer | None:
        """Returns what changed since a mark, or None when the watcher cannot work.

        The paths are None when that cannot be known. The answer's mark is good for the next
        question in any case. Costs what has changed, or as much as the beginning when all was
        given up.
        """
        if os.getpid() != self._process_id:
            return None
        deadline = time.monotonic() + timeout_s
        with self._lock:
            if self._is_over:
                return None
            try:
                if self._tree is not None:
                    try:
                        if self._tree.sync(deadline):
                            self.changed.set()
                        self._tree.check()
                        return self._tree.answer(since)
                    except (Lost, OSError) as error:
                        self._give_up(str(error))
                if time.monotonic() < self._not_before_s:
                    return None
                tree = self._begin()
                tree.sync(deadline)
                return tree.answer(None)
            except (Lost, OSError) as error:
                self._give_up(str(error))
                self._not_before_s = time.monotonic() + RETRY_S
                return None

    def _begin(self) -> WatchedTree:
        tree = WatchedTree(self._fs, self._root, self._cookies, self._store, self._make_notifier())
        try:
            tree.begin()
        except BaseException:
            tree.close()
            raise
        self._tree = tree
        return tree

    def _begin_again(self) -> None:
        """Begins to watch although nobody asks, so that changes are noticed."""
        try:
            self._begin()
        except (Lost, OSError) as error:
            self.why_lost = str(error)
            self._again_s = self._not_before_s = time.monotonic() + RETRY_S
        else:
            self.changed.set()

    def _give_up(self, why: str) -> None:
        self.why_lost = why
        self._again_s = time.monotonic() + PAUSE_S
        self._close()
        self.changed.set()

    def _close(self) -> None:
        if self._tree is not None:
            self._tree.close()
            self._tree = None

    def _read_ahead(self) -> None:
        """Takes reports while nobody asks, so that the queue does not overflow."""
        while True:
            with self._lock:
                if self._is_over:
                    return
                if self._tree is None and time.monotonic() >= self._again_s:
                    self._begin_again()
                tree = self._tree
                try:
                    if tree is not None and tree.take():
                        self.changed.set()
                except (Lost, OSError) as error:
                    self._give_up(str(error))
                    tree = None
            if tree is None:
                time.sleep(_LOOK_S)
            elif tree.wait(_LOOK_S):
                time.sleep(_GATHER_S)


def refuse_unreported(fs: FileSystem, root: str) -> None:
    """Raises Refused for a root on a file system of which not every change is reported."""
    kind = Mounts(fs).kind(root)
    if kind not in REPORTING:
        of = kind or "unknown"
        raise _refused(root, f"of its file system ({of}) not every change is reported")


def _refused(root: str, why: str) -> Refused:
    return Refused(
        f"{shown(root)!r} cannot be watched: {why}", code=ErrorCode.NOT_WATCHABLE, path=root
    )
