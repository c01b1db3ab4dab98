"""Locks between processes: ``flock`` on files of the store, with bounded waiting.

A lock ends with its holder, however that ends; there is nothing to clean up and
no clock to trust. The file says who holds it, for messages only. Locks are
released explicitly, because a descriptor may live on in a forked child.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from treesnap.errors import Busy, Corrupt
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import open_lock, open_regular

_PAUSE_S = 0.02


def _write_note(fs: FileSystem, fd: int, operation: str) -> None:
    """Says who holds the lock. Not emptied before: ext4 needs 2 ms to give a block back."""
    note = f"process {os.getpid()}: {operation}\n".encode()
    fs.write_at(fd, note, 0)
    if fs.fstat(fd).st_size > len(note):
        fs.truncate(fd, len(note))


def _holder(fs: FileSystem, fd: int) -> str:
    text = fs.read_at(fd, 200, 0).decode("utf-8", "replace").strip()
    return text if text.isprintable() and text else "another process"


@contextmanager
def held(fs: FileSystem, path: str, *, operation: str, what: str, wait_s: float) -> Iterator[None]:
    """Holds an exclusive lock on a file while the body runs.

    Waits at most ``wait_s``, then raises Busy naming the holder. ``what`` is the
    thing that is locked, in words.
    """
    fd = open_lock(fs, path)
    try:
        deadline = time.monotonic() + wait_s
        while not fs.lock(fd, exclusive=True):
            if not time.monotonic() < deadline:  # not a number, so no time either
                raise Busy(f"{what} is in use by {_holder(fs, fd)}", path=path)
            time.sleep(_PAUSE_S)
        try:
            with suppress(OSError):  # on a full disk the lock does not say which process holds it
                _write_note(fs, fd, operation)
            yield
        finally:
            fs.unlock(fd)
    finally:
        fs.close(fd)


def is_held(fs: FileSystem, path: str) -> bool:
    """Returns whether a process holds the lock on a file. Never waits."""
    try:
        fd = open_regular(fs, path)
    except (OSError, Corrupt):
        return False
    try:
        if not fs.lock(fd, exclusive=False):
            return True
        fs.unlock(fd)
        return False
    finally:
        fs.close(fd)
