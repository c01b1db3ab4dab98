"""How a command talks to a companion: a process that has ready what the command would have to get.

Companions are the watcher of a root and the fork server of a store. Each listens at a socket in the
store. Nothing depends on one: without an answer, the command does everything itself. In order:

1. The client connects. Neither the directory nor the socket may be a link, for a stranger's store
   must not lead to another process; and the one that listens must be of a user who may write to the
   store anyway.
2. The companion says hello, in the version of these messages. One that is suspended does not, so
   the client looks whether it is, and does not wait for that.
3. The client sends a request, and the companion answers: with nothing if it cannot or may not. A
   message is its size and its bytes, perhaps with descriptors.

A process that carries out a command for another one and that other one look whether both have the
same rights, because either may be confined. The kernel says of each message which process sent it.
The directory of that process in ``/proc`` is held open, and a later message of the same process is
the proof that it was the right one: an ended process cannot send, and its number may belong to
another. Where the system is not Linux, no process says that, and there are no companions.

Imports nothing that takes long: ``socket`` takes longer than this module does.
"""

from __future__ import annotations

import _socket as socket
import os
import sys
import time

from treesnap.core.fs import HAS_COMPANIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HELLO = b"H"
"""The version of the messages: another letter when they change."""
PATIENCE_S = 1.0
"""How long the other side may take before it has begun to work."""
CALL_SIZE_MAX = 16 << 20
"""Of a command line with its variables and its input."""
_SIZE_BYTES = 4
_CREDENTIALS_SIZE = 12
_PIECE_SIZE = 1 << 20
_RIGHTS = (b"Uid:", b"Gid:", b"Groups:", b"Cap", b"NoNewPrivs:", b"Seccomp")
"""Lines of a process's status that decide what it may do; see proc_pid_status(5)."""
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def connected(
    directory: str,
    name: str = "socket",
    patience_s: float | None = None,
    question: bytes | None = None,
) -> tuple[socket.socket, int]:
    """Returns a connection to the companion in a directory, and the process that said hello.

    Does not wait for that to send a question, so one that is suspended answers it later.
    Raises FileNotFoundError or ConnectionRefusedError where none listens, TimeoutError or
    BlockingIOError when it is suspended or busy, other OSError where it is not to be trusted.
    """
    if sys.platform != "linux" or not HAS_COMPANIONS:
        raise _missing()
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    directory_fd = os.open(directory, flags | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(PATIENCE_S if patience_s is None else patience_s)
        socket_fd = os.open(name, flags, dir_fd=directory_fd)
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            connection.connect(f"/proc/self/fd/{socket_fd}")  # a link itself refuses it
        finally:
            os.close(socket_fd)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_SIZE)
        user = int.from_bytes(peer[4:8], sys.byteorder)
        if user not in {0, os.geteuid(), os.fstat(directory_fd).st_uid}:
            raise PermissionError("the process that listens there is another user's")
        if question is not None:
            send(connection, question)
        if _is_suspended(int.from_bytes(peer[:4], sys.byteorder)):
            raise TimeoutError("the process that listens there is suspended")
        hello, sender, _ = _piece(connection, len(HELLO))
        if hello != HELLO:
            raise OSError("the process that listens there does not say hello as this version does")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(directory_fd)
    return connection, sender


def _missing() -> OSError:
    import errno

    from treesnap.core.fs.base import Unsupported  # the client of a hook loads nothing for it

    return Unsupported(errno.ENOSYS, "a process does not say here who it is")


def _is_suspended(process_id: int) -> bool:
    """Returns whether a process is stopped, as by Ctrl-Z; False for one that is not shown here.

    Its state is in ``/proc``; see proc_pid_stat(5).
    """
    try:
        facts = read_facts(f"/proc/{process_id}/stat")
    except OSError:
        return False
    return facts.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])


def address_in(directory_fd: int, name: str) -> str:
    """Returns the address of a socket in an open directory.

    Addresses of sockets have at most 107 bytes, and stores may lie deep. Raises OSError.
    """
    if not HAS_COMPANIONS:
        raise _missing()
    return f"/proc/self/fd/{directory_fd}/{name}"


def greet(connection: socket.socket) -> None:
    """Says hello to a client, which is asked to say with its messages who it is."""
    if sys.platform != "linux" or not HAS_COMPANIONS:
        raise _missing()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    connection.send(HELLO)


def send(connection: socket.socket, message: bytes, fds: Sequence[int] = ()) -> None:
    """Sends a message; raises OSError. ``socket.send_fds`` would have to import something."""
    data = len(message).to_bytes(_SIZE_BYTES, "little") + message
    numbers = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)] if fds else []
    sent = connection.sendmsg([data], rights)
    if sent < len(data):
        connection.sendall(data[sent:])


def received(
    connection: socket.socket, size_bytes_max: int, fds_max: int = 0
) -> tuple[bytes, int, list[int]]:
    """Returns a message, the process that sent it, and so many descriptors in it at most.

    The timeout of the connection is also that of the whole message, however small the pieces are
    in which it comes. Raises OSError, also when it is too long or cut short.
    """
    head, sender, fds = _piece(connection, _SIZE_BYTES, fds_max)
    left = int.from_bytes(head, "little")
    if len(head) < _SIZE_BYTES or left > size_bytes_max:
        raise OSError("a message is too long or cut short")
    pieces = []
    patience_s = connection.gettimeout()
    end_s = None if patience_s is None else time.monotonic() + patience_s
    while left:
        piece = connection.recv(min(left, _PIECE_SIZE))
        if not piece:
            raise OSError("a message was cut short")
        pieces.append(piece)
        left -= len(piece)
        if left and end_s is not None and time.monotonic() > end_s:
            raise TimeoutError("a message takes too long")
    return b"".join(pieces), sender, fds


def _piece(
    connection: socket.socket, size_bytes: int, fds_max: int = 0
) -> tuple[bytes, int, list[int]]:
    if sys.platform != "linux":
        raise _missing()
    room = socket.CMSG_SPACE(_CREDENTIALS_SIZE)
    if fds_max:  # the kernel closes those for which there is no room
        room += socket.CMSG_SPACE(fds_max * 4)
    data, ancillary, _, _ = connection.recvmsg(size_bytes, room, socket.MSG_CMSG_CLOEXEC)
    by_kind = {kind: item for _, kind, item in ancillary}
    sender = int.from_bytes(by_kind.get(socket.SCM_CREDENTIALS, b"")[:4], sys.byteorder)
    numbers = by_kind.get(socket.SCM_RIGHTS, b"")
    fds = [int.from_bytes(numbers[at : at + 4], sys.byteorder) for at in range(0, len(numbers), 4)]
    return data, sender, fds


def opened_peer(process_id: int) -> int:
    """Returns a descriptor of the directory in ``/proc`` of a process with the same rights.

    Raises OSError where it has others, or is not shown.
    """
    if sys.platform != "linux" or not HAS_COMPANIONS:
        raise _missing()
    fd = os.open(f"/proc/{process_id}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if rights_of(f"/proc/self/fd/{fd}") != rights_of("/proc/self"):
            raise PermissionError("the process has other rights")
    except OSError:
        os.close(fd)
        raise
    return fd


def require_running(peer_fd: int) -> None:
    """Raises OSError where the process of such a descriptor has ended."""
    os.lstat(f"/proc/self/fd/{peer_fd}/status")  # there is no such process then


def opened_process(process_id: int) -> int:
    """Returns a descriptor that says when a process ends, and by which it is told of signals."""
    if sys.platform != "linux":
        raise _missing()
    return os.pidfd_open(process_id)


def tell_process(process_fd: int, number: int) -> None:
    """Sends a signal by such a descriptor; raises ProcessLookupError for a process that ended."""
    import _signal  # type: ignore[import-not-found]  # typeshed has only the slow one

    if sys.platform != "linux":
        raise _missing()
    _signal.pidfd_send_signal(process_fd, number)


def rights_of(directory: str) -> tuple[object, ...]:
    """Returns what decides what a process may do and see, and which user it is.

    The directory is that of the process in ``/proc``.
    """
    status = read_facts(f"{directory}/status").splitlines()
    lines = [line for line in status if line.startswith(_RIGHTS)]
    spaces = [os.readlink(f"{directory}/ns/{name}") for name in _NAMESPACES]
    top = os.stat(f"{directory}/root")
    label: bytes | int | None
    try:
        label = read_facts(f"{directory}/attr/current")
    except OSError as error:  # no security module has labels
        label = error.errno
    return lines, spaces, top.st_dev, top.st_ino, label


def read_facts(path: str) -> bytes:
    """Returns the content of a file in ``/proc``; raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    finally:
        os.close(fd)


def encode_call(
    sender: bytes, words: Sequence[str], variables: Mapping[str, str], payload: bytes = b""
) -> bytes:
    """Returns who sends a command line, its words, its variables and its input, as one message."""
    items = [*words, *(f"{name}={value}" for name, value in variables.items())]
    counts = (b"%d" % len(words), b"%d" % len(variables))
    return b"\0".join([sender, *counts, *map(os.fsencode, items), payload])


def decode_call(request: bytes) -> tuple[bytes, list[str], dict[str, str], bytes]:
    """Returns the parts of such a message; raises ValueError."""
    sender, word_count, variable_count, rest = request.split(b"\0", 3)
    *items, payload = rest.split(b"\0", int(word_count) + int(variable_count))
    texts = list(map(os.fsdecode, items))
    words, variables = texts[: int(word_count)], texts[int(word_count) :]
    return sender, words, dict(text.split("=", 1) for text in variables), payload
