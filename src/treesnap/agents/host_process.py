"""The program of a host as a process that is asked something.

For a bounded time and a bounded answer, without a shell, with words of ours alone. What a host
says is not trusted: it may say nothing, too much, or something else.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from shutil import which
from typing import Any, Self

from treesnap.core.own_program import python_words

SAID_SIZE_MAX = 1 << 25
"""More than this is not read of one process, nor of one connection."""
_READ_SIZE = 1 << 16
_DIGITS_MAX = 12
"""Of a length that a host announces."""
_GUARD = "import os, sys; sys.stdin.buffer.read(); os.killpg(int(sys.argv[1]), 9)"
"""Kills a group of processes when nothing can write to its standard input any more."""
_GRACE_S = 2.0
"""How long a host has to end by itself before it is killed."""


class HostFailed(Exception):
    """A host did not do what it was asked for; the text says why, in a few words."""


class HostRefused(HostFailed):
    """A host said no to what it was asked for; the text is its own."""


def host_program(names: Iterable[str], environ: Mapping[str, str]) -> str | None:
    """Returns the full path of the first program that is on the PATH, or None.

    Directories of the PATH that are relative do not count: a project could hold such a program.
    """
    directories = environ.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(filter(os.path.isabs, directories))
    return next(filter(None, (which(name, path=path or os.defpath) for name in names)), None)


class HostSaid:
    """What comes from a pipe or a socket, up to a moment and a size."""

    def __init__(self, fd: int, end_s: float) -> None:
        self._fd = fd
        self._end_s = end_s
        self._held = bytearray()
        self._size_bytes = 0

    def line(self) -> bytes:
        """Returns the next line with its end; raises HostFailed where none comes."""
        searched = 0
        while (end := self._held.find(b"\n", searched)) < 0:
            searched = len(self._held)
            if not self._has_more():
                raise HostFailed("it ended too early")
        return self._taken(end + 1)

    def exactly(self, size_bytes: int) -> bytes:
        """Returns the next bytes; raises HostFailed where there are fewer."""
        if size_bytes > SAID_SIZE_MAX:
            raise HostFailed("it said too much")
        while len(self._held) < size_bytes:
            if not self._has_more():
                raise HostFailed("it ended too early")
        return self._taken(size_bytes)

    def some(self, size_max: int) -> bytes:
        """Returns what comes next, at least a byte unless this is the end."""
        if not self._held:
            self._has_more()
        return self._taken(min(size_max, len(self._held)))

    def rest(self) -> bytes:
        """Returns all that is to come; raises HostFailed where that does not end."""
        while self._has_more():
            pass
        return self._taken(len(self._held))

    def _taken(self, size_bytes: int) -> bytes:
        taken = bytes(self._held[:size_bytes])
        del self._held[:size_bytes]
        return taken

    def _has_more(self) -> bool:
        """Reads on, if that does not take too long; what is there already is read in any case."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        if not poller.poll(max(0.0, self._end_s - time.monotonic()) * 1000):
            raise HostFailed("it did not answer in time")
        data = os.read(self._fd, _READ_SIZE)
        self._size_bytes += len(data)
        if self._size_bytes > SAID_SIZE_MAX:
            raise HostFailed("it said too much")
        self._held += data
        return bool(data)


class HostProcess:
    """A running host; a context manager that ends it with all that it started.

    Most hosts end with their standard input, so also when this process is killed. A server that
    ``ends_by_signal`` has a guard beside it, which ends it then. Raises OSError where it cannot be
    started.
    """

    def __init__(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        *,
        timeout_s: float,
        directory: str = "/",
        ends_by_signal: bool = False,
    ) -> None:
        self.end_s: float = time.monotonic() + timeout_s
        self._ends_by_signal = ends_by_signal
        self._process = subprocess.Popen(  # noqa: S603 - the host that the user has installed, without a shell
            words,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            cwd=directory,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self.said: HostSaid = HostSaid(self._process.stdout.fileno(), self.end_s)
        self._guard: subprocess.Popen[bytes] | None = None
        if ends_by_signal:
            try:
                self._guard = subprocess.Popen(  # noqa: S603 - our own interpreter, without a shell
                    python_words("-I", "-S", "-c", _GUARD, str(self._process.pid)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
            except BaseException:
                self.end(is_gentle=False)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.end(is_gentle=error is None)

    def tell(self, data: bytes) -> None:
        """Writes what is short; raises HostFailed where the host does not read it."""
        assert self._process.stdin is not None
        try:
            written = self._process.stdin.write(data)
        except OSError as error:
            raise HostFailed("it ended too early") from error
        if written != len(data):
            raise HostFailed("it does not read what it is asked")

    def tell_nothing_more(self) -> None:
        """Closes the host's standard input, so that it waits for none."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def end(self, *, is_gentle: bool) -> None:
        """Ends the process and all that it started; waits a moment for it to do so by itself."""
        stdout = self._process.stdout
        assert stdout is not None
        self.tell_nothing_more()
        try:
            if is_gentle:
                if self._ends_by_signal:
                    self._signal(signal.SIGTERM)
                with suppress(HostFailed):
                    HostSaid(stdout.fileno(), time.monotonic() + _GRACE_S).rest()
        finally:
            self._signal(signal.SIGKILL)  # of what nothing has waited for yet
            if self._guard is not None:
                self._guard.kill()
                self._guard.communicate()
            stdout.close()
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


class JsonTalk:
    """Questions and answers in JSON over the streams of a host, one after the other.

    ``is_framed`` tells messages that begin with their length from those that are a line each.
    """

    def __init__(self, process: HostProcess, *, is_framed: bool) -> None:
        self._process = process
        self._is_framed = is_framed
        self._number = 0
        self.events: list[Mapping[str, Any]] = []
        """What the host told without being asked, oldest first."""

    def tell(self, method: str, **fields: object) -> None:
        """Sends a message that has no answer."""
        self._send({"method": method, **fields})

    def ask(self, method: str, **parameters: object) -> Mapping[str, Any]:
        """Returns the answer; raises HostRefused with what the host says against it, HostFailed."""
        self._number += 1
        self._send({"id": self._number, "method": method, "params": parameters})
        while True:
            message = self._message()
            if "method" in message:
                self.events.append(message)
                if "id" in message:  # a question of the host, which waits for the answer
                    refusal = {"code": -32601, "message": "not here"}
                    self._send({"id": message["id"], "error": refusal})
            elif message.get("id") == self._number:
                return self._answer(message)

    def _answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        error, answer = message.get("error"), message.get("result")
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            raise HostRefused(error["message"])
        if error is not None or not isinstance(answer, dict):
            raise HostFailed("its answer is not understood")
        return answer

    def _send(self, message: Mapping[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        framed = b"Content-Length: %d\r\n\r\n%b" % (len(data), data)
        self._process.tell(framed if self._is_framed else data + b"\n")

    def _message(self) -> Mapping[str, Any]:
        data = self._process.said.line()
        if self._is_framed:
            size_bytes = None
            while line := data.strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length" and value.strip().isdigit():
                    size_bytes = int(value[:_DIGITS_MAX])
                data = self._process.said.line()
            if size_bytes is None:
                raise HostFailed("its answer is not understood")
            data = self._process.said.exactly(size_bytes)
        try:
            message = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise HostFailed("its answer is not understood") from error
        return message if isinstance(message, dict) else {}
