"""What the operations of the library return: frozen records, one per operation.

A module for each kind of operation, imported with the first of its names: making a
dataclass takes half a millisecond, and a command needs two or three of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treesnap.results.capturing import CreateResult, CreateStats
    from treesnap.results.checking import Partial, Problem, TakenBack, VerifyResult
    from treesnap.results.keeping import (
        DoctorResult,
        GcResult,
        PruneResult,
        RootDirectory,
        RootInfo,
        Unfinished,
        Work,
    )
    from treesnap.results.listing import SnapshotList
    from treesnap.results.looking import FoundPath, StatusResult
    from treesnap.results.restoring import OpenFile, PositionResult, RestoreResult, RunResult
    from treesnap.results.settings import ConfigResult, Setting, SettingSource
    from treesnap.results.sizes import RootStats, SnapshotStats, StatsResult
    from treesnap.results.watching import WatchStatus

_HOMES = {
    "ConfigResult": "treesnap.results.settings",
    "CreateResult": "treesnap.results.capturing",
    "CreateStats": "treesnap.results.capturing",
    "DoctorResult": "treesnap.results.keeping",
    "FoundPath": "treesnap.results.looking",
    "GcResult": "treesnap.results.keeping",
    "OpenFile": "treesnap.results.restoring",
    "Partial": "treesnap.results.checking",
    "PositionResult": "treesnap.results.restoring",
    "Problem": "treesnap.results.checking",
    "PruneResult": "treesnap.results.keeping",
    "RestoreResult": "treesnap.results.restoring",
    "RootDirectory": "treesnap.results.keeping",
    "RootInfo": "treesnap.results.keeping",
    "RootStats": "treesnap.results.sizes",
    "RunResult": "treesnap.results.restoring",
    "Setting": "treesnap.results.settings",
    "SettingSource": "treesnap.results.settings",
    "SnapshotList": "treesnap.results.listing",
    "SnapshotStats": "treesnap.results.sizes",
    "StatsResult": "treesnap.results.sizes",
    "StatusResult": "treesnap.results.looking",
    "TakenBack": "treesnap.results.checking",
    "Unfinished": "treesnap.results.keeping",
    "VerifyResult": "treesnap.results.checking",
    "WatchStatus": "treesnap.results.watching",
    "Work": "treesnap.results.keeping",
}

__all__ = [
    "ConfigResult",
    "CreateResult",
    "CreateStats",
    "DoctorResult",
    "FoundPath",
    "GcResult",
    "OpenFile",
    "Partial",
    "PositionResult",
    "Problem",
    "PruneResult",
    "RestoreResult",
    "RootDirectory",
    "RootInfo",
    "RootStats",
    "RunResult",
    "Setting",
    "SettingSource",
    "SnapshotList",
    "SnapshotStats",
    "StatsResult",
    "StatusResult",
    "TakenBack",
    "Unfinished",
    "VerifyResult",
    "WatchStatus",
    "Work",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module 'treesnap.results' has no attribute {name!r}")
