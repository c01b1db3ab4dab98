"""Hard-link groups: which names of a tree are the same file.

Trees know nothing of them, so that equal directories stay equal objects. A
snapshot has one table of its groups, stored like a file: a sequence of msgpack
arrays, each the sorted paths of one group, sorted by first path. Memory is one
entry per name that has another name.
"""

from __future__ import annotations

from typing import Any

from treesnap.codec.chunklist import Put
from treesnap.codec.message import pack, require, unpack_sequence
from treesnap.codec.reader import Get, read_content
from treesnap.errors import InvalidArgument
from treesnap.treepath import parse
from treesnap.worktree.content import store_bytes

TABLE_SIZE_MAX = 1 << 30
GROUP_LENGTH_MAX = 1 << 17
"""More names than any Linux file system allows for one file."""

Groups = dict[bytes, tuple[bytes, ...]]
"""Each path that has other names, with all names of its group, itself included."""


class LinkGroups:
    """Collects names by device and inode."""

    def __init__(self) -> None:
        self._paths: dict[tuple[int, int], list[bytes]] = {}

    def add(self, device: int, inode: int, path: bytes) -> None:
        """Notes one name of a file that has several."""
        self._paths.setdefault((device, inode), []).append(path)

    def store(self, put: Put) -> tuple[Any, ...] | None:
        """Stores the table and returns its content, or None when there is no group."""
        groups = sorted(tuple(sorted(paths)) for paths in self._paths.values() if len(paths) > 1)
        if not groups:
            return None
        return store_bytes(b"".join(pack(group) for group in groups), put)


def load_groups(content: tuple[Any, ...] | None, get: Get) -> Groups:
    """Returns the groups of a snapshot by path; raises Corrupt."""
    if content is None:
        return {}
    pieces = []
    size = 0
    for piece in read_content(content, get):
        size += len(piece)
        require(size <= TABLE_SIZE_MAX, "hard-link table", "it is too large")
        pieces.append(piece)
    groups: Groups = {}
    for group in unpack_sequence(b"".join(pieces), "hard-link table", GROUP_LENGTH_MAX):
        require(
            type(group) is tuple
            and len(group) > 1
            and all(type(path) is bytes for path in group)
            and list(group) == sorted(set(group)),
            "hard-link table",
            "a group is no list of paths",
        )
        for path in group:
            try:
                parse(path)
            except InvalidArgument as error:
                require(False, "hard-link table", str(error))
            require(path and path not in groups, "hard-link table", "a path occurs twice")
            groups[path] = group
    return groups
