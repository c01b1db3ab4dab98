"""Everything that snapshots need: the walk behind ``gc``, ``verify`` and ``stats``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treesnap.codec.chunklist import decode_list
from treesnap.codec.message import require
from treesnap.codec.reader import TreeReader
from treesnap.model import EntryKind, ObjectId, ObjectKind, SnapshotRecord
from treesnap.store.store import Store

Reference = tuple[ObjectKind, ObjectId]


class Reachability:
    """Walks snapshots and yields every object once; equal directories are walked once.

    Memory is one id per object. Raises Corrupt when a tree or a list is missing or
    damaged: then nobody can say what is needed.
    """

    def __init__(self, store: Store) -> None:
        self._get = store.get
        self._trees = TreeReader(store.get, kept_max=2)  # a directory and its page, read once
        self.seen: dict[ObjectId, ObjectKind] = {}

    def add(self, record: SnapshotRecord) -> Iterator[Reference]:
        """Yields the objects that a snapshot needs and none before it did."""
        if record.links is not None:
            yield from self._content(record.links)
        if type(record.root.xattrs) is bytes:
            yield from self._once(ObjectKind.CHUNK, ObjectId(record.root.xattrs))
        pending = [record.root.tree_id]
        while pending:
            tree_id = pending.pop()
            if tree_id in self.seen:
                continue
            for identity in self._trees.object_ids(tree_id):
                yield from self._once(ObjectKind.TREE, identity)
            for entry in self._trees.entries(tree_id):
                if type(entry.xattrs) is bytes:
                    yield from self._once(ObjectKind.CHUNK, ObjectId(entry.xattrs))
                if entry.kind == EntryKind.FILE:
                    yield from self._content(entry.content)
                elif entry.is_directory:
                    pending.append(entry.tree_id)

    def _once(self, kind: ObjectKind, identity: ObjectId) -> Iterator[Reference]:
        if identity not in self.seen:
            self.seen[identity] = kind
            yield kind, identity

    def _content(self, content: tuple[Any, ...]) -> Iterator[Reference]:
        """Yields chunks and lists; a list is followed once, however often it is named."""
        kind = ObjectKind.CHUNK_LIST if content[0] else ObjectKind.CHUNK
        for position in range(1, len(content), 2):
            identity = content[position]
            if identity is None or identity in self.seen:
                continue
            yield from self._once(kind, identity)
            if kind == ObjectKind.CHUNK_LIST:
                below = decode_list(self._get(kind, identity))
                require(below[0] == content[0] - 1, "chunk list", "its level does not fit")
                yield from self._content(below)
