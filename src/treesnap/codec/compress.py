"""Compression of objects: zstd, in batches without the GIL, bounded on the way back.

The only module that imports zstandard. One compressor serves one thread at a
time; :class:`Compressor` keeps one per thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cache
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


class Compressor:
    """Compresses batches of objects, each on its own."""

    def __init__(self, level: int = LEVEL_DEFAULT) -> None:
        self._level = level
        self._local = threading.local()

    def _own(self) -> zstandard.ZstdCompressor:
        compressor = getattr(self._local, "compressor", None)
        if compressor is None:
            import zstandard

            compressor = zstandard.ZstdCompressor(level=self._level)
            self._local.compressor = compressor
        return compressor

    def compress(self, objects: Sequence[bytes]) -> list[tuple[Compression, bytes]]:
        """Returns how each object is stored: compressed where that saves bytes.

        The whole batch is compressed in one call that gives the GIL away.
        """
        large: list[bytes | bytearray | memoryview] = [
            data for data in objects if len(data) > _SMALL
        ]
        if not large:
            return [(Compression.NONE, data) for data in objects]
        frames: Iterator[Any] = (
            iter(self._own().multi_compress_to_buffer(large))
            if len(large) > 1
            else iter([memoryview(self._own().compress(large[0]))])  # takes a tenth of the time
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


@cache
def compressor_of(level: int = LEVEL_DEFAULT) -> Compressor:
    """Returns the one of this process; the memory that it works in stays for the next time."""
    return Compressor(level)


_decompressor = threading.local()


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

    own = getattr(_decompressor, "own", None)
    if own is None:
        own = _decompressor.own = zstandard.ZstdDecompressor()
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
