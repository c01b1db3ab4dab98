"""Recovering lost objects from live trees: equal content has the same id.

First, each chunk is looked for at the path that had it in the snapshot. For what is still lost,
the roots of the store are walked, those of damaged snapshots first, and every object that a
capture would store is compared: this finds renamed files and unchanged directories too. Only
the hash is trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from treesnap.core.codec.reader import Reference, TreeReader, read_segments, root_references
from treesnap.core.fs.real_path import open_real
from treesnap.core.model import treepath
from treesnap.core.model.entries import EntryKind, ObjectId, ObjectKind
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.events import Phase
from treesnap.core.model.ids import object_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.results import RecoveredObject
from treesnap.core.model.snapshots import IgnoreRules, Snapshot
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.capture import scan_settings
from treesnap.core.ops.context import Context
from treesnap.core.ops.tree_state import MemoryObjects, entry_at
from treesnap.core.store.roots import RootRecord, registered_records
from treesnap.core.store.store import Store
from treesnap.core.store.writer import Writer
from treesnap.core.worktree.directory import DirectoryChain
from treesnap.core.worktree.scan.scanner import Scanner, ScanResult

if TYPE_CHECKING:
    from treesnap.core.store.maintenance.check.checker import Damaged

_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class _Place(NamedTuple):
    """A live tree, and how a snapshot of it was taken."""

    root: bytes
    rules: tuple[IgnoreRules, ...] = ()
    scope: tuple[bytes, ...] | None = None


class ObjectRecovery:
    """Looks for lost objects, and stores those that are found, durably."""

    def __init__(self, context: Context, store: Store, wanted: dict[ObjectId, ObjectKind]) -> None:
        self._context = context
        self._fs = context.fs
        self._store = store
        self._wanted = dict(wanted)
        self._found: dict[ObjectId, RecoveredObject] = {}

    def run(self, damaged: list[Damaged]) -> list[RecoveredObject]:
        """Returns what was found and stored. The caller holds the collector's lock."""
        if not self._wanted:
            return []
        roots = registered_records(self._fs, self._store.layout)
        registered = [root.path for root in roots]
        damaged = list(_where_they_are(damaged, self._store, roots))
        with Writer(self._store) as writer:
            for item in damaged:
                self._from_their_places(item, writer)
            for place in _places(damaged, registered):
                if self._wanted:
                    self._from_walk(place, writer)
            writer.flush()
        return list(self._found.values())

    def _from_their_places(self, item: Damaged, writer: Writer) -> None:
        """Reads the chunks that a snapshot lost from the paths that had them."""
        record = item.snapshot.record
        trees = TreeReader(self._store.get)
        paths = {lost.path for lost in item.lost if lost.object_id in self._wanted}
        if not paths:
            return
        try:
            root_fd = open_real(self._fs, record.root_path)
        except OSError:
            return
        try:
            with DirectoryChain(self._fs, root_fd) as chain:
                for path in sorted(paths):
                    try:
                        pieces = self._pieces(item.snapshot, trees, path)
                        self._from_file(chain, record.root_path, path, pieces, writer)
                    except (TreesnapError, OSError):
                        continue
        finally:
            self._fs.close(root_fd)

    def _pieces(self, snapshot: Snapshot, trees: TreeReader, path: bytes) -> list[tuple[int, int]]:
        """Returns where in a file its lost chunks begin, and their sizes."""
        entry = entry_at(trees, snapshot, path)
        if entry.kind != EntryKind.FILE:
            return []
        pieces = []
        position = 0
        for segment in read_segments(entry.file_content, self._store.get):
            if segment.id in self._wanted:
                pieces.append((position, segment.size))
            position += segment.size
        return pieces

    def _from_file(
        self,
        chain: DirectoryChain,
        root: bytes,
        path: bytes,
        pieces: list[tuple[int, int]],
        writer: Writer,
    ) -> None:
        if not pieces:
            return
        directory, name = treepath.split(path)
        fd = self._fs.open(name, _OPEN_FILE, dir_fd=chain.open(directory))
        try:
            for position, size in pieces:
                data = self._fs.read_at(fd, size, position)
                identity = object_id(ObjectKind.CHUNK, data)
                if self._wanted.pop(identity, None) is not None:
                    writer.put(ObjectKind.CHUNK, data)
                    self._note(identity, root, path)
        finally:
            self._fs.close(fd)

    def _from_walk(self, place: _Place, writer: Writer) -> None:
        """Walks a live tree as a capture would, and stores what of it is wanted.

        Twice where directories or lists were found: what they need was not known before.
        """
        for _ in range(2):
            sieve = _Sieve(self._store, self._wanted, writer)
            self._context.monitor.begin(Phase.SCAN, None, None)
            request = CaptureRequest(scope=place.scope, rules=place.rules)
            settings = scan_settings(self._context, request, root=os.fsdecode(place.root))
            try:
                result = Scanner(self._fs, settings, sieve, self._context.monitor).scan()
                needed = list(_needed(result, sieve)) if sieve.caught else []
            except (TreesnapError, OSError):
                needed = []  # what was caught before the error is intact
            paths = {reference.id: path for reference, path in reversed(needed)}
            for identity in sieve.caught:
                self._note(identity, place.root, paths.get(identity, b""))
            more = {
                reference.id: reference.kind
                for reference, _ in needed
                if reference.id not in self._found and not self._store.has(reference.id)
            }
            if not more:
                return
            self._wanted.update(more)

    def _note(self, identity: ObjectId, root: bytes, path: bytes) -> None:
        self._found[identity] = RecoveredObject(object_id=identity.hex(), root=root, path=path)


def _where_they_are(
    damaged: Iterable[Damaged], store: Store, roots: Iterable[RootRecord]
) -> Iterator[Damaged]:
    """Yields snapshots with the present path of their root, as far as that is known.

    What a record says is where the root was, which may have been on another machine.
    """
    paths = {root.id: root.path for root in roots}
    present = {
        name.id: paths[root_id] for root_id, name in store.snapshots.all_names() if root_id in paths
    }
    for item in damaged:
        path = present.get(item.snapshot.id)
        if path is not None:
            record = item.snapshot.record._replace(root_path=path)
            yield item._replace(snapshot=item.snapshot._replace(record=record))


def _places(damaged: list[Damaged], registered: list[bytes]) -> list[_Place]:
    """Returns the live trees to walk, each once, the likeliest first."""
    records = [item.snapshot.record for item in reversed(damaged)]
    captured = [_Place(record.root_path, record.rules, record.scope) for record in records]
    return list(dict.fromkeys([*captured, *map(_Place, registered)]))


class _Sieve(MemoryObjects):
    """Receives the objects of a walk, and stores those that are wanted, each once."""

    def __init__(self, store: Store, wanted: dict[ObjectId, ObjectKind], writer: Writer) -> None:
        super().__init__(store)
        self._wanted = wanted
        self._writer = writer
        self.caught: set[ObjectId] = set()

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        """Returns an object's id."""
        identity = super().put(kind, data)
        if self._wanted.get(identity) == kind:
            self._writer.put(kind, data)
            del self._wanted[identity]
            self.caught.add(identity)
        return identity


def _needed(result: ScanResult, sieve: _Sieve) -> Iterator[tuple[Reference, bytes]]:
    """Yields the objects that were kept, and all that they need, each with a path."""
    trees = TreeReader(sieve.get)
    pending = [(item, b"", False) for item in root_references(result.root, result.links)]
    while pending:
        reference, path, is_needed = pending.pop()
        is_needed = is_needed or reference.id in sieve.caught
        if is_needed:
            yield reference, path
        below = [
            (item, treepath.join(path, item.name) if item.name else path, is_needed)
            for item in trees.references(reference)
        ]
        pending += reversed(below)
