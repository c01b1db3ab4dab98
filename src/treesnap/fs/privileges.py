"""What this process may do to files of other users."""

from __future__ import annotations

import os
from functools import lru_cache

from treesnap.fs.durable import read_file
from treesnap.fs.local import LocalFileSystem

_CHANGE_OWNER = 1 << 0
"""CAP_CHOWN, see capabilities(7)."""
_ALL_IDS = 1 << 32
_SIZE_MAX = 1 << 16


def may_give_owners() -> bool:
    """Returns whether this process may give a file to any user.

    This takes a capability that root may lack. In a user namespace in which most users are not
    mapped, the capability is not enough. Read once per process and user.
    """
    return _may_give_owners(os.getpid(), os.geteuid())


@lru_cache(maxsize=4)
def _may_give_owners(process_id: int, user_id: int) -> bool:
    fs = LocalFileSystem()
    try:
        status = read_file(fs, f"/proc/{process_id}/status", _SIZE_MAX)
        names = ("uid_map", "gid_map")
        maps = [read_file(fs, f"/proc/{process_id}/{name}", _SIZE_MAX) for name in names]
        (line,) = [line for line in status.splitlines() if line.startswith(b"CapEff:")]
        capabilities = int(line.split()[1], 16)
        counts = [sum(int(row.split()[2]) for row in text.splitlines()) for text in maps]
    except (OSError, ValueError, IndexError):  # not Linux, or no /proc
        return user_id == 0
    return bool(capabilities & _CHANGE_OWNER) and min(counts) >= _ALL_IDS - 1
