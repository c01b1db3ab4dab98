"""How machines share a remote: none waits, no rule depends on a clock, nothing is lost.

    packs/<epoch>-<machine>-<sequence>-<id>      objects of the push with these numbers; without a
                                                 sequence those that a collection wrote
    commits/<epoch>-<machine>-<sequence>-<id>    one push: snapshots, and where the objects of its
                                                 packs are
    deletions/<epoch>-<machine>-<id>             snapshots of a commit that were deleted
    index/<n>-<id>                               where objects are, for commits that were folded
    catalog/<n>-<id>                             what these commits hold
    state/<n>                                    what counts; the one with the highest number holds

A name is written once and never returns. The one operation that a server must do atomically is
to create a file that is not there, and only collectors need it: for the next state.

    visible    a commit of the catalog; or one that is listed, is not below the floor, and was
               not removed
    certain    a commit of the catalog; or a visible one that is not below ``closing``, and not of
               a machine that the state lets push no more

**Push.** A writer reads the commits that are listed, and then the state: the other way round,
it could trust a commit that is void already. It stores what lies in no pack that certain
commits or the index list, and counts no condemned pack. Its packs and its commit carry the
epoch that it read. When the commit is stored, it reads the state again:

    closing <= epoch, or the catalog has the commit    acknowledged
    epoch < floor                                      void: again, with new names
    else                                               a collector is deciding: read again

**Collect.** A collector finds what no visible commit needs, and copies what is left of packs
that are mostly waste. Then it creates three states. The first raises the epoch, and names the
packs that are to go: its readers do not rely on them. The second closes the epochs
before. It lists commits once more: those who did not see the first state are among them, or
will see that their epoch is closed. What they need is spared. The third raises the floor, and
the packs are in the index no longer. A collector that another one overtakes stops.

**Heads.** Each commit says what its machine had seen: the state, the newest certain commit of each
machine, and which of its own numbers may never count. A state has the newest commit of each machine
that ever counted. So a server that hides a push, or shows an older state, contradicts something
that it shows, or a mark of its reader. A number is used once, whatever becomes of its commit. Only
certain commits are marks: others vanish rightly. A list is not read in one moment: what a commit
has seen that is not listed, is looked for in a second list.

What others wrote may be wrong: by a bug, by damage, or by a stolen key, which must not remove
anything. So a commit lists packs under its own number alone, and snapshots of histories of its own
machine, which the id of a history ends with. Of a live object that lies in several packs, none goes
before the one that stays was read. A commit that no member signed, or
that breaks a rule, counts for nothing. A deletion that cannot be read deletes nothing. A file among
the states that no member signed is none, and collectors pass its number: they have read it, and it
is not removed before a higher state is there, so none of them creates a state with that number. A
state that is damaged, and begins as a member signed it, may be the newest: nothing is written then.

**Damage.** The packs of a commit carry its number, and one of them says, signed by its machine,
what it holds. So a commit that cannot be read is what its packs say, for readers, writers and
collections alike; the next collection folds it. State and catalog have copies. Without them, or
without a part of the index, nothing is written. Readers go on: with a state that names all parts
which are listed and counts every commit; and without the part, where what the index said is read
from the packs again. Only what a part of the catalog said is not visible meanwhile.

**Repair.** What a server lost or damaged is stored again, in a partial commit: readers take an
object from any pack that has it. A collection lets go of a pack that is missing when all that
snapshots need of it lies elsewhere; until then writers may rely on it.

**Rebuild.** Catalog, index and state are written anew of what packs say, beside all that can be
read. Nothing is removed or condemned, and what is whole and was not removed comes back. While index
and catalog can be read, what is garbage by them is none of it: a sweep may be deleting that. A
commit that is made of packs has the numbers of the one that was lost, or is on its way, and a
deletion counts for both.

**Roles.** What a machine signs counts as far as its role on the list of members allows: commits of
a member, also deletions and states of a collector, lists of an owner. A reader of a state that it
did not have reads the newest list first. To *revoke* a machine, an owner creates a state that
limits it: from then on the machine creates no state, and believes of its own commits only those
that the catalog has, and no other machine relies on any other of them. What it pushed is folded.
Then comes the list without it, and a state after that. So what was acknowledged stays, and no
honest machine creates a state meanwhile that counts no more. A role never rises: what its machine
signed before would count.

**Sweep.** A pack below the floor that the index does not name is garbage for ever, so any machine
may delete it at any time: a commit lists packs of its own epoch alone, and commits below the
floor do not count. It is the same for parts that the state does not name, commits that are in
the catalog, and deletions that are carried out.

A long push writes *partial commits*, which hold no snapshot and keep their packs for a few
epochs. Objects of a partial commit prove nothing of what is below them, so only trees of
snapshots end the walk of a later push.

``tests/remote/support/remote_protocol.py`` is a model of these rules, in which each of them is also
broken; that of heads is ``heads_model.py`` beside it.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count, islice
from typing import Any, Protocol, Self, TypeVar

from treesnap.core.codec.compress import BLOCK_RAW_SIZE_MAX
from treesnap.core.codec.envelope import Format
from treesnap.core.codec.index import IndexPart, encode_index, encode_unsorted
from treesnap.core.codec.pack import (
    KINDS,
    PACK_SIZE_MAX,
    TABLE_SIZE_MAX,
    BlockTable,
    Encoded,
    IndexEntry,
    OpenBlock,
    decode_footer,
    encode_objects,
    encode_pack,
    scan_blocks,
    verified_objects,
)
from treesnap.core.codec.snapshot import decode_snapshot
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    GenerationMissing,
    NewerVersion,
    RemoteFailed,
    UnsupportedFormat,
)
from treesnap.core.model.ids import object_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import Record
from treesnap.remote.keys import not_allowed
from treesnap.remote.marks import not_listed, state_hash
from treesnap.remote.records import (
    CATALOG,
    COMMIT,
    DELETION,
    FILE_ID_SIZE,
    HEAD,
    ORIGIN,
    ORIGIN_STATEMENT,
    REMOTE_INDEX,
    REMOTE_STATE,
    CommitEntry,
    CommitOrigin,
    Deletion,
    Folder,
    Head,
    HeadName,
    HistoryName,
    MemberRole,
    NotSigned,
    OriginStatement,
    RemoteCommit,
    RemoteName,
    RemoteState,
    Span,
    damage_of_remote,
    file_number,
    newest_heads,
    state_name,
)

CREATE_ATTEMPTS = 5
"""How often a state is created of which it stays unclear whether it was."""
_UNSIGNED_MAX = 1000
"""So many files are read to find a state that a member signed."""
_LOOKS_MAX = 3
"""How often a file is looked for that is listed, or that a state names."""
_VIEWS_MAX = 5
"""How many views a reader tries when collections delete what they name."""

_NO_HISTORY = HistoryName(bytes(FILE_ID_SIZE), "")
_STATES = "state/"
_NO_STATE = "state/"
"""Stands for the name of the state that is not there."""
_MAY_LACK = (_STATES, f"{Folder.INDEX}/", f"{Folder.CATALOG}/")
"""What readers go on without."""

_Result = TypeVar("_Result")


class _FileGone(Exception):
    """A file is not there that a list or a state named: a collection went on, or it is damage."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Missing(Exception):
    """A pack or an object is not there that a reader of a view needs.

    A collection went on since the view was read, or it is damage: :meth:`Remote.settled` finds out.
    """

    def __init__(self, what: str, names: Collection[str]) -> None:
        super().__init__(f"{what} is missing on the remote")
        self.names: frozenset[str] = frozenset(names)

    @classmethod
    def pack(cls, name: RemoteName) -> Self:
        """Returns the exception for a pack."""
        return cls(f"Pack {name}", [str(name)])

    @classmethod
    def object(cls, object_id: ObjectId) -> Self:
        """Returns the exception for an object that lies in no pack."""
        return cls(f"Object {object_id.hex()}", [object_id.hex()])

    def as_damage(self) -> Corrupt:
        """Returns the error for what is lost."""
        return Corrupt(str(self), code=ErrorCode.REMOTE_DAMAGED, path=min(self.names))


class SignedFile(Protocol):
    """A file of which something can be read without a key."""

    @property
    def statement(self) -> bytes:
        """What can be read without a key."""

    @property
    def content(self) -> bytes:
        """What needs one."""


_Meaning = Callable[[SignedFile, str], Any]
"""Returns what a file with a name says."""


class RemoteFiles(Protocol):
    """The files of a remote, each written whole, as a holder of the key reads them."""

    def next_sequence(self) -> tuple[bytes, int, tuple[Span, ...]]:
        """Returns which machine this is, the number of its next commit, and those of earlier ones
        of which it is not known whether they count.

        No other commit ever gets that number. Durable.
        """

    def is_member(self, machine: bytes) -> bool:
        """Tells whether a machine is a member, as far as was found out."""

    @property
    def own_id(self) -> bytes:
        """What this machine is called, whether or not it is a member."""

    def sign(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns the key of this machine, and its signature for what it says of a commit."""

    def is_signed(self, machine: bytes, key: bytes, signature: bytes, data: bytes) -> bool:
        """Tells whether a machine with this key said something of a commit."""

    def settle(self, sequence: int, folded: int) -> None:
        """Takes note that a commit of this machine counts, as do all up to the ``folded`` one."""

    def meet(self, machines: Iterable[bytes]) -> None:
        """Finds out which machines are members; without that, their files cannot be read."""

    def put(
        self,
        folder: Folder,
        number: int,
        content: bytes,
        statement: bytes = b"",
        sequence: int = 0,
    ) -> RemoteName:
        """Writes a file under a new name; durable and listed when it returns.

        A commit has a statement, and the sequence number of its machine, which its packs have too.
        """

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file if there is none; returns whether it did.

        Raises RemoteFailed; ``is_unclear`` when it may have been written all the same.
        """

    @property
    def mended(self) -> dict[str, str]:
        """Files that were read from their copies, or as they were kept, and why."""

    def get(self, name: str) -> bytes | None:
        """Returns a file, or None when there is none; raises Corrupt and RemoteFailed."""

    def read(self, name: str, meaning: Callable[[SignedFile], _Result]) -> _Result | None:
        """Returns what a file means, or None when there is none.

        Where it is damaged, its copy is read. Raises RemoteFailed, and what ``meaning`` raises.
        """

    def get_ranges(
        self, name: str, size_bytes: int, ranges: Sequence[tuple[int, int]]
    ) -> list[bytes] | None:
        """Returns parts of a file of a size, each as (start, size), or None without such a file."""

    def get_damaged(self, name: str) -> tuple[bytes, Sequence[tuple[int, int]] | None] | None:
        """Returns a file of which parts may be damaged, with zeros there, and where that is, each
        as from and to, or None where only the content can tell; None without such a file.

        Raises Corrupt where nothing of it is whole.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """Yields the names that begin so, in their order."""

    def keep_only(self, folders: Collection[str], names: Collection[str]) -> None:
        """Lets go of the files of some folders that are not needed again but for these."""

    def delete(self, names: Iterable[str]) -> None:
        """Removes files; one that is gone is not a failure."""

    def give_up(self) -> None:
        """Lets the requests that other threads repeat fail now."""


class IndexedPacks:
    """Packs, and where objects are in them. Any writer made it, so its rows are checked."""

    def __init__(self, packs: Iterable[RemoteName], rows: bytes, where: str) -> None:
        self.packs: dict[bytes, RemoteName] = {name.key: name for name in packs}
        self.rows: IndexPart = IndexPart(memoryview(rows), where)
        self.rows.verify()
        if not self.rows.is_in_order():
            raise Corrupt(f"{where} lists objects in no order")  # would hide those of others
        if not self.rows.covered.keys() <= self.packs.keys():
            raise Corrupt(f"{where} lists objects of a pack that it does not name")
        if any(size > PACK_SIZE_MAX for size in self.rows.covered.values()):
            raise Corrupt(f"{where} names a pack that is larger than any")

    @classmethod
    def of_pack(cls, name: RemoteName, tables: Iterable[BlockTable], size_bytes: int) -> Self:
        """Returns what is in one new pack."""
        rows = encode_index(sorted(placed(tables, name.key)), {name.key: size_bytes})
        return cls((name,), bytes(rows), str(name))

    def sizes(self) -> Iterator[tuple[RemoteName, int]]:
        """Yields the packs and their bytes."""
        for pack_id, name in self.packs.items():
            yield name, self.rows.covered.get(pack_id, 0)

    def entries(self) -> Iterator[IndexEntry]:
        """Yields what is in the packs, by id; what can be in no place is nowhere."""
        return filter(_is_possible, self.rows)

    def entries_of(self, packs: Container[RemoteName]) -> Iterator[IndexEntry]:
        """Yields what is in some of the packs, by id."""
        return (entry for entry in self.entries() if self.packs[entry.pack_id] in packs)

    def numbered(self) -> Iterator[tuple[int, IndexEntry]]:
        """Yields what is in the packs, by id, with the numbers of the rows."""
        for number in range(self.rows.count):
            entry = self.rows.at(number)
            if entry is not None and _is_possible(entry):
                yield number, entry

    def first(self, object_id: ObjectId) -> tuple[RemoteName, IndexEntry] | None:
        """Returns a place of an object, or None."""
        entry = self.rows.find(object_id)
        if entry is None or not _is_possible(entry):
            return next(self.find(object_id), None)
        return self.packs[entry.pack_id], entry

    def find(self, object_id: ObjectId) -> Iterator[tuple[RemoteName, IndexEntry]]:
        """Yields the places of an object."""
        for entry in self.rows.find_all(object_id):
            if _is_possible(entry):
                yield self.packs[entry.pack_id], entry


def _is_possible(entry: IndexEntry) -> bool:
    """Tells whether an object can be where a row says, before anything is fetched for it."""
    _, block, start, raw_size, kind = entry
    return (
        start + 1 + raw_size <= block.raw_size <= BLOCK_RAW_SIZE_MAX
        and block.size <= TABLE_SIZE_MAX + BLOCK_RAW_SIZE_MAX
        and kind in KINDS
    )


def placed(tables: Iterable[BlockTable], pack_id: bytes) -> Iterator[IndexEntry]:
    """Yields the objects of blocks in the pack with an id."""
    for table in tables:
        yield from table._replace(block=table.block._replace(pack_id=pack_id)).entries


@dataclass(frozen=True)
class View:
    """What was read: the commits first, and the state second."""

    number: int
    """That of the state."""
    state: RemoteState
    catalog: Mapping[bytes, CommitEntry]
    """What was folded, by the keys of commits."""
    index: tuple[IndexedPacks, ...]
    commits: Mapping[RemoteName, tuple[RemoteCommit, IndexedPacks]]
    """Listed commits that count and are not in the catalog."""
    damaged: Mapping[RemoteName, Corrupt]
    """Others, which count for nothing: no member signed them, they break a rule, or neither they
    nor their packs can be read."""
    recovered: Mapping[RemoteName, Corrupt] = field(default_factory=dict)
    """Those among the commits that were damaged, and read from their packs."""
    lacks: Mapping[str, Corrupt] = field(default_factory=dict)
    """The state and parts of index and catalog that cannot be read, and why. Readers go on without
    them; nothing is written meanwhile."""
    heads: Mapping[RemoteName, Head] = field(default_factory=dict)
    """What the writers of the listed commits had seen."""
    unsigned: Mapping[str, Corrupt] = field(default_factory=dict)
    """Files among the states that no member signed, with higher numbers: they are none."""
    contradictions: Mapping[bytes, str] = field(default_factory=dict)
    """What the writers among them had seen that is not shown, in words, by the ids of the machines:
    the remote was set back, its server hides it, or the machine lies."""
    absent: frozenset[str] = frozenset()
    """Packs and objects that were missing before this was read: what needs them all the same is
    damaged."""

    @property
    def has_state(self) -> bool:
        """Tells whether the state was read, from the server or as it was kept."""
        return self.number >= 0

    def require_whole(self) -> None:
        """Raises the Corrupt of what a reader can go on without, and a writer cannot."""
        for error in self.lacks.values():
            raise error

    @cached_property
    def visible(self) -> dict[bytes, CommitEntry]:
        """What every commit that counts holds."""
        listed = {name.key: commit.entry(name) for name, (commit, _) in self.commits.items()}
        return {**self.catalog, **listed}

    def is_certain(self, name: RemoteName) -> bool:
        """Tells whether a visible commit stays visible until it is deleted."""
        return name.key in self.catalog or (
            name.number >= self.state.closing and self.state.allows(name.machine, MemberRole.MEMBER)
        )

    @cached_property
    def counted_heads(self) -> tuple[HeadName, ...]:
        """The newest commit of each machine."""
        return newest_heads((*self.state.heads, *(name.head for name in self.commits)))

    @cached_property
    def certain_heads(self) -> tuple[HeadName, ...]:
        """The newest commit of each machine among those that are certain."""
        certain = (name.head for name in self.commits if self.is_certain(name))
        return newest_heads((*self.state.heads, *certain))

    def is_ahead_of(self, machine: bytes, sequence: int) -> bool:
        """Tells whether a machine that sent so many commits is one of several with its key."""
        sent = [item.sequence for item in self._shown if item.machine == machine]
        return max(sent, default=0) > sequence or len(sent) > len(set(sent))

    @cached_property
    def _shown(self) -> frozenset[HeadName]:
        listed = (name.head for name in (*self.commits, *self.damaged))
        return frozenset((*self.counted_heads, *self.state.heads, *listed))

    @cached_property
    def _sequences(self) -> dict[bytes, int]:
        return {item.machine: item.sequence for item in self.counted_heads}

    def hides(self, head: HeadName) -> bool:
        """Tells whether neither a commit is shown nor a later one of its machine.

        One that cannot be read is shown as well: its name is there.
        """
        return head not in self._shown and self._sequences.get(head.machine, 0) <= head.sequence

    @property
    def contradiction(self) -> str:
        """What one of the writers had seen that is not shown, in words."""
        return next(iter(self.contradictions.values()), "")

    def contradicting(self, heads: Mapping[RemoteName, Head]) -> dict[bytes, str]:
        """Returns what is not shown of what the writers of some commits had seen, by machine."""
        of_machines: dict[bytes, dict[RemoteName, Head]] = defaultdict(dict)
        for name, head in heads.items():
            of_machines[name.machine][name] = head
        said = ((each, self._contradicts(each, own)) for each, own in of_machines.items())
        return {machine: words for machine, words in said if words}

    def _contradicts(self, machine: bytes, heads: Mapping[RemoteName, Head]) -> str:
        """Returns what is not shown of what a machine had seen, in words."""
        own_hash = state_hash(self.state)
        for head in heads.values():
            if head.state > self.number or (
                head.state == self.number and head.state_hash != own_hash
            ):
                return f"is at state {self.number}, and machine {machine.hex()} saw another"
            for seen in head.seen:
                if self.hides(seen):
                    return not_listed(seen.machine, seen.sequence, machine)
        numbers = [item.sequence for item in self._shown if item.machine == machine]
        excused = [(number, number) for number in numbers]
        for name, head in heads.items():  # of what was sent before it
            excused += [(first, min(last, name.sequence - 1)) for first, last in head.void]
        folded = {item.machine: item.sequence for item in self.state.heads}
        number = folded.get(machine, 0) + 1
        for first, last in sorted(excused):  # a thief of its key says of thousands of millions
            if first > number:
                break
            number = max(number, last + 1)
        is_hidden = number < max(name.sequence for name in heads)
        return not_listed(machine, number, machine) if is_hidden else ""

    @cached_property
    def reliable_commits(self) -> dict[bytes, CommitEntry]:
        """The visible commits on which a writer may rely."""
        return {k: entry for k, entry in self.visible.items() if self.is_certain(entry.name)}

    @cached_property
    def all_packs(self) -> tuple[IndexedPacks, ...]:
        """Everything that the index and visible commits list."""
        return (*self.index, *(packs for _, packs in self.commits.values()))

    @cached_property
    def sizes(self) -> dict[RemoteName, int]:
        """The bytes of each pack, as the first says that lists it."""
        return {name: size for part in reversed(self.all_packs) for name, size in part.sizes()}

    @cached_property
    def _reliable(self) -> tuple[IndexedPacks, ...]:
        certain = (packs for name, (_, packs) in self.commits.items() if self.is_certain(name))
        return (*self.index, *certain)

    @cached_property
    def _condemned(self) -> frozenset[RemoteName]:
        return frozenset(self.state.condemned)

    def first(self, object_id: ObjectId) -> tuple[RemoteName, IndexEntry] | None:
        """Returns the first place where a reader may find an object, or None."""
        for packs in self.all_packs:
            place = packs.first(object_id)
            if place is not None:
                return place
        return None

    def find(self, object_id: ObjectId) -> Iterator[tuple[RemoteName, IndexEntry]]:
        """Yields the places where a reader may find an object."""
        for packs in self.all_packs:
            yield from packs.find(object_id)

    def has(self, object_id: ObjectId) -> bool:
        """Tells whether a writer may rely on an object."""
        return any(
            name not in self._condemned
            for packs in self._reliable
            for name, _ in packs.find(object_id)
        )


class Deletions(NamedTuple):
    """The deletions that are listed."""

    listed: Mapping[RemoteName, Deletion]
    damaged: Mapping[RemoteName, Corrupt]
    """Others, which cannot be read. They delete nothing."""


class Remote:
    """Reads the state of a remote, and creates the next one."""

    def __init__(
        self,
        files: RemoteFiles,
        wait: Callable[[int], bool],
        are_keys_known: Callable[[int], bool] = lambda _: True,
        accepted: Collection[bytes] = (),
    ) -> None:
        """``wait`` is called before a state is read for the n-th time, and tells whether to.

        ``are_keys_known`` tells whether the remote has keys of a generation: a file that needs
        others is damaged. It does not matter what commits with ``accepted`` ids saw.
        """
        self.files = files
        self._accepted = frozenset(accepted)
        self._wait = wait
        self._are_keys_known = are_keys_known
        self._known: dict[RemoteName, Any] = {}
        """What files say that were read; they never change."""
        self._from_packs: dict[RemoteName, tuple[RemoteCommit, IndexedPacks]] = {}
        """What damaged commits were."""
        self._last_state: tuple[int, RemoteState] | None = None
        """The last state that was read, with its number."""
        self._unsigned: dict[int, Corrupt] = {}
        """Higher numbers that were listed then, under which no member signed anything."""
        self._unlisted: dict[RemoteName, IndexedPacks | None] = {}
        """What is in the packs that were read whole, because nothing lists them."""
        self.origins: dict[ObjectId, bytes] = {}
        """Those in these packs."""

    # Reading

    def read_state(self) -> tuple[int, RemoteState]:
        """Returns the number and the content of the highest state; raises Corrupt.

        What does not begin as a state that a member signed is none, if another one is there. One
        that does is damaged, and may be the newest.
        """
        return self._checked(self._read_state_once)

    def next_number(self, number: int) -> int:
        """Returns the number of the state after one that was just read.

        A file with a number that is not a state stays there until a higher state is there: so no
        other machine can create a state with it.
        """
        number += 1
        while number in self._unsigned:
            number += 1
        return number

    def _checked(self, read: Callable[[], _Result]) -> _Result:
        """Returns what is read; where that is damaged nothing is kept, so all is read again."""
        try:
            with damage_of_remote():
                return _found(read)
        except Corrupt as error:
            if error.path is None:
                self.files.keep_only(("state", *Folder), ())
            raise

    def _read_state_once(self) -> tuple[int, RemoteState]:
        self._unsigned = {}
        numbers = (file_number(name) for name in self.files.list(_STATES))
        listed = sorted((item for item in numbers if item is not None), reverse=True)
        for number in listed[:_UNSIGNED_MAX]:
            name = state_name(number)
            if self._last_state is not None and self._last_state[0] == number:
                return self._last_state
            try:
                self._last_state = number, self._decoded(name, _content_of(REMOTE_STATE))
            except Corrupt as error:
                if not isinstance(error, (NotSigned, GenerationMissing)):
                    raise
                if not self._is_damage(error):
                    raise  # newer keys would read it
                self._unsigned[number] = error
            else:
                self.files.keep_only(("state",), (name,))
                return self._last_state
        for problem in self._unsigned.values():
            raise problem
        raise Corrupt(
            "The remote has no state: it was emptied, or it is another one", path=_NO_STATE
        )

    def _decoded(self, name: str, meaning: _Meaning) -> Any:
        """Returns what a file says; raises _FileGone, Corrupt, and UnsupportedFormat."""
        try:
            content = self.files.read(name, lambda file: meaning(file, name))
        except NewerVersion:
            raise
        except UnsupportedFormat as error:  # of a file that is not whole
            raise Corrupt(error.message, code=ErrorCode.REMOTE_DAMAGED, path=name) from error
        except Corrupt as error:
            if error.path is None:
                error.path = name
            raise
        if content is None:
            raise _FileGone(name)
        return content

    def _is_damage(self, error: Corrupt) -> bool:
        """Tells whether a file is damaged, rather than encrypted with keys that are newer."""
        return not isinstance(error, GenerationMissing) or not self._are_keys_known(
            error.generation
        )

    def read(
        self,
        own: Mapping[RemoteName, RemoteCommit] | None = None,
        *,
        skips_damaged: bool = False,
    ) -> View:
        """Returns what counts. With ``own`` commits, which were acknowledged, lists no others.

        Reads each commit and each part once in its life. Raises RemoteFailed, and Corrupt; with
        ``skips_damaged`` a damaged file does not keep others from being read, and the caller says
        what is in :attr:`View.damaged` and :attr:`View.lacks`.
        """
        lacks: dict[str, Corrupt] = {}
        view = self._read_without(own, lacks, skips_damaged=skips_damaged)
        while own is None and view.has_state and view.contradicting(view.heads):
            newer = self._read_without(own, lacks, skips_damaged=skips_damaged)
            found = newer.contradicting(view.heads)
            view = replace(newer, contradictions=found)
            if found:
                break
        if not skips_damaged:
            view.require_whole()
            if view.damaged:
                raise next(iter(view.damaged.values()))
        return view

    def _was_overtaken(self, number: int) -> bool:
        """Tells whether what seemed to be missing may have been swept meanwhile."""
        missing = [name for name in self.files.mended if name.startswith(_MAY_LACK)]
        if not missing or self.read_state()[0] == number:
            return False
        for name in missing:
            del self.files.mended[name]
        return True

    def _read_without(
        self,
        own: Mapping[RemoteName, RemoteCommit] | None,
        lacks: dict[str, Corrupt],
        *,
        skips_damaged: bool,
    ) -> View:
        """Reads, and goes on without what readers can go on without; adds that to ``lacks``."""
        while True:
            try:
                view = self._checked(lambda: self._read_once(own, lacks))
                if not view.has_state or not self._was_overtaken(view.number):
                    return view
            except Corrupt as error:
                where = error.path if isinstance(error.path, str) else ""
                if (
                    not skips_damaged
                    or where in lacks
                    or not where.startswith(_MAY_LACK)
                    or not self._is_damage(error)
                ):
                    raise
                lacks[where] = error

    def _state_for_readers(self, lacks: Mapping[str, Corrupt]) -> tuple[int, RemoteState]:
        """Returns the state; where it cannot be read, one for readers alone.

        That names all parts that are listed, and lets every commit count: it may show what was
        deleted, or never acknowledged, and hides nothing.
        """
        if not any(name.startswith(_STATES) for name in lacks):
            return self.read_state()
        parts = {folder: self.names(folder) for folder in (Folder.INDEX, Folder.CATALOG)}
        others = (self.names(folder) for folder in (Folder.COMMITS, Folder.PACKS))
        if not any(parts.values()) and not any(others):
            raise next(iter(lacks.values()))  # there is nothing else either
        return -1, RemoteState(
            index_parts=tuple(parts[Folder.INDEX]), catalog_parts=tuple(parts[Folder.CATALOG])
        )

    def unlisted_packs(self, view: View, floor: int = 0) -> tuple[IndexedPacks, ...]:
        """Returns what is in the packs that nothing readable lists, from an epoch on; reads all of
        each, once.

        Of a pack that is damaged, it is what lies in whole blocks.
        """
        parts = []
        for name in self.names(Folder.PACKS):
            if name.number >= floor and name not in view.sizes:
                if name not in self._unlisted:
                    content, tables = self._whole_blocks(name)
                    part = IndexedPacks.of_pack(name, tables, len(content)) if tables else None
                    self._unlisted[name] = part
                    self.origins.update(_origins(tables, content))
                if (part := self._unlisted[name]) is not None:
                    parts.append(part)
        return tuple(parts)

    def _whole_blocks(self, name: RemoteName) -> tuple[bytes, list[BlockTable]]:
        """Returns a pack, and its blocks that are whole; the end of a pack lists all of them.

        Its tables lie between contents, so that to read ranges of it alone takes a request for
        each block, or all bytes.
        """
        with suppress(Corrupt, UnsupportedFormat):
            damaged_file = self.files.get_damaged(str(name))
            if damaged_file is not None:
                content, bad = damaged_file
                tables = {table.block.offset: table for table in scan_blocks(content, name.key)}
                with suppress(Corrupt):
                    for offset in decode_footer(content, str(name)):
                        if offset not in tables:
                            here = islice(scan_blocks(content, name.key, offset), 1)
                            tables |= {table.block.offset: table for table in here}
                whole = (table for _, table in sorted(tables.items()))
                return content, [table for table in whole if _is_whole(table, content, bad)]
        return b"", []

    def _read_once(
        self, own: Mapping[RemoteName, RemoteCommit] | None, lacks: Mapping[str, Corrupt]
    ) -> View:
        names = self.names(Folder.COMMITS) if own is None else list(own)
        number, state = self._state_for_readers(lacks)
        catalog_parts = [name for name in state.catalog_parts if str(name) not in lacks]
        catalog = {entry.name.key: entry for part in self._all(catalog_parts) for entry in part}
        index_parts = [name for name in state.index_parts if str(name) not in lacks]
        index = tuple(self._all(index_parts))
        removed = frozenset(state.removed)

        counted = [
            name
            for name in names
            if name.number >= state.floor and name.key not in catalog and name.key not in removed
        ]
        self.files.meet(frozenset(name.machine for name in counted if name not in self._known))
        commits: dict[RemoteName, tuple[RemoteCommit, IndexedPacks]] = {}
        heads: dict[RemoteName, Head] = {}
        damaged: dict[RemoteName, Corrupt] = {}
        recovered: dict[RemoteName, Corrupt] = {}
        packs = {key for part in index for key in part.packs}
        for name in counted:
            try:
                with damage_of_remote():
                    if own is None:
                        ((commit, head),) = self._all([name])
                        if name.key not in self._accepted:
                            heads[name] = head
                    else:
                        commit = own[name]
                    part = IndexedPacks(commit.packs, commit.rows, str(name))
                    if problem := _problem_of(name, commit):
                        raise Corrupt(
                            f"{name} {problem}", code=ErrorCode.REMOTE_DAMAGED, path=str(name)
                        )
            except Corrupt as error:
                if not self._is_damage(error):
                    raise  # newer keys would read it
                heads.pop(name, None)
                damaged[name] = error
            else:
                commits[name] = commit, part
                packs.update(part.packs)
        for name in list(damaged):  # after the others, which their packs belong to
            if (from_packs := self._recovered(name, packs)) is not None:
                commits[name] = from_packs
                recovered[name] = damaged.pop(name)
        needed = {*state.catalog_parts, *state.index_parts, *counted}
        self._forget_others(needed)
        if own is None:
            folders = (Folder.COMMITS, Folder.INDEX, Folder.CATALOG)
            bad = damaged.keys() | recovered.keys()
            self.files.keep_only(folders, list(map(str, needed - bad)))
        unsigned = {state_name(item): error for item, error in self._unsigned.items()}
        view = View(
            number, state, catalog, index, commits, damaged, recovered, dict(lacks), heads, unsigned
        )
        if number < 0:
            return replace(view, index=(*index, *self.unlisted_packs(view)))
        if len(index_parts) < len(state.index_parts):
            view = replace(view, index=(*index, *self.unlisted_packs(view)))
        return view

    def _recovered(
        self, name: RemoteName, listed: Collection[bytes]
    ) -> tuple[RemoteCommit, IndexedPacks] | None:
        """Returns what a damaged commit was, as its packs say it, or None where they do not.

        None too where others list these packs. Without what its machine signed there, it was a
        partial one. Costs a list, and reads all of the packs.
        """
        if name in self._from_packs:
            return self._from_packs[name]
        names = _names(self.files.list(name.packs)) if self.files.is_member(name.machine) else []
        if not names or any(pack.key in listed for pack in names):
            return None
        tables: dict[RemoteName, tuple[int, Sequence[BlockTable]]] = {}
        statement = OriginStatement(name.machine, name.number, name.sequence, _NO_HISTORY, ())
        identity = b""
        for pack in names:
            try:
                content = self.files.get(str(pack))
            except Corrupt:
                return None
            if content is None:
                raise _FileGone(str(pack))
            tables[pack] = len(content), list(scan_blocks(content, pack.key))
            for found_id, data in _origins(tables[pack][1], content):
                said = self.statement_of(data)
                if said is not None and said[:3] == statement[:3]:
                    statement, identity = said, found_id
        rows = encode_index(
            sorted(
                entry for _, each in tables.values() for table in each for entry in table.entries
            ),
            {pack.key: size for pack, (size, _) in tables.items()},
        )
        commit = RemoteCommit(
            statement.history, statement.snapshots, tuple(tables), bytes(rows), identity
        )
        part = IndexedPacks(commit.packs, commit.rows, str(name))
        self._from_packs[name] = commit, part
        return commit, part

    def statement_of(self, origin: bytes) -> OriginStatement | None:
        """Returns what a machine signed of a commit, or None where it did not."""
        signed = self._signed_origin(origin)
        return signed[0] if signed is not None else None

    def _signed_origin(self, origin: bytes) -> tuple[OriginStatement, bytes] | None:
        """Returns the same with the key of the machine."""
        with suppress(Corrupt, UnsupportedFormat):
            signed = ORIGIN.decode(origin)
            statement = ORIGIN_STATEMENT.decode(signed.statement)
            is_own = statement.history.is_of(statement.machine)
            if is_own and self.files.is_signed(
                statement.machine, signed.key, signed.signature, signed.statement
            ):
                return statement, signed.key
        return None

    def keys_in_packs(self) -> frozenset[bytes]:
        """Returns the public keys of the machines that names of files show, as far as packs have
        them; reads packs until all are found.

        Only who can encrypt packs can have put them there.
        """
        folders = (Folder.PACKS, Folder.COMMITS, Folder.DELETIONS)
        packs, *others = (self.names(folder) for folder in folders)
        machines = {name.machine for names in (packs, *others) for name in names}
        keys: dict[bytes, bytes] = {}
        packs.sort(key=lambda name: not name.sequence)  # those of collections have older ones
        for name in packs:
            if name.sequence and name.machine in keys:
                continue
            if machines <= keys.keys():
                break
            content, tables = self._whole_blocks(name)
            for _, data in _origins(tables, content):
                if (signed := self._signed_origin(data)) is not None:
                    keys[signed[0].machine] = signed[1]
        return frozenset(keys.values())

    def settled(self, what: str, view: View, read: Callable[[View], _Result]) -> _Result:
        """Returns what is read with a view, or with a newer one while collections go on.

        They delete only what no newer state names. So ``read`` is called again with a new view when
        it raises Missing; what is missing again is damage, and raises Corrupt. It must take all
        from that view, the snapshots too: what the older one showed may be deleted. Raises Busy
        when collections kept overtaking ``what``.
        """
        for _ in range(_VIEWS_MAX):
            try:
                return read(view)
            except Missing as error:
                if error.names <= view.absent:
                    raise error.as_damage() from error
                newer = self.read(skips_damaged=True)
                view = replace(newer, absent=view.absent | error.names)
        raise Busy(f"Collections on the remote kept overtaking {what}")

    def read_deletions(self, *, skips_damaged: bool = False) -> Deletions:
        """Returns the deletions that are listed. Costs a list, and a request for each new one.

        Raises RemoteFailed, and Corrupt; with ``skips_damaged`` a damaged deletion does not keep
        others from being read, and the caller says what is in :attr:`Deletions.damaged`.
        """
        deletions = self._checked(self._read_deletions_once)
        if deletions.damaged and not skips_damaged:
            raise next(iter(deletions.damaged.values()))
        return deletions

    def _read_deletions_once(self) -> Deletions:
        listed: dict[RemoteName, Deletion] = {}
        damaged: dict[RemoteName, Corrupt] = {}
        names = [name for name in self.names(Folder.DELETIONS) if self._may_delete(name.machine)]
        self.files.meet(frozenset(name.machine for name in names if name not in self._known))
        for name in names:
            try:
                (listed[name],) = self._all([name])
            except Corrupt as error:
                if not self._is_damage(error):
                    raise  # newer keys would read it
                damaged[name] = error
        self.files.keep_only((Folder.DELETIONS,), list(map(str, listed)))
        return Deletions(listed, damaged)

    def _may_delete(self, machine: bytes) -> bool:
        state = self._last_state
        return state is None or state[1].allows(machine, MemberRole.COLLECTOR)

    def catalog_parts(self, view: View) -> dict[RemoteName, tuple[CommitEntry, ...]]:
        """Returns the parts that the catalog of a view was read from."""
        return {name: self._known[name] for name in view.state.catalog_parts}

    def names(self, folder: Folder) -> list[RemoteName]:
        """Returns the names of a folder, others left out. Costs a list."""
        return _names(self.files.list(f"{folder}/"))

    def _all(self, names: Iterable[RemoteName]) -> list[Any]:
        """Returns what files say that never change; raises Corrupt."""
        contents = []
        for name in names:
            if name not in self._known:
                self._known[name] = self._decoded(str(name), _MEANINGS[name.folder])
            contents.append(self._known[name])
        return contents

    def _forget_others(self, names: Collection[RemoteName]) -> None:
        for name in self._known.keys() - names:
            del self._known[name]
        for name in self._from_packs.keys() - names:
            del self._from_packs[name]

    def is_acknowledged(self, commit: RemoteName) -> bool:
        """Returns whether a stored commit counts from now on.

        While a collector decides, reads the state as often as ``wait`` allows. That collector may
        be dead, and the next one days away; so a commit that is not decided is given up.
        """
        count_read = 0
        while True:
            _, state = self.read_state()
            may_push = state.allows(commit.machine, MemberRole.MEMBER)
            if state.closing <= commit.number and may_push:
                return True
            with suppress(_FileGone), damage_of_remote():  # the next state has it
                parts = self._all(state.catalog_parts)
                if any(entry.name == commit for part in parts for entry in part):
                    return True
            if commit.number < state.floor or not self._wait(count_read := count_read + 1):
                return False

    # Writing

    def create_state(self, number: int, state: RemoteState) -> bool:
        """Writes the state with a number; returns whether it is the one that holds.

        False when another collector wrote it, or has gone on since. Raises RemoteFailed.
        """
        if not state.allows(self.files.own_id, MemberRole.COLLECTOR):
            raise not_allowed("an owner revoked it, or let it push alone")
        name = state_name(number)
        state = state._replace(token=os.urandom(FILE_ID_SIZE))
        content = REMOTE_STATE.seal(state)
        for attempt in count(1):
            try:
                if self.files.create(name, content):
                    break
            except RemoteFailed as error:
                if not error.is_unclear or attempt >= CREATE_ATTEMPTS:
                    raise
                is_refused = False
            else:
                is_refused = True
            try:
                stored = self.files.get(name)
            except NotSigned:
                return False
            if stored is not None:
                if REMOTE_STATE.unseal(stored, name) != state:
                    return False  # not by the token alone, which repeats where randomness does
                break
            if is_refused:
                return False  # it was there, and was swept: others have gone on
        self._last_state = number, state
        return self.read_state()[0] == number


def _is_whole(table: BlockTable, content: bytes, bad: Sequence[tuple[int, int]] | None) -> bool:
    """Tells whether a block in a pack is, of which some parts are ``bad``, or it is not known."""
    start, end = table.block.offset, table.end
    if bad is not None:
        return not any(first < end and start < last for first, last in bad)
    with suppress(Corrupt):
        verified_objects(table, content[start:end])
        return True
    return False


def _names(texts: Iterable[str]) -> list[RemoteName]:
    return [name for text in texts if (name := RemoteName.parse(text)) is not None]


def _found(read: Callable[[], _Result]) -> _Result:
    """Returns what is read, again while collections take away what they made superfluous.

    What they take away is listed no longer, and the state that follows does not name it. So what
    is named again and again and is not there is lost; raises Corrupt.
    """
    gone = Counter[str]()
    while True:
        try:
            return read()
        except _FileGone as error:
            gone[error.name] += 1
            if gone[error.name] >= _LOOKS_MAX:
                raise Corrupt(
                    f"Remote file {error.name!r} is missing, and the remote says that it is there",
                    code=ErrorCode.REMOTE_DAMAGED,
                    path=error.name,
                ) from None


def _problem_of(name: RemoteName, commit: RemoteCommit) -> str | None:
    """Returns which rule a commit breaks, or None.

    What a collection knows nothing of is swept, and what it knows of a pack, the first says that
    lists it. So a commit lists packs of its own number alone. A second one with that number is of
    a copy of its machine, or of its thief. Nor is a snapshot in a history that its machine did not
    push.
    """
    if any(str(pack) != f"{name.packs}{pack.id.hex()}" for pack in commit.packs):
        return "lists packs of another commit"
    if commit.snapshots and not commit.history.is_of(name.machine):
        return "holds snapshots of a history of another machine"
    return None


def _content_of(format_: Format[Any]) -> _Meaning:
    return lambda file, where: format_.unseal(file.content, where)


def _indexed(file: SignedFile, where: str) -> IndexedPacks:
    part = REMOTE_INDEX.unseal(file.content, where)
    return IndexedPacks(part.packs, part.rows, where)


def _whole_commit(file: SignedFile, where: str) -> tuple[RemoteCommit, Head]:
    """Returns a commit, and what its writer had seen.

    Raises Corrupt also where a snapshot in it is none.

    Else that would stop each command that looks at the snapshots of others.
    """
    commit = COMMIT.unseal(file.content, where)
    for payload in commit.snapshots:
        try:
            with suppress(UnsupportedFormat):  # said where the snapshot is read
                decode_snapshot(payload)
        except Corrupt as error:
            raise Corrupt(
                f"{where} holds something that is not a snapshot: {error}",
                code=ErrorCode.REMOTE_DAMAGED,
                path=where,
            ) from error
    return commit, HEAD.decode(file.statement)


_MEANINGS: Mapping[Folder, _Meaning] = {
    Folder.COMMITS: _whole_commit,
    Folder.DELETIONS: _content_of(DELETION),
    Folder.CATALOG: _content_of(CATALOG),
    Folder.INDEX: _indexed,
}
"""What reads a file of each folder that is read whole."""


def check_whole(file: SignedFile, where: str) -> None:
    """Raises Corrupt or UnsupportedFormat for a state, or a file that never changes, that is not
    what its writer made.
    """
    name = RemoteName.parse(where)
    meaning = _content_of(REMOTE_STATE) if name is None else _MEANINGS[name.folder]
    meaning(file, where)


_PLACE_SIZE = 4
"""Bytes that the end of a pack has for each block."""


def _is_origin(table: BlockTable) -> bool:
    return table.rows[-1] == ObjectKind.SNAPSHOT


def _origins(tables: Iterable[BlockTable], content: bytes) -> Iterator[tuple[ObjectId, bytes]]:
    """Yields the origins in a pack, as far as they can be read."""
    for table in filter(_is_origin, tables):
        opened = OpenBlock(table, content[table.block.offset : table.end])
        for entry in table.entries:
            with suppress(Corrupt):
                yield entry.id, opened.find(entry)


class Uploaded(Record):
    """What a push stored, in all its attempts, but for what says of packs which they are of."""

    objects: int = 0
    packs: int = 0
    size_bytes: int = 0
    commits: tuple[RemoteName, ...] = ()
    """Its commits that were acknowledged."""


class Push:
    """The packs and commits of one push, in as many attempts as it takes.

    :meth:`begin` comes first, and again after an attempt that is void. Use as a context manager:
    so many packs as ``jobs`` says are sent at the same time, and the end waits for them.
    """

    def __init__(self, remote: Remote, history: HistoryName, jobs: int = 1) -> None:
        self._remote = remote
        self._history = history
        self._jobs = jobs
        self._threads = ThreadPoolExecutor(jobs, "treesnap-push") if jobs > 1 else None
        self._sending: deque[tuple[Future[RemoteName], list[BlockTable], int]] = deque()
        """Packs of which it is not known yet whether they are stored."""
        self.own: dict[RemoteName, RemoteCommit] = {}
        """The commits of this push that were acknowledged."""
        self.view: View
        self._seen: tuple[HeadName, ...] = ()
        """The newest certain commits when everything was read, and those of this push."""
        self.stored: Uploaded = Uploaded()
        self.uncommitted_objects: int = 0
        """How many objects the next commit lists."""
        self._number: tuple[bytes, int, tuple[Span, ...]] | None = None
        """What the next commit is called, once something was stored for it."""
        self._origin = b""
        self._packs: list[RemoteName] = []
        self._tables: list[tuple[bytes, Sequence[BlockTable]]] = []
        """What lies in the packs with these ids."""
        self._covered: dict[bytes, int] = {}

    def begin(
        self,
        own: Mapping[RemoteName, RemoteCommit] | None = None,
        view: View | None = None,
    ) -> View:
        """Returns what counts now; what is stored from now on carries its epoch.

        A ``view`` that was read just before is taken as it is.
        """
        self._forget()
        self.view = view if view is not None else self._remote.read(own, skips_damaged=True)
        self.view.require_whole()
        if not self.view.state.allows(self._remote.files.own_id, MemberRole.MEMBER):
            raise not_allowed("an owner revoked it")
        if own is None:
            self._seen = newest_heads((*self._seen, *self.view.certain_heads))
        return self.view

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # else its threads may wait for a server for minutes
            self._remote.files.give_up()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def add_pack(self, blocks: Iterable[Encoded], snapshots: Sequence[bytes] = ()) -> None:
        """Stores a pack; with several jobs, it is stored when :meth:`commit` was called.

        With ``snapshots`` it also says that the commit holds these.
        """
        _, sequence, _ = self._numbers()
        self._wait(self._jobs - 1)  # before there is one more in memory
        content, tables = encode_pack(chain(blocks, self._said(snapshots)))
        self.uncommitted_objects += sum(table.object_count for table in tables)
        put, epoch, size_bytes = self._remote.files.put, self.view.state.epoch, len(content)
        held = [content]
        del content  # sealed, it is there a second time

        def send() -> RemoteName:
            return put(Folder.PACKS, epoch, held.pop(), b"", sequence)

        if self._threads is None:
            self._note(send(), tables, size_bytes)
            return
        self._sending.append((self._threads.submit(send), tables, size_bytes))

    def _forget(self) -> None:
        """Begins with what the next commit holds."""
        self._packs, self._tables, self._covered = [], [], {}
        self._number, self._origin = None, b""
        self.uncommitted_objects = 0

    def _numbers(self) -> tuple[bytes, int, tuple[Span, ...]]:
        if self._number is None:
            self._number = self._remote.files.next_sequence()
        return self._number

    def _said(self, snapshots: Sequence[bytes]) -> list[Encoded]:
        """Returns what the next commit holds, if it holds something, in a block of its own."""
        if not snapshots:
            return []
        machine, sequence, _ = self._numbers()
        epoch = self.view.state.epoch
        statement = ORIGIN_STATEMENT.payload(
            OriginStatement(machine, epoch, sequence, self._history, tuple(snapshots))
        )
        data = ORIGIN.payload(CommitOrigin(statement, *self._remote.files.sign(statement)))
        identity = object_id(ObjectKind.SNAPSHOT, data)
        self._origin = identity
        return [encode_objects([(ObjectKind.SNAPSHOT, identity, data)])]

    def _wait(self, sending_max: int) -> None:
        """Waits until no more packs than that are being sent."""
        while len(self._sending) > sending_max:
            sent, tables, size_bytes = self._sending.popleft()
            self._note(sent.result(), tables, size_bytes)

    def _note(self, name: RemoteName, tables: Sequence[BlockTable], size_bytes: int) -> None:
        self._packs.append(name)
        self._covered[name.key] = size_bytes
        self._tables.append((name.key, tables))
        before, needed = self.stored, [table for table in tables if not _is_origin(table)]
        for table in tables[len(needed) :]:
            size_bytes -= table.block.size + _PLACE_SIZE
        self.stored = before._replace(
            objects=before.objects + sum(table.object_count for table in needed),
            packs=before.packs + (1 if needed else 0),
            size_bytes=before.size_bytes + (size_bytes if needed else 0),
        )

    def commit(self, snapshots: Iterable[bytes] = ()) -> bool:
        """Publishes what was stored since the last commit; without snapshots, as a partial one.

        Returns whether it counts. If it does not, the push begins again.
        """
        snapshots = tuple(snapshots)
        if snapshots and not self._origin:
            self.add_pack((), snapshots)
        self._wait(0)
        machine, sequence, unsettled = self._numbers()
        origin = self._origin if snapshots else b""
        entries = (entry for pack_id, tables in self._tables for entry in placed(tables, pack_id))
        rows = bytes(encode_unsorted(entries, self._covered))
        commit = RemoteCommit(self._history, snapshots, tuple(self._packs), rows, origin)
        self._forget()
        state = self.view.state
        folded = {item.machine: item.sequence for item in state.heads}
        own_folded = folded.get(machine, 0)
        head = Head(
            self.view.number,
            state_hash(state),
            tuple(item for item in self._seen if item.sequence > folded.get(item.machine, 0)),
            tuple((max(a, own_folded + 1), b) for a, b in unsettled if b > own_folded),
        )
        name = self._remote.files.put(
            Folder.COMMITS,
            state.epoch,
            COMMIT.seal(commit),
            HEAD.payload(head),
            sequence,
        )
        if not self._remote.is_acknowledged(name):
            return False
        self.own[name] = commit
        self._remote.files.settle(sequence, own_folded)
        self._seen = newest_heads((*self._seen, name.head))
        self.stored = self.stored._replace(commits=(*self.stored.commits, name))
        return True
