"""Snapshots of very many objects, of which nothing but their ids is there."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from random import Random

from remote_world import Objects
from treesnap.core.codec.chunklist import fold
from treesnap.core.codec.pack import BLOCK_OBJECTS_MAX, Block, BlockTable, Encoded
from treesnap.core.codec.reader import Reference
from treesnap.core.codec.snapshot import encode_snapshot
from treesnap.core.codec.tree import put_tree
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, ObjectKind, Segment, Totals
from treesnap.core.model.snapshots import SnapshotId, SnapshotRecord
from treesnap.remote.objects import Seen, needed_objects
from treesnap.remote.protocol import Push, Remote
from treesnap.remote.push import encoded_anew
from treesnap.remote.records import HistoryName

SIZE = 9
"""Of each object, as its row says."""


def table_of(ids: Sequence[bytes]) -> BlockTable:
    """Returns what a block of chunks would say of itself."""
    raw_size = len(ids) * (1 + SIZE)
    rows = b"".join(struct.pack("<32sIB", each, SIZE, ObjectKind.CHUNK) for each in ids)
    return BlockTable(Block(b"", 0, len(rows) + raw_size, raw_size), 0, rows)


def blocks_of(ids: Iterable[bytes]) -> Iterator[Encoded]:
    """Yields blocks without bytes that list chunks."""
    left = iter(ids)
    while part := list(islice(left, BLOCK_OBJECTS_MAX)):
        yield Encoded(b"", [table_of(part)])


def snapshot_of(
    objects: Objects, ids: Iterable[bytes], number: int, parent: SnapshotId | None = None
) -> bytes:
    """Returns the payload of a snapshot of one file with these chunks."""
    segments = [Segment(ObjectId(each), SIZE) for each in ids]
    content = fold(segments, objects.put)
    size = SIZE * len(segments)
    file = Entry(b"file", int(EntryKind.FILE), 0o644, 0, 0, 0, size, content, None)
    tree = put_tree([file], Totals(files=1), objects.put)
    root = Entry(b"", int(EntryKind.DIRECTORY), 0o755, 0, 0, 0, 0, tree, None)
    record = SnapshotRecord(root, None, b"/garden", number, Totals(files=1))
    return encode_snapshot(record._replace(parent=parent))


def push(
    remote: Remote, history: HistoryName, random: Random, count: int, packs: int, number: int
) -> bytes:
    """Stores a snapshot of so many chunks in so many packs, in one commit; returns its payload."""
    objects, ids = Objects(), [random.randbytes(32) for _ in range(count)]
    payload = snapshot_of(objects, ids, number)
    found = needed_objects(objects, [payload], Seen())
    real = [item for item in found if item.kind is not ObjectKind.CHUNK]
    with Push(remote, history) as pushing:
        pushing.begin()
        for start in range(packs):
            pushing.add_pack(blocks_of(ids[start::packs]))
        references = (Reference(item.kind, item.id) for item in real)
        pushing.add_pack(encoded_anew(objects, references), [payload])
        assert pushing.commit([payload])
    return payload
