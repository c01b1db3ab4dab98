"""What plans answer the core: how one changes with the files, and what a checkpoint's id means."""

from __future__ import annotations

from collections.abc import Sequence

from treesnap.core.model.errors import Corrupt, ErrorCode, InvalidArgument, Refused
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.ops.context import Session
from treesnap.core.ops.references import Filter
from treesnap.core.store.attachments import AttachmentChange, attachment, protections
from treesnap.core.store.roots import Root
from treesnap.plans.record import is_interrupted


def change_for(root: Root, snapshot: Snapshot) -> AttachmentChange | None:
    """Returns how the plan that a safety snapshot holds goes back; None without one.

    A plan that was deleted stays deleted. Raises Refused while a step of it has begun and not
    ended.
    """
    kept = snapshot.record.attachment
    present = attachment(root, kept.kind, kept.name) if kept is not None else None
    if kept is None or present is None:
        return None
    try:
        is_in_a_step = is_interrupted(present.payload)
    except Corrupt:  # a damaged one counts as deleted
        return None
    if is_in_a_step:
        raise Refused(
            f"Plan {kept.name} goes with the files, and was interrupted in the middle of a step",
            code=ErrorCode.PLAN_INTERRUPTED,
        )
    return AttachmentChange(before=present, after=lambda _: kept.payload)


def find_checkpoint(
    session: Session,
    ref: str,
    _wanted: Filter,
    _paths: Sequence[bytes],
) -> Snapshot | None:
    """Returns the snapshot of the checkpoint that has an id, or the unique beginning of one.

    Raises InvalidArgument when several begin so.
    """
    beginning = ref.upper()
    matches = {
        checkpoint_id: snapshot_id
        for protected in protections(session.root)
        for checkpoint_id, snapshot_id in protected.checkpoints.items()
        if checkpoint_id.startswith(beginning)
    }
    if len(matches) > 1:
        raise InvalidArgument(
            f"The reference {ref!r} fits {len(matches)} checkpoints", code=ErrorCode.AMBIGUOUS_REF
        )
    snapshots = session.store.snapshots
    for snapshot_id in matches.values():
        name = snapshots.listing(session.root.id).find(snapshot_id)
        if name is not None:
            return snapshots.load(session.root.id, name)
    return None
