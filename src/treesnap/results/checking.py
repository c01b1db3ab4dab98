"""What checking a store returns."""

from __future__ import annotations

from dataclasses import dataclass

from treesnap.model import SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One piece of damage that ``verify`` found."""

    code: str
    """What kind of damage: for example ``missing-object``, ``bad-pack``."""
    message: str
    where: str
    """The file of the store, or the object."""
    snapshot_ids: tuple[SnapshotId, ...] = ()
    """The snapshots that are partial because of it."""
    paths: tuple[bytes, ...] = ()
    """The first paths that it makes unrestorable."""
    path_count: int = 0
    """How many paths it makes unrestorable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """A snapshot that cannot be restored whole, and what of it cannot."""

    snapshot_id: SnapshotId
    name: str | None
    root: bytes
    """The root that was captured."""
    paths: tuple[bytes, ...]
    """The first paths that cannot be restored, sorted; of a directory, what is below it too."""
    path_count: int
    """How many such paths there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """A lost object that was found in a live tree and stored again."""

    object_id: str
    root: bytes
    path: bytes
    """The file or directory below the root that has the same content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """Outcome of ``verify``."""

    problems: tuple[Problem, ...]
    """What was found, before anything was repaired."""
    left: tuple[Problem, ...] = ()
    """What is still so after a repair; without one, all that was found."""
    partial: tuple[Partial, ...] = ()
    """The snapshots of which something cannot be restored; after a repair, if there was one."""
    repaired: tuple[str, ...] = ()
    """A sentence for each repair."""
    taken_back: tuple[TakenBack, ...] = ()
    snapshots: int
    objects: int
    read_bytes: int

    @property
    def ok(self) -> bool:
        """Whether everything that was looked at was as it must be."""
        return not self.problems
