"""Where other file systems are mounted, and how exact a file system's times are.

A mount point below a root is not captured and not touched. The kernel's list
tells mounts, bind mounts included, from btrfs subvolumes, which have device
numbers of their own but belong to the tree. Where there is no such list, a
directory on another device counts as a mount point.
"""

from __future__ import annotations

import os

from treesnap.core.fs import LISTS_MOUNTS
from treesnap.core.fs.base import FileSystem, Unsupported
from treesnap.core.fs.durable import read_file
from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.named_tuple import NamedTuple

MOUNT_LIST = "/proc/self/mountinfo"

PRECISE_GRANULARITY_NS = 20_000_000
"""Two ticks of the slowest kernel clock, which stamps files on local file systems."""
COARSE_GRANULARITY_NS = 2_000_000_000
"""FAT's two seconds; used for every file system that is not known to do better."""
SECOND_NS = 1_000_000_000
CLOCK_ERROR_MAX_NS = 24 * 3600 * 10**9
"""Times further ahead come from no clock: a program chose them, and every edit changes them."""

_PRECISE = frozenset({"ext4", "xfs", "btrfs", "tmpfs", "overlay", "f2fs", "zfs", "bcachefs"})
_ESCAPE = LateRegex(rb"\\([0-7]{3})")


class YoungTimes(NamedTuple):
    """Which times are so young that a change after a walk began could leave them as they are."""

    started_ns: int
    """When the walk began, in ns since the epoch."""
    step_ns: int
    """The step of times on the file system."""

    def include(self, mtime_ns: int, ctime_ns: int) -> bool:
        """Returns whether a file or directory with these times may change unnoticed."""
        since_ns = self.started_ns - self.step_ns
        return (
            ctime_ns >= since_ns
            or since_ns <= mtime_ns < self.started_ns + CLOCK_ERROR_MAX_NS
            or (ctime_ns >= self.started_ns - COARSE_GRANULARITY_NS and has_whole_seconds(ctime_ns))
        )


def has_whole_seconds(time_ns: int) -> bool:
    """Returns whether a change time has no part of a second, as where there is no room for one.

    So are those of small inodes of ext4, which many a small or old volume has.
    """
    return time_ns % SECOND_NS == 0


def _decoded(field: bytes) -> bytes:
    if b"\\" not in field:
        return field
    return _ESCAPE.compiled.sub(lambda match: bytes([int(match.group(1), 8)]), field)


def mount_of(fs: FileSystem, path: str) -> int | None:
    """Returns through which mount a path is reached, or would be if it were there.

    A link that cannot be opened counts as reached through that of its directory.
    None if that cannot be known. Two moments can be compared as long as nothing that was mounted
    at the first was unmounted since: numbers are used again.
    """
    while True:
        try:
            fd = fs.open_any(path)
        except (FileNotFoundError, NotADirectoryError, Unsupported):
            if path == (above := os.path.dirname(path)):
                return None
            path = above
            continue
        except OSError:
            return None
        try:
            return fs.mount_id(fd)
        except OSError:  # what is mounted there does not answer
            return None
        finally:
            fs.close(fd)


class Mounts:
    """The mounts of this process, as they were when the object was made."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._kinds: dict[bytes, str] = {}
        self._devices: dict[bytes, tuple[int, int]] = {}
        if not LISTS_MOUNTS:
            return
        try:
            lines = read_file(fs, MOUNT_LIST, 64 << 20).splitlines()
        except OSError:
            return
        for line in lines:
            fields = line.split(b" ")
            if b"-" in fields and len(fields) > 6:
                point, kind = _decoded(fields[4]), fields[fields.index(b"-") + 1]
                self._kinds[point] = kind.decode("ascii", "replace")
                major, minor = fields[2].split(b":")
                self._devices[point] = int(major), int(minor)

    def below(self, root: bytes) -> frozenset[bytes]:
        """Returns the mount points below a real path, as tree paths."""
        prefix = root.rstrip(b"/") + b"/"
        return frozenset(
            point[len(prefix) :]
            for point in self._kinds
            if point.startswith(prefix) and point != prefix
        )

    def is_point(self, path: bytes) -> bool:
        """Returns whether something is mounted at a real path, as far as it is known."""
        if self._kinds:
            return path in self._kinds
        try:
            above = self._fs.lstat(os.path.dirname(path))
            return self._fs.lstat(path).st_dev != above.st_dev
        except OSError:
            return False

    def crosses(self, path: bytes, points: frozenset[bytes], *, other_device: bool) -> bool:
        """Returns whether a directory of the tree is a mount point."""
        return path in points if self._kinds else other_device

    def kind(self, path: str) -> str | None:
        """Returns the type of the file system that holds a real path, or None."""
        return self._kinds.get(self._point_above(path))

    def device(self, path: str) -> tuple[int, int] | None:
        """Returns the device of the file system that holds a real path, or None.

        Major and minor number. On btrfs lstat(2) tells another for each subvolume.
        """
        return self._devices.get(self._point_above(path))

    def _point_above(self, path: str) -> bytes:
        """Returns the nearest mount point at or above a real path, or nothing."""
        point = os.fsencode(path)
        while point not in self._kinds:
            if point in (b"/", b""):
                return b""
            point = os.path.dirname(point)
        return point

    def granularity_ns(self, root: str) -> int:
        """Returns the step of file times on the file system that holds a real path.

        A single file may have a coarser one: see :func:`has_whole_seconds`.
        """
        precise = self.kind(root) in _PRECISE
        return PRECISE_GRANULARITY_NS if precise else COARSE_GRANULARITY_NS
