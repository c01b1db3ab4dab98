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
from typing import Any

from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.core.codec.snapshot import attachment_field, decode_attachment
from treesnap.core.codec.tree import decode_entry
from treesnap.core.model.entities import Attachment, Entry, SnapshotId
from treesnap.core.model.errors import Corrupt, InvalidArgument
from treesnap.core.model.ids import is_snapshot_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.treepath import is_valid_name, parse, parse_scope

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


def encode_journal(journal: Journal) -> bytes:
    """Returns the payload of a journal."""
    fields: dict[str, Any] = {
        "version": VERSION,
        "root_id": journal.root_id,
        "stage": int(journal.stage),
        **journal._asdict(),
    }
    commit = fields.pop("commit")
    if commit is not None:
        fields |= commit._asdict()
        del fields["attachment"], fields["privileged"]
        fields |= attachment_field(commit.attachment)
        if commit.privileged:
            fields["privileged"] = True
    return pack(fields)


def is_reserved_path(path: bytes) -> bool:
    """Returns whether a path has a name that no capture takes in: a staging directory's."""
    return any(name.startswith(STAGE_PREFIX) for name in path.split(b"/"))


def is_valid_stage_name(name: bytes) -> bool:
    """Returns whether a name can be that of a staging directory; a path cannot."""
    return name.startswith(STAGE_PREFIX) and is_valid_name(name)


def decode_journal(payload: bytes) -> Journal:
    """Returns the journal of a payload, or raises Corrupt."""
    fields = Fields(unpack(payload, "journal", LONG_ARRAY_LENGTH_MAX), "journal")
    fields.require_version(VERSION)
    stage = fields.get("stage", int)
    require(stage in Stage._value2member_map_, "journal", "its stage is unknown")
    stage_name = fields.get("stage_name", bytes)
    is_possible = is_valid_stage_name(stage_name)
    require(is_possible, "journal", "its staging directory is not possible")
    root_before = fields.optional("root_before", tuple)
    return Journal(
        root_id=fields.get("root_id", str),
        stage_name=stage_name,
        root_before=decode_entry(root_before) if root_before is not None else None,
        file_system=fields.get("file_system", int),
        device=fields.get("device", int),
        inode=fields.optional("inode", int),
        started_at_ns=fields.time("started_at_ns"),
        subvolumes=tuple(_decode_subvolume(row) for row in fields.get("subvolumes", tuple)),
        commit=_decode_commit(fields) if stage == Stage.APPLYING else None,
    )


JOURNAL = Format(FileKind.JOURNAL, encode_journal, decode_journal)


def _decode_commit(fields: Fields) -> Commit:
    paths = fields.get("paths", tuple)
    require(all(type(path) is bytes and path for path in paths), "journal", "a path is not valid")
    try:
        is_scope = not paths or parse_scope(paths) == paths
    except InvalidArgument as error:
        raise Corrupt(f"Stored journal is not valid: {error}") from error
    require(is_scope, "journal", "its paths are not sorted or nested")
    return Commit(
        target_id=_identity(fields, "target_id"),
        safety_id=_identity(fields, "safety_id"),
        paths=paths,
        directories=tuple(_decode_finish(row) for row in fields.get("directories", tuple)),
        history=fields.get("history", bytes),
        touch=fields.get("touch", bool),
        removes_root=fields.get("removes_root", bool),
        is_way_back=fields.get("is_way_back", bool),
        removes_first=fields.get("removes_first", bool),
        keeps_nothing=fields.get("keeps_nothing", bool),
        attachment=decode_attachment(fields, "journal"),
        privileged=fields.optional("privileged", bool) or False,
    )


def _identity(fields: Fields, name: str) -> SnapshotId:
    identity = fields.get(name, str)
    require(is_snapshot_id(identity), "journal", "a snapshot id is not valid")
    return SnapshotId(identity)


def _decode_subvolume(row: Any) -> Subvolume:
    require(type(row) is tuple and len(row) == 2, "journal", "a subvolume is not whole")
    path, before = row
    _require_path(path)
    require(bool(path), "journal", "a subvolume is the root")
    return Subvolume(path, decode_entry(before))


def _require_path(path: Any) -> None:
    require(type(path) is bytes, "journal", "a path is not a byte string")
    try:
        parse(path)
    except InvalidArgument as error:
        raise Corrupt(f"Stored journal is not valid: {error}") from error


def _decode_finish(row: Any) -> Finish:
    require(type(row) is tuple and len(row) == 3, "journal", "a directory is not whole")
    path, old, new = row
    _require_path(path)
    return Finish(path, decode_entry(old), decode_entry(new) if new is not None else None)
