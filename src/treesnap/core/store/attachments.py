"""Attachments: sealed files of a root that a snapshot carries, and that change with the files.

A plan that was rolled back matches the state of its files. So a restore may carry it along: the
safety snapshot holds it as it was, the journal as it will be, and it changes with the files or
not at all. ``undo`` and ``redo`` find it in the snapshot that they restore.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from treesnap.core.codec.root_files import ATTACHMENTS, PlanOutline, outline_of
from treesnap.core.codec.snapshot import PLAN_ATTACHMENT
from treesnap.core.model.entities import Attachment, Snapshot, SnapshotId
from treesnap.core.model.errors import Corrupt, ErrorCode, InvalidArgument, Refused
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.store.layout import attachment_file_name

if TYPE_CHECKING:
    from treesnap.core.store.roots import Root

_CHECKPOINT = re.compile(r"[0-9A-HJKMNP-TV-Z]{10,26}\Z", re.IGNORECASE)
"""At least the time of a ULID, so that no prefix of a snapshot id is mistaken for one."""


class AttachmentChange(NamedTuple):
    """An attachment that changes together with the files, or not at all."""

    before: Attachment
    """As it is; the safety snapshot holds it."""
    after: Callable[[Snapshot], bytes]
    """Returns its payload once the restore is done, given the safety snapshot."""
    metadata: Mapping[str, Any] = {}
    """Further fields of the record of the safety snapshot."""


def change_for(root: Root, snapshot: Snapshot) -> AttachmentChange | None:
    """Returns how the plan that a safety snapshot holds goes back; None without one.

    A plan that was deleted stays deleted. Raises Refused while a step of it has begun and not
    ended.
    """
    kept = snapshot.record.attachment
    present = _payload(root, kept.name) if kept is not None else None
    if kept is None or present is None:
        return None
    if outline_of(present).is_interrupted:
        raise Refused(
            f"Plan {kept.name} goes with the files, and was interrupted in the middle of a step",
            code=ErrorCode.PLAN_INTERRUPTED,
        )
    return AttachmentChange(kept._replace(payload=present), after=lambda _: kept.payload)


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
    for name in root.attachment_names():
        payload = _payload(root, name)
        if payload is not None:
            yield outline_of(payload)


def _payload(root: Root, name: str) -> bytes | None:
    """Returns a plan's payload, or None for one that is gone or damaged."""
    try:
        return root.read(attachment_file_name(PLAN_ATTACHMENT, name), ATTACHMENTS[PLAN_ATTACHMENT])
    except Corrupt:
        return None
