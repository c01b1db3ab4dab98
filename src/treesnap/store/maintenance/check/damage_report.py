"""Which paths of which snapshots a lost object damages.

Every tree and every list is looked at once, however many snapshots share it. Only
directories with damage in or below them are walked again for each snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from treesnap import treepath
from treesnap.codec.reader import Get, Reference, TreeReader, root_references
from treesnap.errors import Corrupt
from treesnap.model import ObjectId, ObjectKind, SnapshotRecord

Check = Callable[[ObjectKind, ObjectId], bool]
"""Returns whether an object exists and is intact."""

_LOST_MAX = 1 << 20
"""Lost objects named of one snapshot: a hostile store can name one directory very often."""


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

    def of(self, record: SnapshotRecord) -> list[LostObject]:
        """Returns everything that a snapshot lost."""
        return list(islice(self._of(record), _LOST_MAX))

    def _of(self, record: SnapshotRecord) -> Iterator[LostObject]:
        pending: list[tuple[bytes, ObjectId]] = []
        for reference in root_references(record.root, record.links):
            if reference.kind == ObjectKind.TREE:
                self._look(reference.id)
                pending.append((b"", reference.id))
            else:
                yield from (LostObject(lost, b"") for lost in self._lost_in(reference))
        while pending:
            path, tree_id = pending.pop()
            directory = self._damaged.get(tree_id)
            if directory is None:
                continue
            for lost in directory.own:
                yield lost._replace(path=treepath.join(path, lost.path) if lost.path else path)
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
        own: list[LostObject] = []
        below: list[tuple[bytes, ObjectId]] = []
        self._advance()
        if not self._check(ObjectKind.TREE, tree_id):
            return _LostDirectory((LostObject(tree_id, b""),), ())
        try:
            lost = [
                LostObject(page.id, b"")
                for page in self._trees.tree(tree_id).pages
                if not self._check(ObjectKind.TREE, page.id)
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
        except Corrupt as error:
            self._note(ObjectKind.TREE, tree_id, error.message)
            return _LostDirectory((LostObject(tree_id, b""),), ())
        return _LostDirectory(tuple(own), tuple(below))

    def _lost_in(self, reference: Reference) -> tuple[ObjectId, ...]:
        """Returns the lost objects among a chunk, or a list and all below it.

        The level of a list bounds the depth.
        """
        if reference.kind == ObjectKind.CHUNK:
            return () if self._check(reference.kind, reference.id) else (reference.id,)
        found = self._lists.get(reference.id)
        if found is None:
            found = (reference.id,)
            if self._check(reference.kind, reference.id):
                try:
                    lost = (
                        each
                        for below in self._trees.references(reference)
                        for each in self._lost_in(below)
                    )
                    found = tuple(dict.fromkeys(lost))
                except Corrupt as error:
                    self._note(reference.kind, reference.id, error.message)
            self._lists[reference.id] = found
        return found
