"""What capturing a root returns."""

from __future__ import annotations

from dataclasses import dataclass

from treesnap.model import Skipped, Snapshot, SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStats:
    """What a capture found and what it cost."""

    files: int
    directories: int
    others: int
    """Symlinks, FIFOs and devices."""
    size_bytes: int
    """Logical bytes of all files, holes included."""
    files_read: int
    """Files whose content was read, because the stat cache could not vouch for them."""
    read_bytes: int
    objects_added: int
    added_bytes: int
    """Bytes that were new in the packs, as ``list`` and ``stats`` show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateResult:
    """Outcome of ``create``.

    ``snapshot`` is the one that was published; with ``skip_unchanged`` and
    nothing changed it is the newest existing one, and ``unchanged`` is true.
    """

    snapshot: Snapshot
    unchanged: bool
    skipped: tuple[Skipped, ...]
    absent: tuple[bytes, ...]
    """The paths of its scope at which there was nothing: a restore removes what is there then."""
    stats: CreateStats

    @property
    def id(self) -> SnapshotId:
        """The snapshot's id."""
        return self.snapshot.id

    @property
    def root_hash(self) -> str:
        """Identity of the captured state."""
        return self.snapshot.root_hash

    @property
    def complete(self) -> bool:
        """Whether nothing was unreadable."""
        return self.snapshot.complete
