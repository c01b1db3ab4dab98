"""What a remote that was added can be relied on for: its server is tried out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from treesnap.core.model.presentation import Record
from treesnap.remote.records import Collection

if TYPE_CHECKING:
    from treesnap.remote.blobs.base import Blobs
    from treesnap.remote.blobs.probe import Capabilities, Creation, KnownServer

_LOGINS = 4
"""Writers that meet where each connection is a log-in, which servers limit."""


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


def try_out(blobs: Blobs, connect: Callable[[], Blobs], *, is_again: bool = False) -> Capabilities:
    """Returns what the place of ``blobs`` guarantees; ``connect`` makes other connections to it.

    What it writes there it removes. With ``is_again`` that is 200 KB at most, which finds fewer
    faults. Raises RemoteFailed.
    """
    from treesnap.remote.blobs.probe import Effort, probe
    from treesnap.remote.blobs.ssh import SshBlobs

    effort = Effort(large_races=0) if is_again else Effort()
    if isinstance(blobs, SshBlobs):
        effort = effort._replace(small_writers=_LOGINS)
    return probe(connect, _server_of(blobs), effort)


def _server_of(blobs: Blobs) -> KnownServer | None:
    """Returns what is known of the server of a remote, or None; costs some requests."""
    from treesnap.remote.blobs.bucket import BucketBlobs
    from treesnap.remote.blobs.probe import known_server, server_of_files
    from treesnap.remote.blobs.ssh import SshBlobs

    if isinstance(blobs, SshBlobs):
        return server_of_files(**blobs.traits()._asdict())
    if not isinstance(blobs, BucketBlobs):
        return None
    endpoint = blobs.url.endpoint
    host = urlsplit(endpoint).hostname if endpoint is not None else None
    return known_server(blobs.url.scheme, host, blobs.server_headers())
