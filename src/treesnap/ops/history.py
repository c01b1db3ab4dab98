"""The history of a root: listing, finding by reference, deleting, pinning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from treesnap.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    StoreMissing,
    TreesnapError,
    shown,
)
from treesnap.fs.failure import error_text
from treesnap.model import ObjectId, Snapshot, SnapshotId, SnapshotKind
from treesnap.ops.access import Opened, locked_root, needed_snapshots, opened
from treesnap.store.snapshots import SnapshotName

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle
    from treesnap.results import SnapshotList

_LATEST = re.compile(r"(latest|newest)(?:~(\d{1,9}))?\Z")
_STEP = re.compile(r"step:(\d{1,18})\Z")
_FOREIGN_DIGITS_MIN = 12
_ABBREVIATION = re.compile(r"[0-9a-f]{4,64}\Z")


STEP_MAX = 10**18 - 1
"""The largest step that a reference can name."""


def means_something_else(name: str) -> bool:
    """Returns whether a reference of these letters would not be looked up as a name."""
    return bool(not name or _LATEST.match(name) or _STEP.match(name))


def snapshots_of(
    pair: Opened, of_root: str | None = None, damaged: list[SnapshotName] | None = None
) -> Iterator[Snapshot]:
    """Yields the readable snapshots of a root, newest first; adds the others to ``damaged``."""
    log = pair.store.snapshots
    wanted = of_root if of_root is not None else pair.root.id
    for name in log.listing(wanted):
        try:
            yield log.load(wanted, name)
        except NotFound:
            continue
        except Corrupt:
            if damaged is not None:
                damaged.append(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which snapshots are wanted; None leaves a condition out."""

    session: str | None = None
    tag: str | None = None
    """``KEY`` or ``KEY=VALUE``."""
    phase: str | None = None
    checkpoint_type: str | None = None

    def fits(self, snapshot: Snapshot) -> bool:
        """Returns whether a snapshot is wanted."""
        record = snapshot.record
        pairs = (
            (self.session, record.session),
            (self.phase, record.phase),
            (self.checkpoint_type, record.type),
        )
        return all(wanted in (None, found) for wanted, found in pairs) and (
            self.tag is None or snapshot.has_tag(self.tag)
        )


def list_snapshots(handle: Handle, wanted: Filter, *, all_roots: bool) -> SnapshotList:
    """Returns the snapshots, newest first; an absent store has none.

    Those that are damaged are remarks as well; whether they fit what is wanted is not known.
    """
    from treesnap.results import SnapshotList

    try:
        with opened(handle, "list snapshots") as pair:
            root_ids = pair.store.snapshots.root_ids() if all_roots else [pair.root.id]
            damaged: list[SnapshotName] = []
            found = [item for each in root_ids for item in snapshots_of(pair, each, damaged)]
    except StoreMissing:
        return SnapshotList()
    for name in damaged:
        handle.monitor.remark(
            f"Snapshot {name.id[:12]} is damaged and cannot be listed; 'snap verify --repair' "
            "mends it or moves it away, 'snap delete' removes it"
        )
    if all_roots:
        found.sort(key=lambda item: item.record.created_at_ns, reverse=True)
    return SnapshotList(filter(wanted.fits, found), [name.id for name in damaged])


def paths_in_history(pair: Opened, paths: Iterable[bytes]) -> set[bytes]:
    """Returns those of some paths that a readable snapshot of the root has an entry of.

    Looks at equal trees once; stops when all were found.
    """
    from treesnap.ops.access import trees_of

    missing, found = set(paths), set[bytes]()
    trees, seen = trees_of(pair.store), set[ObjectId]()
    for snapshot in snapshots_of(pair):
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
        found |= held
        missing -= held
    return found


def resolve(
    handle: Handle, ref: str, *, session: str | None = None, paths: Sequence[bytes] = ()
) -> Snapshot:
    """Returns the snapshot that a reference names."""
    try:
        with opened(handle, "look up a snapshot") as pair:
            return resolve_in(pair, ref, session=session, paths=paths, anywhere=True)
    except StoreMissing as error:
        raise unknown(ref) from error


@contextmanager
def reading(pair: Opened, snapshot: Snapshot) -> Iterator[None]:
    """Raises NotFound for what is missing because somebody deleted the snapshot meanwhile.

    Who only reads takes no lock: a collection may take the content away under it. That is
    no damage.
    """
    try:
        yield
    except Corrupt as error:
        if any(name.id == snapshot.id for _, name in pair.store.snapshots.all_names()):
            raise
        raise NotFound(f"Snapshot {snapshot.id[:12]} was deleted meanwhile") from error


def resolve_in(
    pair: Opened,
    ref: str,
    *,
    session: str | None = None,
    paths: Sequence[bytes] = (),
    anywhere: bool = False,
) -> Snapshot:
    """Returns the snapshot that a reference names in an open store.

    In this order: ``latest``, ``latest~N``, ``newest``, ``newest~N``, ``step:N``, a full id,
    a name, the unique beginning of an id, the id of a plan's checkpoint or its unique
    beginning. ``latest`` counts the snapshots of the whole root alone, or with ``paths``
    those that were taken of all of them; ``newest`` counts every one. Both leave safety
    snapshots out, which restores make by themselves. ``anywhere`` allows an id, or 12 digits
    of it at least, of another root of the store; otherwise the
    error for it names that root.
    """
    wanted = Filter(session=session)
    latest = _LATEST.match(ref)
    if latest is not None:
        return _counted_back(pair, ref, latest, wanted, paths)
    step = _STEP.match(ref)
    if step is not None:
        return _by_step(pair, ref, int(step.group(1)), wanted)
    names = pair.store.snapshots.names(pair.root.id)
    exact = [name for name in names if name.id == ref]
    if exact:
        return pair.store.snapshots.load(pair.root.id, exact[0])
    from treesnap.ops.naming import find_named

    named = find_named(pair, ref)
    if named is not None:
        return named
    if not any(name.id.startswith(ref) for name in names):
        from treesnap.ops.plan_files import find_checkpoint

        checkpoint_id = find_checkpoint(pair.root, ref)
        found = [name for name in names if name.id == checkpoint_id]
        if found:
            return pair.store.snapshots.load(pair.root.id, found[0])
    elsewhere = _elsewhere(pair, names, ref)
    if elsewhere is None:
        return pair.store.snapshots.load(pair.root.id, _by_beginning(names, ref))
    if not anywhere:
        raise NotFound(
            f"Snapshot {elsewhere.id[:12]} is of another root, "
            f"{shown(elsewhere.record.root_path)!r}"
        )
    return elsewhere


def _counted_back(
    pair: Opened, ref: str, match: re.Match[str], wanted: Filter, paths: Sequence[bytes]
) -> Snapshot:
    word, number = match.groups()
    back = int(number or 0)
    is_anything_partial = False
    for snapshot in snapshots_of(pair):
        if snapshot.kind == SnapshotKind.SAFETY or not wanted.fits(snapshot):
            continue
        if word == "latest" and not snapshot.record.covers(paths):
            is_anything_partial = True
            continue
        if back == 0:
            return snapshot
        back -= 1
    if is_anything_partial:
        what = "these paths" if any(paths) else "the whole root"
        raise NotFound(f"This root has no snapshot {ref!r} of {what}; 'newest' is of other paths")
    raise unknown(ref)


def position(pair: Opened) -> Snapshot | None:
    """Returns the snapshot that the root stands at, or None before the first."""
    return position_in(snapshots_of(pair))


def position_in(snapshots: Iterable[Snapshot]) -> Snapshot | None:
    """Returns the one among a root's snapshots, newest first, that the root stands at.

    It is the newest one of the whole root that is no safety snapshot: the state that was
    saved last, or that was gone back to since.
    """
    for snapshot in snapshots:
        if snapshot.kind != SnapshotKind.SAFETY and snapshot.record.scope is None:
            return snapshot
    return None


def _by_step(pair: Opened, ref: str, step: int, wanted: Filter) -> Snapshot:
    for snapshot in snapshots_of(pair):
        if snapshot.record.step == step and wanted.fits(snapshot):
            return snapshot
    raise unknown(ref)


def _elsewhere(pair: Opened, names: list[SnapshotName], ref: str) -> Snapshot | None:
    """Returns the snapshot of another root that an id names, or None.

    With fewer digits than lists show, a word of a person is hardly an id of another root.
    """
    if len(ref) < _FOREIGN_DIGITS_MIN or not _ABBREVIATION.match(ref):
        return None
    if any(name.id.startswith(ref) for name in names):
        return None
    found = [item for item in pair.store.snapshots.all_names() if item[1].id.startswith(ref)]
    return pair.store.snapshots.load(*found[0]) if len(found) == 1 else None


def _by_beginning(names: list[SnapshotName], ref: str) -> SnapshotName:
    if not _ABBREVIATION.match(ref):
        raise unknown(ref)
    found = [name for name in names if name.id.startswith(ref)]
    if not found:
        raise unknown(ref)
    if len(found) > 1:
        raise InvalidArgument(
            f"The reference {ref!r} fits {len(found)} snapshots", code=ErrorCode.AMBIGUOUS_REF
        )
    return found[0]


def unknown(ref: str) -> NotFound:
    """Returns the error for a reference that names nothing."""
    return NotFound(f"This root has no snapshot {ref!r}")


def delete(handle: Handle, refs: Sequence[str]) -> SnapshotList:
    """Removes snapshots, all or none, and returns them.

    One that is damaged is named by its id or the beginning of it, and is a remark as well.
    """
    from treesnap.results import SnapshotList

    try:
        with (
            opened(handle, "delete snapshots", writing=True, recover=False) as pair,
            locked_root(handle, pair, "delete"),
        ):
            needed = needed_snapshots(pair.root)
            held = pair.root.holds()
            chosen: dict[SnapshotId, Snapshot] = {}
            names: dict[SnapshotId, SnapshotName] = {}
            for ref in refs:
                try:
                    snapshot = resolve_in(pair, ref)
                    chosen[snapshot.id] = snapshot
                    names[snapshot.id] = SnapshotName(snapshot.sequence, snapshot.id)
                except Corrupt:
                    damaged = _by_beginning(pair.store.snapshots.names(pair.root.id), ref)
                    names[damaged.id] = damaged
            for identity in names:
                if pair.store.snapshots.state(identity).pinned:
                    raise Refused(f"Snapshot {identity[:12]} is pinned", code=ErrorCode.PINNED)
                if identity in needed:
                    raise Refused(
                        f"Snapshot {identity[:12]} is needed to finish an interrupted restore",
                        code=ErrorCode.RESTORE_INTERRUPTED,
                    )
                if identity in held:
                    record = held[identity]
                    user = f"process {record.process_id}" if record is not None else "a process"
                    raise Busy(f"Snapshot {identity[:12]} is what {user} goes back to if it fails")
            pair.store.snapshots.remove(pair.root.id, list(names.values()))
            damaged_ids = [identity for identity in names if identity not in chosen]
            for identity in damaged_ids:
                handle.monitor.remark(f"Removed the damaged snapshot {identity[:12]}")
            return SnapshotList(chosen.values(), damaged_ids)
    except StoreMissing as error:
        raise unknown(refs[0] if refs else "") from error


def set_pinned(handle: Handle, ref: str, *, pinned: bool) -> Snapshot:
    """Protects a snapshot, or takes the protection away."""
    return _with_state(handle, ref, "pin", pinned=pinned)


def retire(handle: Handle, ref: str) -> Snapshot:
    """Notes, durably, that a snapshot's session counts it no more; it stays a REF."""
    return _with_state(handle, ref, "retire", retired=True)


def _with_state(handle: Handle, ref: str, verb: str, **changed: bool) -> Snapshot:
    try:
        with (
            opened(handle, f"{verb} a snapshot", writing=True, recover=False) as pair,
            locked_root(handle, pair, verb),
        ):
            snapshot = resolve_in(pair, ref)
            state = replace(snapshot.state, **changed)
            pair.store.snapshots.set_state(snapshot.id, state)
            return replace(snapshot, state=state)
    except StoreMissing as error:
        raise unknown(ref) from error


def count_rollback(handle: Handle, pair: Opened, snapshot: Snapshot) -> None:
    """Notes that a snapshot was rolled back to, durably. The caller holds the root's lock.

    The files are back by then, so that it never raises for what cannot be written.
    """
    try:
        state = pair.store.snapshots.state(snapshot.id)
        counted = replace(state, rollback_count=state.rollback_count + 1, rollback_used=True)
        pair.store.snapshots.set_state(snapshot.id, counted)
    except (TreesnapError, OSError) as error:
        handle.monitor.remark(f"The roll-back could not be counted: {error_text(error)}")
