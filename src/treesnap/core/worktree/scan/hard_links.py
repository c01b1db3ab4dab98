"""Hard-link groups: which names of a tree are the same file.

Tree objects do not contain them, so equal directories stay equal objects. A snapshot has one
table of its groups, stored like a file: a sequence of msgpack arrays, each the sorted paths of
one group, sorted by first path. Memory is one entry per name of a file with several names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from stat import S_ISDIR

from treesnap.core.codec.chunklist import Put
from treesnap.core.codec.message import pack, pack_items, require, unpack_groups
from treesnap.core.codec.reader import Get, read_segments
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.mounts import Mounts
from treesnap.core.model import treepath
from treesnap.core.model.entries import FileContent, ObjectKind
from treesnap.core.model.errors import Corrupt, InvalidArgument
from treesnap.core.model.ids import checksum
from treesnap.core.worktree.directory import open_chain
from treesnap.core.worktree.scan.file_reader import store_bytes, store_stream

GROUP_LENGTH_MAX = 1 << 31
"""More names than any Linux file system allows for one file."""
PATH_SIZE_MAX = 4 << 20
"""Bytes of one path: as deep as captures go, with the longest names."""

Groups = dict[bytes, tuple[bytes, ...]]
"""Each path of a file with several names, with all of these names."""


def distinct_groups(groups: Groups, paths: Iterable[bytes] | None = None) -> Groups:
    """Returns each group once, by its first name; with ``paths`` those of these names alone.

    A group is one object for all its names, so this costs a look at each name, where a set of the
    groups would cost the square of their number.
    """
    found = groups.values() if paths is None else (groups.get(path, ()) for path in paths)
    return {group[0]: group for group in {id(group): group for group in found}.values() if group}


def relinked_paths(old: Groups, new: Groups) -> set[bytes]:
    """Returns the names that are linked to different names in two states.

    Costs a look at each name: what holds for one name of a group holds for all of them.
    """
    found = set[bytes]()
    for one, other in ((old, new), (new, old)):
        for first, group in distinct_groups(one).items():
            if other.get(first) != group:
                found.update(group)
    return found


class LinkGroups:
    """Collects names by device and inode."""

    def __init__(self) -> None:
        self._paths: dict[tuple[int, int], list[bytes]] = {}
        self._link_counts: dict[tuple[int, int], int] = {}

    def add(self, device: int, inode: int, link_count: int, path: bytes) -> None:
        """Adds one name of a file that has several."""
        self._paths.setdefault((device, inode), []).append(path)
        self._link_counts[device, inode] = link_count

    @property
    def names(self) -> list[tuple[int, int, int, bytes]]:
        """All names, as :meth:`add` takes them."""
        return [
            (*identity, self._link_counts[identity], path)
            for identity, paths in self._paths.items()
            for path in paths
        ]

    def missing(self, paths: Iterable[bytes]) -> dict[tuple[int, int], int]:
        """Returns the files with these names, with how many names of each were not found."""
        listed = set(paths)
        return {
            identity: self._link_counts[identity] - len(names)
            for identity, names in self._paths.items()
            if len(names) < self._link_counts[identity] and not listed.isdisjoint(names)
        }

    def shared(self, *, is_broken_by_changes: bool = False) -> frozenset[bytes]:
        """Returns the names of files that must not be changed in place.

        These files have names that were not found. On an overlay, all files with several names
        are meant: a change under one name copies the file up from its layer, and the other names
        keep the old file.
        """
        return frozenset(
            path
            for identity, paths in self._paths.items()
            if is_broken_by_changes or len(paths) < self._link_counts[identity]
            for path in paths
        )

    def unfinished(self) -> bytes:
        """Returns a checksum of all groups of which not every name was found; empty for none.

        It changes when a name appears outside of what was walked.
        """
        groups = sorted(
            (*identity, self._link_counts[identity], len(paths))
            for identity, paths in self._paths.items()
            if len(paths) < self._link_counts[identity]
        )
        return checksum(pack(tuple(groups)), 16) if groups else b""

    def groups(self) -> Groups:
        """Returns the names of files that have several here, as :func:`load_groups` does."""
        groups: Groups = {}
        for paths in self._paths.values():
            if len(paths) > 1:
                group = tuple(sorted(paths))
                groups.update(dict.fromkeys(group, group))
        return groups

    def store(self, put: Put) -> FileContent | None:
        """Stores the table and returns its content, or None when there is no group."""
        return store_groups((paths for paths in self._paths.values() if len(paths) > 1), put)


def store_groups(groups: Iterable[Iterable[bytes]], put: Put) -> FileContent | None:
    """Stores the table of groups and returns its content, or None when there is no group."""
    rows = sorted(tuple(sorted(paths)) for paths in groups)
    return store_bytes(b"".join(map(pack, rows)), put) if rows else None


def store_sorted_groups(
    groups: Iterable[tuple[int, Iterable[bytes]]], put: Put
) -> FileContent | None:
    """Like :func:`store_groups`, with bounded memory.

    The groups come in the order of their first paths, each with the number of its paths, which
    come in order too.
    """
    pieces = (piece for length, paths in groups for piece in pack_items(length, paths))
    content, size = store_stream(pieces, put)
    return content if size else None


def load_groups(content: FileContent | None, get: Get) -> Groups:
    """Returns the groups of a snapshot by path; raises Corrupt."""
    if content is None:
        return {}
    groups: Groups = {}
    previous: tuple[bytes, ...] = ()
    for group in unpack_groups(
        _pieces(content, get),
        "hard-link table",
        length_max=GROUP_LENGTH_MAX,
        item_size_max=PATH_SIZE_MAX,
    ):
        require(len(group) > 1, "hard-link table", "a group has no two names")
        require(group > previous, "hard-link table", "its groups are not in order")
        previous = group
        for path in group:
            try:
                treepath.parse(path)
            except InvalidArgument as error:
                raise Corrupt(f"Stored hard-link table is not valid: {error}") from error
            require(path not in groups, "hard-link table", "a path occurs twice")
            groups[path] = group
    return groups


def _pieces(content: FileContent, get: Get) -> Iterator[bytes]:
    """Yields the bytes of a table; a table has no holes, which would cost nothing to store."""
    if content.data is not None:
        yield content.data
    for segment in read_segments(content, get):
        require(segment.id is not None, "hard-link table", "it has a hole")
        assert segment.id is not None
        data = get(ObjectKind.CHUNK, segment.id)
        require(len(data) == segment.size, "hard-link table", "a chunk has a wrong size")
        yield data


def find_names(
    fs: FileSystem,
    root: str,
    tops: Iterable[bytes],
    grouped: frozenset[bytes],
    missing: Mapping[tuple[int, int], int],
) -> frozenset[bytes]:
    """Returns names of files, by device and inode, at and below some paths of a root.

    ``missing`` says how many names of each there are beside the ``grouped`` ones, at most. What
    cannot be looked at has none, nor has what is mounted. Costs a look at each name until all
    are found.
    """
    left = dict(missing)
    other_names: set[bytes] = set()
    mount_points = Mounts(fs).below(os.fsencode(root))
    pending = sorted(set(tops) - mount_points, reverse=True)
    with open_chain(fs, root) as chain:
        while pending and left:
            path = pending.pop()
            with suppress(OSError):
                above, name = treepath.split(path)
                stat = fs.lstat(name, dir_fd=chain.open(above)) if path else None
                if stat is None or S_ISDIR(stat.st_mode):
                    names = fs.list_names(chain.open(path))
                    below = {treepath.join(path, os.fsencode(text)) for text in names}
                    pending += sorted(below - mount_points, reverse=True)
                    continue
                identity = (stat.st_dev, stat.st_ino)
                if identity not in left or path in grouped:
                    continue
                other_names.add(path)
                left[identity] -= 1
                if not left[identity]:
                    del left[identity]
    return frozenset(other_names)
