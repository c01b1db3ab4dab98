"""Writer slots: a lock, an epoch, and the pack that is appended to.

A writer takes any slot whose lock is free, or makes one. The slot remembers the
pack of its last writer, so that many small captures fill one pack instead of
making a file each. There are as many slots as there were writers at the same time.
"""

from __future__ import annotations

import os
import struct
from zlib import crc32

from treesnap.core.codec.envelope import HEADER_SIZE, FileKind, check_header, header
from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.fs.durable import is_there, open_regular, unlink_if_present
from treesnap.core.model.errors import Corrupt, TreesnapError
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.store.layout import Layout, is_hex

_BODY = struct.Struct("<Q16sQQ")
"""Epoch, pack, and device and inode of the slot's own file."""
_CHECK = struct.Struct("<I")
_SIZE = HEADER_SIZE + _BODY.size + _CHECK.size
_NAME_LENGTH = 16
NO_PACK = bytes(16)


class Slot:
    """A slot whose lock this process holds until :meth:`release`."""

    def __init__(self, fs: FileSystem, layout: Layout, name: str, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self.name = name
        self.pending_path: str = os.path.join(layout.pending, name)
        """Where this slot's writer puts a snapshot that is about to be published."""

    def read(self) -> tuple[int, bytes]:
        """Returns the epoch and pack of the slot's last writer; zeros when unreadable.

        In a copy of a store the pack does not count: the original may append other objects to
        its pack of the same name, and then neither could replace the other.
        """
        return _read(self._fs, self._fd, self.name)

    def write(self, epoch: int, pack_id: bytes) -> None:
        """Writes epoch and pack. Not synced: losing them costs a new pack and nothing else."""
        body = header(FileKind.SLOT) + _BODY.pack(epoch, pack_id, *_identity(self._fs, self._fd))
        self._fs.write_at(self._fd, body + _CHECK.pack(crc32(body)), 0)

    def release(self) -> None:
        """Releases the lock."""
        self._fs.unlock(self._fd)
        self._fs.close(self._fd)


def _read(fs: ReadingFileSystem, fd: int, name: str) -> tuple[int, bytes]:
    data = fs.read_at(fd, _SIZE + 1, 0)
    try:
        check_header(data, FileKind.SLOT, name)
    except TreesnapError:
        return 0, NO_PACK
    if len(data) != _SIZE:
        return 0, NO_PACK
    (check,) = _CHECK.unpack_from(data, HEADER_SIZE + _BODY.size)
    if check != crc32(data[: HEADER_SIZE + _BODY.size]):
        return 0, NO_PACK
    epoch, pack_id, device, inode = _BODY.unpack_from(data, HEADER_SIZE)
    return epoch, pack_id if (device, inode) == _identity(fs, fd) else NO_PACK


def _identity(fs: ReadingFileSystem, fd: int) -> tuple[int, int]:
    status = fs.fstat(fd)
    return status.st_dev, status.st_ino


def acquire(fs: FileSystem, layout: Layout) -> Slot:
    """Returns a free slot, a new one if necessary. Never waits."""
    for name in sorted(fs.list_names(layout.slots)):
        slot = try_acquire(fs, layout, name)
        if slot is not None:
            return slot
    while True:
        name = os.urandom(_NAME_LENGTH // 2).hex()
        fs.close(fs.open(os.path.join(layout.slots, name), os.O_RDWR | os.O_CREAT | os.O_EXCL))
        slot = try_acquire(fs, layout, name)
        if slot is not None:
            return slot


def try_acquire(fs: FileSystem, layout: Layout, name: str) -> Slot | None:
    """Returns a slot, or None while another process holds it, or where it has other names."""
    if not is_slot_name(name):
        return None
    try:
        fd = open_regular(fs, os.path.join(layout.slots, name), os.O_RDWR, by_one_name=True)
    except (FileNotFoundError, PermissionError, Corrupt):
        return None
    if fs.lock(fd, exclusive=True):
        return Slot(fs, layout, name, fd)
    fs.close(fd)
    return None


class SlotState(NamedTuple):
    """What the last writer of a slot wrote into it."""

    epoch: int
    pack_id: bytes
    is_busy: bool
    """Whether that writer is at work."""
    written_ns: int
    """When that writer last wrote into it, by the clock of the file system."""


def slot_states(fs: ReadingFileSystem, layout: Layout) -> list[SlotState]:
    """Returns what every slot says. Writes nothing, and never waits."""
    states = []
    for name in sorted(fs.list_names(layout.slots)):
        if not is_slot_name(name):
            continue
        try:
            fd = open_regular(fs, os.path.join(layout.slots, name))
        except (FileNotFoundError, Corrupt):
            continue
        try:
            written_ns = fs.fstat(fd).st_mtime_ns
            # Shared, because NFS locks no other way what is open for reading alone.
            is_busy = not fs.lock(fd, exclusive=False)
            epoch, pack_id = _read(fs, fd, name)
            states.append(SlotState(epoch, pack_id, is_busy, written_ns))
            if not is_busy:
                fs.unlock(fd)
        finally:
            fs.close(fd)
    return states


def is_slot_name(name: str) -> bool:
    """Returns whether a name can be that of a slot, and of its pending snapshot."""
    return is_hex(name, _NAME_LENGTH)


def sweep_pending(fs: FileSystem, layout: Layout) -> None:
    """Removes pending snapshots, readable or not, whose writers are gone.

    A writer holds its slot while its snapshot is pending, and a slot is never removed. A
    missing slot was lost in a power cut, which no writer survives. Costs one listing, and two
    looks for each pending snapshot.
    """
    for name in fs.list_names(layout.pending):
        if not is_slot_name(name):
            continue
        path = os.path.join(layout.pending, name)
        slot = try_acquire(fs, layout, name)
        if slot is not None:
            try:
                unlink_if_present(fs, path)
            finally:
                slot.release()
        elif not is_there(fs, os.path.join(layout.slots, name)):
            unlink_if_present(fs, path)
