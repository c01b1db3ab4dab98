"""Everything that snapshots need: the walk behind ``gc``, ``verify`` and ``stats``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from treesnap.codec.chunklist import decode_list
from treesnap.codec.message import require
from treesnap.codec.reader import TreeReader
from treesnap.errors import Corrupt
from treesnap.model import EntryKind, ObjectId, ObjectKind, SnapshotRecord
from treesnap.store.store import Store

_ID = re.compile(rb"(?=\xc4\x20(.{32}))", re.DOTALL)
"""An id as msgpack stores it, wherever it stands."""

Reference = tuple[ObjectKind, ObjectId]


class Reachability:
    """Walks snapshots and yields every object once; equal directories are walked once.

    Memory is one id per object. Raises Corrupt when a tree or a list is missing or
    damaged, unless ``around_damage``: then the walk goes on, notes what is damaged, and
    takes every id that stands in its bytes for one that is needed. OSError is not damage.
    """

    def __init__(self, store: Store, *, around_damage: bool = False) -> None:
        self._store = store
        self._around_damage = around_damage
        self._searched: set[ObjectId] = set()
        self.damaged: set[ObjectId] = set()
        """Trees and lists that were missing or damaged."""
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
        yield from self._walk([record.root.tree_id])

    def _walk(self, pending: list[ObjectId]) -> Iterator[Reference]:
        while pending:
            tree_id = pending.pop()
            if not self._is_news(ObjectKind.TREE, tree_id):
                continue
            yield ObjectKind.TREE, tree_id
            try:
                yield from self._directory(tree_id, pending)
            except Corrupt as error:
                yield from self._damaged(tree_id, pending, error)

    def add_remains(self, data: bytes) -> Iterator[Reference]:
        """Yields the objects that a damaged record may need: those with an id in its bytes.

        The caller has seen to it that the index lacks nothing.
        """
        pending: list[ObjectId] = []
        yield from self._search(data, pending)
        yield from self._walk(pending)

    def _directory(self, tree_id: ObjectId, pending: list[ObjectId]) -> Iterator[Reference]:
        """Yields what one directory needs itself; its directories become pending."""
        for identity in self._trees.object_ids(tree_id):
            if identity != tree_id and self._is_news(ObjectKind.TREE, identity):
                yield ObjectKind.TREE, identity
        for entry in self._trees.entries(tree_id):
            attributes = entry.xattrs
            if type(attributes) is bytes and self._is_news(ObjectKind.CHUNK, ObjectId(attributes)):
                yield ObjectKind.CHUNK, ObjectId(attributes)
            if entry.kind == EntryKind.FILE:
                yield from self._content(entry.content)
            elif entry.is_directory:
                pending.append(entry.tree_id)

    def _damaged(
        self, identity: ObjectId, pending: list[ObjectId], error: Corrupt
    ) -> Iterator[Reference]:
        """Yields what a damaged tree or list may need, or raises the error that reading it met."""
        if not self._around_damage:
            raise error
        self.damaged.add(identity)
        for place in self._store.index.find_all(identity):
            yield from self._search(self._store.packs.read_unchecked(place), pending)

    def _search(self, data: bytes, pending: list[ObjectId]) -> Iterator[Reference]:
        """Yields the objects whose ids stand in bytes of which nothing else can be relied on.

        Trees and lists among them are read as far as they can be, though they were met before:
        the walk may have stopped in them.
        """
        for match in _ID.finditer(data):
            identity = ObjectId(match[1])
            place = next(self._store.index.find_all(identity), None)
            if place is None or identity in self._searched:
                continue
            self._searched.add(identity)
            kind = ObjectKind(place.kind)
            if self._is_news(kind, identity):
                yield kind, identity
            try:
                if kind == ObjectKind.TREE:
                    yield from self._directory(identity, pending)
                elif kind == ObjectKind.CHUNK_LIST:
                    yield from self._content(decode_list(self._get(kind, identity)))
            except Corrupt as error:
                yield from self._damaged(identity, pending, error)

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
                try:
                    below = decode_list(self._get(kind, identity))
                    require(below[0] == content[0] - 1, "chunk list", "its level does not fit")
                except Corrupt as error:
                    yield from self._damaged(ObjectId(identity), [], error)
                    continue
                yield from self._content(below)
