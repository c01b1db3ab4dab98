"""Building a fork: files that share their blocks with an equal tree, and a stat cache of the new.

What a live file holds is known from the stat cache alone, as a capture knows it: the last capture
read it, and ``lstat`` still says the same. Such a file is cloned, and looked at again after that.
When it differs then, what was cloned may be something else: it is thrown away, and the file is
built from the store. A clone is of one moment, and a program that writes changes the time of a
file before its bytes; so what looks the same afterwards was the same when it was cloned.

The rows of the new tree's stat cache are made from the finished directories, while no other process
can reach them. So none of them is racy, provided that the clock has gone on before the tree is
reachable; the caller waits for that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from stat import S_ISREG

from treesnap.core.codec.reader import TreeReader
from treesnap.core.codec.statcache import (
    PlainObservation,
    Row,
    decode_observations,
    encode_observations,
)
from treesnap.core.fs.base import FileSystem, Place, Unsupported
from treesnap.core.fs.record_locks import close_after_reading, open_for_reading
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import Any
from treesnap.core.worktree.directory import DirectoryChain, open_directory
from treesnap.core.worktree.scan.ignore import Exclusions
from treesnap.core.worktree.scan.listing import list_directory
from treesnap.core.worktree.scan.statcache import RowGatherer, StatCache, StatCacheBuilder

_OURS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that would stop the copy that replaces a clone as well."""
_OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)

_Known = dict[bytes, tuple[Entry, PlainObservation]]


def can_share(fs: FileSystem, source: str, target: str) -> bool:
    """Returns whether a file in one directory may share blocks with one in another.

    Asks with two files that have no name. True where that cannot be asked: each file is tried.
    """
    try:
        with _unnamed(fs, target) as fd, _unnamed(fs, source) as source_fd:
            try:
                fs.share_content(fd, source_fd, fd)
            except Unsupported:
                return False
    except OSError:
        return True
    return True


@contextmanager
def _unnamed(fs: FileSystem, directory: str) -> Iterator[int]:
    fd = fs.open_unnamed(directory)
    try:
        yield fd
    finally:
        fs.close(fd)


class CloneSource:
    """An open tree with its stat cache: its files that hold the wanted content are cloned.

    ``mapped`` are the inodes of files that programs may change with no sign of it.
    """

    def __init__(
        self,
        fs: FileSystem,
        root_fd: int,
        cache: StatCache,
        trees: TreeReader,
        mapped: frozenset[int] = frozenset(),
    ) -> None:
        self._fs = fs
        self._chain = DirectoryChain(fs, root_fd)
        self._cache = cache
        self._trees = trees
        self._mapped = mapped
        self._is_possible = True
        self._directory: bytes | None = None
        self._known: _Known = {}
        self._dir_fd = -1

    def close(self) -> None:
        """Closes the directories that are open."""
        self._chain.forget()

    def fill(self, fd: int, place: Place, entry: Entry, path: bytes) -> bool:
        """Makes an empty file share the blocks of the one at the same path, if that is equal.

        Otherwise it stays empty. Costs four calls. Raises OSError where no copy could be made
        either.
        """
        if not self._is_possible:
            return False
        directory, name = treepath.split(path)
        if directory != self._directory:
            self._enter(directory)
        known_file = self._known.get(name)
        if (
            known_file is None
            or known_file[0].content != entry.content
            or known_file[0].size != entry.size
        ):
            return False
        try:
            source_fd = open_for_reading(self._fs, name, _OPEN_FILE, dir_fd=self._dir_fd)
        except OSError as error:
            if error.errno in _OURS:
                raise
            return False
        try:
            self._fs.share_content(fd, source_fd, place)
            stat = self._fs.fstat(source_fd)
        except OSError as error:
            if error.errno in _OURS:
                raise
            self._is_possible = not isinstance(error, Unsupported)
            return False
        finally:
            close_after_reading(self._fs, source_fd)
        if known_file[1][1:] == (
            stat.st_mode,
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            stat.st_ino,
            stat.st_dev,
        ):
            return True
        self._fs.truncate(fd, 0)
        return False

    def _enter(self, directory: bytes) -> None:
        """Looks up what is known of the files in a directory; nothing where there is no row."""
        self._directory, self._known = directory, {}
        cached = self._cache.find(directory)
        if cached is None:
            return
        row = cached[0]
        # Without its tree, which gc may just have removed, or its directory: nothing is known.
        with suppress(Corrupt, OSError):
            seen = decode_observations(row.observations)
            self._dir_fd = self._chain.open_names(treepath.components(directory))
            self._known = {
                entry.name: (entry, seen[entry.name])
                for entry in self._trees.entries(row.tree_id)
                if entry.name in seen
                and S_ISREG(seen[entry.name][1])
                and entry.name not in row.racy
                and seen[entry.name][5] not in self._mapped
            }


class ForkCounts(NamedTuple):
    """How the files of a fork were made; empty ones are in neither number."""

    cloned_files: int = 0
    cloned_bytes: int = 0
    copied_files: int = 0
    copied_bytes: int = 0


class ForkBuild:
    """Clones files while a tree is built, and makes the rows of its stat cache.

    ``rules_above`` returns the exclusions of the directory above a path. With ``is_linked`` there
    are hard links, which are made later: then the rows are made by :meth:`observe`.
    """

    def __init__(
        self,
        fs: FileSystem,
        sources: Sequence[CloneSource],
        trees: TreeReader,
        builder: StatCacheBuilder,
        rules_above: Callable[[bytes], Exclusions],
        *,
        is_linked: bool,
    ) -> None:
        self._fs = fs
        self._sources = sources
        self._trees = trees
        self._rows: StatCacheBuilder = builder
        self._rules_above = rules_above
        self._is_linked = is_linked
        self._cloned_files = self._cloned_bytes = 0  # a number for each: they are counted per file
        self._copied_files = self._copied_bytes = 0
        self._degraded: dict[bytes, set[bytes]] = {}

    def fill(self, fd: int, place: Place, entry: Entry, path: bytes) -> bool:
        """Clones a file from the first source that has it; returns whether one did."""
        size = entry.size
        if not size:
            return False
        for source in self._sources:
            if source.fill(fd, place, entry, path):
                self._cloned_files += 1
                self._cloned_bytes += size
                return True
        self._copied_files += 1
        self._copied_bytes += size
        return False

    @property
    def counts(self) -> ForkCounts:
        """How the files were made until now."""
        return ForkCounts(
            self._cloned_files, self._cloned_bytes, self._copied_files, self._copied_bytes
        )

    def _count(self, counts: ForkCounts) -> None:
        self._cloned_files += counts.cloned_files
        self._cloned_bytes += counts.cloned_bytes
        self._copied_files += counts.copied_files
        self._copied_bytes += counts.copied_bytes

    def degraded(self, path: bytes) -> None:
        """Notes that a path is not as its entry says: the next capture looks at it again."""
        directory, name = treepath.split(path)
        self._degraded.setdefault(directory, set()).add(name)

    def finished(self, fd: int, directory: Entry, path: bytes) -> None:
        """Makes the row of a directory."""
        if not self._is_linked:
            self._add_row(fd, directory, path)

    def _add_row(self, fd: int, directory: Entry, path: bytes) -> None:
        # A directory of btrfs that was opened before its files were made does not list them.
        with open_directory(self._fs, b".", fd) as opened_fd:
            listing = list_directory(self._fs, opened_fd, path, self._rules_above(path))
        if listing.hidden:
            return  # it holds what is excluded by now: the next capture takes that out
        self._rows.add(
            Row(
                path=path,
                tree_id=directory.tree_id,
                totals=self._trees.totals(directory.tree_id),
                rules=listing.exclusions.fingerprint,
                racy=tuple(sorted(self._degraded.get(path, ()))),
                linked=bool(listing.linked),
                skipped=(),
                observations=encode_observations(listing.observations),
            )
        )

    def observe(self, root_fd: int, root: Entry) -> None:
        """Makes the rows of a finished tree with hard links."""
        if not self._is_linked:
            return
        with DirectoryChain(self._fs, root_fd) as chain:
            pending = [(treepath.ROOT, root)]
            while pending:
                path, directory = pending.pop()
                self._add_row(chain.open(path), directory, path)
                pending += [
                    (treepath.join(path, entry.name), entry)
                    for entry in self._trees.entries(directory.tree_id)
                    if entry.is_directory
                ]

    def restart(self) -> None:
        """Begins anew in a helper."""
        self._rows = RowGatherer(self._fs)
        self._cloned_files = self._cloned_bytes = 0
        self._copied_files = self._copied_bytes = 0
        self._degraded = {}

    def report(self) -> Any:
        """Returns what was counted and noted since."""
        assert isinstance(self._rows, RowGatherer)
        degraded = [
            treepath.join(directory, name)
            for directory, names in self._degraded.items()
            for name in names
        ]
        return tuple(self.counts), self._rows.rows, degraded

    def take(self, report: Any) -> None:
        """Takes what a helper counted and noted."""
        counts, rows, degraded = report
        self._count(ForkCounts(*counts))
        self._rows.take(rows)
        for path in degraded:
            self.degraded(path)
