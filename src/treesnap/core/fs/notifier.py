"""The kernel's reports of changes, by inotify(7). The only module that imports watchdog.

A notifier is one queue. The kernel puts a report into it before the system call that made the
change returns, so all reports are in the order of the changes, across directories.

It stands on the layer of watchdog that makes the system calls; tests/core/unit/fs/test_watchdog.py
has a test for each property that it relies on. The layer above that one delays reports and does
not tell when some were lost (docs/adr/0012-watching.md), so it only serves as a hint that
something changed, on systems without inotify.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

from treesnap.core.fs import HAS_NOTICES
from treesnap.core.fs.base import Unsupported
from treesnap.core.fs.local import unnamed_file
from treesnap.core.fs.posix import unsupported
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent
    from watchdog.observers.api import BaseObserver
    from watchdog.observers.inotify_c import (
        CallbackId,
        InotifyEvent,
        InotifyFD,
        Mask,
        WatchDescriptor,
    )

CLOSED = 0x8
"""IN_CLOSE_WRITE: a file that was open for writing is closed, and no longer mapped."""
CHANGED = 0x2 | 0x4 | CLOSED
"""With IN_MODIFY and IN_ATTRIB."""
MOVED_FROM, MOVED_TO, CREATED, DELETED = 0x40, 0x80, 0x100, 0x200
SELF_GONE = 0x400 | 0x800
"""IN_DELETE_SELF and IN_MOVE_SELF: requested for roots only."""
UNMOUNTED, OVERFLOWED, IGNORED = 0x2000, 0x4000, 0x8000
IS_DIRECTORY = 0x40000000
NAMES = CHANGED | MOVED_FROM | MOVED_TO | CREATED | DELETED
_ONLY_DIRECTORIES = 0x01000000
_READ_SIZE = 64 << 10
_FEW = 200
"""A read that returns fewer reports has emptied the queue: a full one returns 240 or more."""
_GATHER_S = 0.02
"""How long reports gather when none are asked for, so that not each one wakes the reader."""
_UNREAD_MAX = 128
"""How many reads may wait to be taken, some 250,000 reports. Then the kernel's queue fills up."""
_POLL_S = 5.0
"""How often everything is looked at for a hint, where the system reports no changes."""


class Report(NamedTuple):
    """One change."""

    watch: int
    """The number of the watch that saw it, or -1 if it concerns the whole queue."""
    mask: int
    name: bytes
    """The name in the watched directory, or empty for the directory itself."""


_LOST = Report(-1, OVERFLOWED, b"")


class Notifier:
    """A queue of reports. Raises Unsupported where the system has no inotify, and OSError.

    A thread reads the kernel's queue, because watchdog can only wait until there is something.
    After ``fork`` the queue is the parent's: a child must not use it, nor close it.
    """

    def __init__(self) -> None:
        self._queue = _kernel_queue()
        self._numbers = count()
        self._callbacks: dict[int, list[CallbackId]] = {}
        """The identities of callbacks by watch: each call needs its own, or watchdog warns."""
        self._state = threading.Condition()
        self._unread: deque[list[Report]] = deque()
        self._is_asked = False
        self._is_closed = False
        self._reader = threading.Thread(target=self._read, name="treesnap-notifier", daemon=True)
        try:
            self._reader.start()
        except BaseException:
            self._queue.close()
            raise

    def watch(self, fd: int, mask: int) -> int:
        """Watches the directory that is open as ``fd``; returns the watch's number.

        A directory has one watch, so watching it again returns the same number. Raises
        OSError, with ENOSPC when the user may have no more watches.
        """
        callback = cast("CallbackId", next(self._numbers))
        # The path through /proc leads to the open directory, wherever it has been moved.
        path = b"/proc/self/fd/%d" % fd
        flags = cast("Mask", mask | _ONLY_DIRECTORIES)
        watch = self._queue.add_callback(path, flags, _UNUSED, callback)
        if watch < 0:  # EACCES is the one error that watchdog does not raise
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self._callbacks.setdefault(watch, []).append(callback)
        return watch

    def unwatch(self, watch: int) -> None:
        """Ends a watch, if it has not ended by itself."""
        number = cast("WatchDescriptor", watch)
        with suppress(OSError):  # it has ended with its directory
            self._queue.remove_callbacks(
                [(number, callback) for callback in self._callbacks.pop(watch, [])]
            )

    def take(self) -> list[Report]:
        """Returns some of the reports that were read, in order, or none.

        Those in the kernel's queue may not have been read yet; :meth:`wait` for them.
        """
        with self._state:
            if self._unread:
                reports = self._unread.popleft()
            else:
                reports = []
                self._is_asked = True
            self._state.notify_all()
        return reports

    def wait(self, timeout_s: float) -> bool:
        """Waits until there are reports to take; returns whether there are.

        A queue that is closed, before or meanwhile, by any thread, has reports to take.
        """
        with self._state:
            return self._state.wait_for(lambda: bool(self._unread), timeout_s)

    def close(self) -> None:
        """Ends all watches."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        self._queue.close()
        self._reader.join()

    def _read(self) -> None:
        """Reads until the queue is closed. However it ends, later reports count as lost."""
        try:
            with suppress(OSError):
                while self._read_some():
                    pass
        finally:
            with self._state:
                self._unread.append([_LOST])
                self._state.notify_all()

    def _read_some(self) -> bool:
        """Hands over what it reads; returns False when the queue was closed by any code."""
        events = self._queue.read_events(event_buffer_size=_READ_SIZE)
        for event in events:
            if event.is_ignored:
                self._queue.handle_event(event)  # so that watchdog forgets the watch
                self._callbacks.pop(event.wd, None)
        with self._state:
            if not events:
                return False
            self._unread.append([Report(event.wd, event.mask, event.name) for event in events])
            self._state.notify_all()
            if len(events) < _FEW:
                self._state.wait_for(lambda: self._is_asked or self._is_closed, _GATHER_S)
            self._state.wait_for(lambda: len(self._unread) < _UNREAD_MAX or self._is_closed)
            self._is_asked = False
        return True


class _Unused:
    """The callback that watchdog requires. Reports are read from the queue instead, because
    callbacks are not told of a watch that was ended on request.
    """

    def on_event(self, event: InotifyEvent) -> None:
        pass

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        pass

    def on_queue_overflow(self) -> None:
        pass


_UNUSED = _Unused()


def has_inotify() -> bool:
    """Returns whether the system has inotify; a user may still have too many queues."""
    try:
        _kernel_queue().close()
    except Unsupported:
        return False
    except OSError:
        return True
    return True


def _kernel_queue() -> InotifyFD:
    """Returns a new queue that no other program inherits and that can be closed."""
    from watchdog.utils import UnsupportedLibcError

    if not HAS_NOTICES:
        raise unsupported(errno.ENOSYS)
    try:
        from watchdog.observers.inotify_c import InotifyFD
    except UnsupportedLibcError as error:
        raise Unsupported(errno.ENOSYS, str(error)) from error
    others = _queue_descriptors()
    try:
        queue = InotifyFD()
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise unsupported(errno.ENOSYS) from error
        raise
    for fd in _queue_descriptors() - others:  # harmless for one that another thread made
        os.set_inheritable(fd, False)  # noqa: FBT003 - takes no keywords
    _read_once(queue)
    return queue


def _queue_descriptors() -> set[int]:
    """Returns the descriptors of all inotify queues of this process."""
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # it was closed meanwhile, or its path has more than 4,096 bytes
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify":
                descriptors.add(int(name))
    return descriptors


def _read_once(queue: InotifyFD) -> None:
    """Reads the end of a watch: before its first read, ``close`` would leave descriptors open."""
    callback = cast("CallbackId", 0)
    fd = unnamed_file("treesnap-notifier")
    try:
        path = b"/proc/self/fd/%d" % fd
        watch = queue.add_callback(path, cast("Mask", DELETED), _UNUSED, callback)
    except OSError as error:
        if error.errno != errno.ENOSPC:  # which the next call of add_callback raises
            raise
    else:
        queue.remove_callbacks([(watch, callback)])
        queue.read_events()
    finally:
        os.close(fd)


@contextmanager
def change_hints(root: str, store: str, on_change: Callable[[str], None]) -> Iterator[None]:
    """Calls back from a thread with paths below a root that changed, except those of its store.

    For systems without inotify. Only a hint: some changes may be missed. Costs a look at
    everything every five seconds where the system reports no changes. Raises OSError.
    """
    from watchdog.events import FileClosedNoWriteEvent, FileOpenedEvent, FileSystemEventHandler
    from watchdog.observers import Observer
    from watchdog.observers.polling import PollingObserver

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            if isinstance(event, FileOpenedEvent | FileClosedNoWriteEvent):
                return  # so does each snapshot
            for path in map(os.fsdecode, (event.src_path, event.dest_path)):
                if path and not f"{path}/".startswith(f"{store}/"):
                    on_change(path)

    def start(make: Callable[[], BaseObserver]) -> BaseObserver:
        observer = make()
        observer.schedule(Handler(), root, recursive=True)
        observer.start()
        return observer

    try:
        observer = start(Observer)
    except OSError:
        observer = start(lambda: PollingObserver(timeout=_POLL_S))
    try:
        yield
    finally:
        observer.stop()
        observer.join()
