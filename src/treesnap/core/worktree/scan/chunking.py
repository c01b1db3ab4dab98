"""Where to cut file content into chunks.

FastCDC 2020 (Xia et al., "The Design of Fast Content-Defined Chunking for Data
Deduplication Based Storage Systems", IEEE TPDS 31(9)), from the compiled library
pyfastcdc, with parameters that are part of the format, and with others for what is not stored.
The only module that imports it. Cut points may never differ between machines or versions, so the
library is tried on a known input before it is used on a file.

Content up to 256 KiB is one chunk and needs no library.
"""

from __future__ import annotations

from _thread import _local as local  # as in threading, which takes longer to import
from collections.abc import Iterator

from treesnap.core.model.errors import OperationFailed
from treesnap.core.model.ids import checksum, expanded
from treesnap.core.model.type_names import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyfastcdc import FastCDC

SINGLE_SIZE_MAX = 256 << 10
"""Content up to this size is one chunk."""
CHUNK_SIZE_MIN = 16 << 10
CHUNK_SIZE_AVERAGE = 64 << 10
CHUNK_SIZE_MAX = 256 << 10
NORMALIZATION: Literal[2] = 2

FINE_SIZE_MAX = 16 << 10
"""Nothing that :func:`cut_finely` cuts is larger."""
_FINE_SIZE_AVERAGE = 4 << 10
_FINE_SIZE_MIN = 1 << 10

_PROBE_SIZE = 1 << 20
_PROBE_CHECKSUM = "68c2ceba9171d9139c4d58403f835c72"
_own = local()


def _chunker() -> FastCDC:
    """Returns this thread's chunker; a new one has cut a known input where it must.

    One object serves one thread: the library keeps state in it.
    """
    own: FastCDC | None = getattr(_own, "chunker", None)
    if own is not None:
        return own
    from pyfastcdc import FastCDC

    chunker = FastCDC(
        CHUNK_SIZE_AVERAGE,
        min_size=CHUNK_SIZE_MIN,
        max_size=CHUNK_SIZE_MAX,
        normalized_chunking=NORMALIZATION,
    )
    probe = expanded(b"treesnap chunking probe", _PROBE_SIZE)
    sizes = ",".join(str(chunk.length) for chunk in chunker.cut_buf(probe))
    if checksum(sizes.encode(), 16).hex() != _PROBE_CHECKSUM:
        raise OperationFailed("The installed pyfastcdc cuts files elsewhere than this format does")
    _own.chunker = chunker
    return chunker


def cut(data: memoryview, *, is_last: bool) -> Iterator[int]:
    """Yields the sizes of the chunks at the start of ``data``.

    Unless ``is_last``, chunks are yielded only while more data could not move
    their end; the caller prepends the rest to what it reads next.
    """
    for chunk in _chunker().cut_buf(data):
        if not is_last and chunk.offset + CHUNK_SIZE_MAX > len(data):
            return
        yield chunk.length


def cut_finely(data: memoryview) -> Iterator[int]:
    """Yields the sizes of small pieces of ``data``, cut by its content; none of this is stored."""
    from pyfastcdc import FastCDC

    fine = FastCDC(_FINE_SIZE_AVERAGE, min_size=_FINE_SIZE_MIN, max_size=FINE_SIZE_MAX)
    return (chunk.length for chunk in fine.cut_buf(data))
