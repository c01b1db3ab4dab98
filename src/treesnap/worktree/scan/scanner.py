"""The walk: from a live tree to trees of entries, reading only what changed.

Every directory is listed and every name is looked at with ``lstat``; that is the
floor of a capture's cost. The observations of a directory are packed and
compared with the cached row in one go. When they are equal and no child changed,
its stored tree is taken over unseen; otherwise the names that differ are captured
and a new tree is written.

An observation is *distrusted* when its times are so young that a change could
still hide behind them (the racy entries of git's index): it is looked at again
next time, whatever it says then. So is a file that is mapped for writing, and it is
captured in this walk, too: see :mod:`treesnap.worktree.scan.mappings`.

With a tree of what changed since the cached rows were made, nothing else is looked at:
a directory in which only some names may have changed is not listed, and what lies below
names that did not change is not looked at; the rows say what a whole walk would have found.
They are trusted then whatever their times, because what changed is known from before they
were made.

The walk keeps one frame per level in memory, with the observations of its
directory. It does not recurse, so depth costs memory only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from stat import S_ISDIR
from typing import Any

from treesnap import treepath
from treesnap.codec.reader import TreeReader
from treesnap.codec.statcache import Row, decode_observations, encode_observations
from treesnap.codec.tree import is_storable, put_tree
from treesnap.errors import Corrupt, InvalidArgument, printable
from treesnap.events import Monitor
from treesnap.fs.base import FileSystem
from treesnap.fs.record_locks import close_unlocked
from treesnap.model import (
    TOTAL_MAX,
    Entry,
    EntryKind,
    FileContent,
    IgnoreRules,
    ObjectId,
    Skipped,
    SkipReason,
    Totals,
    Tree,
    Xattrs,
)
from treesnap.worktree.attributes import read_xattrs
from treesnap.worktree.directory import DirectoryChain, open_root
from treesnap.worktree.mounts import Mounts
from treesnap.worktree.scan.capture import (
    ObjectSink,
    blames_file,
    capture,
    directory_entry,
    skipped_entry,
    stored_xattrs,
)
from treesnap.worktree.scan.changed import Changed
from treesnap.worktree.scan.ignore import (
    IGNORE_FILE,
    RULES_SIZE_MAX,
    Exclusions,
    UnreadableRules,
    size_of,
    too_many,
)
from treesnap.worktree.scan.links import LinkGroups
from treesnap.worktree.scan.listing import (
    DirectoryListing,
    Scope,
    hide,
    list_directory,
    observe_names,
    read_ignore_file,
    scope_of,
)
from treesnap.worktree.scan.lookahead import parallel_scan
from treesnap.worktree.scan.mappings import mapped_now, names_of
from treesnap.worktree.scan.statcache import RowPlace, StatCache, StatCacheBuilder, subdirectories

DEPTH_MAX = 16384
"""Directories deeper than this are reported as unreadable."""

CLOCK_ERROR_MAX_NS = 24 * 3600 * 10**9
"""Times further ahead come from no clock: somebody chose them, and every edit changes them."""


def _position(skipped: Skipped) -> list[bytes]:
    return treepath.components(skipped.path)


class Scanner:
    """Walks one root once."""

    def __init__(
        self,
        fs: FileSystem,
        settings: ScanSettings,
        sink: ObjectSink,
        monitor: Monitor,
        cache: StatCache | None = None,
        builder: StatCacheBuilder | None = None,
        recorder: dict[bytes, bytes] | None = None,
    ) -> None:
        """Prepares a walk; ``recorder`` takes the observations that are in no cached row.

        With it what is decoded is kept at hand, for who compares afterwards.
        """
        self._fs = fs
        self._settings = settings
        self._sink = sink
        self._trees = TreeReader(sink.get)
        if recorder is not None:
            self._trees.keep_first()
        self._monitor = monitor
        self._cache = cache
        self._recall = Recall(cache, self._trees) if cache is not None else None
        self._rows = Rows(self._trees, sink, builder, self._recall)
        is_usable = cache is not None and settings.cached_rules_hold
        self._changed = settings.changed if is_usable else None
        self._mapped = settings.mapped
        self._recorder = recorder
        self._mounts = Mounts(fs)
        self._mount_points = self._mounts.below(os.fsencode(settings.root))
        self._breaks_links = self._mounts.kind(settings.root) == "overlay"
        self._horizon_ns = settings.started_ns - self._mounts.granularity_ns(settings.root)
        self._future_ns = settings.started_ns + CLOCK_ERROR_MAX_NS
        self._encoding = sys.getfilesystemencoding()
        self._links = LinkGroups()
        self._rules: list[IgnoreRules] = list(settings.rules)
        self._noted_rules = settings.noted_rules if self._changed is not None else ()
        self._known_rules = {*settings.rules, *self._noted_rules}
        self._rules_size = sum(map(size_of, self._known_rules))
        self._skipped: list[Skipped] = []
        self._unstable: list[bytes] = []
        self._files_read = 0
        self._read_bytes = 0

    def scan(self) -> ScanResult:
        """Walks the root and returns what was found; raises NotFound, Refused, OSError."""
        root_fd = open_root(self._fs, self._settings.root)
        try:
            if self._mapped is None:
                self._mapped = mapped_now(self._fs, self._settings.root).inodes
            self._scan_in_parallel(root_fd, self._mapped | self._settings.written)
            with DirectoryChain(self._fs, root_fd) as chain:
                root, totals = self._walk(chain, root_fd)
        finally:
            self._fs.close(root_fd)
            close_unlocked(self._fs)
        return ScanResult(
            root=root,
            links=self._links.store(self._sink.put),
            shared=self._links.shared(is_broken_by_changes=self._breaks_links),
            linked_outside=self._links.shared(),
            unfinished_links=self._links.unfinished(),
            totals=totals,
            skipped=tuple(sorted(self._skipped, key=_position)),
            unstable=tuple(sorted(self._unstable)),
            rules=tuple(recalled_rules(self._settings, self._rules, self._changed)),
            files_read=self._files_read,
            read_bytes=self._read_bytes,
            trees=self._trees,
            mapped=self._mapped,
        )

    def _scan_in_parallel(self, root_fd: int, mapped: frozenset[int]) -> None:
        """Lets other processes say where a large tree differs, when nobody else knows."""
        settings, cache = self._settings, self._cache
        if cache is None or self._changed is not None or settings.scope or settings.rules:
            return
        if not settings.cached_rules_hold:
            return
        self._changed = parallel_scan(self._fs, root_fd, cache, mapped)
        if self._changed is not None:
            self._rows.keep_unseen()

    def _walk(self, chain: DirectoryChain, root_fd: int) -> tuple[Entry, Totals]:
        scope = scope_of(self._settings.scope)
        settings = self._settings
        exclusions = Exclusions(settings.rules, heeds_files=settings.heeds_ignore_files)
        try:
            frame = self._enter(root_fd, b"", b"", exclusions, scope, self._changed, fresh=True)
        except OSError as error:
            error.filename = error.filename or settings.root
            raise
        stack = [frame]
        names: list[bytes] = []
        while True:
            frame = stack[-1]
            if frame.subdirectories:
                name = frame.subdirectories.pop()
                names.append(name)
                child = self._descend(chain, frame, name, names)
                if child is None:
                    names.pop()
                else:
                    stack.append(child)
                continue
            tree_id, totals, changed = self._leave(frame)
            stack.pop()
            if not stack:
                root = directory_entry(b"", frame.stat, tree_id, frame.xattrs)
                return root, totals
            names.pop()
            parent = stack[-1]
            parent.children[frame.name] = (tree_id, totals)
            parent.children_changed |= changed
            if not parent.is_same or frame.name in parent.fresh:
                old = None if frame.name in parent.fresh else (parent.old or {}).get(frame.name)
                parent.entries[frame.name] = (
                    old._replace(content=tree_id)
                    if old is not None
                    else directory_entry(frame.name, frame.stat, tree_id, frame.xattrs)
                )

    def _leave(self, frame: Frame) -> tuple[ObjectId, Totals, bool]:
        """Stores a directory's tree; what a tree cannot hold is unreadable."""
        try:
            return self._rows.leave(frame)
        except InvalidArgument as error:
            bad = [name for name, entry in frame.entries.items() if not is_storable(entry)]
            if not bad:
                error.path = frame.path
                raise
        for name in bad:
            self._skip(frame, name, SkipReason.UNREADABLE)
        return self._rows.leave(frame)

    def _descend(
        self, chain: DirectoryChain, parent: Frame, name: bytes, names: list[bytes]
    ) -> Frame | None:
        """Enters a subdirectory; returns None when it is gone or cannot be read."""
        path = treepath.join(parent.path, name)
        below = parent.scope.get(name) if parent.scope is not None else None
        changed = parent.changed.at(name) if parent.changed is not None else None
        fresh = name in parent.fresh
        exclusions = parent.exclusions
        if path in self._settings.revealed:
            exclusions = Exclusions(heeds_files=False)
        try:
            if len(names) > DEPTH_MAX:
                raise OSError(36, "It is too deep")
            fd = chain.open_names(names)
            return self._enter(fd, path, name, exclusions, below, changed, fresh=fresh)
        except FileNotFoundError:
            parent.racy.add(name)
            parent.children_changed = True
            return None
        except OSError as error:
            if not blames_file(error):
                raise
            if isinstance(error, UnreadableRules):
                self._monitor.warn(error.message)
            self._skip(parent, name, SkipReason.UNREADABLE)
            parent.children_changed = True
            return None

    def _enter(
        self,
        fd: int,
        path: bytes,
        name: bytes,
        exclusions: Exclusions,
        scope: Scope | None,
        changed: Changed | None,
        *,
        fresh: bool,
    ) -> Frame:
        """Looks at the names of a directory, and captures those that changed."""
        stat = self._fs.fstat(fd)
        xattrs = stored_xattrs(self._sink, read_xattrs(self._fs, fd)) if fresh else None
        frame = Frame(path, name, stat, xattrs, exclusions, scope)
        found = self._cache.find(path) if self._cache is not None and scope is None else None
        if found is not None:
            frame.row, frame.place = found
        self._list(fd, frame, changed)
        row = frame.row
        frame.is_same = (
            row is not None
            and row.observations == frame.packed
            and row.rules == frame.exclusions.fingerprint
            and not (frame.mapped or frame.written)
            and not any(frame.looked is None or name in frame.looked for name in row.racy)
        )
        if frame.is_same:
            self._take_over(frame)
        else:
            if self._recorder is not None:
                self._recorder[path] = frame.packed
            self._capture_names(fd, frame)
        for linked_name, device, inode, link_count in frame.linked:
            entry = frame.entries.get(linked_name)
            if entry is None or not entry.is_skipped:
                self._links.add(device, inode, link_count, treepath.join(path, linked_name))
        files = len(frame.observations) - len(frame.subdirectories)
        self._monitor.advance(files, sum(item[2] for item in frame.observations))
        return frame

    def _list(self, fd: int, frame: Frame, changed: Changed | None) -> None:
        """Looks at all names of a directory, or at those that may have changed."""
        path, row, listing = frame.path, frame.row, None
        if changed is not None and row is not None:
            listing = look_again(self._fs, fd, path, row, changed, frame.exclusions)
        if listing is not None and changed is not None:
            frame.looked = frozenset(changed.names)
        else:
            listing = list_directory(
                self._fs, fd, path, frame.exclusions, frame.scope, self._encoding
            )
        frame.exclusions, frame.observations = listing.exclusions, listing.observations
        frame.skipped, frame.linked = listing.hidden, listing.linked
        frame.mapped = names_of(self._mapped or frozenset(), frame.observations)
        frame.written = names_of(self._settings.written, frame.observations)
        frame.packed = encode_observations(frame.observations)
        if listing.rule is not None:
            self._note_rule(listing.rule)
        for message in listing.messages:
            self._monitor.warn(message)
        if changed is not None and frame.scope is None:
            changed.is_whole |= row is None or row.rules != frame.exclusions.fingerprint
        frame.changed = None if changed is not None and changed.is_whole else changed

    def _note_rule(self, rule: IgnoreRules) -> None:
        """Adds rules of an ignore file; raises UnreadableRules when they are too many.

        Those of the root always fit. Noted rules may have gone since, which only a whole walk
        tells: raises Corrupt for that.
        """
        if rule not in self._known_rules:
            size = size_of(rule)
            if self._rules_size + size > RULES_SIZE_MAX and rule.directory:
                if self._noted_rules:
                    raise Corrupt("The noted rules are too many")
                raise too_many(rule.directory)
            self._rules_size += size
            self._known_rules.add(rule)
        self._rules.append(rule)

    def _take_over(self, frame: Frame) -> None:
        """Goes on with a directory whose names are all as they were."""
        assert frame.row is not None
        frame.skipped = list(frame.row.skipped)
        self._note_skipped(frame)
        left_out = {name for name, _ in frame.skipped}
        frame.subdirectories = [
            item[0]
            for item in reversed(frame.observations)
            if S_ISDIR(item[1]) and item[0] not in left_out
        ]
        if frame.changed is not None:
            names = frame.changed.names
            frame.reused = {name for name in frame.subdirectories if name not in names}
            frame.subdirectories = [name for name in frame.subdirectories if name in names]
            self._note_skipped_below(frame)
        for name in left_out:
            frame.linked = [item for item in frame.linked if item[0] != name]

    def _note_skipped(self, frame: Frame) -> None:
        for name, reason in frame.skipped:
            self._skipped.append(Skipped(treepath.join(frame.path, name), SkipReason(reason)))

    def _note_skipped_below(self, frame: Frame) -> None:
        """Notes what was left out below subdirectories that are not entered."""
        row = frame.row
        if row is not None and self._recall is not None and row.totals.skipped > len(row.skipped):
            for name in sorted(frame.reused):
                self._skipped += self._recall.skipped(treepath.join(frame.path, name))

    def _skip(self, frame: Frame, name: bytes, reason: SkipReason) -> None:
        frame.entries[name] = skipped_entry(name, reason)
        frame.skipped.append((name, int(reason)))
        self._skipped.append(Skipped(treepath.join(frame.path, name), reason))
        if reason == SkipReason.UNREADABLE:
            frame.racy.add(name)

    def _capture_names(self, fd: int, frame: Frame) -> None:
        """Captures every name that is not known to be as it was."""
        seen, frame.old = self._known(frame)
        known = frame.old or {}
        hidden = dict(frame.skipped)
        horizon_ns, future_ns = self._horizon_ns, self._future_ns
        frame.skipped = []
        for item in frame.observations:
            name, mode = item[0], item[1]
            if name in hidden:
                self._skip(frame, name, SkipReason(hidden[name]))
                continue
            old = known.get(name)
            is_known = old is not None and not old.is_skipped and seen.get(name) == item
            is_young = item[4] >= horizon_ns or horizon_ns <= item[3] < future_ns
            if is_young or name in frame.mapped:
                frame.racy.add(name)
            if S_ISDIR(mode):
                self._plan_descent(frame, item, is_known=is_known)
            elif is_known:
                assert old is not None
                frame.entries[name] = old
            else:
                self._capture_name(fd, frame, item)
        frame.subdirectories.reverse()
        for name in frame.reused:
            frame.entries[name] = known[name]
        self._note_skipped_below(frame)

    def _known(self, frame: Frame) -> tuple[dict[bytes, Any], dict[bytes, Entry] | None]:
        """Returns what was observed last time and may be trusted, and the entries of then."""
        row = frame.row
        if row is None:
            return {}, None
        try:
            old = {entry.name: entry for entry in self._trees.entries(row.tree_id)}
            seen: dict[bytes, Any] = dict(decode_observations(row.observations))
        except Corrupt:
            return {}, None
        for name in frame.mapped.union(frame.written, row.racy):
            if frame.looked is None or name in frame.looked:
                seen.pop(name, None)
        return seen, old

    def _plan_descent(self, frame: Frame, item: Any, *, is_known: bool) -> None:
        name, inode, device = item[0], item[5], item[6]
        path = treepath.join(frame.path, name)
        other_device = device != frame.stat.st_dev
        if self._settings.store == (device, inode):
            self._skip(frame, name, SkipReason.STORE)
        elif (self._mount_points or other_device) and self._mounts.crosses(
            path, self._mount_points, other_device=other_device
        ):
            self._skip(frame, name, SkipReason.MOUNT)
        elif is_known and frame.changed is not None and name not in frame.changed.names:
            frame.reused.add(name)
        else:
            frame.subdirectories.append(name)
            if not is_known:
                frame.fresh.add(name)
                changed = frame.changed
                if changed is not None and frame.scope is None and name not in changed.names:
                    changed.at(name).is_whole = True

    def _capture_name(self, fd: int, frame: Frame, item: Any) -> None:
        name, mode = item[0], item[1]
        path = treepath.join(frame.path, name)
        if self._mount_points and path in self._mount_points:
            self._skip(frame, name, SkipReason.MOUNT)
            return
        try:
            captured = capture(self._fs, self._sink, fd, name, mode)
        except OSError as error:
            if not blames_file(error):
                raise
            self._skip(frame, name, SkipReason.UNREADABLE)
            return
        if captured is None:
            frame.racy.add(name)
            return
        if captured.entry.is_skipped:
            self._skip(frame, name, captured.entry.skip_reason)
            return
        frame.entries[name] = captured.entry
        self._files_read += captured.was_read
        self._read_bytes += captured.read_bytes
        if not captured.is_stable:
            frame.racy.add(name)
            self._unstable.append(path)


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
    links: FileContent | None
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
    place: RowPlace | None = None
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
    racy: set[bytes] = field(default_factory=set)
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


_HIDING = frozenset({SkipReason.EXCLUDED, SkipReason.RESERVED})


def look_again(
    fs: FileSystem, fd: int, path: bytes, row: Row, changed: Changed, exclusions: Exclusions
) -> DirectoryListing | None:
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
    listing = DirectoryListing(exclusions.at(path))
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
                raise Corrupt(f"There is no row of {printable(path)!r}", path=path)
            row = found[0]
            if not row.totals.skipped:
                continue
            for name, reason in row.skipped:
                yield Skipped(treepath.join(path, name), SkipReason(reason))
            if row.totals.skipped > len(row.skipped):
                pending += [treepath.join(path, name) for name in subdirectories(row)]


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


class Rows:
    """Stores the trees of directories that were walked, and adds their rows to a cache."""

    def __init__(
        self,
        trees: TreeReader,
        sink: ObjectSink,
        builder: StatCacheBuilder | None,
        recall: Recall | None,
    ) -> None:
        self._trees = trees
        self._sink = sink
        self._builder = builder
        self._recall = recall

    def keep_unseen(self) -> None:
        """Lets the rows of directories that are not walked stay as they are."""
        if self._builder is not None:
            self._builder.keep_unseen()

    def leave(self, frame: Frame) -> tuple[ObjectId, Totals, bool]:
        """Returns a directory's tree, its totals, and whether the tree is not the cached one."""
        row = frame.row
        if row is not None and frame.is_same and not frame.children_changed:
            if self._builder is not None:
                assert frame.place is not None
                self._builder.keep(row, frame.place)
            return row.tree_id, row.totals, False
        if row is not None and frame.is_same:
            self._complete_from_row(frame, row)
        entries = [frame.entries[name] for name in sorted(frame.entries)]
        totals = self._totals(frame, entries)
        tree_id = put_tree(entries, totals, self._sink.put)
        self._trees.keep(tree_id, Tree(totals, tuple(entries)))
        if self._builder is not None and frame.scope is None:
            self._remove_lost(self._builder, frame)
            self._builder.add(
                Row(
                    path=frame.path,
                    tree_id=tree_id,
                    totals=totals,
                    rules=frame.exclusions.fingerprint,
                    racy=tuple(sorted(frame.racy | _is_still_racy(frame))),
                    linked=bool(frame.linked),
                    skipped=tuple(frame.skipped),
                    observations=frame.packed,
                ),
                is_listed=bool(frame.mapped),
            )
        return tree_id, totals, row is None or row.tree_id != tree_id

    def _totals(self, frame: Frame, entries: list[Entry]) -> Totals:
        """Returns the sums over a directory and all below it.

        Where most is as it was, costs as much as what is not.
        """
        row, old = frame.row, frame.old
        if row is None or old is None or frame.changed is None or TOTAL_MAX in row.totals:
            return totals_of(frame, entries, partial(self._totals_below, frame))
        sums = list(row.totals)
        for name in old.keys() | frame.entries.keys():
            before, now = old.get(name), frame.entries.get(name)
            if before is now or before == now:
                continue
            child = frame.children.get(name)
            if now is not None:
                below = child[1] if child is not None and now.is_directory else None
                self._add(sums, frame, now, 1, below)
            if before is not None:
                self._add(sums, frame, before, -1, None)
        return Totals(*(min(number, TOTAL_MAX) for number in sums))

    def _add(
        self, sums: list[int], frame: Frame, entry: Entry, sign: int, below: Totals | None
    ) -> None:
        if entry.is_directory:
            totals = below if below is not None else self._totals_below(frame, entry)
            totals = totals._replace(directories=totals.directories + 1)
        else:
            totals = totals_of(frame, [entry], partial(self._totals_below, frame))
        for position, number in enumerate(totals):
            sums[position] += sign * number

    def _totals_below(self, frame: Frame, entry: Entry) -> Totals:
        assert self._recall is not None
        return self._recall.totals(treepath.join(frame.path, entry.name), entry.tree_id)

    def _remove_lost(self, builder: StatCacheBuilder, frame: Frame) -> None:
        """Lets cached rows not count below directories that were there, and were not walked."""
        if frame.row is None:
            builder.remove(frame.path)
            return
        before: Iterable[Any] = frame.observations
        if not frame.is_same:
            try:
                before = decode_observations(frame.row.observations).values()
            except Corrupt:
                builder.remove(frame.path)
                return
        for item in before:
            name = item[0]
            is_walked = name in frame.children or name in frame.reused
            if S_ISDIR(item[1]) and not is_walked:
                builder.remove(treepath.join(frame.path, name))

    def _complete_from_row(self, frame: Frame, row: Row) -> None:
        """Fills in the entries of a directory in which only children changed."""
        changed = frame.entries
        frame.old = {entry.name: entry for entry in self._trees.entries(row.tree_id)}
        frame.entries = dict(frame.old)
        for name, (tree_id, _) in frame.children.items():
            frame.entries[name] = frame.entries[name]._replace(content=tree_id)
        for name in frame.racy:
            frame.entries.pop(name, None)
        frame.entries.update(changed)


def _is_still_racy(frame: Frame) -> set[bytes]:
    """Returns the names that were distrusted and have not been looked at since.

    A watcher speaks for them now, but not for ever: the next look at everything does not ask it.
    """
    if frame.row is None or frame.looked is None:
        return set()
    return {name for name in frame.row.racy if name not in frame.looked}
