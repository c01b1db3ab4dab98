"""Blobs that are only ever created: a machine's credentials may be refused everything else.

A server that lets nothing be replaced takes a blob only with the condition that there is none. So
a repeated request fails once the first one has had its effect; what is there then is the same blob,
because a name belongs to its content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from treesnap.blobs.base import BLOB_SIZE_MAX, BlobInfo, BlobMissing, Blobs, Data, Range
from treesnap.errors import ErrorCode, RemoteFailed

ATTEMPTS = 5


class CreateOnly:
    """Implements :class:`treesnap.blobs.base.Blobs` on top of others; ``put`` replaces nothing."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def put(self, name: str, data: Data, /) -> None:
        """Creates a blob, or finds it there; costs a request for its size where that is unclear."""
        problem: RemoteFailed | None = None
        for _ in range(ATTEMPTS):
            try:
                if self._blobs.create(name, data):
                    return
            except RemoteFailed as error:
                if not error.is_unclear:
                    raise
                problem = error
            with suppress(BlobMissing):  # servers refuse one of two requests that meet
                if self._blobs.size_bytes(name) == len(data):
                    return
                raise RemoteFailed(
                    f"Another blob is at {name!r} already", code=ErrorCode.REMOTE_DAMAGED
                )
        raise problem or RemoteFailed(f"The server refuses the blob {name!r}")

    def create(self, name: str, data: Data, /) -> bool:
        """Writes a blob if there is none."""
        return self._blobs.create(name, data)

    def get(self, name: str, /, size_bytes_max: int = BLOB_SIZE_MAX) -> bytes:
        """Returns a blob."""
        return self._blobs.get(name, size_bytes_max)

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        """Returns parts of a blob."""
        return self._blobs.get_ranges(name, ranges)

    def size_bytes(self, name: str, /) -> int:
        """Returns the size of a blob."""
        return self._blobs.size_bytes(name)

    def list(self, prefix: str, /, after: str = "") -> Iterator[BlobInfo]:
        """Yields names."""
        return self._blobs.list(prefix, after)

    def delete(self, names: Sequence[str], /) -> Sequence[str]:
        """Asks for the removal of blobs, which the server may refuse."""
        return self._blobs.delete(names)

    def close(self) -> None:
        """Closes the blobs below."""
        self._blobs.close()
