"""History that several machines share: on object storage, or in a directory of another disk.

Packs, commits, and what says which of them count. How machines agree without locks and without
clocks stands in :mod:`treesnap.remote.protocol`; how files are encrypted, in
:mod:`treesnap.remote.sealing`.
"""

from treesnap.remote.check import RemoteCheck
from treesnap.remote.connection import KeyInfo
from treesnap.remote.histories import HistoryInfo
from treesnap.remote.policy import Role, RolePolicy
from treesnap.remote.remotes import (
    CloneResult,
    FetchResult,
    PullResult,
    PushResult,
    RemoteInfo,
    RemotePolicy,
    RemotePruneResult,
    Remotes,
)

__all__ = [
    "CloneResult",
    "FetchResult",
    "HistoryInfo",
    "KeyInfo",
    "PullResult",
    "PushResult",
    "RemoteCheck",
    "RemoteInfo",
    "RemotePolicy",
    "RemotePruneResult",
    "Remotes",
    "Role",
    "RolePolicy",
]
