"""The roots that a store knows, and the small files that belong to each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self, TypeVar

from treesnap.codec.envelope import SEALED_SIZE_MAX, FileKind, Format, unseal
from treesnap.codec.export import EXPORT, ExportRecord
from treesnap.codec.hold import HOLD, HOLD_SIZE_MAX, HoldRecord
from treesnap.codec.message import Fields, pack, require, unpack
from treesnap.errors import Corrupt, NotFound, UnsupportedFormat
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import (
    Prepared,
    add_directory,
    create_locked,
    open_regular,
    read_file,
    replace_file,
    sync_directory,
    unlink_if_present,
)
from treesnap.hashing import root_id
from treesnap.model import SnapshotId
from treesnap.store.layout import PLAN_PREFIX, STEP_OUTPUT_SUFFIX, Layout, is_hex
from treesnap.store.lock import held

_EXPORT_PREFIX = "export-"
_HOLD_PREFIX = "hold-"
_RECORD_SIZE_MAX = 1 << 20
_PLANS_LOCK = "plans-lock"
_PLANS_LOOK_S = 0.25
"""Whoever looks at the lock of plans holds it for a moment."""

T = TypeVar("T")


def _encode_root(path: bytes) -> bytes:
    return pack({"version": 1, "path": path})


def _decode_root(payload: bytes) -> bytes:
    path = Fields(unpack(payload, "root"), "root").get("path", bytes)
    require(path.startswith(b"/") and b"\0" not in path, "root", "its path is not absolute")
    return path


ROOT = Format(FileKind.ROOT, _encode_root, _decode_root, _RECORD_SIZE_MAX)
"""A root's record: the root's real path."""


class StepOutput(NamedTuple):
    """A file with what an attempt of a plan's step wrote."""

    name: str
    size_bytes: int


def _age(name: str) -> tuple[str, list[int]]:
    """Returns what sorts the outputs of steps by age: the plan, then step and attempt."""
    plan_id, *numbers = name.removeprefix(PLAN_PREFIX).removesuffix(STEP_OUTPUT_SUFFIX).split("-")
    return plan_id, [int(number) for number in numbers if number.isdigit()]


class ExportLock:
    """A record of a restore to another directory, and its lock. Use as a context manager."""

    def __init__(self, fs: FileSystem, path: str, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._fs.unlock(self._fd)
        finally:
            self._fs.close(self._fd)

    def read(self, size_bytes_max: int) -> bytes:
        """Returns the payload, or raises Corrupt or UnsupportedFormat."""
        data = self._fs.read_at(self._fd, size_bytes_max, 0)
        return unseal(data, FileKind.EXPORT, self.path)

    def remove(self) -> bool:
        """Removes the record; returns whether it was there.

        Not synced: a record that comes back names a directory that is gone.
        """
        return unlink_if_present(self._fs, self.path)


class Hold:
    """Keeps a snapshot while this process works; see :meth:`Root.hold`."""

    def __init__(self, fs: FileSystem, path: str, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self.path = path

    def release(self) -> None:
        """Lets the snapshot go."""
        with suppress(OSError):
            unlink_if_present(self._fs, self.path)
        self._fs.unlock(self._fd)
        self._fs.close(self._fd)


class Root:
    """One root's corner of the store. ``path`` is the root's real path."""

    def __init__(self, fs: FileSystem, layout: Layout, path: bytes) -> None:
        self._fs = fs
        self._layout = layout
        self.path = path
        self.id = root_id(path)

    def file(self, name: str) -> str:
        """Path of one of the root's files."""
        return self._layout.root_file(self.id, name)

    def register(self) -> None:
        """Makes the root known to the store. Costs syncs the first time only.

        The record's existence proves that the root's directory is durable. The name of the
        record itself becomes so with the root's first snapshot.
        """
        if not self.is_registered():
            self.register_anew()

    def register_anew(self) -> None:
        """Writes the root's record, whether or not there is one."""
        add_directory(self._fs, self._layout.root_directory(self.id))
        replace_file(
            self._fs,
            self.file("root"),
            ROOT.seal(self.path),
            temporary=self._layout.temporary,
            durable_name=False,
        )

    def is_registered(self) -> bool:
        """Returns whether the store knows the root."""
        try:
            self._fs.lstat(self.file("root"))
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def locked(self, operation: str, wait_s: float) -> Iterator[None]:
        """Keeps every other writer of this root out while the body runs; raises Busy.

        Raises NotFound for a root that was never registered.
        """
        what = f"The root {os.fsdecode(self.path)!r}"
        try:
            self._fs.lstat(self._layout.root_directory(self.id))
        except FileNotFoundError:
            raise NotFound(f"{what} has no snapshots", path=self.path) from None
        with held(self._fs, self.file("lock"), operation=operation, what=what, wait_s=wait_s):
            yield

    @contextmanager
    def plans_locked(self, operation: str) -> Iterator[None]:
        """Keeps everything else off the root's plans while the body runs; raises Busy soon.

        Taken before the root's lock, never inside of it.
        """
        what = f"The list of plans of {os.fsdecode(self.path)!r}"
        path = self.file(_PLANS_LOCK)
        with held(self._fs, path, operation=operation, what=what, wait_s=_PLANS_LOOK_S):
            yield

    def are_plans_locked(self) -> bool:
        """Returns whether a process works on the root's plans right now."""
        try:
            fd = open_regular(self._fs, self.file(_PLANS_LOCK))
        except (OSError, Corrupt):
            return False
        try:
            return not self._fs.lock(fd, exclusive=False)
        finally:
            self._fs.close(fd)

    def plan_ids(self) -> list[str]:
        """Returns the ids of the root's plans, newest first. Costs one listing."""
        names = (name.removeprefix(PLAN_PREFIX) for name in self._plan_names())
        return sorted((name for name in names if "-" not in name and "." not in name), reverse=True)

    def step_outputs(self) -> list[StepOutput]:
        """Returns the files with what steps of plans wrote, oldest plan and step first.

        Costs one listing, and a look per file.
        """
        found = []
        for name in self._plan_names():
            if name.endswith(STEP_OUTPUT_SUFFIX):
                with suppress(FileNotFoundError):
                    size_bytes = self._fs.lstat(self.file(name)).st_size
                    found.append(StepOutput(name, size_bytes))
        return sorted(found, key=lambda item: _age(item.name))

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
                fd = open_regular(self._fs, self.file(item.name))
                try:
                    if self._fs.lock(fd, exclusive=True):
                        unlink_if_present(self._fs, self.file(item.name))
                        left_bytes -= item.size_bytes
                finally:
                    self._fs.close(fd)
        return left_bytes

    def _plan_names(self) -> list[str]:
        try:
            names = self._fs.list_names(self._layout.root_directory(self.id))
        except FileNotFoundError:
            return []
        return [name for name in names if name.startswith(PLAN_PREFIX)]

    def read(self, name: str, kind: FileKind) -> bytes | None:
        """Returns the payload of one of the root's sealed files, or None when absent.

        Raises Corrupt, for an unknown version too: the store's format file admitted us.
        """
        path = self.file(name)
        try:
            data = read_file(self._fs, path, SEALED_SIZE_MAX)
        except FileNotFoundError:
            return None
        try:
            return unseal(data, kind, path)
        except UnsupportedFormat as error:
            raise Corrupt(error.message, path=path) from error

    def write(self, name: str, format_: Format[T], record: T, *, durable: bool = True) -> None:
        """Replaces one of the root's sealed files, durably unless told otherwise."""
        replace_file(
            self._fs,
            self.file(name),
            format_.seal(record),
            temporary=self._layout.temporary,
            durable=durable,
        )

    def prepare(self, name: str, format_: Format[T], record: T) -> Prepared:
        """Writes one of the root's sealed files aside, durably, to be published later."""
        return Prepared(
            self._fs, self.file(name), format_.seal(record), temporary=self._layout.temporary
        )

    def remove(self, name: str) -> None:
        """Removes one of the root's files, durably."""
        if unlink_if_present(self._fs, self.file(name)):
            sync_directory(self._fs, self._layout.root_directory(self.id))

    def hold(self, identity: SnapshotId, record: HoldRecord) -> Hold:
        """Says that this process needs a snapshot, until the hold is released or the process ends.

        The caller holds the root's lock. What dead processes left goes first. Not synced: a
        process does not survive a power cut either. Raises OSError.
        """
        live = self.holds()
        for name in self._hold_names():
            if name.removeprefix(_HOLD_PREFIX) not in live:
                unlink_if_present(self._fs, self.file(name))
        path = self.file(_HOLD_PREFIX + identity)
        data = HOLD.seal(record)
        fd = create_locked(self._fs, path, data, temporary=self._layout.temporary, durable=False)
        return Hold(self._fs, path, fd)

    def holds(self) -> dict[SnapshotId, HoldRecord | None]:
        """Returns the snapshots that living processes need; None for a record that is damaged.

        Costs one listing.
        """
        found: dict[SnapshotId, HoldRecord | None] = {}
        for name in self._hold_names():
            path = self.file(name)
            with suppress(FileNotFoundError):
                fd = self._fs.open(path, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    if self._fs.lock(fd, exclusive=True):
                        self._fs.unlock(fd)
                        continue
                    identity = SnapshotId(name.removeprefix(_HOLD_PREFIX))
                    found[identity] = self._hold_record(fd, path)
                finally:
                    self._fs.close(fd)
        return found

    def _hold_record(self, fd: int, path: str) -> HoldRecord | None:
        try:
            data = self._fs.read_at(fd, HOLD_SIZE_MAX, 0)
            return HOLD.decode(unseal(data, FileKind.HOLD, path))
        except (Corrupt, UnsupportedFormat):
            return None

    def _hold_names(self) -> list[str]:
        names = self._fs.list_names(self._layout.root_directory(self.id))
        return [
            name
            for name in names
            if name.startswith(_HOLD_PREFIX) and is_hex(name.removeprefix(_HOLD_PREFIX), 64)
        ]

    def export_names(self) -> list[str]:
        """Returns the names of the records of restores to other directories. Costs one listing."""
        try:
            names = self._fs.list_names(self._layout.root_directory(self.id))
        except FileNotFoundError:
            return []
        return sorted(
            name
            for name in names
            if name.startswith(_EXPORT_PREFIX) and is_hex(name.removeprefix(_EXPORT_PREFIX), 16)
        )

    def begin_export(self, record: ExportRecord) -> ExportLock:
        """Writes a record of a restore to another directory, durably, and holds its lock."""
        self.register()
        path = self.file(_EXPORT_PREFIX + os.urandom(8).hex())
        fd = create_locked(self._fs, path, EXPORT.seal(record), temporary=self._layout.temporary)
        return ExportLock(self._fs, path, fd)

    def abandoned_export(self, name: str) -> ExportLock | None:
        """Returns a record whose writer is gone, locked, or None when it lives or has ended."""
        path = self.file(name)
        try:
            fd = self._fs.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        if self._fs.lock(fd, exclusive=True):
            return ExportLock(self._fs, path, fd)
        self._fs.close(fd)
        return None


def step_output_bytes(fs: FileSystem, layout: Layout) -> int:
    """Returns the bytes of what steps of plans wrote, of all roots. Costs a listing of each."""
    total = 0
    for name in fs.list_names(layout.roots):
        with suppress(FileNotFoundError), fs.scan(layout.root_directory(name)) as entries:
            for entry in entries:
                if entry.name.startswith(PLAN_PREFIX) and entry.name.endswith(STEP_OUTPUT_SUFFIX):
                    with suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def recorded_path(fs: FileSystem, layout: Layout, name: str) -> bytes | None:
    """Returns the real path in a root's record, or None when there is no record.

    Raises Corrupt for the record of another root too, and UnsupportedFormat.
    """
    where = layout.root_file(name, "root")
    try:
        payload = unseal(read_file(fs, where, _RECORD_SIZE_MAX), FileKind.ROOT, where)
    except FileNotFoundError:
        return None
    path = _decode_root(payload)
    if root_id(path) != name:
        raise Corrupt(f"File {where!r} is the record of another root", path=where)
    return path


def registered_roots(fs: FileSystem, layout: Layout) -> list[bytes]:
    """Returns the real paths of all roots of a store; damaged records are left out."""
    paths = []
    for name in fs.list_names(layout.roots):
        if not is_hex(name, 32):
            continue
        try:
            path = recorded_path(fs, layout, name)
        except (Corrupt, UnsupportedFormat):
            continue
        if path is not None:
            paths.append(path)
    return sorted(paths)
