"""The journal of a restore: what must be true before the next operation begins.

A journal is written twice. *Staging* says that a directory for staged files is
about to be made in the root, and how the root looked before: an operation that finds it
removes that directory and puts the root's own metadata back. *Applying* is the
commit point: it names the two snapshots that hold the states before and after,
and the paths in which they differ. Each of these paths may have either state, or
nothing, until the journal is gone.

A journal names its root, by which a copy in another root's corner of the store is known.
It says nothing about the inodes of files or about progress. So it means the same for a copy of
the tree, however much of the work a power cut undid. It is about the tree that holds its staging
directory; before that is made, or once it is gone, about the one with the root's file system and
inode. Where files are still to change, that needs the device number too: overlays on one file
system share its id, and inodes of a common lower layer.
"""

from __future__ import annotations

from enum import IntEnum

from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.fields import (
    BYTES,
    FLAG,
    PATH,
    TIME,
    FieldKind,
    Table,
    array,
    omitted,
    optional,
    parsed,
    row,
    where,
    word,
)
from treesnap.core.codec.message import LONG_ARRAY_LENGTH_MAX, pack, unpack
from treesnap.core.codec.snapshot import ATTACHMENT, PLAN_ATTACHMENT
from treesnap.core.codec.tree import decode_entry
from treesnap.core.model.entries import Entry
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import Attachment, SnapshotId
from treesnap.core.model.treepath import is_valid_name, parse_scope

VERSION = 5
STAGE_PREFIX = b".treesnap-restore-"
"""How the names of staging directories begin; what has such a name is removed with its journal."""


class Stage(IntEnum):
    """How far a restore has come."""

    STAGING = 1
    APPLYING = 2


class Subvolume(NamedTuple):
    """A directory below the root that holds a staging directory of its own."""

    path: bytes
    before: Entry
    """Its own metadata before."""


class Finish(NamedTuple):
    """Metadata that a directory gets when the restore is done, or undone."""

    path: bytes
    old: Entry
    new: Entry | None
    """None leaves everything but the modification time, which is then the present."""


class Commit(NamedTuple):
    """What a restore that must be finished is about."""

    target_id: SnapshotId
    """The snapshot that is restored."""
    safety_id: SnapshotId
    """The snapshot of the state before."""
    paths: tuple[bytes, ...]
    """Where the two differ; sorted, none is below another."""
    directories: tuple[Finish, ...]
    """Directories whose own metadata changes, if only because a name in them does."""
    history: bytes
    """Payload of the root's history file once the restore is done."""
    touch: bool
    """Whether restored files get the present time."""
    removes_root: bool = False
    """Whether the root itself is removed if it ends up empty: it did not exist before."""
    is_way_back: bool = False
    """Whether ignore files in the tree do not count: a failed step may have written them."""
    removes_first: bool = False
    """Whether what goes is removed at once: there is no room to keep it aside."""
    keeps_nothing: bool = False
    """Whether there was no room for the state before: ``safety_id`` has the new one instead."""
    attachment: Attachment | None = None
    """What the attachment that goes with the files is once the restore is done."""
    privileged: bool = False
    """Whether set-user-ID bits and the like are given although nothing stored proves that the
    target is own."""


class Journal(NamedTuple):
    """One restore in progress."""

    root_id: str
    """The root that this is about."""
    stage_name: bytes
    """Name of the staging directory in the root."""
    root_before: Entry | None
    """The root's own metadata, or None when the root was absent."""
    file_system: int
    """Id of the file system that holds the root, which stays the same over mounts."""
    device: int
    """Device number of that file system, which another mount may change."""
    inode: int | None
    """Inode of the root, or None as long as there is none."""
    started_at_ns: int
    """Nanoseconds since 1970 in UTC, by the clock of the machine; for people."""
    subvolumes: tuple[Subvolume, ...] = ()
    """Where staging directories are beside the root's; all have the same name."""
    commit: Commit | None = None
    """None before the commit point."""

    @property
    def stage(self) -> Stage:
        """How far the restore has come."""
        return Stage.APPLYING if self.commit is not None else Stage.STAGING

    @property
    def stage_tops(self) -> tuple[bytes, ...]:
        """The directories below the root that hold staging directories."""
        return tuple(item.path for item in self.subvolumes)


def is_reserved_path(path: bytes) -> bool:
    """Returns whether a path has a name that no capture takes in: a staging directory's."""
    return any(name.startswith(STAGE_PREFIX) for name in path.split(b"/"))


def is_valid_stage_name(name: bytes) -> bool:
    """Returns whether a name can be that of a staging directory; a path cannot."""
    return name.startswith(STAGE_PREFIX) and is_valid_name(name)


def _checked_paths(paths: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if not all(paths) or (paths and parse_scope(paths) != paths):
        raise InvalidArgument("they are not sorted, or one lies below another")
    return paths


_ENTRY = FieldKind(lambda stored, _what, _name: decode_entry(stored))
_SUBVOLUME = row(
    Subvolume, path=where(PATH, bool, "of a subvolume is that of the root"), before=_ENTRY
)
_COMMIT = Table(
    Commit,
    "journal",
    version=None,
    names={"attachment": PLAN_ATTACHMENT},
    paths=parsed(array(BYTES), _checked_paths),
    directories=array(row(Finish, path=PATH, old=_ENTRY, new=optional(_ENTRY))),
    attachment=ATTACHMENT,
    privileged=omitted(FLAG, absent=False),
)
_JOURNAL = Table(
    Journal,
    "journal",
    version=VERSION,
    given=["commit"],
    stage_name=where(BYTES, is_valid_stage_name, "is not that of a staging directory"),
    root_before=optional(_ENTRY),
    started_at_ns=TIME,
    subvolumes=array(_SUBVOLUME),
)
_STAGE = word(Stage)


def encode_journal(journal: Journal) -> bytes:
    """Returns the payload of a journal: one map, with the fields of its commit."""
    first = {"version": VERSION, "root_id": journal.root_id, "stage": journal.stage}
    commit = {} if journal.commit is None else _COMMIT.map_of(journal.commit)
    return pack(first | _JOURNAL.map_of(journal) | commit)


def decode_journal(payload: bytes) -> Journal:
    """Returns the journal of a payload, or raises Corrupt."""
    stored = unpack(payload, "journal", LONG_ARRAY_LENGTH_MAX)
    journal = _JOURNAL.record_of(stored, commit=None)
    if _STAGE.read(stored.get("stage"), "journal", "stage") is Stage.STAGING:
        return journal
    return journal._replace(commit=_COMMIT.record_of(stored))


JOURNAL = Format(FileKind.JOURNAL, encode_journal, decode_journal)
