"""Which machines' commits, deletions and states count on a remote.

    members/<n>   the public keys of all machines, signed by the owner; the highest one counts

Every machine has a key of its own for each remote, which never leaves its store. A process that
opens a key slot is an owner, and enrols its machine by itself when it first writes something: it
creates the next list. A list is one of the newest key generation that its reader can open, so an
owner whose secret was shut out can enrol no machine. What is not such a list counts for nothing.

The list has *writers* too, which an owner invited: they deliver to the inbox of the remote, and
what they sign counts nowhere else.

A list is read where a machine is met that the one at hand does not have. Others that know more
machines name files that are then not readable here, and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
from treesnap.remote.keys import KEY_SIZE, Signer, damaged, signer_id
from treesnap.remote.records import (
    FILE_ID_SIZE,
    MEMBERS,
    MEMBERS_SIZE_MAX,
    NUMBER_MAX,
    MemberList,
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
        self._keys: dict[bytes, bytes] = {}
        """Public keys by ids."""
        self._writers: dict[bytes, bytes] = {}
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

    def key_of(self, identity: bytes) -> bytes | None:
        """Returns the public key of a machine that was met, or None for a stranger."""
        if not self._is_read:
            self._take_kept()
        return self._keys.get(identity)

    def meet(self, identities: Iterable[bytes]) -> None:
        """Finds out who some machines are; costs requests where one is not known.

        Raises Corrupt where there are lists and none can be read, and RemoteFailed.
        """
        if any(self.key_of(item) is None for item in identities):
            self.read()

    def read(self) -> None:
        """Reads the newest list; raises what :meth:`meet` does."""
        found = self._listed()
        self._is_current, self._newer, self.behind = True, None, None
        self._taken = frozenset(found)
        failure: Corrupt | None = None
        for number in sorted(found, reverse=True)[:_LOOKED_AT_MAX]:
            name = members_name(number)
            if found[number] > MEMBERS_SIZE_MAX:
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

    def signer(self) -> Signer:
        """Returns what signs as this machine, which is a member from then on, durably.

        Raises RemoteFailed, GenerationMissing where the secret was shut out, and Corrupt.
        """
        signer = self._sealer.signer(self.machine.seed())
        for _ in range(_ENROLS_MAX):
            if self.key_of(signer.id) is not None:
                return signer
            if self._is_current:
                self._require_newest_keys()
                self._write(self._sealer, [*self._keys.values(), signer.public], self._writers)
            self.read()  # where two can create one list, it may be that of another machine
        raise Corrupt(
            "This machine does not become a member of the remote",
            code=ErrorCode.REMOTE_DAMAGED,
            path=_FOLDER,
        )

    def rotate(self, sealer: Sealer) -> int | None:
        """Creates a list of the same machines with newer keys; returns its number.

        Writers are left out: what they deliver is encrypted with the older keys. None where another
        machine created a list meanwhile, or has newer keys. Raises what :meth:`signer` does.
        """
        self.read()
        self._require_newest_keys()
        number = self._next_number()
        is_done = self._write(sealer, self._keys.values(), {})
        return number if is_done and not self._are_keys_known(sealer.generation) else None

    def rebuild(self, keys: Iterable[bytes], seen: int) -> bool:
        """Creates a list of machines whose keys were found elsewhere, and of those on the newest
        list that can be read, without writers; returns whether this machine did.

        Its number is above ``seen`` and all that machines came to by counting. Raises RemoteFailed.
        """
        counted = (number for number in self._taken if number <= NUMBER_MAX // 2)
        number = max(self._number, seen, *counted, -1) + 1
        is_done = self._write(self._sealer, {*self._keys.values(), *keys}, {}, number)
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
                machines, writers = (len(k) // KEY_SIZE for k in (record.keys, record.writers))
        return MemberChain(machines, writers, tuple(faults))

    def _authentic(self, name: str, data: bytes) -> bytes:
        """Returns a list as it is stored; raises Corrupt where no owner ever signed it."""
        self._decoded(name, data, self._sealer.owners)
        return data

    @property
    def writer_count(self) -> int:
        """How many writers are on the list that was read last."""
        return len(self._writers)

    def writers(self) -> dict[bytes, bytes]:
        """Returns the public keys of the writers by their ids, as the newest list has them."""
        self.read()
        return dict(self._writers)

    def change_writers(self, change: Callable[[dict[bytes, bytes]], dict[bytes, bytes]]) -> None:
        """Puts other writers on the list, durably; raises what :meth:`signer` does.

        ``change`` is called again where another machine created a list meanwhile.
        """
        self.signer()  # it has read the list: no machine is left out
        for _ in range(_ENROLS_MAX):
            self.read()
            self._require_newest_keys()
            wanted = change(dict(self._writers))
            if wanted == self._writers:
                return
            self._write(self._sealer, self._keys.values(), wanted)
        raise Busy("Other machines kept changing the members of the remote")

    def is_newest(self, number: int) -> bool:
        """Tells whether no higher list was created since all were read."""
        return max(self._listed().keys() - self._taken, default=number) == number

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
        self,
        sealer: Sealer,
        keys: Iterable[bytes],
        writers: Mapping[bytes, bytes],
        number: int | None = None,
    ) -> bool:
        """Creates the next list; returns whether this machine did. Raises RemoteFailed."""
        record = MemberList(self._hash, b"".join(sorted(keys)), b"".join(sorted(writers.values())))
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
        self._keys, self._writers = _by_id(record.keys), _by_id(record.writers)
        self._hash = checksum(data, FILE_ID_SIZE)
        self._is_read = True
        return data

    def _decoded(
        self, name: str, data: bytes, owners: Mapping[bytes, bytes] | None = None
    ) -> MemberList:
        """Returns what a list says; without ``owners`` it has to be of the newest one."""
        if owners is None:
            owners = {self._sealer.owner.id: self._sealer.owner.public}
        signed = self._sealer.open_signed(name, data, owners.get)
        try:
            return MEMBERS.unseal(signed.content, name)
        except UnsupportedFormat as error:
            raise Corrupt(error.message, code=ErrorCode.REMOTE_DAMAGED, path=name) from error


def _by_id(keys: bytes) -> dict[bytes, bytes]:
    parts = (keys[start : start + KEY_SIZE] for start in range(0, len(keys), KEY_SIZE))
    return {signer_id(key): key for key in parts}
