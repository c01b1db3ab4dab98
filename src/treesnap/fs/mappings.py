"""What processes have mapped for writing, by proc_pid_maps(5)."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

_QUERY = 0xC0686611
"""PROCMAP_QUERY of linux/fs.h, known to Linux 6.11 and later."""
_WRITABLE_SHARED_FILE = struct.pack("<QQQ80x", 104, 0x02 | 0x08 | 0x10 | 0x20, 0)
"""Asks for the first mapping from address 0 on that is writable, shared, and of a file."""
_SHARED_WRITABLE = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ .w.s [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)$", re.MULTILINE
)
"""Address, permissions, offset, then device, inode and path."""
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing about a process; any other means that it is not shown."""
_READ_SIZE = 64 << 10
_Shown = TypeVar("_Shown")


class Mapping(NamedTuple):
    """A mapping that its process may write to, of a file that others see written."""

    device: tuple[int, int]
    """Major and minor number; on some file systems others than lstat(2) tells."""
    inode: int
    path: bytes
    """As the kernel shows it: a newline as a backslash and 012, and with `` (deleted)`` behind
    it when the file has that name no more."""


def writable_mappings(*, asks: bool = True) -> Iterator[Mapping]:
    """Yields the shared writable mappings of all processes that may be looked into.

    Those are the user's own, and for root everybody's. Where processes are not shown, as in
    some sandboxes, nothing. Costs an open and a question per process, about 5 microseconds; with
    an older kernel, or without ``asks``, its list has to be read, 8 microseconds per KiB. Raises
    OSError when there are too many open files, or no memory.
    """
    for name in _shown(partial(os.listdir, "/proc"), list[str]()):
        if not name.isdigit():
            continue
        shown = _shown(partial(_mappings_of, name, asks=asks), b"")
        for major, minor, inode, path in _SHARED_WRITABLE.findall(shown):
            yield Mapping((int(major, 16), int(minor, 16)), int(inode), path)


def _shown(look: Callable[[], _Shown], otherwise: _Shown) -> _Shown:
    try:
        return look()
    except OSError as error:
        if error.errno in _OURS:
            raise
        return otherwise


def _mappings_of(process: str, *, asks: bool) -> bytes:
    """Returns a process's list of mappings, or nothing when none in it is of interest."""
    fd = os.open(f"/proc/{process}/maps", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if asks:
            try:
                fcntl.ioctl(fd, _QUERY, _WRITABLE_SHARED_FILE)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return b""
        pieces = []
        while piece := os.read(fd, _READ_SIZE):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(fd)
