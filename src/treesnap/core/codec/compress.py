"""Compression of blocks: zstd, in batches without the GIL, bounded on the way back.

The only module that imports zstandard. One compressor serves one thread at a time, so there
is one of each level for each thread.
"""

from __future__ import annotations

from _thread import _local as local  # as in threading, which takes longer to import
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import IntEnum

from treesnap.core.model.errors import Corrupt
from treesnap.core.model.type_names import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import zstandard

OBJECT_SIZE_MAX = 16 << 20
"""The largest object before compression; a larger one is refused unread."""

BLOCK_RAW_SIZE_MAX = OBJECT_SIZE_MAX + 1
"""The largest block before compression: the largest object and its kind byte."""

LEVEL_CAPTURE = 1
"""The fastest: what is captured may be gone soon."""
LEVEL_REWRITE = 3
"""What a collection rewrites has stayed: 8 % smaller, for a fifth more time."""
LEVEL_ARCHIVE = 3
"""As the command zstd has it."""
_WINDOW_SIZE_MAX = 128 << 20
"""Memory that a stream from elsewhere may ask for: what the command zstd allows."""

_SMALL = 64
"""Objects up to this size are stored as they are: a frame costs more than it saves."""
_FEED_SIZE = 256
"""Bytes of a damaged frame that are decompressed at once."""


class StreamCompressor(Protocol):
    """Compresses bytes as they come."""

    def compress(self, data: bytes, /) -> bytes:
        """Takes bytes; returns what is ready, which may be nothing."""

    def flush(self) -> bytes:
        """Returns the rest."""


class Compression(IntEnum):
    """How the bytes of a block are stored."""

    NONE = 0
    ZSTD = 1


_local = local()


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """Returns the one of this thread; the memory that it works in stays for the next time."""
    compressor: zstandard.ZstdCompressor | None = vars(_local).get(f"level_{level}")
    if compressor is None:
        import zstandard

        compressor = vars(_local)[f"level_{level}"] = zstandard.ZstdCompressor(level=level)
    return compressor


def compress(blocks: Sequence[bytes], level: int) -> list[tuple[Compression, bytes]]:
    """Returns how each block is stored: compressed where that saves bytes.

    All are compressed in one call that gives the GIL away.
    """
    large: list[bytes | bytearray | memoryview] = [data for data in blocks if len(data) > _SMALL]
    if not large:
        return [(Compression.NONE, data) for data in blocks]
    frames: Iterator[Any] = (
        iter(_compressor(level).multi_compress_to_buffer(large))
        if len(large) > 1
        else iter([memoryview(_compressor(level).compress(large[0]))])  # takes a tenth of the time
    )
    stored: list[tuple[Compression, bytes]] = []
    for data in blocks:
        if len(data) > _SMALL:
            frame = next(frames)
            if len(frame) < len(data):
                stored.append((Compression.ZSTD, frame.tobytes()))
                continue
        stored.append((Compression.NONE, data))
    return stored


def decompress(compression: int, stored: bytes, raw_size: int) -> bytes:
    """Returns the bytes of a block; raises Corrupt unless they are exactly ``raw_size``.

    No more than ``raw_size`` bytes are ever allocated for the result, and
    ``raw_size`` itself is bounded by BLOCK_RAW_SIZE_MAX.
    """
    return _decompressed(compression, stored, raw_size, raw_size)


def decompress_start(compression: int, stored: bytes, raw_size: int, size: int) -> bytes:
    """Returns the first ``size`` bytes of a block of ``raw_size``; raises Corrupt.

    What follows is not looked at.
    """
    return _decompressed(compression, stored, raw_size, size)


def _decompressed(compression: int, stored: bytes, raw_size: int, size: int) -> bytes:
    if not 0 <= raw_size <= BLOCK_RAW_SIZE_MAX:
        raise Corrupt(f"The block claims {raw_size} bytes, more than {BLOCK_RAW_SIZE_MAX}")
    if compression == Compression.NONE:
        if len(stored) != raw_size:
            raise Corrupt(f"The block has {len(stored)} bytes and claims {raw_size}")
        return stored
    if compression != Compression.ZSTD:
        raise Corrupt(f"The block has the unknown compression {compression}")
    import zstandard

    own = getattr(_local, "decompressor", None)
    if own is None:
        own = _local.decompressor = zstandard.ZstdDecompressor()
    try:
        parameters = zstandard.get_frame_parameters(stored)
        if parameters.content_size != raw_size:
            raise Corrupt(f"The block does not hold the {raw_size} bytes that it claims")
        if size < raw_size:
            with own.stream_reader(stored) as reader:
                data: bytes = reader.read(size)
        else:
            data = own.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"The block cannot be decompressed: {error}") from error
    if len(data) != size:
        raise Corrupt(f"The block has {len(data)} bytes and claims {raw_size}")
    return data


def decompress_damaged(compression: int, stored: bytes, size_max: int) -> bytes:
    """Returns what comes before the damage in a block, at most ``size_max`` bytes.

    For a compressed one, ``stored`` may begin before its frame.
    """
    if compression == Compression.NONE:
        return stored[:size_max]
    import zstandard

    begin = stored.find(zstandard.FRAME_HEADER)
    if begin < 0:
        return b""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    raw = bytearray()
    with suppress(zstandard.ZstdError):
        for position in range(begin, len(stored), _FEED_SIZE):
            raw += decompressor.decompress(stored[position : position + _FEED_SIZE])
            if len(raw) >= size_max or decompressor.eof:
                break
    return bytes(raw[:size_max])


def stream_compressor() -> StreamCompressor:
    """Returns what makes one zstd frame, with a checksum; equal bytes make equal frames."""
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL_ARCHIVE, write_checksum=True)
    return zstandard.ZstdCompressor(compression_params=parameters).compressobj()


def stream_reader(source: IO[bytes]) -> Callable[[int], bytes]:
    """Returns a function that reads what zstd frames hold; it raises ValueError for others."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_SIZE_MAX)
    reader = decompressor.stream_reader(source, read_across_frames=True)

    def read(size: int) -> bytes:
        try:
            return reader.read(size)
        except zstandard.ZstdError as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error

    return read
