"""One step of a restore that is being carried out, and what it expects to find."""

from __future__ import annotations

import os
from enum import IntEnum

from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry
from treesnap.core.model.named_tuple import NamedTuple


class Action(IntEnum):
    """What a step does to one path."""

    PUT = 1
    """Moves a staged file or directory to the path; what was there is kept aside."""
    REMOVE = 2
    """Moves what is at the path aside."""
    METADATA = 3
    """Changes metadata in place."""


FileIdentity = tuple[int, int]
"""Device and inode: on btrfs files of different subvolumes have the same inode number."""


class FileKey(NamedTuple):
    """Everything by which a change of a file is noticed."""

    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @property
    def identity(self) -> FileIdentity:
        """Which file it is, whatever its name."""
        return self.device, self.inode


UNSEEN = FileKey(0, 0, 0, 0, 0, 0)
"""The key of a file that is known to exist and was not examined; no file has this key."""


def key_of(stat: os.stat_result) -> FileKey:
    """Returns everything by which a change of a file is noticed."""
    return FileKey(
        stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev
    )


class RestoreStep(NamedTuple):
    """One step; steps of a restore do not depend on each other's order."""

    action: Action
    path: bytes
    staged: bytes
    """Name in the staging directory: of what is put, or of what is kept aside."""
    stage: bytes = treepath.ROOT
    """Directory that holds the staging directory, on the same file system as the path."""
    inode: int = 0
    """Inode of what is put."""
    before: FileKey | None = None
    """What is at the path before, or None when nothing is."""
    old: Entry | None = None
    """Metadata before, for METADATA."""
    new: Entry | None = None
    """Metadata afterwards, for METADATA; what is put, for PUT."""


def staged_name(number: int) -> bytes:
    """Returns the name in the staging directory of what is put as the n-th path."""
    return b"n%d" % number


def kept_name(number: int) -> bytes:
    """Returns the name in the staging directory of what is removed as the n-th path."""
    return b"o%d" % number


def aside_name(staged: bytes) -> bytes:
    """Returns the name of what is kept aside where the file system cannot exchange."""
    return b"a" + staged


def number_of(name: bytes) -> int | None:
    """Returns which path something in a staging directory belongs to, or None."""
    digits = name.lstrip(b"ano")
    return int(digits) if digits.isdigit() and len(digits) <= 18 else None
