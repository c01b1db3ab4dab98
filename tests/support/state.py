"""What a tree looks like, read in the most naive way there is.

Shares no code with what it checks: whole paths, whole files, no cache.
"""

from __future__ import annotations

import os
import stat as stat_module
from dataclasses import dataclass, replace

from attributes import attributes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPath:
    """Everything about one path that a snapshot has to keep."""

    mode: int
    """Type and permission bits."""
    uid: int
    gid: int
    mtime_ns: int
    content: bytes
    """A file's bytes, a symbolic link's target; empty for everything else."""
    device: int
    """The device that a node stands for; 0 for everything else."""
    xattrs: tuple[tuple[str, bytes], ...]
    links: tuple[bytes, ...] = ()
    """All paths of the same file, itself included, when there are several."""


TreeState = dict[bytes, RecordedPath]
"""Every path below a root, and the root itself under the empty path."""


def tree_state(root: str | os.PathLike[str]) -> TreeState:
    """Returns the state of a tree, or an empty one when there is no such directory."""
    top = os.fsencode(root)
    if not os.path.lexists(top):
        return {}
    found: TreeState = {b"": _path_state(top)}
    inodes: dict[tuple[int, int], list[bytes]] = {}
    for directory, names, files in os.walk(top):
        for name in [*names, *files]:
            full = os.path.join(directory, name)
            path = full[len(top) + 1 :]
            found[path] = _path_state(full)
            stat = os.lstat(full)
            if not stat_module.S_ISDIR(stat.st_mode):
                inodes.setdefault((stat.st_dev, stat.st_ino), []).append(path)
    for paths in inodes.values():
        if len(paths) > 1:
            for path in paths:
                found[path] = replace(found[path], links=tuple(sorted(paths)))
    return found


def differences(found: TreeState, expected: TreeState) -> list[str]:
    """Returns a line for every path that differs; for the message of a failing test."""
    return [
        f"{path!r}: found {found.get(path)}, expected {expected.get(path)}"
        for path in sorted({*found, *expected})
        if found.get(path) != expected.get(path)
    ]


def _path_state(path: bytes) -> RecordedPath:
    stat = os.lstat(path)
    content = b""
    if stat_module.S_ISREG(stat.st_mode):
        fd = os.open(path, os.O_RDONLY)
        with os.fdopen(fd, "rb") as file:
            content = file.read()
    elif stat_module.S_ISLNK(stat.st_mode):
        content = os.readlink(path)
    return RecordedPath(
        mode=stat.st_mode,
        uid=stat.st_uid,
        gid=stat.st_gid,
        mtime_ns=stat.st_mtime_ns,
        content=content,
        device=stat.st_rdev,
        xattrs=attributes_of(path),
    )
