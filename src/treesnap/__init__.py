"""treesnap: an undo for any directory that can be trusted.

>>> import treesnap
>>> handle = treesnap.open("project")            # doctest: +SKIP
>>> before = handle.create(label="before step")  # doctest: +SKIP
>>> handle.restore(before.id)                    # doctest: +SKIP

Names are imported on first use, so that ``import treesnap`` costs next to
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treesnap.errors import (
        Busy,
        Conflict,
        Corrupt,
        ErrorCode,
        InvalidArgument,
        NotFound,
        OperationFailed,
        Refused,
        StorageFull,
        StoreMissing,
        TreesnapError,
        UnsupportedFormat,
        WarningCode,
    )
    from treesnap.events import CollectingMonitor, Monitor, NullMonitor
    from treesnap.model import (
        Change,
        ChangeKind,
        Entry,
        EntryKind,
        Snapshot,
        SnapshotId,
        SnapshotKind,
    )
    from treesnap.ops.create import CreateOptions
    from treesnap.ops.handle import Handle, open
    from treesnap.store.maintenance.retention import Policy

__version__ = "0.1.0"

_HOMES = {
    "Busy": "treesnap.errors",
    "Change": "treesnap.model",
    "ChangeKind": "treesnap.model",
    "CollectingMonitor": "treesnap.events",
    "Conflict": "treesnap.errors",
    "Corrupt": "treesnap.errors",
    "CreateOptions": "treesnap.ops.create",
    "Entry": "treesnap.model",
    "EntryKind": "treesnap.model",
    "ErrorCode": "treesnap.errors",
    "Handle": "treesnap.ops.handle",
    "InvalidArgument": "treesnap.errors",
    "Monitor": "treesnap.events",
    "NotFound": "treesnap.errors",
    "NullMonitor": "treesnap.events",
    "OperationFailed": "treesnap.errors",
    "Policy": "treesnap.store.maintenance.retention",
    "Refused": "treesnap.errors",
    "Snapshot": "treesnap.model",
    "SnapshotId": "treesnap.model",
    "SnapshotKind": "treesnap.model",
    "StorageFull": "treesnap.errors",
    "StoreMissing": "treesnap.errors",
    "TreesnapError": "treesnap.errors",
    "UnsupportedFormat": "treesnap.errors",
    "WarningCode": "treesnap.errors",
    "open": "treesnap.ops.handle",
}

__all__ = [
    "Busy",
    "Change",
    "ChangeKind",
    "CollectingMonitor",
    "Conflict",
    "Corrupt",
    "CreateOptions",
    "Entry",
    "EntryKind",
    "ErrorCode",
    "Handle",
    "InvalidArgument",
    "Monitor",
    "NotFound",
    "NullMonitor",
    "OperationFailed",
    "Policy",
    "Refused",
    "Snapshot",
    "SnapshotId",
    "SnapshotKind",
    "StorageFull",
    "StoreMissing",
    "TreesnapError",
    "UnsupportedFormat",
    "WarningCode",
    "__version__",
    "open",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'treesnap' has no attribute {name!r}")
