"""Files that some process has mapped for writing.

The kernel reports no writes through a shared mapping before the file is closed for good,
so such a file may change at any time. The maps of other users' processes cannot be read
without privileges, and a process in another mount namespace may know the file by another
path; see proc_pid_maps(5).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from treesnap.fs.base import FileSystem
from treesnap.fs.durable import read_file

_DELETED = b" (deleted)"
_SIZE_MAX = 64 << 20
_SEEN_MAX = 1 << 16
_SHARED_WRITABLE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ .w.s \S+ \S+ \S+ +(/.*)$", re.MULTILINE)
"""Address, permissions, offset, device, inode, path."""


class MappedFiles:
    """The files below a root that are mapped for writing, and those that were.

    A file may have been written until after the question at which it was still mapped, and an
    overlay does not report the end of a mapping. So it is of interest at the next one, too.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._seen: dict[bytes, int] = {}
        """At which question each was mapped last."""
        self.forgotten = -1
        """What was mapped at questions before this one is not known any more."""

    def look(self, number: int) -> None:
        """Looks what is mapped, for the question with a number.

        To be done before reports are taken in, so that what is unmapped meanwhile is reported.
        """
        now = dict.fromkeys(mapped_files(self._fs, self._root), number)
        self._seen.update(now)
        if len(self._seen) > _SEEN_MAX:
            self._seen, self.forgotten = now, number

    def since(self, number: int) -> set[bytes]:
        """Returns the paths that were mapped at the question with a number, or later."""
        return {path for path, seen in self._seen.items() if seen >= number}


def mapped_files(fs: FileSystem, root: str) -> Iterator[bytes]:
    """Yields the tree paths below a root, a real path, that are mapped for writing.

    Costs a read of the maps of each process, about 40 microseconds.
    """
    prefix = os.fsencode(root).rstrip(b"/") + b"/"
    shown_prefix = prefix.replace(b"\n", rb"\012")
    for name in fs.list_names("/proc"):
        if not name.isdigit():
            continue
        try:
            maps = read_file(fs, f"/proc/{name}/maps", _SIZE_MAX)
        except OSError:  # it has ended, or belongs to somebody else
            continue
        if shown_prefix not in maps:
            continue
        for found in _SHARED_WRITABLE.findall(maps):
            # The list does not tell a newline from a backslash with three digits.
            for path in {found, found.replace(rb"\012", b"\n")}:
                if path.startswith(prefix):
                    inside = path[len(prefix) :]
                    yield inside
                    if inside.endswith(_DELETED):
                        yield inside.removesuffix(_DELETED)
