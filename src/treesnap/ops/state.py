"""One side of a restore: a tree that a snapshot holds, or that a walk found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treesnap import treepath
from treesnap.codec.reader import TreeReader
from treesnap.model import Entry, ObjectId, ObjectKind, SnapshotRecord
from treesnap.ops.access import MemoryObjects, Opened
from treesnap.ops.narrow import narrowed, narrowed_groups
from treesnap.worktree.links import Groups, load_groups
from treesnap.worktree.scanned import ScanResult


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A tree, and which of its files are linked."""

    root: Entry
    trees: TreeReader
    groups: Groups
    shared: frozenset[bytes] = frozenset()
    """Paths of files that must not be changed in place, because of their other names."""
    linked_outside: frozenset[bytes] = frozenset()
    """Paths of files that have other names outside of what the state holds."""
    mapped: frozenset[int] = frozenset()
    """Inode numbers of files that may change with no sign of it."""

    def entry(self, path: bytes) -> Entry | None:
        """Returns what is at a path, or None."""
        entry: Entry | None = self.root
        for name in treepath.components(path):
            if entry is None or not entry.is_directory:
                return None
            entry = self.trees.lookup(entry.tree_id, name)
        return entry

    def is_hidden(self, path: bytes) -> bool:
        """Returns whether a directory above a path was not looked into."""
        entry: Entry | None = self.root
        for name in treepath.components(path)[:-1]:
            if entry is None or not entry.is_directory:
                break
            entry = self.trees.lookup(entry.tree_id, name)
        return entry is not None and entry.is_skipped


def recorded_state(pair: Opened, record: SnapshotRecord, scope: tuple[bytes, ...] | None) -> State:
    """Returns a snapshot's tree, with nothing but the paths in scope."""
    objects = MemoryObjects(pair.store)
    trees = TreeReader(objects.get)
    root = narrowed(record.root, trees, objects, scope)
    groups = narrowed_groups(load_groups(record.links, pair.store.get), scope)
    return State(root=root, trees=trees, groups=groups)


def walked_state(result: ScanResult, get: Callable[[ObjectKind, ObjectId], bytes]) -> State:
    """Returns the tree that a walk found."""
    return State(
        root=result.root,
        trees=result.trees,
        groups=load_groups(result.links, get),
        shared=result.shared,
        linked_outside=result.linked_outside,
        mapped=result.mapped,
    )
