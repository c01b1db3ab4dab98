"""The snapshots of a store: one small sealed file each, in a directory per root.

The file's name is its place in the root's history and its id, so that listing,
``latest`` and abbreviations need no reading. A file whose content does not match
the id in its name is damaged; it is reported, and no other snapshot is affected.

What may change about a snapshot is its *state*, a file of its own, named by the id. Several roots
may have one snapshot, because what is fetched keeps its id; they share the state, which goes with
the last of them. So a process that writes or removes a state holds the lock that all roots have in
common, and so does one that removes a snapshot: even one without a state, because another root may
give it one.
"""

from __future__ import annotations

import os
import stat
from _thread import allocate_lock  # as in threading, which takes longer to import
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property

from treesnap.core.codec.envelope import FileKind, unseal
from treesnap.core.codec.snapshot import (
    RECORD_SIZE_MAX,
    SNAPSHOT,
    decode_snapshot,
    snapshot_id,
    state_format,
    state_hash,
)
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import (
    add_directory,
    closed,
    is_there,
    read_file,
    replace_file,
    sync_directory,
    unlink_if_present,
    unreadable,
)
from treesnap.core.fs.os_errors import is_unreadable
from treesnap.core.model.errors import Corrupt, NewerVersion, NotFound, UnsupportedFormat, quoted
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import (
    Snapshot,
    SnapshotId,
    SnapshotKind,
    SnapshotRecord,
    SnapshotState,
)
from treesnap.core.store.layout import Layout, is_hex, root_names
from treesnap.core.store.lock import locked_roots
from treesnap.core.store.records import read_record, write_record

_SEQUENCE_DIGITS, _ID_DIGITS = 16, 64
FORGOTTEN_PREFIX = "forgotten-"
"""Prefix of the directories that hold the snapshots of a forgotten root."""
_BEFORE = {"before restore", "before undo to", "before redo to"}
"""What the safety snapshots of restores, undo and redo are labelled with, before an id."""
SEQUENCE_MAX = (1 << 64) - 1
"""The largest number that a file name has room for."""


class SnapshotName(NamedTuple):
    """What a snapshot's file name says."""

    sequence: int
    id: SnapshotId

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{self.sequence:016x}-{self.id}"


def _parsed(file_name: str) -> SnapshotName | None:
    sequence, _, identity = file_name.partition("-")
    if not (is_hex(sequence, _SEQUENCE_DIGITS) and is_hex(identity, _ID_DIGITS)):
        return None
    return SnapshotName(int(sequence, 16), SnapshotId(identity))


def position_in(snapshots: Iterable[Snapshot]) -> Snapshot | None:
    """Returns the one among a root's snapshots, newest first, that the root stands at.

    It is the newest one of the whole root that is not a safety snapshot: the state that was
    saved last, or restored since.
    """
    for snapshot in snapshots:
        if snapshot.kind != SnapshotKind.SAFETY and snapshot.record.scope is None:
            return snapshot
    return None


def restored_ref(safety: Snapshot) -> str | None:
    """Returns the beginning of the id of what was restored after a safety snapshot, or None."""
    label, _, ref = (safety.record.label or "").rpartition(" ")
    return ref if safety.kind == SnapshotKind.SAFETY and label in _BEFORE else None


def _decoded(path: str, expected: SnapshotId | None, data: bytes) -> SnapshotRecord:
    try:
        payload = unseal(data, FileKind.SNAPSHOT, path)
    except NewerVersion:
        raise
    except UnsupportedFormat as error:
        raise Corrupt(error.message, path=path) from error
    if expected is not None and snapshot_id(payload) != expected:
        raise Corrupt(f"Snapshot file {quoted(path)} does not match its id", path=path)
    return decode_snapshot(payload)


class SnapshotListing:
    """The names of a root's snapshots, as they were at one moment.

    Iterates over them, newest first. Histories are long and most callers want the newest one,
    so the other names are parsed and sorted only when they are reached.
    """

    def __init__(self, file_names: list[str]) -> None:
        self._file_names = file_names

    @cached_property
    def newest(self) -> SnapshotName | None:
        """The newest name, or None when there are none."""
        greatest = max(self._file_names, default="")
        return _parsed(greatest) or next(iter(self._ordered), None)

    @property
    def next_sequence(self) -> int:
        """The number of the snapshot that is published next; 1 for the first."""
        return self.newest.sequence + 1 if self.newest is not None else 1

    @cached_property
    def _ordered(self) -> list[SnapshotName]:
        parsed = map(_parsed, self._file_names)
        return sorted((name for name in parsed if name is not None), reverse=True)

    def __iter__(self) -> Iterator[SnapshotName]:
        if self.newest is not None:
            yield self.newest
            yield from self._ordered[1:]

    def __contains__(self, identity: object) -> bool:
        """Returns whether a snapshot has this id."""
        return self.find(str(identity)) is not None

    def beginning(self, ref: str) -> list[SnapshotName]:
        """Returns the names whose ids begin so; neither parses the others nor sorts them."""
        parsed = (_parsed(name) for name in self._file_names if f"-{ref}" in name)
        return [name for name in parsed if name is not None and name.id.startswith(ref)]

    def among(self, identities: Collection[str]) -> set[SnapshotId]:
        """Returns which of some ids these snapshots have."""
        parsed = (_parsed(name) for name in self._file_names if name[17:] in identities)
        return {name.id for name in parsed if name is not None}

    def find(self, identity: str) -> SnapshotName | None:
        """Returns the name with this id, or None; neither parses the others nor sorts them."""
        ending = f"-{identity}"
        parsed = (_parsed(name) for name in self._file_names if name.endswith(ending))
        return next((name for name in parsed if name is not None), None)

    @cached_property
    def file_name_of(self) -> Callable[[str], str | None]:
        """Returns a function that gives the file name for an id: for many look-ups."""
        return {name[17:]: name for name in self._file_names}.get

    @property
    def file_count(self) -> int:
        """How many files there are, whatever their names are."""
        return len(self._file_names)


_LISTED_NAMES_MAX = 100_000
"""A longer listing is not kept; this one takes 30 MiB."""
_last_listing: dict[str, SnapshotListing] = {}
"""By its directory: the names of the last root in which a full id was looked up."""
_CACHED_RECORDS = 512
_CACHED_RECORD_SIZE_MAX = 2048
"""Nearly all take less; together the cached ones take 1 MiB at most."""


class RecordCache:
    """Files of snapshots, for a process that looks at the newest again and again.

    What an id stands for does not change. Threads may share one.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[SnapshotId, bytes] = OrderedDict()
        self._lock = allocate_lock()
        self.get: Callable[[SnapshotId], bytes | None] = self._files.get

    def add(self, identity: SnapshotId, data: bytes) -> None:
        """Keeps a file, and drops the oldest ones."""
        if len(data) <= _CACHED_RECORD_SIZE_MAX:
            with self._lock:
                self._files[identity] = data
                if len(self._files) > _CACHED_RECORDS:
                    self._files.popitem(last=False)

    def discard(self, identity: SnapshotId) -> None:
        """Drops a file that turned out to be damaged."""
        with self._lock:
            self._files.pop(identity, None)


class SnapshotLog:
    """Lists, loads and removes snapshots; publishing is the writer's."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._founded: set[str] = set()
        """Roots of which a snapshot was seen."""

    def listing(self, root_id: str) -> SnapshotListing:
        """Returns the names of a root's snapshots. Reads one directory.

        Raises FileNotFoundError where the store has no directory of snapshots.
        """
        try:
            listing = SnapshotListing(self._fs.list_names(self._layout.root_snapshots(root_id)))
        except FileNotFoundError:
            self._fs.lstat(self._layout.snapshots)  # gone with all snapshots, that is damage
            return SnapshotListing([])
        if listing.newest is not None:
            self._founded.add(root_id)
        return listing

    def load_by_id(self, root_id: str, identity: str) -> Snapshot | None:
        """Returns the snapshot of a root with a full id, or None; raises Corrupt or NotFound.

        For a program that looks up one after the other, the names of the last look are kept: a
        name never changes, and to load it says whether it is still there.
        """
        if not is_hex(identity, _ID_DIGITS):
            return None
        directory = self._layout.root_snapshots(root_id)
        last = _last_listing.get(directory)
        name = _parsed(last.file_name_of(identity) or "") if last is not None else None
        if name is not None:
            with suppress(NotFound):
                return self.load(root_id, name)
        listing = self.listing(root_id)
        _last_listing.clear()
        if listing.file_count <= _LISTED_NAMES_MAX:
            _last_listing[directory] = listing
        name = listing.find(identity)
        return self.load(root_id, name) if name is not None else None

    def names(self, root_id: str) -> list[SnapshotName]:
        """Returns the names of a root's snapshots, newest first. Reads one directory."""
        return list(self.listing(root_id))

    def root_ids(self) -> list[str]:
        """Returns the ids of roots that have, or had, snapshots."""
        return root_names(self._fs, self._layout.snapshots)

    def all_names(self) -> Iterator[tuple[str, SnapshotName]]:
        """Yields every snapshot of every root."""
        for root_id in self.root_ids():
            for name in self.names(root_id):
                yield root_id, name

    def path(self, root_id: str, name: SnapshotName) -> str:
        """Path of a snapshot's file."""
        return os.path.join(self._layout.root_snapshots(root_id), name.file_name)

    def load(self, root_id: str, name: SnapshotName) -> Snapshot:
        """Returns a snapshot, or raises Corrupt, or NotFound when it was just deleted."""
        path = self.path(root_id, name)
        return self._snapshot(root_id, name, self._read(path, name.id))

    def _snapshot(self, root_id: str, name: SnapshotName, data: bytes) -> Snapshot:
        record = _decoded(self.path(root_id, name), name.id, data)
        return Snapshot(
            id=name.id,
            sequence=name.sequence,
            root_hash=state_hash(record),
            record=record,
            state=self.state(name.id),
            root_id=root_id,
        )

    def require(self, snapshot: Snapshot) -> None:
        """Raises NotFound for a snapshot that no root has any more.

        Costs a look, and where its root has let it go a listing of all roots.
        """
        path = self.path(snapshot.root_id, SnapshotName(snapshot.sequence, snapshot.id))
        is_gone = not is_there(self._fs, path)
        if is_gone and all(name.id != snapshot.id for _, name in self.all_names()):
            raise NotFound(f"Snapshot {snapshot.id[:12]} was deleted meanwhile")

    def readable(
        self,
        root_id: str,
        damaged: list[SnapshotName] | None = None,
        may_matter: Callable[[bytes], bool] = lambda _: True,
        cache: RecordCache | None = None,
        newer: list[SnapshotName] | None = None,
    ) -> Iterator[Snapshot]:
        """Yields the readable snapshots of a root, newest first; adds the others to ``damaged``.

        Those that a newer treesnap wrote are added to ``newer`` where that is given.
        Skips files whose raw bytes cannot match, because text is stored verbatim:
        a look at them takes an eighth of the time. Reads no file that the cache has.
        """
        for name in self.listing(root_id):
            try:
                data = cache.get(name.id) if cache is not None else None
                if data is None:
                    data = self._read(self.path(root_id, name), name.id)
                    if cache is not None:
                        cache.add(name.id, data)
                if may_matter(data):
                    yield self._snapshot(root_id, name, data)
            except NotFound:
                continue
            except Corrupt as error:
                if cache is not None:
                    cache.discard(name.id)
                unread = damaged
                if newer is not None and isinstance(error, NewerVersion):
                    unread = newer
                if unread is not None:
                    unread.append(name)

    def load_record(self, path: str, expected: SnapshotId | None) -> SnapshotRecord:
        """Returns the record in a snapshot's file; raises Corrupt, NewerVersion or NotFound."""
        return _decoded(path, expected, self._read(path, expected))

    def payload(self, root_id: str, name: SnapshotName) -> bytes:
        """Returns the encoded record of a snapshot; raises Corrupt or NotFound."""
        path = self.path(root_id, name)
        data = self._read(path, name.id)
        _decoded(path, name.id, data)
        return unseal(data, FileKind.SNAPSHOT, path)

    def _read(self, path: str, expected: SnapshotId | None) -> bytes:
        try:
            return read_file(self._fs, path, RECORD_SIZE_MAX)
        except FileNotFoundError:
            raise NotFound(f"Snapshot {expected} does not exist any more") from None
        except PermissionError as error:  # others can be read; the collector stops here
            raise closed(path) from error
        except OSError as error:
            if not is_unreadable(error):
                raise
            raise unreadable(path, error) from error

    def state(self, identity: SnapshotId) -> SnapshotState:
        """Returns a snapshot's mutable state. A damaged one counts as pinned: nothing is lost."""
        try:
            return self._state(identity)
        except NewerVersion:
            return SnapshotState(pinned=True)

    def _state(self, identity: SnapshotId) -> SnapshotState:
        """Does the same for a caller that replaces it: raises NewerVersion."""
        path = self._layout.state(identity)
        try:
            return read_record(self._fs, path, state_format(identity)) or SnapshotState()
        except NewerVersion:
            raise
        except (Corrupt, PermissionError):
            return SnapshotState(pinned=True)

    def change_state(
        self, identity: SnapshotId, change: Callable[[SnapshotState], SnapshotState]
    ) -> SnapshotState:
        """Changes a snapshot's mutable state, durably, and returns what it is afterwards.

        ``change`` gets what the state is by then, whichever root has changed it. The caller holds
        the lock of a root that has the snapshot. Raises Busy, and NewerVersion: what this version
        does not know of a state would be lost.
        """
        with locked_roots(self._fs, self._layout):
            state = change(self._state(identity))
            self.write_state(identity, state)
        return state

    def write_state(self, identity: SnapshotId, state: SnapshotState) -> None:
        """Replaces a snapshot's mutable state, durably. The caller has locked the roots."""
        path = self._layout.state(identity)
        write_record(self._fs, self._layout, path, state_format(identity), state)

    def write_pending(self, pending_path: str, payload: bytes) -> SnapshotId:
        """Writes a snapshot where the collector sees it and readers do not; returns its id.

        ``payload`` is its encoded record. Raises Corrupt for one that no reader would accept.
        """
        content = SNAPSHOT.frame(payload)
        replace_file(
            self._fs,
            pending_path,
            content,
            temporary=self._layout.temporary,
            durable_name=False,
        )
        return snapshot_id(payload)

    def promote(self, pending_path: str, root_id: str, name: SnapshotName) -> None:
        """Publishes a pending snapshot; durable after return. Not there when it raises.

        Costs one sync, and three more for a root's first snapshot: see :meth:`_found`; a
        listing of its snapshots unless they were listed before.
        Raises Corrupt when the history has no number left, because a file name says
        that the last one is taken.
        """
        if name.sequence > SEQUENCE_MAX:
            raise Corrupt(f"The history of root {root_id} ends in an impossible number")
        directory = self._layout.root_snapshots(root_id)
        self._found(root_id)
        path = os.path.join(directory, name.file_name)
        try:
            self._fs.rename(pending_path, path)
        except FileNotFoundError:  # the root was forgotten since its snapshots were seen
            self._founded.discard(root_id)
            self._found(root_id)
            self._fs.rename(pending_path, path)
        try:
            sync_directory(self._fs, directory)
        except BaseException:
            unlink_if_present(self._fs, path)
            raise

    def _found(self, root_id: str) -> None:
        """Makes everything durable that a root's first snapshot relies on.

        So a snapshot's existence proves it, although processes were killed: the format file,
        the root's record and directory, and the directory of its snapshots.
        """
        directory = self._layout.root_snapshots(root_id)
        if root_id in self._founded or self.listing(root_id).newest is not None:
            return
        add_directory(self._fs, directory)
        with suppress(FileNotFoundError):  # no files of the root, none to lose
            sync_directory(self._fs, self._layout.root_directory(root_id))
        sync_directory(self._fs, self._layout.path)

    def remove(self, root_id: str, names: list[SnapshotName]) -> None:
        """Removes snapshots with their states; durable after return. Raises Busy.

        Costs the lock of all roots, and one sync; one more when there are states, and a listing of
        each other root.
        """
        if not names:
            return
        with self.letting_go(names, root_id):
            for name in names:
                unlink_if_present(self._fs, self.path(root_id, name))
            sync_directory(self._fs, self._layout.root_snapshots(root_id))

    @contextmanager
    def letting_go(self, names: Iterable[SnapshotName], root_id: str | None) -> Iterator[None]:
        """Removes the states of snapshots, durably; then the body takes these from a root.

        The states of those that another root has stay. A snapshot may be without a state, but a
        state whose snapshot is gone would never be removed. Of two roots that let go of one
        snapshot at once, one is the last: so the others are kept out until the body has ended.
        Without a root the snapshots are in none any more. Raises Busy before anything is removed.
        """
        with locked_roots(self._fs, self._layout):
            said = {name.id for name in names if is_there(self._fs, self._layout.state(name.id))}
            going = said - self._elsewhere(said, root_id) if said else said
            removed = [unlink_if_present(self._fs, self._layout.state(each)) for each in going]
            if any(removed):
                sync_directory(self._fs, self._layout.states)
            yield

    def _elsewhere(self, identities: set[SnapshotId], root_id: str | None) -> set[SnapshotId]:
        """Returns which snapshots other roots have. Those of one that cannot be read count."""
        present: set[SnapshotId] = set()
        for other in self.root_ids():
            if other != root_id:
                try:
                    present |= self.listing(other).among(identities)
                except OSError:
                    return identities
        return present

    def forget(self, root_id: str) -> None:
        """Removes all snapshots of a root: all of them, or when this raises none.

        The rename is what does it; :meth:`finish_forgetting` makes it durable and removes what is
        left, as ``gc`` does after a crash.
        """
        with suppress(FileNotFoundError):
            self._fs.rename(
                self._layout.root_snapshots(root_id),
                os.path.join(self._layout.temporary, FORGOTTEN_PREFIX + os.urandom(8).hex()),
            )
        self._founded.discard(root_id)

    def finish_forgetting(self) -> None:
        """Removes what is left of the snapshots of roots that were forgotten, states first.

        That they are gone is durable before. Raises Busy.
        """
        left = list(self.forgotten())
        if left:
            sync_directory(self._fs, self._layout.temporary)
            sync_directory(self._fs, self._layout.snapshots)
        for directory, names in left:
            with self.letting_go(names, None), suppress(FileNotFoundError):
                for name in self._fs.list_names(directory):
                    unlink_if_present(self._fs, os.path.join(directory, name))
                self._fs.remove_directory(directory)

    def forgotten(self) -> Iterator[tuple[str, list[SnapshotName]]]:
        """Yields the directories that a crash left of forgotten roots, with their snapshots."""
        for name in self._fs.list_names(self._layout.temporary):
            if not name.startswith(FORGOTTEN_PREFIX):
                continue
            directory = os.path.join(self._layout.temporary, name)
            with suppress(FileNotFoundError):  # another process has finished it
                if stat.S_ISDIR(self._fs.lstat(directory).st_mode):  # a link may lead anywhere
                    yield directory, list(SnapshotListing(self._fs.list_names(directory)))
