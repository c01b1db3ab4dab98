"""The snapshots of a root as a read-only tree: which names there are, and ranges of files.

Knows nothing of FUSE. Bytes come from the store's reader, which checks each object against its
id. The memory for it is bounded: each cache has a limit in bytes, but for a table of the
names of all snapshots, some hundred bytes for each.

Readers take no lock. So that a file that is being read is not collected, its snapshot is held:
``snap delete`` and ``snap prune`` leave it alone; see :mod:`treesnap.mount.holds`.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Generic, Self, TypeVar

from treesnap.core.codec.reader import TreeReader, data_size, next_data, next_hole, read_range
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, ObjectKind, Xattrs
from treesnap.core.model.errors import ErrorCode, NotFound, quoted
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import Snapshot, SnapshotId
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.references import reading
from treesnap.core.worktree.scan.hard_links import Groups, load_groups
from treesnap.mount.holds import Holds
from treesnap.mount.snapshot_paths import SnapshotPaths, SnapshotPlace

Key = TypeVar("Key")
Value = TypeVar("Value")

_CHUNKS_SIZE_MAX = 16 << 20
_NODES_SIZE_MAX = 16 << 20
_NODE_SIZE = 1 << 10
"""A generous estimate of a node with its entry."""
_GROUPS_SIZE_MAX = 32 << 20
_LINK_SIZE = 512
"""A generous estimate of one name of a file with several."""
_BLOCK_SIZE = 512
"""The unit of ``st_blocks``."""
_TYPES = {
    EntryKind.FILE: stat_module.S_IFREG,
    EntryKind.DIRECTORY: stat_module.S_IFDIR,
    EntryKind.SYMLINK: stat_module.S_IFLNK,
    EntryKind.FIFO: stat_module.S_IFIFO,
    EntryKind.CHARACTER_DEVICE: stat_module.S_IFCHR,
    EntryKind.BLOCK_DEVICE: stat_module.S_IFBLK,
}


class BoundedCache(Generic[Key, Value]):
    """Keeps the values that were used last, up to a sum of their sizes. Not for several threads."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._items: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.size_bytes: int = 0

    def get(self, key: Key) -> Value | None:
        """Returns a value, which is then the newest one, or None."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def add(self, key: Key, value: Value, size: int) -> None:
        """Takes a value of some size, and lets the oldest ones go; itself if it is too large."""
        old = self._items.pop(key, None)
        if old is not None:
            self.size_bytes -= old[1]
        self._items[key] = value, size
        self.size_bytes += size
        while self.size_bytes > self._size_max:
            self.size_bytes -= self._items.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Lets all values go."""
        self._items.clear()
        self.size_bytes = 0


class ViewNode(NamedTuple):
    """What lies at a path of the view."""

    entry: Entry | None
    """As the snapshot has it; None for a directory above the snapshots."""
    snapshot_id: SnapshotId | None
    inode: int
    """Equal for all names of one file, different for everything else."""
    link_count: int
    is_fixed: bool
    """Whether the path never leads to other bytes."""
    file_type: int
    """As in ``st_mode``."""

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory, of a snapshot or above them."""
        return self.file_type == stat_module.S_IFDIR


class Name(NamedTuple):
    """A name in a directory of the view."""

    name: bytes
    inode: int
    file_type: int
    """As in ``st_mode``."""


class HistoryView:
    """The history of a root as directories. Use as a context manager, in one thread at a time.

    Paths are bytes that begin with ``/``. Raises NotFound for what is not there, Corrupt for
    what is damaged, OSError where the store cannot be read. ``report`` is told of snapshots that
    cannot be listed.
    """

    def __init__(self, context: Context, report: Callable[[str], None] = lambda _: None) -> None:
        self._context = context
        self._report = report
        self._stack = ExitStack()
        self._chunks: BoundedCache[ObjectId, bytes] = BoundedCache(_CHUNKS_SIZE_MAX)
        self._nodes: BoundedCache[tuple[SnapshotId, bytes], ViewNode] = BoundedCache(
            _NODES_SIZE_MAX
        )
        self._groups: BoundedCache[SnapshotId, Groups] = BoundedCache(_GROUPS_SIZE_MAX)
        self._data_sizes: BoundedCache[object, int] = BoundedCache(_NODES_SIZE_MAX)

    def __enter__(self) -> Self:
        self._session: Session = self._stack.enter_context(
            opened(self._context, "look through the history")
        )
        self._trees = TreeReader(self._get)
        self._paths = SnapshotPaths(self._session, self._report)
        self._holds = self._stack.enter_context(Holds(self._session))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
        for cache in (self._chunks, self._nodes, self._groups, self._data_sizes):
            cache.clear()

    def _get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        if kind != ObjectKind.CHUNK:
            return self._session.store.get(kind, identity)
        data = self._chunks.get(identity)
        if data is None:
            data = self._session.store.get(kind, identity)
            self._chunks.add(identity, data, len(data))
        return data

    def node(self, path: bytes) -> ViewNode:
        """Returns what lies at a path."""
        return self._found(path)[0]

    def _found(self, path: bytes) -> tuple[ViewNode, SnapshotPlace | None, bytes]:
        """Returns what lies at a path, and the snapshot and the path in it that this is."""
        if self._paths.update():
            # Packs that a collection removed are closed, or their room is not freed.
            self._session.store.packs.close()
        parts = _parts(path)
        if self._paths.is_above(parts):
            inode = _inode_above(parts)
            above = ViewNode(None, None, inode, 1, is_fixed=False, file_type=stat_module.S_IFDIR)
            return above, None, b""
        place = self._paths.find(parts)
        if place is None:
            raise _absent(path)
        below = b"/".join(parts[place.depth :])
        with reading(self._session, place.snapshot):
            node = self._node_in(place.snapshot, below)
        if node is None:
            raise _absent(path)
        return node._replace(is_fixed=place.is_fixed), place, below

    def _node_in(self, snapshot: Snapshot, path: bytes) -> ViewNode | None:
        """Returns what lies at a path of a snapshot, below the nearest directory that is known."""
        names: list[bytes] = []
        above = path
        while (node := self._nodes.get((snapshot.id, above))) is None and above:
            above, name = treepath.split(above)
            names.append(name)
        if node is None:
            node = self._keep(snapshot, above, snapshot.record.root)
        for name in reversed(names):
            if node.entry is None or not node.entry.is_directory:
                return None
            entry = self._trees.lookup(node.entry.tree_id, name)
            if entry is None or entry.is_skipped:
                return None
            above = treepath.join(above, name)
            node = self._keep(snapshot, above, entry)
        return node

    def _keep(self, snapshot: Snapshot, path: bytes, entry: Entry) -> ViewNode:
        names = self._groups_of(snapshot).get(path) if not entry.is_directory else None
        node = ViewNode(
            entry=entry,
            snapshot_id=snapshot.id,
            inode=_inode_in(snapshot.id, names[0] if names else path),
            link_count=len(names) if names else 1,
            is_fixed=True,
            file_type=_TYPES[EntryKind(entry.kind)],
        )
        self._nodes.add((snapshot.id, path), node, _NODE_SIZE + len(path))
        return node

    def _groups_of(self, snapshot: Snapshot) -> Groups:
        if snapshot.record.links is None:
            return {}
        groups = self._groups.get(snapshot.id)
        if groups is None:
            groups = load_groups(snapshot.record.links, self._get)
            size = sum(_LINK_SIZE + len(path) for path in groups)
            self._groups.add(snapshot.id, groups, size)
        return groups

    def names(self, path: bytes) -> Iterator[Name]:
        """Yields what is in a directory; reads no record for the names of whole snapshots."""
        node, place, below = self._found(path)
        if place is None:
            parts = _parts(path)
            for name, identity in self._paths.children(parts) or ():
                inode = _inode_above((*parts, name)) if identity is None else _inode_in(identity)
                yield Name(name, inode, stat_module.S_IFDIR)
            return
        if node.entry is None or not node.entry.is_directory:
            raise _absent(path)
        with reading(self._session, place.snapshot):
            for entry in self._trees.entries(node.entry.tree_id):
                if not entry.is_skipped:
                    child = self._keep(place.snapshot, treepath.join(below, entry.name), entry)
                    yield Name(entry.name, child.inode, child.file_type)

    def stat(self, node: ViewNode) -> dict[str, int]:
        """Returns the fields of ``stat`` by their names, times in nanoseconds.

        The blocks are those of data, holes left out, so that programs see that a file has holes.
        Of a file above some GiB, all its chunk lists are read for that, once.
        """
        entry = node.entry
        if entry is None:
            return {
                "st_mode": stat_module.S_IFDIR | 0o555,
                "st_ino": node.inode,
                "st_nlink": node.link_count,
                "st_uid": os.geteuid(),
                "st_gid": os.getegid(),
            }
        fields = {
            "st_mode": node.file_type | entry.mode,
            "st_ino": node.inode,
            "st_nlink": node.link_count,
            "st_uid": entry.uid,
            "st_gid": entry.gid,
            "st_mtime": entry.mtime_ns,
            "st_atime": entry.mtime_ns,
            "st_ctime": entry.mtime_ns,
        }
        if entry.kind == EntryKind.FILE:
            fields["st_size"] = entry.size
            fields["st_blocks"] = -(-self._data_size(entry) // _BLOCK_SIZE)
        elif entry.kind == EntryKind.SYMLINK:
            fields["st_size"] = len(entry.target)
        elif entry.kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}:
            fields["st_rdev"] = os.makedev(*entry.device)
        return fields

    def _data_size(self, entry: Entry) -> int:
        content = entry.file_content
        if content.level == 0:
            return data_size(content, self._get)
        key = entry.content
        size = self._data_sizes.get(key)
        if size is None:
            size = data_size(content, self._get)
            self._data_sizes.add(key, size, _NODE_SIZE)
        return size

    def xattrs(self, path: bytes) -> Xattrs:
        """Returns the extended attributes at a path, sorted by name."""
        node, place, _ = self._found(path)
        if node.entry is None or place is None:
            return ()
        with reading(self._session, place.snapshot):
            return self._trees.xattrs(node.entry)

    def open(self, path: bytes) -> ReadableFile:
        """Returns a file to be read, whose snapshot is not deleted until others were read.

        What it reads stays the same, whatever is at the path later.
        """
        node, place, _ = self._found(path)
        if place is None or node.entry is None or node.entry.kind != EntryKind.FILE:
            raise _absent(path)
        self._holds.take(place.snapshot.id)
        return ReadableFile(self, path, node, place.snapshot)

    def read(self, file: ReadableFile, offset: int, size: int) -> bytes:
        """Returns verified bytes of a file, fewer at its end; holes are zeros."""
        self._holds.take(file.snapshot.id)
        with reading(self._session, file.snapshot):
            return read_range(file.entry.file_content, self._get, offset, size)

    def next_data(self, file: ReadableFile, offset: int) -> int | None:
        """Returns where data begins, at an offset or behind it, as SEEK_DATA does, or None."""
        with reading(self._session, file.snapshot):
            return next_data(file.entry.file_content, self._get, offset)

    def next_hole(self, file: ReadableFile, offset: int) -> int:
        """Returns where a hole begins, at an offset or behind it, as SEEK_HOLE does."""
        with reading(self._session, file.snapshot):
            return next_hole(file.entry.file_content, self._get, offset)


class ReadableFile:
    """A file of a snapshot that a program reads."""

    def __init__(self, view: HistoryView, path: bytes, node: ViewNode, snapshot: Snapshot) -> None:
        assert node.entry is not None
        self.view = view
        self.path = path
        self.entry: Entry = node.entry
        self.is_fixed: bool = node.is_fixed
        self.snapshot = snapshot


def _parts(path: bytes) -> tuple[bytes, ...]:
    return tuple(path.strip(b"/").split(b"/")) if path.strip(b"/") else ()


def _inode_above(parts: tuple[bytes, ...]) -> int:
    return _inode(b"above\0" + b"/".join(parts))


def _inode_in(identity: SnapshotId, path: bytes = b"") -> int:
    return _inode(identity.encode() + b"\0" + path)


def _inode(what: bytes) -> int:
    """Returns a number that is the same each time, and different for everything else."""
    return (int.from_bytes(checksum(what, 8), "little") >> 1) | 2


def _absent(path: bytes) -> NotFound:
    return NotFound(f"There is no {quoted(path)}", code=ErrorCode.PATH_NOT_FOUND, path=path)
