"""Attachments: sealed files of a root that a snapshot carries, and that change with the files.

A plan that was rolled back matches the state of its files. So a restore may carry it along: the
safety snapshot holds it as it was, the journal as it will be, and it changes with the files or
not at all. ``undo`` and ``redo`` find it in the snapshot that they restore. What it means, its
feature knows; which snapshots it protects, holds without the feature too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from treesnap.core.codec.root_files import ATTACHMENTS, Protection, protection_of
from treesnap.core.codec.snapshot import PLAN_ATTACHMENT
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import Attachment, Snapshot, SnapshotId
from treesnap.core.model.type_names import TYPE_CHECKING, Any
from treesnap.core.store.layout import attachment_file_name

if TYPE_CHECKING:
    from treesnap.core.store.roots import Root


class AttachmentChange(NamedTuple):
    """An attachment that changes together with the files, or not at all."""

    before: Attachment
    """As it is; the safety snapshot holds it."""
    after: Callable[[Snapshot], bytes]
    """Returns its payload once the restore is done, given the safety snapshot."""
    metadata: Mapping[str, Any] = {}
    """Further fields of the record of the safety snapshot."""


def attachment(root: Root, kind: str, name: str) -> Attachment | None:
    """Returns an attachment as it is in the root now; None for one that is gone or damaged."""
    try:
        payload = root.read(attachment_file_name(kind, name), ATTACHMENTS[kind])
    except Corrupt:
        return None
    return Attachment(kind, name, payload) if payload is not None else None


def protections(root: Root) -> Iterator[Protection]:
    """Yields what each of the root's attachments protects, of the newest first."""
    for name in root.attachment_names():
        carried = attachment(root, PLAN_ATTACHMENT, name)
        if carried is not None:
            yield protection_of(carried.payload)


def kept_checkpoints(root: Root) -> frozenset[SnapshotId]:
    """Returns the snapshots that attachments keep whatever a policy says."""
    kept = [
        protection.checkpoints.values()
        for protection in protections(root)
        if protection.keeps_checkpoints
    ]
    return frozenset[SnapshotId]().union(*kept)
