"""Compression of blocks: zstd, bounded on the way back.

The only module that imports ``compression.zstd``, which Python has from 3.14 on; to those before
it a package brings it. One compressor serves one thread at a time, so there is one of each level
for each thread.
"""

from __future__ import annotations

import sys
from _thread import _local as local  # as in threading, which takes longer to import
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

from treesnap.core.model.errors import Corrupt
from treesnap.core.model.type_names import IO, TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from types import ModuleType

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
_WINDOW_LOG_MAX = 27
"""Memory that a stream from elsewhere may ask for, 128 MiB: what the command zstd allows."""
_FRAME_HEADER = b"\x28\xb5\x2f\xfd"

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


def zstd_module() -> ModuleType:
    """Returns what compresses; most of what commands do does not."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _compressor(level: int) -> Any:
    """Returns the one of this thread; the memory that it works in stays for the next time."""
    compressor = vars(_local).get(f"level_{level}")
    if compressor is None:
        compressor = vars(_local)[f"level_{level}"] = zstd_module().ZstdCompressor(level=level)
    return compressor


def compress(data: bytes, level: int) -> tuple[Compression, bytes]:
    """Returns how a block is stored: compressed where that saves bytes.

    Compressing gives the GIL away.
    """
    if len(data) > _SMALL:
        compressor = _compressor(level)
        frame: bytes = compressor.compress(data, compressor.FLUSH_FRAME)
        if len(frame) < len(data):
            return Compression.ZSTD, frame
    return Compression.NONE, data


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
    zstd = zstd_module()
    try:
        if zstd.get_frame_info(stored).decompressed_size != raw_size:
            raise Corrupt(f"The block does not hold the {raw_size} bytes that it claims")
        decompressor = zstd.ZstdDecompressor()  # each is for one frame
        data: bytes = decompressor.decompress(stored, size)
    except zstd.ZstdError as error:
        raise Corrupt(f"The block cannot be decompressed: {error}") from error
    if size == raw_size and (not decompressor.eof or decompressor.unused_data):
        raise Corrupt("The block does not end where its frame does")
    if len(data) != size:
        raise Corrupt(f"The block has {len(data)} bytes and claims {raw_size}")
    return data


def decompress_damaged(compression: int, stored: bytes, size_max: int) -> bytes:
    """Returns what comes before the damage in a block, at most ``size_max`` bytes.

    For a compressed one, ``stored`` may begin before its frame.
    """
    if compression == Compression.NONE:
        return stored[:size_max]
    zstd = zstd_module()
    begin = stored.find(_FRAME_HEADER)
    if begin < 0:
        return b""
    decompressor = zstd.ZstdDecompressor()
    raw = bytearray()
    with suppress(zstd.ZstdError):
        for position in range(begin, len(stored), _FEED_SIZE):
            piece = stored[position : position + _FEED_SIZE]
            raw += decompressor.decompress(piece, size_max - len(raw))
            if len(raw) >= size_max or decompressor.eof:
                break
    return bytes(raw)


def stream_compressor() -> StreamCompressor:
    """Returns what makes one zstd frame, with a checksum; equal bytes make equal frames."""
    zstd = zstd_module()
    parameter = zstd.CompressionParameter
    options = {parameter.compression_level: LEVEL_ARCHIVE, parameter.checksum_flag: 1}
    compressor: StreamCompressor = zstd.ZstdCompressor(options=options)
    return compressor


def stream_reader(source: IO[bytes]) -> Callable[[int], bytes]:
    """Returns a function that reads what zstd frames hold; it raises ValueError for others."""
    zstd = zstd_module()
    options = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
    file = zstd.ZstdFile(source, options=options)

    def read(size: int) -> bytes:
        try:
            data: bytes = file.read(size)
        except (zstd.ZstdError, EOFError) as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error
        return data

    return read
