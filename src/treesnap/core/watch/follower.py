"""Runs a command of the user's own after the snapshots of a watcher, one run at a time.

Watching never waits for the command. A run that fails is repeated after a pause, longer each time;
so a machine without a network costs little. The command ends with the watcher. When the watcher is
killed, its command goes on alone and keeps a lock, and the next watcher runs none until it ends.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile

from treesnap.core.ending_signals import ending_text
from treesnap.core.fs.children import exit_code_of, pause_for
from treesnap.core.fs.os_errors import error_text
from treesnap.core.model.errors import printable, quoted
from treesnap.core.model.results import FollowFailure, FollowStatus
from treesnap.core.model.type_names import IO
from treesnap.core.ops.context import Context

PAUSE_MIN_S = 30.0
PAUSE_MAX_S = 15 * 60.0
GRACE_S = 5.0
"""How long a command may take to end when the watcher ends."""
_SHELL = "/bin/sh"
_SUPERVISE = f"""\
trap : HUP INT TERM
cd -- "$2" && {_SHELL} -c "trap 'exit 143' TERM; $1" </dev/null
exit $?"""
"""Runs a line in a directory. Its standard input is the lock, which what the line starts does not
inherit: a program that stays in the background would hold it. A shell with a trap ends after the
program that it waits for, and so the lock is held until both have ended."""
_OUTPUT_BYTES = 4096
_OUTPUT_LINES = 3
_OUTPUT_ROOM_BYTES = 1 << 20
"""More of what a command writes is not kept for longer than a moment."""
_SHORTEN_EVERY_S = 0.2
_DISK_BLOCK_BYTES = 512
_PAGE_BYTES = 4096


def pause_after_s(failures: int) -> float:
    """Returns how long to wait after so many failures in a row."""
    return min(PAUSE_MIN_S * 2.0 ** min(failures - 1, 30), PAUSE_MAX_S)


class Follower:
    """Runs a line for ``sh`` in the root when it is woken."""

    def __init__(
        self,
        context: Context,
        line: str,
        on_failure: Callable[[str], None],
        *,
        pause_s: Callable[[int], float] = pause_after_s,
        grace_s: float = GRACE_S,
    ) -> None:
        self._context = context
        self._line = line
        self._on_failure = on_failure
        self._pause_s = pause_s
        self._grace_s = grace_s
        self._status = FollowStatus(
            command=printable(line), running=False, succeeded_at_ns=None, failures=0, failure=None
        )
        self._news = threading.Condition()
        """Guards the rest."""
        self._snapshot: str | None = None
        """Of which the command does not know yet."""
        self._is_over = False
        self._root = context.root
        self._process_id: int | None = None
        """Of the shell, which leads a session, from its start until its exit code is taken."""

    @contextmanager
    def running(self, directory: str, root: str | None = None) -> Iterator[None]:
        """Runs the command while the body runs, and ends it then.

        ``directory`` is that of the root's watchers. It is locked during each run. ``root`` is
        where the root is by now, which may have been moved.
        """
        self._root = root or self._context.root
        self._is_over = False
        thread = threading.Thread(
            target=self._run, args=[directory], name="treesnap-follower", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            with self._news:
                self._is_over = True
                self._news.notify_all()
                self._send(signal.SIGTERM)
            thread.join(self._grace_s)
            with self._news:
                self._send(signal.SIGKILL)
            thread.join()

    def wake(self, snapshot_id: str) -> None:
        """Has the command run for a snapshot, after a run that is under way; returns at once."""
        with self._news:
            self._snapshot = snapshot_id
            self._news.notify_all()

    def status(self) -> FollowStatus:
        """Returns what became of the command. May be called from any thread."""
        return self._status

    def _send(self, number: signal.Signals) -> None:
        if self._process_id is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process_id, number)

    def _run(self, directory: str) -> None:
        while (snapshot_id := self._awaited()) is not None:
            self._status = self._status._replace(running=True)
            failure = self._carried_out(directory, snapshot_id)
            if self._is_over:
                return
            if failure is None:
                self._status = self._status._replace(
                    running=False,
                    succeeded_at_ns=self._context.clock_ns(),
                    failures=0,
                    failure=None,
                )
            else:
                self._note(failure)
                self._wait_to_repeat(snapshot_id)

    def _awaited(self) -> str | None:
        """Waits for a snapshot, and returns its id; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._is_over or self._snapshot is not None)
            snapshot_id, self._snapshot = self._snapshot, None
            return None if self._is_over else snapshot_id

    def _note(self, failure: FollowFailure) -> None:
        before = self._status
        self._status = before._replace(running=False, failures=before.failures + 1, failure=failure)
        if failure != before.failure:  # the same failure, again and again, is said once
            self._on_failure(f"{quoted(self._line)} {failure.message}; it is tried again")

    def _wait_to_repeat(self, snapshot_id: str) -> None:
        """Waits, also where new snapshots come: they would fail for the same reason."""
        with self._news:
            self._news.wait_for(lambda: self._is_over, self._pause_s(self._status.failures))
            self._snapshot = self._snapshot or snapshot_id

    def _carried_out(self, directory: str, snapshot_id: str) -> FollowFailure | None:
        """Runs the command once; returns why it failed, or None."""
        try:
            with TemporaryFile() as output:  # a pipe would be open as long as the background is
                process_id = self._started(directory, snapshot_id, output)
                if process_id is None:
                    return FollowFailure(None, "has to wait for that of an earlier watcher")
                exit_code = self._exit_code(process_id, output.fileno())
                text = _last_lines(output)
        except ChildProcessError:
            return FollowFailure(None, "has an unknown exit code, because SIGCHLD is ignored")
        except OSError as error:
            return FollowFailure(None, f"cannot be run: {error_text(error)}")
        if exit_code == 0:
            return None
        return FollowFailure(exit_code, ": ".join(filter(None, [ending_text(exit_code), text])))

    def _started(self, directory: str, snapshot_id: str, output: IO[bytes]) -> int | None:
        """Starts the command and returns its process; None while another one holds the lock.

        Not by ``subprocess``, which leaves the signals blocked that this process waits for: the
        command could not be asked to end.
        """
        fs, root = self._context.fs, self._root
        fd = fs.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # some file systems have no locks of directories
                if not fs.lock(fd, exclusive=True):
                    return None
            variables = {
                **os.environ,
                "SNAP_ROOT": root,
                "SNAP_STORE": self._context.store_path,
                "SNAP_SNAPSHOT": snapshot_id,
            }
            with self._news:
                if self._is_over:
                    return None
                self._process_id = os.posix_spawn(
                    _SHELL,
                    [_SHELL, "-c", _SUPERVISE, "sh", self._line, root],
                    variables,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, fd, 0),
                        (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
                        (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
                    ],
                    setsid=True,
                    setsigmask=[],
                    setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
                )
                return self._process_id
        finally:
            fs.close(fd)  # keeps the lock, which the command holds

    def _exit_code(self, process_id: int, output_fd: int) -> int:
        """Waits for the end of the command; until the lock is held, its id stays reserved.

        Gives back the room of its output but for the end, which often lies in memory.
        """
        try:
            while exit_code_of(process_id) is None:
                pause_for(process_id, _SHORTEN_EVERY_S)
                self._shorten(output_fd)
        finally:
            with self._news:
                self._process_id = None
                _, status = os.waitpid(process_id, 0)
        return os.waitstatus_to_exitcode(status)

    def _shorten(self, output_fd: int) -> None:
        """Makes a hole of old output, where that is possible; the command writes on behind it."""
        status = os.fstat(output_fd)
        if status.st_blocks * _DISK_BLOCK_BYTES <= _OUTPUT_ROOM_BYTES:
            return
        with suppress(OSError):
            end = status.st_size - _OUTPUT_BYTES
            self._context.fs.punch_hole(output_fd, 0, end - end % _PAGE_BYTES)


def _last_lines(output: IO[bytes]) -> str:
    """Returns the last lines that are not blank, as one; a message and its hint are two."""
    size_bytes = os.fstat(output.fileno()).st_size
    data = os.pread(output.fileno(), _OUTPUT_BYTES, max(0, size_bytes - _OUTPUT_BYTES))
    lines = [line for line in data.splitlines() if line.strip()]
    return "; ".join(map(printable, lines[-_OUTPUT_LINES:]))
