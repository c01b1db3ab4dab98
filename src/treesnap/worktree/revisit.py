"""The walk of a tree of which most is known not to have changed.

A directory in which only some names may have changed is not listed: the rest is as its
cached row says. What lies below names that did not change is not looked at; the rows
say what a whole walk would have found there.
"""

from __future__ import annotations

from collections.abc import Iterator
from stat import S_ISDIR

from treesnap import treepath
from treesnap.codec.reader import TreeReader
from treesnap.codec.statcache import Row, decode_observations
from treesnap.errors import Corrupt, shown
from treesnap.fs.base import FileSystem
from treesnap.model import IgnoreRules, ObjectId, Skipped, SkipReason, Totals
from treesnap.worktree.changed import Changed
from treesnap.worktree.ignore import IGNORE_FILE, Exclusions, UnreadableRules
from treesnap.worktree.listing import Listing, hide, observe_names, read_ignore_file
from treesnap.worktree.scanned import ScanSettings
from treesnap.worktree.statcache import StatCache

_HIDING = frozenset({SkipReason.EXCLUDED, SkipReason.RESERVED})


def look_again(
    fs: FileSystem, fd: int, path: bytes, row: Row, changed: Changed, exclusions: Exclusions
) -> Listing | None:
    """Looks at the names of a directory that may have changed, and takes the rest from its row.

    Returns None when all names have to be looked at: those of files with other links may
    have changed elsewhere, other exclusions hide other names, and a row may say nothing.
    """
    if changed.is_listed or changed.is_whole or row.linked or IGNORE_FILE in changed.names:
        return None
    try:
        known = decode_observations(row.observations)
    except Corrupt:  # or they are too many
        return None
    listing = Listing(exclusions.at(path))
    if IGNORE_FILE in known and exclusions.heeds_files:
        try:
            read_ignore_file(fs, fd, path, listing)
        except UnreadableRules:
            return None
    if listing.exclusions.fingerprint != row.rules:
        return None
    observe_names(fs, fd, changed.names, listing)
    hide(path, listing)
    for name in changed.names:
        known.pop(name, None)
    listing.hidden += [
        (name, reason)
        for name, reason in row.skipped
        if name not in changed.names and SkipReason(reason) in _HIDING
    ]
    listing.observations = sorted([*known.values(), *listing.observations])
    return listing


class Recall:
    """What cached rows say of directories that were not entered."""

    def __init__(self, cache: StatCache, trees: TreeReader) -> None:
        self._cache = cache
        self._trees = trees

    def totals(self, path: bytes, tree_id: ObjectId) -> Totals:
        """Returns the sums over a directory that was not entered."""
        found = self._cache.find(path)
        return found[0].totals if found is not None else self._trees.totals(tree_id)

    def skipped(self, path: bytes) -> Iterator[Skipped]:
        """Yields what was left out below a directory that was not entered.

        Costs a row for each directory that has something like it below. Raises Corrupt where
        there is no such row.
        """
        pending = [path]
        while pending:
            path = pending.pop()
            found = self._cache.find(path)
            if found is None:
                raise Corrupt(f"There is no row of {shown(path)!r}", path=path)
            row = found[0]
            if not row.totals.skipped:
                continue
            for name, reason in row.skipped:
                yield Skipped(treepath.join(path, name), SkipReason(reason))
            if row.totals.skipped > len(row.skipped):
                pending += [treepath.join(path, name) for name in subdirectories(row)]


def subdirectories(row: Row) -> list[bytes]:
    """Returns the names of a row's directories that are no others' business, in order.

    Raises Corrupt for a row that does not say it.
    """
    left_out = {name for name, _ in row.skipped}
    return [
        name
        for name, seen in decode_observations(row.observations).items()
        if S_ISDIR(seen.mode) and name not in left_out
    ]


def recalled_rules(
    settings: ScanSettings, found: list[IgnoreRules], changed: Changed | None
) -> list[IgnoreRules]:
    """Returns all rules in the order of a whole walk.

    ``found`` are those that were given, which come first, and those of directories that
    were entered; to these come the noted ones of directories in scope that were not.
    """
    if changed is None:
        return found
    given_count = len(settings.rules)
    here = found[given_count:]
    scope = settings.scope if settings.scope is not None else (b"",)
    elsewhere = [
        rule
        for rule in settings.noted_rules
        if rule not in found
        and not _is_entered(changed, rule.directory)
        and any(treepath.is_within(rule.directory, path) for path in scope)
    ]
    tail = sorted([*here, *elsewhere], key=lambda rule: treepath.components(rule.directory))
    return [*found[:given_count], *tail]


def _is_entered(changed: Changed, directory: bytes) -> bool:
    """Returns whether a walk looks for the rules of a directory itself."""
    return changed.find(directory) is not None
