"""The small files of a root, besides its journal and stat cache.

Its restore history, its name table, its gaps, and the records of processes that work on it:
holds, and restores to other directories. Of plans only what they protect is known here.
"""

from __future__ import annotations

import os
from typing import Any

from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.codec.message import (
    LONG_ARRAY_LENGTH_MAX,
    Fields,
    decode_time,
    pack,
    refused,
    require,
    unpack,
)
from treesnap.core.codec.snapshot import PLAN_ATTACHMENT, is_snapshot_id
from treesnap.core.model.entities import SnapshotId
from treesnap.core.model.errors import Corrupt, InvalidArgument
from treesnap.core.model.ids import ID_SIZE
from treesnap.core.model.named_tuple import NamedTuple
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


def encode_history(history: RestoreHistory) -> bytes:
    """Returns the payload of a history file."""
    undo, redo = (tuple(map(_moment_row, stack)) for stack in (history.undo, history.redo))
    return pack({"version": 1, "undo": undo, "redo": redo})


def decode_history(payload: bytes) -> RestoreHistory:
    """Returns the history of a payload, or raises Corrupt."""
    fields = Fields(unpack(payload, "restore history", LONG_ARRAY_LENGTH_MAX), "restore history")
    fields.require_version(1)
    return RestoreHistory(
        tuple(_decode_moment(row) for row in fields.get("undo", tuple)),
        tuple(_decode_moment(row) for row in fields.get("redo", tuple)),
    )


HISTORY = Format(FileKind.HISTORY, encode_history, decode_history)


def _moment_row(moment: Moment) -> tuple[Any, ...]:
    return tuple(moment) if moment.is_absent else tuple(moment[:2])


def _decode_moment(row: Any) -> Moment:
    require(
        type(row) is tuple
        and (len(row) == 2 or (len(row) == 3 and row[2] is True))
        and type(row[0]) is str
        and is_snapshot_id(row[0])
        and (row[1] is None or type(row[1]) is tuple),
        "restore history",
        "a moment is not whole",
    )
    scope = row[1]
    if scope is not None:
        require(
            all(type(path) is bytes for path in scope),
            "restore history",
            "a path is not a byte string",
        )
        try:
            parse_scope(scope)
        except InvalidArgument as error:
            raise Corrupt(f"Stored restore history is not valid: {error}") from error
    return Moment(SnapshotId(row[0]), scope, len(row) == 3)


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


def encode_gaps(gaps: tuple[Gap, ...]) -> bytes:
    """Returns the payload of a list of gaps, oldest first."""
    return pack({"version": 1, "gaps": tuple(map(tuple, gaps))})


def decode_gaps(payload: bytes) -> tuple[Gap, ...]:
    """Returns the gaps of a payload, or raises Corrupt."""
    what = "list of gaps"
    fields = Fields(unpack(payload, what), what)
    fields.require_version(1)
    rows = fields.get("gaps", tuple)
    require(len(rows) <= GAPS_LENGTH_MAX, what, "it is too long")
    return tuple(map(_decode_gap, rows))


def _decode_gap(row: Any) -> Gap:
    what = "list of gaps"
    require(type(row) is tuple and len(row) == len(Gap._fields), what, "a gap is not whole")
    time_ns, *rest = row
    gap = Gap(decode_time(time_ns, what), *rest)
    texts = [gap.host, gap.session, gap.key, gap.phase, gap.reason]
    if gap.tool is not None:
        texts.append(gap.tool)
    require(all(type(text) is str for text in texts), what, "a word of a gap is not text")
    return gap


GAPS_FILE = "gaps"
"""The name of the file that keeps them."""
GAPS = Format(FileKind.GAPS, encode_gaps, decode_gaps)


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


def encode_hold(record: HoldRecord) -> bytes:
    """Returns the payload of a record."""
    process_id, operation, scope, namespace = record
    fields = {"process": process_id, "operation": operation, "scope": scope}
    if namespace is not None:
        fields["namespace"] = namespace
    return pack({"version": 1, **fields})


def decode_hold(payload: bytes) -> HoldRecord:
    """Returns the record of a payload, or raises Corrupt."""
    fields = Fields(unpack(payload, "hold"), "hold")
    fields.require_version(1)
    scope = fields.optional("scope", tuple)
    require(all(type(path) is bytes for path in scope or ()), "hold", "a path is not bytes")
    try:
        checked_scope = parse_scope(scope) if scope else scope
    except InvalidArgument as error:
        raise refused("hold", error.message) from error
    return HoldRecord(
        process_id=fields.size("process"),
        operation=fields.get("operation", str),
        scope=checked_scope,
        namespace=fields.optional("namespace", str),
    )


HOLD = Format(FileKind.HOLD, encode_hold, decode_hold, HOLD_SIZE_MAX)


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


def encode_export(record: ExportRecord) -> bytes:
    """Returns the payload of a record."""
    known = {name: value for name, value in record._asdict().items() if value is not None}
    return pack({"version": 1, **known})


def decode_export(payload: bytes) -> ExportRecord:
    """Returns the record of a payload, or raises Corrupt."""
    fields = Fields(unpack(payload, "export record"), "export record")
    fields.require_version(1)
    path = fields.get("stage_path", bytes)
    digits = os.path.basename(path).removeprefix(EXPORT_STAGE_PREFIX)
    require(
        path.startswith(b"/")
        and os.path.normpath(path) == path
        and b"\0" not in path
        and len(digits) == 16
        and not set(digits) - _DIGITS,
        "export record",
        "its staging directory is not possible",
    )
    fork = fields.optional("fork", bytes)
    require(
        fork is None or (fork.startswith(b"/") and b"\0" not in fork),
        "export record",
        "the path of its fork is not absolute",
    )
    return ExportRecord(path, fields.get("in_place", bool), fork)


EXPORT = Format(FileKind.EXPORT, encode_export, decode_export, EXPORT_SIZE_MAX)
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


def encode_moves(record: ExportMoves) -> bytes:
    """Returns the payload of a list of moves."""
    return pack({"version": 1, **record._asdict()})


def decode_moves(payload: bytes) -> ExportMoves:
    """Returns the list of a payload, or raises Corrupt."""
    what = "list of moves"
    fields = Fields(unpack(payload, what, LONG_ARRAY_LENGTH_MAX), what)
    fields.require_version(1)
    moves = []
    for item in fields.get("moves", tuple):
        require(type(item) is tuple and len(item) == 2, what, "an item is not a name and an inode")
        name, inode = item
        is_name = type(name) is bytes and name not in (b"", b".", b"..")
        require(is_name and not set(name) & set(b"/\0"), what, "a name is not possible")
        require(type(inode) is int, what, "an inode is not a number")
        moves.append(Move(name, inode))
    mode = fields.size("mode")
    require(mode <= 0o7777, what, "its mode is not possible")
    return ExportMoves(
        tuple(moves), mode, fields.size("uid"), fields.size("gid"), fields.time("mtime_ns")
    )


EXPORT_MOVES = Format(FileKind.EXPORT_MOVES, encode_moves, decode_moves)


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


PLAN_PAYLOAD = Format(FileKind.PLAN, _plan_payload, _plan_payload)
"""A plan that the feature has encoded, and checked."""
ATTACHMENTS = {PLAN_ATTACHMENT: PLAN_PAYLOAD}
"""The formats of attachments, by kind."""
