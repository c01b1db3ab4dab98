"""What a caller asks for: one record from the command line down to where it is done."""

from __future__ import annotations

from collections.abc import Mapping

from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import IgnoreRules, SnapshotId, SnapshotKind


class Revealed(NamedTuple):
    """Paths that a walk looks at although the rules exclude them."""

    paths: frozenset[bytes] = frozenset()
    """These alone, with the directories above them, and not what else is in them."""
    whole: frozenset[bytes] = frozenset()
    """Directories with everything below them."""

    def __bool__(self) -> bool:
        return bool(self.paths or self.whole)

    def plus(self, other: Revealed) -> Revealed:
        """Returns the paths of both."""
        return Revealed(self.paths | other.paths, self.whole | other.whole)


NOTHING_REVEALED = Revealed()


class CaptureRequest(NamedTuple):
    """What to capture and how, and what the snapshot of it says.

    ``create`` completes it with the settings of the store. Without any field it is the whole root,
    as its ignore files say.
    """

    # What the snapshot says.
    label: str | None = None
    name: str | None = None
    tags: Mapping[str, str] = {}
    session: str | None = None
    step: int | None = None
    kind: SnapshotKind = SnapshotKind.MANUAL
    replaces: SnapshotId | None = None
    """The snapshot that may have the name already: its caller deletes it then, and until that
    the name stands for the new one."""

    # Whether there is one.
    force: bool = False
    """Whether a dangerous root may be captured, such as ``/`` or the home directory."""
    allow_absent: bool = False
    """Whether a path may be captured as absent that no snapshot of the root holds either."""
    validate: str | None = None
    """A line for ``sh`` that runs in the root first; if it fails, nothing is captured."""
    complete_only: bool = False
    """Whether nothing is published when something could not be read."""
    skip_unchanged: bool = False
    """Whether nothing is published when nothing changed since the newest snapshot."""
    max_size_bytes: int | None = None
    """What the store may take."""
    first_size_bytes: int | None = None
    """From which size on the first snapshot of a root is told of: it may be the wrong one."""

    # What is captured.
    scope: tuple[bytes, ...] | None = None
    """These paths alone, or None for the whole root."""
    exclude: tuple[str, ...] = ()
    """Patterns in gitignore syntax that are left out, beside those of ignore files."""
    rules: tuple[IgnoreRules, ...] = ()
    """All exclusions that hold beside those of ignore files."""
    rules_of_id: SnapshotId | None = None
    """The snapshot that has these rules, if one has."""
    heeds_ignore_files: bool = True
    """Whether ignore files in the tree leave anything out."""
    revealed: Revealed = NOTHING_REVEALED
    """Captured even if it is excluded."""

    # How.
    fresh: bool = False
    """Whether everything is read, whatever a watcher or the stat cache says."""
    observes: bool = False
    """Whether what a restore compares is kept."""
    keeps_nothing: bool = False
    """Whether no byte is written, so that nothing can be published."""


WHOLE_ROOT = CaptureRequest()


class WatchRequest(NamedTuple):
    """When a watch makes snapshots, and when it ends. Without any field it makes none."""

    every_s: float | None = None
    """How often a snapshot is made, if anything changed."""
    on_change: bool = False
    """Whether a snapshot is made soon after a change."""
    idle_s: float | None = None
    """After how long the watch ends if no process asks it for changes."""
    force: bool = False
    """Whether a dangerous root may be watched, such as ``/`` or the home directory."""
