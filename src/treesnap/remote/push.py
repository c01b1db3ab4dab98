"""Storing snapshots on a remote: what it lacks, in as few packs and requests as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from treesnap.core.codec.compress import LEVEL_REWRITE
from treesnap.core.codec.pack import PACK_SIZE_TARGET, Encoded, encode_objects, taken
from treesnap.core.codec.reader import Reference
from treesnap.core.codec.snapshot import decode_snapshot, snapshot_id
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Busy
from treesnap.core.model.presentation import Record
from treesnap.remote.objects import Objects, complete_trees, needed_objects
from treesnap.remote.protocol import Push, Remote, Uploaded, View
from treesnap.remote.records import HistoryName

ATTEMPTS = 5
"""How often a push begins again when collections overtake it."""
PACKS_PER_COMMIT = 64
"""Packs after which a partial commit keeps what was stored from being collected."""
OBJECTS_PER_COMMIT = 1 << 17
"""After so many objects too: a commit lists them in 45 to 61 bytes each, and takes 150 of memory
for each while it is made. A pack more, of the smallest objects that there are, still fits into the
64 MiB that a commit may have."""
_BATCH_SIZE = 4 << 20


class PushSource(Objects, Protocol):
    """Where a push takes objects from."""

    def seen(self) -> Callable[[Reference], bool]:
        """Returns what tells whether it was asked for an object before."""

    def encoded(self, references: Iterable[Reference]) -> Iterator[Encoded]:
        """Yields blocks that hold these objects and no others, verified; raises Corrupt."""


def push_snapshots(
    remote: Remote,
    history: HistoryName,
    source: PushSource,
    snapshots: Sequence[bytes],
    packs_per_commit: int = PACKS_PER_COMMIT,
    *,
    jobs: int = 1,
    view: View | None = None,
    advance: Callable[[int, int], None] = lambda _objects, _bytes: None,
) -> Uploaded:
    """Stores snapshots, whose payloads are given, and all that they need; returns what it stored.

    ``view`` is what was read just before, which saves reading it again. ``advance`` is called
    with the objects and the bytes of each pack that was stored. ``jobs`` packs are sent at the
    same time, each of which takes about twice its size of memory.

    When it returns, they are visible until they are deleted. A push that is killed leaves its
    partial commits, which the next one uses. Raises Busy when collections kept overtaking it,
    Corrupt when ``source`` lacks something, RemoteFailed.
    """
    with Push(remote, history, jobs) as push:
        told = push.stored

        def tell() -> None:
            nonlocal told
            before, told = told, push.stored
            advance(told.objects - before.objects, told.size_bytes - before.size_bytes)

        for attempt in range(ATTEMPTS):
            push.begin(view=view if attempt == 0 else None)
            while True:
                packs = packs_of(source, _missing(push.view, source, snapshots))
                for blocks in islice(packs, packs_per_commit):
                    # A pack that is not full is the last one.
                    is_last = sum(len(block.data) for block in blocks) < PACK_SIZE_TARGET
                    push.add_pack(taken(blocks), snapshots if is_last else ())
                    tell()
                    if push.uncommitted_objects >= OBJECTS_PER_COMMIT:
                        break
                is_complete = next(packs, None) is None
                is_acknowledged = push.commit(snapshots if is_complete else ())
                tell()
                if not is_acknowledged:
                    break
                if is_complete:
                    return push.stored
                push.begin(push.own)
    raise Busy("Collections on the remote kept overtaking the push")


def push_objects(
    remote: Remote,
    history: HistoryName,
    source: PushSource,
    objects: Mapping[ObjectId, ObjectKind],
) -> int:
    """Stores objects again, whether or not the remote lists them; returns in how many packs.

    For objects that are lost, or damaged. What a snapshot needs of them stays, the rest until
    later collections. Raises Busy when collections kept overtaking it, Corrupt when ``source``
    lacks something, RemoteFailed.
    """
    left = iter(objects.items())
    stored_packs = 0
    while group := [Reference(kind, each) for each, kind in islice(left, OBJECTS_PER_COMMIT)]:
        for _ in range(ATTEMPTS):
            with Push(remote, history) as push:
                push.begin()
                for blocks in packs_of(source, group):
                    push.add_pack(taken(blocks))
                if push.commit():
                    stored_packs += push.stored.packs
                    break
        else:
            raise Busy("Collections on the remote kept overtaking the repair")
    return stored_packs


class PlannedPush(Record):
    """What a push would store, and what it would ask of the server."""

    objects: int
    packs: int
    size_bytes: int
    """Bytes of the packs, before encryption."""
    requests: int
    """Beside those that read what is there."""


def plan_push(view: View, source: PushSource, snapshots: Sequence[bytes]) -> PlannedPush:
    """Returns what a push of snapshots would do. Costs as much, without the server."""
    objects = packs = size_bytes = 0
    for blocks in packs_of(source, _missing(view, source, snapshots)):
        packs += 1
        objects += sum(encoded.object_count for encoded in blocks)
        size_bytes += sum(len(encoded.data) for encoded in blocks)
    commits = max(1, -(-packs // PACKS_PER_COMMIT))
    # After each commit the states are listed.
    return PlannedPush(objects, packs, size_bytes, packs + 2 * commits)


def count_missing(view: View, source: PushSource, snapshots: Sequence[bytes]) -> int:
    """Returns how many objects a push of snapshots would store. Reads the trees that are new."""
    return sum(1 for _ in _missing(view, source, snapshots))


def _missing(view: View, source: PushSource, snapshots: Sequence[bytes]) -> Iterator[Reference]:
    """Yields what snapshots need and the remote lacks.

    What is below a tree is known to be there only if a certain snapshot has that tree; of any
    other tree nothing is known, even if the remote has it.
    """
    complete = complete_trees(_certain_parents(view, snapshots), source.get, snapshots)
    seen = source.seen()

    def is_known(reference: Reference) -> bool:
        return reference.id in complete or seen(reference)

    for reference in needed_objects(source, snapshots, is_known):
        if not view.has(reference.id):
            yield reference


def _certain_parents(view: View, snapshots: Iterable[bytes]) -> list[bytes]:
    """Returns the parents of snapshots as far as certain commits hold them."""
    certain = {
        snapshot_id(payload): payload
        for entry in view.reliable_commits.values()
        for payload in entry.snapshots
    }
    records = [decode_snapshot(payload) for payload in snapshots]
    return [certain[item.parent] for item in records if item.parent in certain]


def packs_of(source: PushSource, references: Iterable[Reference]) -> Iterator[list[Encoded]]:
    """Yields the blocks of each pack that objects fill; the caller may empty the list."""
    blocks, size_bytes = list[Encoded](), 0
    for encoded in source.encoded(references):
        blocks.append(encoded)
        size_bytes += len(encoded.data)
        if size_bytes >= PACK_SIZE_TARGET:
            yield blocks
            blocks, size_bytes = [], 0
    if blocks:
        yield blocks


def encoded_anew(source: Objects, references: Iterable[Reference]) -> Iterator[Encoded]:
    """Yields blocks of objects, compressed again; raises Corrupt."""
    batch: list[tuple[ObjectKind, ObjectId, bytes]] = []
    size = 0
    for reference in references:
        data = source.get(reference.kind, reference.id)
        batch.append((reference.kind, reference.id, data))
        size += len(data)
        if size >= _BATCH_SIZE:
            yield encode_objects(batch, LEVEL_REWRITE)
            batch, size = [], 0
    if batch:
        yield encode_objects(batch, LEVEL_REWRITE)
