"""The records of a remote, besides its packs; what each is for stands in ``treesnap.remote``.

Each is a sealed file, as in a store. Names carry a number: packs, commits and deletions the
epoch that their writer read, parts of the index and of the catalog the number of the first
state that names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Self

from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.fields import (
    BYTES,
    SIZE,
    TEXT,
    FieldKind,
    Table,
    array,
    omitted,
    optional,
    parsed,
    row,
    single,
    split_ids,
    where,
    word,
)
from treesnap.core.model.errors import Corrupt, ErrorCode, InvalidArgument
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


def _ids(size: int) -> FieldKind:
    return where(BYTES, lambda value: len(value) == size, "is an odd id")


def _name(folder: Folder) -> FieldKind:
    """Returns the kind of names of files in a folder."""

    def parse(text: str) -> RemoteName:
        name = RemoteName.parse(text)
        if name is None or name.folder is not folder:
            raise InvalidArgument(f"it names no file in {folder}/")
        return name

    return parsed(TEXT, parse, str)


_FILE_ID = _ids(FILE_ID_SIZE)
_NUMBER = where(SIZE, lambda number: number <= NUMBER_MAX, "is out of range")
_PACKS = array(_name(Folder.PACKS))
_HISTORY = row(HistoryName, id=_FILE_ID, forked_from=optional(_FILE_ID))


def _problem_of_state(state: RemoteState) -> str | None:
    is_in_order = state.floor <= state.closing <= state.epoch
    return None if is_in_order else "its epochs are not in order"


_STATE = Table(
    RemoteState,
    "remote state",
    names={"index_parts": "index", "catalog_parts": "catalog"},
    problem_of=_problem_of_state,
    epoch=_NUMBER,
    closing=SIZE,
    floor=SIZE,
    condemned=_PACKS,
    index_parts=array(_name(Folder.INDEX)),
    catalog_parts=array(_name(Folder.CATALOG)),
    removed=array(_FILE_ID),
    token=_FILE_ID,
)


def _problem_of_commit(commit: RemoteCommit) -> str | None:
    """Returns what is wrong with a commit, whose rows are not looked at."""
    epochs = {name.number for name in commit.packs}
    return "its packs have several epochs" if len(epochs) > 1 else None


_COMMIT = Table(
    RemoteCommit, "commit", problem_of=_problem_of_commit, history=_HISTORY, packs=_PACKS
)
_DELETION = Table(
    Deletion, "deletion", commit=_name(Folder.COMMITS), snapshots=array(_ids(ID_SIZE))
)
_CATALOG = array(
    row(CommitEntry, name=_name(Folder.COMMITS), history=_HISTORY, kept=array(_FILE_ID))
)
_INDEX = Table(RemoteIndexPart, "remote index", packs=_PACKS)


class Collection(StrEnum):
    """Who may collect garbage on a remote."""

    ANY = "any"
    """Every machine: the server creates a file for one of several that meet."""
    ONE = "one"
    """One, as a person has said: of several that meet, the server may let two create a file."""
    NONE = "none"
    """No machine: the server may create a file twice, or show it late."""


class Marks(NamedTuple):
    """The newest that a store saw of a remote: it believes nothing older."""

    state_number: int = 0
    state_hash: bytes = bytes(FILE_ID_SIZE)
    """Of what that state says; zeros where none was seen."""
    generation: int = 0
    """The newest keys that were opened; 0 for a remote that is not encrypted."""

    def joined(self, other: Self) -> Self:
        """Returns the newest of both; of two states with one number, its own."""
        newer = other if other.state_number > self.state_number else self
        return newer._replace(generation=max(self.generation, other.generation))


class KnownRemote(NamedTuple):
    """A remote as a store remembers it."""

    url: str
    remote_id: bytes
    is_encrypted: bool
    collection: Collection = Collection.NONE
    may_collect: bool = False
    """Whether this machine may."""
    marks: Marks = Marks()
    secret_command: str | None = None
    """A command that prints the passphrase."""
    secret_file: str | None = None
    """A file that holds the passphrase."""
    appends_only: bool = False
    """Whether nothing there is replaced by this machine, because its credentials may not."""
    reads_whole: bool = False
    """Whether the server sends no parts of files."""


_TEXT_OR_EMPTY = parsed(TEXT, lambda text: text or None, lambda text: text or "")
_MARKS = Table(
    Marks,
    "marks of a remote",
    version=None,
    names={"state_number": "state", "state_hash": "hash"},
    state_number=_NUMBER,
    state_hash=_FILE_ID,
    generation=SIZE,
)
_KNOWN_REMOTE = Table(
    KnownRemote,
    "remote",
    names={
        "remote_id": "id",
        "is_encrypted": "encrypted",
        "may_collect": "collects",
        "secret_command": "command",
        "secret_file": "file",
        "appends_only": "appends",
        "reads_whole": "whole",
    },
    remote_id=_FILE_ID,
    collection=word(Collection),
    marks=omitted(_MARKS.kind, absent=Marks()),
    secret_command=_TEXT_OR_EMPTY,
    secret_file=_TEXT_OR_EMPTY,
)


class PushedHistory(NamedTuple):
    """The history that a root has on a remote, and what this machine wrote of it."""

    history: HistoryName
    commits: tuple[bytes, ...] = ()
    """Ids of the commits that were acknowledged here. One that is not among them may have been
    written by a copy of this machine."""
    pruned: tuple[bytes, ...] = ()
    """Ids of snapshots that are here and were removed there, so that no push brings them back."""


_PUSHED = Table(
    PushedHistory,
    "pushed history",
    history=_HISTORY,
    commits=split_ids(FILE_ID_SIZE),
    pruned=split_ids(ID_SIZE),
)


REMOTE: Format[KnownRemote] = Format.of(FileKind.REMOTE, _KNOWN_REMOTE)
PUSHED: Format[PushedHistory] = Format.of(FileKind.PUSHED, _PUSHED)
REMOTE_STATE: Format[RemoteState] = Format.of(FileKind.REMOTE_STATE, _STATE, FILE_SIZE_MAX)
COMMIT: Format[RemoteCommit] = Format.of(FileKind.COMMIT, _COMMIT, COMMIT_SIZE_MAX)
DELETION: Format[Deletion] = Format.of(FileKind.DELETION, _DELETION, FILE_SIZE_MAX)
CATALOG = Format(FileKind.CATALOG, *single("catalog", commits=_CATALOG), FILE_SIZE_MAX)
REMOTE_INDEX: Format[RemoteIndexPart] = Format.of(FileKind.REMOTE_INDEX, _INDEX, FILE_SIZE_MAX)
