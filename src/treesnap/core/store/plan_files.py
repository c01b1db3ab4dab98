"""Plans among the files of a root, as far as operations on snapshots concern them.

A plan that was rolled back matches the state of its files. So a restore may carry a plan
along: its safety snapshot holds the plan as it was, its journal the plan as it will be, and
the plan changes with the files or not at all. ``undo`` and ``redo`` find the plan in the
snapshot that they restore. What the steps of a plan mean, the layer ``plans`` knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from treesnap.core.codec.root_files import PLAN_PAYLOAD, PlanOutline, outline_of
from treesnap.core.model.entities import PlanCopy, Snapshot, SnapshotId
from treesnap.core.model.errors import Corrupt, ErrorCode, InvalidArgument, Refused
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.store.layout import plan_file_name

if TYPE_CHECKING:
    from treesnap.core.store.roots import Root

_CHECKPOINT = re.compile(r"[0-9A-HJKMNP-TV-Z]{10,26}\Z", re.IGNORECASE)
"""At least the time of a ULID, so that no prefix of a snapshot id is mistaken for one."""


class PlanMove(NamedTuple):
    """A plan that changes together with the files, or not at all."""

    before: PlanCopy
    """As it is; the safety snapshot holds it."""
    after: Callable[[Snapshot], bytes]
    """Returns the plan's file once the restore is done, given the safety snapshot."""
    metadata: Mapping[str, Any] = {}
    """Further fields of the record of the safety snapshot."""


def move_to(root: Root, snapshot: Snapshot) -> PlanMove | None:
    """Returns how the plan that a safety snapshot holds goes back; None without one.

    A plan that was deleted stays deleted. Raises Refused while a step of it has begun and not
    ended.
    """
    copy = snapshot.record.plan
    present = _payload(root, copy.plan_id) if copy is not None else None
    if copy is None or present is None:
        return None
    if outline_of(present).is_interrupted:
        raise Refused(
            f"Plan {copy.plan_id} goes with the files, and was interrupted in the middle of a step",
            code=ErrorCode.PLAN_INTERRUPTED,
        )
    return PlanMove(before=PlanCopy(copy.plan_id, present), after=lambda _: copy.payload)


def kept_checkpoints(root: Root) -> frozenset[SnapshotId]:
    """Returns the snapshots of checkpoints that plans keep whatever a policy says."""
    found: set[SnapshotId] = set()
    for outline in _outlines(root):
        if outline.keeps_checkpoints:
            found |= set(outline.checkpoints.values())
    return frozenset(found)


def find_checkpoint(root: Root, ref: str) -> SnapshotId | None:
    """Returns the snapshot of the checkpoint that has an id, or the unique beginning of one.

    Raises InvalidArgument when several begin so.
    """
    if not _CHECKPOINT.match(ref):
        return None
    wanted = ref.upper()
    found = {
        checkpoint_id: snapshot_id
        for outline in _outlines(root)
        for checkpoint_id, snapshot_id in outline.checkpoints.items()
        if checkpoint_id.startswith(wanted)
    }
    if len(found) > 1:
        raise InvalidArgument(
            f"The reference {ref!r} fits {len(found)} checkpoints", code=ErrorCode.AMBIGUOUS_REF
        )
    return next(iter(found.values()), None)


def _outlines(root: Root) -> Iterator[PlanOutline]:
    for plan_id in root.plan_ids():
        payload = _payload(root, plan_id)
        if payload is not None:
            yield outline_of(payload)


def _payload(root: Root, plan_id: str) -> bytes | None:
    """Returns a plan's payload, or None for one that is gone or damaged."""
    try:
        return root.read(plan_file_name(plan_id), PLAN_PAYLOAD)
    except Corrupt:
        return None
