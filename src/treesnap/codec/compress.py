"""Compression of objects: zstd, in batches without the GIL, bounded on the way back.

The only module that imports zstandard. One compressor serves one thread at a time, so there
is one of each level for each thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from treesnap.errors import Corrupt

if TYPE_CHECKING:
    import zstandard

OBJECT_SIZE_MAX = 16 << 20
"""The largest object before compression; a larger one is refused unread."""

LEVEL_DEFAULT = 3

_SMALL = 64
"""Objects up to this size are stored as they are: a frame costs more than it saves."""


class Compression(IntEnum):
    """How an object's bytes are stored."""

    NONE = 0
    ZSTD = 1


_local = threading.local()


def _compressor(level: int) -> zstandard.ZstdCompressor:
    """Returns the one of this thread; the memory that it works in stays for the next time."""
    compressor: zstandard.ZstdCompressor | None = vars(_local).get(f"level_{level}")
    if compressor is None:
        import zstandard

        compressor = vars(_local)[f"level_{level}"] = zstandard.ZstdCompressor(level=level)
    return compressor


def compress(
    objects: Sequence[bytes], level: int = LEVEL_DEFAULT
) -> list[tuple[Compression, bytes]]:
    """Returns how each object is stored: compressed where that saves bytes.

    The whole batch is compressed in one call that gives the GIL away.
    """
    large: list[bytes | bytearray | memoryview] = [data for data in objects if len(data) > _SMALL]
    if not large:
        return [(Compression.NONE, data) for data in objects]
    frames: Iterator[Any] = (
        iter(_compressor(level).multi_compress_to_buffer(large))
        if len(large) > 1
        else iter([memoryview(_compressor(level).compress(large[0]))])  # takes a tenth of the time
    )
    stored: list[tuple[Compression, bytes]] = []
    for data in objects:
        if len(data) > _SMALL:
            frame = next(frames)
            if len(frame) < len(data):
                stored.append((Compression.ZSTD, frame.tobytes()))
                continue
        stored.append((Compression.NONE, data))
    return stored


def decompress(compression: int, stored: bytes, raw_size: int) -> bytes:
    """Returns an object's bytes; raises Corrupt unless they are exactly ``raw_size``.

    No more than ``raw_size`` bytes are ever allocated for the result, and
    ``raw_size`` itself is bounded by OBJECT_SIZE_MAX.
    """
    if not 0 <= raw_size <= OBJECT_SIZE_MAX:
        raise Corrupt(f"Stored object claims {raw_size} bytes, more than {OBJECT_SIZE_MAX}")
    if compression == Compression.NONE:
        if len(stored) != raw_size:
            raise Corrupt(f"Stored object has {len(stored)} bytes and claims {raw_size}")
        return stored
    if compression != Compression.ZSTD:
        raise Corrupt(f"Stored object has the unknown compression {compression}")
    import zstandard

    own = getattr(_local, "decompressor", None)
    if own is None:
        own = _local.decompressor = zstandard.ZstdDecompressor()
    try:
        parameters = zstandard.get_frame_parameters(stored)
        if parameters.content_size != raw_size:
            raise Corrupt(f"Stored object does not hold the {raw_size} bytes that it claims")
        data: bytes = own.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"Stored object cannot be decompressed: {error}") from error
    if len(data) != raw_size:
        raise Corrupt(f"Stored object has {len(data)} bytes and claims {raw_size}")
    return data
