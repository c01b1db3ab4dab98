"""What writers deliver to the inbox of a remote, and how a machine with a key receives it.

    inbox/<writer>-<number>-<part>-<id>    part 0, the *letter*: snapshots, and the names of the
                                           packs; from 1 on the packs, with all that the snapshots
                                           need and this writer did not deliver before

A writer has an invitation and nothing else: no key of the remote, no view of it. Its packs are
written first, its letter last. Nothing in the inbox counts: readers, pushes and collections do
not look there. A machine that has the keys *receives* a delivery, which is a push of
its own: it takes what it lacks out of the packs, each object compared with its id, and gives each
root of a writer a history of its own, whose name says which writer. Then it removes the delivery.
One of which something is missing, or is not what the writer signed, stays and is named.

So nothing of the protocol depends on a writer, and a stolen invitation adds histories under its
own name, and does nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from treesnap.core.codec.index import IndexPart, encode_unsorted
from treesnap.core.codec.pack import (
    Block,
    Encoded,
    OpenBlock,
    decode_table,
    encode_pack,
    scan_blocks,
    taken,
)
from treesnap.core.codec.reader import Reference, TreeReader, root_references
from treesnap.core.codec.snapshot import decode_snapshot, snapshot_id
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Corrupt, InvalidArgument, UnsupportedFormat
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import Record
from treesnap.core.model.snapshots import SnapshotId
from treesnap.remote.blobs.base import Blobs
from treesnap.remote.files import SealedFiles
from treesnap.remote.keys import damaged
from treesnap.remote.objects import Objects, Seen, complete_trees, needed_objects
from treesnap.remote.protocol import Missing, Uploaded
from treesnap.remote.push import PushSource, encoded_anew, packs_of
from treesnap.remote.records import (
    DELIVERY,
    DELIVERY_SIZE_MAX,
    FILE_ID_SIZE,
    MACHINE_ID_SIZE,
    CommitEntry,
    Delivery,
    DeliveryName,
    HistoryName,
)
from treesnap.remote.sealing import InboxSealer
from treesnap.remote.spool import Spool

_SEALED_MAX = 33 / 32 + 0.01
"""How much larger a file is than its content, but for some KiB."""
_PART_SIZE_MAX = 128 << 20
"""A pack that a writer fills has 32 MiB and a block more."""
OBJECTS_MAX = 1 << 20
"""Objects of one delivery: to receive it takes 50 bytes of memory for each."""
_OPEN_BLOCKS_SIZE_MAX = 8 << 20
"""Bytes of blocks that are kept decompressed."""
_NAME_SIZE_MAX = 200


class Delivered(Record):
    """What was delivered, and not received yet."""

    writer: str
    """The id of the writer."""
    history: str
    """How the id of the history will begin."""
    snapshots: tuple[SnapshotId, ...]
    """Those that were not delivered before, oldest first."""
    stored: Uploaded


class Received(Record):
    """One delivery that was received."""

    writer: str
    history_id: str
    history_name: str
    snapshots: tuple[SnapshotId, ...]
    """Those that the remote did not have."""


def send(
    blobs: Blobs,
    sealer: InboxSealer,
    source: PushSource,
    delivery: Delivery,
    number: int,
    parents: Sequence[bytes],
    advance: Callable[[int, int], None] = lambda _objects, _bytes: None,
) -> Uploaded:
    """Writes a delivery without packs to the inbox, with the packs that it needs; durable.

    ``number`` says how many snapshots its root had delivered before. What ``parents`` need, which
    are payloads of records, was delivered too. Raises Corrupt when ``source`` lacks something, and
    RemoteFailed.
    """
    before = _delivered_objects(source, delivery.snapshots, parents)

    def needed() -> Iterator[Reference]:
        seen = source.seen()
        return needed_objects(
            source, delivery.snapshots, lambda item: item.id in before or seen(item)
        )

    if sum(1 for _ in needed()) > OBJECTS_MAX:
        raise InvalidArgument(f"A delivery has at most {OBJECTS_MAX} objects: name fewer REFs")
    stored, names = Uploaded(), list[DeliveryName]()

    def put(part: int, content: bytes) -> DeliveryName:
        place = DeliveryName(sealer.writer_id, number, part)
        file = sealer.seal(place.prefix, content)
        blobs.put(file.name, file.data)
        name = DeliveryName.parse(file.name)
        assert name is not None
        return name

    for part, blocks in enumerate(packs_of(source, needed()), start=1):
        content, tables = encode_pack(taken(blocks))
        names.append(put(part, content))
        objects, size_bytes = sum(table.object_count for table in tables), len(content)
        del content  # its memory is needed for the next one
        stored = stored._replace(
            objects=stored.objects + objects,
            packs=part,
            size_bytes=stored.size_bytes + size_bytes,
        )
        advance(objects, size_bytes)
    put(0, DELIVERY.seal(delivery._replace(packs=tuple(names))))
    return stored


def _delivered_objects(
    source: Objects, snapshots: Sequence[bytes], parents: Sequence[bytes]
) -> set[ObjectId]:
    """Returns what snapshots may need of their parents, which are read where both differ."""
    trees = TreeReader(source.get)
    needed = complete_trees(parents, source.get, snapshots)
    for tree_id in list(needed):
        with suppress(Corrupt):  # it is not here any more
            references = trees.references(Reference(ObjectKind.TREE, tree_id))
            needed.update(item.id for item in references)
    for record in map(decode_snapshot, parents):
        needed.update(item.id for item in root_references(record.root, record.links))
    return needed


class Inbox:
    """The inbox of a remote, for a machine that has the keys."""

    def __init__(self, files: SealedFiles) -> None:
        self._files = files
        self._writers = files.members.writers()
        self._sizes = dict(files.inbox())

    def letters(self) -> list[DeliveryName]:
        """Returns the deliveries that are complete, or seem to be."""
        return sorted(name for name in self._sizes if name.part == 0)

    @property
    def left(self) -> int:
        """How many files there are that no letter named which was removed."""
        return len(self._sizes)

    def read(self, letter: DeliveryName) -> Delivery:
        """Returns what is delivered; raises Corrupt for what no writer of the remote sent whole.

        Nothing is fetched that does not say that it is of one of these.
        """
        content = self._content(letter, DELIVERY_SIZE_MAX)
        try:
            delivery = DELIVERY.unseal(content, str(letter))
            for payload in delivery.snapshots:
                decode_snapshot(payload)
        except UnsupportedFormat as error:
            raise damaged(str(letter), f"cannot be received: {error.message}") from error
        if any(name.writer != letter.writer or not name.part for name in delivery.packs):
            raise damaged(str(letter), "names packs of another writer")
        return delivery

    def objects(self, delivery: Delivery, others: Objects, spool: Spool) -> DeliveredObjects:
        """Returns what is in the packs of a delivery; reads each once, into a spool.

        Raises Corrupt.
        """
        return DeliveredObjects(
            delivery.packs, lambda name: self._content(name, _PART_SIZE_MAX), others, spool
        )

    def remove(self, letter: DeliveryName, delivery: Delivery) -> None:
        """Removes a delivery that was received; its letter goes first."""
        names = [letter, *delivery.packs]
        self._files.delete(map(str, names))
        for name in names:
            self._sizes.pop(name, None)

    def _content(self, name: DeliveryName, size_bytes_max: int) -> bytes:
        if name.writer not in self._writers:
            raise damaged(str(name), "is not of a writer of the remote")
        size_bytes_max = int(size_bytes_max * _SEALED_MAX) + (1 << 16)
        if self._sizes.get(name, 0) > size_bytes_max:
            raise damaged(str(name), "is too large")
        return self._files.delivered(name, self._writers, size_bytes_max)


class DeliveredObjects:
    """Objects in the packs of a delivery, others from the remote. Implements PushSource."""

    def __init__(
        self,
        packs: Sequence[DeliveryName],
        read: Callable[[DeliveryName], bytes],
        others: Objects,
        spool: Spool,
    ) -> None:
        self._others = others
        self._spool = spool
        self._blocks: OrderedDict[Block, OpenBlock] = OrderedDict()
        self._size = 0
        self._starts: dict[bytes, int] = {}
        """Where packs begin in the spool."""
        self._names: dict[bytes, DeliveryName] = {}
        self._parts: list[IndexPart] = []
        """What is in each pack; the one first that had what was asked for last."""
        for name in packs:
            content = read(name)
            self._names[name.id] = name
            self._starts[name.id] = spool.append(content)
            entries = (entry for table in scan_blocks(content, name.id) for entry in table.entries)
            rows = encode_unsorted(entries, {name.id: len(content)})
            del content  # its memory is needed for the next one
            self._parts.append(IndexPart(rows, str(name)))
            if sum(part.count for part in self._parts) > OBJECTS_MAX:
                raise damaged(str(name), f"is of a delivery of more than {OBJECTS_MAX} objects")

    def _place(self, object_id: ObjectId) -> tuple[IndexPart, int] | None:
        """Returns the part that lists an object, and where, or None."""
        for number, part in enumerate(self._parts):
            position = part.position(object_id)
            if position is not None:
                self._parts.insert(0, self._parts.pop(number))
                return part, position
        return None

    def _block(self, block: Block) -> OpenBlock:
        if block not in self._blocks:
            start = self._starts[block.pack_id] + block.offset
            data = self._spool.read(start, block.size)
            table = decode_table(data, block.pack_id, block.offset)
            assert table is not None  # as when it was listed
            self._blocks[block] = OpenBlock(table, data)
            self._size += block.raw_size
            while self._size > _OPEN_BLOCKS_SIZE_MAX and len(self._blocks) > 1:
                oldest, _ = self._blocks.popitem(last=False)
                self._size -= oldest.raw_size
        self._blocks.move_to_end(block)
        return self._blocks[block]

    def get(self, kind: ObjectKind, object_id: ObjectId) -> bytes:
        """Returns the verified bytes of an object; raises Corrupt, and Missing."""
        place = self._place(object_id)
        entry = place[0].at(place[1]) if place is not None else None
        if entry is None:
            return self._others.get(kind, object_id)
        if entry.kind != kind:
            name = self._names[entry.pack_id]
            raise damaged(str(name), f"holds object {object_id.hex()} as another kind")
        return self._block(entry.block).find(entry)

    def prefetch(self, objects: Iterable[ObjectId]) -> None:
        """Reads of the remote what is asked for next and was not delivered."""
        try:
            self._others.prefetch([item for item in objects if self._place(item) is None])
        except Missing:  # told when it is asked for
            return

    def seen(self) -> Callable[[Reference], bool]:
        """Returns what tells whether it was asked for an object before; a byte for each.

        One that several packs hold, as no writer delivers it, may be new once for each.
        """
        met = {id(part): bytearray(part.count) for part in self._parts}
        others = Seen()

        def is_seen(reference: Reference) -> bool:
            place = self._place(reference.id)
            if place is None:
                return others(reference)
            part, position = place
            was_met = bool(met[id(part)][position])
            met[id(part)][position] = 1
            return was_met

        return is_seen

    def encoded(self, references: Iterable[Reference]) -> Iterator[Encoded]:
        """Yields blocks that hold these objects and no others, verified; raises Corrupt."""
        return encoded_anew(self, references)


def history_of(letter: DeliveryName, delivery: Delivery, machine: bytes) -> HistoryName:
    """Returns the history in which a machine stores what was delivered.

    The beginning of its id, and its name, say which writer it is of; no writer chooses them.
    """
    words = delivery.name[:_NAME_SIZE_MAX] or "root"
    return HistoryName(
        beginning_of(letter.writer, delivery.history) + machine,
        f"{_name_begins(letter.writer)}{words}",
    )


def beginning_of(writer: bytes, history: bytes) -> bytes:
    """Returns how the id of the history of a root of a writer begins."""
    size = FILE_ID_SIZE - MACHINE_ID_SIZE
    return checksum(b"treesnap inbox history 2" + writer + history, size)


def _name_begins(writer: bytes) -> str:
    return f"writer-{writer.hex()}-"


class Lacking(NamedTuple):
    """What of a delivery is to be stored."""

    history: HistoryName
    snapshots: tuple[bytes, ...]


def lacking(
    letter: DeliveryName, delivery: Delivery, machine: bytes, visible: Iterable[CommitEntry]
) -> Lacking:
    """Returns which snapshots of a delivery no machine has stored yet, and where they belong.

    Raises Corrupt where another history has the id, which a writer would have to look for long.
    """
    history = history_of(letter, delivery, machine)
    begins = beginning_of(letter.writer, delivery.history)
    there = set[str]()
    for entry in visible:
        if entry.history.id.startswith(begins):
            if not entry.history.name.startswith(_name_begins(letter.writer)):
                raise damaged(str(letter), "has a history whose id belongs to another one")
            there.update(map(snapshot_id, entry.snapshots))
    left = tuple(item for item in delivery.snapshots if snapshot_id(item) not in there)
    return Lacking(history, left)


def message_of(error: Corrupt | Missing) -> str:
    """Returns why a delivery is left, in words."""
    if isinstance(error, Missing):
        return f"{error}, and was not delivered: its writer delivers it again with --whole"
    return error.message
