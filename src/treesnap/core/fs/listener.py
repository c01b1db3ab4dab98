"""The socket at which a companion listens."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.peers import address_in


class Listener:
    """A socket in a directory of the store, which lies there until it is closed.

    The caller holds a lock, so a socket that lies there already is that of a killed companion: no
    process listens to it, which is the same as no socket to the others.
    """

    def __init__(self, fs: FileSystem, directory: str, name: str = "socket") -> None:
        self._fs, self._name = fs, name
        self._directory_fd = fs.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._identity: tuple[int, int] | None = None
        self.socket: socket.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listen()
            self._identity = self._found()
        except OSError:
            self.close()
            raise

    def is_in_place(self) -> bool:
        """Returns False once the socket was removed or replaced, so that no client finds it."""
        return self._identity is not None and self._found() == self._identity

    def remove(self) -> None:
        """Takes the socket away from clients, where it still is; those that connected stay."""
        if self.is_in_place():
            with suppress(OSError):
                self._fs.unlink(self._name, dir_fd=self._directory_fd)

    def close(self) -> None:
        """Removes the socket and ends listening. May be called again."""
        if self.socket.fileno() >= 0:
            self.remove()
            self._identity = None
            self.socket.close()
            self._fs.close(self._directory_fd)

    def _listen(self) -> None:
        fs, name, directory_fd = self._fs, self._name, self._directory_fd
        with suppress(FileNotFoundError):
            fs.unlink(name, dir_fd=directory_fd)
        old_mask = os.umask(0o177)
        try:
            self.socket.bind(address_in(directory_fd, name))
        finally:
            os.umask(old_mask)
        owner = fs.fstat(directory_fd)
        if owner.st_uid != os.geteuid():  # root, in the store of another user, who may ask too
            fs.change_owner(name, owner.st_uid, owner.st_gid, dir_fd=directory_fd)
        self.socket.listen(64)

    def _found(self) -> tuple[int, int] | None:
        try:
            status = self._fs.lstat(self._name, dir_fd=self._directory_fd)
        except OSError:
            return None
        return status.st_dev, status.st_ino
