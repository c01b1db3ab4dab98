"""``prune``: remove the snapshots that a policy does not keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treesnap.errors import InvalidArgument, StoreMissing
from treesnap.model import SnapshotKind
from treesnap.ops.access import locked_root, opened
from treesnap.ops.context import Context
from treesnap.results import PruneResult
from treesnap.store.maintenance.prune import PruneRequest, decisions_of, prune_root

if TYPE_CHECKING:
    from treesnap.store.maintenance.retention import Decision


def prune(context: Context, request: PruneRequest) -> PruneResult:
    """Removes snapshots; see :meth:`treesnap.Handle.prune`."""
    _check(request)
    now_ns = context.clock_ns()
    try:
        if request.dry_run:
            with opened(context, "look at the snapshots") as session:
                found = decisions_of(session.store, session.root, request, now_ns)
                return _result(found, dry_run=True)
        with (
            opened(context, "remove snapshots", writing=True, recover=False) as session,
            locked_root(session, "prune"),
        ):
            found = prune_root(session.store, session.root, request, now_ns)
            return _result(found, dry_run=False)
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


def _result(decisions: list[Decision], *, dry_run: bool) -> PruneResult:
    return PruneResult(
        kept=tuple(item.snapshot for item in decisions if item.is_kept),
        removed=tuple(item.snapshot for item in decisions if not item.is_kept),
        reasons={item.snapshot.id: item.reasons for item in decisions if item.is_kept},
        dry_run=dry_run,
    )
