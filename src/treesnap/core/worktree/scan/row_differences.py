"""Finds where a tree differs from the rows of a stat cache, before it is walked.

Each directory is listed and compared with its row in one go. The walk then looks again at every
name that differs, and at no other. The module in C does this without an object for each name, on
two threads in a large tree; what it is not certain of it gives back, and is found out here.

A name also counts as changed when its row alone cannot prove the contrary: it is racy, or a file
that is mapped for writing. So does all of a directory that has exclusions, or files with other
links. What is reported may be more than what differs, and is never less.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from stat import S_ISDIR

from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.codec.message import LONG_ARRAY_LENGTH_MAX, unpack
from treesnap.core.codec.statcache import (
    PlainObservation,
    Row,
    decode_observations,
    is_observed,
)
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.native import Native, accelerator
from treesnap.core.fs.posix import core_count
from treesnap.core.model import treepath
from treesnap.core.model.errors import Corrupt
from treesnap.core.worktree.directory import DirectoryChain
from treesnap.core.worktree.scan.ignore import IGNORE_FILE, NO_RULES, Exclusions
from treesnap.core.worktree.scan.listing import PathTree, list_directory
from treesnap.core.worktree.scan.mapped_files import names_of
from treesnap.core.worktree.scan.statcache import StatCache, subdirectories

ROWS_MIN = 1024
"""Cached rows from which on a comparison in Python takes less time than it saves."""
THREADS_MAX = 2
"""Of a comparison in C, of so many rows: a second one saves a third of the time."""
_LOOKS_SHARE_MAX = 8
"""Where more than one of so many names differs, the walk lists the directory: that costs less time
and memory than as many paths."""

_DIFFERS, _LOOK, _LOOK_BELOW, _WHOLE_BELOW = range(4)
"""What the module in C says of a directory: it differs from its row; it has to be looked at; it and
all below it; it has no row, or cannot be listed."""
_REPORT = struct.Struct("=BII")
_NAME, _NAMES, _WHOLE = range(3)
Finding = tuple[int, bytes]
"""A path, and what is to be looked at: it alone, a directory's own names, or all below it."""


def row_differences(
    fs: FileSystem,
    root_fd: int,
    cache: StatCache,
    exclusions: Exclusions,
    mapped: frozenset[int],
) -> PathTree | None:
    """Returns what differs from the rows of a cache, or None when that would be of no use.

    ``exclusions`` are those of the walk, ``mapped`` inode numbers of files that count as changed.
    The root itself is always to be looked at, and everything in which it differs. Costs an open
    for each directory and an lstat for each name. Raises KeyboardInterrupt, MemoryError; what
    cannot be looked at is reported.
    """
    cached = cache.find(b"")
    native = accelerator(fs)
    if cached is None:
        return None
    root = cached[0]
    if native is None and (root.rules != NO_RULES or exclusions or cache.base.count < ROWS_MIN):
        return None
    if native is not None and root.rules != _rules_in_force(fs, root_fd, exclusions):
        return None
    changed = PathTree(is_listed=True)
    with DirectoryChain(fs, root_fd) as chain:
        if native is None:
            findings = _looked(fs, chain, cache, mapped, b"", is_deep=True)
        else:
            findings = _looked_natively(native, fs, root_fd, chain, cache, mapped)
        for meant, path in findings:
            if not path:
                if meant == _WHOLE:
                    return None
                continue
            node = changed.at(path)
            node.is_whole |= meant == _WHOLE
            node.is_listed |= meant == _NAMES
    return changed


def _rules_in_force(fs: FileSystem, root_fd: int, exclusions: Exclusions) -> bytes | None:
    """Returns the fingerprint of what is excluded in the root now, or None where it is not known.

    Where it is that of the root's row, and no ignore file changed, it is that of every row.
    """
    try:
        listing = list_directory(fs, root_fd, b"", exclusions)
    except OSError:
        return None
    return None if listing.is_unreadable else listing.exclusions.fingerprint


def _looked_natively(
    native: Native,
    fs: FileSystem,
    root_fd: int,
    chain: DirectoryChain,
    cache: StatCache,
    mapped: frozenset[int],
) -> Iterator[Finding]:
    """Yields what differs in a tree, as the module in C found."""
    is_large = cache.base.count >= ROWS_MIN
    reports = native.compare(
        root_fd,
        IGNORE_FILE,
        STAGE_PREFIX,
        (b"", 0, 0) if cache.recent is None else cache.recent.table,
        cache.base.table,
        struct.pack(f"<{len(mapped)}Q", *sorted(mapped)),
        min(THREADS_MAX, core_count()) if is_large else 1,
    )
    for path in cache.removed:  # their rows are void, which the module does not know
        yield _WHOLE, path
    for path, kind, packed in sorted(_reported(reports)):
        cached = cache.find(path)
        if kind == _WHOLE_BELOW or cached is None:
            yield _WHOLE, path
        elif kind == _DIFFERS:
            yield from _differing(cached[0], packed)
        elif kind == _LOOK and cached[0].rules != NO_RULES:
            yield _NAMES, path
        else:
            yield from _looked(fs, chain, cache, mapped, path, is_deep=kind == _LOOK_BELOW)


def _reported(reports: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yields path, kind and observations of each directory that the module in C reports."""
    place = 0
    while place < len(reports):
        kind, path_size, packed_size = _REPORT.unpack_from(reports, place)
        path_at = place + _REPORT.size
        packed_at = path_at + path_size
        place = packed_at + packed_size
        yield reports[path_at:packed_at], kind, reports[packed_at:place]


def _looked(
    fs: FileSystem,
    chain: DirectoryChain,
    cache: StatCache,
    mapped: frozenset[int],
    top: bytes,
    *,
    is_deep: bool,
) -> Iterator[Finding]:
    """Yields what differs in a directory, and with ``is_deep`` in all below it."""
    nothing = Exclusions()
    pending = [top]
    while pending:
        path = pending.pop()
        cached = cache.find(path)
        if cached is None:
            yield _WHOLE, path
            continue
        row = cached[0]
        try:
            listing = list_directory(fs, chain.open(path), path, nothing)
        except OSError:
            yield _WHOLE, path
            continue
        if row.rules != NO_RULES or listing.exclusions:
            yield _WHOLE, path
            continue
        observations = listing.observations
        if row.linked or listing.linked or listing.warnings:
            yield _NAMES, path
        else:
            names = names_of(mapped, observations)
            yield from _compared(row, observations, {*row.racy, *names})
        if is_deep:
            names_below = subdirectories(row, observations)
            pending += [treepath.join(path, name) for name in reversed(names_below)]


def _differing(row: Row, packed: bytes) -> Iterator[Finding]:
    """Yields what differs in one directory, whose packed observations differ from its row's.

    They were packed by this process, and are taken for well formed.
    """
    try:
        now = list(unpack(packed, "observations", LONG_ARRAY_LENGTH_MAX, maps=False))
    except Corrupt:  # they are too many
        yield _NAMES, row.path
        return
    yield from _compared(row, now, set(), is_other=True)


def _compared(
    row: Row, now: list[PlainObservation], names: set[bytes], *, is_other: bool = False
) -> Iterator[Finding]:
    """Yields what differs in one directory from its row; ``names`` always do.

    A directory that was not captured has no rows below it that count. ``is_other`` says that
    something differs.
    """
    before: Sequence[PlainObservation] = now
    try:
        if is_other or not is_observed(row.observations, now):
            before = list(decode_observations(row.observations).values())
            names.update(_names_that_differ(before, now))
    except Corrupt:
        yield _NAMES, row.path
        return
    if not names:
        return
    if len(names) * _LOOKS_SHARE_MAX > len(now):
        yield _NAMES, row.path
        return
    captured = set(subdirectories(row, before))
    new = {item[0] for item in now if S_ISDIR(item[1]) and item[0] not in captured}
    for name in names:
        yield _WHOLE if name in new else _NAME, treepath.join(row.path, name)


def _names_that_differ(
    before: Sequence[PlainObservation], now: Sequence[PlainObservation]
) -> set[bytes]:
    """Returns the names that only one side has, or that were observed differently."""
    pairs = [(old, new) for old, new in zip(before, now, strict=False) if old != new]
    if len(before) == len(now) and all(old[0] == new[0] for old, new in pairs):
        return {old[0] for old, _ in pairs}  # as mostly, and without a hash of each
    return {item[0] for item in {*before} ^ {*now}}
