"""States of a root: what is stored of a snapshot, what happened to it since, and lists of them.

Not here: what is in its tree (entries), bytes (codec), files of a store (store).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

from treesnap.core.model import treepath
from treesnap.core.model.entries import LINES_MAX, Entry, FileContent, Totals
from treesnap.core.model.errors import printable
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import (
    ID_DIGITS,
    Fields,
    html_table,
    json_fields,
    path_text,
    short_repr,
)
from treesnap.core.model.quantities import first_few, size_text, time_text
from treesnap.core.model.type_names import NewType, Self

SnapshotId = NewType("SnapshotId", str)
"""The 64 hex digits that identify a snapshot."""
_FIRST_TIME = datetime.min.replace(tzinfo=UTC)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)


def utc_time(time_ns: int) -> datetime:
    """Returns a time as a datetime in UTC; the first or last one beyond the calendar."""
    try:
        return datetime.fromtimestamp(time_ns / 1e9, tz=UTC)
    except (OverflowError, OSError, ValueError):
        return _LAST_TIME if time_ns > 0 else _FIRST_TIME


def utc_text(time_ns: int) -> str:
    """Returns a time as ISO 8601, in UTC."""
    return utc_time(time_ns).isoformat().replace("+00:00", "Z")


class SnapshotKind(StrEnum):
    """Who asked for a snapshot. Only a manual one is kept whatever the policy."""

    MANUAL = "manual"
    SAFETY = "safety"
    RUN = "run"
    WATCH = "watch"
    PLAN = "plan"
    AUTOMATIC = "automatic"
    """One of many that some other program takes."""


Retag = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Returns what becomes of the tags that a snapshot got later."""


class IgnoreRules(NamedTuple):
    """Patterns in gitignore syntax, and the directory that they are relative to."""

    directory: bytes
    patterns: tuple[str, ...]


class Attachment(NamedTuple):
    """A sealed file of the root, as it stood at a moment, that a snapshot carries.

    It changes with the files or not at all. Its contents mean something to a feature alone.
    """

    kind: str
    """``plan``, the only one so far: the field of the record that carries it."""
    name: str
    """Its name among those of its kind."""
    payload: bytes
    """What its file holds."""


class SnapshotRecord(NamedTuple):
    """What is stored of a snapshot; never changes after it is published."""

    root: Entry
    """The root directory itself, with an empty name."""
    links: FileContent | None
    """Content of the table of hard-link groups, or None when there are none."""
    root_path: bytes
    created_at_ns: int
    totals: Totals
    kind: SnapshotKind = SnapshotKind.MANUAL
    scope: tuple[bytes, ...] | None = None
    """The paths that a path-scoped snapshot holds, or None for the whole root."""
    rules: tuple[IgnoreRules, ...] = ()
    """The exclusions that were in force."""
    unstable: tuple[bytes, ...] = ()
    """Files that kept changing while they were read."""
    parent: SnapshotId | None = None
    added_bytes: int | None = None
    """Bytes that its objects added to the packs, or None if unknown."""
    host: str = ""
    label: str | None = None
    name: str | None = None
    session: str | None = None
    step: int | None = None
    tags: Mapping[str, str] = {}
    attachment: Attachment | None = None
    """Of a safety snapshot: the file that left this state together with those of the tree."""

    def covers(self, paths: Sequence[bytes] = ()) -> bool:
        """Returns whether it was taken of all of some paths, or without any of the whole root."""
        scope = self.scope
        if scope is None:
            return True
        return bool(paths) and all(
            any(treepath.is_within(path, mine) for mine in scope) for path in paths
        )

    def __repr__(self) -> str:
        return short_repr(self)


class SnapshotState(NamedTuple):
    """What happened to a snapshot after it was taken; kept beside it."""

    pinned: bool = False
    tags: Mapping[str, str] = {}
    """Tags that it got later; one of the same key as a tag of the record hides that."""
    removed_tags: tuple[str, ...] = ()
    """Keys of tags of the record that were removed later, sorted."""
    label: str | None = None
    """The label that it got later, empty for none; None for that of the record."""


class Snapshot(NamedTuple):
    """One captured state of a root."""

    id: SnapshotId
    sequence: int
    """Its place in the root's history; larger is newer."""
    root_hash: str
    """Identity of the captured state: equal states have equal hashes."""
    record: SnapshotRecord
    state: SnapshotState
    root_id: str = ""
    """The root in whose history it was found; empty if it lies in none of the store."""

    @property
    def created_at(self) -> datetime:
        """When the snapshot was taken, in UTC; see :func:`utc_time`."""
        return utc_time(self.record.created_at_ns)

    @property
    def complete(self) -> bool:
        """Whether everything below the root that can be captured was captured."""
        return self.record.totals.incomplete == 0

    @property
    def label(self) -> str | None:
        """The text given by the caller, by ``describe`` too."""
        later = self.state.label
        return self.record.label if later is None else later or None

    @property
    def name(self) -> str | None:
        """The caller's own id for the snapshot, unique in its root."""
        return self.record.name

    @property
    def kind(self) -> SnapshotKind:
        """Who asked for it."""
        return self.record.kind

    @property
    def session(self) -> str | None:
        """The work that it belongs to."""
        return self.record.session

    @property
    def step(self) -> int | None:
        """Its place in the session."""
        return self.record.step

    @property
    def scope(self) -> tuple[bytes, ...] | None:
        """The paths that it holds, or None for the whole root."""
        return self.record.scope

    @property
    def path_text(self) -> str:
        """The root that was captured, as text that Python's file functions take."""
        return path_text(self.record.root_path)

    @property
    def pinned(self) -> bool:
        """Whether it is protected from deletion."""
        return self.state.pinned

    @property
    def tags(self) -> dict[str, str]:
        """All its tags: those that it was taken with and still has, and those that it got later."""
        removed = self.state.removed_tags
        kept = {key: value for key, value in self.record.tags.items() if key not in removed}
        return {**kept, **self.state.tags}

    def has_tag(self, tag: str) -> bool:
        """Returns whether it has a tag of the form ``KEY`` or ``KEY=VALUE``."""
        key, has_value, value = tag.partition("=")
        tags = self.tags
        return key in tags and (not has_value or tags[key] == value)

    def to_dict(self) -> Fields:
        """Returns the snapshot as ``snap list --json`` prints it; ``json.dumps`` takes it."""
        from treesnap.core.model.reserved_tags import (
            TEXTS,
            counters_in,
            is_retired,
            own_tags,
            rollback_count,
            rollback_reason,
            stated_facts,
        )

        record, facts = self.record, stated_facts(self)
        return json_fields(
            {
                "id": self.id,
                "scope": record.scope,
                "label": self.label,
                "name": record.name,
                "created_at": utc_text(record.created_at_ns),
                "created_at_ns": record.created_at_ns,
                "root_hash": self.root_hash,
                "complete": self.complete,
                "pinned": self.pinned,
                "kind": record.kind,
                "session": record.session,
                "step": record.step,
                **{name: facts.get(name) for name in TEXTS},
                "counters": counters_in(facts),
                "rollback_count": rollback_count(self),
                "rollback_used": rollback_count(self) > 0,
                "rollback_reason": rollback_reason(self),
                "retired": is_retired(self),
                "tags": own_tags(self),
                "files": record.totals.files,
                "size_bytes": record.totals.size_bytes,
                "added_bytes": record.added_bytes,
                "root": record.root_path,
            }
        )

    def __repr__(self) -> str:
        """Returns id, time, kind and what people call it, on one line."""
        moment = utc_time(self.record.created_at_ns).isoformat(" ", "seconds")
        cells = _cells(self, moment.replace("+00:00", "Z"))
        return f"<Snapshot {' '.join(filter(None, cells))}>"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks."""
        return html_table(_SNAPSHOT_HEAD, [_shown(self)])


_SNAPSHOT_HEAD = ("id", "time", "kind", "size", "name", "label", "session", "")
_LABEL_LENGTH_MAX = 48


def _shown(snapshot: Snapshot) -> tuple[str, ...]:
    """Returns what a table shows, with the time in the local zone, as in a terminal."""
    return _cells(snapshot, time_text(snapshot.record.created_at_ns))


def _cells(snapshot: Snapshot, moment: str) -> tuple[str, ...]:
    record = snapshot.record
    step = "" if record.step is None else f" step {record.step}"
    flags = ["pinned" if snapshot.pinned else "", "" if snapshot.complete else "incomplete"]
    if record.scope is not None:
        flags.append("only " + first_few(record.scope, lambda path: printable(path) or "."))
    return (
        snapshot.id[:ID_DIGITS],
        moment,
        snapshot.kind.value,
        size_text(record.totals.size_bytes),
        f"[{printable(snapshot.name)}]" if snapshot.name is not None else "",
        printable(_cut(snapshot.label or "")),
        f"({printable(record.session or '')}{step})" if record.session or step else "",
        ", ".join(filter(None, flags)),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LABEL_LENGTH_MAX else text[:_LABEL_LENGTH_MAX] + "..."


class SnapshotList(tuple[Snapshot, ...]):
    """The snapshots that ``list`` found or ``delete`` removed: a tuple of the readable ones."""

    damaged: tuple[SnapshotId, ...]
    """The others, of which only the id is known."""
    newer: tuple[SnapshotId, ...]
    """Those that a newer treesnap wrote, and this one cannot read."""

    def __new__(
        cls,
        readable: Iterable[Snapshot] = (),
        damaged: Iterable[SnapshotId] = (),
        newer: Iterable[SnapshotId] = (),
    ) -> Self:
        """Returns all of them as one value."""
        made = super().__new__(cls, readable)
        made.damaged = tuple(damaged)
        made.newer = tuple(newer)
        return made

    def to_dict(self) -> Fields:
        """Returns the snapshots as ``snap list --json`` prints them; ``json.dumps`` takes it."""
        return {
            "snapshots": [item.to_dict() for item in self],
            "damaged": list(self.damaged),
            "newer": list(self.newer),
        }

    def __repr__(self) -> str:
        """Returns the snapshots, one a line; of many the newest, and how many others there are."""
        lines = [f"<SnapshotList of {len(self):,}>", *map(repr, self[:LINES_MAX])]
        if len(self) > LINES_MAX:
            lines.append(f"... {len(self) - LINES_MAX:,} more")
        lines += [f"damaged: {identity[:ID_DIGITS]}" for identity in self.damaged]
        lines += [f"of a newer version: {identity[:ID_DIGITS]}" for identity in self.newer]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns a table for notebooks."""
        above = f"{len(self):,} snapshots"
        for what, ids in (("damaged", self.damaged), ("of a newer version", self.newer)):
            if ids:
                above += f"; {what}: " + ", ".join(identity[:ID_DIGITS] for identity in ids)
        return html_table(_SNAPSHOT_HEAD, [_shown(item) for item in self], above)
