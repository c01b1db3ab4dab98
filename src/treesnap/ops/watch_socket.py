"""Talking to a watcher in another process, through a socket in the store.

A connection carries one question and one answer, each with its size before it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from treesnap.codec.watch import ANSWER_SIZE_MAX
from treesnap.errors import Corrupt
from treesnap.fs.base import FileSystem

ANSWER_TIMEOUT_S = 1.0
"""How long a watcher may take to answer; it may be suspended."""
_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")


def ask(
    fs: FileSystem, directory: str, question: bytes, timeout_s: float = ANSWER_TIMEOUT_S
) -> bytes:
    """Returns what the watcher says whose socket is in a directory.

    Raises OSError (FileNotFoundError or ConnectionRefusedError when there is none, TimeoutError
    when it is stopped), Corrupt.
    """
    fd = fs.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(socket_address(fd))
            if not _is_trusted(connection, fs.fstat(fd).st_uid):
                raise PermissionError(errno.EACCES, "the watcher is somebody else's", directory)
            send(connection, question)
            return receive(connection, ANSWER_SIZE_MAX)
    finally:
        fs.close(fd)


def socket_address(directory_fd: int) -> str:
    """Returns the address of the socket in an open directory.

    Addresses of sockets have at most 107 bytes, and stores may lie deep.
    """
    return f"/proc/self/fd/{directory_fd}/socket"


def _is_trusted(connection: socket.socket, owner: int) -> bool:
    """Returns whether the other side belongs to somebody who may write to the store anyway."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(data)
    return user in {0, os.geteuid(), owner}


def send(connection: socket.socket, message: bytes) -> None:
    """Sends a message with its size before it; raises OSError."""
    connection.sendall(_LENGTH.pack(len(message)) + message)


def receive(connection: socket.socket, size_bytes_max: int) -> bytes:
    """Returns the next message; raises OSError, Corrupt when it is too long or cut short."""
    (size_bytes,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    if size_bytes > size_bytes_max:
        raise Corrupt(f"A message of {size_bytes} bytes is too long")
    return _receive_exactly(connection, size_bytes)


def _receive_exactly(connection: socket.socket, size_bytes: int) -> bytes:
    pieces = []
    while size_bytes:
        piece = connection.recv(min(size_bytes, 1 << 20))
        if not piece:
            raise Corrupt("A message was cut short")
        pieces.append(piece)
        size_bytes -= len(piece)
    return b"".join(pieces)
