"""Names of everything in a store.

<store>/
├── format                      versions that may read and write this store
├── made-here                   proves that its owner made it here, see store.ownership
├── moving                      where it is if a move was killed, or that a mover waits
├── links                       where moves have left links to it
├── config.toml                 settings of the store, once there are any
├── packs/<32 hex>              objects
├── index/<32 hex>              where objects are; can be rebuilt
├── snapshots/<root>/<sequence>-<id>
├── states/<id>                 pins and counts: what changes about a snapshot
├── pending/<slot>              a snapshot on its way to being published
├── slots/<slot>                one per writer at a time: its lock, epoch and pack
├── collector/{lock,state,size} garbage collection
├── collector/background        held by maintenance in a process of its own; says how it failed
├── roots/lock                  held while a root is registered, moved or forgotten
├── roots/path-<root>           a copy of the record of a root that was moved
├── roots/inode-<device>-<inode> the same, to notice a move; can be deleted
├── roots/hook-<device>-<inode> the socket for hooks of the root's watcher
├── roots/<root>/               one per captured directory
│   ├── root                    its path, and which directory it is
│   ├── config.toml             settings of the root, once there are any
│   ├── lock                    held by create and restore
│   ├── cache                   the stat cache; can be deleted
│   ├── cache-recent            its newest rows; can be deleted too
│   ├── names                   which snapshots had names; can be deleted
│   ├── journal                 a restore that is past its commit point
│   ├── history                 what undo and redo go back and forth over
│   ├── joined                  that commands in it work on a root above
│   ├── elsewhere               how many of its snapshots a clone brought
│   ├── gaps                    what of the work of agents was not captured
│   ├── gaps-lock               held while a gap is added
│   ├── marks                   what hosts told of the calls of agents; can be deleted
│   ├── export-<16 hex>         a restore to another directory that is under way
│   ├── hold-<id>-<16 hex>      a snapshot that a process at work goes back to if it fails
│   ├── pushed-<32 hex>         the root's history on a remote
│   ├── delivered-<32 hex>      what the root delivered to the inbox of one
│   ├── plan-<ULID>             a plan; beside it what its steps wrote
│   ├── plans-lock              held by the process that works on a plan of the root
│   └── watch/                  of watchers: lock, socket, and a cookie-* of each; locked while
│                               the command of ``snap watch --then`` runs
├── remotes/<name>              where a remote is, and which one
├── remotes/.cache-<id>/        what was read of it; may be removed at any time
├── remotes/.machine-<id>       what the store signs with there, and how often it pushed
├── fork-server/                of the process that runs commands: lock and socket
├── quarantine/                 damaged files that a repair moved out of the way
└── temporary/                  files before they are renamed into place
    ├── forgotten-<16 hex>      snapshots of a forgotten root, being removed
    └── displaced-<16 hex>      files that a restore replaced, being removed
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from treesnap.core.fs.base import ReadingFileSystem

DIRECTORIES = (
    "packs",
    "index",
    "snapshots",
    "states",
    "pending",
    "slots",
    "collector",
    "roots",
    "temporary",
)
STEP_OUTPUT_SUFFIX = ".log"
"""What the name of a file with the output of a plan's step ends with."""
DISPLACED_PREFIX = "displaced-"
"""What the names of directories with files that a restore replaced begin with."""
PLAN_PREFIX = "plan-"
"""What the names of plans among a root's files begin with; beside them lies their output."""


def attachment_file_name(kind: str, name: str) -> str:
    """Returns the name of an attachment's file among the files of its root."""
    return f"{kind}-{name}"


class Layout:
    """Makes paths inside one store."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.format: str = os.path.join(path, "format")
        self.made_here: str = os.path.join(path, "made-here")
        self.moving: str = os.path.join(path, "moving")
        self.links: str = os.path.join(path, "links")
        self.config: str = os.path.join(path, "config.toml")
        self.packs: str = os.path.join(path, "packs")
        self.index: str = os.path.join(path, "index")
        self.snapshots: str = os.path.join(path, "snapshots")
        self.states: str = os.path.join(path, "states")
        self.pending: str = os.path.join(path, "pending")
        self.slots: str = os.path.join(path, "slots")
        self.collector_lock: str = os.path.join(path, "collector", "lock")
        self.collector_state: str = os.path.join(path, "collector", "state")
        self.background: str = os.path.join(path, "collector", "background")
        self.collected_size: str = os.path.join(path, "collector", "size")
        self.collector_reserves: list[str] = [
            os.path.join(path, "collector", f"reserve-{number}") for number in (0, 1)
        ]
        self.roots: str = os.path.join(path, "roots")
        self.fork_server: str = os.path.join(path, "fork-server")
        self.fork_server_lock: str = os.path.join(path, "fork-server", "lock")
        self.remotes: str = os.path.join(path, "remotes")
        self.quarantine: str = os.path.join(path, "quarantine")
        self.temporary: str = os.path.join(path, "temporary")

    def pack(self, pack_id: bytes) -> str:
        """Path of a pack; made for each object that is read, so it is not joined."""
        return f"{self.packs}/{pack_id.hex()}"

    def root_directory(self, root_id: str) -> str:
        """Directory of one root's files."""
        return os.path.join(self.roots, root_id)

    def root_at_path(self, path_id: str) -> str:
        """Path of the copy that finds a root at a path which its id was not made of."""
        return os.path.join(self.roots, f"path-{path_id}")

    def root_at_inode(self, device: int, inode: int) -> str:
        """Path of the copy that finds a root wherever its directory was moved."""
        return os.path.join(self.roots, f"inode-{device:x}-{inode:x}")

    def root_file(self, root_id: str, name: str) -> str:
        """Path of one of a root's files: root, lock, cache, journal, history or an export."""
        return os.path.join(self.roots, root_id, name)

    def root_snapshots(self, root_id: str) -> str:
        """Directory of one root's snapshots."""
        return os.path.join(self.snapshots, root_id)

    def new_displaced(self) -> str:
        """A new path for files that a restore replaced, on its way to being removed."""
        return os.path.join(self.temporary, DISPLACED_PREFIX + os.urandom(8).hex())

    def remote_cache(self, remote_id: str) -> str:
        """Directory of what was read of a remote; no remote has such a name."""
        return os.path.join(self.remotes, f".cache-{remote_id}")

    def state(self, snapshot_id: str) -> str:
        """Path of a snapshot's mutable state."""
        return os.path.join(self.states, snapshot_id)


def is_hex(name: str, length: int) -> bool:
    """Returns whether a file name is so many lower-case hex digits."""
    return len(name) == length and not set(name) - set("0123456789abcdef")


def root_names(fs: ReadingFileSystem, directory: str) -> list[str]:
    """Returns the ids of the roots that have a directory of their own in another one, sorted.

    What is not a directory there is of no root. Costs a listing, and a look per root.
    """
    names = []
    for name in fs.list_names(directory):
        if is_hex(name, 32):
            with suppress(FileNotFoundError):
                mode = fs.lstat(os.path.join(directory, name)).st_mode
                if stat.S_ISDIR(mode) or stat.S_ISLNK(mode):  # a link is refused where it is opened
                    names.append(name)
    return sorted(names)
