"""``verify``: check every invariant of a store, say exactly what is damaged, repair.

Damage is attributed: a missing or damaged object is reported with the snapshots
and paths that need it, and with nothing else. Looking never changes anything;
``repair`` rebuilds the index from the packs and takes snapshot files that cannot
be read out of the way. It never removes an object or a readable snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from treesnap import treepath
from treesnap.codec.index import IndexEntry
from treesnap.codec.reader import TreeReader, read_lists, read_segments
from treesnap.errors import Corrupt, InvalidArgument, NotFound, TreesnapError
from treesnap.events import Phase
from treesnap.fs.durable import ensure_directories, sync_directory, unlink_if_present
from treesnap.model import EntryKind, ObjectId, ObjectKind, SnapshotId, SnapshotRecord
from treesnap.ops.access import Opened, opened
from treesnap.results import Problem, VerifyResult
from treesnap.store.store import Store

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

PATHS_MAX = 100
"""Paths listed for one problem."""


class Sample(NamedTuple):
    """One of several equal parts of all objects, chosen by their ids."""

    part: int
    """From 1 to ``parts``."""
    parts: int

    def holds(self, identity: ObjectId) -> bool:
        """Returns whether an object belongs to this part; each belongs to one of them."""
        return int.from_bytes(identity[:4], "big") % self.parts == self.part - 1


ALL = Sample(1, 1)


def verify(handle: Handle, *, read_data: bool, repair: bool, sample: Sample = ALL) -> VerifyResult:
    """Checks a store; see :meth:`treesnap.Handle.verify`."""
    if not 1 <= sample.part <= sample.parts:
        raise InvalidArgument(f"There is no part {sample.part} of {sample.parts}")
    with opened(handle, "verify the store") as pair:
        examination = _Examination(handle, pair)
        examination.examine(read_data=read_data, sample=sample)
        repaired: tuple[str, ...] = ()
        if repair and examination.problems:
            repaired = tuple(_Repair(handle, pair.store, examination).repair())
        return VerifyResult(
            problems=tuple(examination.problems),
            repaired=repaired,
            snapshots=examination.snapshots,
            objects=len(examination.checked),
            read_bytes=examination.read_bytes,
        )


class _Examination:
    def __init__(self, handle: Handle, pair: Opened) -> None:
        self._handle = handle
        self._fs = handle.fs
        self._store = pair.store
        self._trees = TreeReader(pair.store.get)
        self.problems: list[Problem] = []
        self.checked: dict[ObjectId, str | None] = {}
        """Every object that was looked at, with what is wrong with it, or None."""
        self.snapshots = 0
        self.read_bytes = 0
        self.bad_snapshot_files: list[str] = []
        self._whole_trees: set[ObjectId] = set()
        self._read_data = False
        self._sample = ALL
        self._blames = 0
        self.bad_records: set[tuple[bytes, int]] = set()
        """Pack and offset of records whose content is damaged."""
        self._damage: dict[ObjectId, tuple[list[SnapshotId], list[bytes]]] = {}

    def examine(self, *, read_data: bool, sample: Sample) -> None:
        """Looks at everything; fills in ``problems``."""
        self._read_data = read_data
        self._sample = sample
        self._handle.monitor.begin(Phase.VERIFY, None, None)
        self._examine_index()
        self._examine_snapshots()
        if read_data:
            self._examine_packs()
        for identity, (snapshot_ids, paths) in self._damage.items():
            reason = self.checked.get(identity) or "it is missing"
            self.problems.append(
                Problem(
                    code="missing-object" if "missing" in reason else "damaged-object",
                    message=reason,
                    where=identity.hex(),
                    snapshot_ids=tuple(dict.fromkeys(snapshot_ids)),
                    paths=tuple(sorted(set(paths)))[:PATHS_MAX],
                )
            )

    def _examine_index(self) -> None:
        index = self._store.index
        for part in index.parts.values():
            try:
                part.verify()
            except Corrupt as error:
                index.damaged.setdefault(os.path.basename(part.where), error.message)
        for name, reason in index.damaged.items():
            self.problems.append(Problem(code="bad-index", message=reason, where=f"index/{name}"))
        known = self._store.packs.sizes()
        for pack_id, covered in index.covered().items():
            if pack_id in known and known[pack_id] < covered:
                self.problems.append(
                    Problem(
                        code="bad-pack",
                        message=f"Pack {pack_id.hex()} is shorter than what was written to it",
                        where=f"packs/{pack_id.hex()}",
                    )
                )

    def _examine_snapshots(self) -> None:
        log = self._store.snapshots
        for root_id, name in list(log.all_names()):
            try:
                snapshot = log.load(root_id, name)
            except NotFound:
                continue
            except TreesnapError as error:
                path = log.path(root_id, name)
                self.bad_snapshot_files.append(path)
                self.problems.append(
                    Problem(
                        code="bad-snapshot",
                        message=error.message,
                        where=os.path.relpath(path, self._store.path),
                        snapshot_ids=(name.id,),
                    )
                )
                continue
            self.snapshots += 1
            self._examine_snapshot(snapshot.id, snapshot.record)

    def _examine_snapshot(self, identity: SnapshotId, record: SnapshotRecord) -> None:
        if record.links is not None:
            self._check_content(record.links, identity, b"")
        pending = [(b"", record.root.tree_id)]
        while pending:
            path, tree_id = pending.pop()
            if tree_id in self._whole_trees:
                continue
            before = self._blames
            below = self._examine_tree(identity, path, tree_id)
            if self._blames == before and not below:
                self._whole_trees.add(tree_id)
            pending += below

    def _examine_tree(
        self, identity: SnapshotId, path: bytes, tree_id: ObjectId
    ) -> list[tuple[bytes, ObjectId]]:
        """Checks one directory's objects; returns the directories in it."""
        below = []
        try:
            for page_id in self._trees.object_ids(tree_id):
                if not self._check(ObjectKind.TREE, page_id):
                    self._blame(page_id, identity, path)
            for entry in self._trees.entries(tree_id):
                entry_path = treepath.join(path, entry.name)
                if type(entry.xattrs) is bytes and not self._check(
                    ObjectKind.CHUNK, ObjectId(entry.xattrs)
                ):
                    self._blame(ObjectId(entry.xattrs), identity, entry_path)
                if entry.kind == EntryKind.FILE:
                    self._check_content(entry.content, identity, entry_path)
                elif entry.is_directory:
                    below.append((entry_path, entry.tree_id))
        except Corrupt as error:
            self.checked[tree_id] = self.checked.get(tree_id) or error.message
            self._blame(tree_id, identity, path)
        self._handle.monitor.advance(1, 0)
        return below

    def _check_content(
        self, content: tuple[object, ...], identity: SnapshotId, path: bytes
    ) -> None:
        try:
            for list_id in read_lists(content, self._store.get):
                self._check(ObjectKind.CHUNK_LIST, list_id)
            for segment in read_segments(content, self._store.get):
                if segment.id is not None and not self._check(ObjectKind.CHUNK, segment.id):
                    self._blame(segment.id, identity, path)
        except Corrupt as error:
            for top_id in (ObjectId(item) for item in content[1::2] if type(item) is bytes):
                if not self._check(ObjectKind.CHUNK_LIST, top_id, force_read=True):
                    self.checked[top_id] = error.message
                    self._blame(top_id, identity, path)

    def _blame(self, identity: ObjectId, snapshot_id: SnapshotId, path: bytes) -> None:
        self._blames += 1
        snapshot_ids, paths = self._damage.setdefault(identity, ([], []))
        snapshot_ids.append(snapshot_id)
        paths.append(path)

    def _check(self, kind: ObjectKind, identity: ObjectId, *, force_read: bool = False) -> bool:
        """Returns whether an object is there, and right when data is to be read."""
        if identity in self.checked and not force_read:
            return self.checked[identity] is None
        problem = None
        is_read = self._read_data and self._sample.holds(identity)
        if is_read or force_read or not self._store.has(identity):
            try:
                self.read_bytes += len(self._store.get(kind, identity))
            except Corrupt as error:
                problem = error.message
        self.checked[identity] = problem
        return problem is None

    def _examine_packs(self) -> None:
        """Reads every record of every pack, needed or not.

        What no index part covers may be what a killed writer left. It may be torn, and is no
        damage; where a snapshot needs it, its objects are.
        """
        covered = self._store.index.covered()
        for pack_id in self._store.packs.sizes():
            size = covered.get(pack_id, 0)
            inventory = self._store.inventory(pack_id)
            if inventory.damaged_at is not None and inventory.damaged_at < size:
                self._note_bad_pack(pack_id, f"the record at {inventory.damaged_at} is damaged")
            for entry in inventory.entries:
                if not self._sample.holds(entry.id):
                    continue
                try:
                    self._store.packs.read(entry)
                except Corrupt as error:
                    self.bad_records.add((pack_id, entry.offset))
                    if entry.offset < size:
                        self._note_bad_pack(pack_id, error.message)

    def _note_bad_pack(self, pack_id: bytes, reason: str) -> None:
        self.problems.append(
            Problem(
                code="bad-pack",
                message=f"Pack {pack_id.hex()}: {reason}",
                where=f"packs/{pack_id.hex()}",
            )
        )


class _Repair:
    def __init__(self, handle: Handle, store: Store, examination: _Examination) -> None:
        self._fs = handle.fs
        self._store = store
        self._examination = examination

    def repair(self) -> Iterator[str]:
        """Yields a sentence for everything that was repaired."""
        index = self._store.index
        codes = {problem.code for problem in self._examination.problems}
        if codes & {"bad-index", "bad-pack", "missing-object", "damaged-object"}:
            old = [*index.parts, *index.damaged]
            entries: list[IndexEntry] = []
            covered = {}
            for pack_id in self._store.packs.sizes():
                sound = self._store.sound(pack_id)
                covered[pack_id] = sound.covered
                entries += [
                    entry
                    for entry in sound.entries
                    if entry.offset < sound.covered
                    and (pack_id, entry.offset) not in self._examination.bad_records
                ]
            self._store.sync_names_of(covered)
            index.write_part(entries, covered, durable=True)
            index.remove_parts(old)
            yield f"Rebuilt the index from {len(covered)} packs with {len(entries)} objects"
            if codes - {"bad-index"}:
                yield self._drop_stat_caches()
        for path in self._examination.bad_snapshot_files:
            yield self._quarantine(path)

    def _drop_stat_caches(self) -> str:
        """Makes the next capture of every root read all files: what is lost is stored again."""
        layout = self._store.layout
        for root_id in self._fs.list_names(layout.roots):
            unlink_if_present(self._fs, layout.root_file(root_id, "cache"))
        return "Dropped the stat caches: the next capture of each root reads every file again"

    def _quarantine(self, path: str) -> str:
        ensure_directories(self._fs, self._store.layout.quarantine)
        target = os.path.join(self._store.layout.quarantine, os.path.basename(path))
        self._fs.rename(path, target)
        sync_directory(self._fs, os.path.dirname(path))
        sync_directory(self._fs, self._store.layout.quarantine)
        return f"Moved the damaged snapshot {os.path.basename(path)} to quarantine"
