"""The history of a root: listing, finding by reference, deleting, pinning."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from treesnap.core.fs.os_errors import error_text
from treesnap.core.model.errors import (
    Corrupt,
    ErrorCode,
    InvalidArgument,
    NewerVersion,
    NotFound,
    Refused,
    StoreMissing,
    TreesnapError,
    WarningCode,
    printable,
    quoted,
)
from treesnap.core.model.reserved_tags import HELD, is_checkpoint, refuse_reserved, rolled_back
from treesnap.core.model.snapshots import Retag, Snapshot, SnapshotId, SnapshotList, SnapshotState
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.checkpoint_locks import kept_by
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.references import Filter, by_beginning, resolve_in, unknown
from treesnap.core.store.roots import Root, holds_of, needed_of
from treesnap.core.store.snapshots import SnapshotName
from treesnap.core.store.store import Store


def list_snapshots(context: Context, criteria: Filter, *, all_roots: bool) -> SnapshotList:
    """Returns the snapshots, newest first; an absent store has none.

    Those that are damaged are warnings as well; whether they fit what is wanted is not known.
    """
    try:
        with opened(context, "list snapshots") as session:
            every = session.store.snapshots.root_ids() if all_roots else [session.root.id]
            root_ids = list(filter(session.reaches, every))
            damaged: list[SnapshotName] = []
            newer: list[SnapshotName] = []
            snapshots = [
                item
                for each in root_ids
                for item in session.store.snapshots.readable(each, damaged, newer=newer)
            ]
    except StoreMissing:
        return SnapshotList()
    for name in damaged:
        context.monitor.warn(
            WarningCode.SNAPSHOT_DAMAGED, f"Snapshot {name.id[:12]} is damaged and cannot be listed"
        )
    for name in newer:
        context.monitor.warn(
            WarningCode.SNAPSHOT_NEWER,
            f"Snapshot {name.id[:12]} was written by a newer treesnap and cannot be listed",
        )
    if all_roots:
        snapshots.sort(key=lambda item: item.record.created_at_ns, reverse=True)
    unread = ([name.id for name in names] for names in (damaged, newer))
    return SnapshotList(filter(criteria.fits, snapshots), *unread)


def snapshot_names(context: Context) -> tuple[SnapshotName, ...]:
    """Returns the names of the root's snapshots, newest first; an absent store has none."""
    try:
        with opened(context, "list snapshots") as session:
            return tuple(session.store.snapshots.listing(session.root.id))
    except StoreMissing:
        return ()


def load_snapshots(context: Context, names: Sequence[SnapshotName]) -> SnapshotList:
    """Returns the snapshots of some names, in their order, without those that were deleted."""
    snapshots: list[Snapshot] = []
    damaged: list[SnapshotId] = []
    newer: list[SnapshotId] = []
    with opened(context, "read snapshots") as session:
        for name in names:
            try:
                snapshots.append(session.store.snapshots.load(session.root.id, name))
            except NotFound:
                continue
            except NewerVersion:
                newer.append(name.id)
            except Corrupt:
                damaged.append(name.id)
    return SnapshotList(snapshots, damaged, newer)


def history_mark(context: Context) -> str:
    """Returns a text that differs once a snapshot was published or deleted."""
    try:
        with opened(context, "look at the history", recover=False) as session:
            path = session.store.layout.root_snapshots(session.root.id)
            info = session.fs.lstat(path)
            return f"{info.st_ino}-{info.st_mtime_ns}"
    except (StoreMissing, FileNotFoundError, NotFound):
        return ""


def resolve(
    context: Context, ref: str, *, of_session: str | None = None, paths: Sequence[bytes] = ()
) -> Snapshot:
    """Returns the snapshot that a reference names."""
    try:
        with opened(context, "look up a snapshot") as session:
            return resolve_in(
                session, ref, criteria=Filter(session=of_session), paths=paths, anywhere=True
            )
    except StoreMissing as error:
        raise unknown(ref, has_any=False) from error


def delete(context: Context, refs: Sequence[str]) -> SnapshotList:
    """Removes snapshots, all or none, and returns them.

    Each goes from the root that a reference names: a history that was fetched is a root of its own.
    One that cannot be read, because it is damaged or of a newer version, is named by its id or the
    beginning of it, and is a warning as well.
    """
    try:
        with (
            opened(context, "delete snapshots", writing=True, recover=False) as session,
            locked_root(session, "delete", touches_tree=False),
            ExitStack() as locks,
        ):
            roots = {session.root.id: session.root}
            going: dict[str, dict[SnapshotId, SnapshotName]] = {session.root.id: {}}
            chosen: dict[tuple[str, SnapshotId], Snapshot] = {}
            newer: set[SnapshotId] = set()
            for ref in refs:
                try:
                    snapshot = resolve_in(session, ref)
                    if snapshot.root_id not in roots:
                        home = _home_locked(session, snapshot, "delete")
                        roots[snapshot.root_id] = locks.enter_context(home)
                    name = SnapshotName(snapshot.sequence, snapshot.id)
                    going.setdefault(snapshot.root_id, {})[snapshot.id] = name
                    chosen[snapshot.root_id, snapshot.id] = snapshot
                except Corrupt as error:
                    unread = by_beginning(session.store.snapshots.names(session.root.id), ref)
                    going[session.root.id][unread.id] = unread
                    if isinstance(error, NewerVersion):
                        newer.add(unread.id)
            for root_id, names in going.items():
                _refuse_needed(session.store, roots[root_id], names)
            for root_id, names in going.items():
                session.store.snapshots.remove(root_id, list(names.values()))
            own_id = session.root.id
            unread_ids = [each for each in going[own_id] if (own_id, each) not in chosen]
            damaged_ids = [each for each in unread_ids if each not in newer]
            for identity in damaged_ids:
                context.monitor.warn(
                    WarningCode.DAMAGED_SNAPSHOT_DELETED,
                    f"Removed the damaged snapshot {identity[:12]}",
                )
            for identity in sorted(newer):
                context.monitor.warn(
                    WarningCode.SNAPSHOT_NEWER,
                    f"Removed snapshot {identity[:12]}, which a newer treesnap had written",
                )
            return SnapshotList(chosen.values(), damaged_ids, sorted(newer))
    except StoreMissing as error:
        raise unknown(refs[0] if refs else "", has_any=False) from error


@contextmanager
def _home_locked(session: Session, snapshot: Snapshot, operation: str) -> Iterator[Root]:
    """Yields the root that has a snapshot, locked; raises NotFound if it was deleted meanwhile."""
    if snapshot.root_id == session.root.id:
        yield session.root
        return
    root = session.store.root_by_id(snapshot.root_id)
    with root.locked(operation, session.context.wait_s):
        session.store.snapshots.load(root.id, SnapshotName(snapshot.sequence, snapshot.id))
        yield root


def _refuse_needed(store: Store, root: Root, identities: Iterable[SnapshotId]) -> None:
    """Raises Refused for snapshots that are pinned, or that an interrupted restore needs.

    Raises Busy for those to which a process may go back. The caller holds the root's lock.
    """
    needed, held = needed_of(root), holds_of(root)
    for identity in identities:
        if store.snapshots.state(identity).pinned:
            raise Refused(f"Snapshot {identity[:12]} is pinned", code=ErrorCode.PINNED)
        if identity in needed:
            raise Refused(
                f"Snapshot {identity[:12]} is needed to finish an interrupted restore",
                code=ErrorCode.RESTORE_INTERRUPTED,
            )
        if identity in held:
            raise kept_by(f"Snapshot {identity[:12]} is what", held[identity][0])


def set_pinned(context: Context, ref: str, *, pinned: bool) -> Snapshot:
    """Protects a snapshot, or takes the protection away."""
    verb = "pin" if pinned else "unpin"
    return _with_state(
        context, ref, verb, lambda state: state._replace(pinned=pinned, tags=_unheld(state))
    )


def set_held(context: Context, ref: str, *, held: bool) -> Snapshot:
    """Pins a snapshot for as long as something needs it, or ends that; a user's own pin stays."""

    def change(state: SnapshotState) -> SnapshotState:
        if held:
            tags = {**state.tags, HELD: "yes"}
            return state if state.pinned else state._replace(pinned=True, tags=tags)
        return state._replace(pinned=state.pinned and HELD not in state.tags, tags=_unheld(state))

    return _with_state(context, ref, "hold" if held else "release", change)


def _unheld(state: SnapshotState) -> dict[str, str]:
    return {key: value for key, value in state.tags.items() if key != HELD}


def retag(context: Context, ref: str, change: Retag) -> Snapshot:
    """Changes the tags that a snapshot got later, and returns it. Durable after return."""
    return _with_state(context, ref, "tag", lambda state: state._replace(tags=change(state.tags)))


def describe(context: Context, ref: str, label: str) -> Snapshot:
    """Gives a snapshot another label, or none. Durable after return."""
    _check_text("label", label)
    return _with_state(context, ref, "describe", lambda state: state._replace(label=label))


def tag(context: Context, ref: str, tags: Mapping[str, str], remove: Collection[str]) -> Snapshot:
    """Sets and removes tags of a snapshot. Durable after return."""
    for text in (*tags.keys(), *tags.values(), *remove):
        _check_text("tag", text)
    refuse_reserved([*tags, *remove])
    if both := sorted(tags.keys() & set(remove)):
        raise InvalidArgument(f"The tag {quoted(both[0])} is both set and removed")

    def change(state: SnapshotState) -> SnapshotState:
        later = {key: value for key, value in state.tags.items() if key not in remove}
        removed = {*state.removed_tags, *remove} - tags.keys()
        return state._replace(tags={**later, **tags}, removed_tags=tuple(sorted(removed)))

    return _with_state(context, ref, "tag", change)


def _check_text(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"The {what} '{printable(text)}' is not UTF-8") from None


def _with_state(
    context: Context, ref: str, verb: str, change: Callable[[SnapshotState], SnapshotState]
) -> Snapshot:
    try:
        with (
            opened(context, f"{verb} a snapshot", writing=True, recover=False) as session,
            locked_root(session, verb, touches_tree=False),
        ):
            snapshot = resolve_in(session, ref)
            with _home_locked(session, snapshot, verb):
                state = session.store.snapshots.change_state(snapshot.id, change)
            return snapshot._replace(state=state)
    except StoreMissing as error:
        raise unknown(ref, has_any=False) from error


def count_rollback(session: Session, snapshot: Snapshot, reason: str | None) -> None:
    """Counts a restore of a snapshot, and notes its reason. The caller holds the root's lock.

    Every restore of a whole snapshot comes here, by whatever command. One without a reason
    counts if the snapshot is a checkpoint. The files are back by then, so it warns of what cannot
    be written instead of raising.
    """
    if reason is None and not is_checkpoint(snapshot):
        return
    try:
        session.store.snapshots.change_state(
            snapshot.id,
            lambda state: state._replace(tags=rolled_back(state.tags, reason or "restore")),
        )
    except (TreesnapError, OSError) as error:
        session.monitor.warn(
            WarningCode.RESTORE_NOT_NOTED, f"The restore could not be noted: {error_text(error)}"
        )
