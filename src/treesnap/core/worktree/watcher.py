"""Watching a tree: which paths changed since a mark that the watcher gave.

Every directory of the tree has a watch in one inotify queue. A new directory is watched
before it is listed, and all of it counts as changed, so nothing can appear in it unseen.
To answer, the watcher renames a file of its own, which the same queue reports. When that
report has come, all earlier ones have, and the answer covers everything that was done
before the question. The idea is that of Watchman's cookies.

When it cannot be sure, the watcher drops what it knows and starts again: the queue
overflowed, a watch was refused or lost, a file system was mounted or unmounted, the root
is another directory. The next answer then says that anything may have changed.

Some changes are not reported by the kernel. Writes through memory mappings are found by
:mod:`treesnap.core.worktree.scan.mapped_files`; changes of files under another name outside of the
tree, and asynchronous writes to files that stay open, by the walk of everything that is done
now and then. See docs/explanation/watching.md.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.codec.watch import Answer, Mark
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import create_locked, sweep_abandoned, sweep_temporary
from treesnap.core.fs.mounts import Mounts
from treesnap.core.fs.notifier import (
    CLOSED,
    CREATED,
    DELETED,
    IGNORED,
    IS_DIRECTORY,
    MOVED_FROM,
    MOVED_TO,
    NAMES,
    OVERFLOWED,
    SELF_GONE,
    UNMOUNTED,
    Notifier,
    Report,
)
from treesnap.core.fs.os_errors import error_text
from treesnap.core.fs.real_path import OPEN_DIRECTORY
from treesnap.core.model import treepath
from treesnap.core.model.errors import ErrorCode, Refused, quoted
from treesnap.core.model.type_names import Self
from treesnap.core.worktree.directory import NO_DIRECTORY, DirectoryChain, open_directory
from treesnap.core.worktree.scan.mapped_files import MappedFiles

REPORTING = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems that only this kernel changes, so that it can report every change."""
FIRST_REPORT_S = 1.0
"""How long a queue that was just made may take to report at least."""
RETRY_S = 60.0
"""How long after a failed start the next one is tried. Until then, walks look at everything."""
PAUSE_S = 5.0
"""How long after giving up it starts again if it is not asked: much may be going on."""
_GATHER_S = 0.02
"""How long it lets reports gather, so that it does not wake for each; thousands fit the queue."""
_LOOK_S = 0.2
"""How long the thread waits for reports before it checks whether to end."""


class Watcher:
    """Watches one root, in a thread of its own. Use as a context manager.

    All methods may be called from any thread. After ``fork`` the child has no watcher: it
    gets no answers, and leaving the block there does not end the parent's watch.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        cookies: str,
        *,
        store: frozenset[tuple[int, int]] = frozenset(),
        notifier: Callable[[], Notifier] = Notifier,
        reads_ahead: bool = True,
    ) -> None:
        """Prepares to watch ``root``, a real path.

        ``cookies`` is a directory outside of the tree, for watchers only; ``store`` is device and
        inode of what is never captured. Without ``reads_ahead``, reports are taken
        in only to answer a question.
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
        self.changed: threading.Event = threading.Event()
        """Set when something changed or may have. The thread that waits for it clears it."""
        self.why_lost: str = ""
        """Why it last dropped all that it knew, or empty."""

    def __enter__(self) -> Self:
        """Starts to watch. Costs an open, a watch and a listing per directory.

        Raises Refused on a file system that does not report every change, or when the kernel
        gives the user no more watches; OSError.
        """
        refuse_unreported(self._fs, self._root)
        sweep_abandoned(self._fs, self._cookies, lambda name: name.startswith(COOKIE_PREFIX))
        sweep_temporary(self._fs, self._cookies)
        with self._lock:
            try:
                self._begin()
            except ReportsLost as error:
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
            return  # the queue and the cookie belong to the parent
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

        The paths are None if that cannot be known; the answer's mark can be used for the next
        question all the same. Costs as much as has changed, or as much as the start after all
        was given up.
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
                    except (ReportsLost, OSError) as error:
                        self._give_up(error_text(error))
                if time.monotonic() < self._not_before_s:
                    return None
                tree = self._begin()
                # Its reader needs a moment, also when the one before has used up the time.
                tree.sync(max(deadline, time.monotonic() + FIRST_REPORT_S))
                return tree.answer(None)
            except (ReportsLost, OSError) as error:
                self._give_up(error_text(error))
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
        """Starts to watch again without a question, so that changes are noticed."""
        try:
            self._begin()
        except (ReportsLost, OSError) as error:
            self.why_lost = error_text(error)
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
        """Takes in reports between questions, so that the queue does not overflow."""
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
                except (ReportsLost, OSError) as error:
                    self._give_up(error_text(error))
                    tree = None
            if tree is None:
                time.sleep(_LOOK_S)
            elif tree.wait(_LOOK_S):
                time.sleep(_GATHER_S)


def refuse_unreported(fs: FileSystem, root: str) -> None:
    """Raises Refused for a root on a file system that does not report every change."""
    kind = Mounts(fs).kind(root)
    if kind not in REPORTING:
        if not kind:
            raise _refused(root, "nothing says whether its file system reports every change")
        raise _refused(root, f"its file system ({kind}) does not report every change")


def _refused(root: str, why: str) -> Refused:
    return Refused(
        f"{quoted(root)} cannot be watched: {why}", code=ErrorCode.NOT_WATCHABLE, path=root
    )


UNTIMED = frozenset({"overlay", "tmpfs"})
"""File systems on which a write through a mapping may change no time."""
CHANGES_MAX = 1 << 18
"""How many changed names are remembered; then the oldest are forgotten."""
COOKIE_PREFIX = "cookie-"
_TAKES_MAX = 64
"""How often it takes reports in one go, while a question has to wait."""
_MOUNTED = "file systems were mounted or unmounted"
_CAME, _REMOVED, _MOVED = range(3)


class ReportsLost(Exception):
    """What is known is no longer certain; the message says why."""


class _WatchedDirectory:
    """A watched directory: its place in the tree, and its watch."""

    __slots__ = ("children", "name", "parent", "watch")

    def __init__(self, parent: _WatchedDirectory | None, name: bytes, watch: int) -> None:
        self.parent = parent
        self.name = name
        self.watch = watch
        self.children: dict[bytes, _WatchedDirectory] = {}

    def path(self) -> bytes | None:
        """Returns the directory's path in the tree, or None if it is no longer there."""
        names = []
        node = self
        while node.parent is not None:
            if node.parent.children.get(node.name) is not node:
                return None
            names.append(node.name)
            node = node.parent
        return b"/".join(reversed(names))


_Name = tuple[_WatchedDirectory, bytes]


@dataclass(slots=True)
class _Change:
    """What was reported of a name. Numbers are those of questions."""

    number: int = -1
    """When it changed last."""
    whole: int = -1
    """When everything below it may have changed last."""
    closed: int = -1
    """When a file was closed last that may have been written to without a change of its times."""
    place: int | None = None
    """Whether it came or went, by the last report that says so."""


class WatchedTree:
    """One queue of reports, the directories that it watches, and the names that changed.

    Not for several threads at once. After an exception only :meth:`close` may be called.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        cookies: str,
        store: frozenset[tuple[int, int]],
        notifier: Notifier,
    ) -> None:
        """Prepares to watch ``root``.

        ``cookies`` is a directory outside of the tree; ``store`` is device and inode of what is
        never captured; such a directory is not watched.
        """
        self._fs = fs
        self._root_path = root
        self._store = store
        self._notifier = notifier
        self._id = os.urandom(16)
        self._number = 0
        self._forgotten = -1
        """Changes up to this number are no longer known."""
        self._directories: dict[int, _WatchedDirectory] = {}
        self._changes: dict[_Name, _Change] = {}
        """By name, in the order of the last changes."""
        self._is_untimed = Mounts(fs).kind(root) in UNTIMED
        self._nameless = -1
        """The number of the last change of a file that lost the name it was watched under."""
        self._mapped = MappedFiles(fs, root)
        self._cookies = cookies
        self._cookie = ""
        self._cookie_fd = -1
        self._cookie_count = 0
        self._cookie_watch = -1
        self._root_fd = -1
        self._mount_points: frozenset[bytes] = frozenset()

    def begin(self) -> None:
        """Watches every directory. Raises OSError, ReportsLost."""
        self._cookie = os.path.join(self._cookies, f"{COOKIE_PREFIX}{self._id.hex()}-0")
        self._cookie_fd = create_locked(
            self._fs, self._cookie, b"", temporary=self._cookies, durable=False
        )
        with open_directory(self._fs, self._cookies) as fd:
            self._cookie_watch = self._watch(fd, MOVED_TO)
        self._mount_points = Mounts(self._fs).below(os.fsencode(self._root_path))
        self._root_fd = self._fs.open(self._root_path, OPEN_DIRECTORY)
        self._mount = self._fs.mount_id(self._root_fd)
        watch = self._watch(self._root_fd, NAMES | SELF_GONE)
        self._top = _WatchedDirectory(None, b"", watch)
        self._directories[watch] = self._top
        self._watch_all(self._below(self._top, self._root_fd))

    def close(self) -> None:
        """Ends all watches."""
        self._notifier.close()
        if self._cookie_fd >= 0:
            with suppress(OSError):  # the next watcher removes it otherwise
                self._fs.unlink(self._cookie)
            self._fs.close(self._cookie_fd)
        if self._root_fd >= 0:
            self._fs.close(self._root_fd)

    @property
    def count(self) -> int:
        """How many directories are watched."""
        return len(self._directories)

    def wait(self, timeout_s: float) -> bool:
        """Waits until something is reported; for any thread."""
        return self._notifier.wait(timeout_s)

    def take(self) -> bool:
        """Takes in what was reported until now; returns whether anything changed.

        When too much is reported, it takes in some of it. Raises ReportsLost, OSError.
        """
        if not self._fs.fstat(self._root_fd).st_nlink:  # not reported while it is open here
            raise ReportsLost("the root was removed")
        has_changed = False
        for _ in range(_TAKES_MAX):
            reports = self._notifier.take()
            if not reports:
                break
            for report in reports:
                has_changed |= self._take_one(report)
        return has_changed

    def sync(self, deadline: float) -> bool:
        """Takes in everything that was done before this call; returns whether anything changed.

        ``deadline`` is a time of ``time.monotonic``. Raises ReportsLost, OSError.
        """
        self._mapped.look(self._number)
        self._cookie_count += 1
        name = f"{COOKIE_PREFIX}{self._id.hex()}-{self._cookie_count}"
        path = os.path.join(self._cookies, name)
        self._fs.rename(self._cookie, path)
        self._cookie = path
        cookie = os.fsencode(name)
        has_changed = False
        while cookie:
            reports = self._notifier.take()
            for report in reports:
                if report.watch == self._cookie_watch and report.name == cookie:
                    cookie = b""
                has_changed |= self._take_one(report)
            left_s = max(0.0, deadline - time.monotonic())
            if cookie and not reports and not self._notifier.wait(left_s):
                raise ReportsLost("the kernel's reports were late")
        return has_changed

    def check(self) -> None:
        """Raises ReportsLost if mounts changed or another directory is in the root's place, and
        OSError if the root is gone.
        """
        if not os.path.samestat(self._fs.lstat(self._root_path), self._fs.fstat(self._root_fd)):
            raise ReportsLost("another directory has the root's place")
        if Mounts(self._fs).below(os.fsencode(self._root_path)) != self._mount_points:
            raise ReportsLost(_MOUNTED)

    def answer(self, since: Mark | None) -> Answer:
        """Returns what changed since a mark, as far as it was taken in.

        The paths are not known if a file changed, or is mapped, under a name that it no longer
        has: under a new name its changes are not reported. Files that were closed after they
        may have been written to are named in any case.
        """
        unknown = Answer(Mark(self._id, self._number), None, mapped=self._mapped.inodes)
        self._number += 1
        forgotten = max(self._forgotten, self._mapped.forgotten)
        if since is None or since.watcher != self._id or since.number < forgotten:
            return unknown
        unknown = unknown._replace(written=self._written_since(since.number))
        if self._nameless > since.number or self._mapped.nameless >= since.number:
            return unknown
        paths = self._mapped.since(since.number)
        whole = set()
        with DirectoryChain(self._fs, self._root_fd) as chain:
            for (node, name), change in reversed(self._changes.items()):
                if change.number <= since.number:
                    break
                directory = node.path()
                if directory is None:
                    continue  # a directory above it changed as a whole, later
                path = treepath.join(directory, name)
                if change.whole > since.number:
                    whole.add(path)
                    continue
                paths.add(path)
                if change.place is None and not self._is_found(chain, directory, name):
                    self._nameless = change.number
                    return unknown
        return unknown._replace(paths=tuple(sorted(paths)), whole=tuple(sorted(whole)))

    def _written_since(self, number: int) -> tuple[int, ...]:
        """Returns the inodes of files that were open for writing and were closed since."""
        inodes = set()
        with DirectoryChain(self._fs, self._root_fd) as chain:
            for (node, name), change in reversed(self._changes.items()):
                if not self._is_untimed or change.number <= number:
                    break
                directory = node.path() if change.closed > number else None
                if directory is not None:
                    with suppress(OSError):  # it was moved, which changes its times, or is gone
                        inodes.add(self._fs.lstat(name, dir_fd=chain.open(directory)).st_ino)
        return tuple(sorted(inodes))

    def _is_found(self, chain: DirectoryChain, directory: bytes, name: bytes) -> bool:
        try:
            self._fs.lstat(name, dir_fd=chain.open(directory))
        except OSError as error:
            return error.errno not in NO_DIRECTORY
        return True

    def _take_one(self, report: Report) -> bool:
        watch, mask, name = report
        if mask & (OVERFLOWED | UNMOUNTED):
            raise ReportsLost("the queue overflowed" if mask & OVERFLOWED else "it was unmounted")
        directory = self._directories.get(watch)
        if directory is None:
            return False  # of a cookie, or of a directory that has left the tree
        if mask & SELF_GONE:
            raise ReportsLost("the root was moved or removed")
        if mask & IGNORED:
            if directory.parent is None:
                raise ReportsLost("the root is not watched any more")
            self._note(directory.parent, directory.name, is_whole=True)
            self._drop(directory)
            self._watch_all([(directory.parent, directory.name)])
            return True
        if not name:
            return directory is self._top  # its parent's watch reports the same with its name
        if not mask & IS_DIRECTORY:
            change = self._note(directory, name)
            self._note_place(change, mask)
            if mask & CLOSED:
                change.closed = self._number
            return True
        child = directory.children.get(name)
        is_another = child is None or bool(mask & (CREATED | DELETED | MOVED_FROM | MOVED_TO))
        self._note(directory, name, is_whole=is_another)
        if child is not None and is_another:
            self._drop(child)
        if is_another and not mask & DELETED:
            # When two names are exchanged, one is reported to come before the other goes.
            self._watch_all([(directory, name)])
        return True

    def _note(
        self, directory: _WatchedDirectory, name: bytes, *, is_whole: bool = False
    ) -> _Change:
        key = (directory, name)
        change = self._changes.pop(key, None) or _Change()
        self._changes[key] = change
        change.number = self._number
        if is_whole:
            change.whole = self._number
        if len(self._changes) > CHANGES_MAX:
            oldest = self._changes.pop(next(iter(self._changes)))
            self._forgotten = max(self._forgotten, oldest.number)
        return change

    def _note_place(self, change: _Change, mask: int) -> None:
        """Notes whether a file still has the name under which it is reported."""
        if mask & (CREATED | MOVED_TO):
            change.place = _CAME
        elif mask & (DELETED | MOVED_FROM):
            change.place = _REMOVED if mask & DELETED else _MOVED
        elif change.place == _REMOVED:
            self._nameless = self._number
        elif change.place == _MOVED:
            change.place = None  # if it is there, it was exchanged

    def _drop(self, directory: _WatchedDirectory) -> None:
        """Forgets a directory that is no longer in its place, and all below it."""
        parent = directory.parent
        if parent is not None and parent.children.get(directory.name) is directory:
            del parent.children[directory.name]
        pending = [directory]
        while pending:
            node = pending.pop()
            pending += node.children.values()
            if self._directories.pop(node.watch, None) is not None:
                self._notifier.unwatch(node.watch)

    def _watch_all(self, pending: list[_Name]) -> None:
        """Watches directories that were found or reported, and all below them.

        Each is watched before it is listed, so what appears in it is found or reported.
        """
        with DirectoryChain(self._fs, self._root_fd) as chain:
            while pending:
                parent, name = pending.pop()
                directory = parent.path()
                if directory is not None:  # else it was moved meanwhile
                    path = treepath.join(directory, name)
                    pending += self._watch_one(chain, parent, name, path)

    def _below(self, directory: _WatchedDirectory, fd: int) -> list[_Name]:
        with self._fs.scan(fd) as entries:
            return [
                (directory, os.fsencode(entry.name))
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
            ]

    def _open(self, chain: DirectoryChain, path: bytes) -> int | None:
        """Returns a descriptor of a directory, or None if it is gone, which is reported, or if a
        walk cannot see it.

        Raises ReportsLost if a new mount is there: the directory that it shows may be watched in
        another place already, and a directory has one watch.
        """
        try:
            fd = chain.open(path)
        except OSError as error:
            if error.errno in NO_DIRECTORY or error.errno == errno.EACCES:
                return None
            raise
        if self._fs.mount_id(fd) != self._mount:
            raise ReportsLost(_MOUNTED)
        return fd

    def _watch(self, fd: int, mask: int) -> int:
        try:
            return self._notifier.watch(fd, mask)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise ReportsLost(
                "the kernel gives this user no more watches; see fs.inotify.max_user_watches"
            ) from None

    def _watch_one(
        self, chain: DirectoryChain, parent: _WatchedDirectory, name: bytes, path: bytes
    ) -> list[_Name]:
        """Watches a directory; returns those below it."""
        if name.startswith(STAGE_PREFIX) or path in self._mount_points:
            return []
        fd = self._open(chain, path)
        if fd is None:
            return []
        stat = self._fs.fstat(fd)
        if (stat.st_dev, stat.st_ino) in self._store:
            return []
        watch = self._watch(fd, NAMES)
        elsewhere = self._directories.get(watch)
        if elsewhere is not None:
            # It was moved after it was found there; the report of that is still to come.
            if elsewhere.parent is None:
                raise ReportsLost("the root is below itself")
            self._note(elsewhere.parent, elsewhere.name, is_whole=True)
            self._drop(elsewhere)
            watch = self._watch(fd, NAMES)
        child = _WatchedDirectory(parent, name, watch)
        parent.children[name] = child
        self._directories[watch] = child
        return self._below(child, fd)
