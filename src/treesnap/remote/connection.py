"""A remote that is open: its blobs, the keys that open its files, and its protocol.

A new remote is set up in this order: the key slot, ``format``, the first member, the first state.
A slot is bound to the remote's id, and ``format`` says which id holds. So of machines that set one
up at the same time one wins, and a slot that a killed or beaten one left opens nothing. Where the
state is missing and nothing else is there, the machine was killed before it: the next one that is
added writes it.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Protocol, Self
from urllib.parse import unquote, urlsplit

from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.model.errors import (
    Busy,
    Corrupt,
    ErrorCode,
    GenerationMissing,
    InvalidArgument,
    KeysRotated,
    NotFound,
    Refused,
    RemoteFailed,
    RemoteLocked,
    UnsupportedFormat,
    WarningCode,
    quoted,
)
from treesnap.core.model.events import Monitor
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.presentation import Record
from treesnap.core.ops.trust import real_target
from treesnap.remote.blobs.base import BlobMissing, Blobs
from treesnap.remote.blobs.retries import RETRY_FOR_S, Retries
from treesnap.remote.blobs.wrappers import CreateOnly, RoomKept, SystemClock, Throttled, WholeReads
from treesnap.remote.cache import FileCache
from treesnap.remote.copies import Doubled, copy_name, original_name
from treesnap.remote.files import SealedFiles
from treesnap.remote.format import NAME, SIZE_MAX, RemoteFormat, decode_format, encode_format
from treesnap.remote.invitation import Invitation
from treesnap.remote.key_slots import FOLDER as _SLOTS
from treesnap.remote.key_slots import ExportedSlots, KeySlots
from treesnap.remote.keys import (
    MasterKeys,
    OpenedSlot,
    OwnerKey,
    Recipient,
    RemoteFile,
    Secret,
    SlotHeader,
    new_machine_slot,
    new_slot,
    not_allowed,
    open_slots,
    signer_id,
    slot_header,
)
from treesnap.remote.marks import marks_of, require_not_set_back
from treesnap.remote.members import Machine
from treesnap.remote.protocol import Remote, View, check_whole
from treesnap.remote.records import (
    FILE_ID_SIZE,
    FILE_SIZE_MAX,
    Collection,
    Folder,
    KnownRemote,
    Marks,
    MemberRole,
    MemberRow,
    RemoteState,
    file_number,
    members_name,
)
from treesnap.remote.sealing import Encrypted, Plain, remote_of

MachineOf = Callable[[bytes], Machine]
"""Returns what a store is on the remote with an id."""
SecretSource = Callable[[], Secret]
"""Returns the secret of a remote; asked only where one is needed, and only once."""


class PossibleSecret:
    """A source that is there whether or not a secret is set: a prompt, or a refusal.

    Any other source is a secret that is set.
    """

    def __init__(self, ask: SecretSource) -> None:
        self._ask = ask

    def __call__(self) -> Secret:
        """Returns the secret; raises what says that there is none."""
        return self._ask()

    def is_set(self) -> bool:
        """Returns whether it gives a secret that was set, without asking for it."""
        return False


class NewSecret(NamedTuple):
    """A secret that is to open a remote alone."""

    secret: Secret
    slot: OpenedSlot | None
    """What it opens already: newer keys, of a change that was stopped; else None."""


def expects_encryption(url: str, source: SecretSource, *, said: bool | None) -> bool:
    """Returns whether the remote at an address has to be encrypted: as its user ``said``, else
    where it is in a bucket, or a secret is set for it.
    """
    if said is not None:
        return said
    return directory_of(url) is None or not isinstance(source, PossibleSecret) or source.is_set()


STATE_READS_MAX = 6
"""How often a state is read while a collector decides whether a push counts."""
_WAIT_S = 0.5
_SCHEMES = frozenset({"s3", "gs", "az", "ssh"})
_BY_RCLONE = "rclone:"
_SAYING_WHICH = ("members/", "state/", "packs/")
"""Of these, each file says which remote it is of; packs only where they are encrypted."""
_NOTHING_SEEN = Marks()
_STATES_IN_REACH = 1 << 20
"""No collection creates so many states while a request that removes one is on its way."""


def directory_of(url: str) -> str | None:
    """Returns the directory that an address names, or None for a bucket or another machine.

    Raises InvalidArgument for any other address.
    """
    if url.startswith(_BY_RCLONE):
        return None
    scheme, separator, _ = url.partition("://")
    if not separator:
        if not url:
            raise InvalidArgument("The address of a remote is empty")
        return url
    if scheme in _SCHEMES:
        return None
    parts = urlsplit(url)
    if scheme != "file" or parts.netloc not in {"", "localhost"} or not parts.path:
        raise InvalidArgument(
            f"{quoted(_without_secrets(url))} is neither a directory nor begins with s3://, "
            "gs://, az://, ssh://, rclone: or file:///"
        )
    return unquote(parts.path)


def _without_secrets(url: str) -> str:
    """Returns a URL without what other programs take for a password, for messages."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.partition("?")[0].rpartition("@")[2]


class KeyInfo(Record):
    """A key slot of a remote."""

    id: str
    kind: str
    """Passphrase, raw key or key file."""
    generation: int
    """The newest key generation that is in it."""
    is_used: bool
    """Whether it is the one that was opened."""


class Opener(Protocol):
    """Connects to the place of an address."""

    def __call__(self, url: str, *, make: bool = False) -> Blobs:
        """Connects; with ``make`` to a directory that may be new. Raises RemoteFailed."""


def open_blobs(url: str, *, make: bool = False, retries: Retries | None = None) -> Blobs:
    """Connects to the place of an address; with ``make`` to one that may be new.

    With ``retries`` the requests to a server are repeated, unless it may be new: what is wrong with
    an address should be said at once. Raises InvalidArgument for what is not an address, and
    RemoteFailed.
    """
    directory = directory_of(url)
    if directory is not None:
        from treesnap.remote.blobs.directory import DirectoryBlobs

        return DirectoryBlobs(LocalFileSystem(), real_target(directory), make=make)
    retries = None if make else retries
    if url.startswith("ssh://"):
        from treesnap.remote.blobs.ssh import SshBlobs, parse_ssh_url

        is_interactive = os.isatty(0) and os.isatty(2)
        return SshBlobs(
            parse_ssh_url(url), make=make, is_interactive=is_interactive, retries=retries
        )
    if url.startswith(_BY_RCLONE):
        from treesnap.remote.blobs.rclone import RcloneBlobs, parse_rclone_url

        return RcloneBlobs(parse_rclone_url(url), make=make, retries=retries)
    from treesnap.remote.blobs.bucket import BucketBlobs, parse_bucket_url

    return BucketBlobs(parse_bucket_url(url), retries=retries)


def removed_if_unused(url: str) -> AbstractContextManager[None]:
    """When the body fails to set a remote up, removes a directory that was made for it."""
    directory = directory_of(url)
    if directory is None:
        return nullcontext()
    from treesnap.remote.blobs import directory as directories

    return directories.removed_if_unused(LocalFileSystem(), real_target(directory))


def patient(monitor: Monitor, retry_for_s: float = RETRY_FOR_S) -> Opener:
    """Returns what connects to any place, and repeats requests for so long after failures.

    The monitor is warned of an outage of more than some seconds.
    """
    tell = functools.partial(monitor.warn, WarningCode.REMOTE_WAITED_FOR)
    return functools.partial(open_blobs, retries=Retries(retry_for_s, tell))


def limited(opener: Opener, bytes_per_s: float) -> Opener:
    """Returns what connects in the same way, and sends and receives no faster than this."""

    def open_limited(url: str, *, make: bool = False) -> Blobs:
        return Throttled(opener(url, make=make), bytes_per_s, SystemClock())

    return open_limited


def keeping_reserve(opener: Opener) -> Opener:
    """Returns what connects in the same way, and makes room in a directory that is full."""

    def open_with_reserve(url: str, *, make: bool = False) -> Blobs:
        blobs = opener(url, make=make)
        return RoomKept(blobs) if directory_of(url) is not None else blobs

    return open_with_reserve


class Connection:
    """An open remote. Use as a context manager; the end closes its blobs.

    A GenerationMissing that comes from within becomes KeysRotated where a key slot has these keys.
    """

    def __init__(
        self,
        url: str,
        blobs: Doubled,
        format_: RemoteFormat,
        slots: KeySlots,
        opened: OpenedSlot | None,
        *,
        cache: FileCache | None = None,
        secret: SecretSource | None = None,
        machine_of: MachineOf | None = None,
        may_collect: bool = False,
        known: Marks = _NOTHING_SEEN,
    ) -> None:
        """``opened`` has the keys of an encrypted remote, and ``secret`` gives what opened them.

        Without ``machine_of`` nothing can be written there.
        """
        self.url = url
        self.format = format_
        self._may_collect = may_collect
        self._blobs = blobs
        self._slots = slots
        self._accepted = known.accepted
        self._members = known.members
        self._opened = opened
        self._cache = cache
        self._secret = secret
        remote_id = format_.remote_id
        sealer = Encrypted(opened.keys, remote_id) if opened is not None else Plain(remote_id)
        machine = machine_of(remote_id) if machine_of is not None else None
        self.files: SealedFiles = SealedFiles(blobs, sealer, cache, machine, self._is_in_a_slot)
        self.protocol: Remote = Remote(self.files, _wait, self._is_in_a_slot, known.accepted)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            if isinstance(error, GenerationMissing) and self._is_in_a_slot(error.generation):
                self._slots.forget_last_used()
                raise KeysRotated(
                    "This secret opens only what was stored before the keys of the remote were "
                    f"rotated, and {quoted(error.path or '')} was stored later",
                    path=error.path,
                ) from error
        finally:
            self._blobs.close()

    def _is_in_a_slot(self, generation: int) -> bool:
        """Tells whether a key slot says that it has newer keys than were opened, up to these; else
        a file is damaged that needs them.

        Costs a list of the slots, and a request for each.
        """
        if generation <= self.generation:
            return False
        with suppress(Corrupt, RemoteFailed):
            for name, data in self._slots.read().items():
                with suppress(Corrupt, UnsupportedFormat):
                    if slot_header(name, data).generation >= generation:
                        return True
        return False

    @property
    def may_collect(self) -> bool:
        """Whether this machine may collect garbage there: the server and its role allow it."""
        return self._may_collect and self.files.members.may(MemberRole.COLLECTOR)

    @property
    def generation(self) -> int:
        """The newest keys that the secret opens; 0 for a remote that is not encrypted."""
        return 0 if self._opened is None else self._opened.keys.newest

    def marks(self, number: int, state: RemoteState) -> Marks:
        """Returns what is to be remembered of the remote, with a state that was read there."""
        owner = b"" if self._opened is None else self.files.owner_key.public
        marks = marks_of(number, state, self.generation, owner)
        members = self.files.members
        if members.number is not None and members.number < self._members:
            members.look()  # what was kept may be older than what was seen where nothing is kept
        return marks._replace(
            accepted=self._accepted,
            members=self._members if members.number is None else members.number,
        )

    def marks_of(self, view: View, *, accepts: bool = False) -> Marks:
        """Returns what is to be remembered of the remote, with all that was read there.

        Where what contradicts itself is accepted, that is remembered too.
        """
        listed = frozenset(name.key for name in view.commits)
        return self.marks(view.number, view.state)._replace(
            heads=view.certain_heads,
            accepted=tuple(sorted(listed if accepts else listed.intersection(self._accepted))),
        )

    def require_newest_keys(self, known: Marks) -> None:
        """Raises Refused where the secret opens only older keys than were seen before.

        What is pushed with them could be read with a secret that was shut out. Raises KeysRotated
        where another slot has newer ones.
        """
        if self.generation < known.generation:
            if self._is_in_a_slot(known.generation):
                raise KeysRotated(
                    "This secret opens only what was stored before the keys of the remote were "
                    f"rotated: generation {self.generation}, and {known.generation} is in use"
                )
            seen = known._replace(generation=self.generation)
            require_not_set_back(self.url, known, seen)

    def single_files(self) -> Sequence[str]:
        """Returns the small files of which the copy is missing, or the file; costs some lists."""
        return self._blobs.single_names()

    def check_format(self) -> None:
        """Looks whether the remote's format is still the one that is known; costs a request.

        Opening it by the key slot of last time does not look. Raises Corrupt, UnsupportedFormat,
        RemoteFailed where there is none, and Refused for that of another remote.
        """
        format_ = read_format(self.url, self._blobs)
        if format_ is None:
            raise _no_remote(self.url)
        _require_same(self.url, format_, self.format)

    def mend(self) -> tuple[str, ...]:
        """Writes small files again that are lost or damaged, as far as a copy of them is whole, or
        what was kept of one that was read damaged.

        Returns which it wrote; durable after return. Raises RemoteFailed.
        """
        written = self._slots.mend() + self._mend_machine_slots()
        kept = [name for name in self._blobs.mended if copy_name(name) is None and name != NAME]
        written += self.files.mend(check_whole, kept)
        said = read_format(self.url, self._blobs)
        if NAME in self._blobs.mended or said != self.format:
            self._blobs.put(NAME, encode_format(self.format))
            written += (NAME,)
        return written

    def rebuild(self, known: Marks) -> tuple[str, ...]:
        """Does what :meth:`mend` does, and where the newest list of the machines cannot be read
        all the same, makes another one, of the machines that packs name.

        Its number is above that which ``known`` marks have. Returns what it wrote, and raises
        RemoteFailed.
        """
        written = self.mend()
        members = self.files.members
        try:
            members.read()
        except GenerationMissing:
            raise
        except Corrupt:
            pass  # no list is whole
        if members.is_behind and members.rebuild(self._keys_in_packs(), known.members):
            number = members.number
            assert number is not None, "it was just created"
            written += (members_name(number), *self.mend())
        return written

    def _keys_in_packs(self) -> set[bytes]:
        """Returns the keys of machines that packs have, but for those that were revoked."""
        limits = RemoteState()
        with suppress(Corrupt):
            _, limits = self.protocol.read_state()
        return {
            key
            for key in self.protocol.keys_in_packs()
            if limits.allows(signer_id(key), MemberRole.MEMBER)
        }

    def remove_unsigned(self, view: View) -> tuple[str, ...]:
        """Removes files among the states that no member signed; returns which are gone.

        Only those that no collection will come to: it passes one nearer to the state by its
        number, which no other machine may be able to take meanwhile.
        """
        far = [
            name
            for name in view.unsigned
            if (file_number(name) or 0) > view.number + _STATES_IN_REACH
        ]
        refused = frozenset(map(original_name, self._blobs.delete(far)))
        return tuple(name for name in far if name not in refused)

    # ------------------------------------------------------------------------- keys

    def slots(self) -> list[KeyInfo]:
        """Returns the key slots; raises Refused for a remote that is not encrypted."""
        opened = self._require_keys()
        return sorted(
            KeyInfo(
                name.removeprefix(_SLOTS),
                header.kind.words,
                header.generation,
                name == opened.name,
            )
            for name, header in self._slots.headers().items()
        )

    def exported_slots(self) -> str:
        """Returns the key slots as a text, those left out that are damaged; raises Refused."""
        self._require_keys()
        whole = {name: data for name, data in self._slots.read().items() if data}
        return ExportedSlots(self.format.remote_id, whole).to_text()

    def mend_slots(self) -> None:
        """Stores slots again that are damaged, and the one in use where it is missing; durable."""
        self._slots.mend()

    def keep_slot(self, cache: FileCache) -> None:
        """Keeps the slot in use in a store that did not know the remote."""
        self._slots.keep_in(cache)

    def slot_memory_kib(self) -> tuple[int, ...]:
        """Returns the memory that it takes to open each slot with a passphrase or a key file."""
        headers = self._slots.headers().values()
        return tuple(sorted(item.cost.memory_kib for item in headers if item.cost is not None))

    def add_slot(self, source: SecretSource) -> KeyInfo:
        """Writes a key slot for another secret, durably; raises Refused before it asks for one."""
        _, keys = self.require_owner()
        secret = source()
        slot = new_slot(keys, secret, self.format.remote_id)
        self._slots.write(slot)
        name = slot.name.removeprefix(_SLOTS)
        return KeyInfo(name, secret.kind.words, keys.newest, is_used=False)

    def remove_slot(self, beginning: str) -> KeyInfo:
        """Removes the key slot whose id begins so, durably.

        A person who kept its secret and a copy of the slot can still read the remote. Raises
        NotFound, InvalidArgument, and Refused for the slot in use, which alone is known to open
        the remote.
        """
        self.require_owner()
        slots = self.slots()
        fitting = [item for item in slots if item.id.startswith(beginning)]
        if not beginning or not fitting:
            raise NotFound(
                f"No key slot begins with {quoted(beginning)}", code=ErrorCode.KEY_NOT_FOUND
            )
        if len(fitting) > 1:
            raise InvalidArgument(f"Several key slots begin with {quoted(beginning)}")
        if len(slots) == 1 or fitting[0].is_used:
            # What others there are may open nothing: one of a set-up that was killed does not.
            raise Refused(
                "Only this key slot is known to open the remote; one that was opened with another "
                "secret can be kept instead of it",
                code=ErrorCode.LAST_KEY,
            )
        if not self._slots.remove([_SLOTS + fitting[0].id]):
            raise RemoteFailed(
                "The server keeps the key slot", code=ErrorCode.REMOTE_DENIED, endpoint=self.url
            )
        return fitting[0]

    def rotate(self) -> KeyInfo:
        """Makes a new key generation, which new files are encrypted with; durable after return.

        The slot in use is replaced, for the same secret. Other slots open what was stored before,
        and nothing newer. Raises Busy where another machine rotates, or is enrolled, meanwhile;
        Refused where the server cannot be relied on.
        """
        assert self._secret is not None
        return self._rotated(self._secret, lambda opened: [opened.name])

    def revoke(
        self, machine: bytes, new: NewSecret | None = None
    ) -> tuple[KeyInfo, tuple[str, ...]]:
        """Makes new keys, as :meth:`rotate` or, with a new secret, as :meth:`change` does, and
        takes a machine off the list. Returns what :meth:`change` does.
        """
        if new is None:
            assert self._secret is not None
            return self._rotated(self._secret, lambda opened: [opened.name], machine), ()
        return self.change(new, machine)

    def new_secret(self, source: SecretSource) -> NewSecret:
        """Asks for a secret for :meth:`change`, and writes nothing.

        Raises Refused for one that opens the remote already, because a thief may have it.
        """
        opened, _ = self.require_owner()
        secret = source()
        slot: OpenedSlot | None = None
        with suppress(RemoteLocked, Corrupt, UnsupportedFormat):
            slot = open_slots(self._slots.read(), secret, self.format.remote_id)
        if slot is not None and slot.keys.newest <= opened.keys.newest:
            raise Refused(
                "This secret opens the remote already, so it would keep out no thief",
                code=ErrorCode.SECRET_IN_USE,
            )
        return NewSecret(secret, slot)

    def change(self, new: NewSecret, without: bytes = b"") -> tuple[KeyInfo, tuple[str, ...]]:
        """Lets a new secret alone open the remote, with new keys; durable after return.

        Returns its slot, and the ids of those that were removed. A change that was stopped is
        finished by the same secret. Raises what :meth:`rotate` does.
        """
        secret, slot, old = new.secret, new.slot, self._slots.read()
        if slot is None:
            info = self._rotated(lambda: secret, lambda _: list(old), without)
            return info, self._to_add_again(old, old)
        name, generation = slot.name.removeprefix(_SLOTS), slot.keys.newest
        gone = [each for each in old if each != slot.name]
        self._slots.remove(set(gone) - self._machine_slots(old, generation))
        info = KeyInfo(name, secret.kind.words, generation, is_used=True)
        return info, self._to_add_again(old, gone)

    def _machine_headers(self, slots: Mapping[str, bytes]) -> dict[str, SlotHeader]:
        """Returns what the slots of invited machines show."""
        headers = {}
        for name, data in slots.items():
            with suppress(Corrupt, UnsupportedFormat):
                header = slot_header(name, data)
                if header.machine is not None:
                    headers[name] = header
        return headers

    def _machine_slots(self, slots: Mapping[str, bytes], least: int = 0) -> set[str]:
        """Returns those of invited machines that hold keys of a generation."""
        headers = self._machine_headers(slots)
        return {name for name, header in headers.items() if header.generation >= least}

    def _to_add_again(self, slots: Mapping[str, bytes], gone: Iterable[str]) -> tuple[str, ...]:
        """Returns the ids of slots that are gone, but for those of machines, which have others."""
        of_machines = self._machine_slots(slots)
        return tuple(name.removeprefix(_SLOTS) for name in gone if name not in of_machines)

    def _rotated(
        self,
        source: SecretSource,
        replaced: Callable[[OpenedSlot], list[str]],
        without: bytes = b"",
    ) -> KeyInfo:
        """Makes a new key generation for a secret, and removes slots; each invited machine gets a
        new one, but for one that is left out.
        """
        opened, old_keys = self.require_owner()
        if not self.may_collect:
            raise Refused(
                f"The server of {quoted(self.url)} may give one key generation to two machines",
                code=ErrorCode.REMOTE_UNRELIABLE,
            )
        secret = source()
        keys, remote_id = old_keys.rotated(), self.format.remote_id
        slot = new_slot(keys, secret, remote_id)
        overtaken = Busy("Another machine has changed the members of the remote meanwhile")
        number = self.files.members.rotate(Encrypted(keys, remote_id), {without})
        if number is None:
            raise overtaken
        old = self._machine_slots(self._slots.read())
        slots = [slot, *self._new_machine_slots(keys, self.files.members.known, without)]
        for each in slots:
            self._slots.write(each)
        if not self.files.members.is_newest(number):
            self._slots.remove([each.name for each in slots])
            raise overtaken
        self._slots.remove({*replaced(opened), *old})
        name = slot.name.removeprefix(_SLOTS)
        return KeyInfo(name, secret.kind.words, keys.newest, is_used=True)

    def _new_machine_slots(
        self, keys: MasterKeys, members: Mapping[bytes, MemberRow], without: bytes = b""
    ) -> list[RemoteFile]:
        """Returns a slot for each machine that was invited, but for one."""
        return [
            new_machine_slot(keys, Recipient(identity, item.exchange), self.format.remote_id)
            for identity, item in members.items()
            if item.exchange and identity != without
        ]

    def _mend_machine_slots(self) -> tuple[str, ...]:
        """Writes the slots of invited machines that lack one with the newest keys, as where a
        rotation was killed; returns which.
        """
        if self._opened is None or not isinstance(self._opened.keys, MasterKeys):
            return ()
        keys = self._opened.keys
        slots = self._slots.read()
        headers = self._machine_headers(slots)
        there = {item.machine for item in headers.values() if item.generation == keys.newest}
        listed = self.files.members.known
        lacking = {key: item for key, item in listed.items() if key not in there}
        made = self._new_machine_slots(keys, lacking)
        for slot in made:
            self._slots.write(slot)
        self._slots.remove(set(headers) - self._machine_slots(slots, keys.newest))
        return tuple(slot.name for slot in made)

    # ---------------------------------------------------------------------- members

    def members(self) -> dict[bytes, MemberRow]:
        """Returns all on the list by their ids; raises Refused without encryption."""
        self._require_keys()
        return self.files.members.all()

    def invite(self, role: MemberRole) -> Invitation:
        """Puts a new machine on the list; returns what it is given. Raises Refused and Busy."""
        _, master = self.require_owner()
        remote_id = self.format.remote_id
        keys = master.of_remote(remote_id)[self.generation]
        if role is MemberRole.WRITER:
            invitation = Invitation.new(keys, remote_id)
            member = MemberRow(invitation.writer().signer.public, role)
        else:
            invitation = Invitation.of_machine(keys, remote_id)
            machine = invitation.recipient()
            self._slots.write(new_machine_slot(master, machine, remote_id))
            member = MemberRow(self.files.key_of_seed(invitation.seed), role, machine.exchange)
        self.files.members.change(lambda listed: {**listed, invitation.machine_id: member})
        return invitation

    def demote(self, machine: bytes) -> None:
        """Makes a machine on the list a member, durably; raises Refused and Busy."""
        self.require_owner()

        def changed(listed: dict[bytes, MemberRow]) -> dict[bytes, MemberRow]:
            return {
                key: item._replace(role=MemberRole.MEMBER) if key == machine else item
                for key, item in listed.items()
            }

        self.files.members.change(changed)

    def remove_writer(self, writer: bytes) -> None:
        """Takes a writer from the list: what it delivers counts no more. Raises Busy."""
        self.require_owner()
        self.files.members.change(
            lambda listed: {key: item for key, item in listed.items() if key != writer}
        )

    def require_owner(self) -> tuple[OpenedSlot, MasterKeys]:
        """Returns the slot that was opened, with all keys; raises Refused where it has not these,
        or nothing is encrypted.
        """
        opened = self._require_keys()
        if not isinstance(opened.keys, MasterKeys):
            raise not_allowed("an owner, which opens it with a secret, changes machines and keys")
        return opened, opened.keys

    def _require_keys(self) -> OpenedSlot:
        if self._opened is None:
            raise Refused(
                f"The remote {quoted(self.url)} is not encrypted", code=ErrorCode.NOT_ENCRYPTED
            )
        return self._opened


def _wait(count_read: int) -> bool:
    """Waits before a state is read again; returns whether it is worth it."""
    if count_read >= STATE_READS_MAX:
        return False
    time.sleep(_WAIT_S)
    return True


def connect(
    known: KnownRemote,
    secret: SecretSource,
    opener: Opener,
    cache: FileCache | None = None,
    machine_of: MachineOf | None = None,
    *,
    newest_keys: bool = False,
) -> Connection:
    """Opens a remote; one that was added has to be the same as then.

    The slot that was opened last time is bound to the id of its remote. Where it is still there,
    and opens, the remote is the same, and neither its format nor its slots are looked at. Raises
    Refused for another remote in its place, or one that claims to be unencrypted. One that was
    not added has only to be encrypted if ``known`` says so. With ``newest_keys`` all slots are
    looked at: one that a killed rotation left may be the last. Raises RemoteFailed where there is
    none, RemoteLocked, Corrupt and UnsupportedFormat.
    """
    secret = functools.cache(functools.partial(_trusting, secret, known.marks))
    url, may_collect = known.url, known.may_collect
    expected = None
    if any(known.remote_id):
        expected = RemoteFormat(known.remote_id, known.is_encrypted, known.collection)

    def opened_as(format_: RemoteFormat, opened: OpenedSlot | None) -> Connection:
        return Connection(
            url,
            blobs,
            format_,
            slots,
            opened,
            cache=cache,
            secret=secret,
            machine_of=machine_of,
            may_collect=may_collect,
            known=known.marks,
        )

    given = opener(url)
    if known.appends_only:
        given = CreateOnly(given)
    if known.reads_whole:
        given = WholeReads(given)
    blobs = Doubled(given)
    slots = KeySlots(blobs, cache)
    try:
        if expected is not None and expected.is_encrypted and not newest_keys:
            opened = slots.open_last_used(secret, expected.remote_id)
            if opened is not None and opened.keys.newest >= known.marks.generation:
                return opened_as(expected, opened)
        format_ = read_format(url, blobs)
        if format_ is None:
            raise _no_remote(url)
        if expected is not None:
            _require_same(url, format_, expected)
            if NAME in blobs.mended:  # who may collect is written there alone
                format_ = expected
            may_collect = may_collect and format_.collection is not Collection.NONE
        elif known.is_encrypted:
            require_encrypted(url, format_)
        opened = slots.open(secret, format_.remote_id) if format_.is_encrypted else None
        connection = opened_as(format_, opened)
        connection.require_newest_keys(known.marks)
        return connection
    except BaseException:
        blobs.close()
        raise


def _trusting(secret: SecretSource, marks: Marks) -> Secret:
    """Returns a secret that trusts the newest owner that was seen, if it is that of a machine."""
    given = secret()
    return given.trusting(OwnerKey(marks.generation, marks.owner)) if marks.owner else given


def set_up(
    url: str,
    given: Blobs,
    secret: SecretSource,
    collection: Collection,
    machine_of: MachineOf,
    *,
    encrypts: bool,
    exported_slots: ExportedSlots | None = None,
) -> Connection:
    """Opens a remote, and sets it up where there is none; closes ``given`` when it fails.

    A new remote is encrypted if ``encrypts``. One that exists is opened as it is, but it is not
    opened if it is not encrypted and ``encrypts``: a user who may write there could have prepared
    it, and would read what is pushed. With ``exported_slots``, which may open it, none is set up.
    Durable after return. Raises what :func:`connect` does.
    """
    blobs = Doubled(given)
    try:
        if exported_slots is None and read_format(url, blobs) is None:
            _write_new(blobs, secret if encrypts else None, collection)
        format_ = read_format(url, blobs)
        if format_ is None:
            raise _no_remote(url)
        if encrypts or exported_slots is not None:
            require_encrypted(url, format_)
        if exported_slots is not None:
            require_remote("The key slots are", url, format_, exported_slots.remote_id)
        slots = KeySlots(blobs, exported=exported_slots.slots if exported_slots else None)
        opened = slots.open(secret, format_.remote_id) if format_.is_encrypted else None
        if NAME in blobs.mended:
            format_ = format_._replace(collection=collection)
            blobs.put(NAME, encode_format(format_))
        connection = Connection(url, blobs, format_, slots, opened, machine_of=machine_of)
        if not any(any(blobs.list(f"{kind}/")) for kind in ("state", *Folder)):
            # Beside anything else, state 0 would make that garbage.
            connection.protocol.create_state(0, RemoteState())
        return connection
    except BaseException:
        blobs.close()
        raise


def _write_new(blobs: Blobs, secret: SecretSource | None, collection: Collection) -> None:
    """Writes the key slot and the format of a new remote, unless another machine just has."""
    format_ = RemoteFormat(os.urandom(FILE_ID_SIZE), secret is not None, collection)
    slot_name = None
    if secret is not None:
        slot = new_slot(MasterKeys.new(), secret(), format_.remote_id)
        slot_name = slot.name
        blobs.put(slot.name, slot.data)
    if not blobs.create(NAME, encode_format(format_)) and slot_name is not None:
        blobs.delete([slot_name])


def read_format(url: str, blobs: Doubled) -> RemoteFormat | None:
    """Returns what a place says of itself, or None where there is no remote; raises Corrupt.

    Where the file is lost or damaged, what a signed file says; that leaves out who may collect.
    """
    problem: Corrupt | None = None
    try:
        return decode_format(blobs.get(NAME, SIZE_MAX), quoted(url))
    except BlobMissing:
        pass
    except Corrupt as error:
        problem = error
    for folder in _SAYING_WHICH:
        for blob in blobs.list(folder):
            with suppress(BlobMissing, Corrupt, RemoteFailed):
                identity = blobs.read(
                    blob.name, functools.partial(remote_of, blob.name), FILE_SIZE_MAX
                )
                blobs.mended[NAME] = str(problem) if problem is not None else "it is missing"
                return RemoteFormat(*identity, Collection.NONE)
    if problem is not None:
        raise problem
    return None


def require_encrypted(url: str, remote_format: RemoteFormat) -> None:
    """Raises Refused for a remote that is not encrypted.

    What says so is not authentic: a user who may write there can put it in the place of an
    encrypted one, and would read what is pushed, and choose what is cloned.
    """
    if not remote_format.is_encrypted:
        raise Refused(
            f"The remote {quoted(url)} exists and is not encrypted, and an encrypted one is "
            "expected",
            code=ErrorCode.ENCRYPTION_EXPECTED,
        )


def require_remote(what: str, url: str, there: RemoteFormat | None, remote_id: bytes) -> None:
    """Raises Refused where another remote is than ``what`` is for, and RemoteFailed."""
    if there is None:
        raise _no_remote(url)
    if there.remote_id != remote_id:
        raise Refused(
            f"{what} for the remote {remote_id.hex()}, and at {quoted(url)} is "
            f"{there.remote_id.hex()}",
            code=ErrorCode.REMOTE_REPLACED,
        )


def _require_same(url: str, at_url: RemoteFormat, expected: RemoteFormat) -> None:
    if at_url.remote_id != expected.remote_id:
        raise Refused(
            f"Another remote is at {quoted(url)} now: it has the id {at_url.remote_id.hex()}, "
            f"not {expected.remote_id.hex()}",
            code=ErrorCode.REMOTE_REPLACED,
        )
    if at_url.is_encrypted != expected.is_encrypted:
        words = "is not encrypted" if expected.is_encrypted else "is encrypted"
        raise Refused(
            f"The remote {quoted(url)} says now that it {words}", code=ErrorCode.REMOTE_REPLACED
        )


def _no_remote(url: str) -> RemoteFailed:
    return RemoteFailed(
        f"There is no remote at {quoted(url)}", code=ErrorCode.REMOTE_MISSING, endpoint=url
    )
