"""Blobs in front of others: only ever created, read whole, with room kept, at a limited rate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Protocol, TypeVar

from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.remote.blobs.base import (
    BLOB_SIZE_MAX,
    BlobMissing,
    Blobs,
    Data,
    Range,
    WrappedBlobs,
    check_ranges,
    merged_ranges,
)

_Result = TypeVar("_Result")

ATTEMPTS = 5
"""How often a blob is created, where the server's answers are unclear."""
RESERVE_BYTES = 8 << 20
"""How much room is kept for what makes room; some pieces of the index and the catalog fit."""
_RESERVE = "reserve/0"
BURST_S = 1.0
"""For how long unused tokens are kept."""


class CreateOnly(WrappedBlobs):
    """Blobs of which ``put`` replaces nothing: credentials may be refused everything else.

    A server that lets nothing be replaced takes a blob only with the condition that there is none.
    So a repeated request fails once the first one has had its effect; what is there then is the
    same blob, because a name belongs to its content.
    """

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


class WholeReads(WrappedBlobs):
    """Blobs of which a part costs the whole blob, unless it is the one that was read last.

    Some servers send no parts, or the wrong ones. Takes the memory of the last blob: of packs,
    32 MiB.
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


class RoomKept(WrappedBlobs):
    """Blobs of a place that may be full, for a command that makes room there.

    Such a command writes before it removes. Where there is no room for that, it takes the room of a
    blob that nothing needs, which was written while there was some.
    """

    def __init__(self, blobs: Blobs) -> None:
        super().__init__(blobs)
        self._is_used = False

    def put(self, name: str, data: Data, /) -> None:
        """Writes a blob, whether or not there is one."""
        self._with_room(name, len(data), lambda: self._blobs.put(name, data))

    def create(self, name: str, data: Data, /) -> bool:
        """Writes a blob if there is none."""
        return self._with_room(name, len(data), lambda: self._blobs.create(name, data))

    def sweep_unfinished(self) -> int:
        """Removes what writers that are gone left unfinished, and keeps room again."""
        count = self._blobs.sweep_unfinished()
        self.keep()
        return count

    def keep(self) -> None:
        """Keeps as much room as there is, if it is not kept yet."""
        noise = os.urandom(1 << 20)  # some file systems store zeros, or equal blocks, in no room
        for size_bytes in (RESERVE_BYTES, RESERVE_BYTES // 2, RESERVE_BYTES // 4):
            with suppress(BlobMissing):
                if self._blobs.size_bytes(_RESERVE) >= size_bytes:
                    return
            try:
                self._blobs.put(_RESERVE, noise * (size_bytes >> 20))
                return
            except RemoteFailed as error:
                if error.code == ErrorCode.REMOTE_DENIED:
                    return
                if error.code != ErrorCode.REMOTE_FULL:
                    raise

    def _with_room(self, name: str, size_bytes: int, write: Callable[[], _Result]) -> _Result:
        is_pack = name.startswith("packs/")  # which can be left out; what is written last cannot
        if self._is_used and is_pack:
            raise RemoteFailed(
                f"There is no room for blob {name!r}: what was kept is for smaller ones",
                code=ErrorCode.REMOTE_FULL,
            )
        try:
            return write()
        except RemoteFailed as error:
            is_too_large = is_pack and size_bytes > RESERVE_BYTES // 2
            if error.code != ErrorCode.REMOTE_FULL or self._is_used or is_too_large:
                raise
        self._is_used = True
        self._blobs.sweep_unfinished()
        self._blobs.delete([_RESERVE])
        return write()


class Clock(Protocol):
    """What a limited rate needs to know of time."""

    def now_s(self) -> float:
        """Returns the time since some moment; it never goes back."""

    def sleep(self, duration_s: float) -> None:
        """Returns when the time has passed."""


class SystemClock:
    """The clock of the machine."""

    def now_s(self) -> float:
        """Returns the time since some moment."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Waits."""
        time.sleep(duration_s)


class TokenBucket:
    """Gives out bytes at a rate, in the order in which they are asked for."""

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"A rate of {bytes_per_s} bytes per second is not possible")
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = Lock()
        self._given_until_s = clock.now_s() - BURST_S
        """The moment up to which the tokens have been given out; in the future after a debt."""

    def take(self, size_bytes: int) -> None:
        """Waits until so many bytes may be transferred."""
        duration_s = self._reserve(size_bytes)
        if duration_s > 0:
            self._clock.sleep(duration_s)

    def charge(self, size_bytes: int) -> None:
        """Counts bytes that were transferred already; the next transfer waits for them."""
        self._reserve(size_bytes)

    def _reserve(self, size_bytes: int) -> float:
        """Takes tokens, and returns how long it takes until there are as many."""
        with self._lock:
            now_s = self._clock.now_s()
            begun_s = max(self._given_until_s, now_s - BURST_S)
            self._given_until_s = begun_s + size_bytes / self._bytes_per_s
            return self._given_until_s - now_s


class Throttled(WrappedBlobs):
    """Blobs that are read and written at a limited rate; other requests go on at once.

    One token bucket serves all threads and both directions. A writer waits before it sends, for
    the whole blob, and then sends as fast as the line allows. A reader that does not know the size
    of a blob in advance reads first, and the next one waits. So the rate holds for any time in
    which several blobs are transferred. Names, listings and what is sent again after a failure are
    not counted.
    """

    def __init__(self, blobs: Blobs, bytes_per_s: float, clock: Clock) -> None:
        super().__init__(blobs)
        self._tokens = TokenBucket(bytes_per_s, clock)

    def put(self, name: str, data: Data, /) -> None:
        """Waits for the size of the blob, and writes it."""
        self._tokens.take(len(data))
        self._blobs.put(name, data)

    def create(self, name: str, data: Data, /) -> bool:
        """Waits for the size of the blob, and writes it if there is none."""
        self._tokens.take(len(data))
        return self._blobs.create(name, data)

    def get(self, name: str, /, size_bytes_max: int = BLOB_SIZE_MAX) -> bytes:
        """Waits for what was read before, and returns a blob."""
        self._tokens.take(0)
        data = self._blobs.get(name, size_bytes_max)
        self._tokens.charge(len(data))
        return data

    def get_ranges(self, name: str, ranges: Sequence[Range], /) -> Sequence[bytes]:
        """Waits for what is read, gaps between near ranges too, and returns parts of a blob."""
        self._tokens.take(sum(size for _, size in merged_ranges(ranges)))
        return self._blobs.get_ranges(name, ranges)
