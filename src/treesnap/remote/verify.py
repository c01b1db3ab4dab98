"""Checking a remote: whether everything that its snapshots need is there, and is what it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from treesnap.core.codec.pack import IndexEntry
from treesnap.core.codec.reader import Reference
from treesnap.core.codec.snapshot import snapshot_id
from treesnap.core.model.entities import ObjectId, ObjectKind, SnapshotId
from treesnap.core.model.errors import Busy, Corrupt, RemoteFailed
from treesnap.core.model.quantities import count_text
from treesnap.core.model.results import Problem, VerifyResult
from treesnap.remote.objects import Objects, PackGone, RemoteObjects, needed_objects
from treesnap.remote.protocol import Remote, View
from treesnap.remote.push import PushSource, push_objects
from treesnap.remote.records import FILE_ID_SIZE, Folder, HistoryName, RemoteName

_OBJECTS_AT_ONCE = 4096
_REPAIR = HistoryName(bytes(FILE_ID_SIZE), "repair")
"""Of no machine: its commits hold no snapshots."""


class Verification:
    """One look at snapshots on a remote; changes nothing.

    What cannot be read there is looked for in a ``spare``, so that what is below it is found too.
    """

    def __init__(
        self,
        remote: Remote,
        view: View,
        snapshots: Sequence[bytes],
        advance: Callable[[int, int], None],
        spare: Objects | None = None,
        damaged_deletions: Mapping[RemoteName, Corrupt] | None = None,
    ) -> None:
        """``snapshots`` are those to check, as payloads."""
        self.remote = remote
        self.snapshots = snapshots
        self.advance = advance
        self.damaged_deletions = damaged_deletions or {}
        self._view = view
        self._objects = RemoteObjects(remote.files, view)
        self._spare = spare
        self._present = frozenset(remote.names(Folder.PACKS))
        self.missing_packs = view.sizes.keys() - self._present
        self._needed: dict[ObjectId, ObjectKind] = {}
        self._problems: list[Problem] = []
        self._lost_packs = Counter[RemoteName]()
        """Packs that are missing, and how many needed objects lie in no pack that is there."""
        self._read_bytes = 0
        self.lost: dict[ObjectId, ObjectKind] = {}
        """What cannot be read, as far as it is known: what is below a lost directory, only a
        spare tells."""

    def run(self, *, read_data: bool) -> VerifyResult:
        """Checks the snapshots, and with ``read_data`` every byte that they need.

        Costs a list of the packs, a request for every 256 directories, and with ``read_data`` one
        for some blocks of each pack. Raises RemoteFailed.
        """
        for name, error in sorted(self._view.damaged.items(), key=lambda item: item[0]):
            self._note("bad-commit", error.message, str(name))
        for name, error in sorted(self.damaged_deletions.items(), key=lambda item: item[0]):
            self._note("bad-deletion", error.message, str(name))
        for payload in self.snapshots:
            self._walk(payload)
        for name in sorted(self.missing_packs):
            count = self._lost_packs[name]
            lost = f", with {count_text(count, 'object')} that snapshots need" if count else ""
            self._note("bad-pack", f"Pack {name} is missing on the remote{lost}", str(name))
        if read_data:
            for group in self._by_pack():
                self._read(group)
        return VerifyResult(
            problems=tuple(self._problems),
            left=tuple(self._problems),
            snapshots=len(self.snapshots),
            objects=len(self._needed),
            read_bytes=self._read_bytes,
            content_read=read_data,
        )

    def _note(self, code: str, message: str, where: str, *ids: SnapshotId) -> None:
        self._problems.append(Problem(code=code, message=message, where=where, snapshot_ids=ids))

    def _walk(self, payload: bytes) -> None:
        """Finds what a snapshot needs; what another one needs too is not looked at again."""
        found: dict[ObjectId, ObjectKind] = {}

        def is_known(reference: Reference) -> bool:
            if reference.id in self._needed or reference.id in found:
                return True
            found[reference.id] = reference.kind
            return False

        identity = snapshot_id(payload)
        source = _Mended(self._objects, self._spare, self._note_lost)
        try:
            for reference in needed_objects(source, [payload], is_known):
                self._look_for(reference, identity)
                self.advance(1, 0)
        except (Corrupt, PackGone) as error:
            self._note("damaged-object", _words(error), identity, identity)
            return  # what another snapshot shares with this one is looked at again
        self._needed |= found

    def _look_for(self, reference: Reference, identity: SnapshotId) -> None:
        """Notes an object of a snapshot that lies in no pack that is there."""
        place = self._view.first(reference.id)
        if reference.id in self.lost or (place is not None and place[0] in self._present):
            return
        packs = [name for name, _ in self._view.find(reference.id)]
        if not self._present.isdisjoint(packs):
            return
        self.lost[reference.id] = reference.kind
        self._lost_packs.update(packs)
        if not packs:
            where = reference.id.hex()
            message = f"Object {where} is missing on the remote"
            self._note("damaged-object", message, where, identity)

    def _note_lost(self, kind: ObjectKind, object_id: ObjectId, error: Corrupt | PackGone) -> None:
        """Takes note of an object that only the spare has."""
        if object_id not in self.lost:
            self.lost[object_id] = kind
            if isinstance(error, Corrupt):  # what is in a missing pack is noted with it
                self._note("damaged-object", str(error), object_id.hex())

    def _by_pack(self) -> Iterator[list[ObjectId]]:
        """Yields what is needed by the place where it is read, so many at once."""
        placed: dict[RemoteName, list[IndexEntry]] = {}
        for identity in self._needed.keys() - self.lost.keys():
            name, entry = self._objects.place(identity)
            placed.setdefault(name, []).append(entry)
        for name in sorted(placed):
            ids = [entry.id for entry in sorted(placed[name], key=lambda entry: entry.offset)]
            for start in range(0, len(ids), _OBJECTS_AT_ONCE):
                yield from self._objects.by_block(ids[start : start + _OBJECTS_AT_ONCE])

    def _read(self, objects: list[ObjectId]) -> None:
        with suppress(Corrupt, PackGone):  # each object says it
            self._objects.prefetch(objects)
        for identity in objects:
            kind = self._needed[identity]
            try:
                data = self._objects.get(kind, identity)
            except (Corrupt, PackGone) as error:
                self.lost[identity] = kind
                self._note("damaged-object", _words(error), identity.hex())
                continue
            self._read_bytes += len(data)
            self.advance(1, len(data))


def _words(error: Corrupt | PackGone) -> str:
    return str(error) if isinstance(error, Corrupt) else f"Pack {error} is missing on the remote"


class _Mended:
    """Objects of a remote, and where it lacks them those of a spare."""

    def __init__(
        self,
        objects: RemoteObjects,
        spare: Objects | None,
        note: Callable[[ObjectKind, ObjectId, Corrupt | PackGone], None],
    ) -> None:
        self._objects = objects
        self._spare = spare
        self._note = note

    def get(self, kind: ObjectKind, object_id: ObjectId) -> bytes:
        """Returns the verified bytes of an object; raises Corrupt and PackGone."""
        try:
            return self._objects.get(kind, object_id)
        except (Corrupt, PackGone) as error:
            if self._spare is None:
                raise
            try:
                data = self._spare.get(kind, object_id)
            except Corrupt:
                raise error from None
            self._note(kind, object_id, error)
            return data

    def prefetch(self, objects: Iterable[ObjectId]) -> None:
        """Reads what is asked for next in as few requests as possible."""
        with suppress(Corrupt):  # an object that no pack has: get says it
            self._objects.prefetch(objects)


def repaired(
    verification: Verification,
    found: VerifyResult,
    source: PushSource,
    collect: Callable[[], object] | None,
) -> VerifyResult:
    """Stores what a verification found lost again, as far as a source has it; says what is left.

    A reader takes an object from any pack that has it. Writers rely on a pack that is missing
    until a collection, with ``collect``, lets go of it. Durable when it returns. Raises Busy,
    RemoteFailed.
    """
    done = []
    whole = {}
    for identity, kind in verification.lost.items():
        with suppress(Corrupt):
            source.get(kind, identity)
            whole[identity] = kind
    remote = verification.remote
    if whole:
        packs = push_objects(remote, _REPAIR, source, whole)
        objects = count_text(len(whole), "lost object")
        done.append(f"Stored {objects} again, in {count_text(packs, 'pack')}")
    missing = verification.missing_packs
    if missing and collect is not None:
        with suppress(Busy, Corrupt, RemoteFailed):  # what is left says it
            collect()
    view = remote.read(skips_damaged=True)
    let_go = len(missing - view.sizes.keys())
    if let_go:
        done.append(f"Let go of {count_text(let_go, 'missing pack')}")
    again = Verification(
        remote,
        view,
        verification.snapshots,
        verification.advance,
        damaged_deletions=verification.damaged_deletions,
    )
    unread = {identity.hex() for identity in verification.lost.keys() - whole}
    left = [*again.run(read_data=False).problems]
    left += [problem for problem in found.problems if problem.where in unread]
    return found._replace(left=tuple(dict.fromkeys(left)), repaired=tuple(done))
