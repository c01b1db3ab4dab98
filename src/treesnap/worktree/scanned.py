"""Records of the walk: its settings, its result, and one directory on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from treesnap.codec.reader import TreeReader
from treesnap.codec.statcache import Row
from treesnap.model import (
    Entry,
    EntryKind,
    IgnoreRules,
    ObjectId,
    Skipped,
    SkipReason,
    Totals,
    Xattrs,
)
from treesnap.worktree.changed import Changed
from treesnap.worktree.ignore import Exclusions
from treesnap.worktree.listing import Scope
from treesnap.worktree.statcache import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSettings:
    """Everything that a walk depends on, besides the tree itself."""

    root: str
    scope: tuple[bytes, ...] | None = None
    rules: tuple[IgnoreRules, ...] = ()
    heeds_ignore_files: bool = True
    """Whether ignore files in the tree leave anything out."""
    cached_rules_hold: bool = True
    """Whether a name that the stat cache leaves out is left out now, as long as it and the
    ignore files above it have not changed."""
    revealed: frozenset[bytes] = frozenset()
    """Directories below which nothing is excluded."""
    store: tuple[int, int] | None = None
    """Device and inode of the store, which is never captured."""
    started_ns: int
    """The time when the walk began, or somebody else looked what is mapped."""
    changed: Changed | None = None
    """What may have changed since the walk of the stat cache; None when nobody knows."""
    mapped: frozenset[int] | None = None
    """Inode numbers of files that are mapped for writing; None when nobody has looked."""
    written: frozenset[int] = frozenset()
    """Inode numbers of files to read whatever their times say."""
    noted_rules: tuple[IgnoreRules, ...] = ()
    """The exclusions that were in force in that walk, when it is known what changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """A captured root."""

    root: Entry
    links: tuple[Any, ...] | None
    shared: frozenset[bytes]
    """Paths of files that must not be changed in place, because of their other names."""
    linked_outside: frozenset[bytes]
    """Paths of files that have other names where the walk did not come."""
    unfinished_links: bytes
    """Stands for the groups of these files: other groups, another value."""
    totals: Totals
    skipped: tuple[Skipped, ...]
    unstable: tuple[bytes, ...]
    rules: tuple[IgnoreRules, ...]
    files_read: int
    read_bytes: int
    trees: TreeReader
    """Reads the captured trees; those of the directories that changed are at hand."""
    mapped: frozenset[int] = frozenset()
    """Inode numbers of files that may change with no sign of it."""


@dataclass(slots=True)
class Frame:
    """One directory on the way down."""

    path: bytes
    name: bytes
    stat: os.stat_result
    xattrs: Xattrs | ObjectId | None
    exclusions: Exclusions
    scope: Scope | None
    changed: Changed | None = None
    """What to look at below, or None for everything."""
    looked: frozenset[bytes] | None = None
    """The names that were looked at, or None when all were."""
    reused: set[bytes] = field(default_factory=set)
    """Subdirectories that are not entered, because nothing in them changed."""
    observations: list[Any] = field(default_factory=list)
    packed: bytes = b""
    row: Row | None = None
    place: Place | None = None
    mapped: frozenset[bytes] = frozenset()
    """Names of files that may change with no sign of it: they are read, now and next time."""
    written: frozenset[bytes] = frozenset()
    """Names of files that may have changed with no sign of it: they are read now."""
    is_same: bool = False
    """Whether all names were observed just as the row says."""
    entries: dict[bytes, Entry] = field(default_factory=dict)
    """What was captured or taken over, when the directory is not the same."""
    old: dict[bytes, Entry] | None = None
    subdirectories: list[bytes] = field(default_factory=list)
    skipped: list[tuple[bytes, int]] = field(default_factory=list)
    distrusted: set[bytes] = field(default_factory=set)
    fresh: set[bytes] = field(default_factory=set)
    """Subdirectories whose own metadata must be read anew."""
    linked: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    children_changed: bool = False
    children: dict[bytes, tuple[ObjectId, Totals]] = field(default_factory=dict)


def totals_of(frame: Frame, entries: list[Entry], recall: Callable[[Entry], Totals]) -> Totals:
    """Returns the sums over a directory's entries and everything below them.

    ``recall`` knows those of subdirectories that were not entered.
    """
    files = others = size_bytes = skipped = incomplete = 0
    sums = Totals()
    for entry in entries:
        if entry.kind == EntryKind.FILE:
            files += 1
            size_bytes += entry.size
        elif entry.kind == EntryKind.DIRECTORY:
            child = frame.children.get(entry.name)
            sums = sums.plus(child[1] if child is not None else recall(entry))
            sums = sums._replace(directories=sums.directories + 1)
        elif entry.kind == EntryKind.SKIPPED:
            skipped += 1
            incomplete += entry.content == SkipReason.UNREADABLE
        else:
            others += 1
    return sums.plus(Totals(files, 0, others, size_bytes, skipped, incomplete))
