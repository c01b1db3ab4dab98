"""What a place for blobs guarantees: found out by trying, and by what is known of its server.

Trying proves a fault, never its absence. A server that looks whether a name is free, reads the
body, and then writes without another look, lets several writers win that meet; with small bodies
they rarely meet. So writers race with bodies of several MiB as well, and a server that passes is
still only one that was not caught. :func:`known_server` knows some by their address, or by how they
introduce themselves; what it says counts more than a race that went well.

:func:`verdict` judges what was observed, and sends nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from enum import StrEnum
from threading import Barrier

from treesnap.core.model.errors import ErrorCode, RemoteFailed
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.remote.blobs.base import BlobMissing, Blobs, Data

_KIND = "probe"
_INCONCLUSIVE = frozenset({ErrorCode.REMOTE_FAILED, ErrorCode.REMOTE_THROTTLED})
"""Failures that say something about the server; others end the probe."""


class Creation(StrEnum):
    """What ``create`` is worth."""

    ATOMIC = "atomic"
    """Of writers that meet, one wins."""
    SEQUENTIAL = "sequential"
    """A name that exists is refused, but several writers that meet may win."""
    NONE = "none"
    """What exists is replaced, or nothing can be created."""


class Capabilities(NamedTuple):
    """What a place guarantees."""

    creation: Creation
    lists_current: bool
    """Whether a listing shows what was written and removed before it, by whomever."""
    has_ranges: bool
    server: str | None
    """What the server is, where that is known."""
    is_known: bool
    """Whether this is documented or was measured for the server, rather than only not refuted."""
    reasons: tuple[str, ...]
    """Sentences of facts: what was found that is not as it should be."""


class KnownServer(NamedTuple):
    """What is known of a server beforehand; None where the probe has to find out."""

    name: str
    is_atomic: bool | None = None
    lists_current: bool | None = None
    is_durable: bool | None = None
    """Whether what it says that it wrote is there after its machine lost power."""


_AMAZON = KnownServer("Amazon S3", is_atomic=True, lists_current=True)
_BY_SCHEME = {
    "s3": _AMAZON,
    "gs": KnownServer("Google Cloud Storage", is_atomic=True, lists_current=True),
    "az": KnownServer("Azure Blob Storage", is_atomic=True, lists_current=True),
}
_BY_HOST = (
    (re.compile(r"(?:.*\.)?amazonaws\.com(?:\.cn)?"), _AMAZON),
    (
        re.compile(r".*\.r2\.cloudflarestorage\.com"),
        KnownServer("Cloudflare R2", is_atomic=True, lists_current=True),
    ),
)
_BY_HEADER = (
    # Its listings are made by a queue of updates, and its proxy looks before it writes.
    (
        "x-openstack-request-id",
        re.compile(r"tx.*"),
        KnownServer("OpenStack Swift", is_atomic=False, lists_current=False),
    ),
    (
        "x-amz-request-id",
        re.compile(r"tx[0-9a-f]{21}-[0-9a-f]+-[0-9a-f]+-.+"),
        KnownServer("Ceph", is_atomic=True, lists_current=True),
    ),
    ("server", re.compile(r"Werkzeug/.*"), KnownServer("moto", is_atomic=False)),
)
"""Of Ceph, Swift and moto it was measured whether one of 8 writers or more wins that meet."""


def known_server(scheme: str, host: str | None, headers: Mapping[str, str]) -> KnownServer | None:
    """Returns what is known of a server, or None.

    ``scheme`` is that of the remote's URL, ``host`` that of its endpoint if it has one, ``headers``
    what the endpoint answers, in lower case.
    """
    if host is None:
        return _BY_SCHEME.get(scheme)
    for pattern, server in _BY_HOST:
        if pattern.fullmatch(host):
            return server
    for name, pattern, server in _BY_HEADER:
        if pattern.fullmatch(headers.get(name, "")):
            return server
    return None


BY_RCLONE = KnownServer("rclone", is_atomic=False)
"""It has no request that writes only if there is nothing."""


def server_of_files(*, has_links: bool, has_sync: bool) -> KnownServer:
    """Returns what is known of a server that has files, of which it was tried out what it can.

    One link is made of those that meet, as the system calls have it.
    """
    lacks = [name for name, has in (("hard links", has_links), ("fsync", has_sync)) if not has]
    name = f"A server of SFTP without {' and '.join(lacks)}" if lacks else "A server of SFTP"
    return KnownServer(name, is_atomic=has_links, is_durable=has_sync)


# ---------------------------------------------------------------------- observations


class Outcome(StrEnum):
    """What a writer of a race was told."""

    WON = "won"
    LOST = "lost"
    UNCLEAR = "unclear"
    FAILED = "failed"
    """It failed, and wrote nothing."""


MIXED = -1
"""What was stored after a race is of no writer, or of several."""


class Race(NamedTuple):
    """How writers of one name fared."""

    outcomes: tuple[Outcome, ...]
    stored: int | None
    """The writer whose bytes were stored, None if there is no blob, or MIXED."""

    def is_sound(self) -> bool:
        """Returns whether every writer and the reader were told the truth."""
        winners = [at for at, outcome in enumerate(self.outcomes) if outcome is Outcome.WON]
        if self.stored is None or winners:
            return winners == ([] if self.stored is None else [self.stored])
        return self.stored != MIXED and self.outcomes[self.stored] is Outcome.UNCLEAR


class Observations(NamedTuple):
    """What a probe saw."""

    first_create: Outcome
    second_create: Outcome
    """Of a name that existed."""
    keeps_first: bool
    """Whether the second one left the blob as it was."""
    races: tuple[Race, ...]
    late_names: int
    """Names that a listing lacked though they had been written, or had though removed."""
    has_ranges: bool
    kept: int
    """Blobs of the probe that could not be removed."""


def verdict(seen: Observations, server: KnownServer | None) -> Capabilities:
    """Returns what a place guarantees, as far as that was seen or is known."""
    reasons = []
    creation = Creation.ATOMIC
    unsound = sum(not race.is_sound() for race in seen.races)
    if seen.first_create is not Outcome.WON:
        creation = Creation.NONE
        reasons.append(f"Creating a new blob {_TOLD[seen.first_create]}")
    elif seen.second_create is not Outcome.LOST:
        creation = Creation.NONE
        reasons.append(f"Creating a blob that exists {_TOLD[seen.second_create]}")
    elif not seen.keeps_first:
        creation = Creation.NONE
        reasons.append("Creating a blob that exists replaces it, and is reported as refused")
    elif unsound:
        creation = Creation.SEQUENTIAL
        reasons.append(
            f"In {unsound} of {len(seen.races)} races to create a blob not exactly one writer won"
        )
    elif server is not None and server.is_atomic is False:
        creation = Creation.SEQUENTIAL
        reasons.append(f"{server.name} lets several writers create one blob")
    elif server is not None and server.is_durable is False:
        creation = Creation.SEQUENTIAL
        reasons.append(f"{server.name} may lose what it wrote when its machine loses power")
    lists_current = not seen.late_names
    if seen.late_names:
        reasons.append(f"Listings were late for {seen.late_names} names")
    elif server is not None and server.lists_current is False:
        lists_current = False
        reasons.append(f"{server.name} may list late")
    if not seen.has_ranges:
        reasons.append("Parts of a blob cannot be read")
    if seen.kept:
        reasons.append(f"{seen.kept} blobs of the probe could not be removed")
    return Capabilities(
        creation=creation,
        lists_current=lists_current,
        has_ranges=seen.has_ranges,
        server=server.name if server is not None else None,
        is_known=server is not None and None not in {server.is_atomic, server.lists_current},
        reasons=tuple(reasons),
    )


_TOLD = {
    Outcome.WON: "succeeds",
    Outcome.LOST: "is refused",
    Outcome.UNCLEAR: "fails, and may have written it",
    Outcome.FAILED: "fails",
}


# ----------------------------------------------------------------------------- probe


class Effort(NamedTuple):
    """How hard a probe tries."""

    listings: int = 4
    small_races: int = 6
    small_writers: int = 8
    small_bytes: int = 4 << 10
    large_races: int = 4
    """Only where nothing is known of the server."""
    large_writers: int = 4
    large_bytes: int = 4 << 20


def probe(
    blobs_factory: Callable[[], Blobs],
    server: KnownServer | None = None,
    effort: Effort = Effort(),  # noqa: B008 - a value
) -> Capabilities:
    """Returns what a place guarantees; raises RemoteFailed where it cannot be used at all.

    Each call of the factory makes a connection of its own. What the probe writes it removes.
    """
    with ExitStack() as stack:

        def connect() -> Blobs:
            blobs = blobs_factory()
            stack.callback(blobs.close)
            return blobs

        writer = connect()
        names = _Names()
        try:
            seen = _observe(writer, connect, names, server, effort)
        except BaseException:
            with suppress(RemoteFailed):
                names.remove(writer)
            raise
        return verdict(seen._replace(kept=names.remove(writer)), server)


class _Names:
    """The names that a probe has used."""

    def __init__(self) -> None:
        self._token = os.urandom(8).hex()
        self._used: list[str] = []

    @property
    def prefix(self) -> str:
        return f"{_KIND}/{self._token}-"

    def new(self) -> str:
        name = f"{self.prefix}{len(self._used):04x}"
        self._used.append(name)
        return name

    def remove(self, blobs: Blobs) -> int:
        """Removes the blobs; returns how many were refused."""
        return len(blobs.delete(self._used))


def _observe(
    writer: Blobs,
    connect: Callable[[], Blobs],
    names: _Names,
    server: KnownServer | None,
    effort: Effort,
) -> Observations:
    reader = connect()
    name = names.new()
    first = _create(writer, name, b"first")
    second = _create(reader, name, b"second")
    keeps_first = first is not Outcome.WON or reader.get(name) == b"first"
    races: list[Race] = []
    if first is Outcome.WON and second is Outcome.LOST and keeps_first:
        rounds = [(effort.small_writers, effort.small_bytes)] * effort.small_races
        if not _is_judged(server):
            rounds += [(effort.large_writers, effort.large_bytes)] * effort.large_races
        writers = [connect() for _ in range(max(count for count, _ in rounds))]
        noise = memoryview(os.urandom(len(writers) + max(size for _, size in rounds)))
        races = [
            _race(writers[:count], reader, names.new(), [noise[n : n + size] for n in range(count)])
            for count, size in rounds
        ]
    return Observations(
        first_create=first,
        second_create=second,
        keeps_first=keeps_first,
        races=tuple(races),
        late_names=sum(_late_names(writer, reader, names) for _ in range(effort.listings)),
        has_ranges=_has_ranges(writer, reader, names.new()),
        kept=0,
    )


def _is_judged(server: KnownServer | None) -> bool:
    return server is not None and server.is_atomic is not None


def _create(blobs: Blobs, name: str, data: Data) -> Outcome:
    try:
        return Outcome.WON if blobs.create(name, data) else Outcome.LOST
    except RemoteFailed as error:
        if error.code not in _INCONCLUSIVE:
            raise
        return Outcome.UNCLEAR if error.is_unclear else Outcome.FAILED


def _race(writers: Sequence[Blobs], reader: Blobs, name: str, bodies: Sequence[memoryview]) -> Race:
    """Lets writers create one blob at the same time."""
    start = Barrier(len(writers))

    def write(blobs: Blobs, body: memoryview) -> Outcome:
        start.wait()
        return _create(blobs, name, body)

    with ThreadPoolExecutor(len(writers)) as threads:
        outcomes = tuple(threads.map(write, writers, bodies))
    try:
        stored_body = reader.get(name)
    except BlobMissing:
        return Race(outcomes, None)
    stored = (number for number, body in enumerate(bodies) if bytes(body) == stored_body)
    return Race(outcomes, next(stored, MIXED))


def _late_names(writer: Blobs, reader: Blobs, names: _Names) -> int:
    """Writes a blob and removes it; returns how often another connection lists something else."""
    name = names.new()
    writer.put(name, b"listed")
    late = name not in {item.name for item in reader.list(names.prefix)}
    if writer.delete([name]):
        return late
    return late + (name in {item.name for item in reader.list(names.prefix)})


def _has_ranges(writer: Blobs, reader: Blobs, name: str) -> bool:
    body = os.urandom(1 << 16)
    writer.put(name, body)
    ranges = [(0, 3), (40_000, 5), (len(body) - 7, 100)]
    try:
        parts = reader.get_ranges(name, ranges)
    except RemoteFailed as error:
        if error.code not in _INCONCLUSIVE:
            raise
        return False
    return list(parts) == [body[start : start + size] for start, size in ranges]
