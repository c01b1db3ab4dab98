"""Checking a remote: whether everything that its snapshots need is there, and is what it was."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from treesnap.core.codec.pack import IndexEntry
from treesnap.core.codec.reader import Reference
from treesnap.core.codec.snapshot import snapshot_id
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Busy, Corrupt, RemoteFailed
from treesnap.core.model.quantities import count_text
from treesnap.core.model.results import Problem, VerifyResult
from treesnap.core.model.snapshots import SnapshotId
from treesnap.remote.histories import without_deleted
from treesnap.remote.objects import Objects, RemoteObjects, needed_objects
from treesnap.remote.protocol import Missing, Remote, View
from treesnap.remote.push import PushSource, push_objects
from treesnap.remote.records import FILE_ID_SIZE, Folder, HistoryName, RemoteName

_OBJECTS_AT_ONCE = 4096
_REPAIR = HistoryName(bytes(FILE_ID_SIZE), "repair")
"""Of no machine: its commits hold no snapshots."""


class VerifiedObjects:
    """What was read of each pack, and is what its ids say."""

    def __init__(self) -> None:
        self._by_pack: defaultdict[RemoteName, set[ObjectId]] = defaultdict(set)
        self.size_bytes: int = 0

    def add(self, pack: RemoteName, object_id: ObjectId, size_bytes: int) -> None:
        """Takes note of an object that was read from a pack."""
        self._by_pack[pack].add(object_id)
        self.size_bytes += size_bytes

    def has(self, pack: RemoteName, object_id: ObjectId) -> bool:
        """Tells whether an object was read from a pack."""
        return object_id in self._by_pack[pack]


class Verification:
    """One look at the snapshots of a view; changes nothing.

    What cannot be read there is looked for in a ``spare``, so that what is below it is found too.
    What an earlier look has ``verified`` is not read again.
    """

    def __init__(
        self,
        remote: Remote,
        view: View,
        advance: Callable[[int, int], None],
        spare: Objects | None = None,
        verified: VerifiedObjects | None = None,
    ) -> None:
        """Reads what was deleted, and which packs there are; raises RemoteFailed."""
        self.remote = remote
        self.advance = advance
        self._deletions = remote.read_deletions(skips_damaged=True)
        commits = without_deleted(view, self._deletions)
        self._snapshots = [payload for entry in commits for payload in entry.snapshots]
        self._view = view
        self._objects = RemoteObjects(remote.files, view)
        self._spare = spare
        self._present = frozenset(remote.names(Folder.PACKS))
        self.missing_packs: set[RemoteName] = view.sizes.keys() - self._present
        self._needed: dict[ObjectId, ObjectKind] = {}
        self._problems: list[Problem] = []
        self._lost_packs = Counter[RemoteName]()
        """Packs that are missing, and how many needed objects lie in no pack that is there."""
        self._missing = set[str]()
        """Names of packs, and ids of objects that lie in none."""
        self._verified = verified or VerifiedObjects()
        self.lost: dict[ObjectId, ObjectKind] = {}
        """What cannot be read, as far as it is known: what is below a lost directory, only a
        spare tells."""

    def run(self, *, read_data: bool) -> VerifyResult:
        """Checks the snapshots, and with ``read_data`` every byte that they need.

        Costs a list of the packs, a request for every 256 directories, and with ``read_data`` one
        for some blocks of each pack. Raises RemoteFailed, and at the end Missing when packs or
        objects are not there that were not looked for before the view was read.
        """
        for where, words in sorted(self.remote.files.mended.items()):
            folder = where.partition("/")[0]
            self._note(f"bad-{folder}", f"{where} was read from its copy: {words}", where)
        others = {**self._view.lacks, **self._view.unsigned}
        for where, error in sorted(others.items(), key=lambda item: item[0]):
            folder = where.partition("/")[0]
            self._note(f"bad-{folder}", error.message, where)
        bad = {**self._view.damaged, **self._view.recovered}
        for name, error in sorted(bad.items(), key=lambda item: item[0]):
            self._note("bad-commit", error.message, str(name))
        for name, error in sorted(self._deletions.damaged.items(), key=lambda item: item[0]):
            self._note("bad-deletion", error.message, str(name))
        for payload in self._snapshots:
            self._walk(payload)
        self._missing.update(map(str, self.missing_packs))
        for name in sorted(self.missing_packs):
            count = self._lost_packs[name]
            lost = f", with {count_text(count, 'object')} that snapshots need" if count else ""
            self._note("bad-pack", f"Pack {name} is missing on the remote{lost}", str(name))
        if read_data:
            for group in self._by_pack():
                self._read(group)
        if not self._missing <= self._view.absent:
            raise Missing("What snapshots need", self._missing)
        return VerifyResult(
            problems=tuple(self._problems),
            left=tuple(self._problems),
            snapshots=len(self._snapshots),
            objects=len(self._needed),
            read_bytes=self._verified.size_bytes,
            content_read=read_data,
        )

    def _note(self, code: str, message: str, where: str, *ids: SnapshotId) -> None:
        self._problems.append(Problem(code=code, message=message, where=where, snapshot_ids=ids))

    def _walk(self, payload: bytes) -> None:
        """Finds what a snapshot needs; what another one needs too is not looked at again."""
        met: dict[ObjectId, ObjectKind] = {}

        def is_known(reference: Reference) -> bool:
            if reference.id in self._needed or reference.id in met:
                return True
            met[reference.id] = reference.kind
            return False

        identity = snapshot_id(payload)
        source = _Mended(self._objects, self._spare, self._note_lost)
        try:
            for reference in needed_objects(source, [payload], is_known):
                self._look_for(reference, identity)
                self.advance(1, 0)
        except (Corrupt, Missing) as error:
            self._note("damaged-object", self._words(error), identity, identity)
            return  # what another snapshot shares with this one is looked at again
        self._needed |= met

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
            words = self._words(Missing.object(reference.id))
            self._note("damaged-object", words, reference.id.hex(), identity)

    def _note_lost(self, kind: ObjectKind, object_id: ObjectId, error: Corrupt | Missing) -> None:
        """Takes note of an object that only the spare has."""
        words = self._words(error)
        if object_id not in self.lost:
            self.lost[object_id] = kind
            # What is in a missing pack is noted with it.
            if isinstance(error, Corrupt) or object_id.hex() in error.names:
                self._note("damaged-object", words, object_id.hex())

    def _words(self, error: Corrupt | Missing) -> str:
        """Returns what is wrong, and takes note of what is missing."""
        if isinstance(error, Missing):
            self._missing |= error.names
        return str(error)

    def _by_pack(self) -> Iterator[list[ObjectId]]:
        """Yields what is needed by the place where it is read, so many at once."""
        placed: dict[RemoteName, list[IndexEntry]] = {}
        for identity in self._needed.keys() - self.lost.keys():
            name, entry = self._objects.place(identity)
            if not self._verified.has(name, identity):
                placed.setdefault(name, []).append(entry)
        for name in sorted(placed):
            ids = [entry.id for entry in sorted(placed[name], key=lambda entry: entry.offset)]
            for start in range(0, len(ids), _OBJECTS_AT_ONCE):
                yield from self._objects.by_block(ids[start : start + _OBJECTS_AT_ONCE])

    def _read(self, objects: list[ObjectId]) -> None:
        with suppress(Corrupt, Missing):  # each object says it
            self._objects.prefetch(objects)
        for identity in objects:
            kind = self._needed[identity]
            try:
                data = self._objects.get(kind, identity)
            except (Corrupt, Missing) as error:
                self.lost[identity] = kind
                self._note("damaged-object", self._words(error), identity.hex())
                continue
            self._verified.add(self._objects.place(identity)[0], identity, len(data))
            self.advance(1, len(data))


class _Mended:
    """Objects of a remote, and where it lacks them those of a spare."""

    def __init__(
        self,
        objects: RemoteObjects,
        spare: Objects | None,
        note: Callable[[ObjectKind, ObjectId, Corrupt | Missing], None],
    ) -> None:
        self._objects = objects
        self._spare = spare
        self._note = note

    def get(self, kind: ObjectKind, object_id: ObjectId) -> bytes:
        """Returns the verified bytes of an object; raises Corrupt and Missing."""
        try:
            return self._objects.get(kind, object_id)
        except (Corrupt, Missing) as error:
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
        with suppress(Missing):  # an object that no pack has: get says it
            self._objects.prefetch(objects)


def repaired(
    verification: Verification,
    result: VerifyResult,
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
    view.require_whole()
    let_go = len(missing - view.sizes.keys())
    if let_go:
        done.append(f"Let go of {count_text(let_go, 'missing pack')}")
    advance = verification.advance
    again = remote.settled(
        "the verification",
        view,
        lambda view: Verification(remote, view, advance).run(read_data=False),
    )
    unread = {identity.hex() for identity in verification.lost.keys() - whole}
    left = [*again.problems]
    left += [problem for problem in result.problems if problem.where in unread]
    return result._replace(left=tuple(dict.fromkeys(left)), repaired=tuple(done))
