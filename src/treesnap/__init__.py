"""treesnap: an undo for any directory that can be trusted.

>>> import treesnap
>>> handle = treesnap.open("project")            # doctest: +SKIP
>>> before = handle.create(label="before step")  # doctest: +SKIP
>>> handle.restore(before.id)                    # doctest: +SKIP

Names are imported on first use, so that ``import treesnap`` costs next to
nothing.
"""

from __future__ import annotations

TYPE_CHECKING = (
    False  # as in typing, which takes longer to import than a client of a fork server runs
)
if TYPE_CHECKING:
    from typing import Any

    from treesnap.core.handle import Handle, open
    from treesnap.core.model.entries import Change, ChangeKind, Entry, EntryKind
    from treesnap.core.model.errors import (
        Busy,
        Conflict,
        Corrupt,
        ErrorCode,
        InvalidArgument,
        MergeConflict,
        NotFound,
        OperationFailed,
        RanTogether,
        Refused,
        RemoteFailed,
        StorageFull,
        StoreMissing,
        TreesnapError,
        UnsupportedFormat,
        WarningCode,
    )
    from treesnap.core.model.events import CollectingMonitor, Monitor, NullMonitor
    from treesnap.core.model.reserved_tags import CheckpointType
    from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotKind
    from treesnap.core.ops.create import CreateOptions
    from treesnap.core.store.maintenance.retention import Policy

__version__ = "0.2.0.dev0"

_HOMES = (
    "core.model.errors",
    "core.model.events",
    "core.model.entries",
    "core.model.snapshots",
    "core.model.reserved_tags",
    "core.handle",
    "core.store.maintenance.retention",
    "core.ops.create",
)
"""The modules in which names are looked up, in this order: the cheap ones first."""

__all__ = [
    "Busy",
    "Change",
    "ChangeKind",
    "CheckpointType",
    "CollectingMonitor",
    "Conflict",
    "Corrupt",
    "CreateOptions",
    "Entry",
    "EntryKind",
    "ErrorCode",
    "Handle",
    "InvalidArgument",
    "MergeConflict",
    "Monitor",
    "NotFound",
    "NullMonitor",
    "OperationFailed",
    "Policy",
    "RanTogether",
    "Refused",
    "RemoteFailed",
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
_UNPROVEN = ("darwin", "freebsd")
"""Systems for which it is written, and on which it has not run yet."""
_NAMES = {"cygwin": "Cygwin", "darwin": "macOS", "freebsd": "FreeBSD", "win32": "Windows"}
"""What people call systems."""


def unsupported() -> str | None:
    """Returns why treesnap cannot work on this system, in one line; None where it can."""
    import sys

    system: str = sys.platform  # declared, or type checkers take what follows for unreachable
    if system.startswith("linux"):
        return None
    if system.startswith(_UNPROVEN):
        from os import environ

        if environ.get("SNAP_UNPROVEN_SYSTEM", "0") not in {"", "0"}:
            return None
    names = (name for start, name in _NAMES.items() if system.startswith(start))
    where = f"not on {next(names, system)} yet"
    return f"treesnap {__version__} runs on Linux, also in WSL on Windows, and {where}"


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        for home in _HOMES:
            names = vars(import_module(f"treesnap.{home}"))
            if name in names:
                return names[name]
    raise AttributeError(f"module 'treesnap' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Returns the public names, which :func:`dir` and completion cannot see before first use."""
    return __all__
