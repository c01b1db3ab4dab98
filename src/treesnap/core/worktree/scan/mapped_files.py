"""Files that some process has mapped and may write to.

When a process writes again to a page of a shared mapping, no time of the file changes until the
kernel has written that page to disk, and nothing is reported until the last descriptor is closed.
In memory, as on tmpfs, the times may never change. So neither a look at the names nor a watcher
shows that such a file changed, and it is read again as long as it is mapped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

from treesnap.core.codec.statcache import Observation
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.mounts import Mounts
from treesnap.core.fs.processes import KernelThreads, writable_mappings
from treesnap.core.model.named_tuple import NamedTuple

_DELETED = b" (deleted)"
_SEEN_MAX = 1 << 16


class Mapped(NamedTuple):
    """What is mapped for writing at one moment."""

    paths: frozenset[bytes]
    """Paths in the tree under which processes mapped these files."""
    inodes: frozenset[int]
    """Their inode numbers, to find all of their names."""
    has_nameless: bool
    """Whether a file lost the name under which it was mapped; it may have others."""


def mapped_now(fs: FileSystem, root: str, kernel: KernelThreads | None = None) -> Mapped:
    """Returns what is mapped for writing on the file system of a root, a real path.

    Files are found by inode, under any name. Where the kernel lists other devices and inodes than
    lstat(2), as it may on overlays, they are found by their paths below the root. For the cost,
    and for the processes that are visible, see :func:`writable_mappings`. Raises OSError.
    """
    paths: set[bytes] = set()
    inodes: set[int] = set()
    has_nameless = False
    prefix = os.fsencode(root).rstrip(b"/") + b"/"
    devices = _devices_of(fs, root)
    for mapping in writable_mappings(prefix, kernel):
        if mapping.device in devices:
            inodes.add(mapping.inode)
        below = set(_below(prefix, mapping.path))
        named = set()
        for path in below:
            with suppress(OSError):  # it lost that name, or never had it
                named.add(fs.lstat(prefix + path).st_ino)
        paths |= below
        inodes |= named
        if below and mapping.path.endswith(_DELETED) and mapping.inode not in named:
            has_nameless = True
    return Mapped(frozenset(paths), frozenset(inodes), has_nameless)


def _devices_of(fs: FileSystem, root: str) -> set[tuple[int, int] | None]:
    """Returns the devices that a list of mappings may show for the files of a root.

    For a subvolume of btrfs, lstat(2) returns a device that no list shows. An inode number of
    another subvolume only costs a look at a file.
    """
    number = fs.lstat(root).st_dev
    device = os.major(number), os.minor(number)
    return {device, Mounts(fs).device(root)} if os.major(number) == 0 else {device}


def names_of(inodes: frozenset[int], observations: Iterable[Observation]) -> frozenset[bytes]:
    """Returns the names of one directory whose files have some inode numbers."""
    if not inodes:
        return frozenset()
    return frozenset(item[0] for item in observations if item[5] in inodes)


class MappedFiles:
    """The files below a root that are mapped for writing, and those that were.

    A file may have been written after the question at which it was still mapped, and an overlay
    does not report the end of a mapping. So the file counts as changed at the next question, too.
    """

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root
        self._kernel = KernelThreads()
        self._seen: dict[bytes, int] = {}
        """The last question at which each was mapped."""
        self.inodes: tuple[int, ...] = ()
        """Inode numbers of what was mapped at the last look."""
        self.forgotten: int = -1
        """The first question whose mapped files are still known, or -1."""
        self.nameless: int = -1
        """The last question at which something was mapped by a name that was removed."""

    def look(self, number: int) -> None:
        """Finds what is mapped, for the question with a number.

        Call it before reports are taken in, so that a mapping that ends meanwhile is reported.
        """
        mapped = mapped_now(self._fs, self._root, self._kernel)
        self.inodes = tuple(sorted(mapped.inodes))
        if mapped.has_nameless:
            self.nameless = number
        now = dict.fromkeys(mapped.paths, number)
        self._seen.update(now)
        if len(self._seen) > _SEEN_MAX:
            self._seen, self.forgotten = now, number

    def since(self, number: int) -> set[bytes]:
        """Returns the paths that were mapped at the question with a number, or later."""
        return {path for path, seen in self._seen.items() if seen >= number}


def _below(prefix: bytes, shown_path: bytes) -> Iterator[bytes]:
    """Yields the tree paths that a path in a list of mappings may mean."""
    # The list shows a newline and a backslash with three digits in the same way.
    for path in {shown_path, shown_path.replace(rb"\012", b"\n")}:
        if path.startswith(prefix):
            inside = path[len(prefix) :]
            yield inside
            if inside.endswith(_DELETED):
                yield inside.removesuffix(_DELETED)
