"""The records of a remote, besides its packs; what each is for stands in ``treesnap.remote``.

Each is a sealed file, as in a store. Names carry a number: packs, commits and deletions the
epoch that their writer read, parts of the index and of the catalog the number of the first
state that names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Self

from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.core.model.errors import Corrupt, ErrorCode
from treesnap.core.model.ids import ID_SIZE
from treesnap.core.model.named_tuple import NamedTuple

FILE_ID_SIZE = 16
"""Bytes of the random part of a name, of the id of a history, and of a token."""
NUMBER_MAX = (1 << 64) - 1
COMMIT_SIZE_MAX = 64 << 20
FILE_SIZE_MAX = 240 << 20
"""Bytes of any other file: encryption adds at most 4 %, and a blob has at most 256 MiB."""
_NAME = re.compile(r"([a-z]+)/([0-9a-f]{16})-([0-9a-f]{32})\Z")
_STATE_NAME = re.compile(r"state/([0-9a-f]{16})\Z")


class Folder(StrEnum):
    """What a file of a remote is; the first part of its name."""

    PACKS = "packs"
    COMMITS = "commits"
    DELETIONS = "deletions"
    INDEX = "index"
    CATALOG = "catalog"


class RemoteName(NamedTuple):
    """The name of a file."""

    folder: Folder
    number: int
    id: bytes

    def __str__(self) -> str:
        return f"{self.folder}/{self.number:016x}-{self.id.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns the name that a text is, or None for another file."""
        found = _NAME.match(text)
        if found is None or found[1] not in frozenset(Folder):
            return None
        return cls(Folder(found[1]), int(found[2], 16), bytes.fromhex(found[3]))


def state_name(number: int) -> str:
    """Returns the name of a state."""
    return f"state/{number:016x}"


def state_number(name: str) -> int | None:
    """Returns the number in the name of a state, or None for another file."""
    found = _STATE_NAME.match(name)
    return int(found[1], 16) if found else None


class RemoteState(NamedTuple):
    """What holds until the next state; the one with the highest number counts."""

    epoch: int = 1
    closing: int = 0
    """Commits of earlier epochs that the collector does not see now will not count."""
    floor: int = 0
    """Commits of earlier epochs count only if the catalog has them."""
    condemned: tuple[RemoteName, ...] = ()
    """Packs that the next state but one may drop: writers do not rely on them any more."""
    index_parts: tuple[RemoteName, ...] = ()
    catalog_parts: tuple[RemoteName, ...] = ()
    removed: tuple[bytes, ...] = ()
    """Commits that were dropped since the floor rose: their files may come back."""
    token: bytes = bytes(FILE_ID_SIZE)
    """Which attempt wrote it."""


class HistoryName(NamedTuple):
    """The history of one root on one machine."""

    id: bytes
    name: str
    """For people; several histories may have it."""
    forked_from: bytes | None = None
    """The history that it goes on from."""


class CommitEntry(NamedTuple):
    """What a commit holds, as the catalog says it."""

    name: RemoteName
    history: HistoryName
    snapshots: tuple[bytes, ...]
    """Payloads of snapshot records, oldest first; none in a partial commit."""
    kept: tuple[bytes, ...] = ()
    """Ids of the packs that a partial commit keeps."""


class RemoteCommit(NamedTuple):
    """One push, or a part of one."""

    history: HistoryName
    snapshots: tuple[bytes, ...]
    packs: tuple[RemoteName, ...]
    """Its own packs: those that were written for it, in its own epoch."""
    rows: bytes
    """The objects in them: an index part."""

    def entry(self, name: RemoteName) -> CommitEntry:
        """Returns what a catalog says of it."""
        kept = () if self.snapshots else tuple(item.id for item in self.packs)
        return CommitEntry(name, self.history, self.snapshots, kept)


class Deletion(NamedTuple):
    """Snapshots of one commit that were deleted."""

    commit: RemoteName
    snapshots: tuple[bytes, ...]
    """Their ids, 32 bytes each."""


class RemoteIndexPart(NamedTuple):
    """Where objects are."""

    packs: tuple[RemoteName, ...]
    rows: bytes
    """An index part of the codec over these packs."""


@contextmanager
def damage_of_remote() -> Iterator[None]:
    """Gives a Corrupt in the body the code of remotes: to the codec all bytes are a store's."""
    try:
        yield
    except Corrupt as error:
        if error.code is ErrorCode.STORE_DAMAGED:
            error.code = ErrorCode.REMOTE_DAMAGED
        raise


def _ids(values: tuple[Any, ...], size: int, what: str) -> tuple[bytes, ...]:
    """Returns ids from a stored array."""
    require(
        all(type(value) is bytes and len(value) == size for value in values), what, "an id is odd"
    )
    return values


def _texts(names: Iterable[RemoteName]) -> tuple[str, ...]:
    return tuple(map(str, names))


def _name(text: Any, folder: Folder, what: str) -> RemoteName:
    name = RemoteName.parse(text) if type(text) is str else None
    if name is None or name.folder is not folder:
        raise Corrupt(f"Stored {what} is not valid: it names no file in {folder}/")
    return name


def _names(fields: Fields, key: str, folder: Folder, what: str) -> tuple[RemoteName, ...]:
    return tuple(_name(text, folder, what) for text in fields.get(key, tuple))


def _fields(payload: bytes, what: str) -> Fields:
    fields = Fields(unpack(payload, what, LONG_ARRAY_LENGTH_MAX), what)
    fields.require_version(1)
    return fields


def encode_state(state: RemoteState) -> bytes:
    """Returns the payload of a state."""
    return pack(
        {
            "version": 1,
            "epoch": state.epoch,
            "closing": state.closing,
            "floor": state.floor,
            "condemned": _texts(state.condemned),
            "index": _texts(state.index_parts),
            "catalog": _texts(state.catalog_parts),
            "removed": state.removed,
            "token": state.token,
        }
    )


def decode_state(payload: bytes) -> RemoteState:
    """Returns the state of a payload, or raises Corrupt."""
    what = "remote state"
    fields = _fields(payload, what)
    epoch, closing, floor = (fields.size(key) for key in ("epoch", "closing", "floor"))
    require(floor <= closing <= epoch <= NUMBER_MAX, what, "its epochs are not in order")
    (token,) = _ids((fields.get("token", bytes),), FILE_ID_SIZE, what)
    return RemoteState(
        epoch,
        closing,
        floor,
        _names(fields, "condemned", Folder.PACKS, what),
        _names(fields, "index", Folder.INDEX, what),
        _names(fields, "catalog", Folder.CATALOG, what),
        _ids(fields.get("removed", tuple), FILE_ID_SIZE, what),
        token,
    )


def _history_row(history: HistoryName) -> tuple[Any, ...]:
    return tuple(history)


def _decode_history(row: Any, what: str) -> HistoryName:
    require(type(row) is tuple and len(row) == 3, what, "a history is not whole")
    identity, name, forked_from = row
    require(type(name) is str, what, "the name of a history is not text")
    _ids((identity,) if forked_from is None else (identity, forked_from), FILE_ID_SIZE, what)
    return HistoryName(identity, name, forked_from)


def _snapshots(values: tuple[Any, ...], what: str) -> tuple[bytes, ...]:
    require(all(type(value) is bytes for value in values), what, "a snapshot is not bytes")
    return values


def encode_commit(commit: RemoteCommit) -> bytes:
    """Returns the payload of a commit."""
    return pack(
        {
            "version": 1,
            "history": _history_row(commit.history),
            "snapshots": commit.snapshots,
            "packs": _texts(commit.packs),
            "rows": commit.rows,
        }
    )


def decode_commit(payload: bytes) -> RemoteCommit:
    """Returns the commit of a payload, or raises Corrupt. Its rows are not looked at."""
    what = "commit"
    fields = _fields(payload, what)
    packs = _names(fields, "packs", Folder.PACKS, what)
    require(len({name.number for name in packs}) <= 1, what, "its packs have several epochs")
    return RemoteCommit(
        _decode_history(fields.get("history", tuple), what),
        _snapshots(fields.get("snapshots", tuple), what),
        packs,
        fields.get("rows", bytes),
    )


def encode_deletion(deletion: Deletion) -> bytes:
    """Returns the payload of a deletion."""
    return pack({"version": 1, "commit": str(deletion.commit), "snapshots": deletion.snapshots})


def decode_deletion(payload: bytes) -> Deletion:
    """Returns the deletion of a payload, or raises Corrupt."""
    what = "deletion"
    fields = _fields(payload, what)
    return Deletion(
        _name(fields.get("commit", str), Folder.COMMITS, what),
        _ids(fields.get("snapshots", tuple), 32, what),
    )


def encode_catalog(entries: tuple[CommitEntry, ...]) -> bytes:
    """Returns the payload of a part of the catalog."""
    rows = (
        (str(entry.name), _history_row(entry.history), entry.snapshots, entry.kept)
        for entry in entries
    )
    return pack({"version": 1, "commits": tuple(rows)})


def decode_catalog(payload: bytes) -> tuple[CommitEntry, ...]:
    """Returns the part of a payload, or raises Corrupt."""
    what = "catalog"
    entries = []
    for row in _fields(payload, what).get("commits", tuple):
        require(type(row) is tuple and len(row) == 4, what, "a commit is not whole")
        name, history, snapshots, kept = row
        require(type(snapshots) is tuple and type(kept) is tuple, what, "a commit is not whole")
        entries.append(
            CommitEntry(
                _name(name, Folder.COMMITS, what),
                _decode_history(history, what),
                _snapshots(snapshots, what),
                _ids(kept, FILE_ID_SIZE, what),
            )
        )
    return tuple(entries)


def encode_index_part(part: RemoteIndexPart) -> bytes:
    """Returns the payload of a part of the index."""
    return pack({"version": 1, "packs": _texts(part.packs), "rows": part.rows})


def decode_index_part(payload: bytes) -> RemoteIndexPart:
    """Returns the part of a payload, or raises Corrupt. Its rows are not looked at."""
    fields = _fields(payload, "remote index")
    return RemoteIndexPart(
        _names(fields, "packs", Folder.PACKS, "remote index"), fields.get("rows", bytes)
    )


class Collection(StrEnum):
    """Who may collect garbage on a remote."""

    ANY = "any"
    """Every machine: the server creates a file for one of several that meet."""
    ONE = "one"
    """One, as a person has said: of several that meet, the server may let two create a file."""
    NONE = "none"
    """No machine: the server may create a file twice, or show it late."""


class KnownRemote(NamedTuple):
    """A remote as a store remembers it."""

    url: str
    remote_id: bytes
    is_encrypted: bool
    collection: Collection = Collection.NONE
    may_collect: bool = False
    """Whether this machine may."""
    state_number: int = 0
    """The highest state that was seen: an older one is not believed."""
    secret_command: str | None = None
    """A command that prints the passphrase."""
    secret_file: str | None = None
    """A file that holds the passphrase."""
    appends_only: bool = False
    """Whether nothing there is replaced by this machine, because its credentials may not."""
    reads_whole: bool = False
    """Whether the server sends no parts of files."""


def encode_known_remote(remote: KnownRemote) -> bytes:
    """Returns the payload of what a store remembers of a remote."""
    return pack(
        {
            "version": 1,
            "url": remote.url,
            "id": remote.remote_id,
            "encrypted": remote.is_encrypted,
            "collection": remote.collection.value,
            "collects": remote.may_collect,
            "state": remote.state_number,
            "command": remote.secret_command or "",
            "file": remote.secret_file or "",
            "appends": remote.appends_only,
            "whole": remote.reads_whole,
        }
    )


def decode_known_remote(payload: bytes) -> KnownRemote:
    """Returns what a payload says, or raises Corrupt."""
    what = "remote"
    fields = _fields(payload, what)
    collection = fields.get("collection", str)
    require(collection in frozenset(Collection), what, "its collection is unknown")
    remote = KnownRemote(
        url=fields.get("url", str),
        remote_id=fields.get("id", bytes),
        is_encrypted=fields.get("encrypted", bool),
        collection=Collection(collection),
        may_collect=fields.get("collects", bool),
        state_number=fields.get("state", int),
        secret_command=fields.get("command", str) or None,
        appends_only=fields.get("appends", bool),
        reads_whole=fields.get("whole", bool),
        secret_file=fields.get("file", str) or None,
    )
    require(len(remote.remote_id) == FILE_ID_SIZE, what, "an id has another length")
    require(0 <= remote.state_number <= NUMBER_MAX, what, "a number is out of range")
    return remote


class PushedHistory(NamedTuple):
    """The history that a root has on a remote, and what this machine wrote of it."""

    history: HistoryName
    commits: tuple[bytes, ...] = ()
    """Ids of the commits that were acknowledged here. One that is not among them may have been
    written by a copy of this machine."""
    pruned: tuple[bytes, ...] = ()
    """Ids of snapshots that are here and were removed there, so that no push brings them back."""


def encode_pushed(pushed: PushedHistory) -> bytes:
    """Returns the payload of a pushed history."""
    return pack(
        {
            "version": 1,
            "history": _history_row(pushed.history),
            "commits": b"".join(pushed.commits),
            "pruned": b"".join(pushed.pruned),
        }
    )


def decode_pushed(payload: bytes) -> PushedHistory:
    """Returns the pushed history of a payload, or raises Corrupt."""
    what = "pushed history"
    fields = _fields(payload, what)
    return PushedHistory(
        _decode_history(fields.get("history", tuple), what),
        _split(fields.get("commits", bytes), FILE_ID_SIZE, what),
        _split(fields.get("pruned", bytes), ID_SIZE, what),
    )


def _split(ids: bytes, size: int, what: str) -> tuple[bytes, ...]:
    require(len(ids) % size == 0, what, "an id has another length")
    return tuple(ids[start : start + size] for start in range(0, len(ids), size))


REMOTE = Format(FileKind.REMOTE, encode_known_remote, decode_known_remote)
PUSHED = Format(FileKind.PUSHED, encode_pushed, decode_pushed)
REMOTE_STATE = Format(FileKind.REMOTE_STATE, encode_state, decode_state, FILE_SIZE_MAX)
COMMIT = Format(FileKind.COMMIT, encode_commit, decode_commit, COMMIT_SIZE_MAX)
DELETION = Format(FileKind.DELETION, encode_deletion, decode_deletion, FILE_SIZE_MAX)
CATALOG = Format(FileKind.CATALOG, encode_catalog, decode_catalog, FILE_SIZE_MAX)
REMOTE_INDEX = Format(FileKind.REMOTE_INDEX, encode_index_part, decode_index_part, FILE_SIZE_MAX)
