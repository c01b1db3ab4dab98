"""``prune``: remove the snapshots that a policy does not keep."""

from __future__ import annotations

from collections.abc import Container, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from treesnap.codec.pack import RECORD_HEADER_SIZE
from treesnap.errors import Corrupt, InvalidArgument, StoreMissing, TreesnapError
from treesnap.model import SnapshotKind
from treesnap.ops.access import locked_root, opened
from treesnap.ops.references import position_in, snapshots_of
from treesnap.ops.session import Session
from treesnap.results import PruneResult
from treesnap.store.journal import load_history, needed_snapshots
from treesnap.store.maintenance.reachability import Reachability
from treesnap.store.maintenance.retention import AUTOMATIC, DEFAULT, Decision, Policy, decide
from treesnap.store.plan_files import kept_checkpoints
from treesnap.store.roots import Root
from treesnap.store.snapshots import SnapshotName
from treesnap.store.store import Store

if TYPE_CHECKING:
    from treesnap.model import Snapshot, SnapshotId
    from treesnap.ops.context import Context


NO_RULES = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRequest:
    """What the caller of ``prune`` asked for."""

    policy: Policy = NO_RULES
    """An empty one stands for the default policy, which concerns automatic snapshots."""
    session: str | None = None
    """Only snapshots of this session may go."""
    max_size_bytes: int | None = None
    """What the root's snapshots may take in the store; the oldest go first."""
    dry_run: bool = False
    is_asked: bool = True
    """Whether a caller gave the rules; otherwise the settings did."""


def prune(context: Context, request: PruneRequest) -> PruneResult:
    """Removes snapshots; see :meth:`treesnap.Handle.prune`."""
    _check(request)
    try:
        if request.dry_run:
            with opened(context, "look at the snapshots") as session:
                return _result(_decisions(session, request), dry_run=True)
        with (
            opened(context, "remove snapshots", writing=True, recover=False) as session,
            locked_root(session, "prune"),
        ):
            return _result(_pruned(session, request), dry_run=False)
    except StoreMissing:
        return PruneResult(kept=(), removed=(), reasons={}, dry_run=request.dry_run)


def prune_unasked(session: Session, request: PruneRequest) -> None:
    """Removes snapshots of a root, unless a restore of it was interrupted; raises Busy."""
    with session.root.locked("prune", 0.0):
        if not session.root.is_interrupted:
            _pruned(session, request)


def _pruned(session: Session, request: PruneRequest) -> list[Decision]:
    """Removes snapshots, and returns what became of each. The caller holds the root's lock."""
    decisions = _decisions(session, request)
    gone = [item.snapshot for item in decisions if not item.is_kept]
    session.store.snapshots.remove(session.root.id, _names(gone))
    return decisions


def _names(snapshots: Iterable[Snapshot]) -> list[SnapshotName]:
    return [SnapshotName(item.sequence, item.id) for item in snapshots]


def _check(request: PruneRequest) -> None:
    policy = request.policy
    numbers = {
        "keep_last": policy.keep_last,
        "keep_within_s": policy.keep_within_s,
        "keep_hourly": policy.keep_hourly,
        "keep_daily": policy.keep_daily,
        "keep_weekly": policy.keep_weekly,
        "max_size_bytes": request.max_size_bytes,
    }
    for name, number in numbers.items():
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidArgument(f"{name} must be a whole number or None")
        if number < 0:
            raise InvalidArgument(f"{name} is less than 0")
    _check_members("keep_tags", policy.keep_tags, str, "text")
    _check_members("kinds", policy.kinds, SnapshotKind, "a SnapshotKind")


def _check_members(name: str, values: object, kind: type, words: str) -> None:
    if not isinstance(values, tuple | list | set | frozenset) or not all(
        isinstance(item, kind) for item in values
    ):
        raise InvalidArgument(f"{name} must be a collection, each {words}")


def _decisions(session: Session, request: PruneRequest) -> list[Decision]:
    """Returns what becomes of each of the root's snapshots, newest first."""
    policy = request.policy
    if policy.is_empty and request.max_size_bytes is None:
        policy = DEFAULT
    snapshots = list(snapshots_of(session))
    concerned = [item for item in snapshots if request.session in (None, item.record.session)]
    found = {
        item.snapshot.id: item for item in decide(concerned, policy, session.context.clock_ns())
    }
    if policy is DEFAULT or not request.is_asked:
        for identity in kept_checkpoints(session.root) & found.keys():
            kept = found[identity]
            found[identity] = replace(kept, reasons=(*kept.reasons, "checkpoint"))
    if request.max_size_bytes is not None:
        found |= _beyond(session.store, snapshots, found, request.max_size_bytes)
    protected = _protected(session.root) | _position_kept(snapshots)
    for identity, reason in protected.items():
        item = found.get(identity)
        if item is not None:
            found[identity] = replace(item, reasons=(*item.reasons, reason))
    others = ("another session",)
    return [found.get(item.id) or Decision(item, others) for item in snapshots]


def _beyond(
    store: Store,
    snapshots: list[Snapshot],
    found: dict[SnapshotId, Decision],
    size_bytes_max: int,
) -> dict[SnapshotId, Decision]:
    """Returns the snapshots that have no room, as decisions against them.

    What is pinned, named or of no concern stays, and so do the newest of all and the newest
    that was made by hand; of each, the newest of the whole root as well.
    """
    by_hand = [item for item in snapshots if item.kind not in AUTOMATIC]
    newest = [*_newest(snapshots), *_newest(by_hand)]
    safe: list[Snapshot] = []
    others: list[Snapshot] = []
    for item in snapshots:
        may_go = item not in newest and _may_go(found.get(item.id))
        (others if may_go else safe).append(item)
    kept = [item for item in others if found[item.id].is_kept]
    return {
        item.id: Decision(item, ()) for item in _without_room(store, safe, kept, size_bytes_max)
    }


def _newest(snapshots: list[Snapshot]) -> list[Snapshot]:
    """Returns the newest snapshot, and the newest of the whole root."""
    whole = [item for item in snapshots if item.record.scope is None]
    return snapshots[:1] + whole[:1]


def _without_room(
    store: Store,
    safe: list[Snapshot],
    others: list[Snapshot],
    size_bytes_max: int,
    safe_bytes_max: int | None = None,
) -> list[Snapshot]:
    """Returns the end of a list of snapshots, newest first, from the one that does not fit.

    The safe ones are counted first, because they stay. None goes where they alone take more
    than ``safe_bytes_max``.
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


def prune_store(
    session: Session, roots: Iterable[Root], target_bytes: int, size_bytes_max: int
) -> None:
    """Removes the oldest automatic snapshots of some roots until the store needs no more.

    The newest snapshot of each root stays, and the newest of the whole root, and what
    :func:`prune` never removes. Roots in which another process is at work, or a restore was
    interrupted, are left as they are. When what stays in any case takes more than
    ``size_bytes_max``, nothing is removed in vain.
    """
    store = session.store
    protected: dict[str, tuple[Root, Container[SnapshotId]]] = {}
    for root in roots:
        with suppress(TreesnapError, OSError):  # of a damaged root nothing goes
            protected[root.id] = root, _protected(root)
    safe: list[Snapshot] = []
    others: list[Snapshot] = []
    root_of: dict[SnapshotId, Root] = {}
    for root_id in store.snapshots.root_ids():
        snapshots = list(snapshots_of(session, root_id))
        standing = _position_kept(snapshots)
        newest = _newest(snapshots)
        for item in snapshots:
            (decision,) = decide([item], Policy(keep_last=0, kinds=AUTOMATIC), 0)
            found = protected.get(root_id)
            is_safe = item in newest or decision.is_kept or item.id in standing
            if found is None or is_safe or item.id in found[1]:
                safe.append(item)
            else:
                others.append(item)
                root_of[item.id] = found[0]
    others.sort(key=lambda item: item.record.created_at_ns, reverse=True)
    gone: dict[Root, list[Snapshot]] = {}
    for item in _without_room(store, safe, others, target_bytes, size_bytes_max):
        gone.setdefault(root_of[item.id], []).append(item)
    for root, items in gone.items():
        with suppress(TreesnapError, OSError), root.locked("prune", 0.0):
            if not root.is_interrupted:
                store.snapshots.remove(root.id, _names(_unprotected(store, root, items)))


def _unprotected(store: Store, root: Root, snapshots: list[Snapshot]) -> list[Snapshot]:
    """Returns the snapshots that nobody pinned, or came to need, since they were looked at."""
    protected = _protected(root)
    return [
        item
        for item in snapshots
        if item.id not in protected and not store.snapshots.state(item.id).pinned
    ]


def _protected(root: Root) -> dict[SnapshotId, str]:
    """Returns the snapshots of a root that stay whatever is said, each with the reason.

    They are those that an interrupted restore needs, those that the next undo and the next
    redo go to, and those to which a process at work goes back if it fails.
    """
    history = load_history(root)
    nexts = {"undo": history.undo[-1:], "redo": history.redo[-1:]}
    found = {moment.snapshot_id: word for word, stack in nexts.items() for moment in stack}
    found |= dict.fromkeys(root.holds(), "in use")
    return found | dict.fromkeys(needed_snapshots(root), "interrupted restore")


def _position_kept(snapshots: list[Snapshot]) -> dict[SnapshotId, str]:
    """Returns what the root stands at when a program put it there, as a rollback does.

    Without it the root would seem to have changed since an older snapshot.
    """
    found = position_in(snapshots)
    is_automatic = found is not None and found.kind == SnapshotKind.AUTOMATIC
    return {found.id: "position"} if found is not None and is_automatic else {}


def _may_go(decision: Decision | None) -> bool:
    """Returns whether a snapshot may go for want of space: not what a person named or pinned."""
    safe = {"pinned", "named"} | {"manual"}
    return decision is not None and not safe & set(decision.reasons)


def _added_bytes(store: Store, reachable: Reachability, snapshot: Snapshot) -> int:
    """Returns the bytes that a snapshot takes besides those that were walked before.

    Of a damaged one, those that could be found.
    """
    size_bytes = 0
    with suppress(Corrupt):
        for reference in reachable.add(snapshot.record):
            entry = store.index.find(reference.id)
            if entry is not None:
                size_bytes += entry.stored_size + RECORD_HEADER_SIZE
    return size_bytes


def _result(decisions: Iterable[Decision], *, dry_run: bool) -> PruneResult:
    decisions = list(decisions)
    return PruneResult(
        kept=tuple(item.snapshot for item in decisions if item.is_kept),
        removed=tuple(item.snapshot for item in decisions if not item.is_kept),
        reasons={item.snapshot.id: item.reasons for item in decisions if item.is_kept},
        dry_run=dry_run,
    )
