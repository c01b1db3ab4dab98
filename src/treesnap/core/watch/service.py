"""The process that watches a root: when it makes a snapshot, its loop, and what it answers.

A root has one such process at a time, which holds a lock. When the root is moved, it waits until a
command has found the root at its new path, and watches there. When the store is moved, it goes on
with the lock and the socket of the new place.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from socket import SHUT_RDWR, socket
from types import MappingProxyType

from treesnap.core.codec.watch import (
    ANSWER_SIZE_MAX,
    QUESTION_SIZE_MAX,
    Answer,
    Asked,
    decode_question,
    encode_answer,
    encode_status,
)
from treesnap.core.fs import peers
from treesnap.core.fs.listener import Listener
from treesnap.core.fs.notifier import change_hints, has_inotify
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.fs.peers import received, send
from treesnap.core.model.errors import Corrupt, TreesnapError, printable, quoted
from treesnap.core.model.requests import CaptureRequest, WatchRequest
from treesnap.core.model.results import CreateResult, WatchStatus
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.context import Context, check_root
from treesnap.core.ops.create import create
from treesnap.core.ops.known_changes import view_of
from treesnap.core.ops.watching import (
    refuse_unwatchable,
    registered_path,
    watch_directory,
    watched,
)
from treesnap.core.store.layout import Layout
from treesnap.core.store.lock import held
from treesnap.core.watch.follower import Follower

if TYPE_CHECKING:
    from treesnap.core.worktree.watcher import Watcher

_TIMEOUT_S = 5.0
"""How long a client may take to send its question."""
_PAUSE_S = 0.1
"""How long it waits after a connection could not be accepted."""
CarriesOut = Callable[[Context, bytes], bytes]
"""Carries out a command for another process; nothing means that it has to do that itself."""
_Answer = Callable[[socket], None]
QUIET_S = 1.0
"""How long nothing has to change before a snapshot of the changes is made."""
LATEST_S = 30.0
"""How long after a change its snapshot is made at the latest."""
AGAIN_S = 30.0
"""How long after a failed snapshot the next one is tried at the latest."""
LOOK_S = 5.0
"""How often it looks whether the store was moved, or a root that is away found at another path."""


class Schedule:
    """Tells when a snapshot is due; the first one is at once. Times are of a monotonic clock."""

    def __init__(self, request: WatchRequest, *, now_s: float) -> None:
        self._every_s = request.every_s
        self._on_change = request.on_change
        self._last_s: float | None = None
        self._failed_s: float | None = None
        self._changed_first_s: float | None = None
        self._changed_last_s = now_s

    def noticed(self, now_s: float) -> None:
        """Notes that something changed."""
        if self._changed_first_s is None:
            self._changed_first_s = now_s
        self._changed_last_s = now_s

    def done(self, now_s: float) -> None:
        """Notes that a snapshot was made of everything noticed."""
        self._last_s = now_s
        self._changed_first_s = None
        self._failed_s = None

    def failed(self, now_s: float) -> None:
        """Notes that a snapshot could not be made, so that it is due again later."""
        self.done(now_s)
        self._failed_s = now_s

    def due_in_s(self, now_s: float) -> float | None:
        """Returns the time until a snapshot is due, 0 if one is, or None if none will be."""
        if self._every_s is None and not self._on_change:
            return None
        if self._last_s is None:
            return 0.0
        times = []
        if self._every_s is not None:
            times.append(self._last_s + self._every_s)
        if self._on_change and self._changed_first_s is not None:
            times.append(min(self._changed_last_s + QUIET_S, self._changed_first_s + LATEST_S))
        if self._failed_s is not None:
            times.append(self._failed_s + AGAIN_S)
        return max(0.0, min(times) - now_s) if times else None


class WatchService:
    """Watches the root of a context until it is stopped."""

    def __init__(
        self,
        context: Context,
        request: WatchRequest = WatchRequest(),  # noqa: B008 - a frozen record
        *,
        carries_out: Mapping[str, CarriesOut] = MappingProxyType({}),
        on_snapshot: Callable[[CreateResult], None] = lambda _: None,
        on_error: Callable[[str], None] = lambda _: None,
        follower: Follower | None = None,
    ) -> None:
        self._context = context
        self._request = request
        self._follower = follower
        self._carries_out = carries_out
        self._asked_s = time.monotonic()
        """When another process asked for changes last, or the watch began."""
        self._schedule = Schedule(request, now_s=time.monotonic())
        self._on_snapshot = on_snapshot
        self._on_error = on_error
        self._started_at_ns = context.clock_ns()
        self._watcher: Watcher | None = None
        """None before the watch starts, and on systems without inotify."""
        self._changed = threading.Event()
        self._is_stopping = False
        self._snapshots = 0
        self._last_snapshot: str | None = None
        self._last_error: str | None = None
        self._has_woken = False
        self._top: os.stat_result | None = None
        """What the root was when it was seen last, at its path."""
        self._is_store_in_place: Callable[[], bool] = lambda: True
        """Whether the store is where it was when the watch began."""

    def run(self, on_ready: Callable[[WatchStatus], None] = lambda _: None) -> WatchStatus:
        """Watches until :meth:`stop`; returns the last status.

        Raises Busy when the root is watched already, what :meth:`treesnap.Handle.watch` raises,
        and OperationFailed when the socket cannot be made. On a system without inotify, a
        watch for snapshots on changes stands on hints, and each snapshot looks at everything.
        """
        while True:
            with ExitStack() as stack:
                context, directory = self._begin(stack)
                self._top = context.fs.lstat(context.root)
                on_ready(self.status())
                on_ready = _ignore
                while (place := self._place(directory)) == context.root:
                    if not self._is_store_in_place():
                        break
                    if self._is_stopping or not self._is_of_use():
                        return self.status()
                    self._wait(context)
            self._context = self._context._replace(root=place, given_root=place, root_links=())
            self._schedule.noticed(time.monotonic())

    def _begin(self, stack: ExitStack) -> tuple[Context, str]:
        """Begins to watch; returns a context that uses the watcher, and the root's directory."""
        context = self._context
        is_hinted = self._request.on_change and not has_inotify()
        if is_hinted:
            check_root(context, force=self._request.force)
        else:
            refuse_unwatchable(context, force=self._request.force)
        directory = watch_directory(context)
        what = f"The watch of {quoted(context.root)}"
        lock = os.path.join(directory, "lock")
        lock_held = held(context.fs, lock, operation="watch", what=what, wait_s=0.0)
        self._is_store_in_place = stack.enter_context(lock_held)
        if is_hinted:
            self._take_hints(stack)
        else:
            context, watcher = stack.enter_context(watched(context, force=self._request.force))
            self._watcher, self._changed = watcher, watcher.changed
        with translating_os_errors("watch"):
            self._listen(stack, directory, "socket", self._answer)
            if self._watcher is not None:
                top = context.fs.lstat(context.root)
                roots = Layout(context.store_path).roots
                for command, function in self._carries_out.items():
                    name = f"{command}-{top.st_dev:x}-{top.st_ino:x}"
                    answer = partial(self._carry_out, context, function)
                    self._listen(stack, roots, name, answer)
        if self._follower is not None:
            stack.enter_context(self._follower.running(directory, context.root))
        return context, directory

    def _place(self, directory: str) -> str:
        """Returns where the root is: at another path once a command has found it there."""
        fs, root = self._context.fs, self._context.root
        if not self._is_at(root):
            with suppress(OSError):
                place = registered_path(self._context, directory)
                if place is not None and self._is_at(place):
                    return place
                if place == root:  # it may have been removed and made again
                    self._top = fs.lstat(root)
        return root

    def _is_at(self, path: str) -> bool:
        """Returns whether the root is at a path."""
        try:
            return self._top is not None and os.path.samestat(
                self._context.fs.lstat(path), self._top
            )
        except OSError:
            return False

    def _is_of_use(self) -> bool:
        """Returns False when no process asked for so long, or when none will: the root is gone.

        Without an end of its own, a watch waits until the root is back.
        """
        if self._request.idle_s is None:
            return True
        try:
            self._context.fs.lstat(self._context.root)
        except FileNotFoundError:
            return False
        except OSError:  # it may be there
            pass
        return self._idle_left_s() != 0.0

    def _idle_left_s(self) -> float | None:
        """Returns how long it goes on watching if no process asks for changes, or None."""
        if self._request.idle_s is None:
            return None
        return max(0.0, self._asked_s + self._request.idle_s - time.monotonic())

    def stop(self) -> None:
        """Ends :meth:`run` after the current snapshot, if any. May be called from any thread."""
        self._is_stopping = True
        self._changed.set()

    def status(self) -> WatchStatus:
        """Returns what the watcher does. May be called from any thread."""
        every_s, watcher = self._request.every_s, self._watcher
        return WatchStatus(
            process_id=os.getpid(),
            started_at_ns=self._started_at_ns,
            directories=watcher.directories if watcher is not None else 0,
            every_ms=int(every_s * 1000) if every_s is not None else None,
            on_change=self._request.on_change,
            snapshots=self._snapshots,
            last_snapshot=self._last_snapshot,
            last_error=self._last_error,
            why_lost=(watcher.why_lost or None) if watcher is not None else None,
            then=self._follower.status() if self._follower is not None else None,
        )

    def _take_hints(self, stack: ExitStack) -> None:
        root, store = self._context.root, os.path.realpath(self._context.store_path)
        with translating_os_errors("watch"):
            stack.enter_context(change_hints(root, store, lambda _: self._changed.set()))

    def _wait(self, watching: Context) -> None:
        due_in_s, idle_left_s = self._schedule.due_in_s(time.monotonic()), self._idle_left_s()
        waits_s = [wait_s for wait_s in (due_in_s, idle_left_s, LOOK_S) if wait_s is not None]
        if due_in_s == 0.0:
            self._make_snapshot(watching)
        elif self._changed.wait(min(waits_s)):
            self._changed.clear()
            self._schedule.noticed(time.monotonic())

    def _make_snapshot(self, watching: Context) -> None:
        try:
            request = CaptureRequest(
                kind=SnapshotKind.WATCH, skip_unchanged=True, force=self._request.force
            )
            result = create(watching, request)
        except TreesnapError as error:
            message = printable(error.message)
            self._schedule.failed(time.monotonic())
            if message != self._last_error:  # the same failure, again and again, is said once
                self._last_error = message
                self._on_error(message)
            return
        self._last_error = None
        self._schedule.done(time.monotonic())
        if not result.unchanged:
            self._snapshots += 1
            self._last_snapshot = result.snapshot.id
            self._on_snapshot(result)
        # At first also for an older one: the watcher before may have ended before its command did.
        if self._follower is not None and not (result.unchanged and self._has_woken):
            self._has_woken = True
            self._follower.wake(result.snapshot.id)

    def _listen(self, stack: ExitStack, directory: str, name: str, answer: _Answer) -> None:
        listener = Listener(self._context.fs, directory, name)
        stack.callback(listener.close)
        is_over = threading.Event()
        thread = threading.Thread(
            target=_serve,
            args=[listener.socket, answer, is_over],
            name="treesnap-watch-socket",
            daemon=True,
        )
        thread.start()
        stack.callback(thread.join)
        stack.callback(listener.socket.shutdown, SHUT_RDWR)
        stack.callback(is_over.set)

    def _carry_out(self, watching: Context, function: CarriesOut, connection: socket) -> None:
        request, client, _ = received(connection, peers.CALL_SIZE_MAX)
        os.close(peers.opened_peer(client))
        self._asked_s = time.monotonic()
        send(connection, function(watching, request))

    def _answer(self, connection: socket) -> None:
        asked, since, view = decode_question(received(connection, QUESTION_SIZE_MAX)[0])
        if asked is Asked.CHANGES:
            self._asked_s = time.monotonic()
            if view != view_of(self._context):
                return  # the client may see another tree than this watcher
            answer = self._watcher.answer(since) if self._watcher is not None else None
            if answer is not None:
                send(connection, _encoded(answer))
            return
        if asked is Asked.STOP:
            self.stop()
        send(connection, encode_status(self.status()))


def _ignore(_: WatchStatus) -> None:
    pass


def _encoded(answer: Answer) -> bytes:
    """Returns an answer's bytes; instead of a too long one, that anything may have changed."""
    encoded = encode_answer(answer)
    if len(encoded) > ANSWER_SIZE_MAX:
        encoded = encode_answer(Answer(answer.mark, None))
    return encoded


def _serve(listening: socket, answer: _Answer, is_over: threading.Event) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            if is_over.wait(_PAUSE_S):  # else too many files are open, for example
                return
            continue
        with connection, suppress(OSError, Corrupt):
            connection.settimeout(_TIMEOUT_S)
            with suppress(OSError):  # it may have left its question, and gone
                peers.greet(connection)
            answer(connection)
