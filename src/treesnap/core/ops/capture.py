"""Capturing a root into a store: the part that ``create`` and ``restore`` share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress

from treesnap.core.codec.journal import is_valid_stage_name
from treesnap.core.codec.reader import check_object
from treesnap.core.model.entries import ObjectId, ObjectKind, Skipped, SkipReason
from treesnap.core.model.errors import Corrupt, ErrorCode, NotFound, Refused, WarningCode, quoted
from treesnap.core.model.events import Phase
from treesnap.core.model.ids import object_id
from treesnap.core.model.quantities import first_few, size_text
from treesnap.core.model.requests import WHOLE_ROOT, CaptureRequest
from treesnap.core.model.snapshots import Snapshot, SnapshotRecord
from treesnap.core.model.type_names import TYPE_CHECKING, Self
from treesnap.core.ops.context import Context, Session, store_identities
from treesnap.core.ops.known_changes import query_watcher, walk_with_fallback
from treesnap.core.ops.privileges import elsewhere_tags, note_captured
from treesnap.core.ops.tree_state import MemoryObjects, State, walked_state
from treesnap.core.store.roots import read_journal, registered_roots
from treesnap.core.store.snapshots import SnapshotListing
from treesnap.core.worktree.scan.scanner import (
    NOTHING_KNOWN,
    KnownChanges,
    Scanner,
    ScanResult,
    ScanSettings,
)
from treesnap.core.worktree.scan.statcache import StatCache, StatCacheBuilder, load

if TYPE_CHECKING:
    from treesnap.core.codec.watch import WatchNote
    from treesnap.core.model.events import Monitor
    from treesnap.core.store.store import Store
    from treesnap.core.store.writer import Added, Writer
    from treesnap.core.worktree.apply.preconditions import Observed

HELPERS_MIN = 2
"""Helper processes from which on they capture, too. On two cores, the threads that compress keep
the second one busy already."""

Observations = dict[bytes, bytes]
"""Packed observations of directories that are not in the stat cache, by ``observed_key``."""


def latest(session: Session, scope: tuple[bytes, ...] | None = None) -> Snapshot | None:
    """Returns the newest readable snapshot of the root with this scope, or None."""
    snapshots = session.store.snapshots.readable(session.root.id)
    return next((item for item in snapshots if item.record.scope == scope), None)


def usable_cache(session: Session, listing: SnapshotListing | None = None) -> StatCache | None:
    """Returns the root's stat cache unless what its trees need may be lost.

    ``listing`` is what the caller has listed of the root's snapshots.
    """
    store = session.store
    # Before the cache is read: who writes a first part removes all caches first.
    if not store.index.parts:
        return None
    cache = load(session.fs, session.root.file("cache"))
    if cache is None or _is_pack_lost(store) or not _is_there(store, cache.tree_id):
        return None
    if listing is None:
        listing = session.store.snapshots.listing(session.root.id)
    if cache.snapshot_id in listing:
        return cache
    newest = latest(session)
    return cache if newest is not None and newest.record.root.content == cache.tree_id else None


def _is_pack_lost(store: Store) -> bool:
    """Returns whether a pack is gone or cut off that no collection has removed."""
    if not store.missing_packs():
        return False
    from treesnap.core.store.collector import lost_packs  # a look at the tree does without it

    return bool(lost_packs(store))


def _is_there(store: Store, tree_id: ObjectId) -> bool:
    """Returns whether a directory is in the index, or in what no part covers.

    Where the newest pack is lost with the part that names it, nothing else tells that it was there.
    """
    if store.index.find(tree_id) is None:
        store.scan_uncovered()
    return any(True for _ in store.index.find_all(tree_id))


def scan_settings(
    context: Context,
    request: CaptureRequest = WHOLE_ROOT,
    known: KnownChanges = NOTHING_KNOWN,
    *,
    root: str | None = None,
    cached_rules_hold: bool = True,
) -> ScanSettings:
    """Returns the settings for a walk that begins now, of the root or of another directory.

    A walk that uses a watcher's answer began when the watcher was asked: younger files may have
    been written through mappings that the watcher did not see.
    """
    return ScanSettings(
        root=root if root is not None else context.root,
        started_ns=known.asked_ns if known.asked_ns is not None else context.clock_ns(),
        request=request,
        known=known,
        cached_rules_hold=cached_rules_hold,
        store=store_identities(context),
        tree_cache=context.tree_cache,
    )


def preview(session: Session, request: CaptureRequest = WHOLE_ROOT) -> Capture:
    """Walks the root without writing anything."""
    with Capture(session, request._replace(keeps_nothing=True)) as seen:
        return seen


def live_state(session: Session, request: CaptureRequest) -> State:
    """Returns the root as it is, and warns of what cannot be read and thus not be compared."""
    seen = preview(session, request)
    unread = [item.path for item in seen.result.skipped if item.reason == SkipReason.UNREADABLE]
    if unread:
        session.monitor.warn(
            WarningCode.NOT_COMPARED,
            f"What cannot be read is not compared: {first_few(unread, quoted)}",
        )
    return seen.state


def uncaptured(context: Context) -> tuple[Skipped, ...]:
    """Returns what a first capture of the root would leave out; stores nothing."""
    settings = scan_settings(context)
    return Scanner(context.fs, settings, _Nowhere(), context.monitor, None).scan().skipped


class _Nowhere:
    """Discards objects; there are no earlier ones."""

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        check_object(kind, data)
        return object_id(kind, data)

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        raise Corrupt(f"Nothing was stored, and so not the {kind.name} {identity.hex()[:12]}")


class _Unstored(MemoryObjects):
    """Stands in for a writer where there is no room for one."""

    added_bytes = objects_added = needed_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class _FirstSize:
    """Tells once that the first snapshot of a root has grown large: it may be the wrong directory.

    All else goes on to the monitor of the context. What that raises ends the capture.
    """

    def __init__(self, context: Context, size_bytes_max: int) -> None:
        self._monitor = context.monitor
        self._root = context.root
        self._limit = size_text(size_bytes_max)
        self.left_bytes: int | None = size_bytes_max
        """How much more it may hold before that is told, or None once it was."""

    def begin(self, phase: Phase, files: int | None, size_bytes: int | None) -> None:
        """Passes the phase on."""
        self._monitor.begin(phase, files, size_bytes)

    def advance(self, files: int, size_bytes: int) -> None:
        """Passes the progress on, and counts it."""
        self._monitor.advance(files, size_bytes)
        if self.left_bytes is not None:
            self.left_bytes -= size_bytes
            if self.left_bytes < 0:
                self.tell()

    def tell(self) -> None:
        """Tells now that the snapshot is large."""
        self.left_bytes = None
        self.warn(
            WarningCode.ROOT_LARGE,
            f"The first snapshot of {quoted(self._root)} holds more than {self._limit}",
        )

    def warn(self, code: WarningCode, message: str) -> None:
        """Passes the warning on."""
        self._monitor.warn(code, message)


class Capture:
    """One walk of the root, which stores what it finds. Use as a context manager.

    The caller holds the root's lock, so that no other snapshot of it comes or goes
    meanwhile. Nothing is visible before :meth:`publish`.
    """

    def __init__(
        self,
        session: Session,
        request: CaptureRequest,
        *,
        earlier: Mapping[bytes, Added] | None = None,
        is_shared: bool = False,
    ) -> None:
        """Prepares a walk, in several processes if ``is_shared`` and the tree is large.

        Where ignore files do not count, or anything excluded is revealed, the stat cache is read,
        but not written. ``earlier`` is what an attempt before stored.
        """
        self._session = session
        self._request = request
        self._observations: Observations | None = {} if request.observes else None
        self._listing = session.store.snapshots.listing(session.root.id)
        self.cache: StatCache | None = (
            usable_cache(session, self._listing) if not request.fresh else None
        )
        self.writer: Writer | _Unstored = _Unstored(session.store)
        if not request.keeps_nothing:
            from treesnap.core.store.writer import Writer

            self.writer = Writer(
                session.store, size_bytes_max=request.max_size_bytes, earlier=earlier
            )
        # What helpers store twice must not count against a limit.
        self._is_shared = is_shared and request.max_size_bytes is None
        self._builder: StatCacheBuilder | None = None
        self._is_published = False
        self.result: ScanResult
        self._monitor: Monitor | _FirstSize = session.monitor
        is_first = self._listing.newest is None and request.scope is None
        if is_first and request.first_size_bytes is not None and not request.keeps_nothing:
            self._monitor = _FirstSize(session.context, request.first_size_bytes)

    def __enter__(self) -> Self:
        self.writer.__enter__()
        try:
            self.result = self._scan()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        # A published snapshot stays, even if the clean-up fails.
        with suppress(OSError) if self._is_published else nullcontext():
            if self._builder is not None:
                self._builder.discard()
            self.writer.__exit__(*exception)

    @property
    def state(self) -> State:
        """The captured tree."""
        return walked_state(self.result)

    @property
    def observed(self) -> Observed:
        """What was there, for comparing it before each step of a restore."""
        from treesnap.core.worktree.apply.preconditions import Observed

        return Observed(self._observations or {}, self.cache)

    @property
    def trusts_watcher(self) -> bool:
        """Whether a part of the root was not looked at, because a watcher vouched for it."""
        return self._known.changed is not None

    def _scan(self) -> ScanResult:
        known = query_watcher(self._session, self.cache)
        self._known, result = walk_with_fallback(self._walk, known, self._request.scope)
        stages = [item.path for item in result.skipped if is_valid_stage_name(item.path)]
        if stages and not self._request.keeps_nothing:
            refuse_interrupted_elsewhere(self._session, stages)
        return result

    def _walk(self, known: KnownChanges) -> ScanResult:
        context, temporary = self._session.context, self._session.store.layout.temporary
        request = self._request
        is_partial = known.changed is not None
        if self._builder is not None:
            self._builder.discard()
        is_usual = request.heeds_ignore_files and not request.revealed
        if request.scope is None and is_usual and not request.keeps_nothing:
            self._builder = StatCacheBuilder(
                context.fs, temporary, self.cache, is_partial=is_partial
            )
        if self._observations is not None:
            self._observations.clear()
        is_unknown = is_partial or request.keeps_nothing
        self._monitor.begin(Phase.SCAN, *((None, None) if is_unknown else self._expected()))
        settings = scan_settings(
            context, request, known, cached_rules_hold=self._cached_rules_hold()
        )
        self._started_ns = settings.started_ns
        scanner = Scanner(
            context.fs,
            settings,
            self.writer,
            self._monitor,
            self.cache,
            self._builder,
            self._observations,
        )
        first = self._monitor
        if isinstance(first, _FirstSize) and context.is_attended and first.left_bytes is not None:
            from treesnap.core.worktree.scan.size_limit import holds_more

            if holds_more(scanner, first.left_bytes):
                first.tell()
        is_shared = self._is_shared and self.cache is None and request.scope is None
        if is_shared and not isinstance(self.writer, _Unstored) and _has_helpers():
            from treesnap.core.worktree.scan.parallel_capture import ParallelScanner

            scanner = ParallelScanner(
                context.fs, settings, self.writer, self._monitor, self._builder
            )
        return scanner.scan()

    def _cached_rules_hold(self) -> bool:
        """Returns whether what the stat cache leaves out is left out now, too."""
        request = self._request
        if request.revealed:
            return False
        is_same = self.cache is not None and self.cache.snapshot_id == request.rules_of_id
        return request.heeds_ignore_files or is_same

    def _expected(self) -> tuple[int | None, int | None]:
        """Returns files and bytes of the last snapshot of the same paths, to show progress."""
        newest = self._listing.newest
        if newest is None:
            return None, None
        try:
            record = self._session.store.snapshots.load(self._session.root.id, newest).record
        except (Corrupt, NotFound):
            return None, None
        if record.scope != self._request.scope:
            return None, None
        totals = record.totals
        return totals.files + totals.others, totals.size_bytes

    def record(self, **fields: object) -> SnapshotRecord:
        """Returns the record of the captured state with the caller's metadata."""
        result = self.result
        record = SnapshotRecord(
            root=result.root,
            links=result.links,
            root_path=os.fsencode(self._session.context.root),
            created_at_ns=self._session.context.clock_ns(),
            totals=result.totals,
            scope=self._request.scope,
            rules=result.rules,
            unstable=result.unstable,
            host=os.uname().nodename,
        )
        return record._replace(**fields)  # type: ignore[arg-type]  # fields are the record's own

    def publish(self, record: SnapshotRecord) -> Snapshot:
        """Publishes the snapshot, durably, then the stat cache; may raise EpochChanged."""
        store, root = self._session.store, self._session.root
        newest = self._listing.newest
        if record.parent is None and newest is not None:
            record = record._replace(parent=newest.id)
        assert not isinstance(self.writer, _Unstored)
        self._session.monitor.begin(Phase.SYNC, None, None)
        identity, name = self.writer.publish(record, root.id, self._listing.next_sequence)
        self._is_published = True
        note_captured(identity)
        if self._builder is not None:
            with suppress(OSError):  # the snapshot is published, and the old cache still serves
                watch = self._watch_note(self._builder.listed)
                self._builder.publish(root.file("cache"), identity, record.root.tree_id, watch)
        return store.snapshots.load(root.id, name)

    def _watch_note(self, listed: tuple[bytes, ...]) -> WatchNote | None:
        mark, note = self._known.mark, self._known.note
        if mark is None:
            return None
        walked_ns = note.walked_ns if note is not None else self._started_ns
        unfinished = self.result.unfinished_links
        from treesnap.core.codec.watch import WatchNote

        return WatchNote(mark, walked_ns, listed, unfinished, self.result.rules)


def _has_helpers() -> bool:
    from treesnap.core.fs.forked import helper_count

    return helper_count() >= HELPERS_MIN


def publish_again(session: Session, snapshot: Snapshot, what: str, /, **fields: object) -> Snapshot:
    """Publishes the state of a snapshot with other metadata; raises Busy.

    The caller holds the root's lock. Raises NotFound where the snapshot was deleted meanwhile: one
    that was fetched is in another root.
    """
    from treesnap.core.store.writer import Writer, retry_overtaken

    store, root = session.store, session.root
    record = snapshot.record._replace(
        created_at_ns=session.context.clock_ns(),
        attachment=None,
        **fields,  # type: ignore[arg-type]  # fields are the record's own
    )
    record = record._replace(tags={**record.tags, **elsewhere_tags(session, snapshot)})

    def publish(_: object) -> Snapshot:
        with Writer(store) as writer:
            sequence = store.snapshots.listing(root.id).next_sequence
            _, name = writer.publish(record, root.id, sequence, [snapshot])
        return store.snapshots.load(root.id, name)

    return retry_overtaken(what, publish)


def refuse_interrupted_elsewhere(session: Session, stages: Iterable[bytes]) -> None:
    """Raises Refused for a tree that was moved or copied here in the middle of a restore.

    ``stages`` are the names of the staging directories in it. The tree is a mix of two states,
    and the journal that says which belongs to the path where it was. Without such a journal the
    staging directories are named in a warning.
    """
    names = ", ".join(quoted(stage) for stage in stages)
    for path in registered_roots(session.fs, session.store.layout):
        try:
            journal = read_journal(session.store.root(path))
        except Corrupt:
            continue
        if journal is not None and journal.commit is not None and journal.stage_name in stages:
            raise Refused(
                f"{quoted(session.context.root)} was {quoted(path)} when a restore of it was "
                "interrupted, so some of its files are old and some new",
                code=ErrorCode.RESTORE_INTERRUPTED,
                path=session.context.root,
            )
    session.monitor.warn(
        WarningCode.STAGE_FOUND,
        f"{names} in {quoted(session.context.root)} holds what an interrupted restore had "
        "prepared or moved aside, of this tree at another path or with another store. No snapshot "
        "holds it",
    )
