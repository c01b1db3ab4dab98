"""Blobs that are only ever read whole: some servers send no parts, or the wrong ones."""

from __future__ import annotations

from collections.abc import Sequence

from treesnap.remote.blobs.base import Blobs, Range, WrappedBlobs, check_ranges


class WholeReads(WrappedBlobs):
    """Blobs of which a part costs the whole blob, unless it is the one that was read last.

    Takes the memory of that one: of packs, 32 MiB.
    """

    def __init__(self, blobs: Blobs) -> None:
        super().__init__(blobs)
        self._last: tuple[str, bytes] | None = None

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        """Reads a blob, and returns parts of it."""
        check_ranges(ranges)
        last = self._last
        if last is None or last[0] != name:
            self._last = None  # its memory is needed for the next one
            last = self._last = name, self._blobs.get(name)
        return [last[1][start : start + size] for start, size in ranges]
