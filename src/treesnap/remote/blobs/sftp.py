"""SFTP version 3, the side of a client, over two descriptors; what a server answers is checked.

Version 3 is what OpenSSH and nearly all others speak (draft-ietf-secsh-filexfer-02). Requests have
numbers, so many are on their way at the same time, of several threads; a thread receives answers.

A server is not trusted. No packet is longer than :data:`PACKET_MAX`, no answer longer than what was
asked for, no list has more than :data:`LISTED_MAX` names, and what breaks a rule ends the
connection. So does silence, but never the time that a transfer takes.
"""

from __future__ import annotations

import os
import select
import stat as stat_module
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

from treesnap.core.model.errors import printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.blobs.base import Data, Range

PACKET_MAX = 1 << 18
"""The longest answer that is read; OpenSSH sends none that is longer."""
LISTED_MAX = 1 << 20
"""Names in a directory."""
ANSWER_S = 120.0
"""How long the server may be silent while answers are due."""
_LAST_WORDS_S = 1.0
_PART_BYTES = 1 << 15
"""What every server reads and writes with one request."""
_WINDOW = 64
"""Requests of one call that are on their way at the same time."""
_LIST_WINDOW = 4

_INIT, _VERSION = 1, 2
_OPEN, _CLOSE, _READ, _WRITE, _LSTAT, _FSTAT = 3, 4, 5, 6, 7, 8
_OPENDIR, _READDIR, _REMOVE, _MKDIR, _RENAME = 11, 12, 13, 14, 18
_STATUS, _HANDLE, _DATA, _NAME, _ATTRIBUTES = 101, 102, 103, 104, 105
_EXTENDED, _EXTENDED_REPLY = 200, 201

OK, END, NO_SUCH_FILE, PERMISSION_DENIED, FAILURE = 0, 1, 2, 3, 4
NO_CONNECTION, CONNECTION_LOST, UNSUPPORTED = 6, 7, 8
_STATUS_WORDS = {
    NO_SUCH_FILE: "No such file",
    PERMISSION_DENIED: "Permission denied",
    FAILURE: "Failure",
    UNSUPPORTED: "Not supported",
}

_TO_READ, _TO_WRITE_NEW = 0x1, 0x2 | 0x8 | 0x20
_HAS_SIZE, _HAS_OWNER, _HAS_MODE, _HAS_TIMES, _HAS_MORE = 1, 2, 4, 8, 1 << 31

HARD_LINK, SYNC = "hardlink@openssh.com", "fsync@openssh.com"
REPLACE, SPACE = "posix-rename@openssh.com", "statvfs@openssh.com"
"""The extensions that are used where the server says that it has them."""

_Answer: TypeAlias = tuple[int, bytes]
_Item = TypeVar("_Item")
_LOST: _Answer = (-1, b"")


class SftpLost(Exception):
    """The connection ended, or what came makes no sense; nothing more can be asked."""

    def __init__(self, reason: str, *, is_senseless: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_senseless = is_senseless
        """Whether the server broke a rule, which it will do again."""


class SftpRefused(Exception):
    """The server says that it did not do what it was asked to."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words
        """What the server said, printable and short."""


class Attributes(NamedTuple):
    """What a server tells of a file; None is what it does not tell."""

    size_bytes: int | None = None
    mode: int | None = None
    mtime_s: int | None = None

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file, or what it is is not told."""
        return self.mode is None or stat_module.S_ISREG(self.mode)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.mode is not None and stat_module.S_ISDIR(self.mode)


class Pending:
    """An answer that is due."""

    def __init__(self, client: SftpClient) -> None:
        self.client = client
        self.inbox: SimpleQueue[_Answer] = SimpleQueue()

    def answer(self) -> _Answer:
        """Waits for the answer; raises SftpLost, and SftpRefused for a status that is not OK."""
        kind, body = self.client.wait(self.inbox)
        if kind == _STATUS:
            fields = _Fields(body)
            status = fields.u32()
            if status != OK:
                with suppress(SftpLost):  # the words may be left out
                    said = printable(fields.text().decode("utf-8", "replace"))[:300]
                    raise SftpRefused(status, said or _words_of(status))
                raise SftpRefused(status, _words_of(status))
        return kind, body

    def body(self, kind: int) -> bytes:
        """Waits for an answer of a kind, and returns what it holds."""
        answered, body = self.answer()
        if answered != kind:
            raise self.client.lost(f"it answers a packet of kind {answered}", is_senseless=True)
        return body

    def done(self) -> None:
        """Waits until the server says that it did what it was asked to."""
        self.body(_STATUS)


class SftpClient:
    """A connection to a server of SFTP. Safe in threads.

    ``receive_fd`` and ``send_fd`` stay the caller's, and are closed by it after ``on_lost`` was
    called or the client was given up; ``on_lost`` has to end what blocks the descriptors.
    """

    def __init__(
        self,
        receive_fd: int,
        send_fd: int,
        on_lost: Callable[[], None],
        *,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._send_fd = send_fd
        self._stream = os.fdopen(receive_fd, "rb", buffering=PACKET_MAX, closefd=False)
        self._on_lost = on_lost
        self._answer_s = answer_s
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._pending: dict[int | None, Pending] = {}
        self._number = 0
        self._lost: SftpLost | None = None
        self._heard_s = time.monotonic()
        self.extensions: frozenset[str] = frozenset()
        """What the server offers beside version 3."""
        os.set_blocking(send_fd, False)
        self._version = self._pending[None] = Pending(self)
        self._receiver = threading.Thread(target=self._receive, name="sftp", daemon=True)
        self._receiver.start()

    def begin(self, wait_s: float | None = None) -> bool:
        """Exchanges versions; returns False where the server has not answered for ``wait_s``.

        Then it may be called again. Raises SftpLost.
        """
        if self._number == 0:
            self._number = 1
            self._send(_packet(_INIT, _u32(3)))
        try:
            kind, body = self.wait(self._version.inbox, wait_s)
        except Empty:
            return False
        fields = _Fields(body)
        if kind != _VERSION or (version := fields.u32()) < 3:
            words = f"version {version}" if kind == _VERSION else "no version"
            raise self.lost(f"it speaks {words} of SFTP, and 3 is needed", is_senseless=True)
        names = set()
        while not fields.is_at_end:
            names.add(fields.text().decode("ascii", "replace"))
            fields.text()
        self.extensions = frozenset(names)
        return True

    def lost(self, reason: str, *, is_senseless: bool = False) -> SftpLost:
        """Ends the connection; returns why it ended, which may be an earlier reason."""
        with self._lock:
            is_first = self._lost is None
            error = self._lost = self._lost or SftpLost(reason, is_senseless=is_senseless)
            due, self._pending = self._pending, {}
        for pending in due.values():
            pending.inbox.put(_LOST)
        if is_first:
            self._on_lost()
        return error

    def join(self, wait_s: float) -> bool:
        """Waits for the end of what is received; returns whether the descriptors can be closed."""
        self._receiver.join(wait_s)
        return not self._receiver.is_alive()

    # ------------------------------------------------------------------- packets

    def wait(self, inbox: SimpleQueue[_Answer], wait_s: float | None = None) -> _Answer:
        """Waits for an answer; raises SftpLost where nothing at all comes.

        With ``wait_s`` waits no longer than that, and raises Empty.
        """
        while True:
            try:
                answer = inbox.get(timeout=self._answer_s if wait_s is None else wait_s)
            except Empty:
                if wait_s is not None:
                    raise
                if time.monotonic() - self._heard_s >= self._answer_s:
                    self.lost(f"it has not answered for {self._answer_s:.0f} s")
                continue
            if answer is _LOST:
                assert self._lost is not None
                raise SftpLost(self._lost.reason, is_senseless=self._lost.is_senseless)
            return answer

    def _ask(self, kind: int, *fields: bytes | memoryview) -> Pending:
        """Sends a request, and returns its answer, which is due."""
        pending = Pending(self)
        with self._send_lock:
            with self._lock:
                if self._lost is not None:
                    raise SftpLost(self._lost.reason, is_senseless=self._lost.is_senseless)
                self._number = number = self._number % 0xFFFFFFFF + 1
                if not self._pending:
                    self._heard_s = time.monotonic()
                self._pending[number] = pending
            self._send(_packet(kind, _u32(number), *fields))
        return pending

    def _send(self, packet: bytes) -> None:
        """Writes a packet. The server reads it late where the line is slow."""
        left = memoryview(packet)
        writable = select.poll()
        writable.register(self._send_fd, select.POLLOUT)
        while left:
            try:
                left = left[os.write(self._send_fd, left) :]
            except BlockingIOError:
                if not writable.poll(self._answer_s * 1000):
                    raise self.lost(f"it has not read for {self._answer_s:.0f} s") from None
            except OSError as error:
                self._receiver.join(_LAST_WORDS_S)  # what it sent before may say more
                raise self.lost("it closed the connection") from error

    def _receive(self) -> None:
        """Gives each answer to who waits for it, until the connection ends."""
        try:
            while True:
                size = int.from_bytes(self._exactly(4))
                if not 5 <= size <= PACKET_MAX:
                    raise SftpLost("what it sends is not SFTP", is_senseless=True)
                packet = self._exactly(size)
                kind, number = packet[0], int.from_bytes(packet[1:5])
                self._heard_s = time.monotonic()
                with self._lock:
                    is_first = None in self._pending
                    pending = self._pending.pop(None if is_first else number, None)
                if pending is None:
                    raise SftpLost("it answers what it was not asked", is_senseless=True)
                pending.inbox.put((kind, packet[1:] if is_first else packet[5:]))
        except SftpLost as error:
            self.lost(error.reason, is_senseless=error.is_senseless)
        except (OSError, ValueError):
            self.lost("it closed the connection")

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise SftpLost("it closed the connection")
        return data

    # ---------------------------------------------------------------------- calls

    def status_of(self, path: bytes) -> Attributes:
        """Returns what a path is, without following a link."""
        return _Fields(self._ask(_LSTAT, _text(path)).body(_ATTRIBUTES)).attributes()

    def read(self, path: bytes, ranges_of: Callable[[Attributes], Sequence[Range]]) -> list[bytes]:
        """Returns parts of a file, which ``ranges_of`` chooses when it knows what the file is.

        No range may go past the end. Raises SftpRefused with END for a file that is shorter than
        the server said.
        """
        handle = self._handle(_OPEN, path, _u32(_TO_READ), _u32(0))
        try:
            attributes = _Fields(self._ask(_FSTAT, handle).body(_ATTRIBUTES)).attributes()
            return self._read(handle, ranges_of(attributes))
        finally:
            self._close(handle)

    def _read(self, handle: bytes, ranges: Sequence[Range]) -> list[bytes]:
        asked = [
            (at, offset, min(_PART_BYTES, start + size - offset))
            for at, (start, size) in enumerate(ranges)
            for offset in range(start, start + size, _PART_BYTES)
        ]
        pieces: list[list[bytes]] = [[] for _ in ranges]

        def ask(part: tuple[int, int, int]) -> Pending:
            _, offset, size = part
            return self._ask(_READ, handle, _u64(offset), _u32(size))

        for part, pending in zip(asked, self._in_turn(ask, asked), strict=True):
            at, offset, size = part
            data = self._data(pending, size)
            while len(data) < size:  # a server may send less than was asked for
                left = at, offset + len(data), size - len(data)
                data += self._data(ask(left), left[2])
            pieces[at].append(data)
        return [b"".join(parts) for parts in pieces]

    def _data(self, pending: Pending, size: int) -> bytes:
        data = _Fields(pending.body(_DATA)).text()
        if not 0 < len(data) <= size:
            raise self.lost(f"it sends {len(data)} of {size} bytes", is_senseless=True)
        return data

    def write_new(self, path: bytes, data: Data, mode: int) -> None:
        """Writes a file that does not exist yet; durable after return, but for its name.

        Raises SftpRefused with FAILURE where there is one.
        """
        new = _u32(_TO_WRITE_NEW), _u32(_HAS_MODE), _u32(mode)
        handle = self._handle(_OPEN, path, *new)
        try:
            view = memoryview(data)

            def ask(offset: int) -> Pending:
                part = view[offset : offset + _PART_BYTES]
                return self._ask(_WRITE, handle, _u64(offset), _u32(len(part)), part)

            for pending in self._in_turn(ask, range(0, len(view), _PART_BYTES)):
                pending.done()
            self._sync(handle)
        except BaseException:
            self._close(handle)
            raise
        self._ask(_CLOSE, handle).done()

    def _in_turn(
        self, ask: Callable[[_Item], Pending], items: Iterable[_Item], window: int = _WINDOW
    ) -> Iterator[Pending]:
        """Sends a request for each item, so many at the same time; yields answers in order."""
        due = deque[Pending]()
        for item in items:
            if len(due) >= window:
                yield due.popleft()
            due.append(ask(item))
        yield from due

    def _handle(self, kind: int, path: bytes, *fields: bytes) -> bytes:
        handle = _Fields(self._ask(kind, _text(path), *fields).body(_HANDLE)).text()
        if len(handle) > 256:
            raise self.lost("it sends a handle of more than 256 bytes", is_senseless=True)
        return _text(handle)

    def _close(self, handle: bytes) -> None:
        """Closes a handle, without a look at the answer: nothing is lost by it."""
        with suppress(SftpLost):
            self._ask(_CLOSE, handle)

    def _sync(self, handle: bytes) -> None:
        if SYNC in self.extensions:
            self._ask(_EXTENDED, _text(SYNC.encode()), handle).done()

    def discard(self, path: bytes) -> None:
        """Removes a file that may be there, without a look at the answer."""
        with suppress(SftpLost):
            self._ask(_REMOVE, _text(path))

    def settle(self) -> None:
        """Waits for all answers that are due: what is closed sooner may not be done."""
        with self._lock:
            due = list(self._pending.values())
        for pending in due:
            with suppress(SftpLost, SftpRefused):
                pending.answer()

    def sync_directory(self, path: bytes) -> None:
        """Makes the names in a directory durable, as far as the server can."""
        if SYNC in self.extensions:
            with suppress(SftpRefused):  # some open no directory, as others do
                handle = self._handle(_OPEN, path, _u32(_TO_READ), _u32(0))
                try:
                    self._sync(handle)
                finally:
                    self._close(handle)

    def names_in(self, path: bytes) -> Iterator[tuple[bytes, Attributes]]:
        """Yields the names in a directory, but for ``.`` and ``..``."""
        handle = self._handle(_OPENDIR, path)
        count = 0
        try:
            for pending in self._in_turn(
                lambda item: self._ask(_READDIR, item), repeat(handle), _LIST_WINDOW
            ):
                try:
                    fields = _Fields(pending.body(_NAME))
                except SftpRefused as error:
                    if error.status != END:
                        raise
                    return
                new = fields.u32()
                count += new
                if count > LISTED_MAX or not new:
                    raise self.lost(f"it lists {count} names in a directory", is_senseless=True)
                for _ in range(new):
                    name = fields.text()
                    fields.text()
                    attributes = fields.attributes()
                    if name not in {b".", b".."}:
                        yield name, attributes
        finally:
            self._close(handle)

    def make_directory(self, path: bytes, mode: int) -> None:
        """Makes a directory; raises SftpRefused with FAILURE where there is something."""
        self._ask(_MKDIR, _text(path), _u32(_HAS_MODE), _u32(mode)).done()

    def remove(self, paths: Sequence[bytes]) -> list[SftpRefused | None]:
        """Removes files; returns for each why it could not be, or None."""
        outcomes: list[SftpRefused | None] = []
        for pending in self._in_turn(lambda path: self._ask(_REMOVE, _text(path)), paths):
            try:
                pending.done()
            except SftpRefused as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        return outcomes

    def link(self, path: bytes, new_path: bytes) -> None:
        """Gives a file another name; needs HARD_LINK."""
        self._ask(_EXTENDED, _text(HARD_LINK.encode()), _text(path), _text(new_path)).done()

    def move(self, path: bytes, new_path: bytes) -> None:
        """Renames a file to a name that is free; whether two that meet both succeed is not said."""
        self._ask(_RENAME, _text(path), _text(new_path)).done()

    def replace(self, path: bytes, new_path: bytes) -> None:
        """Renames a file, in the place of what has the name; needs REPLACE."""
        self._ask(_EXTENDED, _text(REPLACE.encode()), _text(path), _text(new_path)).done()

    def free_bytes(self, path: bytes) -> int | None:
        """Returns how much room the file system of a path has, or None where that is not told."""
        if SPACE not in self.extensions:
            return None
        try:
            body = self._ask(_EXTENDED, _text(SPACE.encode()), _text(path)).body(_EXTENDED_REPLY)
        except SftpRefused:
            return None
        fields = _Fields(body)
        _, block_bytes, _, _, blocks_free = (fields.u64() for _ in range(5))
        return block_bytes * blocks_free


class _Fields:
    """The fields of an answer, one after the other; raises SftpLost where it is too short."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._body)

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._body):
            raise SftpLost("it sends an answer that is cut short", is_senseless=True)
        return self._body[start : self._at]

    def u32(self) -> int:
        return int.from_bytes(self._take(4))

    def u64(self) -> int:
        return int.from_bytes(self._take(8))

    def text(self) -> bytes:
        return self._take(self.u32())

    def attributes(self) -> Attributes:
        flags = self.u32()
        size_bytes = self.u64() if flags & _HAS_SIZE else None
        if flags & _HAS_OWNER:
            self._take(8)
        mode = self.u32() if flags & _HAS_MODE else None
        mtime_s = int.from_bytes(self._take(8)[4:]) if flags & _HAS_TIMES else None
        for _ in range(self.u32() if flags & _HAS_MORE else 0):
            self.text()
            self.text()
        return Attributes(size_bytes, mode, mtime_s)


def _words_of(status: int) -> str:
    return _STATUS_WORDS.get(status, f"status {status}")


def _packet(kind: int, *fields: bytes | memoryview) -> bytes:
    body = b"".join(fields)
    return struct.pack(">IB", len(body) + 1, kind) + body


def _u32(number: int) -> bytes:
    return number.to_bytes(4)


def _u64(number: int) -> bytes:
    return number.to_bytes(8)


def _text(data: bytes) -> bytes:
    return _u32(len(data)) + data
