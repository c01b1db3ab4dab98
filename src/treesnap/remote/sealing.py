"""Files of a remote: what is stored for a content, and how it is read again, in parts too.

    header, 32 bytes
    +----------+----+---------+-----------+------+------------+-----------+
    | TREESNAP | 18 | version | algorithm | mode | generation | remote id |
    +----------+----+---------+-----------+------+------------+-----------+

    encrypted file    header | segments
    signed file       header | length, signer, hashes, signature | statement | content or segments
                      of the inbox, with a public key as its statement

    segments: encrypted(content | zeros | content size u64), 64 KiB each but for the last,
              with a tag of 16 bytes after each

What holds:

1. A key encrypts one file. It is derived from the header and the full name, of which the last 32
   digits are a hash of random bytes *and of what the file holds*. So where a machine repeats its
   random bytes, because it was restored twice from one memory image, the same key means the same
   bytes.
2. A segment is authentic at its place in its file, under the file's name, in its remote, or it is
   refused: its nonce is its number and whether it is the last. Nothing of a segment is returned
   before its tag was verified.
3. Commits, deletions, states and lists of members are signed by one machine, or the owner, under
   their name. The signature stands before everything that may be long. What only readers need is
   encrypted; states and lists of members, which are needed to follow the protocol, are not.
4. The server sees names and sizes. To each size two random numbers are added before it is rounded
   up, because any rule that always gives the same size can be asked again and again by a user who
   may add bytes of their own: the smallest addition that changes it tells the exact length. The
   numbers come from the key of the file, so that a reader knows them. A range read shows which
   segments are of interest.

A content that repeats under another name is another file. A retry after a failure sends the same
bytes, and does not encrypt again.

Not here: keys, algorithms and signatures (keys), requests, what a content means. The page
docs/reference/remote-encryption.md specifies the bytes.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hmac import compare_digest
from io import BytesIO
from typing import Protocol

from treesnap.core.codec.envelope import MAGIC, FileKind
from treesnap.core.model.errors import Corrupt, GenerationMissing, InvalidArgument
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.invitation import Invitation
from treesnap.remote.keys import (
    KEY_SIZE,
    RANDOM_SIZE,
    REMOTE_ID_SIZE,
    SIGNATURE_SIZE,
    SIGNER_ID_SIZE,
    TAG_SIZE,
    TOKEN_SIZE,
    GenerationKeys,
    InboxKeys,
    MasterKeys,
    OwnerKey,
    Random,
    ReadKeys,
    RemoteFile,
    Signer,
    checksum_signer,
    damaged,
    is_checksum,
    is_signed,
    key_signer,
    signer_id,
)
from treesnap.remote.records import STATEMENT_SIZE_MAX, NotSigned

SEGMENT_SIZE = 64 << 10
"""Bytes that are encrypted together."""
STEP_MIN = 2048
"""Sizes of encrypted files are multiples of this, and of a 32nd of the largest power of two in
them, but for headers and tags."""

_VERSION = 2
_CLEAR, _ENCRYPTED, _DELIVERED = 0, 1, 2
"""Modes. The last one is of files in the inbox, which their writers cannot read."""
_HEADER = struct.Struct(f"<8sBBBBI{REMOTE_ID_SIZE}s")
_SIGNED = struct.Struct(f"<I{SIGNER_ID_SIZE}s{KEY_SIZE}s{KEY_SIZE}s")
"""Length of the statement, who signs, and hashes of statement and content."""
DELIVERED_HEAD_SIZE = _HEADER.size + _SIGNED.size + SIGNATURE_SIZE + KEY_SIZE
"""Bytes of a file in the inbox that say who signed it."""
_SIGNED_AS = b"treesnap head 2"
_OBJECT_SIGNED_AS = b"treesnap origin 2"
_SIZE = struct.Struct("<Q")
_STORED_SIZE = SEGMENT_SIZE + TAG_SIZE
_PREFIX = re.compile(r"[a-z]+/(?:[0-9a-f]+-)*\Z")
_RANDOM_NAME = re.compile(r"[a-z]+/(?:[0-9a-f]+-)*[0-9a-f]{32}\Z")
_GIVEN_NAME = re.compile(r"[a-z]+/[0-9a-f]{16}\Z")

Range = tuple[int, int]
"""First byte and size."""
_Keys = GenerationKeys | InboxKeys
KeyOf = Callable[[bytes], bytes | None]
"""Returns the public key of who has an id, or None for a stranger."""


class Signed(NamedTuple):
    """What a signed file holds, verified."""

    statement: bytes
    content: bytes
    generation: int
    """The newest keys that its writer had; 0 where nothing is encrypted."""


class Sealer(Protocol):
    """Turns contents into files of a remote, and back.

    Sizes and ranges of a content are those before encryption.
    """

    @property
    def generation(self) -> int:
        """The newest keys; 0 where nothing is encrypted."""

    def signer(self, seed: bytes) -> Signer:
        """Returns what signs with the key that follows from a seed."""

    @property
    def owner(self) -> Signer:
        """What signs lists of members; raises Refused where only an owner does."""

    @property
    def owner_key(self) -> OwnerKey:
        """Who signs lists of members now."""

    @property
    def owners(self) -> Mapping[bytes, bytes]:
        """The public keys of this and earlier owners, by their ids."""

    def signed_object(self, data: bytes) -> bytes:
        """Returns what a machine signs that says something in an object of a pack."""

    def is_signed(self, public: bytes, signature: bytes, data: bytes) -> bool:
        """Tells whether the holder of a key signed some bytes."""

    def seal(
        self,
        prefix: str,
        content: bytes | memoryview,
        signer: Signer | None = None,
        statement: bytes = b"",
    ) -> RemoteFile:
        """Returns a new file: its name is a prefix and 32 random hex digits.

        The prefix is a directory, with or without numbers of hex digits and a hyphen each. With a
        ``signer`` the file is a signed one, with a statement that stays readable.
        """

    def sign(self, name: str, content: bytes, signer: Signer) -> bytes:
        """Returns a signed file that is not encrypted, for a name like ``state/<16 hex>``."""

    def require_delivered(self, name: str, start: bytes, key_of: KeyOf) -> None:
        """Raises Corrupt for the first bytes of a file in the inbox that its writer did not sign.

        ``DELIVERED_HEAD_SIZE`` of them are enough.
        """

    def open_delivered(self, name: str, data: bytes, key_of: KeyOf) -> bytes:
        """Returns the content of a whole file in the inbox; raises Corrupt."""

    def open(self, name: str, data: bytes) -> bytes:
        """Returns the content of a whole file that is not signed; raises Corrupt."""

    def open_signed(self, name: str, data: bytes, key_of: KeyOf) -> Signed:
        """Returns what a whole signed file holds; raises Corrupt."""

    def open_damaged(self, name: str, data: bytes) -> tuple[bytes, list[tuple[int, int]] | None]:
        """Returns what a file holds that is not signed, with zeros where it is damaged, and where
        that is, each as from and to; None where only the content can tell.

        Raises Corrupt where nothing of it is whole, or its size is wrong.
        """

    def ranges(self, name: str, content_size: int, ranges: Sequence[Range]) -> list[Range]:
        """Returns which ranges of a file to fetch for ranges of its content.

        The file is one that :meth:`seal` made, without a signer, and ``content_size`` what went
        into it. A range past the end is cut; one that is returned may go past the end of the file.
        """

    def open_ranges(
        self, name: str, content_size: int, ranges: Sequence[Range], fetched: Sequence[bytes]
    ) -> list[bytes]:
        """Returns ranges of a content, out of those that :meth:`ranges` said; raises Corrupt."""


class Plain:
    """Files of a remote without encryption: each is its content, after a head if it is signed.

    Every user of the place may write there, so a checksum stands for each signature. Damage of
    other files is left to what the contents are: packs and records carry checksums. Only a range
    that is cut short is refused here.
    """

    def __init__(
        self, remote_id: bytes = bytes(REMOTE_ID_SIZE), random: Random = os.urandom
    ) -> None:
        self._remote_id = remote_id
        self._random = random

    @property
    def generation(self) -> int:
        """None."""
        return 0

    def signer(self, seed: bytes) -> Signer:
        """Returns what makes checksums with a number that follows from a seed."""
        return checksum_signer(seed)

    @property
    def owner(self) -> Signer:
        """What makes checksums of lists of members."""
        return checksum_signer(self._remote_id)

    @property
    def owner_key(self) -> OwnerKey:
        """The one owner."""
        return OwnerKey(0, self.owner.public)

    @property
    def owners(self) -> Mapping[bytes, bytes]:
        """The one owner."""
        return {self.owner.id: self.owner.public}

    def signed_object(self, data: bytes) -> bytes:
        """Returns what a machine signs that says something in an object of a pack."""
        return _OBJECT_SIGNED_AS + data  # its id may be lost with the rest

    def is_signed(self, public: bytes, signature: bytes, data: bytes) -> bool:
        """Tells whether the holder of a key signed some bytes."""
        return is_checksum(public, signature, data)

    def seal(
        self,
        prefix: str,
        content: bytes | memoryview,
        signer: Signer | None = None,
        statement: bytes = b"",
    ) -> RemoteFile:
        """Returns a new file: its name is a prefix and 32 random hex digits."""
        seed = self._random(RANDOM_SIZE) + checksum(content, RANDOM_SIZE) + _valid(_PREFIX, prefix)
        if signer is not None:
            seed += signer.public + checksum(statement, RANDOM_SIZE)
        name = prefix + checksum(seed, TOKEN_SIZE).hex()
        if signer is None:
            return RemoteFile(name, bytes(content))
        return RemoteFile(name, _clear(self._remote_id, 0, name, bytes(content), signer, statement))

    def sign(self, name: str, content: bytes, signer: Signer) -> bytes:
        """Returns the content after a head."""
        _valid(_GIVEN_NAME, name)
        return _clear(self._remote_id, 0, name, content, signer)

    def require_delivered(self, name: str, start: bytes, key_of: KeyOf) -> None:
        """Raises Corrupt: without keys there is no writer that cannot read."""
        self.open_delivered(name, start, key_of)

    def open_delivered(self, name: str, data: bytes, key_of: KeyOf) -> bytes:  # noqa: ARG002 - as the protocol has it
        """Raises Corrupt: without keys there is no writer that cannot read."""
        raise damaged(name, "was delivered to a remote that is not encrypted")

    def open(self, name: str, data: bytes) -> bytes:  # noqa: ARG002 - as the protocol has it
        """Returns the content."""
        return data

    def open_damaged(
        self,
        name: str,  # noqa: ARG002 - as the protocol has it
        data: bytes,
    ) -> tuple[bytes, list[tuple[int, int]] | None]:
        """Returns the content: damage of it is not seen here."""
        return data, None

    def open_signed(self, name: str, data: bytes, key_of: KeyOf) -> Signed:
        """Returns what follows the head; raises Corrupt."""
        head = _Head.read(name, data)
        head.require_signed(name, key_of, self.is_signed)
        return head.opened_clear(name, data, self._remote_id, 0)

    def ranges(self, name: str, content_size: int, ranges: Sequence[Range]) -> list[Range]:
        """Returns the ranges that are not empty."""
        _valid(_RANDOM_NAME, name)
        return [(start, end - start) for start, end in _cut(content_size, ranges) if start < end]

    def open_ranges(
        self, name: str, content_size: int, ranges: Sequence[Range], fetched: Sequence[bytes]
    ) -> list[bytes]:
        """Returns the ranges; raises Corrupt for one that is cut short."""
        given = iter(fetched)
        parts = []
        for start, end in _cut(content_size, ranges):
            part = next(given, b"") if start < end else b""
            if len(part) != end - start:
                raise damaged(name, "is cut short")
            parts.append(part)
        return parts


class Encrypted:
    """Files of an encrypted remote: new ones with its newest keys, old ones with all."""

    def __init__(
        self, keys: MasterKeys | ReadKeys, remote_id: bytes, random: Random = os.urandom
    ) -> None:
        self._remote_id = remote_id
        self._generations = keys.of_remote(remote_id)
        self._newest = self._generations[keys.newest]
        self._random = random

    @property
    def generation(self) -> int:
        """The newest keys."""
        return self._newest.generation

    def signer(self, seed: bytes) -> Signer:
        """Returns what signs with the key that follows from a seed."""
        return key_signer(seed)

    @property
    def owner(self) -> Signer:
        """What signs lists of members: all who have the newest master key."""
        return self._newest.owner

    @property
    def owner_key(self) -> OwnerKey:
        """Who signs lists of members now."""
        return self._newest.owner_key

    @property
    def owners(self) -> Mapping[bytes, bytes]:
        """The public keys of the owners in all generations that are known."""
        owners = (keys.owner_key.public for keys in self._generations.values())
        return {signer_id(public): public for public in owners}

    def signed_object(self, data: bytes) -> bytes:
        """Returns what a machine signs that says something in an object of a pack."""
        return _OBJECT_SIGNED_AS + self._remote_id + data

    def is_signed(self, public: bytes, signature: bytes, data: bytes) -> bool:
        """Tells whether the holder of a key signed some bytes."""
        return is_signed(public, signature, data)

    def seal(
        self,
        prefix: str,
        content: bytes | memoryview,
        signer: Signer | None = None,
        statement: bytes = b"",
    ) -> RemoteFile:
        """Returns a new file: its name is a prefix and 32 hex digits, which stand for the rest."""
        keys = self._newest
        content_hash = keys.content_hash(content)
        where = _valid(_PREFIX, prefix)
        if signer is not None:
            where += signer.public + checksum(statement, KEY_SIZE)
        name = prefix + keys.token(self._random(RANDOM_SIZE), content_hash, where).hex()
        header = _header(keys, self._remote_id)
        if signer is None:
            return RemoteFile(name, _encrypted(keys, name, header, content))
        head = _Head.signed(name, header, content_hash, signer, statement)
        return RemoteFile(name, _encrypted(keys, name, head.data, content))

    def sign(self, name: str, content: bytes, signer: Signer) -> bytes:
        """Returns the content after a head."""
        _valid(_GIVEN_NAME, name)
        return _clear(self._remote_id, self.generation, name, content, signer)

    def require_delivered(self, name: str, start: bytes, key_of: KeyOf) -> None:
        """Raises Corrupt for the beginning of a file in the inbox that its writer did not sign."""
        _Head.read(name, start).require_signed(name, key_of, self.is_signed)

    def open_delivered(self, name: str, data: bytes, key_of: KeyOf) -> bytes:
        """Returns the content of a whole file in the inbox; raises Corrupt.

        What was encrypted for an older generation is refused: a holder of older keys who was shut
        out can read it, and may have written it.
        """
        _require_random_name(name)
        head = _Head.read(name, data)
        head.require_signed(name, key_of, self.is_signed)
        keys = self._newest.delivered(head.statement)
        if keys is None:
            raise damaged(name, "does not say which key it was encrypted with")
        return _opened(name, data, head, keys, _header(keys, self._remote_id, _DELIVERED))

    def open(self, name: str, data: bytes) -> bytes:
        """Returns the content of a whole file; raises Corrupt, or GenerationMissing."""
        _require_random_name(name)
        keys = self._keys_of(name, data)
        return _decrypted(name, data, data[: _HEADER.size], keys, _header(keys, self._remote_id))

    def open_signed(self, name: str, data: bytes, key_of: KeyOf) -> Signed:
        """Returns what a whole signed file holds; raises Corrupt, or GenerationMissing."""
        head = _Head.read(name, data)
        generation = head.generation
        if generation not in self._generations:
            raise _missing(name, generation, self._generations)
        head.require_signed(name, key_of, self.is_signed)
        if _GIVEN_NAME.match(name):
            return head.opened_clear(name, data, self._remote_id, generation)
        _require_random_name(name)
        keys = self._keys_of(name, data)
        content = _opened(name, data, head, keys, _header(keys, self._remote_id))
        return Signed(head.statement, content, generation)

    def open_damaged(self, name: str, data: bytes) -> tuple[bytes, list[tuple[int, int]] | None]:
        """Returns what a file holds that is not signed, with zeros where it is damaged, and where
        that is, each as from and to; raises Corrupt.

        The header is not needed, as for ranges.
        """
        stream_size = _stream_size_in(name, len(data) - _HEADER.size)
        count = _segment_count(stream_size)
        view = memoryview(data)
        for segments in self._segments_of(name):
            bad: list[tuple[int, int]] = []
            stream = BytesIO(bytes(stream_size))
            for number in range(count):
                start = _HEADER.size + number * _STORED_SIZE
                stored = view[start : start + _STORED_SIZE]
                part = segments.decrypt(number, stored, is_last=number == count - 1)
                at = number * SEGMENT_SIZE
                if part is None:
                    bad.append((at, min(at + SEGMENT_SIZE, stream_size)))
                else:
                    stream.seek(at)
                    stream.write(part)
            if len(bad) < count:
                is_size_lost = bad and bad[-1][1] > stream_size - _SIZE.size
                if is_size_lost:
                    stream.truncate(segments.largest_content(stream_size))
                else:
                    stream.truncate(segments.content_size(name, stream))
                return stream.getvalue(), bad
        raise _forged(name, 0)

    def _keys_of(self, name: str, data: bytes) -> GenerationKeys:
        generation = generation_of(name, data)
        keys = self._generations.get(generation)
        if keys is None:
            raise _missing(name, generation, self._generations)
        return keys

    def sealed_size(self, name: str, content_size: int) -> int:
        """Returns how large the file of a content is that is not signed.

        Where there are several key generations, it is the largest that it may be.
        """
        return max(
            _HEADER.size + _stored_size(each.stream_size(content_size))
            for each in self._segments_of(name)
        )

    def _segments_of(self, name: str) -> Iterator[_Segments]:
        """Yields how a file is encrypted that is not signed, with the keys of each generation."""
        _require_random_name(name)
        for keys in reversed(self._generations.values()):
            yield _Segments(keys, name, _header(keys, self._remote_id))

    def ranges(self, name: str, content_size: int, ranges: Sequence[Range]) -> list[Range]:
        """Returns the segments that hold the ranges: sorted, and merged where they touch."""
        _valid(_RANDOM_NAME, name)
        return _run_ranges(_runs(_cut(content_size, ranges)), self.sealed_size(name, content_size))

    def open_ranges(
        self, name: str, content_size: int, ranges: Sequence[Range], fetched: Sequence[bytes]
    ) -> list[bytes]:
        """Returns the ranges, of which every segment was verified; raises Corrupt.

        The header is not needed: where there are several key generations, their sizes and the
        first segment tell which it is.
        """
        asked = list(_cut(content_size, ranges))
        runs = _runs(asked)
        stored = {
            number: memoryview(part)[at * _STORED_SIZE : (at + 1) * _STORED_SIZE]
            for run, part in zip(runs, fetched, strict=False)
            for at, number in enumerate(run)
        }
        bad: int | None = None
        for segments in self._segments_of(name):
            stream_size = segments.stream_size(content_size)
            expected = _run_ranges(runs, _HEADER.size + _stored_size(stream_size))
            if [len(part) for part in fetched] != [size for _, size in expected]:
                continue
            opened: dict[int, bytes] = {}
            for number, data in stored.items():
                part = segments.decrypt(
                    number, data, is_last=number == _segment_count(stream_size) - 1
                )
                if part is None:
                    bad = number
                    break
                opened[number] = part
            if len(opened) == len(stored):
                return list(_parts(asked, opened))
            if opened:
                break
        if bad is None:
            raise damaged(name, "is shorter or longer than it has to be")
        raise _forged(name, bad)


class InboxSealer:
    """Files of one writer in the inbox of a remote: it makes them, and cannot open them."""

    def __init__(self, invitation: Invitation, random: Random = os.urandom) -> None:
        self._invitation = invitation
        self._keys = invitation.writer()
        self._random = random

    @property
    def writer_id(self) -> bytes:
        """What names the writer."""
        return self._keys.signer.id

    def seal(self, prefix: str, content: bytes) -> RemoteFile:
        """Returns a new file: its name is a prefix and 32 hex digits, which stand for the rest."""
        given, random = self._invitation, self._random(RANDOM_SIZE)
        where = given.inbox + _valid(_PREFIX, prefix)
        name = prefix + self._keys.token(random, content, where).hex()
        public, keys = self._keys.exchanged(
            given.inbox, given.generation, given.algorithm, random, content, where
        )
        header = _header(keys, given.remote_id, _DELIVERED)
        content_hash = keys.content_hash(content)
        head = _Head.signed(name, header, content_hash, self._keys.signer, public)
        return RemoteFile(name, _encrypted(keys, name, head.data, content))


class _Head(NamedTuple):
    """The beginning of a signed file."""

    data: bytes
    signer: bytes
    statement: bytes
    content_hash: bytes
    signature: bytes

    @classmethod
    def signed(
        cls, name: str, header: bytes, content_hash: bytes, signer: Signer, statement: bytes
    ) -> _Head:
        """Returns a new head."""
        if len(statement) > STATEMENT_SIZE_MAX:
            raise InvalidArgument(
                f"A statement of {len(statement)} bytes is too long: {STATEMENT_SIZE_MAX} at most"
            )
        hashed = checksum(statement, KEY_SIZE)
        before = header + _SIGNED.pack(len(statement), signer.id, hashed, content_hash)
        signature = signer.sign(_signed_bytes(before, name))
        return cls(before + signature + statement, signer.id, statement, content_hash, signature)

    @classmethod
    def read(cls, name: str, data: bytes) -> _Head:
        """Returns the head of a file, of which nothing is verified; raises Corrupt."""
        start = _HEADER.size + _SIGNED.size + SIGNATURE_SIZE
        if len(data) < start:
            raise NotSigned.of(name, "is cut short")
        size, signer, hashed, content_hash = _SIGNED.unpack_from(data, _HEADER.size)
        statement = data[start : start + size]
        if size > STATEMENT_SIZE_MAX or checksum(statement, KEY_SIZE) != hashed:
            raise NotSigned.of(name, "does not begin as a signed file")
        signature = data[start - SIGNATURE_SIZE : start]
        return cls(data[: start + size], signer, statement, content_hash, signature)

    def require_signed(
        self, name: str, key_of: KeyOf, is_right: Callable[[bytes, bytes, bytes], bool]
    ) -> None:
        """Raises Corrupt for what its signer did not sign under this name."""
        public = key_of(self.signer)
        if public is None:
            raise NotSigned.of(name, "is not signed by a member or an owner of the remote")
        before = self.data[: _HEADER.size + _SIGNED.size]
        if not is_right(public, self.signature, _signed_bytes(before, name)):
            raise NotSigned.of(name, "does not have the signature of its machine")

    @property
    def generation(self) -> int:
        """Which keys its writer had."""
        return int(_HEADER.unpack_from(self.data)[5])

    def opened_clear(self, name: str, data: bytes, remote_id: bytes, generation: int) -> Signed:
        """Returns what a file holds that is not encrypted; raises Corrupt."""
        content = data[len(self.data) :]
        is_right = data[: _HEADER.size] == _clear_header(remote_id, generation)
        if not is_right or not compare_digest(checksum(content, KEY_SIZE), self.content_hash):
            raise damaged(name, "has another content than its machine signed")
        return Signed(self.statement, content, generation)


def signer_of(name: str, data: bytes) -> bytes:
    """Returns who a file says has signed it; raises Corrupt. Nothing is authentic yet."""
    return _Head.read(name, data).signer


def remote_of(name: str, data: bytes) -> tuple[bytes, bool]:
    """Returns of which remote a signed or encrypted file says it is, and whether that is encrypted.

    Raises Corrupt for another file. Nothing is authentic yet.
    """
    if len(data) >= _HEADER.size:
        magic, kind, version, _, mode, generation, remote_id = _HEADER.unpack_from(data)
        if (magic, kind, version) == (MAGIC, FileKind.ENCRYPTED, _VERSION):
            if mode == _CLEAR:
                _Head.read(name, data)
            return remote_id, generation > 0
    raise damaged(name, "does not say which remote it is of")


def _signed_bytes(before: bytes, name: str) -> bytes:
    return _SIGNED_AS + before + name.encode("ascii")


def _header(keys: _Keys, remote_id: bytes, mode: int = _ENCRYPTED) -> bytes:
    return _HEADER.pack(
        MAGIC,
        FileKind.ENCRYPTED,
        _VERSION,
        keys.algorithm,
        mode,
        keys.generation,
        remote_id,
    )


def _clear_header(remote_id: bytes, generation: int) -> bytes:
    return _HEADER.pack(MAGIC, FileKind.ENCRYPTED, _VERSION, 0, _CLEAR, generation, remote_id)


def _clear(
    remote_id: bytes,
    generation: int,
    name: str,
    content: bytes,
    signer: Signer,
    statement: bytes = b"",
) -> bytes:
    """Returns a signed file that is not encrypted."""
    header, hashed = _clear_header(remote_id, generation), checksum(content, KEY_SIZE)
    return _Head.signed(name, header, hashed, signer, statement).data + content


def _opened(name: str, data: bytes, head: _Head, keys: _Keys, header: bytes) -> bytes:
    """Returns the content of a signed file whose signature was verified; raises Corrupt."""
    content = _decrypted(name, data, head.data, keys, header)
    if keys.content_hash(content) != head.content_hash:
        raise damaged(name, "has another content than its machine signed")
    return content


def _decrypted(name: str, data: bytes, head: bytes, keys: _Keys, header: bytes) -> bytes:
    """Returns the content of a whole file that begins with a head; raises Corrupt."""
    stream_size = _stream_size_in(name, len(data) - len(head))
    if data[: _HEADER.size] != header:
        raise damaged(name, "is of another remote, or names another algorithm than its keys")
    segments = _Segments(keys, name, head)
    last = _segment_count(stream_size) - 1
    view = memoryview(data)
    stream = BytesIO()
    for number in range(last + 1):
        start = len(head) + number * _STORED_SIZE
        stored = view[start : start + _STORED_SIZE]
        part = segments.decrypt(number, stored, is_last=number == last)
        if part is None:
            raise _forged(name, number)
        stream.write(part)
    stream.truncate(segments.content_size(name, stream))
    return stream.getvalue()


def _encrypted(keys: _Keys, name: str, head: bytes, content: bytes | memoryview) -> bytes:
    segments = _Segments(keys, name, head)
    stream_size = segments.stream_size(len(content))
    last = _segment_count(stream_size) - 1
    file = BytesIO()  # two thirds of the time of a list that is joined
    # As large as it gets from the beginning: what grows leaves holes of its former sizes in memory.
    file.seek(len(head) + _stored_size(stream_size) - 1)
    file.write(b"\0")
    file.seek(0)
    file.write(head)
    for number, part in enumerate(_stream(content, stream_size)):
        file.write(segments.encrypt(number, part, is_last=number == last))
    return file.getvalue()


class _Segments:
    """The segments of one file, encrypted with the key of that file."""

    def __init__(self, keys: _Keys, name: str, head: bytes) -> None:
        self._associated = head + name.encode("ascii")
        self._file = keys.file(self._associated)

    def encrypt(self, number: int, data: bytes | memoryview, *, is_last: bool) -> bytes:
        """Returns a segment as it is stored."""
        return self._file.cipher.encrypt(_nonce(number, is_last=is_last), data, self._associated)

    def decrypt(self, number: int, data: memoryview, *, is_last: bool) -> bytes | None:
        """Returns the plaintext of a segment, or None for one that is not authentic."""
        return self._file.cipher.decrypt(_nonce(number, is_last=is_last), data, self._associated)

    def stream_size(self, content_size: int) -> int:
        """Returns how many bytes are encrypted for a content in this file."""
        return padded_size(content_size + _SIZE.size, self._file.draws)

    def largest_content(self, stream_size: int) -> int:
        """Returns the size of the largest content for which so many bytes are encrypted."""
        size = stream_size - _SIZE.size
        while (excess := self.stream_size(size) - stream_size) > 0:
            size -= excess
        return size

    def content_size(self, name: str, stream: BytesIO) -> int:
        """Returns the size of the content in a verified stream.

        Raises Corrupt for one that no writer makes, so that equal contents are equal streams.
        """
        with stream.getbuffer() as view:
            end = len(view) - _SIZE.size
            (size,) = _SIZE.unpack_from(view, end)
            is_padded = size <= end and self.stream_size(size) == len(view)
            if not is_padded or bytes(view[size:end]).strip(b"\0"):
                raise damaged(name, "is not padded as it has to be")
        return int(size)


def generation_of(name: str, data: bytes) -> int:
    """Returns which keys a file says it is encrypted with, by its header.

    Nothing is authentic before the file was opened. Raises Corrupt for no encrypted file.
    """
    if len(data) < _HEADER.size:
        raise damaged(name, "is cut short")
    magic, kind, version, _, mode, generation, _ = _HEADER.unpack_from(data)
    if (magic, kind, version, mode) != (MAGIC, FileKind.ENCRYPTED, _VERSION, _ENCRYPTED):
        raise damaged(name, "is not an encrypted file")
    return int(generation)


def padded_size(size: int, draws: tuple[int, int]) -> int:
    """Returns a size to which two numbers below one step were added before it was rounded up.

    Both are drawn for one file. With one of them, the step in which a size falls seldom would
    give it away after some thousand files.
    """
    step = max(STEP_MIN, 1 << max(size.bit_length() - 1, 0) >> 5)
    return -(-(size + draws[0] % step + draws[1] % step) // step) * step


def _segment_count(stream_size: int) -> int:
    return -(-stream_size // SEGMENT_SIZE)


def _stored_size(stream_size: int) -> int:
    """Returns how many bytes the segments of a stream have."""
    return stream_size + TAG_SIZE * _segment_count(stream_size)


def _stream_size_in(name: str, stored_size: int) -> int:
    """Returns how many bytes are encrypted in segments of some size, or raises Corrupt."""
    stream_size = stored_size - TAG_SIZE * -(-stored_size // _STORED_SIZE)
    is_possible = (
        stream_size >= STEP_MIN
        and stream_size % STEP_MIN == 0
        and stored_size == _stored_size(stream_size)
    )
    if not is_possible:
        raise damaged(name, f"has a size that no file has: {stored_size} bytes of segments")
    return stream_size


def _stream(content: bytes | memoryview, stream_size: int) -> Iterator[bytes | memoryview]:
    """Yields what is encrypted for a content, segment by segment."""
    view = memoryview(content)
    whole = len(view) // SEGMENT_SIZE * SEGMENT_SIZE
    for start in range(0, whole, SEGMENT_SIZE):
        yield view[start : start + SEGMENT_SIZE]
    padding = bytes(stream_size - len(view) - _SIZE.size)
    rest = memoryview(b"".join([view[whole:], padding, _SIZE.pack(len(view))]))
    for start in range(0, len(rest), SEGMENT_SIZE):
        yield rest[start : start + SEGMENT_SIZE]


def _cut(content_size: int, ranges: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """Yields start and end of each range, inside the content."""
    for start, size in ranges:
        if start < 0 or size < 0:
            raise InvalidArgument(f"There is no range of {size} bytes from {start} on")
        yield min(start, content_size), min(start + size, content_size)


def _numbers(start: int, end: int) -> range:
    """Returns the segments that hold a range."""
    return range(start // SEGMENT_SIZE, _segment_count(end) if start < end else 0)


def _runs(asked: Iterable[tuple[int, int]]) -> list[range]:
    """Returns the segments that hold some ranges, sorted, as few runs as possible."""
    runs: list[range] = []
    for numbers in sorted((_numbers(*each) for each in asked), key=lambda each: each.start):
        if not numbers:
            continue
        if runs and numbers.start <= runs[-1].stop:
            runs[-1] = range(runs[-1].start, max(runs[-1].stop, numbers.stop))
        else:
            runs.append(numbers)
    return runs


def _run_ranges(runs: Iterable[range], end: int) -> list[Range]:
    """Returns where runs of segments are stored in a file of some size."""
    places = [(_HEADER.size + run.start * _STORED_SIZE, run.stop) for run in runs]
    return [(start, min(_HEADER.size + stop * _STORED_SIZE, end) - start) for start, stop in places]


def _parts(asked: Iterable[tuple[int, int]], opened: dict[int, bytes]) -> Iterator[bytes]:
    """Yields ranges of a content out of its segments."""
    for start, end in asked:
        first = start // SEGMENT_SIZE
        joined = b"".join([opened[number] for number in _numbers(start, end)])
        yield joined[start - first * SEGMENT_SIZE : end - first * SEGMENT_SIZE]


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\1" if is_last else b"\0")


def _require_random_name(name: str) -> None:
    if not _RANDOM_NAME.match(name):
        raise damaged(name, "has a name that no encrypted file has")


def _valid(pattern: re.Pattern[str], text: str) -> bytes:
    """Returns the bytes of a name or a prefix, or raises InvalidArgument."""
    if not pattern.match(text):
        raise InvalidArgument(f"{text!r} is not a name for a file of a remote")
    return text.encode("ascii")


def _forged(name: str, number: int) -> Corrupt:
    return damaged(name, f"is not authentic: segment {number} was changed, or its keys are others")


def _missing(name: str, generation: int, generations: Iterable[int]) -> GenerationMissing:
    error = GenerationMissing(
        f"Remote file {name!r} needs key generation {generation}, and those at hand are "
        f"{', '.join(map(str, generations))}",
        path=name,
    )
    error.generation = generation
    return error
