"""The objects of a store, as a push reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet

from treesnap.core.codec.pack import Block, Encoded, IndexEntry
from treesnap.core.codec.reader import Reference
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.store.maintenance.reachability import SeenObjects
from treesnap.core.store.store import Store
from treesnap.remote.objects import in_blocks
from treesnap.remote.push import encoded_anew


class LocalObjects:
    """Implements :class:`treesnap.remote.push.PushSource`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, kind: ObjectKind, object_id: ObjectId) -> bytes:
        """Returns the verified bytes of an object; raises Corrupt when there are none."""
        return self._store.get(kind, object_id)

    def prefetch(self, objects: Iterable[ObjectId]) -> None:
        """Does nothing: a disk is near."""

    def seen(self) -> Callable[[Reference], bool]:
        """Returns what tells whether it was asked for an object before; a byte for each."""
        objects = SeenObjects(self._store.index)
        return lambda reference: not objects.add(reference.id, reference.kind)

    def encoded(self, references: Iterable[Reference]) -> Iterator[Encoded]:
        """Yields blocks that hold these objects and no others, verified; raises Corrupt.

        A block of the store that is wanted whole is taken as it is, which spares compressing it
        again. Of any other only what is wanted travels: the rest may have been deleted.
        """
        loose: list[Reference] = []

        def places() -> Iterator[tuple[Block, IndexEntry]]:
            for reference in references:
                entry = self._store.index.find(reference.id)
                if entry is None or entry.kind != reference.kind:
                    loose.append(reference)
                else:
                    yield entry.block, entry

        for by_block in in_blocks(places()):
            for block in sorted(by_block):
                objects = by_block[block]
                copied = self._copied(block, objects.keys())
                if copied is not None:
                    yield copied
                else:
                    loose += [Reference(ObjectKind(kind), each) for each, kind in objects.items()]
            yield from encoded_anew(self, loose)
            loose.clear()
        yield from encoded_anew(self, loose)

    def _copied(self, block: Block, ids: AbstractSet[ObjectId]) -> Encoded | None:
        """Returns a block as it is stored, or None unless it holds just these objects, undamaged.

        What is damaged may be whole in another pack.
        """
        try:
            return self._store.packs.copied(block, ids)
        except (Corrupt, FileNotFoundError):
            return None
