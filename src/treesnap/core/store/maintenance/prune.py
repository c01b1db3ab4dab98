"""Which snapshots go: those of a root by policy, or the oldest because they take too much room.

What a restore, a roll-back or a plan needs stays whatever the policy says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from contextlib import suppress

from treesnap.core.model.errors import Busy, Corrupt, InvalidArgument, NotFound, TreesnapError
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind
from treesnap.core.store.attachments import kept_checkpoints
from treesnap.core.store.maintenance.reachability import Reachability
from treesnap.core.store.maintenance.retention import (
    AUTOMATIC,
    Decision,
    Policy,
    decide,
    is_kept_by_rule,
)
from treesnap.core.store.roots import (
    Root,
    holds_of,
    load_history,
    needed_of,
    registered_roots,
)
from treesnap.core.store.snapshots import SnapshotName, position_in, restored_ref
from treesnap.core.store.store import Store

NO_RULES = Policy()
ROOM_SHARE = 0.7
"""Making room reduces what is needed to this part of the allowed size.

A collection leaves packs with less than a fifth of waste alone, so that the store may then take
up to 0.7 / 0.8 of what is allowed.
"""


class PruneRequest(NamedTuple):
    """Which snapshots of a root go."""

    policy: Policy = NO_RULES
    """An empty policy keeps everything."""
    session: str | None = None
    """Only snapshots of this session may go."""
    max_size_bytes: int | None = None
    """What the root's snapshots may take in the store; the oldest go first."""
    dry_run: bool = False
    is_asked: bool = True
    """Whether a caller gave the rules; otherwise the settings did."""


def prune_root(store: Store, root: Root, request: PruneRequest, now_ns: int) -> list[Decision]:
    """Removes snapshots, and returns what became of each. The caller holds the root's lock."""
    decisions = decisions_of(store, root, request, now_ns)
    remove(store, root, (item.snapshot for item in decisions if not item.is_kept))
    return decisions


def remove(store: Store, root: Root, snapshots: Iterable[Snapshot]) -> None:
    """Removes snapshots of a root; durable after return. The caller holds the root's lock."""
    store.snapshots.remove(root.id, [SnapshotName(item.sequence, item.id) for item in snapshots])


def decisions_of(store: Store, root: Root, request: PruneRequest, now_ns: int) -> list[Decision]:
    """Returns what becomes of each of the root's snapshots, newest first.

    Raises InvalidArgument where rules of the caller keep none, such as a tag that none has.
    """
    snapshots = list(store.snapshots.readable(root.id))
    concerned = [item for item in snapshots if request.session in (None, item.record.session)]
    decisions = {item.snapshot.id: item for item in decide(concerned, request.policy, now_ns)}
    if request.is_asked and request.session is None:
        listed = decisions.values()
        if not all(item.is_kept for item in listed) and not any(map(is_kept_by_rule, listed)):
            raise none_kept()
    if not request.is_asked:
        for identity in kept_checkpoints(root) & decisions.keys():
            item = decisions[identity]
            decisions[identity] = item._replace(reasons=(*item.reasons, "checkpoint"))
    if request.max_size_bytes is not None:
        decisions |= _beyond(store, snapshots, decisions, request.max_size_bytes)
    kept = protected(root) | position_kept(snapshots)
    if not request.is_asked:
        kept = restored_last(store, root) | kept
    for identity, reason in kept.items():
        if identity in decisions:
            item = decisions[identity]
            decisions[identity] = item._replace(reasons=(*item.reasons, reason))
    others = ("another session",)
    return [decisions.get(item.id) or Decision(item, others) for item in snapshots]


def none_kept() -> InvalidArgument:
    """Returns the error for rules that keep no snapshot of a root."""
    return InvalidArgument(
        "The rules keep no snapshot at all: give one of them a number of at least 1, or name "
        "the session whose snapshots go; to give the whole history up, forget the root"
    )


def _beyond(
    store: Store,
    snapshots: list[Snapshot],
    by_id: dict[SnapshotId, Decision],
    size_bytes_max: int,
) -> dict[SnapshotId, Decision]:
    """Returns the snapshots that have no room, as decisions against them.

    Pinned and named snapshots stay, and those that the request does not concern. So do the
    newest, the newest made by hand, and of each sort the newest of the whole root.
    """
    by_hand = [item for item in snapshots if item.kind not in AUTOMATIC]
    stays = [*newest(snapshots), *newest(by_hand)]
    safe: list[Snapshot] = []
    others: list[Snapshot] = []
    for item in snapshots:
        may_go = item not in stays and item.id in by_id and not by_id[item.id].is_safe
        (others if may_go else safe).append(item)
    kept = [item for item in others if by_id[item.id].is_kept]
    return {item.id: Decision(item, ()) for item in without_room(store, safe, kept, size_bytes_max)}


def newest(snapshots: list[Snapshot]) -> list[Snapshot]:
    """Returns the newest snapshot, and the newest of the whole root."""
    whole = [item for item in snapshots if item.record.scope is None]
    return snapshots[:1] + whole[:1]


def without_room(
    store: Store,
    safe: list[Snapshot],
    others: list[Snapshot],
    size_bytes_max: int,
    safe_bytes_max: int | None = None,
) -> list[Snapshot]:
    """Returns the end of a list of snapshots, newest first, from the one that does not fit.

    The safe ones are counted first, because they stay. If they alone take more than
    ``safe_bytes_max``, none goes.
    """
    reachable = Reachability(store)
    size_bytes = sum(_added_bytes(store, reachable, item) for item in safe)
    if safe_bytes_max is not None and size_bytes > safe_bytes_max:
        return []
    for position, item in enumerate(others):
        size_bytes += _added_bytes(store, reachable, item)
        if size_bytes > size_bytes_max:
            return others[position:]
    return []


def protected(root: Root) -> dict[SnapshotId, str]:
    """Returns the snapshots of a root that always stay, each with the reason.

    They are those that an interrupted restore needs, those that the next undo and the next
    redo go to, and those to which a process at work goes back if it fails.
    """
    reasons = dict(_next_steps(root))
    reasons |= dict.fromkeys(holds_of(root), "in use")
    return reasons | dict.fromkeys(needed_of(root), "interrupted restore")


def restored_last(store: Store, root: Root) -> dict[SnapshotId, str]:
    """Returns what the next undo and redo compare with, which stays unless a caller gives rules.

    It says what was written at paths that are excluded by then; without it these are left alone.
    """
    listing = store.snapshots.listing(root.id)
    reasons: dict[SnapshotId, str] = {}
    for identity, word in _next_steps(root):
        name = listing.find(identity)
        with suppress(Corrupt, NotFound):
            ref = restored_ref(store.snapshots.load(root.id, name)) if name is not None else None
            reasons |= {item.id: word for item in (listing.beginning(ref) if ref else ())}
    return reasons


def _next_steps(root: Root) -> list[tuple[SnapshotId, str]]:
    """Returns to which snapshots the next undo and the next redo go, with these words."""
    history = load_history(root)
    return [
        (moment.snapshot_id, word)
        for word, moments in (("undo", history.undo), ("redo", history.redo))
        for moment in moments[-1:]
    ]


def position_kept(snapshots: list[Snapshot]) -> dict[SnapshotId, str]:
    """Returns the root's position if a program put it there, as a roll-back does.

    Without it the root would seem to have changed since an older snapshot.
    """
    position = position_in(snapshots)
    is_automatic = position is not None and position.kind == SnapshotKind.AUTOMATIC
    return {position.id: "position"} if position is not None and is_automatic else {}


def _added_bytes(store: Store, reachable: Reachability, snapshot: Snapshot) -> int:
    """Returns the bytes that a snapshot needs beyond those that were walked before.

    Counts what can be found of a damaged one.
    """
    size_bytes = 0
    with suppress(Corrupt):
        for reference in reachable.add(snapshot.record):
            entry = store.index.find(reference.id)
            if entry is not None:
                size_bytes += entry.size_bytes
    return size_bytes


def free_bytes(store: Store) -> int:
    """Returns how many bytes the file system of a store has free for this user."""
    fd = store.fs.open(os.path.join(store.path, "."), os.O_RDONLY | os.O_DIRECTORY)
    try:
        return store.fs.free_bytes(fd)
    finally:
        store.fs.close(fd)


def trim_outputs(store: Store, limit_bytes: int | None) -> None:
    """Removes what steps of plans wrote, the oldest of a root first; before any snapshot goes.

    Only as much as a limit demands; on a full disk, all outputs that no step writes to.
    """
    excess_bytes = store.size_bytes() - int(limit_bytes * ROOM_SHARE) if limit_bytes else None
    for path in registered_roots(store.fs, store.layout):
        root = store.root(path)
        there_bytes = sum(item.size_bytes for item in root.step_outputs())
        if there_bytes == 0:
            continue
        if excess_bytes is None:
            root.trim_step_outputs(0)
        elif excess_bytes > 0:
            left_bytes = root.trim_step_outputs(max(0, there_bytes - excess_bytes))
            excess_bytes -= there_bytes - left_bytes


def prune_store(
    store: Store,
    roots: Iterable[Root],
    target_bytes: int,
    size_bytes_max: int,
    spared: frozenset[SnapshotId] = frozenset(),
    tell: Callable[[Root, OSError], None] | None = None,
) -> bool:
    """Removes the oldest automatic snapshots of some roots until the store needs no more
    than ``target_bytes``; returns whether a root was left as it is because it is in use.

    The newest snapshot of each root stays, and the newest of the whole root, what a policy never
    removes, and what is ``spared``. Roots in which another process is at work, or a restore was
    interrupted, are left as they are. Removes nothing when what stays in any case takes more
    than ``size_bytes_max``: it would be in vain. An error at one root keeps no other from being
    made smaller; ``tell`` is told of it.
    """
    kept: dict[str, tuple[Root, Container[SnapshotId]]] = {}
    for root in roots:
        with suppress(TreesnapError, OSError):  # nothing goes of a damaged root
            needed = restored_last(store, root) | protected(root)
            kept[root.id] = root, spared | needed.keys()
    safe: list[Snapshot] = []
    others: list[Snapshot] = []
    root_of: dict[SnapshotId, Root] = {}
    for root_id in store.snapshots.root_ids():
        snapshots = list(store.snapshots.readable(root_id))
        position = position_kept(snapshots)
        stays = newest(snapshots)
        for item in snapshots:
            (decision,) = decide([item], Policy(keep_last=0, kinds=AUTOMATIC), 0)
            kept_of_root = kept.get(root_id)
            is_safe = item in stays or decision.is_kept or item.id in position
            if kept_of_root is None or is_safe or item.id in kept_of_root[1]:
                safe.append(item)
            else:
                others.append(item)
                root_of[item.id] = kept_of_root[0]
    others.sort(key=lambda item: item.record.created_at_ns, reverse=True)
    gone: dict[Root, list[Snapshot]] = {}
    for item in without_room(store, safe, others, target_bytes, size_bytes_max):
        gone.setdefault(root_of[item.id], []).append(item)
    is_in_use = False
    for root, items in gone.items():
        try:
            with root.locked("prune", 0.0):
                if not root.is_interrupted:
                    remove(store, root, _unprotected(store, root, items))
        except Busy:
            is_in_use = True
        except TreesnapError:  # nothing goes of a damaged root
            continue
        except OSError as error:
            if tell is not None:
                tell(root, error)
    return is_in_use


def _unprotected(store: Store, root: Root, snapshots: list[Snapshot]) -> list[Snapshot]:
    """Returns the snapshots that are still neither pinned nor needed, after the lock was taken.

    Others may have been deleted meanwhile, so that one of these is the newest by now.
    """
    present = list(store.snapshots.readable(root.id))
    stays = {item.id for item in newest(present)} | position_kept(present).keys()
    kept = restored_last(store, root).keys() | protected(root).keys() | stays
    return [
        item
        for item in snapshots
        if item.id not in kept and not store.snapshots.state(item.id).pinned
    ]
