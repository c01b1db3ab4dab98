"""The walk: from a live tree to trees of entries, reading only what changed.

Every directory is listed and every name is looked at with ``lstat``; that is the
floor of a capture's cost. The observations of a directory are packed and
compared with the cached row in one go. When they are equal and no child changed,
its stored tree is reused without reading it; otherwise the names that differ are
captured and a new tree is written.

A name is *racy* when its times are so young that a change could still hide behind
them (the racy entries of git's index): it is looked at again next time, whatever
it says then. So is a file that is mapped for writing, which is captured in this
walk, too: see :mod:`treesnap.core.worktree.scan.mapped_files`.

With a tree of what changed since the cached rows were made, nothing else is looked at:
a directory in which only some names may have changed is not listed, and what lies below
names that did not change is not looked at; the rows say what a whole walk would have found.
They are trusted then whatever their times, because what changed is known from before they
were made.

The walk keeps one directory per level in memory, with its observations. It does not
recurse, so depth costs memory only.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from stat import S_ISDIR, S_ISLNK

from treesnap.core.codec.reader import TreeCache, TreeReader
from treesnap.core.codec.statcache import Row, decode_observations, encode_observations
from treesnap.core.codec.tree import is_storable, put_tree, put_with_subtrees
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.mounts import Mounts, YoungTimes
from treesnap.core.fs.record_locks import close_unlocked
from treesnap.core.model import treepath
from treesnap.core.model.entries import (
    DATABASE_LOG_SUFFIXES,
    TOTAL_MAX,
    Entry,
    EntryKind,
    FileContent,
    ObjectId,
    Skipped,
    SkipReason,
    Totals,
    Tree,
    Xattrs,
)
from treesnap.core.model.errors import Corrupt, InvalidArgument, WarningCode, quoted
from treesnap.core.model.events import LargeFileProgress, Monitor
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.requests import WHOLE_ROOT, CaptureRequest
from treesnap.core.model.snapshots import IgnoreRules
from treesnap.core.model.type_names import TYPE_CHECKING, Any
from treesnap.core.worktree.directory import DirectoryChain, open_root
from treesnap.core.worktree.scan.file_reader import (
    ObjectSink,
    blames_file,
    capture,
    capture_xattrs,
    entry_without_size,
    skipped_entry,
)
from treesnap.core.worktree.scan.hard_links import LinkGroups
from treesnap.core.worktree.scan.ignore import RULES_SIZE_MAX, Exclusions, UnreadableRules, size_of
from treesnap.core.worktree.scan.listing import (
    DirectoryListing,
    PathTree,
    list_changed,
    list_directory,
    path_tree,
)
from treesnap.core.worktree.scan.mapped_files import mapped_now, names_of
from treesnap.core.worktree.scan.row_differences import row_differences
from treesnap.core.worktree.scan.statcache import (
    PATH_SIZE_MAX,
    RowPlace,
    StatCache,
    StatCacheBuilder,
    observed_key,
    subdirectories,
)

if TYPE_CHECKING:
    from treesnap.core.codec.watch import Mark, WatchNote

# Reading a member of an enumeration takes a call of Python code before Python 3.12.
_FILE, _DIRECTORY = int(EntryKind.FILE), int(EntryKind.DIRECTORY)
_SHORT_PATH_SIZE = PATH_SIZE_MAX - 2048
"""Below a path of at most so many bytes every directory has a row: a name has at most 1,530 bytes,
as exfat says it."""
_SKIPPED = int(EntryKind.SKIPPED)

_PASSING = (SkipReason.UNREADABLE, SkipReason.MOUNT)
"""Reasons that may end without a sign at the name: something may be mounted on itself."""

DEPTH_MAX = 16384
"""Directories deeper than this are reported as unreadable."""


class KnownChanges(NamedTuple):
    """What is known before a walk."""

    mark: Mark | None = None
    """The watcher's newest mark, or None without a watcher."""
    changed: PathTree | None = None
    """What may have changed since the walk of the stat cache; None when that is not known."""
    note: WatchNote | None = None
    """What the walk before recorded, if the watcher knows what changed since."""
    asked_ns: int | None = None
    """When the watcher was asked, in ns since the epoch."""
    mapped: frozenset[int] | None = None
    """Inode numbers of files that were mapped for writing at that time; None when they were not
    looked up."""
    written: frozenset[int] = frozenset()
    """Inode numbers of files that the watcher saw closed; their times may not show the change."""


NOTHING_KNOWN = KnownChanges()


class ScanSettings(NamedTuple):
    """Everything that a walk depends on, besides the tree itself."""

    root: str
    started_ns: int
    """The time when the walk began, or when the mapped files were looked up before it."""
    request: CaptureRequest = WHOLE_ROOT
    known: KnownChanges = NOTHING_KNOWN
    cached_rules_hold: bool = True
    """Whether a name that the stat cache leaves out is left out now, as long as it and the
    ignore files above it have not changed."""
    store: frozenset[tuple[int, int]] = frozenset()
    """Device and inode of the store and of the links to it, which are never captured."""
    tree_cache: TreeCache | None = None
    """Directories that earlier walks had at hand; takes those of this one."""


class ScanResult(NamedTuple):
    """A captured root."""

    root: Entry
    links: FileContent | None
    link_groups: LinkGroups
    """What is in ``links``, which a walk that stores nothing cannot read back."""
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
    young: YoungTimes
    """Times that prove nothing: another change may have left them."""
    mapped: frozenset[int] = frozenset()
    """Inode numbers of files that may change with no sign of it."""


class Scanner:
    """Walks one root once; has what all of its directories share."""

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

        It has them under :func:`observed_key` of the directory's path.
        With it what is decoded is kept at hand for a caller that compares afterwards.
        """
        self.fs = fs
        self.settings = settings
        self.sink = sink
        self.trees: TreeReader = TreeReader(sink.get, settings.tree_cache)
        self.monitor = monitor
        self.cache = cache
        self.builder = builder
        is_usable = cache is not None and settings.cached_rules_hold
        request, known = settings.request, settings.known
        self._changed = known.changed if is_usable else None
        if recorder is not None:
            self.trees.keep_first()
        self.mapped: frozenset[int] = known.mapped or frozenset()
        self.written: frozenset[int] = known.written
        self.recorder = recorder
        self.mounts: Mounts = Mounts(fs)
        self.mount_points: frozenset[bytes] = self.mounts.below(os.fsencode(settings.root))
        self._mounted: dict[bytes, set[bytes]] = {}
        """Mount points in the tree, by directory."""
        for point in self.mount_points:
            directory, name = treepath.split(point)
            self._mounted.setdefault(directory, set()).add(name)
        self._breaks_links = self.mounts.kind(settings.root) == "overlay"
        step_ns = self.mounts.granularity_ns(settings.root)
        self.young: YoungTimes = YoungTimes(settings.started_ns, step_ns)
        self.links: LinkGroups = LinkGroups()
        self._rules: list[IgnoreRules] = list(request.rules)
        note = known.note if self._changed is not None else None
        self._noted_rules = note.rules if note is not None else ()
        """The exclusions that were in force in the walk before, when it is known what changed."""
        self._known_rules = {*request.rules, *self._noted_rules}
        self._rules_size = sum(map(size_of, self._known_rules))
        self.skipped: list[Skipped] = []
        self.unstable: list[bytes] = []
        self.files_read = 0
        self.read_bytes = 0
        self.long_path: tuple[Directory, bytes] | None = None
        """A directory whose path is not kept, and its path: those that are asked for lie close."""

    def scan(self) -> ScanResult:
        """Walks the root and returns what was found; raises NotFound, Refused, OSError."""
        root_fd = open_root(self.fs, self.settings.root)
        try:
            if self.settings.known.mapped is None:
                self.mapped = mapped_now(self.fs, self.settings.root).inodes
            self._look_ahead(root_fd)
            self._enter_what_rows_may_lack()
            with DirectoryChain(self.fs, root_fd) as chain:
                root, totals = self.walk(chain, root_fd)
        finally:
            self.fs.close(root_fd)
            close_unlocked(self.fs)
        return ScanResult(
            root=root,
            links=self.links.store(self.sink.put),
            link_groups=self.links,
            shared=self.links.shared(is_broken_by_changes=self._breaks_links),
            linked_outside=self.links.shared(),
            unfinished_links=self.links.unfinished(),
            totals=totals,
            skipped=tuple(sorted(self.skipped, key=lambda item: treepath.components(item.path))),
            unstable=tuple(sorted(self.unstable)),
            rules=tuple(self._all_rules(root)),
            files_read=self.files_read,
            read_bytes=self.read_bytes,
            trees=self.trees,
            young=self.young,
            mapped=self.mapped,
        )

    def _look_ahead(self, root_fd: int) -> None:
        """Finds out where the tree differs from the cached rows, when no watcher told."""
        request, cache = self.settings.request, self.cache
        if cache is None or self._changed is not None or request.scope:
            return
        if not self.settings.cached_rules_hold:
            return
        exclusions = Exclusions.of_request(request)
        self._changed = row_differences(
            self.fs, root_fd, cache, exclusions, self.mapped | self.written
        )
        if self._changed is not None and self.builder is not None:
            self.builder.keep_unseen()

    def _enter_what_rows_may_lack(self) -> None:
        """Has the walk enter each directory that rules are given for, and each with a mount point.

        What is mounted on itself looks as it did before.
        """
        if self._changed is not None:
            for rule in self.settings.request.rules:
                self._changed.at(rule.directory)
            for point in self.mount_points:
                self._changed.at(point)

    def mounted_in(self, path: bytes) -> AbstractSet[bytes]:
        """Returns the names of a directory that are mount points."""
        return self._mounted.get(path, frozenset())

    def walk(self, chain: DirectoryChain, root_fd: int) -> tuple[Entry, Totals]:
        """Walks the open root and returns its entry and totals; raises OSError."""
        root = self.enter_root(root_fd)
        stored = self.finish(chain, root, [])
        return root.entry(stored.tree_id), stored.totals

    def enter_root(self, root_fd: int) -> Directory:
        """Enters the root; raises OSError."""
        request = self.settings.request
        exclusions = Exclusions.of_request(request)
        paths, revealed = request.scope, request.revealed
        scope = path_tree(whole=paths) if paths is not None and b"" not in paths else None
        shown = path_tree(revealed.paths, whole=revealed.whole) if revealed else None
        visit = Visit(b"", b"", exclusions, scope, self._changed, shown)
        try:
            return self.enter(root_fd, visit)
        except OSError as error:
            error.filename = error.filename or self.settings.root
            raise

    def enter(self, fd: int, visit: Visit) -> Directory:
        """Enters an open directory; raises OSError.

        look at the directory itself
        find its cached row
        list its names             or look at those that may have changed; heed its ignore file
        compare with the row
        capture what differs       or go on with the row when nothing does
        note its hard links
        """
        stat = self.fs.fstat(fd)
        xattrs = capture_xattrs(self.fs, self.sink, fd) if visit.is_fresh else None
        cached = self._find_row(visit)
        listing, looked = self._list_names(fd, visit, cached)
        directory = Directory(self, visit, stat, xattrs, cached, listing, looked)
        if directory.kept_path is None:
            self.long_path = (directory, visit.path)
        directory.compare(visit.changed)
        directory.capture(fd, listing)
        directory.note_links()
        return directory

    def _find_row(self, visit: Visit) -> tuple[Row, RowPlace] | None:
        """Returns the cached row of a directory of which everything is captured, and its place."""
        is_cached = visit.scope is None and visit.revealed is None
        return self.cache.find(visit.path) if self.cache is not None and is_cached else None

    def _list_names(
        self, fd: int, visit: Visit, cached: tuple[Row, RowPlace] | None
    ) -> tuple[DirectoryListing, frozenset[bytes] | None]:
        """Looks at all names of a directory, or at those that may have changed.

        Returns the latter too, or None for all. Puts the rules of the directory in force.
        """
        path, exclusions, changed = visit.path, visit.exclusions, visit.changed
        listing, looked = None, None
        if changed is not None and cached is not None:
            listing = list_changed(self.fs, fd, path, cached[0], changed, exclusions)
        if listing is not None and changed is not None:
            looked = frozenset(changed.names)
        else:
            listing = list_directory(self.fs, fd, path, exclusions, visit.scope, visit.revealed)
        if listing.rule is not None:
            self.note_rule(listing.rule)
        for code, message in listing.warnings:
            self.monitor.warn(code, message)
        return listing, looked

    def finish(self, chain: DirectoryChain, top: Directory, names: list[bytes]) -> Stored:
        """Walks what is below a directory, which has a path of ``names``, and leaves it."""
        stack = [top]
        while (stored := self.step(chain, stack, names)) is None:
            pass
        return stored

    def step(
        self, chain: DirectoryChain, stack: list[Directory], names: list[bytes]
    ) -> Stored | None:
        """Enters one directory or leaves one; returns what the first of the stack became.

        ``names`` lead to the last of the stack.
        """
        directory = stack[-1]
        if directory.subdirectories:
            names.append(directory.subdirectories.pop())
            child = directory.descend(chain, names)
            if child is None:
                names.pop()
            else:
                stack.append(child)
            return None
        stored = directory.leave()
        stack.pop()
        if not stack:
            return stored
        names.pop()
        stack[-1].add_child(directory, stored)
        return None

    @property
    def own_rules(self) -> list[IgnoreRules]:
        """The rules of ignore files that were met."""
        return self._rules[len(self.settings.request.rules) :]

    def have_room(self, rules: Iterable[IgnoreRules]) -> bool:
        """Returns whether :meth:`note_rule` takes these rules."""
        new = {rule for rule in rules if rule not in self._known_rules}
        return self._rules_size + sum(map(size_of, new)) <= RULES_SIZE_MAX

    def note_rule(self, rule: IgnoreRules) -> None:
        """Adds rules of an ignore file; raises UnreadableRules when they are too many.

        Those of the root always fit. Noted rules may have gone since, which only a whole walk
        tells: raises Corrupt for that.
        """
        if rule not in self._known_rules:
            size = size_of(rule)
            if self._rules_size + size > RULES_SIZE_MAX and rule.directory:
                if self._noted_rules:
                    raise Corrupt("The noted rules are too many")
                size_mib = RULES_SIZE_MAX >> 20
                why = f"holds rules beyond the {size_mib} MiB that a snapshot takes of them"
                raise UnreadableRules(rule.directory, errno.EFBIG, why)
            self._rules_size += size
            self._known_rules.add(rule)
        self._rules.append(rule)

    def _all_rules(self, root: Entry) -> list[IgnoreRules]:
        """Returns all rules in the order of a whole walk.

        Those that were given come first. To those of directories that were entered come the
        noted ones of directories in scope that were not, and are there.
        """
        request, rules, changed = self.settings.request, self._rules, self._changed
        given_count = len(request.rules)
        scope = request.scope if request.scope is not None else (b"",)
        elsewhere = [
            rule
            for rule in self._noted_rules
            if changed is not None
            and rule not in rules
            and changed.find(rule.directory) is None
            and any(treepath.is_within(rule.directory, path) for path in scope)
            and self._is_there(root, rule.directory, changed)
        ]
        tail = sorted(
            [*rules[given_count:], *elsewhere],
            key=lambda rule: treepath.components(rule.directory),
        )
        return [*rules[:given_count], *tail]

    def _is_there(self, root: Entry, directory: bytes, changed: PathTree) -> bool:
        """Returns whether a directory is there that was not entered.

        Of one that was moved away with all in it only its name is known to have changed.
        """
        if not (changed.is_listed or treepath.components(directory)[0] in changed.names):
            return True
        entry = self.trees.find(root, directory)
        return entry is not None and entry.is_directory

    def totals_below(self, path: bytes, tree_id: ObjectId) -> Totals:
        """Returns the sums over a directory that was not entered."""
        cached = self.cache.find(path) if self.cache is not None else None
        return cached[0].totals if cached is not None else self.trees.totals(tree_id)

    def skipped_below(self, path: bytes) -> Iterator[Skipped]:
        """Yields what was left out below a directory that was not entered.

        Costs a row for each directory that has something like it below. Raises Corrupt where
        there is no such row.
        """
        pending = [path]
        while pending:
            path = pending.pop()
            cached = self.cache.find(path) if self.cache is not None else None
            if cached is None:
                raise Corrupt(f"There is no row of {quoted(path)}", path=path)
            row = cached[0]
            if not row.totals.skipped:
                continue
            for name, reason in row.skipped:
                yield Skipped(treepath.join(path, name), SkipReason(reason))
            if row.totals.skipped > len(row.skipped):
                pending += [treepath.join(path, name) for name in subdirectories(row)]


class Stored(NamedTuple):
    """What a directory became."""

    tree_id: ObjectId
    totals: Totals
    is_new: bool
    """Whether the tree is not the cached one."""
    totals_before: Totals | None
    """The cached sums, or None without a row."""


class Visit(NamedTuple):
    """A directory to enter, and what is known of it before."""

    path: bytes
    name: bytes
    exclusions: Exclusions
    """What is excluded in the directory above it."""
    scope: PathTree | None = None
    """What alone is captured of it, or None for everything."""
    changed: PathTree | None = None
    """What may have changed in it, or None when that is not known."""
    revealed: PathTree | None = None
    """The paths in it that are looked at although they are excluded."""
    is_fresh: bool = True
    """Whether its own metadata may be new."""
    above: Directory | None = None
    """Where the walk comes from; it begins without one."""


class Directory:
    """One directory on the way down: what was seen in it, and what is captured of it.

    :meth:`Scanner.enter` makes it. The walk then enters what is in ``subdirectories``, gives back
    each with :meth:`add_child`, and calls :meth:`leave`.
    """

    def __init__(
        self,
        walk: Scanner,
        visit: Visit,
        stat: os.stat_result,
        xattrs: Xattrs | ObjectId | None,
        cached: tuple[Row, RowPlace] | None,
        listing: DirectoryListing,
        looked: frozenset[bytes] | None,
    ) -> None:
        """Takes what was seen of a directory; nothing is captured, reused or left out yet."""
        self._walk = walk
        self._progress = LargeFileProgress(walk.monitor)
        self.above: Directory | None = visit.above
        is_kept = self.above is None or len(visit.path) <= PATH_SIZE_MAX
        self.kept_path: bytes | None = visit.path if is_kept else None
        """Its path from the root; None where it is long and there is a directory above."""
        self.name: bytes = visit.name
        self._scope = visit.scope
        self._revealed = visit.revealed
        self._stat = stat
        self._xattrs = xattrs
        self._row: Row | None = cached[0] if cached is not None else None
        self._place: RowPlace | None = cached[1] if cached is not None else None
        self._looked = looked
        self.exclusions: Exclusions = listing.exclusions
        """What is excluded in it."""
        self._excluded = listing.revealed
        """Names that are looked at although they are excluded."""
        self._observations = listing.observations
        self._before = listing.before
        """What the row says of the names, once it was needed."""
        self._linked = listing.linked
        self._hidden = tuple(listing.hidden_types)
        self._packed = listing.packed or encode_observations(listing.observations)
        self._mapped = names_of(walk.mapped, listing.observations)
        """Names of files that may change with no sign of it: they are read, now and next time."""
        self._written = names_of(walk.written, listing.observations)
        """Names of files that may have changed with no sign of it: they are read now."""
        self._mounted = walk.mounted_in(visit.path)
        """Names that are left out, and may look as before something was mounted on them."""

        self._changed: PathTree | None = None
        """What to look at below, or None for everything."""
        self._is_same = False
        """Whether all names were observed just as the row says."""
        self.subdirectories: list[bytes] = []
        """What is still to be entered, in reverse order."""
        self._entries: dict[bytes, Entry] = {}
        """What was captured or reused, when the directory is not the same."""
        self._old: dict[bytes, Entry] | None = None
        self._skipped: list[tuple[bytes, int]] = []
        self._racy: set[bytes] = set()
        self._fresh: set[bytes] = set()
        """Subdirectories whose own metadata must be read again."""
        self._reused: set[bytes] = set()
        """Subdirectories that are not entered, because nothing in them changed."""
        self._children: dict[bytes, Stored] = {}
        self._has_changed_children = False

    @property
    def path(self) -> bytes:
        """Its path from the root; a long one is made anew when the walk has come to another."""
        if self.kept_path is not None:
            return self.kept_path
        last, path = self._walk.long_path or (None, b"")
        if last is self:
            return path
        if last is not None and last.above is self:
            path = path[: -1 - len(last.name)]
        else:
            names, directory = list[bytes](), self
            while directory.kept_path is None:
                names.append(directory.name)
                assert directory.above is not None
                directory = directory.above
            path = b"/".join([directory.kept_path, *reversed(names)])
        self._walk.long_path = (self, path)
        return path

    def compare(self, changed: PathTree | None) -> None:
        """Compares what was seen with the row, and decides what to look at below."""
        row = self._row
        if changed is not None and self._scope is None:
            changed.is_whole |= row is None or row.rules != self.exclusions.fingerprint
        self._changed = None if changed is not None and changed.is_whole else changed
        self._is_same = (
            row is not None
            and row.observations == self._packed
            and row.rules == self.exclusions.fingerprint
            and not (self._mapped or self._written or self._mounted)
            and not any(self._looked is None or name in self._looked for name in row.racy)
        )

    def capture(self, fd: int, listing: DirectoryListing) -> None:
        """Captures the names that differ from the row, or goes on with that when none does."""
        if self._row is not None and self._is_same:
            self._reuse(self._row)
        else:
            if self._walk.recorder is not None:
                self._walk.recorder[observed_key(self.path)] = self._packed
            self._capture_names(fd, dict(listing.hidden))
        files = len(self._observations) - len(self.subdirectories)
        self._progress.advance(files, sum(item[2] for item in self._observations))

    def note_links(self) -> None:
        """Notes the files with several names, but those that are left out."""
        for name, device, inode, link_count in self._linked:
            entry = self._entries.get(name)
            if entry is None or not entry.is_skipped:
                path = treepath.join(self.path, name)
                self._walk.links.add(device, inode, link_count, path)

    def _reuse(self, row: Row) -> None:
        """Goes on with a directory whose names are all as they were."""
        self._skipped = list(row.skipped)
        self._walk.skipped += [
            Skipped(treepath.join(self.path, name), SkipReason(reason))
            for name, reason in row.skipped
        ]
        self.subdirectories = subdirectories(row, reversed(self._observations))
        if self._changed is not None:
            names = self._changed.names
            self._reused = {
                name
                for name in self.subdirectories
                if name not in names and not self._is_rowless(name)
            }
            self.subdirectories = [name for name in self.subdirectories if name not in self._reused]
            self._note_skipped_below()
        left_out = dict(row.skipped)
        self._linked = [item for item in self._linked if item[0] not in left_out]

    def _note_skipped_below(self) -> None:
        """Notes what was left out below subdirectories that are not entered."""
        row = self._row
        if row is not None and row.totals.skipped > len(row.skipped):
            for name in sorted(self._reused):
                self._walk.skipped += self._walk.skipped_below(treepath.join(self.path, name))

    def _skip(self, name: bytes, reason: SkipReason) -> None:
        self._entries[name] = skipped_entry(name, reason)
        self._skipped.append((name, int(reason)))
        self._walk.skipped.append(Skipped(treepath.join(self.path, name), reason))
        if reason in _PASSING:
            self._racy.add(name)

    def _capture_names(self, fd: int, hidden: dict[bytes, int]) -> None:
        """Captures every name that is not known to be as it was."""
        seen, self._old = self._known()
        old = self._old or {}
        young = self._walk.young
        for item in self._observations:
            name, mode = item[0], item[1]
            is_known = seen.get(name) == item
            if is_known and not S_ISDIR(mode):
                self._entries[name] = old[name]
                continue
            if name in hidden:
                self._skip(name, SkipReason(hidden[name]))
                continue
            if young.include(item[3], item[4]) or name in self._mapped:
                self._racy.add(name)
            if S_ISDIR(mode):
                self._plan_descent(item, is_known=is_known)
            else:
                self._capture_name(fd, item)
        self.subdirectories.reverse()
        self._note_torn_databases(fd)
        for name in self._reused:
            self._entries[name] = old[name]
        self._note_skipped_below()

    def _note_torn_databases(self, fd: int) -> None:
        """Notes databases of SQLite of which a part was written after another had been read.

        Such a copy may not open: what is in the log belongs to one state of the database.
        """
        for item in self._observations:
            log = item[0]
            if not log.endswith(DATABASE_LOG_SUFFIXES):
                continue
            name = log[: log.rindex(b"-")]
            parts = [self._entries[part] for part in (name, log) if part in self._entries]
            if name in self._entries and any(self._was_written(fd, part) for part in parts):
                self._racy.update(part.name for part in parts)
                self._walk.unstable.append(treepath.join(self.path, name))

    def _was_written(self, fd: int, entry: Entry) -> bool:
        """Returns whether a file is another one than when it was read."""
        try:
            stat = self._walk.fs.lstat(entry.name, dir_fd=fd)
        except OSError:
            return True
        return not entry.is_skipped and (stat.st_size, stat.st_mtime_ns) != (
            entry.size,
            entry.mtime_ns,
        )

    def _known(self) -> tuple[dict[bytes, Any], dict[bytes, Entry] | None]:
        """Returns the last observations that may be trusted, and the entries of that time.

        The former are of names that were captured then: each of them has an entry.
        """
        row = self._row
        if row is None:
            return {}, None
        try:
            if self._before is None:
                self._before = decode_observations(row.observations)
            old = {entry.name: entry for entry in self._walk.trees.entries(row.tree_id)}
        except Corrupt:
            return {}, None
        seen: dict[bytes, Any] = self._before.copy()
        for name in self._mapped.union(self._written, self._mounted, row.racy):
            if self._looked is None or name in self._looked:
                seen.pop(name, None)
        for name, _ in row.skipped:
            seen.pop(name, None)
        for name in seen.keys() - old.keys():
            del seen[name]
        return seen, old

    def _plan_descent(self, item: Any, *, is_known: bool) -> None:
        name, inode, device = item[0], item[5], item[6]
        path = treepath.join(self.path, name)
        walk, changed = self._walk, self._changed
        other_device = device != self._stat.st_dev
        if (device, inode) in walk.settings.store:
            self._skip(name, SkipReason.STORE)
        elif (walk.mount_points or other_device) and walk.mounts.crosses(
            path, walk.mount_points, other_device=other_device
        ):
            self._skip(name, SkipReason.MOUNT)
        elif (
            is_known
            and changed is not None
            and name not in changed.names
            and not self._is_rowless(name)
        ):
            self._reused.add(name)
        else:
            self.subdirectories.append(name)
            if not is_known:
                self._fresh.add(name)
                if changed is not None and self._scope is None and name not in changed.names:
                    changed.at(name).is_whole = True

    def _is_rowless(self, name: bytes) -> bool:
        """Returns whether the path of one of its directories is too long for a row."""
        path = self.kept_path
        return path is None or len(path) + 1 + len(name) > PATH_SIZE_MAX

    def _has_rowless_children(self) -> bool:
        """Returns whether a directory in it has no row, so that each walk enters it."""
        path = self.kept_path
        if path is None:
            return bool(self._children)
        if len(path) <= _SHORT_PATH_SIZE:
            return False
        return any(map(self._is_rowless, self._children))

    def _capture_name(self, fd: int, item: Any) -> None:
        walk, name = self._walk, item[0]
        if S_ISLNK(item[1]) and (item[6], item[5]) in walk.settings.store:
            self._skip(name, SkipReason.STORE)
            return
        if walk.mount_points and treepath.join(self.path, name) in walk.mount_points:
            self._skip(name, SkipReason.MOUNT)
            return
        try:
            captured = capture(walk.fs, walk.sink, fd, item, self._progress.count)
        except OSError as error:
            if not blames_file(error):
                raise
            self._skip(name, SkipReason.UNREADABLE)
            return
        if captured is None:
            self._racy.add(name)
            return
        entry, read_bytes, is_stable = captured
        if entry.kind == _SKIPPED:
            self._skip(name, entry.skip_reason)
            return
        self._entries[name] = entry
        walk.files_read += read_bytes > 0
        walk.read_bytes += read_bytes
        if not is_stable:
            self._racy.add(name)
            walk.unstable.append(treepath.join(self.path, name))

    @property
    def name_count(self) -> int:
        """How many names it has."""
        return len(self._observations)

    @property
    def observed(self) -> tuple[int, ...]:
        """What was observed of it when it was entered."""
        stat = self._stat
        return (
            stat.st_mode,
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            stat.st_ino,
            stat.st_dev,
        )

    def has_observed(self, name: bytes, observed: tuple[int, ...]) -> bool:
        """Returns whether the same was observed of one of its names."""
        position = bisect_left(self._observations, (name,))
        return self._observations[position : position + 1] == [(name, *observed)]

    def descend(self, chain: DirectoryChain, names: list[bytes]) -> Directory | None:
        """Returns the subdirectory that ``names`` leads to from the root.

        Returns None when it is gone or cannot be read.
        """
        name = names[-1]
        path = treepath.join(self.path, name)
        scope = self._scope.names[name] if self._scope is not None else None
        revealed = self._revealed.names.get(name) if self._revealed is not None else None
        exclusions = self.exclusions
        if revealed is not None and revealed.is_whole:
            exclusions = Exclusions(heeds_files=False)
        elif name in self._excluded:
            exclusions = Exclusions.of_all(path)
        try:
            if len(names) > DEPTH_MAX:
                raise OSError(errno.ENAMETOOLONG, "It is too deep")
            visit = Visit(
                path,
                name,
                exclusions,
                scope if scope is not None and not scope.is_whole else None,
                self._changed.at(name) if self._changed is not None else None,
                revealed,
                is_fresh=name in self._fresh,
                above=self,
            )
            return self._walk.enter(chain.open_names(names), visit)
        except FileNotFoundError:
            self._racy.add(name)
        except OSError as error:
            if not blames_file(error):
                raise
            if isinstance(error, UnreadableRules):
                self._walk.monitor.warn(WarningCode.RULES_UNREADABLE, error.message)
            self._skip(name, SkipReason.UNREADABLE)
        self._has_changed_children = True
        return None

    def entry(self, tree_id: ObjectId) -> Entry:
        """Returns the directory's own entry."""
        return entry_without_size(self.name, EntryKind.DIRECTORY, self._stat, tree_id, self._xattrs)

    def add_child(self, child: Directory, stored: Stored) -> None:
        """Takes what a subdirectory became."""
        name, tree_id = child.name, stored.tree_id
        self._children[name] = stored
        self._has_changed_children |= stored.is_new
        is_fresh = name in self._fresh
        if not self._is_same or is_fresh:
            old = None if is_fresh else (self._old or {}).get(name)
            self._entries[name] = (
                child.entry(tree_id) if old is None else old._replace(content=tree_id)
            )

    def add_captured(self, entry: Entry, totals: Totals) -> None:
        """Takes a subdirectory that another process captured."""
        self._entries[entry.name] = entry
        self._children[entry.name] = Stored(entry.tree_id, totals, is_new=True, totals_before=None)
        self._has_changed_children = True

    def leave(self) -> Stored:
        """Stores the directory's tree, unless it is the cached one, and adds its row."""
        row, builder = self._row, self._walk.builder
        if row is not None and self._is_same:
            if not self._has_changed_children:
                if builder is not None:
                    assert self._place is not None
                    builder.keep(row, self._place, is_listed=self._has_rowless_children())
                return Stored(row.tree_id, row.totals, is_new=False, totals_before=row.totals)
            if (changed := self._changed_children(row)) is not None:
                return self._store_children(row, changed)
            self._complete_from_row(row)
        try:
            return self._store()
        except InvalidArgument as error:
            bad = [name for name, entry in self._entries.items() if not is_storable(entry)]
            if not bad:
                error.path = self.path
                raise
        for name in bad:  # what a tree cannot hold cannot be read
            self._skip(name, SkipReason.UNREADABLE)
        return self._store()

    def _changed_children(self, row: Row) -> list[tuple[bytes, Stored, Totals]] | None:
        """Returns which subdirectories are new, and what they held before.

        Returns None where something else is new as well, or that is not known.
        """
        if self._entries or self._racy or TOTAL_MAX in row.totals:
            return None
        changed = []
        for name, stored in self._children.items():
            if stored.is_new:
                if stored.totals_before is None:
                    return None
                changed.append((name, stored, stored.totals_before))
        return changed

    def _store_children(self, row: Row, changed: list[tuple[bytes, Stored, Totals]]) -> Stored:
        """Stores the directory again with what some of its subdirectories became.

        Costs as much as the pages that hold these.
        """
        walk, trees = self._walk, self._walk.trees
        before = after = Totals()
        for _, stored, totals_before in changed:
            before, after = before.plus(totals_before), after.plus(stored.totals)
        tree_id = put_with_subtrees(
            trees.tree(row.tree_id),
            {name: stored.tree_id for name, stored, _ in changed},
            totals := row.totals.with_new(before, after),
            walk.sink.put,
            lambda tree_id, tree: trees.keep(tree_id, tree, len(changed)),
            trees.tree,
        )
        return self._add_row(tree_id, totals)

    def _complete_from_row(self, row: Row) -> None:
        """Fills in the entries of a directory in which only children changed."""
        changed = self._entries
        self._old = {entry.name: entry for entry in self._walk.trees.entries(row.tree_id)}
        self._entries = dict(self._old)
        for name, stored in self._children.items():
            self._entries[name] = self._entries[name]._replace(content=stored.tree_id)
        for name in self._racy:
            self._entries.pop(name, None)
        self._entries.update(changed)

    def _store(self) -> Stored:
        walk = self._walk
        entries = [self._entries[name] for name in sorted(self._entries)]
        totals = self._totals(entries)
        old = map(id, (self._old or {}).values())
        new_count = len(set(map(id, entries)).difference(old))

        def keep(tree_id: ObjectId, tree: Tree) -> None:
            walk.trees.keep(tree_id, tree, min(new_count, len(tree.entries)))

        tree_id = put_tree(entries, totals, walk.sink.put, keep)
        if walk.builder is not None and self._scope is None:
            self._remove_lost(walk.builder)
        return self._add_row(tree_id, totals)

    def _add_row(self, tree_id: ObjectId, totals: Totals) -> Stored:
        """Notes what the directory became, for the next walk and for the one above it."""
        walk, row = self._walk, self._row
        if walk.builder is not None and self._scope is None and self.kept_path is not None:
            walk.builder.add(
                Row(
                    path=self.kept_path,
                    tree_id=tree_id,
                    totals=totals,
                    rules=self.exclusions.fingerprint,
                    racy=tuple(sorted(self._racy | self._still_racy())),
                    linked=bool(self._linked),
                    skipped=tuple(self._skipped),
                    observations=self._packed,
                    hidden=self._hidden,
                ),
                # Rules that were given for it need not be given next time.
                is_listed=(
                    bool(self._mapped)
                    or self._has_rowless_children()
                    or self.exclusions.are_given_for(self.kept_path)
                ),
            )
        if row is None:
            return Stored(tree_id, totals, is_new=True, totals_before=None)
        return Stored(tree_id, totals, row.tree_id != tree_id, totals_before=row.totals)

    def _still_racy(self) -> set[bytes]:
        """Returns the names that were racy and have not been looked at since.

        The watcher vouches for them in this walk, but the next complete walk does not ask it.
        """
        if self._row is None or self._looked is None:
            return set()
        return {name for name in self._row.racy if name not in self._looked}

    def _remove_lost(self, builder: StatCacheBuilder) -> None:
        """Drops cached rows below directories that were there, and were not walked."""
        if self._row is None:
            builder.remove(self.path)
            return
        before: Iterable[Any] = self._observations
        if not self._is_same:
            if self._before is None:  # it is damaged
                builder.remove(self.path)
                return
            before = self._before.values()
        for item in before:
            name = item[0]
            is_walked = name in self._children or name in self._reused
            if S_ISDIR(item[1]) and not is_walked:
                builder.remove(treepath.join(self.path, name))

    def _totals(self, entries: list[Entry]) -> Totals:
        """Returns the sums over the directory and all below it.

        Where most is as it was, costs as much as what is not.
        """
        row, old = self._row, self._old
        children = {name: stored.totals for name, stored in self._children.items()}
        if row is None or old is None or self._changed is None or TOTAL_MAX in row.totals:
            return self._sums(entries, children)
        children_before = {
            name: stored.totals_before
            for name, stored in self._children.items()
            if stored.totals_before is not None
        }
        gone = [entry for name, entry in old.items() if self._entries.get(name) is not entry]
        new = [entry for entry in entries if old.get(entry.name) is not entry]
        return row.totals.with_new(self._sums(gone, children_before), self._sums(new, children))

    def _sums(self, entries: list[Entry], children: dict[bytes, Totals]) -> Totals:
        """Returns the sums over some entries and everything below them.

        ``children`` are subdirectories that were entered; of others the cached rows tell.
        """
        files = directories = others = size_bytes = skipped = incomplete = 0
        sums = Totals()
        for entry in entries:
            kind = entry.kind
            if kind == _FILE:
                files += 1
                size_bytes += entry.size
            elif kind == _DIRECTORY:
                below = children.get(entry.name)
                if below is None:
                    path = treepath.join(self.path, entry.name)
                    below = self._walk.totals_below(path, entry.tree_id)
                directories += 1
                sums = sums.plus(below)
            elif kind == _SKIPPED:
                skipped += 1
                incomplete += entry.skip_reason == SkipReason.UNREADABLE
            else:
                others += 1
        return sums.plus(Totals(files, directories, others, size_bytes, skipped, incomplete))
