"""One side of a restore or a comparison: a tree that a snapshot holds, or that a walk found.

A state may hold a subset of the paths. The trees that this makes, and those of a walk that stores
nothing, exist in memory only.
"""

from __future__ import annotations

from collections.abc import Callable

from treesnap.core.codec.reader import Get, TreeReader, check_object
from treesnap.core.codec.tree import Put, put_tree
from treesnap.core.diff.trees import changes
from treesnap.core.fs.mounts import YoungTimes
from treesnap.core.model import treepath
from treesnap.core.model.entries import (
    Change,
    ChangeKind,
    ChangeList,
    Entry,
    EntryKind,
    ObjectId,
    ObjectKind,
    SkipReason,
    Totals,
)
from treesnap.core.model.errors import ErrorCode, NotFound, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.path_budget import PathBudget
from treesnap.core.model.snapshots import Snapshot, SnapshotRecord
from treesnap.core.ops.context import Session
from treesnap.core.store.store import Store
from treesnap.core.worktree.scan.hard_links import (
    Groups,
    distinct_groups,
    load_groups,
    relinked_paths,
    store_groups,
)
from treesnap.core.worktree.scan.scanner import ScanResult


class State(NamedTuple):
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
    young: YoungTimes = YoungTimes(0, 0)
    """Times that prove nothing; all of them, where no walk found it."""

    def entry(self, path: bytes) -> Entry | None:
        """Returns what is at a path, or None."""
        return self.trees.find(self.root, path)

    def is_hidden(self, path: bytes) -> bool:
        """Returns whether a directory above a path was not looked into."""
        entry: Entry | None = self.root
        for name in treepath.components(path)[:-1]:
            if entry is None or not entry.is_directory:
                break
            entry = self.trees.lookup(entry.tree_id, name)
        return entry is not None and entry.is_skipped


def recorded_state(
    session: Session, record: SnapshotRecord, scope: tuple[bytes, ...] | None
) -> State:
    """Returns a snapshot's tree, with nothing but the paths in scope."""
    return state_in(MemoryObjects(session.store), session, record, scope)


def state_in(
    objects: MemoryObjects,
    session: Session,
    record: SnapshotRecord,
    scope: tuple[bytes, ...] | None,
) -> State:
    """Returns what :func:`recorded_state` does, with a reader that has what is put there later."""
    trees = objects.trees()
    root = _subset(record.root, trees, objects.put, scope)
    groups = _groups_within(load_groups(record.links, session.store.get), scope)
    return State(root=root, trees=trees, groups=groups)


def _groups_within(groups: Groups, scope: tuple[bytes, ...] | None) -> Groups:
    if scope is None:
        return groups
    return subset_groups(groups, lambda path: any(treepath.is_within(path, mine) for mine in scope))


def narrowed(
    snapshot: Snapshot, paths: tuple[bytes, ...], trees: TreeReader, get: Get, put: Put
) -> SnapshotRecord:
    """Returns the record of a snapshot of only these paths, as one snapshot held them.

    ``put`` stores the trees above the paths, and ``get`` and ``trees`` read those as well. It has
    no name and no parent. Raises NotFound for a path that the snapshot does not hold.
    """
    record = snapshot.record
    scope = effective_scope(snapshot, paths)
    if scope is None:
        return record
    for path in scope:
        entry_at(trees, snapshot, path)
    root = _subset(record.root, trees, put, scope)
    groups = _groups_within(load_groups(record.links, get), scope)
    return record._replace(
        root=root,
        links=store_groups(set(groups.values()), put),
        totals=trees.totals(root.tree_id),
        scope=scope,
        unstable=tuple(
            path
            for path in record.unstable
            if any(treepath.is_within(path, mine) for mine in scope)
        ),
        parent=None,
        added_bytes=None,
        name=None,
        attachment=None,
    )


def empty_state(session: Session, like: Entry) -> State:
    """Returns a root without entries, with the metadata of another one."""
    objects = MemoryObjects(session.store)
    root = like._replace(content=put_tree((), Totals(), objects.put))
    return State(root=root, trees=objects.trees(), groups={})


def walked_state(result: ScanResult) -> State:
    """Returns the tree that a walk found."""
    return State(
        root=result.root,
        trees=result.trees,
        groups=result.link_groups.groups(),
        shared=result.shared,
        linked_outside=result.linked_outside,
        mapped=result.mapped,
        young=result.young,
    )


def require_paths(paths: tuple[bytes, ...], left: State, right: State) -> None:
    """Raises NotFound for a path that neither state holds: it is most likely mistyped.

    What is below a directory that was not looked into may be there: it passes.
    """
    for path in paths:
        if path and not any(it.entry(path) or it.is_hidden(path) for it in (left, right)):
            raise NotFound(
                f"There is no {quoted(path)}, neither before nor after",
                code=ErrorCode.PATH_NOT_FOUND,
                path=path,
            )


def entry_at(trees: TreeReader, snapshot: Snapshot, path: bytes) -> Entry:
    """Returns the entry of a path in a snapshot; raises NotFound."""
    entry = trees.find(snapshot.record.root, path)
    if entry is None or entry.is_skipped:
        raise NotFound(
            f"Snapshot {snapshot.id[:12]} does not hold {quoted(path)}",
            code=ErrorCode.PATH_NOT_FOUND,
            path=path,
        )
    return entry


class MemoryObjects:
    """Takes objects in the place of a store, and keeps trees and lists so that they can be read.

    For comparing a live tree with a snapshot: nothing reaches the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._objects: dict[ObjectId, bytes] = {}

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        """Returns an object's id; keeps its bytes unless they are file content.

        Raises InvalidArgument for one that could not be stored.
        """
        from treesnap.core.model.ids import object_id

        check_object(kind, data)
        identity = object_id(kind, data)
        if kind != ObjectKind.CHUNK or len(data) <= 4096:
            self._objects[identity] = data
        return identity

    def trees(self) -> TreeReader:
        """Returns a reader, whose walks are bounded by the size of the store."""
        return TreeReader(self.get, stored_bytes=self._store.allocated_bytes)

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        """Returns an object from memory, or one of the store."""
        data = self._objects.get(identity)
        return data if data is not None else self._store.get(kind, identity)


def effective_scope(
    snapshot: Snapshot, paths: tuple[bytes, ...] | None
) -> tuple[bytes, ...] | None:
    """Returns the paths that a restore concerns, or None for the whole root.

    Raises NotFound for a path outside of what a snapshot of some paths was taken of.
    """
    held = snapshot.record.scope
    named = treepath.without_nested(list(paths)) if paths else None
    if named is None or b"" in named:
        return held
    if held is None:
        return named
    scope: list[bytes] = []
    for path in named:
        inside = [path] if any(treepath.is_within(path, mine) for mine in held) else []
        below = [mine for mine in held if treepath.is_within(mine, path)]
        if not inside and not below:
            raise NotFound(
                f"Snapshot {snapshot.id[:12]} was taken of other paths than {quoted(path)}",
                code=ErrorCode.PATH_NOT_FOUND,
                path=path,
            )
        scope += inside or below
    return treepath.without_nested(scope)


def _subset(root: Entry, trees: TreeReader, put: Put, scope: tuple[bytes, ...] | None) -> Entry:
    """Returns the root with nothing but the paths in scope, and the directories above them.

    ``put`` takes the trees that this makes. Directories above a path are left out when nothing in
    scope is below them, unless they were not looked into: what is in scope may be there.
    """
    if scope is None or b"" in scope:
        return root
    in_scope = set(scope)
    entries = _entries_in(root, trees, in_scope)
    below: dict[bytes, list[Entry]] = {}
    for path in sorted(entries, key=lambda path: path.count(b"/"), reverse=True):
        entry = entries[path]
        if path in below:
            entry = _holding(entry, below[path], trees, put)
        elif path not in in_scope and not entry.is_skipped:
            continue
        below.setdefault(treepath.split(path)[0], []).append(entry)
    return _holding(root, below.get(b"", []), trees, put)


def _entries_in(root: Entry, trees: TreeReader, scope: set[bytes]) -> dict[bytes, Entry]:
    """Returns the entries in scope, and those of all directories above them, by path."""
    entries = {b"": root}
    for path in sorted(
        {*treepath.ancestors(scope), *scope} - {b""}, key=lambda path: path.count(b"/")
    ):
        directory, name = treepath.split(path)
        parent = entries.get(directory)
        if parent is None or not parent.is_directory:
            continue
        entry = trees.lookup(parent.tree_id, name)
        if entry is not None and (path in scope or entry.is_directory or entry.is_skipped):
            entries[path] = entry
    del entries[b""]
    return entries


def _holding(directory: Entry, entries: list[Entry], trees: TreeReader, put: Put) -> Entry:
    """Returns a directory with nothing but some entries."""
    totals = Totals()
    for entry in entries:
        totals = totals.plus(totals_of_entry(entry, trees))
    entries = sorted(entries, key=lambda entry: entry.name)
    return directory._replace(content=put_tree(entries, totals, put))


def totals_of_entry(entry: Entry, trees: TreeReader) -> Totals:
    """Returns the sums over an entry and everything below it."""
    if entry.kind == EntryKind.DIRECTORY:
        return trees.totals(entry.tree_id).plus(Totals(directories=1))
    return totals_of_leaf(entry)


def totals_of_leaf(entry: Entry) -> Totals:
    """Returns the sums over an entry that is not a directory."""
    if entry.kind == EntryKind.FILE:
        return Totals(files=1, size_bytes=entry.size)
    if entry.kind == EntryKind.SKIPPED:
        return Totals(skipped=1, incomplete=int(entry.skip_reason == SkipReason.UNREADABLE))
    return Totals(others=1)


def subset_groups(groups: Groups, is_wanted: Callable[[bytes], bool]) -> Groups:
    """Returns the hard-link groups with nothing but some names; one name alone is not a group."""
    subset: Groups = {}
    for group in distinct_groups(groups).values():
        names = tuple(filter(is_wanted, group))
        if len(names) > 1:
            subset.update(dict.fromkeys(names, names))
    return subset


def relinked(old: State, new: State) -> list[bytes]:
    """Returns the names that are linked to different names in two states."""
    return sorted(relinked_paths(old.groups, new.groups))


def compared(
    old: State,
    new: State,
    scope: tuple[bytes, ...] | None,
    budget: PathBudget | None,
    *,
    is_new_live: bool = False,
) -> ChangeList:
    """Returns the differing paths in order; names that moved between hard-link groups too.

    Raises OperationFailed for more stored paths than a budget has room for; those of a live
    tree are really there, and are not counted.
    """
    spine = treepath.ancestors(scope) if scope is not None else set()
    moved = relinked(old, new)
    differing: list[Change] = []
    walks = old.trees.walk(), new.trees.walk()
    for change in changes(old.root, new.root, walks[0].entries, walks[1].entries):
        if change.path not in spine:
            if budget is not None and not (is_new_live and change.new is not None):
                budget.hold(change.path)
            differing.append(change)
    if not moved:
        return ChangeList(differing)  # in order already
    changed_paths = {change.path for change in differing}
    for path in moved:
        before, after = old.entry(path), new.entry(path)
        if path not in changed_paths and before is not None and after is not None:
            differing.append(Change(path, ChangeKind.METADATA, before, after))
    return ChangeList(sorted(differing, key=lambda change: treepath.components(change.path)))
