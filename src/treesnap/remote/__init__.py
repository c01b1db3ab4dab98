"""History that several machines share: on object storage, or in a directory of another disk.

Packs, commits, and what says which of them count. How machines agree without locks and without
clocks stands in :mod:`treesnap.remote.protocol`; how files are encrypted, in
:mod:`treesnap.remote.sealing`.

Names are imported on first use: a word with a slash, which may be a path as well, makes a command
ask :mod:`treesnap.remote.fetched` alone.

Read first: ``protocol``, the rules; then ``push`` and ``fetch``; ``commands`` calls ``remotes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treesnap.remote.check import RemoteCheck
    from treesnap.remote.connection import KeyInfo
    from treesnap.remote.deliveries import Delivered, Received
    from treesnap.remote.histories import HistoryInfo
    from treesnap.remote.invitation import Invitation
    from treesnap.remote.policy import Role, RolePolicy
    from treesnap.remote.records import MemberRole
    from treesnap.remote.remotes import (
        CloneResult,
        FetchResult,
        MemberInfo,
        PullResult,
        PushResult,
        ReceiveResult,
        RemoteInfo,
        RemotePolicy,
        RemotePruneResult,
        RemoteRepairResult,
        Remotes,
        Revoked,
    )

_HOMES = (
    "check",
    "connection",
    "deliveries",
    "histories",
    "invitation",
    "policy",
    "records",
    "remotes",
)
"""The modules in which names are looked up, in this order."""

__all__ = [
    "CloneResult",
    "Delivered",
    "FetchResult",
    "HistoryInfo",
    "Invitation",
    "KeyInfo",
    "MemberInfo",
    "MemberRole",
    "PullResult",
    "PushResult",
    "ReceiveResult",
    "Received",
    "RemoteCheck",
    "RemoteInfo",
    "RemotePolicy",
    "RemotePruneResult",
    "RemoteRepairResult",
    "Remotes",
    "Revoked",
    "Role",
    "RolePolicy",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        for home in _HOMES:
            names = vars(import_module(f"{__name__}.{home}"))
            if name in names:
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
