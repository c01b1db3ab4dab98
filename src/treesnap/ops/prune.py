"""``prune``: remove the snapshots that a policy does not keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from treesnap.codec.pack import RECORD_HEADER_SIZE
from treesnap.errors import InvalidArgument, StoreMissing
from treesnap.ops.access import Opened, locked_root, needed_snapshots, opened
from treesnap.ops.history import snapshots_of
from treesnap.ops.reachable import Reachability
from treesnap.ops.retention import AUTOMATIC, DEFAULT, Decision, Policy, decide
from treesnap.results import PruneResult
from treesnap.store.snapshots import SnapshotName
from treesnap.store.store import Store

if TYPE_CHECKING:
    from treesnap.model import Snapshot, SnapshotId
    from treesnap.ops.handle import Handle


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


def prune(handle: Handle, request: PruneRequest) -> PruneResult:
    """Removes snapshots; see :meth:`treesnap.Handle.prune`."""
    _check(request)
    try:
        if request.dry_run:
            with opened(handle, "look at the snapshots") as pair:
                return _result(_decisions(handle, pair, request), dry_run=True)
        with (
            opened(handle, "remove snapshots", writing=True, recover=False) as pair,
            locked_root(handle, pair, "prune"),
        ):
            decisions = _decisions(handle, pair, request)
            gone = [item.snapshot for item in decisions if not item.is_kept]
            pair.store.snapshots.remove(
                pair.root.id, [SnapshotName(item.sequence, item.id) for item in gone]
            )
            return _result(decisions, dry_run=False)
    except StoreMissing:
        return PruneResult(kept=(), removed=(), reasons={}, dry_run=request.dry_run)


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
        if number is not None and number < 0:
            raise InvalidArgument(f"{name} is less than 0")


def _decisions(handle: Handle, pair: Opened, request: PruneRequest) -> list[Decision]:
    """Returns what becomes of each of the root's snapshots, newest first."""
    policy = request.policy
    if policy.is_empty and request.max_size_bytes is None:
        policy = DEFAULT
    snapshots = list(snapshots_of(pair))
    concerned = [item for item in snapshots if request.session in (None, item.record.session)]
    found = {item.snapshot.id: item for item in decide(concerned, policy, handle.clock_ns())}
    if request.max_size_bytes is not None:
        found |= _beyond(pair.store, snapshots, found, request.max_size_bytes)
    for identity in needed_snapshots(pair.root) & found.keys():
        item = found[identity]
        found[identity] = replace(item, reasons=(*item.reasons, "interrupted restore"))
    others = ("another session",)
    return [found.get(item.id) or Decision(item, others) for item in snapshots]


def _beyond(
    store: Store,
    snapshots: list[Snapshot],
    found: dict[SnapshotId, Decision],
    size_bytes_max: int,
) -> dict[SnapshotId, Decision]:
    """Returns the snapshots that have no room, as decisions against them.

    What is pinned, named or of no concern is counted first, because it stays, and so
    does the newest that was made by hand, or else the newest of all; then the others from
    the newest to the oldest, until one does not fit.
    """
    reachable = Reachability(store)
    by_hand = [item for item in snapshots if item.kind not in AUTOMATIC]
    newest = (by_hand or snapshots)[:1]
    others = [item for item in snapshots if item not in newest]
    safe = newest + [item for item in others if not _may_go(found.get(item.id))]
    size_bytes = sum(_added_bytes(store, reachable, item) for item in safe)
    beyond: dict[SnapshotId, Decision] = {}
    for item in others:
        decision = found.get(item.id)
        if decision is None or not _may_go(decision) or not decision.is_kept:
            continue
        if not beyond:
            size_bytes += _added_bytes(store, reachable, item)
        if size_bytes > size_bytes_max:
            beyond[item.id] = Decision(item, ())
    return beyond


def _may_go(decision: Decision | None) -> bool:
    """Returns whether a snapshot may go for want of space: not what a person named or pinned."""
    safe = {"pinned", "named"} | {"manual"}
    return decision is not None and not safe & set(decision.reasons)


def _added_bytes(store: Store, reachable: Reachability, snapshot: Snapshot) -> int:
    """Returns the bytes that a snapshot takes besides those that were walked before."""
    size_bytes = 0
    for _, identity in reachable.add(snapshot.record):
        entry = store.index.find(identity)
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
