"""The files of a remote as its protocol sees them: blobs, opened and sealed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from treesnap.core.model.errors import Corrupt, ErrorCode, UnsupportedFormat
from treesnap.remote.blobs.base import BlobMissing
from treesnap.remote.cache import FileCache
from treesnap.remote.copies import Doubled
from treesnap.remote.keys import OwnerKey, damaged, signer_id
from treesnap.remote.members import Machine, Members
from treesnap.remote.records import (
    INBOX,
    DeliveryName,
    Folder,
    MemberRole,
    RemoteName,
    Span,
)
from treesnap.remote.sealing import DELIVERED_HEAD_SIZE, Sealer, Signed, signer_of

_STATES = "state/"
_SIGNED = (_STATES, f"{Folder.COMMITS}/", f"{Folder.DELETIONS}/")
_OF_MACHINES = (f"{Folder.PACKS}/", f"{Folder.COMMITS}/", f"{Folder.DELETIONS}/")
_BY_COLLECTORS = (_STATES, f"{Folder.DELETIONS}/")
"""What counts of a collector or an owner alone."""
_NEVER_CHANGED = tuple(
    f"{folder}/" for folder in (Folder.COMMITS, Folder.DELETIONS, Folder.INDEX, Folder.CATALOG)
)
"""Their names are random, and are never given again."""

_Meaning = TypeVar("_Meaning")


class SealedFiles:
    """Files of a remote; a :class:`treesnap.remote.protocol.RemoteFiles`."""

    def __init__(
        self,
        blobs: Doubled,
        sealer: Sealer,
        cache: FileCache | None = None,
        machine: Machine | None = None,
        are_keys_known: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Without a ``machine`` nothing is written that is signed.

        ``are_keys_known`` tells whether the remote has keys of a newer generation.
        """
        self._blobs = blobs
        self._sealer = sealer
        self._cache = cache
        self.members: Members = Members(blobs, sealer, machine, cache, are_keys_known)
        self._tags: dict[str, str] = {}
        """Tags of the states that were listed."""
        self._takes_kept = True

    def read_anew(self) -> None:
        """Takes no file that was kept for one that is on the server, from now on."""
        self._takes_kept = False

    def next_sequence(self) -> tuple[bytes, int, tuple[Span, ...]]:
        """Returns which machine this is, the number of its next commit, and those of earlier ones
        of which it is not known whether they count; durable.
        """
        return self.members.signer().id, *self.members.machine.next_sequence()

    def settle(self, sequence: int, folded: int) -> None:
        """Takes note that a commit of this machine counts, as do all up to the ``folded`` one."""
        self.members.machine.settle(sequence, folded)

    def meet(self, machines: Iterable[bytes]) -> None:
        """Finds out which machines are members; raises Corrupt and RemoteFailed."""
        self.members.meet(machines)

    def put(
        self,
        folder: Folder,
        number: int,
        content: bytes,
        statement: bytes = b"",
        sequence: int = 0,
    ) -> RemoteName:
        """Writes a file under a new name; durable and listed when it returns.

        What is sent again after a failure has the same bytes: it was sealed once.
        """
        signer = self.members.signer(_least(f"{folder}/")) if f"{folder}/" in _OF_MACHINES else None
        machine = signer.id if signer is not None else b""
        prefix = RemoteName(folder, number, b"", machine, sequence).prefix
        is_signed = f"{folder}/" in _SIGNED
        file = self._sealer.seal(prefix, content, signer if is_signed else None, statement)
        del content  # a pack is large
        name = RemoteName.parse(file.name)
        assert name is not None
        self._blobs.put(file.name, file.data)
        if self._cache is not None and file.name.startswith(_NEVER_CHANGED):
            self._cache.put(file.name, file.data)
        return name

    def is_member(self, machine: bytes) -> bool:
        """Tells whether a machine is a member, as far as was found out."""
        return self.members.key_of(machine) is not None

    @property
    def owner_key(self) -> OwnerKey:
        """Who signs lists of members now."""
        return self._sealer.owner_key

    def key_of_seed(self, seed: bytes) -> bytes:
        """Returns the public key of the machine with a seed."""
        return self._sealer.signer(seed).public

    @property
    def own_id(self) -> bytes:
        """What this machine is called, whether or not it is a member."""
        return self.members.own_id

    def sign(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns the key of this machine, and its signature for what it says of a commit."""
        signer = self.members.signer()
        return signer.public, signer.sign(self._sealer.signed_object(data))

    def is_signed(self, machine: bytes, key: bytes, signature: bytes, data: bytes) -> bool:
        """Tells whether a machine with this key said something of a commit."""
        return signer_id(key) == machine and self._sealer.is_signed(
            key, signature, self._sealer.signed_object(data)
        )

    def create(self, name: str, content: bytes) -> bool:
        """Writes a file if there is none; returns whether it did. Raises RemoteFailed."""
        return self._blobs.create(
            name, self._sealer.sign(name, content, self.members.signer(_least(name)))
        )

    @property
    def mended(self) -> dict[str, str]:
        """Files that were read from their copies, or as they were kept, and why."""
        return self._blobs.mended

    def get(self, name: str) -> bytes | None:
        """Returns a file, or None when there is none; raises Corrupt and RemoteFailed."""
        return self.read(name, lambda file: file.content)

    def read(self, name: str, meaning: Callable[[Signed], _Meaning]) -> _Meaning | None:
        """Returns what a file means, or None when there is none; raises Corrupt and RemoteFailed.

        What was whole is kept, where that may be read again.
        """
        tag = self._tags.get(name, "")
        may_keep = self._cache is not None and (tag or name.startswith(_NEVER_CHANGED))
        kept = self._cache.get(name, tag) if self._cache and may_keep and self._takes_kept else None
        if kept is not None:
            with suppress(Corrupt, UnsupportedFormat):  # read it again
                return meaning(self._opened(name, kept))

        if name.startswith(_STATES):
            self.members.look()

        def opened(data: bytes) -> tuple[bytes, _Meaning]:
            return data, meaning(self._opened(name, data))

        try:
            data, content = self._blobs.read(name, opened, kept=lambda: self._kept(name))
        except BlobMissing:
            return None
        if self._cache is not None and may_keep and name not in self.mended:
            self._cache.put(name, data, tag)
        return content

    def _kept(self, name: str) -> bytes | None:
        """Returns a file as it was kept, whatever is on the server now."""
        return self._cache.get(name, None) if self._cache is not None else None

    def mend(
        self, check: Callable[[Signed, str], object], damaged: Iterable[str] = ()
    ) -> tuple[str, ...]:
        """Writes small files again of which a copy is whole, as ``check`` says of what is in them,
        and ``damaged`` ones of other folders as they were kept.

        Returns which it wrote; raises RemoteFailed.
        """

        def check_opened(name: str, data: bytes) -> None:
            check(self._opened(name, data), name)

        lists, *others = (
            [blob.name for blob in self._blobs.list(folder)]
            for folder in ("members/", _STATES, f"{Folder.CATALOG}/")
        )
        written = self._blobs.mend(lists, self.members.check, self._kept)
        for names in (*others, damaged):
            written += self._blobs.mend(names, check_opened, self._kept)
        return written

    def _opened(self, name: str, data: bytes) -> Signed:
        if not name.startswith(_SIGNED):
            return Signed(b"", self._sealer.open(name, data), 0)
        parsed = RemoteName.parse(name)
        if parsed is None:
            signer = signer_of(name, data)
            self.members.meet([signer])
            if self.members.behind is not None and not self.is_member(signer):
                raise self.members.behind  # it may be one, and nothing says that it is not
        by_name, least = None if parsed is None else parsed.machine, _least(name)

        def key_of(machine: bytes) -> bytes | None:
            return self.members.key_of(machine, least) if by_name in (None, machine) else None

        return self._sealer.open_signed(name, data, key_of)

    def get_ranges(
        self, name: str, size_bytes: int, ranges: Sequence[tuple[int, int]]
    ) -> list[bytes] | None:
        """Returns parts of a file of a size, each as (start, size), or None without such a file.

        Raises Corrupt for a file that is shorter or was changed, and RemoteFailed.
        """
        try:
            fetched = self._blobs.get_ranges(name, self._sealer.ranges(name, size_bytes, ranges))
        except BlobMissing:
            return None
        parts = self._sealer.open_ranges(name, size_bytes, ranges, fetched)
        if any(len(part) != size for part, (_, size) in zip(parts, ranges, strict=True)):
            raise Corrupt(
                f"Remote file {name!r} does not have a part that its index names",
                code=ErrorCode.REMOTE_DAMAGED,
                path=name,
            )
        return parts

    def get_damaged(self, name: str) -> tuple[bytes, Sequence[tuple[int, int]] | None] | None:
        """Returns a file of which parts may be damaged, with zeros there, and where that is; None
        without such a file. Raises Corrupt where nothing of it is whole, and RemoteFailed.
        """
        try:
            return self._sealer.open_damaged(name, self._blobs.get(name))
        except BlobMissing:
            return None

    def list(self, prefix: str) -> Iterator[str]:
        """Yields the names that begin so, in their order."""
        for blob in self._blobs.list(prefix):
            if blob.tag and blob.name.startswith(_STATES):
                self._tags[blob.name] = blob.tag
            yield blob.name

    def keep_only(self, folders: Collection[str], names: Collection[str]) -> None:
        """Lets go of the files of some folders that are not needed again but for these."""
        if self._cache is not None:
            self._cache.keep_only(folders, names)

    def delete(self, names: Iterable[str]) -> None:
        """Removes files; one that is gone is not a failure, and one that is locked stays."""
        self._blobs.delete(list(names))

    def give_up(self) -> None:
        """Lets the requests that other threads repeat fail now."""
        self._blobs.give_up()

    def inbox(self) -> Iterator[tuple[DeliveryName, int]]:
        """Yields what is in the inbox, with its size, in the order of writers and parts."""
        for blob in self._blobs.list(INBOX):
            name = DeliveryName.parse(blob.name)
            if name is not None:
                yield name, blob.size_bytes

    def delivered(
        self, name: DeliveryName, writers: Mapping[bytes, bytes], size_bytes_max: int
    ) -> bytes:
        """Returns the content of a file in the inbox; raises Corrupt and RemoteFailed.

        It is fetched once its first bytes say that the writer in its name signed it.
        """

        def key_of(signer: bytes) -> bytes | None:
            return writers.get(signer) if signer == name.writer else None

        try:
            (start,) = self._blobs.get_ranges(str(name), [(0, DELIVERED_HEAD_SIZE)])
            self._sealer.require_delivered(str(name), start, key_of)
            data = self._blobs.get(str(name), size_bytes_max)
        except BlobMissing:
            raise damaged(str(name), "is missing") from None
        return self._sealer.open_delivered(str(name), data, key_of)

    def sweep_unfinished(self) -> None:
        """Removes what writers that are gone left unfinished."""
        self._blobs.sweep_unfinished()


def _least(name: str) -> MemberRole:
    """Returns the role that a machine has at least whose signature counts for a file."""
    return MemberRole.COLLECTOR if name.startswith(_BY_COLLECTORS) else MemberRole.MEMBER
