"""The roots that a store knows, where each of them is, and the small files of each.

A root has an id, which never changes, and a path, which changes when the directory is moved.
The record ``roots/<id>/root`` is the truth about both. A root at the path from which its id
was made is found there directly; any other through a copy of its record under the hash of its
path, ``roots/path-<hash>``, which counts only while the record itself agrees. So moving a root
writes the copy first and then replaces one file: before that the root is at the old path,
afterwards at the new one. Another copy, ``roots/inode-<device>-<inode>``, finds a root that was
moved while no command ran; it is a guess, to be compared with the record.

Every change of which root is where happens under one lock of the store, ``roots/lock``. A
process that needs the lock of a root as well takes that one first.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from stat import S_ISDIR

from treesnap.core.codec.envelope import FileKind, Format
from treesnap.core.codec.journal import is_reserved_path
from treesnap.core.codec.message import Fields, pack, require, unpack
from treesnap.core.codec.root_files import (
    EXPORT,
    HISTORY,
    HOLD,
    ExportRecord,
    HoldRecord,
    RestoreHistory,
)
from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.fs.durable import (
    Prepared,
    add_directory,
    is_there,
    open_regular,
    read_file,
    replace_file,
    sync_directory,
    unlink_if_present,
)
from treesnap.core.fs.real_path import opened_real
from treesnap.core.model.errors import (
    Conflict,
    Corrupt,
    ErrorCode,
    NewerVersion,
    NotFound,
    Refused,
    UnsupportedFormat,
    quoted,
)
from treesnap.core.model.ids import root_id
from treesnap.core.model.late_regex import LateRegex
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.snapshots import SnapshotId
from treesnap.core.model.type_names import TYPE_CHECKING, TypeVar
from treesnap.core.store.layout import PLAN_PREFIX, STEP_OUTPUT_SUFFIX, Layout, is_hex, root_names
from treesnap.core.store.lock import held, inside, is_held, locked_roots
from treesnap.core.store.records import (
    LockedRecord,
    read_record,
    write_change,
    write_record,
)

if TYPE_CHECKING:
    from treesnap.core.codec.journal import Journal

_FETCHED = LateRegex(rb"(?s).*/fetched/([^/]+)/([^/]+)/([0-9a-f]{32})\Z")
_ELSEWHERE = "elsewhere"
_JOINED = "joined"
_NUMBER_SIZE_MAX = 32
EXPORT_PREFIX = "export-"
HOLD_PREFIX = "hold-"
_RECORD_SIZE_MAX = 1 << 20
_ATTACHMENTS_LOCK = "plans-lock"
_ATTACHMENTS_LOOK_S = 0.25
"""Longest time for which a mere check may hold the lock of attachments."""
_EARLIER_MAX = 100
"""Earlier paths that are kept. A record has room for twice as many of 4 KiB each."""
LOCK_WAIT_S = 30.0
"""How long a process waits for the list of roots, unless it is told."""

T = TypeVar("T")


class RootRecord(NamedTuple):
    """What a store knows of a root."""

    id: str
    """Names the directories of the root's files and snapshots; never changes."""
    path: bytes
    """The real path at which it is, or was when it was last seen."""
    device: int | None = None
    """Device number of the directory when it was last captured; None when there was none."""
    inode: int | None = None
    birth_ns: int | None = None
    """When the directory was made, or None if the file system does not say."""
    earlier: tuple[bytes, ...] = ()
    """Paths at which it was before, the newest last."""


def _encode_root(record: RootRecord) -> bytes:
    fields = {
        "id": record.id if record.id != root_id(record.path) else None,
        "device": record.device,
        "inode": record.inode,
        "birth_ns": record.birth_ns,
        "earlier": record.earlier or None,
    }
    stored = {name: value for name, value in fields.items() if value is not None}
    return pack({"version": 1, "path": record.path} | stored)


def _decode_root(payload: bytes) -> RootRecord:
    what = "root"
    value = unpack(payload, what)
    fields = Fields(value, what)
    path = fields.get("path", bytes)
    identity = fields.optional("id", str)
    earlier = fields.optional("earlier", tuple) or ()
    for each in (path, *earlier):
        require(type(each) is bytes, what, "a path is not bytes")
        require(each.startswith(b"/") and b"\0" not in each, what, "its path is not absolute")
    require(identity is None or is_hex(identity, 32), what, "its id is not 32 hex digits")
    return RootRecord(
        id=identity or root_id(path),
        path=path,
        device=fields.optional("device", int),
        inode=fields.optional("inode", int),
        birth_ns=fields.time("birth_ns") if value.get("birth_ns") is not None else None,
        earlier=earlier,
    )


ROOT = Format(FileKind.ROOT, _encode_root, _decode_root, _RECORD_SIZE_MAX)
"""A root's record, and the copies of it by which the root is found."""


class Moved(NamedTuple):
    """The record of a root that is most likely the directory at another path now."""

    record: RootRecord
    is_certain: bool
    """Whether it is the same directory; otherwise its file system does not say."""


class _Hold(NamedTuple):
    """A process's file that keeps a snapshot from deletion; each process has its own."""

    name: str
    identity: SnapshotId
    record: HoldRecord | None
    """None where it is damaged."""
    is_live: bool
    """Whether the process lives."""


class StepOutput(NamedTuple):
    """A file with the output of one attempt of a plan's step."""

    name: str
    size_bytes: int


def _age(name: str) -> tuple[str, list[int]]:
    """Returns what sorts the outputs of steps by age: the plan, then step and attempt."""
    plan_id, *numbers = name.removeprefix(PLAN_PREFIX).removesuffix(STEP_OUTPUT_SUFFIX).split("-")
    return plan_id, [int(number) for number in numbers if number.isdigit()]


class Root:
    """The files of one root in the store. ``path`` is the root's real path."""

    def __init__(
        self,
        fs: FileSystem,
        layout: Layout,
        path: bytes,
        *,
        identity: str | None = None,
        wait_s: float = LOCK_WAIT_S,
    ) -> None:
        """Finds the root at a path, or the one with ``identity``, wherever it is.

        ``wait_s`` is how long it waits for the list of all roots.
        """
        self._fs = fs
        self._wait_s = wait_s
        self._layout = layout
        self.path: bytes = path
        self.id: str = identity or root_id(path)
        self.record: RootRecord | None = None
        """What the store knew of it when this was made, or None."""
        self._is_chosen_by_id = identity is not None
        self._is_wanted = False
        self._look_up()

    def _look_up(self) -> None:
        """Sets id and record, or the path. Costs one read for a root that was never moved."""
        if self._is_chosen_by_id:
            self.record, _ = _read(self._fs, self.file("root"), self.id)
            self.path = self.record.path if self.record is not None else self.path
            return
        self.id = root_id(self.path)
        self.record, _ = _read(self._fs, self._layout.root_file(self.id, "root"), self.id)
        if self.record is not None and self.record.path == self.path:
            return
        is_elsewhere = self.record is not None
        copy, _ = _read(self._fs, self._layout.root_at_path(self.id))
        if copy is not None and copy.path == self.path:
            record, is_found_damaged = _read(
                self._fs, self._layout.root_file(copy.id, "root"), copy.id
            )
            if is_found_damaged or (record is not None and record.path == self.path):
                self.id, self.record = copy.id, record
                return
        self.record = None
        salt = 0
        while is_elsewhere:
            salt += 1
            self.id = root_id(b"%b\0%d" % (self.path, salt))
            is_elsewhere = is_there(self._fs, self._layout.root_file(self.id, "root"))

    @property
    def moved_to(self) -> bytes | None:
        """The present path of the root that was at this path before; None if unknown."""
        first = root_id(self.path)
        record, _ = _read(self._fs, self._layout.root_file(first, "root"), first)
        return record.path if record is not None and record.path != self.path else None

    def file(self, name: str) -> str:
        """Path of one of the root's files."""
        return self._layout.root_file(self.id, name)

    def register(self) -> None:
        """Makes the root known to the store. Costs syncs the first time only.

        The record's existence proves that the root's directory is durable. The name of the
        record itself becomes so with the root's first snapshot.
        """
        self._is_wanted = True
        if self.is_registered():
            return
        with locked_roots(self._fs, self._layout, self._wait_s):
            self._look_up()  # another process may have moved a root to this path meanwhile
            if self.record is None and not self.is_registered():
                add_directory(self._fs, self._layout.root_directory(self.id))
                record = RootRecord(id=self.id, path=self.path)
                self._write(identified(self._fs, record))

    def note_identity(self) -> None:
        """Records which directory the root is, so that it is recognised after a move.

        Costs two looks unless the directory is a different one. The caller holds the root's lock.
        """
        record = self.record
        if record is None:
            return
        self._note(record, identified(self._fs, record))

    def note_birth(self, fd: int, time_ns: int) -> None:
        """Records the time of birth anew, if the time of modification has become it.

        On a Mac and on FreeBSD an older one does, as a restore sets it. ``fd`` is the open root,
        and ``time_ns`` what was set. Costs two looks where that is older, and else nothing. The
        caller holds the root's lock.
        """
        record = self.record
        if record is None or record.birth_ns is None or time_ns >= record.birth_ns:
            return
        stat, birth_ns = self._fs.fstat(fd), self._fs.birth_time_ns(fd)
        is_same = (stat.st_dev, stat.st_ino) == (record.device, record.inode)
        if is_same and birth_ns is not None and birth_ns < record.birth_ns:
            self._note(record, record._replace(birth_ns=birth_ns))

    def _note(self, record: RootRecord, current: RootRecord) -> None:
        """Writes which directory the root is, unless its record says so."""
        if current == record:
            return
        with locked_roots(self._fs, self._layout, self._wait_s):
            self._write(current)
            if _inode_copy(self._layout, current) != _inode_copy(self._layout, record):
                self._remove_copy(_inode_copy(self._layout, record))

    def is_replaced(self) -> bool:
        """Returns whether the directory at the path is another one than was captured last.

        Inodes are reused, so the time at which it was made counts as well; a device may have
        another number after a reboot. Costs two looks.
        """
        record = self.record
        if record is None or record.inode is None:
            return False
        current = identified(self._fs, record)
        if record.birth_ns is None or current.birth_ns is None:
            return (current.device, current.inode) != (record.device, record.inode)
        return (current.birth_ns, current.inode) != (record.birth_ns, record.inode)

    def _write(self, record: RootRecord) -> None:
        """Puts a record and its copies in place. The caller holds the lock of all roots."""
        if record.id != root_id(record.path):
            at_path = self._layout.root_at_path(root_id(record.path))
            write_record(self._fs, self._layout, at_path, ROOT, record)
        write_record(self._fs, self._layout, self.file("root"), ROOT, record, durable_name=False)
        self.record = record
        at_inode = _inode_copy(self._layout, record)
        if at_inode is not None:
            write_record(self._fs, self._layout, at_inode, ROOT, record, durable=False)

    def _remove_copy(self, path: str | None) -> None:
        """Removes a copy of this root's record; one of another root stays."""
        if path is not None:
            copy, is_damaged = _read(self._fs, path)
            if is_damaged or (copy is not None and copy.id == self.id):
                unlink_if_present(self._fs, path)

    def move(self, path: bytes) -> None:
        """Makes a path the root's own, durably. The caller holds the root's lock.

        At any crash the root is at the old path or at the new one. Raises Refused when
        another root is at the new path.
        """
        with locked_roots(self._fs, self._layout, self._wait_s):
            there = Root(self._fs, self._layout, path)
            if there.record is not None and there.id != self.id:
                raise Refused(
                    f"The directory {quoted(path)} has a history of its own",
                    code=ErrorCode.ROOT_TAKEN,
                    path=path,
                )
            old = self.record or RootRecord(id=self.id, path=self.path)
            earlier = [each for each in (*old.earlier, old.path) if each != path]
            self.path = path
            moved = old._replace(path=path, earlier=tuple(dict.fromkeys(earlier))[-_EARLIER_MAX:])
            self._write(identified(self._fs, moved))
            sync_directory(self._fs, self._layout.root_directory(self.id))
            if old.path != path:
                self._remove_copy(self._layout.root_at_path(root_id(old.path)))
            if _inode_copy(self._layout, old) != _inode_copy(self._layout, self.record or old):
                self._remove_copy(_inode_copy(self._layout, old))

    def forget(self) -> None:
        """Removes all files of the root but its locks. The caller holds the root's lock.

        Its record goes last, so that what a crash left can be forgotten again.
        """
        with locked_roots(self._fs, self._layout, self._wait_s):
            directory = self._layout.root_directory(self.id)
            for name in sorted(self._fs.list_names(directory)):
                if name in {"root", "lock"} or name.endswith("-lock"):
                    continue
                path = self.file(name)
                if name == "watch" and S_ISDIR(self._fs.lstat(path).st_mode):
                    for inner in self._fs.list_names(path):
                        if inner != "lock":
                            unlink_if_present(self._fs, os.path.join(path, inner))
                    continue
                unlink_if_present(self._fs, path)
            sync_directory(self._fs, directory)
            unlink_if_present(self._fs, self.file("root"))
            sync_directory(self._fs, directory)
            record = self.record
            if record is not None:
                self._remove_copy(self._layout.root_at_path(root_id(record.path)))
                self._remove_copy(_inode_copy(self._layout, record))
            self.record = None

    def repair(self, record_elsewhere: RootRecord | None) -> bool:
        """Rewrites a damaged or missing record, and the copies by which the root is found.

        What the record says by now counts, else ``record_elsewhere``; without either removes it.
        Returns whether anything had to be done.
        """
        with locked_roots(self._fs, self._layout, self._wait_s):
            stored, _ = _read(self._fs, self.file("root"), self.id)
            record = stored or record_elsewhere
            if record is None:
                return unlink_if_present(self._fs, self.file("root"))
            if stored is not None and Root(self._fs, self._layout, stored.path).id == self.id:
                return False
            add_directory(self._fs, self._layout.root_directory(self.id))
            self._write(record)
            return True

    def is_registered(self) -> bool:
        """Returns whether the store knows the root."""
        return is_there(self._fs, self.file("root"))

    @property
    def is_joined(self) -> bool:
        """Whether what is done in it is about the root above it. Costs one look."""
        return is_there(self._fs, self.file(_JOINED))

    def join(self, *, is_joined: bool) -> None:
        """Says whether what is done in it is about the root above it, if there is one.

        The caller holds the root's lock.
        """
        if is_joined:
            replace_file(self._fs, self.file(_JOINED), b"", temporary=self._layout.temporary)
        else:
            unlink_if_present(self._fs, self.file(_JOINED))

    @property
    def is_interrupted(self) -> bool:
        """Whether a restore of the root has left a journal. Costs one look."""
        return is_there(self._fs, self.file("journal"))

    @contextmanager
    def locked(self, operation: str, wait_s: float) -> Iterator[None]:
        """Keeps every other writer of this root out while the body runs; raises Busy.

        Raises NotFound for a root that was never registered.
        """
        what = f"The root {quoted(self.path)}"
        try:
            self._fs.lstat(self._layout.root_directory(self.id))
        except FileNotFoundError:
            raise NotFound(f"{what} has no snapshots", path=self.path) from None
        with (
            inside(self._fs, self._layout.path, wait_s),
            held(self._fs, self.file("lock"), operation=operation, what=what, wait_s=wait_s),
        ):
            self._look_again(what)
            yield

    @contextmanager
    def attachments_locked(self, operation: str) -> Iterator[None]:
        """Locks the root's attachments, its plans, while the body runs; raises Busy soon.

        Taken before the root's lock, never while holding it.
        """
        what = f"The list of plans of {quoted(self.path)}"
        path = self.file(_ATTACHMENTS_LOCK)
        with held(self._fs, path, operation=operation, what=what, wait_s=_ATTACHMENTS_LOOK_S):
            yield

    def are_attachments_locked(self) -> bool:
        """Returns whether a process works on the root's plans right now."""
        return is_held(self._fs, self.file(_ATTACHMENTS_LOCK))

    def attachment_names(self) -> list[str]:
        """Returns the names of the root's attachments, newest first. Costs one listing."""
        names = (name.removeprefix(PLAN_PREFIX) for name in self._plan_names())
        return sorted((name for name in names if "-" not in name and "." not in name), reverse=True)

    def step_outputs(self) -> list[StepOutput]:
        """Returns the files with what steps of plans wrote, oldest plan and step first.

        Costs one listing, and a look per file.
        """
        outputs = []
        for name in self._plan_names():
            if name.endswith(STEP_OUTPUT_SUFFIX):
                with suppress(FileNotFoundError):
                    size_bytes = self._fs.lstat(self.file(name)).st_size
                    outputs.append(StepOutput(name, size_bytes))
        return sorted(outputs, key=lambda item: _age(item.name))

    def trim_step_outputs(self, size_bytes_max: int) -> int:
        """Removes what steps wrote, oldest first, until the rest takes no more.

        Returns how many bytes are left. What a process may still write to stays. Not synced:
        what comes back is removed again.
        """
        outputs = self.step_outputs()
        left_bytes = sum(item.size_bytes for item in outputs)
        for item in outputs:
            if left_bytes <= size_bytes_max:
                break
            with suppress(OSError, Corrupt):
                fd = open_regular(self._fs, self.file(item.name), os.O_RDWR)
                try:
                    if self._fs.lock(fd, exclusive=True):
                        unlink_if_present(self._fs, self.file(item.name))
                        left_bytes -= item.size_bytes
                finally:
                    self._fs.close(fd)
        return left_bytes

    def _plan_names(self) -> list[str]:
        return [name for name in self.names() if name.startswith(PLAN_PREFIX)]

    def names(self) -> list[str]:
        """Returns the names of the root's files in the store, or none where it is not known."""
        try:
            return self._fs.list_names(self._layout.root_directory(self.id))
        except FileNotFoundError:
            return []

    def _look_again(self, what: str) -> None:
        """Raises Conflict when the root was moved while this process waited for its lock.

        Registers it again when it was forgotten meanwhile and is needed.
        """
        if self._is_chosen_by_id:
            self._look_up()
            return
        fresh = Root(self._fs, self._layout, self.path)
        if fresh.id != self.id:
            raise Conflict(f"{what} was moved, or another one was moved there, meanwhile")
        self.record = fresh.record
        if self._is_wanted:
            self.register()

    @property
    def last_from_elsewhere(self) -> int:
        """The number of the newest of its snapshots that a clone brought; 0 where none did.

        Where the file that says so cannot be read, no snapshot counts as captured here.
        """
        try:
            return max(0, int(read_file(self._fs, self.file(_ELSEWHERE), _NUMBER_SIZE_MAX)))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            return sys.maxsize

    def note_from_elsewhere(self, sequence: int) -> None:
        """Notes, durably, that its snapshots up to a number do not come from this machine."""
        text = f"{max(sequence, self.last_from_elsewhere)}\n".encode()
        replace_file(self._fs, self.file(_ELSEWHERE), text, temporary=self._layout.temporary)

    def read(self, name: str, format_: Format[T]) -> T | None:
        """Returns the record in one of the root's files, or None when absent; raises Corrupt."""
        return read_record(self._fs, self.file(name), format_)

    def write(self, name: str, format_: Format[T], record: T, *, durable: bool = True) -> None:
        """Replaces the record in one of the root's files, durably unless told otherwise."""
        write_record(self._fs, self._layout, self.file(name), format_, record, durable=durable)

    def change(self, name: str, format_: Format[T], record: T) -> None:
        """Makes a record durable by what changed of it, as :func:`write_change` says."""
        write_change(self._fs, self._layout, self.file(name), format_, record)

    def prepare(self, name: str, format_: Format[T], record: T) -> Prepared:
        """Writes the record of one of the root's files aside, durably, to be published later."""
        return Prepared(
            self._fs, self.file(name), format_.seal(record), temporary=self._layout.temporary
        )

    def remove(self, name: str) -> None:
        """Removes one of the root's files, durably."""
        if unlink_if_present(self._fs, self.file(name)):
            sync_directory(self._fs, self._layout.root_directory(self.id))

    def forget_cache(self, operation: str, wait_s: float) -> None:
        """Removes the stat cache, durably: the next capture reads every file. Raises Busy.

        Waits for a running capture, which would write an old one afterwards.
        """
        with suppress(NotFound), self.locked(operation, wait_s):
            self.remove("cache")

    def hold(self, identity: SnapshotId, record: HoldRecord) -> LockedRecord[HoldRecord]:
        """Keeps a snapshot until the hold is released or this process ends.

        The caller holds the root's lock. Removes holds of dead processes first. Not synced: a
        process does not survive a power cut either. Raises OSError.
        """
        self.forget_dead_holds()
        path = self.file(f"{HOLD_PREFIX}{identity}-{os.urandom(8).hex()}")
        return LockedRecord.create(self._fs, self._layout, path, HOLD, record, durable=False)

    def holds(self) -> dict[SnapshotId, list[HoldRecord | None]]:
        """Returns the snapshots that living processes need, with the record of each process.

        None for a record that is damaged. Costs one listing.
        """
        by_snapshot: dict[SnapshotId, list[HoldRecord | None]] = {}
        for hold in self._holds(self.names()):
            if hold.is_live:
                by_snapshot.setdefault(hold.identity, []).append(hold.record)
        return by_snapshot

    def dead_holds(self, names: Iterable[str]) -> dict[SnapshotId, HoldRecord]:
        """Returns what was to be gone back to, and was not, of the root's files.

        The process was killed, or its roll-back failed.
        """
        return {
            hold.identity: hold.record
            for hold in self._holds(names)
            if not hold.is_live and hold.record is not None and hold.record.scope != ()
        }

    def forget_dead_holds(self, identity: SnapshotId | None = None) -> None:
        """Removes the holds of dead processes, on one snapshot or all.

        The caller holds the root's lock.
        """
        for hold in self._holds(self.names()):
            if not hold.is_live and identity in (None, hold.identity):
                unlink_if_present(self._fs, self.file(hold.name))

    def _holds(self, names: Iterable[str]) -> Iterator[_Hold]:
        """Yields each hold; earlier versions named it by the snapshot alone."""
        for name in names:
            identity, _, own = name.removeprefix(HOLD_PREFIX).partition("-")
            if not (name.startswith(HOLD_PREFIX) and is_hex(identity, 64)) or (
                own and not is_hex(own, 16)
            ):
                continue
            path = self.file(name)
            with LockedRecord.open(self._fs, path, HOLD, exclusive=False) or nullcontext() as hold:
                if hold is not None:
                    record = None
                    with suppress(Corrupt, UnsupportedFormat):
                        record = hold.read()
                    yield _Hold(name, SnapshotId(identity), record, not hold.is_abandoned)

    def of_store(self) -> list[Root]:
        """Returns all roots of the store, by path."""
        records = registered_records(self._fs, self._layout)
        return [Root(self._fs, self._layout, item.path, identity=item.id) for item in records]

    def export_names(self, names: Iterable[str] | None = None) -> list[str]:
        """Returns the names of the records of restores to other directories. Costs one listing,
        unless the root's files are given.
        """
        return sorted(_like(self.names() if names is None else names, EXPORT_PREFIX, 16))

    def begin_export(self, record: ExportRecord) -> LockedRecord[ExportRecord]:
        """Writes a record of a restore to another directory, durably, and holds its lock."""
        self.register()
        path = self.file(EXPORT_PREFIX + os.urandom(8).hex())
        return LockedRecord.create(self._fs, self._layout, path, EXPORT, record)

    def abandoned_export(self, name: str) -> LockedRecord[ExportRecord] | None:
        """Returns a record whose writer was killed, locked; None if it runs or has finished."""
        record = LockedRecord.open(self._fs, self.file(name), EXPORT)
        if record is None or record.is_abandoned:
            return record
        record.close()
        return None


class FetchedHistory(NamedTuple):
    """A history of another machine, of which the store has snapshots: a root without a directory.

    Its path is one that nothing can be at: in the store, below a directory that is never made,
    ``fetched/REMOTE/NAME/ID``.
    """

    remote: str
    """Name of the remote that it was fetched from first."""
    name: str
    id: str
    path: bytes


def history_at(path: bytes) -> FetchedHistory | None:
    """Returns the history that the root with a path is, or None for a directory's root."""
    match = _FETCHED.compiled.match(path) if b"/fetched/" in path else None
    if match is None:
        return None
    remote, name, history_id = map(os.fsdecode, match.groups())
    return FetchedHistory(remote, name, history_id, path)


def _like(names: Iterable[str], prefix: str, digits: int) -> list[str]:
    """Returns the names of files that are a prefix and so many hex digits."""
    return [
        name
        for name in names
        if name.startswith(prefix) and is_hex(name.removeprefix(prefix), digits)
    ]


def step_output_bytes(fs: ReadingFileSystem, layout: Layout) -> int:
    """Returns the bytes of what steps of plans wrote, of all roots. Costs a listing of each."""
    total = 0
    for name in root_names(fs, layout.roots):
        directory = layout.root_directory(name)
        with suppress(FileNotFoundError, PermissionError), fs.scan(directory) as entries:
            for entry in entries:
                if entry.name.startswith(PLAN_PREFIX) and entry.name.endswith(STEP_OUTPUT_SUFFIX):
                    with suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def _read(
    fs: ReadingFileSystem, path: str, identity: str | None = None
) -> tuple[RootRecord | None, bool]:
    """Returns a record, or None, and whether that is because it is damaged."""
    try:
        return _record(fs, path, identity), False
    except (Corrupt, PermissionError):
        return None, True


def _record(fs: ReadingFileSystem, path: str, identity: str | None) -> RootRecord | None:
    record = read_record(fs, path, ROOT)
    if record is not None and identity is not None and record.id != identity:
        raise Corrupt(f"File {quoted(path)} is the record of another root", path=path)
    return record


def _inode_copy(layout: Layout, record: RootRecord) -> str | None:
    if record.device is None or record.inode is None:
        return None
    return layout.root_at_inode(record.device, record.inode)


_NOT_LOOKED_AT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM})
"""Why it is not known which directory a root is: there is none, or a link is in its place."""


def identified(fs: FileSystem, record: RootRecord) -> RootRecord:
    """Returns a record with what tells which directory is at its path now, if there is one."""
    try:
        with opened_real(fs, record.path) as fd:
            stat = fs.fstat(fd)
            birth_ns = fs.birth_time_ns(fd)
    except OSError as error:
        if error.errno not in _NOT_LOOKED_AT:
            raise
        return record
    return record._replace(device=stat.st_dev, inode=stat.st_ino, birth_ns=birth_ns)


def find_moved(fs: ReadingFileSystem, layout: Layout, path: bytes) -> Moved | None:
    """Returns the root that was moved to a path, of which the store knows no root.

    Its device, inode and, if known, creation time are those of the directory at the path. Inodes
    are reused, and times may agree by chance: so its own path must hold another directory by
    now, or none. No root is moved by being put aside to be removed. Costs two looks when no root
    was moved there.
    """
    if is_reserved_path(path):
        return None
    try:
        stat = fs.lstat(path)
    except OSError:
        return None
    copy, _ = _read(fs, layout.root_at_inode(stat.st_dev, stat.st_ino))
    if copy is None or not S_ISDIR(stat.st_mode):
        return None
    record, _ = _read(fs, layout.root_file(copy.id, "root"), copy.id)
    if record is None or record.path == path:
        return None
    if (record.device, record.inode) != (stat.st_dev, stat.st_ino):
        return None
    try:
        there = fs.lstat(record.path)
        if (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino):
            return None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        return None  # it may be there, but cannot be looked at
    try:
        birth_ns = fs.birth_time_ns(path)
    except OSError:
        birth_ns = None
    if birth_ns is None or record.birth_ns is None:
        return Moved(record, is_certain=False)
    return Moved(record, is_certain=True) if birth_ns == record.birth_ns else None


def recorded_root(fs: ReadingFileSystem, layout: Layout, name: str) -> RootRecord | None:
    """Returns a root's record, or None; raises Corrupt, for that of another root too."""
    return _record(fs, layout.root_file(name, "root"), name)


def copied_record(fs: ReadingFileSystem, layout: Layout, name: str) -> RootRecord | None:
    """Returns a copy of a root's record, or None; preferably the one under its path."""
    for copy_name in sorted(fs.list_names(layout.roots), reverse=True):
        if copy_name.startswith(("path-", "inode-")):
            copy, _ = _read(fs, os.path.join(layout.roots, copy_name))
            if copy is None or copy.id != name:
                continue
            places = (layout.root_at_path(root_id(copy.path)), _inode_copy(layout, copy))
            if os.path.join(layout.roots, copy_name) in places:
                return copy
    return None


def registered_records(fs: ReadingFileSystem, layout: Layout) -> list[RootRecord]:
    """Returns the records of all roots of a store, by path; damaged ones are left out."""
    read = (
        _read(fs, layout.root_file(name, "root"), name)[0] for name in root_names(fs, layout.roots)
    )
    records = (record for record in read if record is not None)
    return sorted(records, key=lambda record: (record.path, record.id))


def registered_roots(fs: ReadingFileSystem, layout: Layout) -> list[bytes]:
    """Returns the real paths of all roots of a store; damaged records are left out."""
    return [record.path for record in registered_records(fs, layout)]


def read_journal(root: Root) -> Journal | None:
    """Returns the journal of a root, or None when there is none.

    Raises Corrupt, also for a journal that was copied from another root: it would apply that
    root's metadata and files to this one.
    """
    from treesnap.core.codec.journal import JOURNAL

    journal = root.read("journal", JOURNAL)
    if journal is not None and journal.root_id != root.id:
        path = root.file("journal")
        raise Corrupt(
            f"The journal {quoted(path)} of an interrupted restore is of another root",
            code=ErrorCode.RESTORE_INTERRUPTED,
            path=path,
        )
    return journal


def needed_snapshots(root: Root) -> frozenset[SnapshotId]:
    """Returns the snapshots without which an interrupted restore could not be finished."""
    journal = read_journal(root)
    commit = journal.commit if journal is not None else None
    return frozenset({commit.target_id, commit.safety_id} if commit is not None else ())


def _users_of(root: Root) -> list[Root]:
    """Returns the roots in which its snapshots may be needed: all, if its history was fetched."""
    if history_at(root.path) is None:
        return [root]
    return [root, *(each for each in root.of_store() if each.id != root.id)]


def needed_of(root: Root) -> frozenset[SnapshotId]:
    """Returns which snapshots interrupted restores need, of a root that may be a fetched history.

    Raises Corrupt for a damaged journal of the root itself, and NewerVersion. Without one that is
    damaged elsewhere, no restore can be finished there anyway.
    """
    needed = set[SnapshotId]()
    for each in _users_of(root):
        try:
            needed |= needed_snapshots(each)
        except NewerVersion:
            raise
        except Corrupt:
            if each is root:
                raise
    return frozenset(needed)


def holds_of(root: Root) -> dict[SnapshotId, list[HoldRecord | None]]:
    """Returns what :meth:`Root.holds` does, for all roots where a history was fetched."""
    by_snapshot: dict[SnapshotId, list[HoldRecord | None]] = {}
    for each in _users_of(root):
        for identity, records in each.holds().items():
            by_snapshot.setdefault(identity, []).extend(records)
    return by_snapshot


def load_history(root: Root) -> RestoreHistory:
    """Returns a root's restore history; an unreadable one counts as empty."""
    try:
        return root.read("history", HISTORY) or RestoreHistory()
    except Corrupt:
        return RestoreHistory()
