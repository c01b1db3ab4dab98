"""What a remote that was added can be relied on for: its server is tried out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from treesnap.core.model.presentation import Record
from treesnap.remote.records import Collection

if TYPE_CHECKING:
    from treesnap.remote.blobs.base import Blobs
    from treesnap.remote.blobs.measures import Measures
    from treesnap.remote.blobs.probe import Capabilities, Creation, KnownServer

_SKEW_S_MAX = 15 * 60
"""Servers refuse requests of a clock that is further off."""
_LOGINS = 4
"""Writers that meet where each connection is a log-in, which servers limit, or a process."""


class RemoteCheck(Record):
    """What a remote is, and what its server guarantees."""

    name: str
    url: str
    remote_id: str
    is_encrypted: bool
    key_slots: int | None
    """How many secrets open it; None for one that is not encrypted."""
    server: str | None
    """What the server is, where that is known."""
    is_known: bool
    """Whether what follows is documented or was measured, rather than only not refuted."""
    creation: Creation
    lists_current: bool
    """Whether a list shows what was written and removed just before, by whomever."""
    has_ranges: bool
    """Whether a part of a file can be read; where not, the whole file is."""
    collection: Collection
    """Which machines may collect garbage; decided when the remote was set up."""
    may_collect: bool
    """Whether this machine may."""
    may_replace: bool
    """Whether this machine's credentials may put another file in the place of one."""
    may_remove: bool
    """Whether they may remove files."""
    keeps_versions: bool | None
    """Whether what is replaced or removed can be had back from the server; None where it does not
    tell."""
    free_bytes: int | None
    """How much room there is, where that is told."""
    clock_skew_s: int | None
    """How far the server's clock is ahead of this machine's, where that is told."""
    latency_ms: float
    """How long one small request takes, most of the time."""
    upload_bytes_per_s: int
    download_bytes_per_s: int
    state: int
    """The number of the state there, which is as new as all that was seen before."""
    collections: int
    """How many collections there were."""
    collected_at_ns: int | None
    """When the last one ended, by the clock of its machine."""
    machines: int
    """How many machines have pushed there."""
    members: int
    """How many machines may push there."""
    writers: int
    """How many writers were invited, which only deliver."""
    deliveries: int
    """What they delivered, and was not received yet."""
    unfolded: int
    """Pushes since the last collection, each of which a reader reads by itself."""
    junk: Mapping[str, int]
    """Commits that cannot be read or are not signed by a member, by the id of a machine that is in
    their names."""
    unsigned_states: int
    """Files among the states that no machine of the remote wrote; they count for nothing."""
    single_files: int
    """Small files that are there once, and have no copy; a repair makes it."""
    slot_memory_kib: tuple[int, ...]
    """What opening each key slot takes that a passphrase is for."""
    lacking: int | None
    """Snapshots of the root that a push would store; None where it has no history there."""
    reasons: tuple[str, ...]
    """Sentences of facts: what was found that is not as it should be."""

    @property
    def is_sound(self) -> bool:
        """Whether collections on this server lose nothing."""
        is_alone = self.collection is Collection.ONE
        return self.lists_current and (
            self.creation == "atomic" or (is_alone and self.creation == "sequential")
        )

    @property
    def is_reliable(self) -> bool:
        """Whether every command works there; where no parts can be read, some take longer."""
        return self.is_sound and (self.may_collect or self.collection is Collection.ONE)

    def fields(self) -> Mapping[str, object]:
        """Returns what it says, for programs."""
        return {**self._asdict(), "is_reliable": self.is_reliable}


def faults_of(measures: Measures) -> tuple[str, ...]:
    """Returns what is not as it should be with a place, in sentences of facts."""
    skew_s = measures.clock_skew_s or 0
    if abs(skew_s) <= _SKEW_S_MAX:
        return ()
    words = "behind" if skew_s > 0 else "ahead of"
    return (f"The clock of this machine is {abs(skew_s) // 60} minutes {words} the server's",)


def try_out(blobs: Blobs, connect: Callable[[], Blobs], *, is_again: bool = False) -> Capabilities:
    """Returns what the place of ``blobs`` guarantees; ``connect`` makes other connections to it.

    What it writes there it removes. With ``is_again`` that is 200 KB at most, which finds fewer
    faults. Raises RemoteFailed.
    """
    from treesnap.remote.blobs.probe import Effort, probe
    from treesnap.remote.blobs.rclone import RcloneBlobs
    from treesnap.remote.blobs.ssh import SshBlobs

    effort = Effort(large_races=0) if is_again else Effort()
    if isinstance(blobs, (RcloneBlobs, SshBlobs)):
        effort = effort._replace(small_writers=_LOGINS)
    return probe(connect, _server_of(blobs), effort)


def _server_of(blobs: Blobs) -> KnownServer | None:
    """Returns what is known of the server of a remote, or None; costs some requests."""
    from treesnap.remote.blobs.bucket import BucketBlobs
    from treesnap.remote.blobs.probe import BY_RCLONE, known_server, server_of_files
    from treesnap.remote.blobs.rclone import RcloneBlobs
    from treesnap.remote.blobs.ssh import SshBlobs

    if isinstance(blobs, RcloneBlobs):
        return BY_RCLONE
    if isinstance(blobs, SshBlobs):
        return server_of_files(**blobs.traits()._asdict())
    if not isinstance(blobs, BucketBlobs):
        return None
    endpoint = blobs.url.endpoint
    host = urlsplit(endpoint).hostname if endpoint is not None else None
    return known_server(blobs.url.scheme, host, blobs.server_headers())
