"""Which paths of which snapshots an object takes with it when it is lost.

Every tree and every list is looked at once, however many snapshots share it. Only
directories with damage in or below them are walked again for each snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from treesnap import treepath
from treesnap.codec.chunklist import decode_list
from treesnap.codec.message import require
from treesnap.codec.reader import Get, TreeReader
from treesnap.errors import Corrupt
from treesnap.model import EntryKind, ObjectId, ObjectKind, SnapshotRecord

Check = Callable[[ObjectKind, ObjectId], bool]
"""Returns whether an object is there and right."""

_LOSSES_MAX = 1 << 20
"""Losses named of one snapshot: a store from elsewhere can name one directory very often."""


class Loss(NamedTuple):
    """An object that is lost, and a path that needs it."""

    object_id: ObjectId
    path: bytes


class _LostDirectory(NamedTuple):
    """A directory with damage in it or below it."""

    own: tuple[Loss, ...]
    """What its own entries need; paths are names in it, or empty for the directory itself."""
    below: tuple[tuple[bytes, ObjectId], ...]
    """Its directories, by name."""


class DamageReport:
    """Finds what snapshots lose. ``note`` is told of objects that cannot be decoded."""

    def __init__(
        self,
        get: Get,
        check: Check,
        note: Callable[[ObjectKind, ObjectId, str], None],
        advance: Callable[[], None],
    ) -> None:
        self._get = get
        self._check = check
        self._note = note
        self._advance = advance
        self._trees = TreeReader(get)
        self._whole: set[ObjectId] = set()
        self._damaged: dict[ObjectId, _LostDirectory] = {}
        self._lists: dict[ObjectId, tuple[ObjectId, ...]] = {}

    def of(self, record: SnapshotRecord) -> list[Loss]:
        """Returns everything that a snapshot lost."""
        return list(islice(self._of(record), _LOSSES_MAX))

    def _of(self, record: SnapshotRecord) -> Iterator[Loss]:
        for lost in self._lost_of(record.links) if record.links is not None else ():
            yield Loss(lost, b"")
        yield from self._of_attributes(record.root.xattrs, b"")
        tree_id: ObjectId = record.root.tree_id
        self._look(tree_id)
        pending = [(b"", tree_id)]
        while pending:
            path, tree_id = pending.pop()
            directory = self._damaged.get(tree_id)
            if directory is None:
                continue
            for loss in directory.own:
                yield loss._replace(path=treepath.join(path, loss.path) if loss.path else path)
            pending += [(treepath.join(path, name), child) for name, child in directory.below]

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
        own: list[Loss] = []
        below: list[tuple[bytes, ObjectId]] = []
        self._advance()
        try:
            if not self._check(ObjectKind.TREE, tree_id):
                return _LostDirectory((Loss(tree_id, b""),), ())
            pages = [page_id for page_id in self._trees.object_ids(tree_id) if page_id != tree_id]
            lost = [page_id for page_id in pages if not self._check(ObjectKind.TREE, page_id)]
            if lost:
                return _LostDirectory(tuple(Loss(page_id, b"") for page_id in lost), ())
            for entry in self._trees.entries(tree_id):
                own += self._of_attributes(entry.xattrs, entry.name)
                if entry.kind == EntryKind.FILE:
                    own += [Loss(lost, entry.name) for lost in self._lost_of(entry.content)]
                elif entry.is_directory:
                    below.append((entry.name, entry.tree_id))
        except Corrupt as error:
            self._note(ObjectKind.TREE, tree_id, error.message)
            return _LostDirectory((Loss(tree_id, b""),), ())
        return _LostDirectory(tuple(own), tuple(below))

    def _of_attributes(self, xattrs: Any, path: bytes) -> Iterable[Loss]:
        if type(xattrs) is bytes and not self._check(ObjectKind.CHUNK, ObjectId(xattrs)):
            yield Loss(ObjectId(xattrs), path)

    def _lost_of(self, content: tuple[Any, ...]) -> Iterator[ObjectId]:
        """Yields the lost objects of a content."""
        level = content[0]
        for position in range(1, len(content), 2):
            identity = content[position]
            if identity is None:
                continue
            if level:
                yield from self._lost_of_list(ObjectId(identity), level)
            elif not self._check(ObjectKind.CHUNK, ObjectId(identity)):
                yield ObjectId(identity)

    def _lost_of_list(self, list_id: ObjectId, level: int) -> tuple[ObjectId, ...]:
        """Returns the lost objects of a list, itself included. Its level bounds the depth."""
        found = self._lists.get(list_id)
        if found is None:
            found = (list_id,)
            if self._check(ObjectKind.CHUNK_LIST, list_id):
                try:
                    below = decode_list(self._get(ObjectKind.CHUNK_LIST, list_id))
                    require(below[0] == level - 1, "chunk list", "its level does not fit")
                    found = tuple(dict.fromkeys(self._lost_of(below)))
                except Corrupt as error:
                    self._note(ObjectKind.CHUNK_LIST, list_id, error.message)
            self._lists[list_id] = found
        return found
