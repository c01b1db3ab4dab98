"""Looks for changes in a large tree from several processes, before it is walked.

Each process lists some of the directories and compares each with its cached row in one go. The
walk then looks again at every name that differs, and at no other. So a helper reports only paths,
and one that fails leaves its directories to the walk.

A name also counts as changed when its row alone cannot prove the contrary: it is racy, or a file
that is mapped for writing. So does all of a directory that has exclusions, or files with other
links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from stat import S_ISDIR

from treesnap.core.codec.statcache import Row, decode_observations, is_observed
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.forked import Work, helper_count, share_out
from treesnap.core.model import treepath
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.worktree.directory import DirectoryChain
from treesnap.core.worktree.scan.ignore import NO_RULES, Exclusions
from treesnap.core.worktree.scan.listing import DirectoryListing, PathTree, list_directory
from treesnap.core.worktree.scan.mapped_files import names_of
from treesnap.core.worktree.scan.statcache import StatCache, subdirectories

_LOOKS_SHARE_MAX = 8
"""Where more than one of so many names differs, the walk lists the directory: that costs less time
and memory than as many paths."""
ROWS_MIN = 1024
"""Cached rows from which on other processes help: starting one takes milliseconds."""
_ITEMS_EACH = 8
_RUN_COUNT = 64
"""Directories that are looked at without what is below them, in one part of the work."""

_NAME, _NAMES, _WHOLE = range(3)
Finding = tuple[int, bytes]
"""A path, and what is to be looked at: it alone, a directory's own names, or all below it."""


class _WorkItem(NamedTuple):
    """Directories to look at."""

    paths: Sequence[bytes]
    is_deep: bool
    """Whether everything below them belongs to the item."""
    weight: int


def parallel_scan(
    fs: FileSystem, root_fd: int, cache: StatCache, mapped: frozenset[int]
) -> PathTree | None:
    """Returns what differs from the rows of a cache, or None when helpers are of no use.

    ``mapped`` are inode numbers of files that count as changed. The root itself is always to be
    looked at, and everything in which it differs.
    """
    cached = cache.find(b"")
    helpers = helper_count() if cache.base.count >= ROWS_MIN else 0
    if cached is None or cached[0].rules != NO_RULES or not helpers:
        return None
    totals = cached[0].totals
    weight_max = (totals.files + totals.directories) // (_ITEMS_EACH * (helpers + 1))
    changed = PathTree(is_listed=True)

    chain = DirectoryChain(fs, root_fd)

    def look(item: _WorkItem) -> list[Finding]:
        return list(_looked(fs, chain, cache, mapped, item))

    def note(findings: list[Finding]) -> None:
        for meant, path in findings:
            node = changed.at(path)
            node.is_whole |= meant == _WHOLE
            node.is_listed |= meant == _NAMES

    with chain:
        share_out(
            list(_work_items(cache, cached[0], weight_max)),
            lambda item: item.weight,
            helpers,
            Work(
                here=lambda item: note(look(item)),
                there=look,
                take=lambda _, findings: note(findings),
                again=lambda item: note(
                    [(_WHOLE if item.is_deep else _NAMES, path) for path in item.paths]
                ),
            ),
        )
    return changed


def _work_items(cache: StatCache, root: Row, weight_max: int) -> Iterator[_WorkItem]:
    """Yields all that is below the root, in parts of at most some weight if possible.

    Of directories that are divided, those that lie near each other are one part.
    """
    divided: list[bytes] = []
    pending = [(b"", root)]
    while pending:
        path, row = pending.pop()
        try:
            names = subdirectories(row)
        except Corrupt:
            continue  # nothing in it counts as known, so that all below it is walked
        for name in names:
            below = treepath.join(path, name)
            cached = cache.find(below)
            if cached is None:
                yield _WorkItem([below], is_deep=True, weight=1)
                continue
            totals = cached[0].totals
            weight = totals.files + totals.directories + totals.others + 1
            if weight <= weight_max or not totals.directories:
                yield _WorkItem([below], is_deep=True, weight=weight)
                continue
            pending.append((below, cached[0]))
            divided.append(below)
            if len(divided) == _RUN_COUNT:
                yield _WorkItem(divided, is_deep=False, weight=len(divided))
                divided = []
    if divided:
        yield _WorkItem(divided, is_deep=False, weight=len(divided))


def _looked(
    fs: FileSystem,
    chain: DirectoryChain,
    cache: StatCache,
    mapped: frozenset[int],
    item: _WorkItem,
) -> Iterator[Finding]:
    """Yields what differs in some directories; raises nothing but what ends a process."""
    nothing = Exclusions()
    pending = [*reversed(item.paths)]
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
        yield from _differing(row, listing, names_of(mapped, listing.observations))
        if item.is_deep:
            names = subdirectories(row, listing.observations)
            pending += [treepath.join(path, name) for name in reversed(names)]


def _differing(row: Row, listing: DirectoryListing, mapped: Iterable[bytes]) -> Iterator[Finding]:
    """Yields what differs in one directory from its row; ``mapped`` are names that always do.

    A directory that was not captured has no rows below it that count.
    """
    if row.linked or listing.linked:
        yield _NAMES, row.path
        return
    names = {*row.racy, *mapped}
    now = before = listing.observations
    try:
        if not is_observed(row.observations, now):
            before = list(decode_observations(row.observations).values())
            names.update(item[0] for item in {*before} ^ {*now})
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
