"""File systems on which names that differ in case are one name, such as exfat and vfat.

They keep the case of a name, and find it in any other case. So a name that a look finds may be
spelled otherwise; a listing of the directory shows how.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from treesnap.core.fs.base import FileSystem
from treesnap.core.model import treepath
from treesnap.core.model.errors import ErrorCode, Refused, quoted


def is_folding(fs: FileSystem, fd: int, name: bytes) -> bool:
    """Returns whether a directory has a name, which is there, in the other case as well.

    Costs one look. Two files on another file system may look the same, if they are links of each
    other. Without letters in the name nothing can be told.
    """
    other = os.fsencode(os.fsdecode(name).swapcase())
    if other == name:
        return False
    try:
        status = fs.lstat(other, dir_fd=fd)
        own = fs.lstat(name, dir_fd=fd)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (own.st_dev, own.st_ino)


def spelled(fs: FileSystem, fd: int, name: bytes) -> bytes | None:
    """Returns another name in a directory that a look at this one finds, or None."""
    names = [os.fsencode(text) for text in fs.list_names(fd)]
    if name in names:
        return None
    own_form = folded(name)
    return next((other for other in names if folded(other) == own_form), None)


def folded(name: bytes) -> str:
    """Returns what names that differ in case have in common, as far as can be known."""
    return os.fsdecode(name).casefold()


def with_one_name(paths: Iterable[bytes]) -> list[list[bytes]]:
    """Returns groups of two or more paths of one directory that differ in case alone."""
    groups: dict[tuple[bytes, str], list[bytes]] = {}
    for path in paths:
        directory, name = treepath.split(path)
        groups.setdefault((directory, folded(name)), []).append(path)
    return [group for group in groups.values() if len(group) > 1]


def collision(one: bytes, other: bytes) -> Refused:
    """Returns the error for two paths that cannot both be there."""
    return Refused(
        f"{quoted(one)} and {quoted(other)} are one name on this file system, which does "
        "not "
        "tell upper from lower case",
        code=ErrorCode.NAMES_COLLIDE,
        path=other,
    )
