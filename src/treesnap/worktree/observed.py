"""What a walk saw, for checking later that nobody changed it meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from stat import S_ISDIR
from typing import Any

from treesnap import treepath
from treesnap.codec.statcache import Observation, decode_observations, encode_observations
from treesnap.errors import Corrupt
from treesnap.fs.base import FileSystem
from treesnap.worktree.directory import DirectoryChain
from treesnap.worktree.ignore import Exclusions, UnreadableRules
from treesnap.worktree.listing import list_directory
from treesnap.worktree.statcache import StatCache
from treesnap.worktree.step import FileIdentity, FileKey


class Observed:
    """The observations of one walk: those it recorded, and those of unchanged cached rows."""

    def __init__(self, recorded: Mapping[bytes, bytes], cache: StatCache | None) -> None:
        self._recorded = recorded
        self._cache = cache
        self._decoded: tuple[bytes, dict[bytes, Observation]] | None = None

    def _packed(self, directory: bytes) -> bytes | None:
        packed = self._recorded.get(directory)
        if packed is None and self._cache is not None:
            found = self._cache.find(directory)
            packed = found[0].observations if found is not None else None
        return packed

    def key(self, path: bytes) -> FileKey | None:
        """Returns what was seen at a path, or None when nothing was there."""
        directory, name = treepath.split(path)
        if self._decoded is None or self._decoded[0] != directory:
            packed = self._packed(directory)
            self._decoded = (directory, _decoded(packed) if packed else {})
        seen = self._decoded[1].get(name)
        return FileKey._make(seen[1:]) if seen is not None else None

    def is_unchanged_below(
        self,
        fs: FileSystem,
        fd: int,
        path: bytes,
        touched: AbstractSet[FileIdentity],
        mapped: AbstractSet[int],
    ) -> bool:
        """Returns whether a directory, open as ``fd``, is sure to hold what was seen at ``path``.

        ``touched`` has the files that the restore itself moves: where such a file has
        another name in the directory, its ctime there is another by now. ``mapped`` has
        the inodes of files whose metadata proves nothing.
        """
        encoding = sys.getfilesystemencoding()
        pending: list[tuple[list[bytes], bytes]] = [([], path)]
        with DirectoryChain(fs, fd) as chain:
            while pending:
                names, directory = pending.pop()
                try:
                    listing = list_directory(
                        fs, chain.open_names(names), directory, Exclusions(), None, encoding
                    )
                except UnreadableRules:  # or else it would not have been seen
                    return False
                if not _are_same(listing.observations, self._packed(directory), touched):
                    return False
                for item in listing.observations:
                    if item[5] in mapped:
                        return False
                    if S_ISDIR(item[1]):
                        below = treepath.join(directory, item[0])
                        pending.append(([*names, item[0]], below))
        return True


def _decoded(packed: bytes) -> dict[bytes, Observation]:
    """Returns what was seen by name; of a cached row that says nonsense, nothing was seen."""
    try:
        return decode_observations(packed)
    except Corrupt:
        return {}


def _are_same(now: list[Any], packed: bytes | None, touched: AbstractSet[FileIdentity]) -> bool:
    """Returns whether observations are as they were, ctimes of touched files aside."""
    if packed is None or encode_observations(now) == packed:
        return packed is not None
    before = list(_decoded(packed).values())
    return bool(before) and [_without_ctime(item, touched) for item in now] == [
        _without_ctime(item, touched) for item in before
    ]


def _without_ctime(item: Any, touched: AbstractSet[FileIdentity]) -> tuple[Any, ...]:
    seen = Observation._make(item)
    return seen._replace(ctime_ns=0) if (seen.device, seen.inode) in touched else seen
