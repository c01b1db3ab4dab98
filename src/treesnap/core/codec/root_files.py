"""The small files of a root, besides its journal and stat cache.

Its restore history, its name table, its gaps, and the records of processes that work on it:
holds, and restores to other directories. Of plans only what they protect is known here.
"""

from __future__ import annotations

import os

from treesnap.core.codec.changes import unseal_changed
from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.fields import (
    BYTES,
    FLAG,
    SCOPE,
    SIZE,
    TEXT,
    TIME,
    Table,
    array,
    omitted,
    optional,
    parsed,
    row,
    single,
    where,
)
from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.codec.message import LONG_ARRAY_LENGTH_MAX, Fields, pack, require, unpack
from treesnap.core.codec.snapshot import PLAN_ATTACHMENT
from treesnap.core.model.ids import ID_SIZE, is_snapshot_id
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.model.treepath import parse_scope

HISTORY_LENGTH_MAX = 1000
"""Restores that can be undone one after the other; older ones are forgotten."""


class Moment(NamedTuple):
    """A state to go back to: a snapshot, and the paths that the way there concerns."""

    snapshot_id: SnapshotId
    scope: tuple[bytes, ...] | None
    is_absent: bool = False
    """Whether there was no root at all; the snapshot holds an empty one."""


class RestoreHistory(NamedTuple):
    """Two stacks of moments; the last is the next."""

    undo: tuple[Moment, ...] = ()
    redo: tuple[Moment, ...] = ()

    def restored(self, before: Moment) -> RestoreHistory:
        """Returns the history after a restore that began at ``before``."""
        return RestoreHistory((*self.undo, before)[-HISTORY_LENGTH_MAX:])

    def undone(self, before: Moment) -> RestoreHistory:
        """Returns the history after an undo that began at ``before``."""
        return self._replace(undo=self.undo[:-1], redo=(*self.redo, before)[-HISTORY_LENGTH_MAX:])

    def redone(self, before: Moment) -> RestoreHistory:
        """Returns the history after a redo that began at ``before``."""
        return self._replace(undo=(*self.undo, before)[-HISTORY_LENGTH_MAX:], redo=self.redo[:-1])


_MOMENTS = array(row(Moment, scope=optional(SCOPE), is_absent=omitted(FLAG, absent=False)))
HISTORY: Format[RestoreHistory] = Format.of(
    FileKind.HISTORY, Table(RestoreHistory, "restore history", undo=_MOMENTS, redo=_MOMENTS)
)


class NameTable(NamedTuple):
    """Which snapshots of a root had names when their records were read."""

    through: int = 0
    """The number of the newest snapshot that was read; 0 when none was."""
    rows: tuple[tuple[str, int, bytes], ...] = ()
    """Name, number and id of each that has a name."""


def encode_names(table: NameTable) -> bytes:
    """Returns the payload of a name table."""
    return pack(
        {
            "version": 1,
            "through": table.through,
            "names": tuple(name for name, _, _ in table.rows),
            "sequences": tuple(sequence for _, sequence, _ in table.rows),
            "ids": b"".join(identity for _, _, identity in table.rows),
        }
    )


def decode_names(payload: bytes) -> NameTable:
    """Returns the table of a payload, or raises Corrupt."""
    what = "name table"
    fields = Fields(unpack(payload, what, LONG_ARRAY_LENGTH_MAX), what)
    fields.require_version(1)
    names, sequences = fields.get("names", tuple), fields.get("sequences", tuple)
    ids = fields.get("ids", bytes)
    require(len(names) == len(sequences), what, "its columns differ in length")
    require(len(names) * ID_SIZE == len(ids), what, "its columns differ in length")
    require(all(type(name) is str for name in names), what, "a name is not text")
    require(
        all(type(number) is int and number >= 0 for number in sequences),
        what,
        "a number is not possible",
    )
    each_id = (ids[start : start + ID_SIZE] for start in range(0, len(ids), ID_SIZE))
    return NameTable(fields.size("through"), tuple(zip(names, sequences, each_id, strict=True)))


NAMES = Format(FileKind.NAMES, encode_names, decode_names)


GAPS_LENGTH_MAX = 1000
"""Gaps that are kept; older ones are forgotten."""


class Gap(NamedTuple):
    """A moment in the work of an agent that was not captured."""

    time_ns: int
    host: str
    session: str
    key: str
    """As of an event of the host; so are phase and tool."""
    phase: str
    tool: str | None
    reason: str
    """Why, as a sentence."""


_GAPS = where(
    array(row(Gap, time_ns=TIME)), lambda gaps: len(gaps) <= GAPS_LENGTH_MAX, "are too many"
)
GAPS_FILE = "gaps"
"""The name of the file that keeps them."""
GAPS = Format(FileKind.GAPS, *single("list of gaps", gaps=_GAPS))


HOLD_SIZE_MAX = 16 << 20
"""The largest file that is read as a record."""


class HoldRecord(NamedTuple):
    """A snapshot that a process at work goes back to if it fails, and what that changes.

    The file is locked while the process lives, so that a hold of a dead process does not count.
    """

    process_id: int
    """0 where the process has let go of it: the roll-back failed, and may be tried again."""
    operation: str
    """What the process does, in words for people; then, after a roll-back, why that failed."""
    scope: tuple[bytes, ...] | None
    """The paths that are gone back to, or None for the whole root; none for a process that only
    reads the snapshot."""
    namespace: str | None = None
    """Where the process id counts; None where that is not known."""

    @property
    def purpose(self) -> str:
        """What the process needs the snapshot for, to follow "a snapshot that process 7"."""
        return "reads" if self.scope == () else "goes back to if it fails"


_HOLD = Table(
    HoldRecord,
    "hold",
    names={"process_id": "process"},
    process_id=SIZE,
    scope=optional(parsed(array(BYTES), lambda paths: parse_scope(paths) if paths else paths)),
    namespace=omitted(TEXT),
)
HOLD: Format[HoldRecord] = Format.of(FileKind.HOLD, _HOLD, HOLD_SIZE_MAX)


EXPORT_STAGE_PREFIX = STAGE_PREFIX + b"to-"
"""How the names of these directories begin. None that a restore in a root uses begins so:
no record can cause the removal of a directory in which a user's files are kept aside."""
EXPORT_SIZE_MAX = 1 << 16
"""The largest file that is read as a record."""

_DIGITS = frozenset(b"0123456789abcdef")


class ExportRecord(NamedTuple):
    """One restore to another directory.

    It is durable before the directory is made in which the files are built, and locked while
    its writer lives: a process that finds it unlocked removes the directory.
    """

    stage_path: bytes
    """Absolute path, without links, of the directory in which the files are built."""
    in_place: bool = False
    """Whether that lies in the target itself, because nothing can be renamed to the target."""
    fork: bytes | None = None
    """Of a fork: where it is to be. It is a root of the store before it is there."""


def _problem_of_export(record: ExportRecord) -> str | None:
    path, fork = record.stage_path, record.fork
    digits = os.path.basename(path).removeprefix(EXPORT_STAGE_PREFIX)
    is_plain = path.startswith(b"/") and os.path.normpath(path) == path and b"\0" not in path
    if not is_plain or len(digits) != 16 or set(digits) - _DIGITS:
        return "its staging directory is not possible"
    if fork is not None and not (fork.startswith(b"/") and b"\0" not in fork):
        return "the path of its fork is not absolute"
    return None


_EXPORT = Table(ExportRecord, "export record", fork=omitted(BYTES), problem_of=_problem_of_export)
EXPORT: Format[ExportRecord] = Format.of(FileKind.EXPORT, _EXPORT, EXPORT_SIZE_MAX)
EXPORT_MOVES_NAME = b"moves"
"""A file that is there in the staging directory while names are moved out of it."""


class Move(NamedTuple):
    """A name that an export puts into a directory which is there already."""

    name: bytes
    inode: int


class ExportMoves(NamedTuple):
    """How to make a directory empty again that an export fills, and what it was before.

    A mount point cannot be replaced by a rename. So the files are built in it, and moved up one
    by one. The list lies in the staging directory.
    """

    moves: tuple[Move, ...]
    mode: int
    uid: int
    gid: int
    mtime_ns: int


def _is_name(name: bytes) -> bool:
    return name not in (b"", b".", b"..") and not set(name) & set(b"/\0")


_MOVES = Table(
    ExportMoves,
    "list of moves",
    moves=array(row(Move, name=where(BYTES, _is_name, "is not possible"))),
    mode=where(SIZE, lambda mode: mode <= 0o7777, "is not possible"),
    uid=SIZE,
    gid=SIZE,
    mtime_ns=TIME,
)
EXPORT_MOVES: Format[ExportMoves] = Format.of(FileKind.EXPORT_MOVES, _MOVES)


class Protection(NamedTuple):
    """Which snapshots an attachment protects; all else in it only its feature knows."""

    checkpoints: dict[str, SnapshotId]
    """The snapshot of each checkpoint, by the checkpoint's id."""
    keeps_checkpoints: bool
    """Whether no policy removes them: the plan says how many it keeps, and is not applied."""


def protection_of(payload: bytes) -> Protection:
    """Returns what an attachment with a payload protects, or raises Corrupt."""
    fields = Fields(unpack(payload, "plan", LONG_ARRAY_LENGTH_MAX), "plan")
    state = fields.get("state", str)
    milestones = Fields(fields.get("milestones", dict), "plan")
    checkpoints = {}
    for item in fields.get("checkpoints", tuple):
        checkpoint = Fields(item, "plan")
        identity = checkpoint.get("snapshot_id", str)
        require(is_snapshot_id(identity), "plan", "a snapshot id is not valid")
        checkpoints[checkpoint.get("id", str)] = SnapshotId(identity)
    return Protection(
        checkpoints=checkpoints,
        keeps_checkpoints=milestones.optional("keep", int) is not None and state != "applied",
    )


def _plan_payload(payload: bytes) -> bytes:
    """Returns a payload that says what it protects."""
    protection_of(payload)
    return payload


PLAN_PAYLOAD = Format(FileKind.PLAN, _plan_payload, _plan_payload, unframe=unseal_changed)
"""A plan that the feature has encoded, and checked."""
ATTACHMENTS = {PLAN_ATTACHMENT: PLAN_PAYLOAD}
"""The formats of attachments, by kind."""
