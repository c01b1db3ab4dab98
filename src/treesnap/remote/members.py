"""Which machines' commits, deletions and states count on a remote, by their roles.

    members/<n>   the public keys and roles of all machines, signed by the owner; the highest counts

    writer        delivers to the inbox, and nothing else that it signs counts
    member        pushes as itself: its commits count
    collector     also its deletions, of what any machine pushed, and its states
    owner         also changes the list, and with it the keys

Every machine has a key of its own for each remote, which never leaves its store. A process that
opens a key slot with a secret is an owner, and enrols its machine by itself when it first writes
something: it creates the next list. Other machines are invited: they have the keys that read, and
not the key that signs lists. A list is one of the newest key generation that its reader can open,
so an owner whose secret was shut out can enrol no machine. What is not such a list counts for
nothing, and nor does what a machine signs that its role does not allow.

A list is read where a machine is met that the one at hand does not have, and with each state that
is new: the one who revokes a machine creates a state after the list. Others that know more machines
name files that are then not readable here, and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Protocol

from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    GenerationMissing,
    UnsupportedFormat,
)
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.blobs.base import BlobMissing
from treesnap.remote.cache import FileCache
from treesnap.remote.copies import Doubled
from treesnap.remote.keys import Signer, damaged, not_allowed, signer_id
from treesnap.remote.records import (
    FILE_ID_SIZE,
    MEMBERS,
    MEMBERS_SIZE_MAX,
    NUMBER_MAX,
    MemberList,
    MemberRole,
    MemberRow,
    NotSigned,
    Span,
    file_number,
    members_name,
)
from treesnap.remote.sealing import Sealer

_FOLDER = "members"
_LOOKED_AT_MAX = 1000
"""So many files are read to find a list that the owner signed."""
_ENROLS_MAX = 20
"""How often a list is created that other machines were faster with."""


class Machine(Protocol):
    """What one store is on a remote. Used by several processes at once."""

    def seed(self) -> bytes:
        """Returns the 32 bytes that its key follows from; made at the first call, durably."""

    def next_sequence(self) -> tuple[int, tuple[Span, ...]]:
        """Returns the number of its next commit, which no other one ever gets, and those of earlier
        ones of which it is not known whether they count; durable.
        """

    def settle(self, sequence: int, folded: int) -> None:
        """Takes note that a commit counts, and does not matter up to the ``folded`` one."""

    def is_invited(self) -> bool:
        """Tells whether an owner put it on the list, rather than itself."""


class MemberChain(NamedTuple):
    """What all lists of a remote are together."""

    machines: int
    """How many are on the newest one."""
    writers: int
    faults: tuple[str, ...]
    """What is not as machines make it, in words."""


class Members:
    """The machines of one remote, and this one among them."""

    def __init__(
        self,
        blobs: Doubled,
        sealer: Sealer,
        machine: Machine | None = None,
        cache: FileCache | None = None,
        are_keys_known: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Without a ``machine`` nothing can be signed.

        ``are_keys_known`` tells whether the remote has keys of a newer generation: if not, lists of
        these are left of a rotation that was stopped.
        """
        self._blobs = blobs
        self._sealer = sealer
        self._machine = machine
        self._cache = cache
        self._are_keys_known = are_keys_known
        self._members: dict[bytes, MemberRow] = {}
        """All on the list, by their ids."""
        self._hash = bytes(FILE_ID_SIZE)
        """Of the list that they are from."""
        self._number = -1
        """That of the list that counts."""
        self._taken: frozenset[int] = frozenset()
        """Numbers of all lists that there are, whatever they say."""
        self._newer: GenerationMissing | None = None
        """Of a list of newer keys than are at hand."""
        self._is_read = False
        """Whether a list is at hand, be it one that was kept."""
        self._is_current = False
        self.behind: Corrupt | None = None
        """Why the owner's newest list could not be read: the one that counts is an older one."""

    def key_of(self, identity: bytes, least: MemberRole = MemberRole.MEMBER) -> bytes | None:
        """Returns the public key of a machine that was met, or None for one that has not at least
        this role.
        """
        member = self._found(identity)
        return member.key if member is not None and member.role >= least else None

    def role_of(self, identity: bytes) -> MemberRole | None:
        """Returns the role of a machine that was met, or None for a stranger."""
        member = self._found(identity)
        return MemberRole(member.role) if member is not None else None

    def _found(self, identity: bytes) -> MemberRow | None:
        if not self._is_read:
            self._take_kept()
        return self._members.get(identity)

    def meet(self, identities: Iterable[bytes]) -> None:
        """Finds out who some machines are; costs requests where one is not known.

        Raises Corrupt where there are lists and none can be read, and RemoteFailed.
        """
        if any(self._found(item) is None for item in identities):
            self.read()

    def look(self) -> None:
        """Reads the newest list if there is a newer one; raises what :meth:`meet` does."""
        self._found(b"")
        if self._number < 0 or not self.is_newest(self._number):
            self.read()

    def read(self) -> None:
        """Reads the newest list; raises what :meth:`meet` does."""
        sizes = self._listed()
        self._is_current, self._newer, self.behind = True, None, None
        self._taken = frozenset(sizes)
        if not sizes:
            self._number = -1  # what was kept is on the server no more
        failure: Corrupt | None = None
        for number in sorted(sizes, reverse=True)[:_LOOKED_AT_MAX]:
            name = members_name(number)
            if sizes[number] > MEMBERS_SIZE_MAX:
                failure = failure or damaged(name, "is too large for a list of members")
                continue
            try:
                data = self._blobs.read(
                    name, partial(self._take, name), MEMBERS_SIZE_MAX, partial(self._kept, name)
                )
            except BlobMissing:
                continue
            except GenerationMissing as error:
                self._newer = self._newer or error
            except Corrupt as error:
                failure = failure or error
                if not isinstance(error, NotSigned):
                    self.behind = self.behind or error
            else:
                self._number = number
                if self._cache is not None:
                    self._cache.keep_only((_FOLDER,), ())
                    self._cache.put(name, data)
                return
        if failure is not None:
            raise failure

    @property
    def number(self) -> int | None:
        """That of the list that counts, or None where none was needed."""
        return self._number if self._number >= 0 else None

    @property
    def is_behind(self) -> bool:
        """Tells whether no list was read, or an older one than the owner's newest."""
        return self._number < 0 or self.behind is not None

    @property
    def own_id(self) -> bytes:
        """What this machine is called, whether or not it is a member."""
        return self._sealer.signer(self.machine.seed()).id

    def signer(self, least: MemberRole = MemberRole.MEMBER) -> Signer:
        """Returns what signs as this machine, which has the role from then on, durably.

        Raises RemoteFailed, Corrupt, GenerationMissing where the secret was shut out, and Refused
        for an invited machine that is on the list no more, or has a lower role.
        """
        signer = self._sealer.signer(self.machine.seed())
        is_invited = self.machine.is_invited()
        for _ in range(_ENROLS_MAX):
            role = self.role_of(signer.id)
            if role is not None and role >= (least if is_invited else MemberRole.OWNER):
                return signer
            if self._is_current and is_invited:
                if role is None:
                    raise not_allowed("an owner revoked it, or a copy of it made it another one")
                raise not_allowed(f"it is a {role.words}, and only a {least.words} may do so")
            if self._is_current:
                self._require_newest_keys()
                own = MemberRow(signer.public, MemberRole.OWNER)
                self._write(self._sealer, {**self._members, signer.id: own})
            self.read()  # where two can create one list, it may be that of another machine
        raise Corrupt(
            "This machine does not become a member of the remote",
            code=ErrorCode.REMOTE_DAMAGED,
            path=_FOLDER,
        )

    def may(self, least: MemberRole) -> bool:
        """Tells whether this machine has a role, as far as was found out; an owner takes it."""
        if self._machine is None or not self._machine.is_invited():
            return True
        return (self.role_of(self.own_id) or MemberRole.WRITER) >= least

    def rotate(self, sealer: Sealer, without: Container[bytes] = ()) -> int | None:
        """Creates a list of the same machines with newer keys, but for some; returns its number.

        Writers are left out: what they deliver is encrypted with the older keys. None where another
        machine created a list meanwhile, or has newer keys. Raises what :meth:`signer` does.
        """
        self.read()
        self._require_newest_keys()
        number = self._next_number()
        kept = {
            identity: item
            for identity, item in self._members.items()
            if item.role != MemberRole.WRITER and identity not in without
        }
        is_done = self._write(sealer, kept)
        return number if is_done and not self._are_keys_known(sealer.generation) else None

    def rebuild(self, keys: Iterable[bytes], seen: int) -> bool:
        """Creates a list of machines whose keys were found elsewhere, and of those on the newest
        list that can be read, without writers; returns whether this machine did.

        Machines that are on none are members: owners make themselves that again. Its number is
        above ``seen`` and all that machines came to by counting. Raises RemoteFailed.
        """
        counted = (number for number in self._taken if number <= NUMBER_MAX // 2)
        number = max(self._number, seen, *counted, -1) + 1
        added = {signer_id(key): MemberRow(key, MemberRole.MEMBER) for key in keys}
        listed = {k: item for k, item in self._members.items() if item.role != MemberRole.WRITER}
        is_done = self._write(self._sealer, added | listed, number)
        self.read()
        return is_done

    def chain(self) -> MemberChain:
        """Reads all lists, each of which has a hash of the one before; costs a request for each.

        Where two were made at once, or one was replaced, the next one does not follow. Raises
        RemoteFailed.
        """
        listed = self._listed()
        faults: list[str] = []
        machines = writers = 0
        previous: bytes | None = bytes(FILE_ID_SIZE) if len(listed) <= _LOOKED_AT_MAX else None
        for number in sorted(listed)[-_LOOKED_AT_MAX:]:
            name = members_name(number)
            kept = partial(self._kept, name)
            try:
                if listed[number] > MEMBERS_SIZE_MAX:
                    raise NotSigned.of(name, "is too large for a list of members")
                data = self._blobs.read(
                    name, partial(self._authentic, name), MEMBERS_SIZE_MAX, kept
                )
            except (BlobMissing, GenerationMissing):
                previous = None
            except NotSigned as error:
                faults.append(f"{error.message}, and counts for nothing")
            except Corrupt as error:
                faults.append(error.message)
                previous = None
            else:
                record = self._decoded(name, data, self._sealer.owners)
                if previous is not None and record.previous != previous:
                    faults.append(
                        f"The list of machines {name!r} does not follow from the one before: two "
                        "were made at once, one was replaced, or it was made anew"
                    )
                previous = checksum(data, FILE_ID_SIZE)
                writers = sum(item.role == MemberRole.WRITER for item in record.members)
                machines = len(record.members) - writers
        return MemberChain(machines, writers, tuple(faults))

    def _authentic(self, name: str, data: bytes) -> bytes:
        """Returns a list as it is stored; raises Corrupt where no owner ever signed it."""
        self._decoded(name, data, self._sealer.owners)
        return data

    @property
    def writer_count(self) -> int:
        """How many writers are on the list that was read last."""
        return sum(item.role == MemberRole.WRITER for item in self._members.values())

    @property
    def known(self) -> dict[bytes, MemberRow]:
        """All on the list that was read last, by their ids."""
        self._found(b"")
        return dict(self._members)

    def all(self) -> dict[bytes, MemberRow]:
        """Returns all on the newest list, by their ids."""
        self.read()
        return dict(self._members)

    def writers(self) -> dict[bytes, bytes]:
        """Returns the public keys of the writers by their ids, as the newest list has them."""
        listed = self.all().items()
        return {identity: item.key for identity, item in listed if item.role == MemberRole.WRITER}

    def change(self, change: Callable[[dict[bytes, MemberRow]], dict[bytes, MemberRow]]) -> None:
        """Changes the list, durably; raises what :meth:`signer` does.

        ``change`` is called again where another machine created a list meanwhile.
        """
        self.signer(MemberRole.OWNER)  # it has read the list: no machine is left out
        for _ in range(_ENROLS_MAX):
            self.read()
            self._require_newest_keys()
            changed = change(dict(self._members))
            if changed == self._members:
                return
            self._write(self._sealer, changed)
        raise Busy("Other machines kept changing the members of the remote")

    def is_newest(self, number: int) -> bool:
        """Tells whether no higher list was created since all were read."""
        return max(self._listed().keys() - self._taken, default=number) <= number

    def _listed(self) -> dict[int, int]:
        """Returns the sizes of all lists by their numbers."""
        blobs = self._blobs.list(f"{_FOLDER}/")
        numbers = ((file_number(blob.name), blob.size_bytes) for blob in blobs)
        return {number: size for number, size in numbers if number is not None}

    def _next_number(self) -> int:
        """Returns the next number that nothing has: junk may have any, up to the last one."""
        return next(number for number in count(self._number + 1) if number not in self._taken)

    def _require_newest_keys(self) -> None:
        if self._newer is not None and self._are_keys_known(self._newer.generation):
            raise self._newer

    def _write(
        self, sealer: Sealer, members: Mapping[bytes, MemberRow], number: int | None = None
    ) -> bool:
        """Creates the next list; returns whether this machine did. Raises RemoteFailed."""
        record = MemberList(self._hash, tuple(sorted(members.values())))
        name = members_name(self._next_number() if number is None else number)
        return self._blobs.create(name, sealer.sign(name, MEMBERS.seal(record), sealer.owner))

    @property
    def machine(self) -> Machine:
        """What this store is on the remote."""
        assert self._machine is not None, "nothing is written without a machine"
        return self._machine

    def _kept(self, name: str) -> bytes | None:
        return self._cache.get(name) if self._cache is not None else None

    def _take_kept(self) -> None:
        """Takes the list that was read last."""
        self._is_read = True
        for name in self._cache.names(_FOLDER) if self._cache is not None else ():
            data = self._kept(name)
            if data is not None:
                with suppress(Corrupt):  # of older keys
                    self._take(name, data)
                    self._number = file_number(name) or 0

    def check(self, name: str, data: bytes) -> None:
        """Raises Corrupt for what is not a list that the owner of the newest keys signed."""
        self._decoded(name, data)

    def _take(self, name: str, data: bytes) -> bytes:
        """Takes a list for the one that counts; returns it as it is stored."""
        record = self._decoded(name, data)
        self._members = {signer_id(item.key): item for item in record.members}
        self._hash = checksum(data, FILE_ID_SIZE)
        self._is_read = True
        return data

    def _decoded(
        self, name: str, data: bytes, owners: Mapping[bytes, bytes] | None = None
    ) -> MemberList:
        """Returns what a list says; without ``owners`` it has to be of the newest one."""
        if owners is None:
            public = self._sealer.owner_key.public
            owners = {signer_id(public): public}
        signed = self._sealer.open_signed(name, data, owners.get)
        try:
            return MEMBERS.unseal(signed.content, name)
        except UnsupportedFormat as error:
            raise Corrupt(error.message, code=ErrorCode.REMOTE_DAMAGED, path=name) from error
