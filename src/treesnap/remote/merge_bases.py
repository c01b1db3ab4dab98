"""What a root and a history that was fetched have in common: where a merge of both begins."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from treesnap.core.model.errors import ErrorCode, Refused, quoted
from treesnap.core.model.snapshots import Snapshot, SnapshotId
from treesnap.core.ops.context import Session
from treesnap.core.ops.merge.trees import merged_id
from treesnap.core.store.roots import Root, load_history
from treesnap.core.store.snapshots import restored_ref
from treesnap.remote.histories import oldest_first


def merge_bases(session: Session, there: Root, there_name: str) -> list[Snapshot]:
    """Returns the newest states that the root and a fetched history both had, at most two.

    These are the snapshot of the history that the root pulled last, unless that was undone, and
    the one of the root that the history pulled last; one of which the other came is left out.
    Without them it is the newest snapshot that both have: what either side changed back since an
    older state would look like no change. Snapshots that were pruned on the remote count as long
    as they are here. ``there`` is the root of that history in this store. Costs a read for each
    of its snapshots. Raises Refused where there are none.
    """
    log, root = session.store.snapshots, session.root
    own = {name.id: name for name in log.listing(root.id)}
    whole = {item.id: item for item in log.readable(there.id) if item.record.scope is None}
    ordered = oldest_first({key: item.record for key, item in whole.items()})
    history = [whole[key] for key in reversed(ordered)]
    theirs = {item.id: item for item in history}
    age = {item: number for number, item in enumerate(theirs)}

    shared = next((item for item in history if item.id in own), None)
    restored = (log.load(root.id, own[item]) for item in _restored(session))
    pull, pulled_id = _newest_merge(restored, theirs)
    other, given_id = _newest_merge(history, own)
    pulled = theirs[pulled_id] if pulled_id is not None else None
    given = log.load(root.id, own[given_id]) if given_id is not None else None

    newer = [item for item in (pulled, other) if item is not None]
    if shared is not None and any(age[item.id] < age[shared.id] for item in newer):
        shared = None
    if pull is not None and given is not None and given.sequence >= pull.sequence:
        pulled = None
    elif pulled is not None and other is not None and age[pulled.id] <= age[other.id]:
        given = None
    candidates = (shared, pulled, given)
    bases = {item.id: item for item in candidates if item is not None and item.record.scope is None}
    if not bases:
        raise Refused(
            f"The root and {quoted(there_name)} have no snapshot in common",
            code=ErrorCode.NOTHING_IN_COMMON,
        )
    return list(bases.values())


def _newest_merge(
    snapshots: Iterable[Snapshot], ids: Container[SnapshotId]
) -> tuple[Snapshot, SnapshotId] | tuple[None, None]:
    """Returns the first merge with one of some snapshots, and the id of that one."""
    for snapshot in snapshots:
        merged = merged_id(snapshot)
        if merged is not None and merged in ids:
            return snapshot, merged
    return None, None


def _restored(session: Session) -> Iterator[SnapshotId]:
    """Yields the snapshots of the root that were restored and not undone, newest first.

    A restore of which the snapshot before it was pruned is left out.
    """
    log, root = session.store.snapshots, session.root
    own = {name.id: name for name in log.listing(root.id)}
    for moment in reversed(load_history(root).undo):
        ids = [moment.snapshot_id] if moment.snapshot_id in own else []
        safety = log.load(root.id, own[ids[0]]) if ids else None
        # A redo goes to the state before the undo, which went to the state before the restore.
        is_redo = safety is not None and (safety.record.label or "").startswith("before redo to ")
        for _ in range(3 if is_redo else 1):
            ref = restored_ref(log.load(root.id, own[ids[0]])) if ids else None
            ids = [item for item in own if ref is not None and item.startswith(ref)]
        yield from ids


def merges_without_effect(session: Session, merges: Container[SnapshotId]) -> set[SnapshotId]:
    """Returns those merges that were undone, or that a killed pull never restored.

    Where the snapshot before a restore was pruned that cannot be told, and none is returned.
    """
    own = {name.id for name in session.store.snapshots.listing(session.root.id)}
    if any(moment.snapshot_id not in own for moment in load_history(session.root).undo):
        return set()
    return {item for item in own if item in merges} - set(_restored(session))
