"""The client of a watcher that carries out ``snap hook`` for another process.

Most of what a hook takes is the start of Python and the import of treesnap. The watcher of the root
has all of that behind it, and knows what changed. So the process of the hook imports this module,
finds the watcher's socket by the directory that it works in, sends what it was given, prints the
reply and ends.

The watcher answers only what it has done completely. Whatever it cannot or may not do, and what
takes it too long, this process does itself: its standard input is then what it was before. A call
that both have captured is one step, because its key is the same.

Imports nothing that takes long: hashing a path would take longer than the whole call.
"""

from __future__ import annotations

import os
import select
import sys
import time

import treesnap
from treesnap.core.fs.peers import connected, encode_call, opened_peer, received, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

TIMEOUT_DEFAULT_S = 20.0
"""Below the time of every host; the shortest is 30 s."""
PAYLOAD_SIZE_MAX = 32 << 20
"""The largest payload that is understood; the content of a file that is written is in it."""
_REPLY_SIZE_MAX = 4 << 20
_SENT_SIZE_MAX = 2 << 20
"""Larger payloads are rare, and a watcher takes none."""
WATCHER_SHARE = 0.5
"""Of its time that a hook gives the watcher; what is left is for doing the work itself."""
_TIMEOUT_MIN_S = 1.0
_TIMEOUT_MAX_S = 3600.0
_LEVELS_MAX = 64
"""Directories above that may be the root."""


class HookCall:
    """A call of ``snap hook``, as far as a watcher understands its words."""

    def __init__(self, words: Sequence[str]) -> None:
        """Raises ValueError or IndexError for words that a watcher does not understand."""
        position = 1
        self.directory: str = ""
        self.event_name: str = ""
        self.is_strict: bool = False
        self.timeout_s: float = TIMEOUT_DEFAULT_S
        while words[position] in ("-C", "--store"):
            if words[position] == "-C":
                self.directory = words[position + 1]
            position += 2
        if words[position] != "hook":
            raise ValueError("another command")
        self.host_name: str = words[position + 1]
        rest = iter(words[position + 2 :])
        for word in rest:
            if word == "--strict":
                self.is_strict = True
            elif word == "--timeout":
                self.timeout_s = float(next(rest, ""))
            elif word.startswith("-") or self.event_name:
                raise ValueError("another option")
            else:
                self.event_name = word
        if not _TIMEOUT_MIN_S <= self.timeout_s < _TIMEOUT_MAX_S:
            raise ValueError("another time")


def run_in_watcher(words: list[str], store: str) -> None:
    """Has a watcher carry out the hook of this process, and ends with its reply.

    Returns if none does. Then nothing was lost but time, which the words say.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        return
    try:
        call = HookCall(words)
        name = _found_socket(f"{store}/roots", call.directory or ".")
    except (ValueError, IndexError, OSError):
        return
    if name is None:
        return
    begin_s = time.monotonic()
    payload = _taken_payload(begin_s + call.timeout_s)
    is_early = time.monotonic() - begin_s < call.timeout_s * (1 - WATCHER_SHARE)
    try:
        reply = _asked(f"{store}/roots", name, call, payload) if is_early else b""
    except OSError:
        reply = b""
    if reply:
        _end(reply)
    _put_back(payload)
    took_s = time.monotonic() - begin_s
    if took_s >= _TIMEOUT_MIN_S:
        words += ["--timeout", f"{max(0.1, call.timeout_s - took_s):.1f}"]


def socket_name(device: int, inode: int) -> str:
    """Returns the name of a root's watcher's socket for hooks, as the watch service makes it."""
    return f"hook-{device:x}-{inode:x}"


def identity() -> bytes:
    """Returns what must be equal in a watcher and its clients."""
    return ascii((treesnap.__version__, __file__)).encode()


def encode_reply(stdout: bytes, stderr: bytes, exit_code: int) -> bytes:
    """Returns a reply; an empty one stands for none."""
    return b"%d %d\n" % (exit_code, len(stdout)) + stdout + stderr


def _end(reply: bytes) -> NoReturn:
    """Prints a reply and ends this process."""
    head, _, text = reply.partition(b"\n")
    exit_code, size_bytes = map(int, head.split())
    for fd, part in ((1, text[:size_bytes]), (2, text[size_bytes:])):
        try:
            _write_all(fd, part)
        except OSError:  # the host has closed it
            continue
    os._exit(exit_code)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _found_socket(directory: str, start: str) -> str | None:
    """Returns the name of the socket of the nearest root upwards that may be watched, or None.

    Raises OSError for a place that cannot be looked at.
    """
    before = None
    for _ in range(_LEVELS_MAX):
        here = os.stat(start)
        name = socket_name(here.st_dev, here.st_ino)
        try:
            os.lstat(f"{directory}/{name}")
        except FileNotFoundError:
            pass
        else:
            return name
        if before is not None and os.path.samestat(before, here):
            return None
        before, start = here, f"{start}/.."
    return None


def _taken_payload(end_s: float) -> bytes:
    """Returns what is on standard input; only its beginning when the time ends, or it is long."""
    pieces: list[bytes] = []
    size_bytes = 0
    stdin = select.poll()
    stdin.register(0, select.POLLIN)
    try:
        while (left_s := end_s - time.monotonic()) > 0 and stdin.poll(left_s * 1000):
            piece = os.read(0, 1 << 16)
            if not piece:
                break
            if size_bytes <= PAYLOAD_SIZE_MAX:
                pieces.append(piece)
                size_bytes += len(piece)
    except OSError:
        pass
    return b"".join(pieces)


def _put_back(payload: bytes) -> None:
    """Makes a payload the standard input, for this process or a child of a fork server."""
    from treesnap.core.fs.local import unnamed_file  # what follows imports that in any case

    fd = unnamed_file("payload")
    _write_all(fd, payload)
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.close(fd)


def _asked(directory: str, name: str, call: HookCall, payload: bytes) -> bytes:
    """Returns the reply of a watcher, or nothing; raises OSError."""
    if len(payload) > _SENT_SIZE_MAX:
        return b""
    connection, watcher = connected(directory, name)  # late if it is suspended
    try:
        os.close(opened_peer(watcher))
        connection.settimeout(call.timeout_s * WATCHER_SHARE)
        send(connection, encode_call(identity(), [os.getcwd(), *sys.argv], os.environ, payload))
        return received(connection, _REPLY_SIZE_MAX)[0]
    finally:
        connection.close()
