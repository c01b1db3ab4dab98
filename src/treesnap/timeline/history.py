"""The rows that a view of a history has: a part of them in memory, read when it is looked at.

A history may have 100,000 snapshots. Their names come from one directory; a record is read with
its neighbours when one of their rows is drawn, and dropped again when many others were since. So
what a row shows follows from its own record and those beside it. Knows no terminal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from treesnap.core.model.entries import Change, ChangeKind
from treesnap.core.model.errors import NotFound, printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import count_text, size_text
from treesnap.core.model.reserved_tags import own_tags
from treesnap.core.model.snapshots import Snapshot, SnapshotId
from treesnap.core.ops.history.steps import BEFORE_EVENT, AgentStep, EventPhase, step_of

if TYPE_CHECKING:
    from treesnap.core.handle import Handle
    from treesnap.core.store.snapshots import SnapshotName

PAGE_LENGTH = 128
"""Records that are read together."""
KEPT_MAX = 8192
"""Records in memory at most."""
LOOK_MAX = 512
"""Rows that are looked at for the one to compare with."""
SHORT_ID = 12

LETTERS = {
    ChangeKind.ADDED: "A",
    ChangeKind.REMOVED: "D",
    ChangeKind.MODIFIED: "M",
    ChangeKind.TYPE: "T",
    ChangeKind.METADATA: "P",
}
"""How a path changed, as ``snap diff --name-status`` writes it."""


class HistoryRow(NamedTuple):
    """One snapshot of the history."""

    name: SnapshotName
    snapshot: Snapshot | None
    """None where its record is damaged, or was deleted."""
    step: AgentStep | None
    """What an agent was about to do, or None for snapshots of others."""

    @property
    def session(self) -> str | None:
        """The session that it belongs to."""
        return self.snapshot.record.session if self.snapshot is not None else None

    @property
    def is_prompt(self) -> bool:
        """Whether it is the state before a prompt, with which a group begins."""
        return self.step is not None and self.step.phase is EventPhase.TURN

    @property
    def title(self) -> str:
        """What it is about, on one line."""
        return title_of(self.snapshot) if self.snapshot is not None else "(cannot be read)"

    @property
    def search_text(self) -> str:
        """What a search looks at."""
        host = self.step.host if self.step is not None else ""
        return f"{self.name.id} {self.title} {self.session or ''} {host}".casefold()


class ComparedStates(NamedTuple):
    """Two states to compare."""

    old_id: SnapshotId | None
    """None is a root without anything in it."""
    new_id: SnapshotId | None
    """None is the tree as it is now."""

    def changes(self, handle: Handle) -> Iterator[Change]:
        """Yields what changed; from snapshot to snapshot while it is read."""
        if self.new_id is not None:
            yield from handle.each_change(self.old_id, self.new_id)
        elif self.old_id is not None:
            yield from handle.diff(self.old_id)

    def change_at(self, handle: Handle, path: bytes) -> Change:
        """Returns how one path changed; raises NotFound where it did not."""
        paths = [path] if path else None
        if self.new_id is not None:
            changes: Iterator[Change] = handle.each_change(self.old_id, self.new_id, paths)
        else:
            changes = iter(handle.diff(self.old_id, None, paths))
        change = next(changes, None)  # what is below the path comes after it
        if change is None or change.path != path:
            raise NotFound(f"{printable(path) or '.'} does not differ any more", path=path)
        return change


class Group(NamedTuple):
    """Neighbouring rows of one session, down to the prompt that they follow from."""

    session: str | None
    host: str | None
    prompt: HistoryRow | None
    rows: tuple[HistoryRow, ...]
    """Newest first; the last one is the prompt, if there is one."""


class History:
    """The snapshots of a root as rows, newest first."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.names: tuple[SnapshotName, ...] = ()
        self.records_read: int = 0
        """How many records were read so far."""
        self._places: dict[SnapshotId, int] | None = None
        self._records: OrderedDict[SnapshotId, Snapshot | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.names)

    def take(self, names: Sequence[SnapshotName]) -> None:
        """Uses newer names; records that were read stay."""
        self.names = tuple(names)
        self._places = None

    def place_of(self, identity: SnapshotId) -> int | None:
        """Returns the index of a snapshot's row, or None."""
        if self._places is None:
            self._places = {name.id: index for index, name in enumerate(self.names)}
        return self._places.get(identity)

    def row(self, index: int) -> HistoryRow:
        """Returns a row; reads its record and its neighbours' if that is not in memory."""
        name = self.names[index]
        if name.id not in self._records:
            begin = index - index % PAGE_LENGTH
            self._read(self.names[begin : begin + PAGE_LENGTH])
        self._records.move_to_end(name.id)
        snapshot = self._records[name.id]
        return HistoryRow(name, snapshot, step_of(snapshot) if snapshot is not None else None)

    def replace(self, snapshot: Snapshot) -> None:
        """Shows another state of a snapshot, such as a pin."""
        self._records[snapshot.id] = snapshot

    def begins_session(self, index: int) -> bool:
        """Returns whether the row above is of another session."""
        session = self.row(index).session
        if session is None:
            return False
        return index == 0 or self.row(index - 1).session != session

    def sides(self, index: int) -> ComparedStates:
        """Returns which two states say what a row did.

        What an agent did comes after the snapshot: it is taken before each prompt and each
        tool. All other snapshots are taken after what they are about.
        """
        row = self.row(index)
        if row.step is not None and row.step.phase in BEFORE_EVENT:
            newer = self._end_of_prompt(index) if row.is_prompt else self._whole(index, -1)
            return ComparedStates(row.name.id, newer.id if newer is not None else None)
        older = self._whole(index, 1)
        return ComparedStates(older.id if older is not None else None, row.name.id)

    def _whole(self, index: int, direction: int) -> Snapshot | None:
        """Returns the next snapshot, upwards or downwards, that was taken of the same paths.

        Among LOOK_MAX rows; after these the last one, whose paths alone are then compared.
        """
        own = self.row(index).snapshot
        scope = (own.record.scope or ()) if own is not None else ()
        end = len(self.names) if direction > 0 else -1
        last: Snapshot | None = None
        for other in islice(range(index + direction, end, direction), LOOK_MAX):
            last = self.row(other).snapshot or last
            if last is not None and last.record.covers(scope):
                return last
        return last

    def _end_of_prompt(self, index: int) -> Snapshot | None:
        """Returns the state when a prompt was done: its turn's end, or what came after it."""
        session = self.row(index).session
        for newer in range(index - 1, max(-1, index - 1 - LOOK_MAX), -1):
            row = self.row(newer)
            if row.snapshot is None or row.snapshot.record.scope is not None:
                continue
            ends = row.step is not None and row.step.phase in {EventPhase.TURN, EventPhase.END}
            if ends or row.session != session:
                return row.snapshot
        return None

    def groups(self) -> Iterator[Group]:
        """Yields all rows in groups, newest first; reads all records, a page at a time."""
        rows: list[HistoryRow] = []
        for index in range(len(self.names)):
            row = self.row(index)
            if rows and row.session != rows[-1].session:
                yield _group(rows)
                rows = []
            rows.append(row)
            if row.is_prompt:
                yield _group(rows)
                rows = []
        if rows:
            yield _group(rows)

    def matches(self, text: str, start: int) -> Iterator[int | None]:
        """Yields the rows from ``start`` on that hold a text, and None after each page without.

        So the caller can stop a search that finds nothing.
        """
        folded = text.casefold()
        for index in range(start, len(self.names)):
            if folded in self.row(index).search_text:
                yield index
            elif index % PAGE_LENGTH == 0:
                yield None

    def _read(self, names: Sequence[SnapshotName]) -> None:
        unread = [name for name in names if name.id not in self._records]
        by_id: dict[SnapshotId, Snapshot | None] = {name.id: None for name in unread}
        by_id |= {snapshot.id: snapshot for snapshot in self.handle.load(unread)}
        self.records_read += len(unread)
        self._records.update(by_id)
        while len(self._records) > KEPT_MAX:
            self._records.popitem(last=False)


def _group(rows: Sequence[HistoryRow]) -> Group:
    prompt = rows[-1] if rows[-1].is_prompt else None
    host = next((row.step.host for row in rows if row.step is not None), None)
    return Group(rows[0].session, host, prompt, tuple(rows))


def title_of(snapshot: Snapshot) -> str:
    """Returns what a snapshot is about, on one line."""
    record, step = snapshot.record, step_of(snapshot)
    parts = []
    if record.name is not None:
        parts.append(f"[{record.name}]")
    if snapshot.label is not None:
        parts.append(snapshot.label)
    elif step is not None:
        parts.append(step.tool or step.phase.value)
    if record.step is not None and step is None:
        parts.append(f"step {record.step}")
    parts += [f"{key}={value}" for key, value in sorted(own_tags(snapshot).items())]
    if record.scope is not None:
        parts.append(f"(only {count_text(len(record.scope), 'path')})")
    return printable(" ".join(parts) or snapshot.kind.value)


def added_text(snapshot: Snapshot) -> str:
    """Returns by how much a snapshot made the store grow; nothing where it did not."""
    added_bytes = snapshot.record.added_bytes
    return "" if not added_bytes else f"+{size_text(added_bytes)}"
