"""The kernel's reports of changes, by inotify(7). The only module that imports watchdog.

A notifier is one queue. The kernel puts a report into it before the system call returns
that made the change, so that all reports are in the order of the changes, whatever
directories they are of.

Of watchdog it takes the layer that makes the system calls. What this layer does and does not
do is tested in tests/unit/fs/test_watchdog.py. The layer above it holds reports back, and keeps
to itself which ones were lost (docs/adr/0012-watching.md): where there is no inotify, it is good
enough for a hint that something changed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, cast

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
"""IN_CLOSE_WRITE: what was open for writing is closed, and mapped no more."""
CHANGED = 0x2 | 0x4 | CLOSED
"""With IN_MODIFY and IN_ATTRIB."""
MOVED_FROM, MOVED_TO, CREATED, DELETED = 0x40, 0x80, 0x100, 0x200
SELF_GONE = 0x400 | 0x800
"""IN_DELETE_SELF and IN_MOVE_SELF: asked for with roots only."""
UNMOUNTED, OVERFLOWED, IGNORED = 0x2000, 0x4000, 0x8000
IS_DIRECTORY = 0x40000000
NAMES = CHANGED | MOVED_FROM | MOVED_TO | CREATED | DELETED
_ONLY_DIRECTORIES = 0x01000000
_READ_SIZE = 64 << 10
_FEW = 200
"""A read that returns fewer reports has emptied the queue: a full one returns 240 or more."""
_GATHER_S = 0.02
"""How long reports gather when nobody asks, so that not each one wakes the reader."""
_UNREAD_MAX = 128
"""Reads whose reports are not taken, some 250,000 reports. With more, the kernel's queue may
overflow."""
_POLL_S = 5.0
"""Where nothing reports changes, how often everything is looked at for a hint."""


class Report(NamedTuple):
    """One change."""

    watch: int
    """The number of the watch that saw it, or -1 for what concerns the queue."""
    mask: int
    name: bytes
    """The name in the watched directory, or nothing for the directory itself."""


_LOST = Report(-1, OVERFLOWED, b"")


class Notifier:
    """A queue of reports. Raises OSError, with ENOSYS where the system has no inotify.

    A thread reads the kernel's queue, because watchdog can only wait until there is something.
    After ``fork`` the queue is the parent's: a child must not use it, nor close it.
    """

    def __init__(self) -> None:
        self._queue = _kernel_queue()
        self._numbers = count()
        self._callbacks: dict[int, list[CallbackId]] = {}
        """watchdog wants a callback for each call; one that is replaced makes it warn."""
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

        A directory has one watch: the same number comes again. Raises OSError, with ENOSPC
        when the user may have no more watches.
        """
        callback = cast("CallbackId", next(self._numbers))
        # The path through /proc leads to what is open, wherever that has gone, at any depth.
        path = b"/proc/self/fd/%d" % fd
        flags = cast("Mask", mask | _ONLY_DIRECTORIES)
        watch = self._queue.add_callback(path, flags, _UNUSED, callback)
        if watch < 0:  # the one error that watchdog does not raise
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self._callbacks.setdefault(watch, []).append(callback)
        return watch

    def unwatch(self, watch: int) -> None:
        """Ends a watch, if it has not ended by itself."""
        number = cast("WatchDescriptor", watch)
        with suppress(OSError):  # it ended with its directory
            self._queue.remove_callbacks(
                [(number, callback) for callback in self._callbacks.pop(watch, [])]
            )

    def take(self) -> list[Report]:
        """Takes some of the reports that are there, in order; none when there are none.

        What is in the kernel's queue may not be there yet: :meth:`wait` for it.
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
        """Waits until there are reports to take, or the queue is closed; returns whether so.

        Another thread may close the queue meanwhile, and before.
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
        """Reads until the queue is closed. Whatever ends it, what follows counts as lost."""
        try:
            with suppress(OSError):
                while not self._is_closed:
                    self._read_some()
        finally:
            with self._state:
                self._unread.append([_LOST])
                self._state.notify_all()

    def _read_some(self) -> None:
        events = self._queue.read_events(event_buffer_size=_READ_SIZE)
        for event in events:
            if event.is_ignored:
                self._queue.handle_event(event)  # watchdog has a record of each watch, too
                self._callbacks.pop(event.wd, None)
        with self._state:
            if events:
                self._unread.append([Report(event.wd, event.mask, event.name) for event in events])
                self._state.notify_all()
            if len(events) < _FEW:
                self._state.wait_for(lambda: self._is_asked or self._is_closed, _GATHER_S)
            self._state.wait_for(lambda: len(self._unread) < _UNREAD_MAX or self._is_closed)
            self._is_asked = False


class _Unused:
    """What watchdog would call with each report. They are read as they come instead: it passes
    on none that says that a watch has ended on request.
    """

    def on_event(self, event: InotifyEvent) -> None:
        pass

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        pass

    def on_queue_overflow(self) -> None:
        pass


_UNUSED = _Unused()


def has_inotify() -> bool:
    """Returns whether the system can have a :class:`Notifier`, if not always one more."""
    try:
        _kernel_queue().close()
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


def _kernel_queue() -> InotifyFD:
    """Returns a new queue, which no other program inherits, and which can be closed."""
    from watchdog.utils import UnsupportedLibcError

    try:
        from watchdog.observers.inotify_c import InotifyFD
    except UnsupportedLibcError as error:
        raise OSError(errno.ENOSYS, str(error)) from error
    others = _queue_descriptors()
    queue = InotifyFD()
    for fd in _queue_descriptors() - others:  # one that another thread made now has no harm of it
        os.set_inheritable(fd, False)  # noqa: FBT003 - takes no keywords
    _read_once(queue)
    return queue


def _queue_descriptors() -> set[int]:
    """Returns the descriptors of all inotify queues of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify":
                found.add(int(name))
    return found


def _read_once(queue: InotifyFD) -> None:
    """Lets a queue read the end of a watch: before its first read, closing it closes no file."""
    callback = cast("CallbackId", 0)
    fd = os.memfd_create("treesnap-notifier")
    try:
        path = b"/proc/self/fd/%d" % fd
        watch = queue.add_callback(path, cast("Mask", DELETED), _UNUSED, callback)
    except OSError as error:
        if error.errno != errno.ENOSPC:  # whoever asks for a watch is told of this one
            raise
    else:
        queue.remove_callbacks([(watch, callback)])
        queue.read_events()
    finally:
        os.close(fd)


@contextmanager
def change_hints(root: str, store: str, on_change: Callable[[str], None]) -> Iterator[None]:
    """Calls back, in a thread, with paths below a root that may have changed, but not its store's.

    A hint for systems without inotify: there may be changes without one. Costs a look at
    everything every five seconds where nothing reports changes. Raises OSError.
    """
    from watchdog.events import FileClosedNoWriteEvent, FileOpenedEvent, FileSystemEventHandler
    from watchdog.observers import Observer
    from watchdog.observers.polling import PollingObserver

    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            if isinstance(event, FileOpenedEvent | FileClosedNoWriteEvent):
                return  # a look at everything opens files, too
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
