"""What ``verify`` looks at, and what it finds.

Damage is attributed: a missing or damaged object is reported with the snapshots
and paths that need it, and with nothing else. Looking changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice

from treesnap.core.codec.pack import IndexEntry
from treesnap.core.codec.reader import Reference, TreeReader, root_references
from treesnap.core.model import treepath
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt, NewerVersion, NotFound, TreesnapError
from treesnap.core.model.events import Monitor, Phase
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.results import PartialSnapshot, Problem
from treesnap.core.model.snapshots import Snapshot, SnapshotId, SnapshotRecord
from treesnap.core.store.maintenance.check.metadata_files import CheckPlace, Finding, MetadataFiles
from treesnap.core.store.snapshots import SnapshotName
from treesnap.core.store.store import Store

PATHS_MAX = 1000
"""Paths listed for one problem, and for one snapshot."""
_LOST_MAX = 1 << 20
"""Lost objects named of one snapshot: a hostile store can name one directory very often."""
_LOST_PATHS_SIZE_MAX = 64 << 20
"""Bytes of their paths, which a hostile store can make as long as its trees are deep."""
_MISSING = "is missing"
_ADVANCE_SIZE = 4 << 20
"""Bytes that are read between two reports of progress."""


class LostObject(NamedTuple):
    """An object that is lost, and a path that needs it."""

    object_id: ObjectId
    path: bytes


class _LostDirectory(NamedTuple):
    """A directory with damage in it or below it."""

    own: tuple[LostObject, ...]
    """What its own entries need; paths are names in it, or empty for the directory itself."""
    below: tuple[tuple[bytes, ObjectId], ...]
    """Its directories, by name."""


class Damaged(NamedTuple):
    """A snapshot that lost something."""

    snapshot: Snapshot
    lost: list[LostObject]


class BadSnapshot(NamedTuple):
    """A file of a snapshot that cannot be used."""

    root_id: str
    name: SnapshotName


class Checker:
    """One check of a whole store. ``read_data`` reads the content of objects in the sample."""

    def __init__(self, store: Store, sample: Sample, place: CheckPlace, *, read_data: bool) -> None:
        self._place = place
        self.monitor: Monitor = place.monitor
        self._store = store
        self._sample = sample
        self.reads_data = read_data
        self.problems: list[Problem] = []
        self.partial: list[PartialSnapshot] = []
        self.findings: list[Finding] = []
        """Metadata files that are damaged, with what mends each."""
        self.newer: list[str] = []
        """Files of a newer version, by path in the store; they cannot be judged."""
        self.checked: dict[ObjectId, str | None] = {}
        """Every object that was looked at, with what is wrong with it, or None."""
        self.damaged: list[Damaged] = []
        self.bad_snapshots: list[BadSnapshot] = []
        self.bad_packs: set[bytes] = set()
        self.bad_objects: set[IndexEntry] = set()
        """Places of objects whose content is damaged."""
        self.right: set[ObjectId] = set()
        """Objects whose content was read and has their id."""
        self.kinds: dict[ObjectId, ObjectKind] = {}
        """What each lost object is."""
        self._has_newer_trees = False
        self._known: set[ObjectId] = set()
        self.snapshots: int = 0
        self.read_bytes: int = 0

    def run(self, before: Checker | None = None) -> Checker:
        """Looks at everything; objects that ``before`` found right are not read again."""
        if before is not None:
            self._known = before.right
            self.right |= before.right
            self.bad_objects |= before.bad_objects
        self._check_index()
        if self.reads_data:
            self._check_packs()
        self.monitor.begin(Phase.VERIFY, None, None)
        self._check_snapshots()
        files = MetadataFiles(self._store, self._place)
        self.findings += files.findings()
        self.newer = [*dict.fromkeys([*self.newer, *files.newer])]
        self.problems += [finding.problem for finding in self.findings]
        self._forget_deleted()
        self._attribute()
        return self

    @property
    def lost(self) -> dict[ObjectId, ObjectKind]:
        """Every object that a snapshot needs and that is missing or damaged."""
        return {
            lost.object_id: self.kinds[lost.object_id]
            for item in self.damaged
            for lost in item.lost
        }

    def _check_index(self) -> None:
        index = self._store.index
        index.reads_first = True
        for part in index.parts.values():
            try:
                part.verify()
            except Corrupt as error:
                index.damaged.setdefault(os.path.basename(part.where), error.message)
        for name, reason in index.damaged.items():
            self.problems.append(Problem(code="bad-index", message=reason, where=f"index/{name}"))
        sizes = self._store.packs.sizes()
        for pack_id, covered in index.covered().items():
            if pack_id in sizes and sizes[pack_id] < covered:
                self._note_bad_pack(pack_id, "it is shorter than what was written to it")

    def _check_packs(self) -> None:
        """Reads every object of every pack, needed or not, unless it is known to be right.

        Bytes that no index part covers may come from a killed writer. They may be torn, which is
        not damage; objects in them that a snapshot needs are reported as such.
        """
        sizes = self._store.packs.sizes()
        self.monitor.begin(Phase.VERIFY, None, sum(sizes.values()) // self._sample.parts)
        covered = self._store.index.covered()
        for pack_id in sizes:
            size = covered.get(pack_id, 0)
            try:
                inventory = self._store.inventory(pack_id)
            except FileNotFoundError:  # a collection removed it meanwhile
                continue
            except NewerVersion:
                self._note_newer_pack(pack_id)
                continue
            if inventory.damaged_at is not None and inventory.damaged_at < size:
                self._note_bad_pack(pack_id, f"what is at {inventory.damaged_at} is damaged")
            with suppress(FileNotFoundError):
                self._check_objects(inventory.entries, size)

    def _check_objects(self, entries: list[IndexEntry], covered: int) -> None:
        """Reads the objects of one pack that are in the sample; names a damaged block once."""
        count = size = 0
        damaged_at = -1
        for entry in entries:
            is_bad = entry in self.bad_objects
            if not self._sample.holds(entry.id) or (entry.id in self._known and not is_bad):
                continue
            try:
                self.read_bytes += len(self._store.packs.read(entry))
                self.right.add(entry.id)
            except Corrupt as error:
                self.bad_objects.add(entry)
                if damaged_at < entry.offset < covered:
                    damaged_at = entry.offset
                    self._note_bad_pack(entry.pack_id, error.message)
            count += 1
            size += entry.size_bytes
            if size >= _ADVANCE_SIZE:
                self.monitor.advance(count, size)
                count = size = 0
        self.monitor.advance(count, size)

    def _note_newer_pack(self, pack_id: bytes) -> None:
        self.newer.append(f"packs/{pack_id.hex()}")

    @cached_property
    def newer_packs(self) -> frozenset[bytes]:
        """Packs of a newer version, which may hold whatever is not found elsewhere.

        Looked for where something is missing or damaged only: that costs a look into each pack.
        """
        newer = set()
        for pack_id in self._store.packs.sizes():
            try:
                self._store.inventory(pack_id)
            except FileNotFoundError:
                continue
            except NewerVersion:
                newer.add(pack_id)
                self._note_newer_pack(pack_id)
        return frozenset(newer)

    @property
    def has_newer_objects(self) -> bool:
        """Whether there are objects of a newer version, so that what is lost is not known."""
        return self._has_newer_trees or bool(self.newer_packs)

    def note_newer_tree(self, identity: ObjectId) -> None:
        """Notes a directory of a newer version: what it needs is not known."""
        self._has_newer_trees = True
        self.newer += {f"packs/{p.pack_id.hex()}" for p in self._store.index.find_all(identity)}

    def _note_bad_pack(self, pack_id: bytes, reason: str) -> None:
        if pack_id in self.newer_packs:
            return
        self.bad_packs.add(pack_id)
        self.problems.append(
            Problem(
                code="bad-pack",
                message=f"Pack {pack_id.hex()}: {reason}",
                where=f"packs/{pack_id.hex()}",
            )
        )

    def _check_snapshots(self) -> None:
        log = self._store.snapshots
        report = DamageReport(self._store, self)
        for root_id, name in list(log.all_names()):
            try:
                snapshot = log.load(root_id, name)
            except NotFound:
                continue
            except TreesnapError as error:
                where = os.path.relpath(log.path(root_id, name), self._store.path)
                if isinstance(error, NewerVersion):
                    self.newer.append(where)
                    continue
                self.bad_snapshots.append(BadSnapshot(root_id, name))
                self.problems.append(
                    Problem(
                        code="bad-snapshot",
                        message=error.message,
                        where=where,
                        snapshot_ids=(name.id,),
                    )
                )
                continue
            self.snapshots += 1
            lost_objects = report.of(snapshot.record)
            if lost_objects:
                self.damaged.append(Damaged(snapshot, lost_objects))

    def note(self, kind: ObjectKind, identity: ObjectId, reason: str) -> None:
        """Notes what is wrong with an object, unless something else is known to be."""
        self.checked[identity] = self.checked.get(identity) or reason
        self.kinds[identity] = kind
        self._note_damaged_places(identity)

    def is_there(self, kind: ObjectKind, identity: ObjectId) -> bool:
        """Returns whether an object exists, and is intact if data is to be read."""
        if identity in self.checked:
            return self.checked[identity] is None
        problem = None
        is_read = self.reads_data and self._sample.holds(identity)
        if (is_read and identity not in self.right) or not self._store.has(identity):
            try:
                self.read_bytes += len(self._store.get(kind, identity))
            except Corrupt as error:
                problem = error.message
                self._note_damaged_places(identity)
        if problem is not None and self._may_be_newer(identity):
            problem = None
        self.checked[identity] = problem
        if problem is not None:
            self.kinds[identity] = kind
        return problem is None

    def _may_be_newer(self, identity: ObjectId) -> bool:
        """Returns whether an object that is not found may lie in a pack of a newer version."""
        places = {place.pack_id for place in self._store.index.find_all(identity)}
        return bool(self.newer_packs) and places <= self.newer_packs

    def _note_damaged_places(self, identity: ObjectId) -> None:
        """Notes the packs in which an object is damaged.

        What lies in the same block may be damaged too, and may be needed only by what is lost
        with the object. It must not be taken for stored when it is captured again.
        """
        for place in self._store.index.find_all(identity):
            if place.pack_id not in self.newer_packs and not self._store.packs.is_right(place):
                self.bad_packs.add(place.pack_id)

    def _forget_deleted(self) -> None:
        """Drops snapshots that were deleted meanwhile: gc may have deleted their objects."""
        present = {name.id for _, name in self._store.snapshots.all_names()}
        self.damaged = [item for item in self.damaged if item.snapshot.id in present]

    def _attribute(self) -> None:
        """Names the snapshots that need each lost object, and what each snapshot lost."""
        snapshot_ids: dict[ObjectId, dict[SnapshotId, None]] = {}
        paths: dict[ObjectId, set[bytes]] = {}
        for snapshot, lost_objects in self.damaged:
            for lost in lost_objects:
                snapshot_ids.setdefault(lost.object_id, {})[snapshot.id] = None
                paths.setdefault(lost.object_id, set()).add(lost.path)
            lost_paths = sorted({lost.path for lost in lost_objects})
            self.partial.append(
                PartialSnapshot(
                    snapshot_id=snapshot.id,
                    name=snapshot.name,
                    root=snapshot.record.root_path,
                    paths=tuple(lost_paths[:PATHS_MAX]),
                    path_count=len(lost_paths),
                )
            )
        for identity, needed_by in snapshot_ids.items():
            reason = self.checked.get(identity) or f"it {_MISSING}"
            self.problems.append(
                Problem(
                    code="missing-object" if _MISSING in reason else "damaged-object",
                    message=reason,
                    where=identity.hex(),
                    snapshot_ids=tuple(needed_by),
                    paths=tuple(sorted(paths[identity])[:PATHS_MAX]),
                    path_count=len(paths[identity]),
                )
            )


class DamageReport:
    """Finds which paths of which snapshots a lost object damages.

    Every tree and every list is looked at once, however many snapshots share it. Only
    directories with damage in or below them are walked again for each snapshot.
    """

    def __init__(self, store: Store, checker: Checker) -> None:
        self._checker = checker
        self._trees = TreeReader(store.get)
        self._whole: set[ObjectId] = set()
        self._damaged: dict[ObjectId, _LostDirectory] = {}
        self._lists: dict[ObjectId, tuple[ObjectId, ...]] = {}

    def of(self, record: SnapshotRecord) -> list[LostObject]:
        """Returns everything that a snapshot lost."""
        lost_objects: list[LostObject] = []
        size = 0
        for lost in islice(self._of(record), _LOST_MAX):
            lost_objects.append(lost)
            size += len(lost.path)
            if size > _LOST_PATHS_SIZE_MAX:
                break
        return lost_objects

    def _of(self, record: SnapshotRecord) -> Iterator[LostObject]:
        for reference in root_references(record.root, record.links):
            if reference.kind == ObjectKind.TREE:
                self._look(reference.id)
                yield from self._below(reference.id)
            else:
                yield from (LostObject(lost, b"") for lost in self._lost_in(reference))

    def _below(self, top_id: ObjectId) -> Iterator[LostObject]:
        """Yields what a root's tree lost. Keeps one path, however deep it is."""
        stack = [iter([(treepath.ROOT, top_id)])]
        descent = treepath.Descent()
        while stack:
            name, tree_id = next(stack[-1], (treepath.ROOT, None))
            if tree_id is None:
                stack.pop()
                descent.leave()
                continue
            directory = self._damaged.get(tree_id)
            if directory is None:
                continue
            if name:
                descent.enter(treepath.join(descent.path, name))
            path = descent.path
            for lost in directory.own:
                yield lost._replace(path=treepath.join(path, lost.path) if lost.path else path)
            stack.append(iter(directory.below))

    def _look(self, top_id: ObjectId) -> None:
        """Decides for a tree and all below it whether they are whole, the deepest first."""
        looked: dict[ObjectId, _LostDirectory] = {}
        pending = [top_id]
        while pending:
            tree_id = pending[-1]
            if self._is_known(tree_id):
                pending.pop()
                continue
            directory = looked.get(tree_id)
            if directory is None:
                directory = looked[tree_id] = self._directory(tree_id)
                pending += [child for _, child in directory.below if not self._is_known(child)]
                continue
            pending.pop()
            del looked[tree_id]
            below = tuple(item for item in directory.below if item[1] in self._damaged)
            if directory.own or below:
                self._damaged[tree_id] = directory._replace(below=below)
            else:
                self._whole.add(tree_id)

    def _is_known(self, tree_id: ObjectId) -> bool:
        return tree_id in self._whole or tree_id in self._damaged

    def _directory(self, tree_id: ObjectId) -> _LostDirectory:
        """Checks what one directory needs itself."""
        own: list[LostObject] = []
        below: list[tuple[bytes, ObjectId]] = []
        self._checker.monitor.advance(1, 0)
        if not self._checker.is_there(ObjectKind.TREE, tree_id):
            return _LostDirectory((LostObject(tree_id, b""),), ())
        try:
            lost = [
                LostObject(page.id, b"")
                for page in self._trees.tree(tree_id).pages
                if not self._checker.is_there(ObjectKind.TREE, page.id)
            ]
            if lost:
                return _LostDirectory(tuple(lost), ())
            for reference in self._trees.references(Reference(ObjectKind.TREE, tree_id)):
                if reference.is_page:
                    continue
                if reference.kind == ObjectKind.TREE:
                    below.append((reference.name, reference.id))
                else:
                    own += [LostObject(each, reference.name) for each in self._lost_in(reference)]
        except NewerVersion:
            self._checker.note_newer_tree(tree_id)
            return _LostDirectory((), ())
        except Corrupt as error:
            if self._checker.newer_packs:  # it, or a page of it, may be there
                return _LostDirectory((), ())
            self._checker.note(ObjectKind.TREE, tree_id, error.message)
            return _LostDirectory((LostObject(tree_id, b""),), ())
        return _LostDirectory(tuple(own), tuple(below))

    def _lost_in(self, reference: Reference) -> tuple[ObjectId, ...]:
        """Returns the lost objects among a chunk, or a list and all below it.

        The level of a list bounds the depth.
        """
        if reference.kind == ObjectKind.CHUNK:
            return () if self._checker.is_there(reference.kind, reference.id) else (reference.id,)
        lost_ids = self._lists.get(reference.id)
        if lost_ids is None:
            lost_ids = (reference.id,)
            if self._checker.is_there(reference.kind, reference.id):
                try:
                    lost = (
                        each
                        for below in self._trees.references(reference)
                        for each in self._lost_in(below)
                    )
                    lost_ids = tuple(dict.fromkeys(lost))
                except Corrupt as error:
                    if self._checker.newer_packs:
                        lost_ids = ()
                    else:
                        self._checker.note(reference.kind, reference.id, error.message)
            self._lists[reference.id] = lost_ids
        return lost_ids


class Sample(NamedTuple):
    """One of several equal parts of all objects, chosen by their ids."""

    part: int
    """From 1 to ``parts``."""
    parts: int

    def holds(self, identity: ObjectId) -> bool:
        """Returns whether an object belongs to this part; each belongs to one of them."""
        return int.from_bytes(identity[:4], "big") % self.parts == self.part - 1


ALL = Sample(1, 1)
