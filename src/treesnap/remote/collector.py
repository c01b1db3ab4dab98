"""Collections on a remote: what no visible commit needs goes; see :mod:`treesnap.remote.protocol`.

A collection that another one overtakes, or that is killed, costs requests and nothing else: the
next one begins from scratch, and what it left over is swept then.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, chain, groupby, islice
from operator import itemgetter
from types import MappingProxyType

from treesnap.core.codec.compress import LEVEL_REWRITE
from treesnap.core.codec.index import IndexPart, encode_index
from treesnap.core.codec.pack import (
    PACK_SIZE_TARGET,
    Encoded,
    IndexEntry,
    encode_objects,
    encode_pack,
    taken,
)
from treesnap.core.codec.reader import Reference
from treesnap.core.codec.snapshot import snapshot_id
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Busy, Corrupt, ErrorCode, RemoteFailed
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import Record
from treesnap.remote.objects import RemoteObjects, needed_objects
from treesnap.remote.protocol import IndexedPacks, Missing, Remote, View
from treesnap.remote.records import (
    CATALOG,
    FILE_ID_SIZE,
    NUMBER_MAX,
    REMOTE_INDEX,
    CommitEntry,
    Deletion,
    Folder,
    Marks,
    MemberRole,
    NotSigned,
    RemoteIndexPart,
    RemoteName,
    RemoteState,
    RoleLimit,
    damage_of_remote,
    file_number,
    newest_heads,
    state_name,
)

_PARTS = (Folder.INDEX, Folder.CATALOG)
PARTIAL_EPOCHS = 4
"""So many epochs a partial commit keeps its packs; each is a collection."""
PART_OBJECTS_MAX = 180_000
"""So many objects a part of the index lists, which takes 8 MiB; only one of a single pack more."""
PART_COMMITS_MAX = 8192
"""So many commits a part of the catalog holds."""
PARTS_MAX = 8
"""So many parts of the index, and of the catalog, that are not half full may be left as they are:
joining more of them for each collection would write each row again and again."""
CONDEMNED_MAX = 4096
"""So many packs go in one collection: every reader reads their names meanwhile."""
COPIED_MAX = 1 << 17
"""So many objects are copied in one, but for those of a single pack."""
WASTE_MIN = 0.5
"""A pack of which this part or more is waste is rewritten."""
_ENCODED_AT_ONCE = 4 << 20
"""Bytes of objects that are compressed together."""
SMALL_PACK_SIZE = 4 << 20
SMALL_PACKS_MIN = 16
"""From so many small packs on, small packs are joined."""
_ATTEMPTS_MAX = 5
_CHANGED_MEANWHILE = "Other machines kept changing the state of the remote"


class Collected(Record):
    """What a collection did."""

    packs: int
    """How many packs it removed from the index."""
    freed_bytes: int
    """Their bytes, less those of the packs that it wrote; negative if it wrote more."""


class Rebuilt(Record):
    """What index, catalog and state are made of that were written anew."""

    packs: int
    snapshots: int
    found: int
    """How many of the snapshots no commit and no catalog showed."""


class Collector:
    """Gives space back on one remote."""

    def __init__(self, remote: Remote, clock_ns: Callable[[], int] = lambda: 0) -> None:
        self._remote = remote
        self._clock_ns = clock_ns
        self._files = remote.files
        self._number = 0
        """That of the last state that this collection read or created."""
        self.unread: Mapping[RemoteName, Corrupt] = {}
        """Deletions that it left alone, because they cannot be read."""

    def collect(self) -> Collected | None:
        """Runs one collection; returns None when another one overtook it.

        Raises Corrupt when something that is needed cannot be read: then nothing is removed.
        """
        view = self._read()
        self._number = view.number
        try:
            return self._collect(view)
        except Missing as error:
            number, _ = self._remote.read_state()
            if number > self._number:
                return None
            raise error.as_damage() from error

    def _collect(self, view: View) -> Collected | None:
        deletions = self._remote.read_deletions(skips_damaged=True)
        self.unread = deletions.damaged
        live = _live(view, deletions.listed.values())
        needed = self._needed(live.values(), view)
        # Listed after the view was read, which names no pack before it is there.
        gone = view.sizes.keys() - frozenset(self._remote.names(Folder.PACKS))
        usage = _usage(view, needed, live.values(), gone)
        unreadable = self._unreadable(view, usage.elsewhere)
        copies, uncopied = self._copy(view, usage.copied)
        unsafe = unreadable | uncopied
        condemned = _without_needed(view, usage.condemned, unsafe.__contains__)
        state = view.state._replace(
            epoch=view.state.epoch + 1,
            condemned=tuple(sorted(condemned)),
            removed=(*view.state.removed, *sorted(view.visible.keys() - live.keys())),
        )
        everything = frozenset(name for part in view.all_packs for name in part.packs.values())
        deciding = self._publish(view, state, live, everything, copies)
        if deciding is None:
            return None
        closing = deciding._replace(closing=deciding.epoch)
        number = self._remote.next_number(self._number)
        if not self._remote.create_state(number, closing):
            return None
        last, self._number = self._read(), number
        if last.number != number:
            return None
        new = (entry for key, entry in last.visible.items() if key not in live)
        late = self._needed(new, last)
        dead = _without_needed(last, condemned, lambda each: each in late and each not in needed)
        final = closing._replace(
            floor=closing.closing, condemned=(), removed=(), collected_at_ns=self._clock_ns()
        )
        sizes = last.sizes
        if self._publish(last, final, last.visible, frozenset(sizes) - dead, ()) is None:
            return None
        self.sweep(last.damaged)
        written = sum(size for part in copies for _, size in part.sizes())
        return Collected(len(dead), sum(sizes[name] for name in dead) - written)

    def fold(self) -> bool:
        """Moves the commits that are listed into the catalog and the index, so that reading
        takes fewer requests; returns whether it did.

        Condemns nothing, and costs no writer anything.
        """
        view = self._read()
        if view.state.closing != view.state.floor:
            return False
        packs = frozenset(name for part in view.all_packs for name in part.packs.values())
        if self._publish(view, view.state, view.visible, packs, ()) is None:
            return False
        self.sweep()
        return True

    def limit(self, machine: bytes, role: MemberRole) -> None:
        """Creates a state after which a machine has at most a role; raises Busy."""
        for _ in range(_ATTEMPTS_MAX):
            number, state = self._remote.read_state()
            if not state.allows(machine, MemberRole(role + 1)):
                return
            others = [item for item in state.limits if item.machine != machine]
            limits = sorted([*others, RoleLimit(machine, role)])
            limited = state._replace(limits=tuple(limits))
            if self._remote.create_state(self._remote.next_number(number), limited):
                return
        raise Busy(_CHANGED_MEANWHILE)

    def fold_all(self) -> None:
        """Moves all that is visible into the catalog, so that it counts without its signatures.

        Where a collection was begun, another one comes first. Raises Busy, Corrupt, RemoteFailed.
        """
        for _ in range(_ATTEMPTS_MAX):
            view = self._read()
            if view.state.closing != view.state.floor:
                self.collect()
                continue
            if not view.commits:
                return
            packs = frozenset(name for part in view.all_packs for name in part.packs.values())
            if self._publish(view, view.state, view.visible, packs, ()) is not None:
                return
        raise Busy(_CHANGED_MEANWHILE)

    def renew_state(self) -> None:
        """Creates a state like the present one, so that all look for a newer list; raises Busy."""
        for _ in range(_ATTEMPTS_MAX):
            number, state = self._remote.read_state()
            if self._remote.create_state(self._remote.next_number(number), state):
                return
        raise Busy(_CHANGED_MEANWHILE)

    def _read(self) -> View:
        """Returns a view without what counts for nothing; raises Corrupt."""
        view = self._remote.read(skips_damaged=True)
        view.require_whole()
        return view

    def _needed(self, entries: Iterable[CommitEntry], view: View) -> NeededObjects:
        """Returns the objects that the snapshots of commits need, and what says of them in packs
        which they are.
        """
        entries, needed = tuple(entries), NeededObjects(view)
        for entry in entries:
            if entry.origin:
                needed.add(ObjectId(entry.origin))

        def is_known(reference: Reference) -> bool:
            return not needed.add(reference.id)

        snapshots = [payload for entry in entries for payload in entry.snapshots]
        with damage_of_remote():
            for _ in needed_objects(RemoteObjects(self._files, view), snapshots, is_known):
                pass
        return needed

    def _unreadable(self, view: View, packs: Mapping[ObjectId, RemoteName]) -> set[ObjectId]:
        """Reads objects from the packs that are to keep them; returns those that it cannot.

        A row proves nothing: a pack may be damaged, or hold nothing of what its writer says.
        """
        contents = _read(RemoteObjects(self._files, view, packs), packs)
        return {object_id for _, object_id, data in contents if data is None}

    def _copy(
        self, view: View, entries: Sequence[IndexEntry]
    ) -> tuple[tuple[IndexedPacks, ...], set[ObjectId]]:
        """Writes packs with objects, verified.

        Returns them, and the objects that could not be read, or have no room there.
        """
        objects = RemoteObjects(self._files, view)
        copies: list[IndexedPacks] = []
        uncopied = set[ObjectId]()
        for batch in _batches(entries):
            blocks, size = list[Encoded](), 0
            live: list[tuple[ObjectKind, ObjectId, bytes]] = []
            for kind, object_id, data in _read(objects, [entry.id for entry in batch]):
                if data is None:
                    uncopied.add(object_id)
                    continue
                live.append((kind, object_id, data))
                size += len(data)
                if size >= _ENCODED_AT_ONCE:
                    blocks.append(encode_objects(live, LEVEL_REWRITE))
                    live, size = [], 0
            if live:
                blocks.append(encode_objects(live, LEVEL_REWRITE))
            if blocks:
                content, tables = encode_pack(taken(blocks))
                try:
                    name = self._files.put(Folder.PACKS, view.state.epoch, content)
                except RemoteFailed as error:
                    if error.code != ErrorCode.REMOTE_FULL:
                        raise
                    # Others may go.
                    uncopied.update(ObjectId(each) for table in tables for each in table.ids)
                else:
                    copies.append(IndexedPacks.of_pack(name, tables, len(content)))
                del content  # its memory is needed for the next one
        return tuple(copies), uncopied

    def _publish(
        self,
        view: View,
        state: RemoteState,
        catalog: Mapping[bytes, CommitEntry],
        packs: frozenset[RemoteName],
        new: Sequence[IndexedPacks],
    ) -> RemoteState | None:
        """Creates the state after that of a view: with commits, heads and packs of the view, and
        packs that are new.

        Returns it, or None when another collector was first.
        """
        number = self._remote.next_number(view.number)
        state = state._replace(
            heads=view.counted_heads,
            catalog_parts=self._catalog_parts(view, number, catalog),
            index_parts=self._index_parts(view, number, packs, new),
        )
        if not self._remote.create_state(number, state):
            return None
        self._number = number
        return state

    def _catalog_parts(
        self, view: View, number: int, catalog: Mapping[bytes, CommitEntry]
    ) -> tuple[RemoteName, ...]:
        """Returns the parts of a catalog: old ones where nothing changed, and new ones for the
        rest.
        """
        parts = self._remote.catalog_parts(view)
        same = [
            name
            for name, entries in sorted(parts.items(), key=lambda item: -len(item[1]))
            if all(catalog.get(entry.name.key) == entry for entry in entries)
        ]
        full = sum(len(parts[name]) > PART_COMMITS_MAX // 2 for name in same)
        kept = same[: full + PARTS_MAX]
        held = {entry.name.key for name in kept for entry in parts[name]}
        rest = (entry for key, entry in sorted(catalog.items()) if key not in held)
        while part := tuple(islice(rest, PART_COMMITS_MAX)):
            kept.append(self._files.put(Folder.CATALOG, number, CATALOG.seal(part)))
        return tuple(kept)

    def _index_parts(
        self,
        view: View,
        number: int,
        packs: frozenset[RemoteName],
        new: Sequence[IndexedPacks],
    ) -> tuple[RemoteName, ...]:
        """Returns the parts of an index: old ones where nothing goes, and new ones for the rest.

        A part is of some packs, and of no more objects than one file may list. Where a pack goes,
        only the part that lists it is written anew.
        """
        old = sorted(
            zip(view.state.index_parts, view.index, strict=True),
            key=lambda item: -item[1].rows.count,
        )
        whole = [item for item in old if packs.issuperset(item[1].packs.values())]
        full = sum(part.rows.count > PART_OBJECTS_MAX // 2 for _, part in whole)
        kept = whole[: full + PARTS_MAX]
        names = [name for name, _ in kept]
        held = {name for _, part in kept for name in part.packs.values()}
        sources = [part for part in view.all_packs if not held.issuperset(part.packs.values())]
        listed = (packs - held).union(*(part.packs.values() for part in new))
        written = (REMOTE_INDEX.seal(index) for index in _index_of((*sources, *new), listed))
        names += (self._files.put(Folder.INDEX, number, content) for content in written)
        return tuple(names)

    def rebuild(self, known: Marks) -> Rebuilt:
        """Writes index, catalog and state anew, of all that packs and commits say.

        What no commit shows comes back where it is whole: what was pushed, and also what was
        deleted and not collected yet. What is garbage for ever by what can be read stays that, for
        any machine may be deleting it. Nothing is removed. If no state can be read, the new one has
        a higher number than any that ``known`` marks have, and is of an epoch after all. It limits
        no machine, as a stolen collector may have done: the list of members says which count. Reads
        all packs that nothing readable lists. Raises Busy, Corrupt, RemoteFailed.
        """
        states = [file_number(name) or 0 for name in self._files.list("state/")]
        view = self._remote.read(skips_damaged=True)
        floors = {
            folder: 0 if not view.has_state or _lacks(view, folder) else view.state.floor
            for folder in _PARTS
        }
        unlisted = self._remote.unlisted_packs(view, floors[Folder.INDEX])
        view = replace(view, index=(*view.index, *unlisted))
        names = {folder: self._remote.names(folder) for folder in Folder}
        unseen = self._unseen(view, names[Folder.COMMITS], floors[Folder.CATALOG])
        counted = [entry.name for entry in unseen.values()]
        number, state = view.number, view.state
        if view.has_state:
            # The next one, so that it is not written where another machine went on meanwhile.
            counted = [name for name in counted if name in names[Folder.COMMITS]]
        else:
            dated = (Folder.PACKS, Folder.COMMITS, Folder.DELETIONS)
            epochs = [name.number for folder in dated for name in names[folder]]
            state = RemoteState(epoch=max(filter(_is_plausible, epochs), default=0) + 1)
            parts = [item.number for folder in _PARTS for item in names[folder]]
            number = max(known.state_number, *filter(_is_plausible, (*parts, *states)), 0)
        heads = newest_heads((*view.counted_heads, *known.heads, *(name.head for name in counted)))
        state = state._replace(index_parts=(), catalog_parts=(), heads=heads, limits=())
        blank = replace(view, number=number, state=state, catalog={}, index=(), lacks={})
        packs = frozenset(view.sizes)
        if self._publish(blank, state, {**view.visible, **unseen}, packs, view.index) is None:
            raise Busy("Another machine has changed the state of the remote meanwhile")
        return Rebuilt(
            len(packs),
            sum(len(entry.snapshots) for entry in (*view.visible.values(), *unseen.values())),
            sum(len(entry.snapshots) for entry in unseen.values()),
        )

    def _unseen(
        self, view: View, commits: Iterable[RemoteName], floor: int
    ) -> dict[bytes, CommitEntry]:
        """Returns what packs hold of commits that are not visible and not below a floor, as far as
        it is whole.
        """
        objects, read_before = RemoteObjects(self._files, view), self._remote.origins
        seen = {entry.name.numbers for entry in view.visible.values()}
        origins = {
            entry.id
            for part in view.all_packs
            for entry in part.entries()
            if entry.kind == ObjectKind.SNAPSHOT
            and entry.id not in read_before
            and part.packs[entry.pack_id].numbers not in seen
        }
        gone: dict[tuple[int, bytes, int], set[bytes]] = defaultdict(set)
        for deletion in self._remote.read_deletions(skips_damaged=True).listed.values():
            gone[deletion.commit.numbers].update(deletion.snapshots)
        listed = {name.numbers: name for name in commits}
        whole: set[ObjectId] = set()
        entries: dict[bytes, CommitEntry] = {}
        read = ((identity, data) for _, identity, data in _read(objects, origins))
        for identity, data in chain(read_before.items(), read):
            statement = self._remote.statement_of(data) if data is not None else None
            if statement is None:
                continue
            machine, epoch, sequence, history, snapshots = statement
            numbers = epoch, machine, sequence
            new = RemoteName(Folder.COMMITS, epoch, identity[:FILE_ID_SIZE], machine, sequence)
            name = listed.get(numbers, new)
            if epoch < floor or numbers in seen or name.key in view.state.removed:
                continue
            left = tuple(
                item
                for item in snapshots
                if _id_bytes(item) not in gone[numbers] and _is_whole(item, objects, whole)
            )
            if left:
                entries[name.key] = CommitEntry(name, history, left, (), identity)
        return entries

    def sweep(self, damaged: Mapping[RemoteName, Corrupt] = MappingProxyType({})) -> None:
        """Deletes what is garbage for ever. Any machine may do so at any time.

        Of ``damaged`` commits too, what no member signed, of an epoch that there was not yet: the
        floor would never come to it.
        """
        listed = {folder: self._remote.names(folder) for folder in Folder}
        states = [name for name in self._files.list("state/") if file_number(name) is not None]
        deletions = self._remote.read_deletions(skips_damaged=True).listed
        view = self._remote.read({})
        state = view.state
        named = frozenset((*state.index_parts, *state.catalog_parts))
        indexed = frozenset(name for part in view.index for name in part.packs.values())
        removed = frozenset(state.removed)
        garbage = [
            *(
                name
                for name in listed[Folder.PACKS]
                if name.number < state.floor and name not in indexed
            ),
            *(
                name
                for name in listed[Folder.COMMITS]
                if name.number < state.floor or name.key in view.catalog or name.key in removed
            ),
            *(
                name
                for folder in (Folder.INDEX, Folder.CATALOG)
                for name in listed[folder]
                if name.number <= view.number and name not in named
            ),
            *_carried_out(deletions, view),
            *(
                name
                for name in listed[Folder.DELETIONS]
                if not state.allows(name.machine, MemberRole.COLLECTOR)
            ),
            *(
                name
                for name, error in damaged.items()
                if isinstance(error, NotSigned) and name.number > state.epoch
            ),
        ]
        older = [name for name in states if name < state_name(view.number)]
        self._files.delete([*map(str, garbage), *older])


def _index_of(
    sources: Sequence[IndexedPacks], listed: AbstractSet[RemoteName]
) -> Iterator[RemoteIndexPart]:
    """Yields the parts of an index of some packs, each of so many packs as fit into it.

    Of the size of a pack, what the first source says counts that lists it.
    """
    sizes: dict[RemoteName, int] = {}
    counts = Counter[RemoteName]()
    for source in sources:
        for name, size in source.sizes():
            if name in listed:
                sizes.setdefault(name, size)
        counts.update(source.packs[entry.pack_id] for entry in source.entries())
    for group in _joined(sizes, counts):
        rows = heapq.merge(
            *(
                source.entries_of(group)
                for source in sources
                if not group.isdisjoint(source.packs.values())
            )
        )
        covered = {name.key: sizes[name] for name in group}
        content = encode_index((entry for entry, _ in groupby(rows)), covered)
        yield RemoteIndexPart(tuple(sorted(group)), bytes(content))


def _joined(
    packs: Iterable[RemoteName], counts: Mapping[RemoteName, int]
) -> Iterator[frozenset[RemoteName]]:
    """Yields packs, as many at once as have no more objects than a part lists."""
    group, count = list[RemoteName](), 0
    for name in packs:
        if group and count + counts[name] > PART_OBJECTS_MAX:
            yield frozenset(group)
            group, count = [], 0
        group.append(name)
        count += counts[name]
    if group:
        yield frozenset(group)


def _lacks(view: View, folder: Folder) -> bool:
    return any(name.startswith(f"{folder}/") for name in view.lacks)


def _is_plausible(number: int) -> bool:
    """Tells whether a number may be one that machines came to by counting."""
    return number <= NUMBER_MAX // 2


def _is_whole(payload: bytes, objects: RemoteObjects, whole: set[ObjectId]) -> bool:
    """Tells whether all is there that a snapshot needs; ``whole`` is known to be, and grows."""
    met: set[ObjectId] = set()

    def is_known(reference: Reference) -> bool:
        is_met = reference.id in whole or reference.id in met
        met.add(reference.id)
        return is_met

    with suppress(Corrupt, Missing):
        for reference in needed_objects(objects, [payload], is_known):
            objects.place(reference.id)
        whole |= met
        return True
    return False


class _Usage(NamedTuple):
    """What a collection decides about the packs of a view."""

    condemned: frozenset[RemoteName]
    copied: list[IndexEntry]
    """Live objects of condemned packs that lie in no other one, in the order of their places."""
    elsewhere: dict[ObjectId, RemoteName]
    """Other live objects of condemned packs, and the packs that are to keep them."""


def _live(view: View, deletions: Iterable[Deletion]) -> dict[bytes, CommitEntry]:
    """Returns the commits that stay, without the snapshots that were deleted."""
    gone: dict[tuple[int, bytes, int], set[bytes]] = defaultdict(set)
    for item in deletions:
        gone[item.commit.numbers].update(item.snapshots)
    live = {}
    for key, entry in view.visible.items():
        if entry.kept:
            if entry.name.number + PARTIAL_EPOCHS > view.state.epoch:
                live[key] = entry
            continue
        deleted = gone[entry.name.numbers]
        left = tuple(item for item in entry.snapshots if _id_bytes(item) not in deleted)
        if left:
            live[key] = entry._replace(snapshots=left)
    return live


def _id_bytes(payload: bytes) -> bytes:
    return bytes.fromhex(snapshot_id(payload))


def _carried_out(deletions: Mapping[RemoteName, Deletion], view: View) -> Iterator[RemoteName]:
    """Yields the deletions of which nothing can ever show the snapshots again."""
    shown: dict[tuple[int, bytes, int], set[bytes]] = defaultdict(set)
    for entry in view.catalog.values() if deletions else ():
        shown[entry.name.numbers].update(map(_id_bytes, entry.snapshots))
    for name, deletion in deletions.items():
        commit = deletion.commit
        is_settled = (
            commit.key in view.catalog
            or commit.key in view.state.removed
            or commit.number < view.state.floor
        )
        if is_settled and shown[commit.numbers].isdisjoint(deletion.snapshots):
            yield name


def _read(
    objects: RemoteObjects, ids: Iterable[ObjectId]
) -> Iterator[tuple[ObjectKind, ObjectId, bytes | None]]:
    """Yields objects with their verified bytes, or None for what cannot be read."""
    for group in objects.by_block(ids):
        objects.prefetch(group)
        for object_id in group:
            kind = ObjectKind(objects.place(object_id)[1].kind)
            try:
                yield kind, object_id, objects.get(kind, object_id)
            except (Corrupt, Missing):
                yield kind, object_id, None


class NeededObjects:
    """The objects of a view that snapshots need: a byte for each row of it."""

    def __init__(self, view: View) -> None:
        self._rows: list[tuple[IndexPart, bytearray]] = [
            (part.rows, bytearray(part.rows.count)) for part in view.all_packs
        ]
        self._others: set[ObjectId] = set()
        """Those that are in no row."""

    def add(self, object_id: ObjectId) -> bool:
        """Takes note of an object; returns whether it was not noted before."""
        for rows, marks in self._rows:
            position = rows.position(object_id)
            if position is not None:
                is_new = not marks[position]
                marks[position] = 1
                return is_new
        is_new = object_id not in self._others
        self._others.add(object_id)
        return is_new

    def __contains__(self, object_id: ObjectId) -> bool:
        for rows, marks in self._rows:
            position = rows.position(object_id)
            if position is not None:
                return bool(marks[position])
        return object_id in self._others

    def is_noted_at(self, part: int, position: int) -> bool:
        """Tells whether an object is noted at a row; of several rows of one, it is the first."""
        return bool(self._rows[part][1][position])


_LIES_ELSEWHERE, _STAYS = 1, 2
"""What is to become of a row of a needed object, in :class:`_Claims`."""


class _Claims:
    """Which row of each needed object stays: a byte for each row.

    It is the first of a pack that is there, those of partial commits before others; else the first
    of a pack that is gone, unless the commit there alone said it.
    """

    def __init__(
        self,
        view: View,
        needed: NeededObjects,
        kept: AbstractSet[bytes],
        gone: Container[RemoteName],
    ) -> None:
        self.total: Counter[RemoteName] = Counter()
        """The bytes of the objects of each pack."""
        self.used: Counter[RemoteName] = Counter()
        """Those of the objects that stay there."""
        self.used_objects: Counter[RemoteName] = Counter()
        numbered = enumerate(view.all_packs)
        self._parts: list[tuple[int, IndexedPacks]] = sorted(
            numbered, key=lambda item: kept.isdisjoint(item[1].packs)
        )
        self._claims: list[bytearray] = [bytearray(part.rows.count) for _, part in self._parts]
        rows = heapq.merge(*map(self._rows, range(len(self._parts))))
        for object_id, group in groupby(rows, key=itemgetter(0)):
            self._claim(object_id, list(group), needed, gone)

    def _rows(self, rank: int) -> Iterator[tuple[ObjectId, int, int, IndexEntry]]:
        for position, entry in self._parts[rank][1].numbered():
            yield entry.id, rank, position, entry

    def _claim(
        self,
        object_id: ObjectId,
        rows: list[tuple[ObjectId, int, int, IndexEntry]],
        needed: NeededObjects,
        gone: Container[RemoteName],
    ) -> None:
        is_needed = object_id in needed if len(rows) > 1 else self._is_needed(rows[0], needed)
        there: list[tuple[RemoteName, int, int, int]] = []
        others, said = there.copy(), there.copy()
        for _, rank, position, entry in rows:
            name = self._parts[rank][1].packs[entry.pack_id]
            row = name, rank, position, entry.size_bytes
            if name not in gone:
                there.append(row)
            else:
                (said if entry.kind == ObjectKind.SNAPSHOT else others).append(row)
        keeper: RemoteName | None = None
        for name, rank, position, size in (*there, *others):
            self.total[name] += size
            if is_needed:
                keeper = keeper or name
                self._claims[rank][position] = _STAYS if name == keeper else _LIES_ELSEWHERE
                if name == keeper:
                    self.used[name] += size
                    self.used_objects[name] += 1
        for name, rank, position, _ in said if keeper is not None else ():
            self._claims[rank][position] = _STAYS if name == keeper else _LIES_ELSEWHERE

    def _is_needed(self, row: tuple[ObjectId, int, int, IndexEntry], needed: NeededObjects) -> bool:
        object_id, rank, position, _ = row
        return needed.is_noted_at(self._parts[rank][0], position) or object_id in needed

    def of_packs(
        self, packs: Container[RemoteName]
    ) -> tuple[list[IndexEntry], dict[ObjectId, RemoteName]]:
        """Returns what some packs have of needed objects: what stays there, and other ones with the
        packs that keep them, if they are none of these.
        """
        staying: list[IndexEntry] = []
        elsewhere: dict[ObjectId, RemoteName] = {}
        for (_, part), claims in zip(self._parts, self._claims, strict=True):
            for position, entry in part.numbered():
                claim = claims[position]
                if not claim or part.packs[entry.pack_id] not in packs:
                    continue
                if claim == _STAYS:
                    staying.append(entry)
                elif (keeper := self._keeper(entry.id)) not in packs:
                    elsewhere[entry.id] = keeper
        return staying, elsewhere

    def _keeper(self, object_id: ObjectId) -> RemoteName:
        """Returns the pack where an object stays that lies elsewhere too."""
        for (_, part), claims in zip(self._parts, self._claims, strict=True):
            position = part.rows.position(object_id)
            while position is not None and claims[position] != _STAYS:
                position = part.rows.position(object_id, position + 1)
            entry = part.rows.at(position) if position is not None else None
            if entry is not None:
                return part.packs[entry.pack_id]
        raise AssertionError("an object that lies elsewhere stays in no pack")


def _usage(
    view: View,
    needed: NeededObjects,
    live: Iterable[CommitEntry],
    gone: AbstractSet[RemoteName],
) -> _Usage:
    """Returns which packs go, and what of them must be copied first.

    A pack that is ``gone`` keeps what lies in no other one, so that it stays named until that is
    stored again. Of more packs than one state names, or than is copied at once, those go first of
    which the least is needed.
    """
    kept = {pack_id for entry in live for pack_id in entry.kept}
    claims, sizes = _Claims(view, needed, kept, gone), view.sizes
    total, used = claims.total, claims.used
    small = [name for name, size in sizes.items() if size < SMALL_PACK_SIZE]
    joined = frozenset(small if len(small) >= SMALL_PACKS_MIN else ())
    wasted = [
        name
        for name in sizes
        if (name.key not in kept or name in gone)
        and (used[name] <= total[name] * (1 - WASTE_MIN) or name in joined)
    ]
    wasted.sort(key=lambda name: (used[name], name))
    copies = accumulate(claims.used_objects[name] for name in wasted)
    condemned = frozenset(
        name
        for number, (name, count) in enumerate(zip(wasted, copies, strict=True))
        if number == 0 or (number < CONDEMNED_MAX and count <= COPIED_MAX)
    )
    copied, elsewhere = claims.of_packs(condemned)
    copied.sort(key=lambda entry: (entry.pack_id, entry.offset))
    return _Usage(condemned, copied, elsewhere)


def _without_needed(
    view: View, condemned: frozenset[RemoteName], is_needed: Callable[[ObjectId], bool]
) -> frozenset[RemoteName]:
    """Returns the condemned packs without an object that is needed only since they were condemned.

    Such an object may lie elsewhere too, but was not read there.
    """
    spared = {
        name
        for part in view.all_packs
        if not condemned.isdisjoint(part.packs.values())
        for entry in part.entries()
        if (name := part.packs[entry.pack_id]) in condemned and is_needed(entry.id)
    }
    return condemned - spared


def _batches(entries: Iterable[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Yields the objects of one new pack each."""
    batch: list[IndexEntry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += entry.size_bytes
        if size >= PACK_SIZE_TARGET:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
