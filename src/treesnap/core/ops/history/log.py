"""``log``: the history of a root, what each snapshot changed, and where the root stands in it."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from treesnap.core.codec.reader import TreeReader
from treesnap.core.codec.root_files import GAPS, GAPS_FILE, Gap
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.entries import Change, ChangeKind, Entry, EntryKind, Totals
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    StoreMissing,
    quoted,
)
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import parse_moment
from treesnap.core.model.reserved_tags import (
    IMPORTED,
)
from treesnap.core.model.results import HistoryGap, LogEntry, RestorePoints
from treesnap.core.model.snapshots import Snapshot, SnapshotKind
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.history.steps import plan_step_of
from treesnap.core.ops.references import Filter, paths_in_history, resolve_in
from treesnap.core.ops.tree_state import compared, recorded_state
from treesnap.core.store.roots import load_history
from treesnap.core.store.snapshots import SnapshotName, restored_ref
from treesnap.core.worktree.directory import absent_paths

PAUSE_MIN_S = 86_400
"""A shorter time without a snapshot is not a gap."""
_NEVER_NS = -(1 << 63)
"""Before every time: a clock that stands before 1970 gives snapshots negative ones."""
_LOOK_BACK_MAX = 256
"""Snapshots that are read at most to find the one that the root stands at."""


class LogRequest(NamedTuple):
    """What of a history is asked for."""

    path: bytes | None = None
    """Only snapshots in which this path differs from the one before."""
    limit: int | None = None
    since: str | None = None
    """A moment, as :func:`treesnap.core.model.quantities.parse_moment` reads it."""
    kind: SnapshotKind | None = None
    session: str | None = None
    pattern: str | None = None
    """A regular expression that the name, the label, or the value of a tag matches."""


def log(context: Context, request: LogRequest) -> Iterator[LogEntry]:
    """Yields snapshots, newest first, each compared with the one before it when it is reached.

    Costs a record for each snapshot, and the trees that differ from the one before. What is wrong
    with the request is raised at once: NotFound for a path that exists neither now nor in a
    snapshot, for which the history is looked through where the path is absent now.
    """
    try:
        pattern = re.compile(request.pattern or "", re.IGNORECASE)
    except re.error as error:
        raise InvalidArgument(f"{request.pattern!r} is not a regular expression: {error}") from None
    since_ns = (
        parse_moment(request.since, context.clock_ns()) if request.since is not None else _NEVER_NS
    )
    if request.limit is not None and request.limit < 0:
        raise InvalidArgument(f"There cannot be {request.limit} snapshots")
    in_session = Filter(session=request.session)
    if request.path:
        _refuse_unknown(context, request.path)

    def is_wanted(snapshot: Snapshot) -> bool:
        record = snapshot.record
        texts = (record.name, snapshot.label, *snapshot.tags.values())
        return (
            record.created_at_ns >= since_ns
            and request.kind in (None, record.kind)
            and in_session.fits(snapshot)
            and (request.pattern is None or any(pattern.search(text) for text in texts if text))
        )

    def entries() -> Iterator[LogEntry]:
        left = request.limit
        with opened(context, "look at the history") as session:
            position = _position(session)
            history = _CountedHistory(session)
            for snapshot, older, before in _with_older(iter(history), request.path):
                if left == 0:
                    break
                if not is_wanted(snapshot):
                    continue
                entry = _entry(session, snapshot, older, request.path)
                if entry is not None:
                    yield entry._replace(
                        is_position=position is not None and snapshot.id == position.id,
                        plan_step=plan_step_of(snapshot),
                        gap=history.gap(snapshot, before),
                    )
                    left = left - 1 if left is not None else None

    def entries_if_any() -> Iterator[LogEntry]:
        try:
            yield from entries()
        except StoreMissing:
            return

    return entries_if_any()


def ways_back(context: Context) -> RestorePoints:
    """Returns where the root stands, and what undo and redo would go to.

    Takes no lock, so a restore may change it.
    """
    snapshots: list[Snapshot | None] = []
    try:
        with opened(context, "look at the history", recover=False) as session:
            history = load_history(session.root)
            for moments in (history.undo, history.redo):
                snapshot = None
                if moments:
                    with suppress(NotFound, Corrupt):
                        snapshot = resolve_in(session, moments[-1].snapshot_id)
                snapshots.append(snapshot)
            return RestorePoints(snapshots[0], snapshots[1], _position(session))
    except StoreMissing:
        return RestorePoints(None, None, None)


def recorded_gaps(context: Context, session_id: str) -> tuple[Gap, ...]:
    """Returns what of a session was not captured at all, newest first. Reads one file."""
    try:
        with opened(context, "look for gaps", recover=False) as session:
            return tuple(gap for gap in reversed(gaps_in(session)) if gap.session == session_id)
    except StoreMissing:
        return ()


def gaps_in(session: Session) -> tuple[Gap, ...]:
    """Returns what was not captured of a root, oldest first; nothing where it cannot be read."""
    with suppress(Corrupt, OSError):
        return session.root.read(GAPS_FILE, GAPS) or ()
    return ()


class _CountedHistory:
    """The readable snapshots of a root, newest first, and what is missing between two of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._damaged: list[SnapshotName] = []
        self._reached: dict[int, tuple[int, int]] = {}
        """By number: how many were readable up to that snapshot, and how many damaged."""
        self._not_captured_ns = sorted(gap.time_ns for gap in gaps_in(session))

    def __iter__(self) -> Iterator[Snapshot]:
        log, root_id = self._session.store.snapshots, self._session.root.id
        for snapshot in log.readable(root_id, self._damaged):
            self._reached[snapshot.sequence] = len(self._reached) + 1, len(self._damaged)
            yield snapshot

    def gap(self, newer: Snapshot, older: Snapshot | None) -> HistoryGap | None:
        """Returns what is missing between snapshots that were reached; None is the beginning."""
        seen, damaged = self._reached[newer.sequence]
        begin_ns, end_ns = _NEVER_NS, newer.record.created_at_ns
        if older is not None:
            seen_then, damaged_then = self._reached[older.sequence]
            numbers, seen_between = newer.sequence - older.sequence - 1, seen_then - seen - 1
            begin_ns = older.record.created_at_ns
        else:
            damaged_then = len(self._damaged)
            numbers, seen_between = newer.sequence - 1, len(self._reached) - seen
        unreadable = damaged_then - damaged
        pause_s = (end_ns - begin_ns) // 1_000_000_000
        gap = HistoryGap(
            pause_s if older is not None and pause_s >= PAUSE_MIN_S else None,
            max(0, numbers - seen_between - unreadable),
            unreadable,
            max(0, bisect(self._not_captured_ns, end_ns) - bisect(self._not_captured_ns, begin_ns)),
        )
        return gap if any(gap) else None


def _refuse_unknown(context: Context, path: bytes) -> None:
    """Raises NotFound for a path that exists neither now nor in a snapshot of the root."""

    def is_absent() -> bool:
        with suppress(NotFound, Refused), translating_os_errors("look at the path"):
            return bool(absent_paths(context.fs, context.root, [path]))
        return True  # so is the root

    if not is_absent():
        return
    with suppress(StoreMissing), opened(context, "look at the history") as session:
        # an interrupted restore has ended by now, which may have put the path back
        if not is_absent() or paths_in_history(session, [path]):
            return
    raise NotFound(
        f"{quoted(path)} exists neither now nor in a snapshot of this root",
        code=ErrorCode.PATH_NOT_FOUND,
        path=path,
    )


def _position(session: Session) -> Snapshot | None:
    """Returns the snapshot that the root was saved in, or restored to, last.

    Which one that is, the newest snapshot tells: before a restore there is one that names it.
    In place of one that a restore made comes the newest other one of the same state, if any.
    """
    log, root = session.store.snapshots, session.root
    recent = [
        item
        for item in islice(log.readable(root.id), _LOOK_BACK_MAX)
        if item.record.scope is None and IMPORTED not in item.record.tags
    ]
    if not recent:
        return None
    state = recent[0]
    ref = restored_ref(state)
    if ref is not None:
        with suppress(NotFound, Corrupt, InvalidArgument):
            state = resolve_in(session, ref)
    if state.kind is not SnapshotKind.SAFETY:
        return state
    alike = [item for item in recent if item.root_hash == state.root_hash]
    made = (item for item in alike if item.kind is not SnapshotKind.SAFETY)
    return next(made, next(iter(alike), state))


def _with_older(
    snapshots: Iterator[Snapshot], path: bytes | None
) -> Iterator[tuple[Snapshot, Snapshot | None, Snapshot | None]]:
    """Yields snapshots, each with the newest older one that holds all that it was taken of.

    The third is the one just before it. With a path, those alone that were taken of it.
    """
    if path is not None:
        snapshots = (item for item in snapshots if item.record.covers([path]))
    ahead = deque[Snapshot]()

    def older_of(snapshot: Snapshot) -> Snapshot | None:
        scope = (path,) if path is not None else snapshot.record.scope or ()
        for item in ahead:
            if item.record.covers(scope):
                return item
        for item in snapshots:
            ahead.append(item)
            if item.record.covers(scope):
                return item
        return None

    first = next(snapshots, None)
    while first is not None:
        older = older_of(first)
        yield first, older, ahead[0] if ahead else None
        first = ahead.popleft() if ahead else next(snapshots, None)


def _entry(
    session: Session, snapshot: Snapshot, older: Snapshot | None, path: bytes | None
) -> LogEntry | None:
    """Returns what a snapshot changed; None where a path is as it was."""
    trees = session.store.trees()
    record = snapshot.record
    if path is not None:
        now = trees.find(record.root, path)
        before = trees.find(older.record.root, path) if older is not None else None
        if now == before:
            return None
        if older is None and now is not None:
            whole = _totals(now, trees)
            change = Change(path, ChangeKind.ADDED, None, now)
            added = whole.files + whole.directories + whole.others + (1 if path else 0)
            return LogEntry(snapshot, None, added, 0, 0, whole.size_bytes, change)
    if older is None:
        totals = record.totals
        added = totals.files + totals.directories + totals.others
        return LogEntry(snapshot, None, added, 0, 0, totals.size_bytes)
    scope = (path,) if path else record.scope
    changes = compared(
        recorded_state(session, older.record, scope),
        recorded_state(session, record, scope),
        scope,
        session.path_budget(),
    )
    if path is not None and not changes:
        return None
    count = Counter(change.change for change in changes)
    added, removed = count[ChangeKind.ADDED], count[ChangeKind.REMOVED]
    return LogEntry(
        snapshot,
        older.id,
        added,
        removed,
        len(changes) - added - removed,
        sum(_size_bytes(change.new) - _size_bytes(change.old) for change in changes),
        next((change for change in changes if change.path == path), None),
    )


def _totals(entry: Entry, trees: TreeReader) -> Totals:
    if entry.is_directory:
        return trees.totals(entry.tree_id)
    return Totals(size_bytes=_size_bytes(entry))


def _size_bytes(entry: Entry | None) -> int:
    return entry.size if entry is not None and entry.kind == EntryKind.FILE else 0
