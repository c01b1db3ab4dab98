"""Checking a remote: whether everything that its snapshots need is there, and is what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from treesnap.codec.pack import IndexEntry
from treesnap.codec.reader import Reference
from treesnap.codec.remote import Folder, RemoteName
from treesnap.codec.snapshot import snapshot_id
from treesnap.errors import Corrupt
from treesnap.model import ObjectId, ObjectKind, SnapshotId
from treesnap.remote.objects import PackGone, RemoteObjects, needed_objects
from treesnap.remote.protocol import Remote, View
from treesnap.results import Problem, VerifyResult

_OBJECTS_AT_ONCE = 4096


class Verification:
    """One look at a remote; changes nothing."""

    def __init__(self, remote: Remote, view: View, advance: Callable[[int, int], None]) -> None:
        self._remote = remote
        self._view = view
        self._advance = advance
        self._objects = RemoteObjects(remote.files, view)
        self._needed: dict[ObjectId, ObjectKind] = {}
        self._problems: list[Problem] = []
        self._read_bytes = 0

    def run(self, payloads: Iterable[bytes], *, read_data: bool) -> VerifyResult:
        """Checks snapshots, given as payloads, and with ``read_data`` every byte that they need.

        Costs a request for every 256 directories, and with ``read_data`` one for some blocks of
        each pack. Raises RemoteFailed.
        """
        snapshots = list(payloads)
        present = frozenset(self._remote.names(Folder.PACKS))
        for name in sorted(self._view.sizes.keys() - present):
            self._note("bad-pack", f"Pack {name} is missing on the remote", str(name))
        for name, error in sorted(self._view.damaged.items(), key=lambda item: item[0]):
            self._note("bad-commit", error.message, str(name))
        for payload in snapshots:
            self._walk(payload)
        if read_data:
            for objects in self._by_pack():
                self._read(objects)
        return VerifyResult(
            problems=tuple(self._problems),
            left=tuple(self._problems),
            snapshots=len(snapshots),
            objects=len(self._needed),
            read_bytes=self._read_bytes,
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
        try:
            for reference in needed_objects(self._objects, [payload], is_known):
                self._objects.place(reference.id)
                self._advance(1, 0)
        except (Corrupt, PackGone) as error:
            message = str(error)
            if isinstance(error, PackGone):
                message = f"Pack {error} is missing on the remote"
            self._note("damaged-object", message, identity, identity)
            return  # what another snapshot shares with this one is looked at again
        self._needed |= found

    def _by_pack(self) -> Iterator[list[ObjectId]]:
        """Yields what is needed by the place where it is read, so many at once."""
        placed: dict[RemoteName, list[IndexEntry]] = {}
        for identity in self._needed:
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
            try:
                data = self._objects.get(self._needed[identity], identity)
            except (Corrupt, PackGone) as error:
                name, _ = self._objects.place(identity)
                self._note("damaged-object", f"{error} ({name})", identity.hex())
                continue
            self._read_bytes += len(data)
            self._advance(1, len(data))
