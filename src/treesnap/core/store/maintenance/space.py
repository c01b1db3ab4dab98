"""The space that the paths of a snapshot take, and that groups of snapshots take.

Every number of bytes is a share of what lies in the packs: objects in one block share its bytes by
their sizes. What needs an object alone would free it by going.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

from treesnap.core.codec.reader import Reference, TreeCache, TreeReader, content_references
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.path_budget import PathBudget
from treesnap.core.model.results import GroupSpace, PathSpace
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.store.maintenance.reachability import Reachability, SeenObjects
from treesnap.core.store.maintenance.stats import Ownership
from treesnap.core.store.store import Store


class _Sums(NamedTuple):
    """Bytes of some objects."""

    stored: int = 0
    unique: int = 0

    def plus(self, other: _Sums) -> _Sums:
        return _Sums(self.stored + other.stored, self.unique + other.unique)


def measure_paths(
    store: Store, snapshot: Snapshot, path: bytes, entry: Entry, depth: int, budget: PathBudget
) -> tuple[PathSpace, ...]:
    """Returns the space that a path takes, and that paths below it do, to some depth.

    What a directory holds comes before it. An object that several paths need counts at the
    first one. Walks all snapshots of the store; memory is that of two :class:`SeenObjects`. Raises
    OperationFailed for more paths than the budget has room for.
    """
    others = Reachability(store)
    for root_id in store.snapshots.root_ids():
        for other in store.snapshots.readable(root_id):
            if other.id != snapshot.id:
                with suppress(Corrupt):  # 'verify' reports it
                    for _ in others.add(other.record):
                        pass
    measured: list[PathSpace] = []
    _PathWalk(store, others.seen, depth, measured, budget).measure(path, entry, 0)
    return tuple(measured)


class _PathWalk:
    """Adds up the objects of paths, each object once."""

    def __init__(
        self,
        store: Store,
        others: SeenObjects,
        depth: int,
        paths: list[PathSpace],
        budget: PathBudget,
    ) -> None:
        self._budget = budget
        self._store = store
        self._others = others
        self._depth = depth
        self._paths = paths
        self._trees = TreeReader(store.get, TreeCache(8))
        self._seen = SeenObjects(store.index)

    def measure(self, path: bytes, entry: Entry, level: int) -> _Sums:
        """Returns the bytes of an entry and all below it; recurses as deep as is shown."""
        self._budget.hold(path)
        sums = _Sums()
        if level < self._depth and entry.is_directory:
            for child in self._trees.entries(entry.tree_id):
                if not child.is_skipped:
                    sums = sums.plus(
                        self.measure(treepath.join(path, child.name), child, level + 1)
                    )
        for reference in self._objects(entry):
            sums = sums.plus(self._of(reference))
        size = self._trees.totals(entry.tree_id).size_bytes if entry.is_directory else entry.size
        self._paths.append(PathSpace(path, entry.is_directory, size, sums.stored, sums.unique))
        return sums

    def _objects(self, entry: Entry) -> Iterator[Reference]:
        """Yields what an entry needs and no earlier entry needed."""
        pending: list[Reference] = []
        if entry.xattrs_id is not None:
            pending.append(Reference(ObjectKind.CHUNK, entry.xattrs_id))
        if entry.is_directory:
            pending.append(Reference(ObjectKind.TREE, entry.tree_id))
        elif entry.kind == EntryKind.FILE:
            pending += content_references(entry.file_content)
        while pending:
            reference = pending.pop()
            if not self._seen.add(reference.id, reference.kind):
                continue
            yield reference
            if reference.kind != ObjectKind.CHUNK:
                pending += self._trees.references(reference)

    def _of(self, reference: Reference) -> _Sums:
        place = self._store.index.find(reference.id)
        size = self._store.index.stored_bytes(place) if place is not None else 0
        number = self._others.number_of(reference.id)
        is_shared = number is not None and self._others.kind_of(number) is not None
        return _Sums(size, 0 if is_shared else size)


def measure_groups(
    store: Store, root_id: str, key_of: Callable[[Snapshot], str]
) -> tuple[GroupSpace, ...]:
    """Returns the space that groups of a root's snapshots take, in the order of their keys' newest.

    Walks all snapshots of the store. Memory is one id and one number per object.
    """
    ownership = Ownership(store)
    numbers: dict[str, int] = {}
    snapshots = Counter[str]()
    logical = Counter[str]()
    others = 0
    for identity in store.snapshots.root_ids():
        for snapshot in store.snapshots.readable(identity):
            number = others
            if identity == root_id:
                key = key_of(snapshot)
                number = numbers.setdefault(key, len(numbers) + 1)
                snapshots[key] += 1
                logical[key] += snapshot.record.totals.size_bytes
            with suppress(Corrupt):  # 'verify' reports it
                ownership.walk(snapshot.record, number)
    unique = Counter[int]()
    for object_id, owner in ownership.of.items():
        group = ownership.root_of(owner)
        place = store.index.find(object_id) if group else None
        if group and place is not None:
            unique[group] += store.index.stored_bytes(place)
    return tuple(
        GroupSpace(key, snapshots[key], logical[key], unique[number])
        for key, number in numbers.items()
    )
