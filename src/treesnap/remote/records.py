"""The records of a remote, besides its packs; what each is for stands in ``treesnap.remote``.

Each is a sealed file, as in a store. Names carry a number: packs, commits and deletions the
epoch that their writer read, parts of the index and of the catalog the number of the first
state that names them. They carry the machine too, and commits how many it pushed before: so the
list alone says which push is the newest of each. The packs of a commit have its numbers, so it
cannot list those of another one, and they are found without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
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
from treesnap.core.model.ids import ID_SIZE, checksum
from treesnap.core.model.named_tuple import NamedTuple

FILE_ID_SIZE = 16
"""Bytes of the random part of a name, of the id of a history, and of a token."""
NUMBER_MAX = (1 << 64) - 1
SEQUENCE_MAX = (1 << 32) - 1
KEY_SIZE = 32
COMMIT_SIZE_MAX = 64 << 20
DELIVERY_SIZE_MAX = COMMIT_SIZE_MAX // 2
"""What is delivered has to fit into one commit when it is received."""
MEMBERS_SIZE_MAX = 1 << 20
STATEMENT_SIZE_MAX = 60 << 10
"""A reader decides by the beginning of a signed file whether the rest is worth anything."""
FILE_SIZE_MAX = 240 << 20
"""Bytes of any other file: encryption adds at most 4 %, and a blob has at most 256 MiB."""
MACHINE_ID_SIZE = 8
SIGNATURE_SIZE = 64
_NAME = re.compile(
    r"([a-z]+)/([0-9a-f]{16})-(?:([0-9a-f]{16})-(?:([0-9a-f]{8})-)?)?([0-9a-f]{32})\Z"
)
INBOX = "inbox/"
_IN_INBOX = re.compile(r"inbox/([0-9a-f]{16})-([0-9a-f]{8})-([0-9a-f]{8})-([0-9a-f]{32})\Z")
_NUMBERED = re.compile(r"(state|members)/([0-9a-f]{16})\Z")


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
    machine: bytes = b""
    """Who wrote it: for a pack, a commit and a deletion."""
    sequence: int = 0
    """Which commit of its machine it is, or is of, from 1 on; a pack of a collection is of none."""

    def __str__(self) -> str:
        return self.prefix + self.id.hex()

    @property
    def prefix(self) -> str:
        """All before the random part."""
        machine = f"{self.machine.hex()}-" if self.machine else ""
        sequence = f"{self.sequence:08x}-" if self.sequence else ""
        return f"{self.folder}/{self.number:016x}-{machine}{sequence}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns the name that a text is, or None for another file."""
        match = _NAME.match(text)
        if match is None or match[1] not in frozenset(Folder):
            return None
        folder, number, machine, sequence, identity = match.groups()
        name = cls(
            Folder(folder),
            int(number, 16),
            bytes.fromhex(identity),
            bytes.fromhex(machine or ""),
            int(sequence or "0", 16),
        )
        has_machine = name.folder in (Folder.PACKS, Folder.COMMITS, Folder.DELETIONS)
        has_sequence = name.folder is Folder.COMMITS
        may_have_sequence = name.folder is Folder.PACKS
        is_right = bool(name.machine) == has_machine and (
            may_have_sequence or (name.sequence > 0) == has_sequence
        )
        return name if is_right and str(name) == text else None

    @property
    def key(self) -> bytes:
        """What stands for it where its text is too long; another name has another key."""
        return checksum(str(self).encode("ascii"), FILE_ID_SIZE)

    @property
    def numbers(self) -> tuple[int, bytes, int]:
        """What a commit, and the one that a rebuild made of its packs, have in common."""
        return self.number, self.machine, self.sequence

    @property
    def packs(self) -> str:
        """How the names of the packs of a commit begin."""
        return self._replace(folder=Folder.PACKS).prefix

    @property
    def head(self) -> HeadName:
        """What others say of a commit that they saw."""
        return HeadName(self.machine, self.sequence, self.id)


class HeadName(NamedTuple):
    """A commit, as those refer to it that saw it."""

    machine: bytes
    sequence: int
    id: bytes


def state_name(number: int) -> str:
    """Returns the name of a state."""
    return f"state/{number:016x}"


def members_name(number: int) -> str:
    """Returns the name of a list of members."""
    return f"members/{number:016x}"


def file_number(name: str) -> int | None:
    """Returns the number in the name of a state or a list of members, or None for another file."""
    match = _NUMBERED.match(name)
    return int(match[2], 16) if match else None


class MemberRole(IntEnum):
    """What a machine may do, as every reader checks by its signature."""

    WRITER = 0
    """Deliver to the inbox."""
    MEMBER = 1
    """Read, and push as itself."""
    COLLECTOR = 2
    """Also delete snapshots of any machine, and collect garbage."""
    OWNER = 3
    """Also enrol and revoke machines, and change keys."""

    @property
    def words(self) -> str:
        """The role as commands call it."""
        return self.name.lower()


class RoleLimit(NamedTuple):
    """The highest role that a machine has from a state on, whatever the list of members says.

    A limit comes before that list, so that the machine does nothing meanwhile that will not count.
    """

    machine: bytes
    role: int


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
    heads: tuple[HeadName, ...] = ()
    """The newest commit of each machine among all that ever counted; of a machine that was copied
    there may be several with one number."""
    limits: tuple[RoleLimit, ...] = ()
    """Machines that were revoked, or have a lower role, or are about to."""
    collected_at_ns: int = 0
    """When the last collection ended, by the clock of its machine; 0 where that is not known. For
    people: no rule depends on it."""
    token: bytes = bytes(FILE_ID_SIZE)
    """Which attempt wrote it."""

    def allows(self, machine: bytes, role: MemberRole) -> bool:
        """Tells whether a machine may still have a role; the list of members says if it has."""
        return all(item.role >= role for item in self.limits if item.machine == machine)


class HistoryName(NamedTuple):
    """The history of one root on one machine."""

    id: bytes
    name: str
    """For people; several histories may have it."""
    forked_from: bytes | None = None
    """The history that it goes on from."""

    @classmethod
    def new(cls, machine: bytes, name: str, forked_from: bytes | None = None) -> Self:
        """Returns a history of a machine, whose id ends with that of the machine."""
        return cls(os.urandom(FILE_ID_SIZE - MACHINE_ID_SIZE) + machine, name, forked_from)

    def is_of(self, machine: bytes) -> bool:
        """Tells whether it is a history of a machine."""
        return self.id.endswith(machine)


Span = tuple[int, int]
"""Sequence numbers, from and to."""


def spans(numbers: Iterable[int]) -> tuple[Span, ...]:
    """Returns numbers as few spans."""
    joined: list[Span] = []
    for number in sorted(numbers):
        if joined and number == joined[-1][1] + 1:
            joined[-1] = joined[-1][0], number
        else:
            joined.append((number, number))
    return tuple(joined)


class Head(NamedTuple):
    """What the writer of a commit had seen: the statement that it signs, readable without a key."""

    state: int
    """The number of the state that it read."""
    state_hash: bytes
    seen: tuple[HeadName, ...] = ()
    """The newest certain commit of each machine that the heads of that state lack; its own too."""
    void: tuple[Span, ...] = ()
    """Its machine's numbers above its head in that state that may never count."""


class MemberRow(NamedTuple):
    """A machine on the list."""

    key: bytes
    """The public key that its id follows from."""
    role: int
    exchange: bytes = b""
    """The public key that its key slot is made for; none of an owner, or of a writer."""


class MemberList(NamedTuple):
    """Which machines count for what; the owner signs it."""

    previous: bytes
    """A hash of the list before; zeros in the first one."""
    members: tuple[MemberRow, ...]


class CommitEntry(NamedTuple):
    """What a commit holds, as the catalog says it."""

    name: RemoteName
    history: HistoryName
    snapshots: tuple[bytes, ...]
    """Payloads of snapshot records, oldest first; none in a partial commit."""
    kept: tuple[bytes, ...] = ()
    """Keys of the packs that a partial commit keeps."""
    origin: bytes = b""
    """The id of its :class:`CommitOrigin`; none of a partial commit."""


class RemoteCommit(NamedTuple):
    """One push, or a part of one."""

    history: HistoryName
    snapshots: tuple[bytes, ...]
    packs: tuple[RemoteName, ...]
    """Its own packs: those that were written for it, under its number."""
    rows: bytes
    """The objects in them: an index part."""
    origin: bytes = b""
    """The id of its :class:`CommitOrigin`, which lies in one of them; none of a partial commit."""

    def entry(self, name: RemoteName) -> CommitEntry:
        """Returns what a catalog says of it."""
        kept = () if self.snapshots else tuple(item.key for item in self.packs)
        return CommitEntry(name, self.history, self.snapshots, kept, self.origin)


class OriginStatement(NamedTuple):
    """What a machine says of a commit that is not a partial one."""

    machine: bytes
    epoch: int
    sequence: int
    history: HistoryName
    snapshots: tuple[bytes, ...]


class CommitOrigin(NamedTuple):
    """What a commit holds, as an object in a pack of it, of the kind of snapshots.

    Where commits, or the catalog, are damaged, packs say so what they are of.
    """

    statement: bytes
    """An encoded :class:`OriginStatement`."""
    key: bytes
    """The public key of the machine, which its id follows from."""
    signature: bytes
    """That of the machine."""


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


class NotSigned(Corrupt):
    """A file of a remote does not begin as one that a member signed under its name.

    So it may never have been one. Of a file that is damaged behind its beginning it is known.
    """

    code = ErrorCode.REMOTE_DAMAGED

    @classmethod
    def of(cls, name: str, problem: str) -> Self:
        """Returns the error for a file, with what is wrong with it."""
        return cls(f"Remote file {name!r} {problem}", path=name)


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
_ROLE = where(SIZE, lambda number: number in set(MemberRole), "is not a role")
_SEQUENCE = where(SIZE, lambda number: 0 < number <= SEQUENCE_MAX, "is out of range")
_SPAN = where(
    array(_SEQUENCE), lambda span: len(span) == 2 and span[0] <= span[1], "is not from and to"
)
_HEADS = array(row(HeadName, machine=_ids(MACHINE_ID_SIZE), sequence=_SEQUENCE, id=_FILE_ID))
_NUMBER = where(SIZE, lambda number: number <= NUMBER_MAX, "is out of range")
_PACKS = array(_name(Folder.PACKS))
_HISTORY = row(HistoryName, id=_FILE_ID, forked_from=optional(_FILE_ID))


def _problem_of_state(state: RemoteState) -> str | None:
    is_in_order = state.floor <= state.closing <= state.epoch
    return None if is_in_order else "its epochs are not in order"


_STATE = Table(
    RemoteState,
    "remote state",
    names={"index_parts": "index", "catalog_parts": "catalog", "collected_at_ns": "collected"},
    problem_of=_problem_of_state,
    epoch=_NUMBER,
    closing=SIZE,
    floor=SIZE,
    condemned=_PACKS,
    index_parts=array(_name(Folder.INDEX)),
    catalog_parts=array(_name(Folder.CATALOG)),
    removed=array(_FILE_ID),
    heads=_HEADS,
    limits=array(row(RoleLimit, machine=_ids(MACHINE_ID_SIZE), role=_ROLE)),
    collected_at_ns=SIZE,
    token=_FILE_ID,
)
_HEAD = Table(
    Head,
    "head of a commit",
    names={"state_hash": "hash"},
    state=_NUMBER,
    state_hash=_FILE_ID,
    seen=_HEADS,
    void=array(_SPAN),
)
_MEMBERS = Table(
    MemberList,
    "list of members",
    previous=_FILE_ID,
    members=array(
        row(
            MemberRow,
            key=_ids(KEY_SIZE),
            role=_ROLE,
            exchange=where(BYTES, lambda value: len(value) in (0, KEY_SIZE), "is not a key"),
        )
    ),
)


_ORIGIN_ID = where(BYTES, lambda value: len(value) in (0, ID_SIZE), "is an odd id")
_COMMIT = Table(RemoteCommit, "commit", history=_HISTORY, packs=_PACKS, origin=_ORIGIN_ID)
_ORIGIN_STATEMENT = Table(
    OriginStatement,
    "statement of an origin",
    machine=_ids(MACHINE_ID_SIZE),
    epoch=_NUMBER,
    sequence=_SEQUENCE,
    history=_HISTORY,
)
_ORIGIN = Table(CommitOrigin, "origin", key=_ids(KEY_SIZE), signature=_ids(SIGNATURE_SIZE))
_DELETION = Table(
    Deletion, "deletion", commit=_name(Folder.COMMITS), snapshots=array(_ids(ID_SIZE))
)
_CATALOG = array(
    row(
        CommitEntry,
        name=_name(Folder.COMMITS),
        history=_HISTORY,
        kept=array(_FILE_ID),
        origin=_ORIGIN_ID,
    )
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
    heads: tuple[HeadName, ...] = ()
    """The newest commit of each machine among those that count for ever."""
    accepted: tuple[bytes, ...] = ()
    """Keys of commits of which it does not matter what they saw: after that, the remote was set
    back, as a person has accepted."""
    members: int = 0
    """The number of the newest list of members."""
    owner: bytes = b""
    """The public key of the owner of that generation; none where nothing is encrypted."""

    def joined(self, other: Self) -> Self:
        """Returns the newest of both; of two states with one number, its own."""
        newer = other if other.state_number > self.state_number else self
        keys = other if (other.generation, other.owner) > (self.generation, self.owner) else self
        return newer._replace(
            generation=keys.generation,
            owner=keys.owner,
            members=max(self.members, other.members),
            heads=newest_heads((*self.heads, *other.heads)),
        )


def newest_heads(heads: Iterable[HeadName]) -> tuple[HeadName, ...]:
    """Returns the newest of each machine; all of them where several have its highest number."""
    heads = frozenset(heads)
    highest: dict[bytes, int] = {}
    for item in heads:
        highest[item.machine] = max(item.sequence, highest.get(item.machine, 0))
    return tuple(sorted(item for item in heads if item.sequence == highest[item.machine]))


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
    heads=omitted(_HEADS, absent=()),
    accepted=omitted(array(_FILE_ID), absent=()),
    members=omitted(_NUMBER, absent=0),
    owner=omitted(BYTES, absent=b""),
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


class MachineRecord(NamedTuple):
    """What a store signs with on a remote."""

    seed: bytes
    """32 random bytes that its key follows from."""
    sequence: int = 0
    """The number of the last commit that it began to send: no other commit ever gets it."""
    unsettled: tuple[Span, ...] = ()
    """Numbers of commits of which it never learned that they count."""
    owner_generation: int = 0
    """Of the owner that invited the machine; 0 where it enrolled itself."""
    owner: bytes = b""
    """The public key of that owner."""


class DeliveryName(NamedTuple):
    """The name of a file in the inbox."""

    writer: bytes
    """The id of who wrote it."""
    number: int
    """How many snapshots its root had delivered before: of one root, the order."""
    part: int
    """0 says what is delivered, and is written last; others are its packs."""
    id: bytes = b""

    def __str__(self) -> str:
        return self.prefix + self.id.hex()

    @property
    def prefix(self) -> str:
        """All before the random part."""
        return f"{INBOX}{self.writer.hex()}-{self.number:08x}-{self.part:08x}-"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns the name that a text is, or None for another file."""
        match = _IN_INBOX.match(text)
        if match is None:
            return None
        writer, number, part, identity = match.groups()
        return cls(bytes.fromhex(writer), int(number, 16), int(part, 16), bytes.fromhex(identity))


class Delivery(NamedTuple):
    """What a writer delivers: snapshots, and all that they need and it did not deliver before."""

    history: bytes
    """16 random bytes for each root of the writer."""
    name: str
    """For people."""
    snapshots: tuple[bytes, ...]
    """Payloads of snapshot records, oldest first."""
    packs: tuple[DeliveryName, ...]


def _in_inbox(text: str) -> DeliveryName:
    name = DeliveryName.parse(text)
    if name is None:
        raise InvalidArgument("it names no file in inbox/")
    return name


_DELIVERY = Table(
    Delivery,
    "delivery",
    history=_FILE_ID,
    packs=array(parsed(TEXT, _in_inbox, str)),
)


class DeliveredHistory(NamedTuple):
    """What a root delivered to a remote."""

    history: bytes
    snapshots: tuple[bytes, ...] = ()
    """Their ids."""


_DELIVERED = Table(
    DeliveredHistory, "delivered history", history=_FILE_ID, snapshots=split_ids(ID_SIZE)
)
_MACHINE = Table(
    MachineRecord,
    "machine",
    seed=_ids(KEY_SIZE),
    sequence=where(SIZE, lambda number: number <= SEQUENCE_MAX, "is out of range"),
    unsettled=array(_SPAN),
    owner_generation=omitted(SIZE, absent=0),
    owner=omitted(BYTES, absent=b""),
)


REMOTE: Format[KnownRemote] = Format.of(FileKind.REMOTE, _KNOWN_REMOTE)
PUSHED: Format[PushedHistory] = Format.of(FileKind.PUSHED, _PUSHED)
REMOTE_STATE: Format[RemoteState] = Format.of(FileKind.REMOTE_STATE, _STATE, FILE_SIZE_MAX)
COMMIT: Format[RemoteCommit] = Format.of(FileKind.COMMIT, _COMMIT, COMMIT_SIZE_MAX)
DELETION: Format[Deletion] = Format.of(FileKind.DELETION, _DELETION, FILE_SIZE_MAX)
HEAD: Format[Head] = Format.of(FileKind.COMMIT, _HEAD, STATEMENT_SIZE_MAX)
MEMBERS: Format[MemberList] = Format.of(FileKind.MEMBERS, _MEMBERS, MEMBERS_SIZE_MAX)
MACHINE: Format[MachineRecord] = Format.of(FileKind.MACHINE, _MACHINE)
ORIGIN_STATEMENT: Format[OriginStatement] = Format.of(
    FileKind.ORIGIN, _ORIGIN_STATEMENT, COMMIT_SIZE_MAX
)
ORIGIN: Format[CommitOrigin] = Format.of(FileKind.ORIGIN, _ORIGIN, COMMIT_SIZE_MAX)
DELIVERY: Format[Delivery] = Format.of(FileKind.DELIVERY, _DELIVERY, DELIVERY_SIZE_MAX)
DELIVERED: Format[DeliveredHistory] = Format.of(FileKind.DELIVERED, _DELIVERED)
CATALOG = Format(FileKind.CATALOG, *single("catalog", commits=_CATALOG), FILE_SIZE_MAX)
REMOTE_INDEX: Format[RemoteIndexPart] = Format.of(FileKind.REMOTE_INDEX, _INDEX, FILE_SIZE_MAX)
