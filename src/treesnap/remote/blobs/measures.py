"""What a place for blobs lets its user do, and how fast it is: measured with blobs of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from typing import TypeVar

from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.blobs.base import Blobs, Facts, TellsFacts

SIZE_BYTES = 1 << 20
"""What is sent, and received, to find out how fast that is."""
_ROUNDS = 5

_Result = TypeVar("_Result")


class Measures(NamedTuple):
    """What was measured; None is what a place does not tell."""

    may_replace: bool
    """Whether the credentials may put another file in the place of one."""
    may_remove: bool
    """Whether they may remove files."""
    keeps_versions: bool | None
    """Whether what is replaced or removed can be had back from the server."""
    free_bytes: int | None
    clock_skew_s: int | None
    """How far the server's clock is ahead of this machine's, in seconds."""
    latency_ms: float
    """How long one small request takes, most of the time."""
    upload_bytes_per_s: int
    download_bytes_per_s: int


def measure(blobs: Blobs, clock_ns: Callable[[], int]) -> Measures:
    """Measures a place; removes what it wrote there, if it may. Raises RemoteFailed."""
    name, content = f"probe/{os.urandom(8).hex()}-{0:04x}", os.urandom(SIZE_BYTES)
    try:
        upload_s, _ = _timed(lambda: blobs.put(name, content))
        download_s, _ = _timed(lambda: blobs.get(name))
        latencies = [_timed(lambda: blobs.size_bytes(name))[0] for _ in range(_ROUNDS)]
        facts = blobs.facts() if isinstance(blobs, TellsFacts) else Facts()
        now_s = clock_ns() / 1e9
        may_replace = _replaces(blobs, name)
    except BaseException:
        with suppress(RemoteFailed):
            blobs.delete([name])
        raise
    skew_s = None if facts.server_time_s is None else round(facts.server_time_s - now_s)
    return Measures(
        may_replace=may_replace,
        may_remove=not blobs.delete([name]),
        keeps_versions=facts.keeps_versions,
        free_bytes=facts.free_bytes,
        clock_skew_s=skew_s,
        latency_ms=round(median(latencies) * 1000, 3),
        upload_bytes_per_s=round(SIZE_BYTES / upload_s),
        download_bytes_per_s=round(SIZE_BYTES / download_s),
    )


def _timed(call: Callable[[], _Result]) -> tuple[float, _Result]:
    began_s = time.perf_counter()
    result = call()
    return max(time.perf_counter() - began_s, 1e-6), result


def _replaces(blobs: Blobs, name: str) -> bool:
    try:
        blobs.put(name, b"another")
    except RemoteFailed as error:
        if error.code != ErrorCode.REMOTE_DENIED:
            raise
        return False
    return blobs.get(name) == b"another"
