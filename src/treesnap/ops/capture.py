"""Capturing a root into a store: the part that ``create`` and ``restore`` share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from treesnap.codec.journal import is_valid_stage_name
from treesnap.codec.reader import check_object
from treesnap.codec.watch import WatchNote
from treesnap.errors import Corrupt, NotFound
from treesnap.events import Phase
from treesnap.fs.base import FileSystem
from treesnap.hashing import object_id
from treesnap.model import (
    IgnoreRules,
    ObjectId,
    ObjectKind,
    Skipped,
    Snapshot,
    SnapshotId,
    SnapshotRecord,
)
from treesnap.ops.access import MemoryObjects, Opened
from treesnap.ops.history import snapshots_of
from treesnap.ops.watching import NOTHING_KNOWN, Outlook, outlook, surely
from treesnap.store.snapshots import Listing
from treesnap.store.writer import Added, Writer
from treesnap.worktree.scan import Scanner
from treesnap.worktree.scanned import ScanResult, ScanSettings
from treesnap.worktree.statcache import StatCache, StatCacheBuilder, load

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

Recorder = dict[bytes, bytes]
"""Packed observations of directories that are not in the stat cache, by path."""


def identity_of(fs: FileSystem, path: str) -> tuple[int, int] | None:
    """Returns device and inode of a path, or None when it does not exist."""
    try:
        stat = fs.lstat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def latest(pair: Opened, scope: tuple[bytes, ...] | None = None) -> Snapshot | None:
    """Returns the newest readable snapshot of the root with this scope, or None."""
    return next((item for item in snapshots_of(pair) if item.record.scope == scope), None)


def usable_cache(handle: Handle, pair: Opened, listing: Listing | None = None) -> StatCache | None:
    """Returns the root's stat cache if the trees that it names are sure to exist.

    ``listing`` is what the caller has listed of the root's snapshots.
    """
    cache = load(handle.fs, pair.root.file("cache"))
    if cache is None or not pair.store.has_all_packs():
        return None
    if listing is None:
        listing = pair.store.snapshots.listing(pair.root.id)
    if cache.snapshot_id in listing:
        return cache
    newest = latest(pair)
    return cache if newest is not None and newest.record.root.content == cache.tree_id else None


def scan_settings(
    handle: Handle,
    scope: tuple[bytes, ...] | None,
    rules: tuple[IgnoreRules, ...],
    known: Outlook = NOTHING_KNOWN,
) -> ScanSettings:
    """Returns the settings for a walk of the handle's root that begins now.

    With what a watcher said it began when that was asked: whatever is younger than that may
    have been written through mappings that the watcher did not see.
    """
    return ScanSettings(
        root=handle.root,
        scope=scope,
        rules=rules,
        store=identity_of(handle.fs, handle.store_path),
        started_ns=known.asked_ns if known.asked_ns is not None else handle.clock_ns(),
        changed=known.changed,
        mapped=known.mapped,
        written=known.written,
        noted_rules=known.note.rules if known.note is not None else (),
    )


@dataclass(slots=True)
class Preview:
    """A live tree that was looked at, with nothing stored."""

    result: ScanResult
    objects: MemoryObjects
    cache: StatCache | None
    """The cache whose rows stood for directories that had not changed."""


def preview(
    handle: Handle,
    pair: Opened,
    scope: tuple[bytes, ...] | None = None,
    rules: tuple[IgnoreRules, ...] = (),
    recorder: Recorder | None = None,
    *,
    heeds_ignore_files: bool = True,
    revealed: frozenset[bytes] = frozenset(),
) -> Preview:
    """Walks the root without writing anything.

    With ``heeds_ignore_files`` off the given rules hold alone, as for a capture by the rules of
    a snapshot.
    """
    objects = MemoryObjects(pair.store)
    cache = usable_cache(handle, pair)

    def walk(known: Outlook) -> ScanResult:
        if recorder is not None:
            recorder.clear()
        handle.monitor.begin(Phase.SCAN, None, None)
        settings = scan_settings(handle, scope, rules, known)
        if not heeds_ignore_files:
            settings = replace(
                settings, heeds_ignore_files=False, cached_rules_hold=False, revealed=revealed
            )
        return Scanner(
            handle.fs, settings, objects, handle.monitor, cache, recorder=recorder
        ).scan()

    _, result = surely(walk, outlook(handle, pair, cache), scope)
    return Preview(result, objects, cache)


def uncaptured(handle: Handle) -> tuple[Skipped, ...]:
    """Returns what a first capture of the root would leave out; stores and keeps nothing."""
    settings = scan_settings(handle, None, ())
    return Scanner(handle.fs, settings, _Nowhere(), handle.monitor, None).scan().skipped


class _Nowhere:
    """Takes objects and forgets them; there are no earlier ones."""

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        check_object(kind, data)
        return object_id(kind, data)

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        raise Corrupt(f"Nothing was stored, and so not the {kind.name} {identity.hex()[:12]}")


class _Unstored(MemoryObjects):
    """In the place of a writing session where there is no room for one."""

    added_bytes = objects_added = needed_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class Capture:
    """One walk of the root into a writing session. Use as a context manager.

    The caller holds the root's lock, so that no other snapshot of it comes or goes
    meanwhile. Nothing is visible before :meth:`publish`. With ``fresh`` everything is read,
    whatever a watcher or the stat cache says.
    """

    def __init__(
        self,
        handle: Handle,
        pair: Opened,
        *,
        scope: tuple[bytes, ...] | None = None,
        rules: tuple[IgnoreRules, ...] = (),
        recorder: Recorder | None = None,
        size_bytes_max: int | None = None,
        fresh: bool = False,
        earlier: Mapping[bytes, Added] | None = None,
        rules_of_id: SnapshotId | None = None,
        revealed: frozenset[bytes] = frozenset(),
        keeps_nothing: bool = False,
    ) -> None:
        """Prepares a walk.

        With ``keeps_nothing`` no byte is written to the store, and nothing can be published.

        With ``rules_of_id`` the given rules, which are those of that snapshot, hold alone:
        ignore files in the tree say nothing. Then the stat cache is read, but not written.
        Nothing is excluded below ``revealed`` directories.
        """
        self._handle = handle
        self._pair = pair
        self._scope = scope
        self._rules = rules
        self._rules_of_id = rules_of_id
        self._revealed = revealed
        self.recorder = recorder
        self._listing = pair.store.snapshots.listing(pair.root.id)
        self._fresh = fresh
        self.cache = usable_cache(handle, pair, self._listing) if not fresh else None
        self.writer: Writer | _Unstored = (
            _Unstored(pair.store)
            if keeps_nothing
            else Writer(pair.store, size_bytes_max=size_bytes_max, earlier=earlier)
        )
        self._builder: StatCacheBuilder | None = None
        self._is_published = False

    def __enter__(self) -> Self:
        self.writer.__enter__()
        try:
            self.result = self._scan()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        # A snapshot that was published is there, whatever tidying up comes to.
        with suppress(OSError) if self._is_published else nullcontext():
            if self._builder is not None:
                self._builder.discard()
            self.writer.__exit__(*exception)

    @property
    def trusts_watcher(self) -> bool:
        """Whether a part of the root was not looked at, because a watcher vouched for it."""
        return self._known.changed is not None

    def _scan(self) -> ScanResult:
        known = outlook(self._handle, self._pair, self.cache)
        self._known, result = surely(self._walk, known, self._scope)
        stages = [item.path for item in result.skipped if is_valid_stage_name(item.path)]
        if stages:
            from treesnap.ops.recover import refuse_interrupted_elsewhere

            refuse_interrupted_elsewhere(self._handle, self._pair, stages)
        return result

    def _walk(self, known: Outlook) -> ScanResult:
        handle, temporary = self._handle, self._pair.store.layout.temporary
        is_partial = known.changed is not None
        if self._builder is not None:
            self._builder.discard()
        if self._scope is None and self._rules_of_id is None:
            self._builder = StatCacheBuilder(
                handle.fs, temporary, self.cache, is_partial=is_partial
            )
        if self.recorder is not None:
            self.recorder.clear()
        handle.monitor.begin(Phase.SCAN, *((None, None) if is_partial else self._expected_totals()))
        settings = scan_settings(handle, self._scope, self._rules, known)
        if self._rules_of_id is not None:
            is_same = self.cache is not None and self.cache.snapshot_id == self._rules_of_id
            settings = replace(
                settings,
                heeds_ignore_files=False,
                cached_rules_hold=is_same and not self._revealed,
                revealed=self._revealed,
            )
        self._started_ns = settings.started_ns
        return Scanner(
            handle.fs,
            settings,
            self.writer,
            handle.monitor,
            self.cache,
            self._builder,
            self.recorder,
        ).scan()

    def _expected_totals(self) -> tuple[int | None, int | None]:
        """Returns what progress is shown against: what the last snapshot held of the same paths."""
        newest = self._listing.newest
        if newest is None:
            return None, None
        try:
            record = self._pair.store.snapshots.load(self._pair.root.id, newest).record
        except (Corrupt, NotFound):
            return None, None
        if record.scope != self._scope:
            return None, None
        totals = record.totals
        return totals.files + totals.others, totals.size_bytes

    def record(self, **fields: object) -> SnapshotRecord:
        """Returns the record of the captured state with the caller's metadata."""
        result = self.result
        record = SnapshotRecord(
            root=result.root,
            links=result.links,
            root_path=os.fsencode(self._handle.root),
            created_at_ns=self._handle.clock_ns(),
            totals=result.totals,
            scope=self._scope,
            rules=result.rules,
            unstable=result.unstable,
            host=os.uname().nodename,
        )
        return replace(record, **fields)  # type: ignore[arg-type]  # fields are the record's own

    def publish(self, record: SnapshotRecord) -> Snapshot:
        """Publishes the snapshot, durably, then the stat cache; may raise EpochChanged."""
        store, root = self._pair.store, self._pair.root
        newest = self._listing.newest
        if record.parent is None and newest is not None:
            record = replace(record, parent=newest.id)
        assert isinstance(self.writer, Writer)
        identity, name = self.writer.publish(record, root.id, self._listing.next_sequence)
        self._is_published = True
        if self._builder is not None:
            with suppress(OSError):  # the snapshot is published; the old cache does as well
                watch = self._watch_note(self._builder.listed)
                self._builder.publish(root.file("cache"), identity, record.root.tree_id, watch)
        return store.snapshots.load(root.id, name)

    def _watch_note(self, listed: tuple[bytes, ...]) -> WatchNote | None:
        mark, note = self._known.mark, self._known.note
        if mark is None:
            return None
        walked_ns = note.walked_ns if note is not None else self._started_ns
        unfinished = self.result.unfinished_links
        return WatchNote(mark, walked_ns, listed, unfinished, self.result.rules)
