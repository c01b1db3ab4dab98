"""What a reference means: finding snapshots of a root, in an open store.

Records never change. So names that were read once are cached in the root's *name table*, up to
the number of the newest snapshot that was read; only newer records are read again. A snapshot
that was deleted since fails to load, so the table never has to be corrected. If it is lost or
old, more records are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice, takewhile

from treesnap.core.codec.root_files import NAMES, NameTable
from treesnap.core.features import finders
from treesnap.core.model.entries import ObjectId
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    OnlyOfPaths,
    quoted,
)
from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.quantities import parse_moment, time_text
from treesnap.core.model.reserved_tags import CheckpointType, stated_facts
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.context import Session, replaced_by_link
from treesnap.core.store.snapshots import SnapshotListing, SnapshotName, position_in

if TYPE_CHECKING:
    import re
    from datetime import datetime

_LATEST = LateRegex(
    rf"(latest|newest)(?::({'|'.join(CheckpointType)}))?(?:~([0-9]{{1,9}}))?(?:@(.+))?\Z"
)
_MOMENT = "@"
_STEP = LateRegex(r"step:([0-9]{1,18})\Z")
_FOREIGN_DIGITS_MIN = 12
_LABELS_MAX = 1000
"""Snapshots that are read in search of one with a label: only to advise it."""
_ABBREVIATION = LateRegex(r"[0-9a-f]{4,64}\Z")
STEP_MAX = 10**18 - 1
"""The largest step that a reference can name."""


def is_reserved_name(name: str) -> bool:
    """Returns whether a reference of these letters is never looked up as a name."""
    is_time = name.startswith(_MOMENT)
    return bool(not name or is_time or _LATEST.compiled.match(name) or _STEP.compiled.match(name))


class Filter(NamedTuple):
    """Conditions that snapshots must meet; None means any."""

    session: str | None = None
    tag: str | None = None
    """``KEY`` or ``KEY=VALUE``."""
    kind: SnapshotKind | None = None
    since: datetime | None = None
    """When the oldest one may have been taken; with a zone."""
    type: str | None = None
    """What makes it worth returning to, said by a system or by its caller."""
    phase: str | None = None
    """The phase of the work, said likewise."""

    def fits(self, snapshot: Snapshot) -> bool:
        """Returns whether a snapshot meets them."""
        return (
            self.session in (None, snapshot.record.session)
            and self.kind in (None, snapshot.kind)
            and (self.since is None or snapshot.created_at >= self.since)
            and (self.tag is None or snapshot.has_tag(self.tag))
            and self.type in (None, stated_facts(snapshot).get("type"))
            and self.phase in (None, stated_facts(snapshot).get("phase"))
        )


def paths_in_history(session: Session, paths: Iterable[bytes]) -> set[bytes]:
    """Returns those of some paths that a readable snapshot of the root holds.

    Reads equal trees once; stops when all were found.
    """
    missing, present = set(paths), set[bytes]()
    trees, seen = session.store.trees(), set[ObjectId]()
    for snapshot in session.store.snapshots.readable(session.root.id):
        if not missing:
            break
        root = snapshot.record.root
        if root.tree_id in seen:
            continue
        seen.add(root.tree_id)
        try:
            held = {path for path in missing if trees.find(root, path) is not None}
        except Corrupt:
            continue
        present |= held
        missing -= held
    return present


@contextmanager
def reading(session: Session, snapshot: Snapshot) -> Iterator[None]:
    """Raises NotFound, not Corrupt, for what is missing because the snapshot was deleted meanwhile.

    Readers take no lock, so a collection may delete content under them.
    """
    try:
        yield
    except Corrupt as error:
        if any(name.id == snapshot.id for _, name in session.store.snapshots.all_names()):
            raise
        raise NotFound(f"Snapshot {snapshot.id[:12]} was deleted meanwhile") from error


def resolve_in(
    session: Session,
    ref: str,
    *,
    criteria: Filter | None = None,
    paths: Sequence[bytes] = (),
    anywhere: bool = False,
) -> Snapshot:
    """Returns the snapshot that a reference names in an open store.

    In this order: ``latest``, ``latest~N``, ``newest``, ``newest~N``, any of these with ``:TYPE``
    after the word or ``@SESSION`` at the end, ``step:N``, ``@TIME`` for the latest one at that
    time, a full id, a name, the unique beginning of an id, the id of a plan's checkpoint or its
    unique beginning, ``REMOTE/HISTORY[@REF]`` for a history that was fetched. ``latest`` counts
    the snapshots of the whole root alone, or with ``paths`` those that were taken of all of them,
    and so does ``@TIME``; ``newest`` counts every one. Both leave safety snapshots out, which
    restores make by themselves. ``anywhere`` allows an id, or 12 digits of it at least, of another
    root of the store; otherwise the error for it names that root. Of a root out of the context's
    reach nothing is found, and the error is that for an unknown reference.
    """
    criteria = criteria or Filter()
    if not anywhere:
        refuse_link(session)
    latest = _LATEST.compiled.match(ref)
    if latest is not None:
        return _counted_back(session, ref, latest, criteria, paths)
    if ref.startswith(_MOMENT):
        return _at_moment(session, ref, criteria, paths)
    step = _STEP.compiled.match(ref)
    if step is not None:
        return _by_step(session, ref, int(step.group(1)), criteria)
    exact = session.store.snapshots.load_by_id(session.root.id, ref)
    if exact is not None:
        return exact
    names = list(session.store.snapshots.listing(session.root.id))

    named = find_named(session, ref)
    if named is not None:
        return named
    if not any(name.id.startswith(ref) for name in names):
        for find in finders(ref):
            snapshot: Snapshot | None = find(session, ref, criteria, paths)
            if snapshot is not None:
                return snapshot
    elsewhere = _elsewhere(session, names, ref)
    if elsewhere is None:
        try:
            name = by_beginning(names, ref)
        except NotFound as error:
            labelled = _labelled(session, ref)
            if labelled is None:
                raise
            raise unknown(ref, labelled=labelled) from error
        return session.store.snapshots.load(session.root.id, name)
    if not anywhere:
        path = elsewhere.record.root_path
        raise NotFound(
            f"Snapshot {elsewhere.id[:12]} is of another root, {quoted(path)}",
            code=ErrorCode.OTHER_ROOT,
            path=path,
        )
    return elsewhere


def _labelled(session: Session, label: str) -> Snapshot | None:
    """Returns the newest snapshot with a label, of the newest ones, or None."""
    newest = islice(session.store.snapshots.readable(session.root.id), _LABELS_MAX)
    return next((snapshot for snapshot in newest if snapshot.label == label), None)


def refuse_link(session: Session) -> None:
    """Raises Refused for a symbolic link in the place of a root with a history.

    The target of the link is another root. If that has a history, it is the one that is meant.
    """
    if session.context.given_root == session.context.root or session.root.is_registered():
        return
    if session.store.root(os.fsencode(session.context.given_root)).is_registered():
        raise replaced_by_link(session.context)


def load_by_id(session: Session, identity: SnapshotId) -> Snapshot:
    """Returns the snapshot that a record of the store names, of any root; raises NotFound.

    No reference of a caller comes here, so the context's reach does not matter.
    """
    log = session.store.snapshots
    own = log.listing(session.root.id).find(identity)
    if own is not None:
        return log.load(session.root.id, own)
    for item in log.all_names():
        if item[1].id == identity:
            return log.load(*item)
    raise unknown(identity)


def _counted_back(
    session: Session, ref: str, match: re.Match[str], criteria: Filter, paths: Sequence[bytes]
) -> Snapshot:
    word, kind, number, of_session = match.groups()
    back = int(number or 0)
    if kind is not None:
        criteria = criteria._replace(type=kind)
    if of_session is not None:
        criteria = criteria._replace(session=of_session)
    is_anything_partial = False
    for snapshot in session.store.snapshots.readable(session.root.id):
        if snapshot.kind == SnapshotKind.SAFETY or not criteria.fits(snapshot):
            continue
        if word == "latest" and not snapshot.record.covers(paths):
            is_anything_partial = True
            continue
        if back == 0:
            return snapshot
        back -= 1
    if is_anything_partial:
        what = "these paths" if any(paths) else "the whole root"
        raise OnlyOfPaths(
            f"This root has no snapshot {ref!r} of {what}; 'newest' is of other paths"
        )
    raise unknown(ref, has_any=_has_any(session))


def _at_moment(session: Session, ref: str, criteria: Filter, paths: Sequence[bytes]) -> Snapshot:
    text, now_ns = ref.removeprefix(_MOMENT), session.context.clock_ns()
    moment_ns = parse_moment(text, now_ns, sign=_MOMENT)
    for snapshot in session.store.snapshots.readable(session.root.id):
        record = snapshot.record
        if (
            record.created_at_ns <= moment_ns
            and record.kind != SnapshotKind.SAFETY
            and record.covers(paths)
            and criteria.fits(snapshot)
        ):
            return snapshot
    error = NotFound(f"This root has no snapshot from {time_text(moment_ns)} or before")
    if not _has_any(session):
        error.add_note(_advice())
    raise error


def _advice() -> str:
    from treesnap.core.model.hints import NO_SNAPSHOTS  # only an error needs it

    return NO_SNAPSHOTS


def _has_any(session: Session) -> bool:
    return session.store.snapshots.listing(session.root.id).newest is not None


def position(session: Session) -> Snapshot | None:
    """Returns the snapshot at the root's position, or None before the first."""
    return position_in(session.store.snapshots.readable(session.root.id))


def _by_step(session: Session, ref: str, step: int, criteria: Filter) -> Snapshot:
    for snapshot in session.store.snapshots.readable(session.root.id):
        if snapshot.record.step == step and criteria.fits(snapshot):
            return snapshot
    raise unknown(ref)


def _elsewhere(session: Session, names: list[SnapshotName], ref: str) -> Snapshot | None:
    """Returns the snapshot of another root that an id names, or None.

    With fewer digits than lists show, it is more likely a word than an id of another root.
    """
    if len(ref) < _FOREIGN_DIGITS_MIN or not _ABBREVIATION.compiled.match(ref):
        return None
    if any(name.id.startswith(ref) for name in names):
        return None
    log = session.store.snapshots
    matches = [item for item in log.all_names() if item[1].id.startswith(ref)]
    reached = [item for item in matches if session.reaches(item[0])]
    # A history that was fetched and one that was cloned have snapshots in common.
    return log.load(*reached[0]) if len({name.id for _, name in reached}) == 1 else None


def by_beginning(names: list[SnapshotName], ref: str) -> SnapshotName:
    """Returns the one name whose id begins with a reference; raises NotFound, InvalidArgument."""
    matches = [name for name in names if name.id.startswith(ref)]
    if not (matches and _ABBREVIATION.compiled.match(ref)):
        raise unknown(ref, has_any=bool(names))
    if len(matches) > 1:
        raise InvalidArgument(
            f"The reference {ref!r} fits {len(matches)} snapshots", code=ErrorCode.AMBIGUOUS_REF
        )
    return matches[0]


def unknown(ref: str, *, has_any: bool = True, labelled: Snapshot | None = None) -> NotFound:
    """Returns the error for a reference that names nothing; what may be meant is advised.

    That is a snapshot that has it as its label, or a time without its sign.
    """
    error = NotFound(f"This root has no snapshot {ref!r}")
    if labelled is not None:
        error.add_note(f"that is the label of {labelled.id[:12]}, and no name: use that id")
        return error
    if not has_any:
        error.add_note(_advice())
        return error
    if len(ref) >= _FOREIGN_DIGITS_MIN and _ABBREVIATION.compiled.match(ref):
        return error  # an id, and some read as durations, too
    with suppress(InvalidArgument):
        parse_moment(ref, 0)
        error.add_note(f"a time begins with @: '{_MOMENT}{ref}'")
    return error


FILE = "names"
UNREAD_MAX = 32
"""When more records than these are newer than the table, an operation with the lock updates it."""


def find_named(session: Session, name: str, *, update: bool = False) -> Snapshot | None:
    """Returns the newest readable snapshot of the root with a name, or None.

    Costs a listing, the table, and the records newer than it. With ``update`` the caller holds
    the root's lock, and the table is brought up to date when it is far behind.
    """
    listing = session.store.snapshots.listing(session.root.id)
    table = _table(session)
    read: list[Snapshot | None] = []
    for item in takewhile(lambda item: item.sequence > table.through, listing):  # newest first
        snapshot = _loaded(session, item)
        if snapshot is not None and snapshot.name == name:
            return snapshot
        read.append(snapshot)
    readable = [snapshot for snapshot in read if snapshot is not None]
    if update and len(read) > UNREAD_MAX and len(readable) == len(read):
        _update_table(session, listing, table, readable)
    for named, sequence, identity in sorted(table.rows, key=lambda row: row[1], reverse=True):
        if named == name:
            snapshot = _loaded(session, SnapshotName(sequence, SnapshotId(identity.hex())))
            if snapshot is not None and snapshot.name == name:
                return snapshot
    return None


def _loaded(session: Session, name: SnapshotName) -> Snapshot | None:
    try:
        return session.store.snapshots.load(session.root.id, name)
    except (Corrupt, NotFound):
        return None


def _table(session: Session) -> NameTable:
    """Returns the table, an empty one if it is absent, damaged or unreadable."""
    with suppress(Corrupt, OSError):
        return session.root.read(FILE, NAMES) or NameTable()
    return NameTable()


def _update_table(
    session: Session, listing: SnapshotListing, table: NameTable, read: list[Snapshot]
) -> None:
    """Replaces the table: adds what was read, drops deleted snapshots; not synced."""
    there = {item.id for item in listing}
    rows = [row for row in table.rows if row[2].hex() in there]
    rows += [
        (item.name, item.sequence, bytes.fromhex(item.id)) for item in read if item.name is not None
    ]
    updated = NameTable(max(item.sequence for item in read), tuple(rows))
    with suppress(OSError):
        session.root.write(FILE, NAMES, updated, durable=False)
