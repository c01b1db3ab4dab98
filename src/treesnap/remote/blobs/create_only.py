"""Blobs that are only ever created: a machine's credentials may be refused everything else.

A server that lets nothing be replaced takes a blob only with the condition that there is none. So
a repeated request fails once the first one has had its effect; what is there then is the same blob,
because a name belongs to its content.
"""

from __future__ import annotations

from contextlib import suppress

from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.remote.blobs.base import BlobMissing, Data, WrappedBlobs

ATTEMPTS = 5


class CreateOnly(WrappedBlobs):
    """Blobs of which ``put`` replaces nothing."""

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
