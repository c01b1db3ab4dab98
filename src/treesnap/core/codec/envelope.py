"""The frame around every file of a store.

    header, 16 bytes                      sealed file
    +----------+------+---------+         +--------+-------------+---------+-----------+
    | TREESNAP | kind | version | ...     | header | length, u64 | payload | BLAKE3-32 |
    +----------+------+---------+         +--------+-------------+---------+-----------+

Byte 10 of the header is 0, byte 11 names the hash (1 is BLAKE3-256), bytes 12 to
15 are 0; files of remotes that are signed or encrypted have other things there.
All integers are little-endian. Large files (packs, indexes, stat caches, those of
remotes) begin with the header and go on as their own modules say; small ones are
sealed whole.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum

from treesnap.core.model.errors import (
    Corrupt,
    InvalidArgument,
    NewerVersion,
    UnsupportedFormat,
    quoted,
)
from treesnap.core.model.ids import checksum
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from treesnap.core.codec.fields import Table

MAGIC = b"TREESNAP"
HEADER_SIZE = 16
CHECKSUM_SIZE = 32
HASH_BLAKE3 = 1
FRAME_SIZE = HEADER_SIZE + 8 + CHECKSUM_SIZE
"""Bytes of a sealed file around its payload."""
SEALED_SIZE_MAX = 256 << 20
"""The largest sealed file that is read: a journal of about a million steps."""

_HEADER = struct.Struct("<8sBBBB4x")
_VERSION_AT = 9
_LENGTH = struct.Struct("<Q")

T = TypeVar("T")


class FileKind(IntEnum):
    """What a file of the store is."""

    PACK = 1
    INDEX = 2
    SNAPSHOT = 3
    SNAPSHOT_STATE = 4
    STAT_CACHE = 5
    JOURNAL = 6
    ROOT = 7
    HISTORY = 8
    COLLECTION = 9
    SLOT = 10
    EXPORT = 11
    COLLECTED_SIZE = 12
    PLAN = 13
    NAMES = 14
    HOLD = 15
    EXPORT_MOVES = 16
    GAPS = 17
    ENCRYPTED = 18
    KEY_SLOT = 19
    REMOTE_STATE = 20
    COMMIT = 21
    DELETION = 22
    CATALOG = 23
    REMOTE_INDEX = 24
    REMOTE = 25
    PUSHED = 26
    MEMBERS = 27
    MACHINE = 28
    ORIGIN = 29
    DELIVERY = 30
    DELIVERED = 31
    CHANGE = 32


def header(kind: FileKind, version: int = 1) -> bytes:
    """Returns the first bytes of a file."""
    return _HEADER.pack(MAGIC, kind, version, 0, HASH_BLAKE3)


def check_header(data: bytes | memoryview, kind: FileKind, where: str, version: int = 1) -> None:
    """Raises Corrupt or UnsupportedFormat unless ``data`` begins with the right header."""
    if len(data) < HEADER_SIZE:
        raise Corrupt(f"File {quoted(where)} is too short to be a {kind.name.lower()}", path=where)
    magic, found_kind, found_version, encryption, hash_number = _HEADER.unpack_from(data)
    if magic != MAGIC or found_kind != kind:
        raise Corrupt(f"File {quoted(where)} is not a {kind.name.lower()}", path=where)
    if found_version != version or encryption != 0 or hash_number != HASH_BLAKE3:
        raise UnsupportedFormat(
            f"File {quoted(where)} has {kind.name.lower()} version {found_version}, "
            f"and this treesnap reads version {version}",
            path=where,
        )


def is_newer(data: bytes | memoryview, kind: FileKind) -> bool:
    """Returns whether the header of a file says that it is of a newer version.

    So may one that is damaged.
    """
    if len(data) < HEADER_SIZE:
        return False
    magic, found_kind, version, _, _ = _HEADER.unpack_from(data)
    return bool(magic == MAGIC and found_kind == kind and version > 1)


class Format(NamedTuple, Generic[T]):
    """How the records of one kind of file are written: the only way to publish one.

    What is written was read back first, with the reader's own rules. So no value that a
    caller, a file system or a clock comes up with can leave a file behind that stops every
    later operation.
    """

    kind: FileKind
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    size_max: int = SEALED_SIZE_MAX
    """Bytes of the largest file that its reader takes."""
    unframe: Callable[[bytes, FileKind, str], bytes] | None = None
    """Returns the payload of a whole file, where it is not just sealed."""

    @classmethod
    def of(cls, kind: FileKind, table: Table[T], size_max: int = SEALED_SIZE_MAX) -> Format[T]:
        """Returns the format of the records of a table."""
        return cls(kind, table.encode, table.decode, size_max)

    def payload(self, record: T) -> bytes:
        """Returns the bytes of a record; raises InvalidArgument unless they read back equal."""
        what = self.kind.name.lower().replace("_", " ")
        try:
            payload = self.encode(record)
            read_back = self.decode(payload)
        except Corrupt as error:
            raise InvalidArgument(f"Not written, for no reader would accept it: {error}") from error
        except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
            raise InvalidArgument(f"A {what} cannot hold this: {error}") from error
        if read_back != record:
            raise InvalidArgument(f"A {what} cannot hold this: it would read back as another")
        size = len(payload) + FRAME_SIZE
        if size > self.size_max:
            raise InvalidArgument(f"A {what} of {size} bytes is too large: {self.size_max} at most")
        return payload

    def seal(self, record: T) -> bytes:
        """Returns the whole file of a record, as :meth:`payload` does."""
        return seal(self.kind, self.payload(record))

    def unseal(self, data: bytes, where: str) -> T:
        """Returns the record in a whole file; raises Corrupt or UnsupportedFormat."""
        return self.decode((self.unframe or unseal)(data, self.kind, where))

    def frame(self, payload: bytes) -> bytes:
        """Returns the whole file of a payload that was read before; raises Corrupt."""
        self.decode(payload)
        return seal(self.kind, payload)


def seal(kind: FileKind, payload: bytes) -> bytes:
    """Returns a whole small file: header, length, payload, checksum."""
    body = header(kind) + _LENGTH.pack(len(payload)) + payload
    return body + checksum(body, CHECKSUM_SIZE)


def unseal(data: bytes, kind: FileKind, where: str) -> bytes:
    """Returns the payload of a sealed file, or raises Corrupt or UnsupportedFormat.

    NewerVersion where the frame, which later versions keep, proves that the file is whole.
    """
    try:
        check_header(data, kind, where)
    except UnsupportedFormat as error:
        if data[_VERSION_AT] > 1 and _is_whole(data, where):
            raise NewerVersion(error.message, path=where) from error
        raise
    return _payload(data, where)


def _is_whole(data: bytes, where: str) -> bool:
    try:
        _payload(data, where)
    except Corrupt:
        return False
    return True


def _payload(data: bytes, where: str) -> bytes:
    """Returns the payload in a frame with some header, or raises Corrupt."""
    start = HEADER_SIZE + _LENGTH.size
    if len(data) < start + CHECKSUM_SIZE:
        raise Corrupt(f"File {quoted(where)} is cut short", path=where)
    (length,) = _LENGTH.unpack_from(data, HEADER_SIZE)
    if length != len(data) - start - CHECKSUM_SIZE:
        raise Corrupt(f"File {quoted(where)} does not have the length it states", path=where)
    body = memoryview(data)[: start + length]
    if checksum(body, CHECKSUM_SIZE) != data[start + length :]:
        raise Corrupt(f"File {quoted(where)} does not match its checksum", path=where)
    return data[start : start + length]
