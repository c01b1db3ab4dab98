"""Files of a remote: what is stored for a content, and how it is read again, in parts too.

    header, 16 bytes                                              encrypted file
    +----------+----+---------+-----------+---+------------+      +--------+------+---------+-- --+
    | TREESNAP | 18 | version | algorithm | 1 | generation |      | header | salt | segment | ... |
    +----------+----+---------+-----------+---+------------+      +--------+------+---------+-- --+

    segments: encrypted(content | zeros | content size u64), 64 KiB each but for the last,
              with a tag of 16 bytes after each

What holds:

1. A key encrypts one file. It is derived from the header, the full name and the salt. The last 32
   digits of a random name, or the salt of a file whose name can be guessed, are a hash of random
   bytes *and of the content*. So where a machine repeats its random bytes, because it was restored
   twice from one memory image, the same key means the same bytes.
2. A segment is authentic at its place in its file, under the file's name, in its remote, or it is
   refused: its nonce is its number and whether it is the last. Nothing of a segment is returned
   before its tag was verified.
3. The server sees names and padded sizes. A range read shows which segments are of interest.

A content that repeats under another name is another file. A retry after a failure sends the same
bytes, and does not encrypt again.

Not here: keys and algorithms (keys), requests, what a content means. The page
docs/reference/remote-encryption.md specifies the bytes.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from typing import Protocol

from treesnap.core.codec.envelope import HASH_BLAKE3, HEADER_SIZE, MAGIC, FileKind
from treesnap.core.model.errors import Corrupt, GenerationMissing, InvalidArgument
from treesnap.core.model.ids import checksum
from treesnap.remote.keys import (
    RANDOM_SIZE,
    SALT_SIZE,
    TAG_SIZE,
    GenerationKeys,
    MasterKeys,
    Random,
    RemoteFile,
    damaged,
)

SEGMENT_SIZE = 64 << 10
"""Bytes that are encrypted together."""
PADDED_FROM = 16 << 10
"""Smaller files show their size."""

_VERSION = 1
_HEADER = struct.Struct("<8sBBBBI")
_SIZE = struct.Struct("<Q")
_STORED_SIZE = SEGMENT_SIZE + TAG_SIZE
_NO_SALT = bytes(SALT_SIZE)
"""Stands for the salt of a file whose name is one."""
_PREFIX = re.compile(r"[a-z]+/(?:[0-9a-f]{16}-)?\Z")
_RANDOM_NAME = re.compile(r"[a-z]+/(?:[0-9a-f]{16}-)?[0-9a-f]{32}\Z")
_GIVEN_NAME = re.compile(r"[a-z]+/[0-9a-f]{16}\Z")

Range = tuple[int, int]
"""First byte and size."""


class Sealer(Protocol):
    """Turns contents into files of a remote, and back.

    Sizes and ranges of a content are those before encryption.
    """

    def seal(self, prefix: str, content: bytes | memoryview) -> RemoteFile:
        """Returns a new file: its name is a prefix and 32 random hex digits.

        The prefix is a directory, with or without a number of 16 hex digits and a hyphen.
        """

    def seal_as(self, name: str, content: bytes | memoryview) -> bytes:
        """Returns a new file for a name like ``state/<16 hex>``, which can be guessed."""

    def open(self, name: str, data: bytes) -> bytes:
        """Returns the content of a whole file; raises Corrupt."""

    def ranges(self, name: str, content_size: int, wanted: Sequence[Range]) -> list[Range]:
        """Returns which ranges of a file to fetch for ranges of its content.

        The file is one that :meth:`seal` made, and ``content_size`` what went into it. A range
        past the end is cut.
        """

    def open_ranges(
        self, name: str, content_size: int, wanted: Sequence[Range], fetched: Sequence[bytes]
    ) -> list[bytes]:
        """Returns ranges of a content, out of those that :meth:`ranges` said; raises Corrupt."""


class Plain:
    """Files of a remote without encryption: each is its content.

    Damage is left to what the contents are: packs and records carry checksums. Only a range that
    is cut short is refused here.
    """

    def __init__(self, random: Random = os.urandom) -> None:
        self._random = random

    def seal(self, prefix: str, content: bytes | memoryview) -> RemoteFile:
        """Returns a new file: its name is a prefix and 32 random hex digits."""
        seed = self._random(RANDOM_SIZE) + checksum(content, RANDOM_SIZE) + _valid(_PREFIX, prefix)
        return RemoteFile(prefix + checksum(seed, SALT_SIZE).hex(), bytes(content))

    def seal_as(self, name: str, content: bytes | memoryview) -> bytes:
        """Returns the content."""
        _valid(_GIVEN_NAME, name)
        return bytes(content)

    def open(self, name: str, data: bytes) -> bytes:  # noqa: ARG002 - as the protocol has it
        """Returns the content."""
        return data

    def ranges(self, name: str, content_size: int, wanted: Sequence[Range]) -> list[Range]:
        """Returns the ranges that are not empty."""
        _valid(_RANDOM_NAME, name)
        return [(start, end - start) for start, end in _cut(content_size, wanted) if start < end]

    def open_ranges(
        self, name: str, content_size: int, wanted: Sequence[Range], fetched: Sequence[bytes]
    ) -> list[bytes]:
        """Returns the ranges; raises Corrupt for one that is cut short."""
        given = iter(fetched)
        found = []
        for start, end in _cut(content_size, wanted):
            part = next(given, b"") if start < end else b""
            if len(part) != end - start:
                raise damaged(name, "is cut short")
            found.append(part)
        return found


class Encrypted:
    """Files of an encrypted remote: new ones with its newest keys, old ones with all."""

    def __init__(self, keys: MasterKeys, remote_id: bytes, random: Random = os.urandom) -> None:
        self._generations = keys.of_remote(remote_id)
        self._newest = self._generations[keys.newest]
        self._random = random

    def seal(self, prefix: str, content: bytes | memoryview) -> RemoteFile:
        """Returns a new file: its name is a prefix and 32 hex digits that are its salt."""
        random_bytes = self._random(RANDOM_SIZE)
        token = self._newest.token(random_bytes, content, _valid(_PREFIX, prefix))
        name = prefix + token.hex()
        return RemoteFile(name, self._sealed(name, b"", content))

    def seal_as(self, name: str, content: bytes | memoryview) -> bytes:
        """Returns a new file for a name that is not a salt, so a salt is in the file."""
        random_bytes = self._random(RANDOM_SIZE)
        salt = self._newest.token(random_bytes, content, _valid(_GIVEN_NAME, name))
        return self._sealed(name, salt, content)

    def _sealed(self, name: str, salt: bytes, content: bytes | memoryview) -> bytes:
        segments = _Segments(self._newest, name, salt)
        last = _segment_count(_stream_size(len(content))) - 1
        file = BytesIO()  # two thirds of the time of a list that is joined
        file.write(segments.header + salt)
        for number, part in enumerate(_stream(content)):
            file.write(segments.encrypt(number, part, is_last=number == last))
        return file.getvalue()

    def open(self, name: str, data: bytes) -> bytes:
        """Returns the content of a whole file; raises Corrupt, or GenerationMissing."""
        head = _head_size(name)
        stream_size = _stream_size_in(name, len(data))
        generation = generation_of(name, data)
        keys = self._generations.get(generation)
        if keys is None:
            raise _missing(name, generation, self._generations)
        segments = _Segments(keys, name, data[HEADER_SIZE:head])
        if data[:HEADER_SIZE] != segments.header:
            raise damaged(name, "names another algorithm than its key generation has")
        last = _segment_count(stream_size) - 1
        view = memoryview(data)
        stream = BytesIO()
        for number in range(last + 1):
            start = head + number * _STORED_SIZE
            stored = view[start : start + _STORED_SIZE]
            part = segments.decrypt(number, stored, is_last=number == last)
            if part is None:
                raise _forged(name, number)
            stream.write(part)
        stream.truncate(_content_size(name, stream))
        return stream.getvalue()

    def sealed_size(self, name: str, content_size: int) -> int:
        """Returns how large the file of a content is."""
        stream_size = _stream_size(content_size)
        return _head_size(name) + stream_size + TAG_SIZE * _segment_count(stream_size)

    def ranges(self, name: str, content_size: int, wanted: Sequence[Range]) -> list[Range]:
        """Returns the segments that hold the ranges: sorted, and merged where they touch."""
        _valid(_RANDOM_NAME, name)
        end = self.sealed_size(name, content_size)
        found = []
        for run in _runs(_cut(content_size, wanted)):
            start = HEADER_SIZE + run.start * _STORED_SIZE
            found.append((start, min(HEADER_SIZE + run.stop * _STORED_SIZE, end) - start))
        return found

    def open_ranges(
        self, name: str, content_size: int, wanted: Sequence[Range], fetched: Sequence[bytes]
    ) -> list[bytes]:
        """Returns the ranges, of which every segment was verified; raises Corrupt.

        The header is not needed: where there are several key generations, the first segment
        tells which it is.
        """
        asked = list(_cut(content_size, wanted))
        expected = self.ranges(name, content_size, wanted)
        if [len(part) for part in fetched] != [size for _, size in expected]:
            raise damaged(name, "is shorter or longer than it has to be")
        stored = {
            number: memoryview(part)[at * _STORED_SIZE : (at + 1) * _STORED_SIZE]
            for run, part in zip(_runs(asked), fetched, strict=True)
            for at, number in enumerate(run)
        }
        opened = self._opened(name, stored, _segment_count(_stream_size(content_size)) - 1)
        found = []
        for start, end in asked:
            first = start // SEGMENT_SIZE
            joined = b"".join([opened[number] for number in _numbers(start, end)])
            found.append(joined[start - first * SEGMENT_SIZE : end - first * SEGMENT_SIZE])
        return found

    def _opened(self, name: str, stored: dict[int, memoryview], last: int) -> dict[int, bytes]:
        """Returns the plaintexts of some segments of a file by number; raises Corrupt."""
        opened: dict[int, bytes] = {}
        number = 0
        for keys in reversed(self._generations.values()):
            segments = _Segments(keys, name, b"")
            for number, data in stored.items():
                part = segments.decrypt(number, data, is_last=number == last)
                if part is None:
                    break
                opened[number] = part
            if len(opened) == len(stored):
                return opened
            if opened:
                break
        raise _forged(name, number)


class _Segments:
    """The segments of one file, encrypted with the key of that file."""

    def __init__(self, keys: GenerationKeys, name: str, salt: bytes) -> None:
        self.header = _HEADER.pack(
            MAGIC, FileKind.ENCRYPTED, _VERSION, keys.algorithm, HASH_BLAKE3, keys.generation
        )
        self._associated = self.header + (salt or _NO_SALT) + name.encode("ascii")
        self._cipher = keys.cipher(self._associated)

    def encrypt(self, number: int, data: bytes | memoryview, *, is_last: bool) -> bytes:
        """Returns a segment as it is stored."""
        return self._cipher.encrypt(_nonce(number, is_last=is_last), data, self._associated)

    def decrypt(self, number: int, data: memoryview, *, is_last: bool) -> bytes | None:
        """Returns the plaintext of a segment, or None for one that is not authentic."""
        return self._cipher.decrypt(_nonce(number, is_last=is_last), data, self._associated)


def generation_of(name: str, data: bytes) -> int:
    """Returns which keys a file says it is encrypted with, by its first 16 bytes.

    Nothing is authentic before the file was opened. Raises Corrupt for no encrypted file.
    """
    if len(data) < HEADER_SIZE:
        raise damaged(name, "is cut short")
    magic, kind, version, _, hash_number, generation = _HEADER.unpack_from(data)
    if (magic, kind, version, hash_number) != (MAGIC, FileKind.ENCRYPTED, _VERSION, HASH_BLAKE3):
        raise damaged(name, "is not an encrypted file")
    return int(generation)


def padded_size(size: int) -> int:
    """Returns a size of which only the first bits are not 0, at most a sixteenth larger.

    That is Padmé: of a size of n bits the first log2(n) remain, about.
    """
    if size < PADDED_FROM:
        return size
    exponent = size.bit_length() - 1
    step = 1 << (exponent - exponent.bit_length())
    return -(-size // step) * step


def _stream_size(content_size: int) -> int:
    """Returns how many bytes are encrypted for a content."""
    return padded_size(content_size + _SIZE.size)


def _segment_count(stream_size: int) -> int:
    return -(-stream_size // SEGMENT_SIZE)


def _stream_size_in(name: str, sealed_size: int) -> int:
    """Returns how many bytes are encrypted in a file of some size, or raises Corrupt."""
    stored_size = sealed_size - _head_size(name)
    stream_size = stored_size - TAG_SIZE * -(-stored_size // _STORED_SIZE)
    is_possible = (
        stream_size >= _SIZE.size
        and stored_size == stream_size + TAG_SIZE * _segment_count(stream_size)
        and stream_size == padded_size(stream_size)
    )
    if not is_possible:
        raise damaged(name, f"has a size that no file has: {sealed_size} bytes")
    return stream_size


def _stream(content: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """Yields what is encrypted for a content, segment by segment."""
    view = memoryview(content)
    whole = len(view) // SEGMENT_SIZE * SEGMENT_SIZE
    for start in range(0, whole, SEGMENT_SIZE):
        yield view[start : start + SEGMENT_SIZE]
    padding = bytes(_stream_size(len(view)) - len(view) - _SIZE.size)
    rest = memoryview(b"".join([view[whole:], padding, _SIZE.pack(len(view))]))
    for start in range(0, len(rest), SEGMENT_SIZE):
        yield rest[start : start + SEGMENT_SIZE]


def _content_size(name: str, stream: BytesIO) -> int:
    """Returns the size of the content in a verified stream.

    Raises Corrupt for one that no writer makes, so that equal contents are equal streams.
    """
    with stream.getbuffer() as view:
        end = len(view) - _SIZE.size
        (size,) = _SIZE.unpack_from(view, end)
        if _stream_size(size) != len(view) or bytes(view[size:end]).strip(b"\0"):
            raise damaged(name, "is not padded as it has to be")
    return int(size)


def _cut(content_size: int, wanted: Sequence[Range]) -> Iterator[tuple[int, int]]:
    """Yields start and end of each range, inside the content."""
    for start, size in wanted:
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


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\1" if is_last else b"\0")


def _head_size(name: str) -> int:
    """Returns where the segments of a file begin; raises Corrupt for a name that none has."""
    if _RANDOM_NAME.match(name):
        return HEADER_SIZE
    if _GIVEN_NAME.match(name):
        return HEADER_SIZE + SALT_SIZE
    raise damaged(name, "has a name that no encrypted file has")


def _valid(pattern: re.Pattern[str], text: str) -> bytes:
    """Returns the bytes of a name or a prefix, or raises InvalidArgument."""
    if not pattern.match(text):
        raise InvalidArgument(f"{text!r} is not a name for a file of a remote")
    return text.encode("ascii")


def _forged(name: str, number: int) -> Corrupt:
    return damaged(name, f"is not authentic: segment {number} was changed, or its keys are others")


def _missing(name: str, generation: int, known: Iterable[int]) -> GenerationMissing:
    error = GenerationMissing(
        f"Remote file {name!r} needs key generation {generation}, and those at hand are "
        f"{', '.join(map(str, known))}",
        path=name,
    )
    error.generation = generation
    return error
