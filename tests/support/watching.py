"""A root that is watched, a store beside it, and a count of what a walk looks at."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import treesnap
from capabilities import require
from oracle import difference, record
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.mounts import PRECISE_GRANULARITY_NS
from treesnap.core.fs.notifier import OVERFLOWED, Notifier, Report
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.core.worktree.watcher import Watcher
from treesnap.testing.doubles import Call, WrappedFileSystem

DIRECTORIES = 7
"""How many a whole walk of the world's tree lists."""


class Looks(WrappedFileSystem):
    """Counts all calls, and the directories below a root that are listed, but for its store."""

    def __init__(self, root: Path, store: Path) -> None:
        super().__init__()
        self._root = str(root)
        self.store = store
        self.listed = 0
        self.calls = 0

    def around(self, call: Call) -> Any:
        path = str(call.path)
        is_below = path.startswith(self._root) and not path.startswith(str(self.store))
        if call.method == "scan" and is_below:
            self.listed += 1
        self.calls += 1
        return call.proceed()


class WatchedWorld:
    """One root, its handle with a watcher, and one without."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "root"
        self.store = directory / "store"
        self.looks = Looks(self.root, self.store)
        self.now_ns = 0
        self.stack = ExitStack()
        self.notifiers: list[Notifier] = []
        self.root.mkdir()
        for number in range(3):
            (self.root / f"d{number}" / "deep").mkdir(parents=True)
            (self.root / f"d{number}" / "deep" / "file").write_text(f"content {number}")
            (self.root / f"d{number}" / "other").write_text("other")

    def watch(
        self,
        notifier: Callable[[], Notifier] = Notifier,
        *,
        reads_ahead: bool = True,
        fs: FileSystem | None = None,
    ) -> Handle:
        """Returns a handle with a new watcher, which has made its first snapshot."""
        require("notices")
        plain = treesnap.open(self.root, self.store)
        old_enough_ns = time.time_ns() + PRECISE_GRANULARITY_NS
        while plain.create() and time.time_ns() <= old_enough_ns:
            pass  # until no change can hide behind the times of files
        (cookies,) = [path / "watch" for path in self.store.glob("roots/*/")]
        cookies.mkdir(exist_ok=True)
        inside = os.stat(self.store)
        self.watcher = self.stack.enter_context(
            Watcher(
                fs or plain.context.fs,
                plain.root,
                str(cookies),
                store=frozenset({(inside.st_dev, inside.st_ino)}),
                notifier=notifier,
                reads_ahead=reads_ahead,
            )
        )
        self.handle = Handle(
            context_at(
                root=self.root, store_path=str(self.store), fs=self.looks, watcher=self.watcher
            )
        )
        self.handle.create()
        return self.handle

    def listed_by_create(self) -> int:
        """Makes a snapshot, checks that it is complete, and returns how many were listed."""
        self.looks.listed = 0
        made = self.handle.create()
        listed = self.looks.listed
        there = self.directory / f"restored-{made.id}"
        treesnap.open(self.root, self.store).restore(made.id, to=there)
        assert difference(record(self.root), record(there)) == []
        return listed


class Forging(Notifier):
    """A queue whose reports a test can hold back, lose or add to."""

    def __init__(self) -> None:
        super().__init__()
        self.watches_max = 1 << 30
        self.count = 0
        self.is_late = False
        self.added: list[Report] = []

    def watch(self, fd: int, mask: int) -> int:
        if self.count >= self.watches_max:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.count += 1
        return super().watch(fd, mask)

    def take(self) -> list[Report]:
        if self.is_late:
            return []
        added, self.added = self.added, []
        return [*added, *super().take()]

    def wait(self, timeout_s: float) -> bool:
        return False if self.is_late else super().wait(timeout_s)

    def overflow(self) -> None:
        self.added.append(Report(-1, OVERFLOWED, b""))
