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
        attributes = record.root.xattrs
        if type(attributes) is bytes and self._is_news(ObjectKind.CHUNK, ObjectId(attributes)):
            yield ObjectKind.CHUNK, ObjectId(attributes)
        pending = [record.root.tree_id]
        while pending:
            tree_id = pending.pop()
            if not self._is_news(ObjectKind.TREE, tree_id):
                continue
            for identity in self._trees.object_ids(tree_id):
                if identity == tree_id or self._is_news(ObjectKind.TREE, identity):
                    yield ObjectKind.TREE, identity
            for entry in self._trees.entries(tree_id):
                attributes = entry.xattrs
                if type(attributes) is bytes and self._is_news(
                    ObjectKind.CHUNK, ObjectId(attributes)
                ):
                    yield ObjectKind.CHUNK, ObjectId(attributes)
                if entry.kind == EntryKind.FILE:
                    yield from self._content(entry.content)
                elif entry.is_directory:
                    pending.append(entry.tree_id)

    def _is_news(self, kind: ObjectKind, identity: ObjectId) -> bool:
        """Notes an object; returns whether that changed anything, for it and all below it."""
        if identity in self.seen:
            return False
        self.seen[identity] = kind
        return True

    def _content(self, content: tuple[Any, ...]) -> Iterator[Reference]:
        """Yields chunks and lists; a list is followed once, however often it is named."""
        kind = ObjectKind.CHUNK_LIST if content[0] else ObjectKind.CHUNK
        for position in range(1, len(content), 2):
            identity = content[position]
            if identity is None or not self._is_news(kind, identity):
                continue
            yield kind, identity
            if kind == ObjectKind.CHUNK_LIST:
                below = decode_list(self._get(kind, identity))
                require(below[0] == content[0] - 1, "chunk list", "its level does not fit")
                yield from self._content(below)
