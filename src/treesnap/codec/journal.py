"""The journal of a restore: what must be true before the next operation begins.

A journal is written twice. *Staging* says that a directory for staged files is
about to be made in the root, and how the root looked before: whoever finds it
removes that directory and puts the root's own metadata back. *Applying* is the
commit point: it lists every step, and whoever finds it carries them out.

A step names what it expects to find, by everything ``lstat`` says, and what it
puts in place, by inode, so that it can be seen whether it was done already.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from treesnap.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.codec.tree import decode_entry
from treesnap.errors import Corrupt, InvalidArgument
from treesnap.model import Entry, SnapshotId
from treesnap.treepath import is_valid_name, parse

STAGE_PREFIX = b".treesnap-restore-"
"""How the names of staging directories begin; what has such a name is removed with its journal."""


class Stage(IntEnum):
    """How far a restore has come."""

    STAGING = 1
    APPLYING = 2


class Action(IntEnum):
    """What a step does to one path."""

    PUT = 1
    """Moves a staged file or directory to the path; what was there is kept aside."""
    REMOVE = 2
    """Moves what is at the path aside."""
    METADATA = 3
    """Changes metadata in place."""


class FileKey(NamedTuple):
    """Everything by which a change of a file is noticed."""

    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


class Step(NamedTuple):
    """One step; steps of a restore do not depend on each other's order."""

    action: Action
    path: bytes
    staged: bytes
    """Name in the staging directory: of what is put, or of what is kept aside."""
    inode: int
    """Inode of what is put; 0 for other actions."""
    before: FileKey | None
    """What is at the path before, or None when nothing is."""
    old: Entry | None
    """Metadata before, for METADATA."""
    new: Entry | None
    """Metadata afterwards, for METADATA, and for a directory that is put and will not
    be writable for its owner: it can only be moved while it still is."""


class Finish(NamedTuple):
    """Metadata that a directory gets when all steps are done, or taken back."""

    path: bytes
    old: Entry
    new: Entry | None
    """None leaves everything but the modification time, which is then the present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """One restore in progress."""

    stage: Stage
    stage_name: bytes
    """Name of the staging directory in the root."""
    root_before: Entry | None
    """The root's own metadata, or None when the root was absent."""
    touch: bool = False
    snapshot_id: SnapshotId | None = None
    history: bytes | None = None
    """Payload of the root's history file once the restore is done."""
    steps: tuple[Step, ...] = ()
    directories: tuple[Finish, ...] = ()


def encode_journal(journal: Journal) -> bytes:
    """Returns the payload of a journal."""
    return pack(
        {
            "version": 1,
            "stage": int(journal.stage),
            "stage_name": journal.stage_name,
            "root_before": journal.root_before,
            "touch": journal.touch,
            "snapshot_id": journal.snapshot_id,
            "history": journal.history,
            "steps": journal.steps,
            "directories": journal.directories,
        }
    )


def decode_journal(payload: bytes) -> Journal:
    """Returns the journal of a payload, or raises Corrupt."""
    fields = Fields(unpack(payload, "journal", LONG_ARRAY_LENGTH_MAX), "journal")
    fields.require_version(1)
    stage = fields.get("stage", int)
    require(stage in Stage._value2member_map_, "journal", "its stage is unknown")
    stage_name = fields.get("stage_name", bytes)
    require(
        is_valid_name(stage_name) and stage_name.startswith(STAGE_PREFIX),
        "journal",
        "its staging directory is not possible",
    )
    root_before = fields.optional("root_before", tuple)
    identity = fields.optional("snapshot_id", str)
    return Journal(
        stage=Stage(stage),
        stage_name=stage_name,
        root_before=decode_entry(root_before) if root_before is not None else None,
        touch=fields.get("touch", bool),
        snapshot_id=SnapshotId(identity) if identity is not None else None,
        history=fields.optional("history", bytes),
        steps=tuple(_decode_step(row) for row in fields.get("steps", tuple)),
        directories=tuple(_decode_finish(row) for row in fields.get("directories", tuple)),
    )


def _path(value: Any) -> bytes:
    require(type(value) is bytes, "journal", "a path is no byte string")
    try:
        return parse(value)
    except InvalidArgument as error:
        raise Corrupt(f"Stored journal is not valid: {error}") from error


def _decode_step(row: Any) -> Step:
    require(type(row) is tuple and len(row) == len(Step._fields), "journal", "a step is not whole")
    action, path, staged, inode, before, old, new = row
    require(
        type(action) is int and action in Action._value2member_map_,
        "journal",
        "an action is unknown",
    )
    require(path, "journal", "a step is about the root itself")
    require(
        action != Action.METADATA or None not in (before, old, new),
        "journal",
        "a step lacks metadata",
    )
    require(action != Action.REMOVE or before is not None, "journal", "a step removes nothing")
    require(type(inode) is int and inode >= 0, "journal", "an inode is not possible")
    require(type(staged) is bytes and is_valid_name(staged), "journal", "a staged name is bad")
    if before is not None:
        require(
            type(before) is tuple
            and len(before) == len(FileKey._fields)
            and all(type(number) is int for number in before),
            "journal",
            "a step expects the impossible",
        )
    return Step(
        Action(action),
        _path(path),
        staged,
        inode,
        FileKey._make(before) if before is not None else None,
        decode_entry(old) if old is not None else None,
        decode_entry(new) if new is not None else None,
    )


def _decode_finish(row: Any) -> Finish:
    require(type(row) is tuple and len(row) == 3, "journal", "a directory is not whole")
    path, old, new = row
    return Finish(_path(path), decode_entry(old), decode_entry(new) if new is not None else None)
