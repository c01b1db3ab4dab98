"""The snapshots of a root under the names of a mounted directory.

    latest/                  what the REF `latest` means
    ids/ID/                  every snapshot by its whole id; the beginning of one is found too
    names/NAME/              those with a name
    times/TIME-ID/           every readable snapshot, by when it was taken in UTC
    sessions/SESSION/STEP/   the newest snapshot of each step of a session
    sessions/SESSION/TIME-ID/  those without a step

The names of files are listed when the directory of the snapshots changed, and their records are
read when a name needs them: `ids` needs none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC

from treesnap.core.model.errors import Corrupt, NotFound, printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind
from treesnap.core.ops.context import Session
from treesnap.core.store.snapshots import SnapshotListing, SnapshotName

LATEST, IDS, NAMES, TIMES, SESSIONS = b"latest", b"ids", b"names", b"times", b"sessions"
TOP = (IDS, LATEST, NAMES, SESSIONS, TIMES)
_DIGITS_MIN = 4
"""Of the beginning of an id, as in a REF."""
_DIGITS_SHOWN = 12
_RECORDS_MAX = 64

Below = tuple[bytes, ...]
"""The components of a path below the mounted directory."""


class SnapshotPlace(NamedTuple):
    """A snapshot, and where it lies."""

    snapshot: Snapshot
    depth: int
    """How many components lead to it."""
    is_fixed: bool
    """Whether the path never leads to another snapshot."""


class _KnownNames:
    """What records say, of all readable snapshots of a listing."""

    def __init__(self) -> None:
        self.names: dict[bytes, SnapshotName] = {}
        self.times: dict[bytes, SnapshotName] = {}
        self.sessions: dict[bytes, dict[bytes, SnapshotName]] = {}


class _Facts(NamedTuple):
    """The part of a record that makes names. It is small, so those of all snapshots are kept."""

    time: bytes
    name: bytes | None
    session: bytes | None
    step: bytes | None


class SnapshotPaths:
    """The snapshots of a root by path; notices those that are made and deleted meanwhile."""

    def __init__(self, session: Session, report: Callable[[str], None]) -> None:
        self._session = session
        self._report = report
        self._mark: tuple[int, int] | None = None
        self._is_settled = False
        self._listing = SnapshotListing([])
        self._facts: dict[SnapshotId, _Facts | None] = {}
        self._names: _KnownNames | None = None
        self._latest: SnapshotId | None = None
        self._records: OrderedDict[SnapshotId, Snapshot] = OrderedDict()

    def update(self) -> bool:
        """Looks for new and deleted snapshots; returns whether there are any.

        Costs a look at one directory. What changed within one tick of its clock looks the same
        as before, so after a change it is listed once more.
        """
        store = self._session.store
        try:
            info = self._session.fs.lstat(store.layout.root_snapshots(self._session.root.id))
            mark = info.st_ino, info.st_mtime_ns
        except FileNotFoundError:
            mark = 0, 0
        is_changed = mark != self._mark
        if not is_changed and self._is_settled:
            return False
        self._is_settled = not is_changed
        self._mark = mark
        self._listing = store.snapshots.listing(self._session.root.id)
        self._names = None
        self._latest = None
        return is_changed

    def has(self, identity: SnapshotId) -> bool:
        """Returns whether a snapshot is there, as far as the last update knows."""
        return identity in self._listing

    def children(self, path: Below) -> list[tuple[bytes, SnapshotId | None]] | None:
        """Returns the names in a directory above the snapshots, each with what snapshot it is.

        None for any other path.
        """
        match path:
            case ():
                newest = self._newest()
                listed = [(name, None) for name in TOP if name != LATEST]
                return [*listed, (LATEST, newest.id)] if newest is not None else [*listed]
            case (b"ids",):
                return [(name.id.encode(), name.id) for name in self._listing]
            case (b"names",):
                return _with_ids(self._all().names)
            case (b"times",):
                return _with_ids(self._all().times)
            case (b"sessions",):
                return [(name, None) for name in self._all().sessions]
            case (b"sessions", session):
                steps = self._all().sessions.get(session)
                return _with_ids(steps) if steps is not None else None
        return None

    def is_above(self, path: Below) -> bool:
        """Returns whether a path is a directory above the snapshots."""
        match path:
            case () | ((b"ids" | b"names" | b"times" | b"sessions"),):
                return True
            case (b"sessions", session):
                return session in self._all().sessions
        return False

    def find(self, path: Below) -> SnapshotPlace | None:
        """Returns the snapshot that a path leads to or into, or None.

        Raises Corrupt for one that cannot be read, and NotFound if it was just deleted.
        """
        name: SnapshotName | None = None
        is_fixed = False
        match path:
            case (b"latest", *_):
                snapshot = self._newest()
                return SnapshotPlace(snapshot, 1, is_fixed=False) if snapshot is not None else None
            case (b"ids", identity, *_):
                name, is_fixed = self._by_id(identity)
            case (b"names", word, *_):
                name = self._all().names.get(word)
            case (b"times", word, *_):
                name, is_fixed = self._all().times.get(word), True
            case (b"sessions", session, word, *_):
                name = self._all().sessions.get(session, {}).get(word)
        if name is None:
            return None
        return SnapshotPlace(self._load(name), 3 if path[0] == SESSIONS else 2, is_fixed)

    def _by_id(self, word: bytes) -> tuple[SnapshotName | None, bool]:
        text = word.decode("ascii", "replace")
        whole = self._listing.find(text)
        if whole is not None or len(text) < _DIGITS_MIN:
            return whole, True
        matches = [name for name in self._listing if name.id.startswith(text)]
        return (matches[0] if len(matches) == 1 else None), False

    def _load(self, name: SnapshotName) -> Snapshot:
        snapshot = self._records.get(name.id)
        if snapshot is None:
            snapshot = self._session.store.snapshots.load(self._session.root.id, name)
            self._records[name.id] = snapshot
            if len(self._records) > _RECORDS_MAX:
                self._records.popitem(last=False)
        return snapshot

    def _newest(self) -> Snapshot | None:
        """Returns the newest snapshot of the whole root that a restore did not make, or None."""
        if self._latest is not None:
            found = self._listing.find(self._latest)
            return self._load(found) if found is not None else None
        for name in self._listing:
            try:
                snapshot = self._load(name)
            except (Corrupt, NotFound):
                continue
            if snapshot.kind != SnapshotKind.SAFETY and snapshot.scope is None:
                self._latest = snapshot.id
                return snapshot
        return None

    def _all(self) -> _KnownNames:
        """Returns the names that records give, the newest snapshot first."""
        if self._names is not None:
            return self._names
        made = _KnownNames()
        facts = {name.id: self._facts_of(name) for name in self._listing}
        self._facts = facts
        for name in self._listing:
            fact = facts[name.id]
            if fact is None:
                continue
            made.times[fact.time] = name
            if fact.name is not None:
                made.names.setdefault(fact.name, name)
            if fact.session is not None:
                steps = made.sessions.setdefault(fact.session, {})
                steps.setdefault(fact.step or fact.time, name)
        self._names = made
        return made

    def _facts_of(self, name: SnapshotName) -> _Facts | None:
        """Returns what a record says, None for one that cannot be read."""
        if name.id in self._facts:
            return self._facts[name.id]
        try:
            snapshot = self._session.store.snapshots.load(self._session.root.id, name)
        except NotFound:
            return None
        except Corrupt as error:
            self._report(f"Snapshot {name.id[:_DIGITS_SHOWN]} is damaged: {printable(str(error))}")
            return None
        moment = snapshot.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return _Facts(
            time=f"{moment}-{snapshot.id[:_DIGITS_SHOWN]}".encode(),
            name=file_name(snapshot.name) if snapshot.name is not None else None,
            session=file_name(snapshot.session) if snapshot.session is not None else None,
            step=str(snapshot.step).encode() if snapshot.step is not None else None,
        )


def _with_ids(names: dict[bytes, SnapshotName]) -> list[tuple[bytes, SnapshotId | None]]:
    return [(name, snapshot.id) for name, snapshot in names.items()]


def file_name(word: str) -> bytes:
    """Returns a name as one component of a path: ``/`` and ``%`` become ``%2F`` and ``%25``."""
    escaped = word.replace("%", "%25").replace("/", "%2F")
    if escaped in {".", ".."}:
        escaped = escaped.replace(".", "%2E")
    return escaped.encode("utf-8", "surrogateescape")
