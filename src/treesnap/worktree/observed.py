"""What a walk saw, for checking later that nobody changed it meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from treesnap import treepath
from treesnap.codec.journal import FileKey
from treesnap.codec.statcache import Observation, decode_observations, encode_observations
from treesnap.fs.base import FileSystem
from treesnap.worktree.directory import DirectoryChain
from treesnap.worktree.ignore import Exclusions
from treesnap.worktree.listing import list_directory
from treesnap.worktree.statcache import StatCache


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
            self._decoded = (directory, decode_observations(packed) if packed else {})
        seen = self._decoded[1].get(name)
        return FileKey._make(seen[1:]) if seen is not None else None

    def is_unchanged_below(self, fs: FileSystem, fd: int, path: bytes) -> bool:
        """Returns whether a directory, now open as ``fd``, still holds what was seen at ``path``."""
        encoding = sys.getfilesystemencoding()
        pending: list[tuple[list[bytes], bytes]] = [([], path)]
        with DirectoryChain(fs, fd) as chain:
            while pending:
                names, directory = pending.pop()
                listing = list_directory(
                    fs, chain.open_names(names), directory, Exclusions(), None, encoding
                )
                if encode_observations(listing.observations) != self._packed(directory):
                    return False
                for item in listing.observations:
                    if item[1] & 0o170000 == 0o040000:
                        below = treepath.join(directory, item[0])
                        pending.append(([*names, item[0]], below))
        return True
