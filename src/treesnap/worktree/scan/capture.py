"""Capturing one name of a directory: from ``lstat`` and content to an Entry."""

from __future__ import annotations

import errno
import os
import stat as stat_module
from typing import NamedTuple, Protocol

from treesnap.codec.compress import OBJECT_SIZE_MAX
from treesnap.codec.tree import decode_xattrs
from treesnap.errors import Corrupt
from treesnap.fs.base import FileSystem
from treesnap.fs.record_locks import close_after_reading, open_for_reading
from treesnap.model import Entry, EntryKind, ObjectId, ObjectKind, SkipReason, Xattrs
from treesnap.worktree.attributes import encode_xattrs, is_large, path_of, read_xattrs
from treesnap.worktree.scan.content import read_content

_OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)
_OURS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say something about this process or the store, not about the file."""

_NODE_KINDS = {
    stat_module.S_IFIFO: EntryKind.FIFO,
    stat_module.S_IFCHR: EntryKind.CHARACTER_DEVICE,
    stat_module.S_IFBLK: EntryKind.BLOCK_DEVICE,
}


class ObjectSink(Protocol):
    """Where captured objects go, and where earlier ones come from."""

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        """Takes an object and returns its id."""

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        """Returns an object; raises Corrupt when it is missing."""


class Captured(NamedTuple):
    """What became of one name."""

    entry: Entry
    read_bytes: int = 0
    was_read: bool = False
    is_stable: bool = True


def skipped_entry(name: bytes, reason: SkipReason) -> Entry:
    """Returns the entry of a name that exists and is not captured."""
    return Entry(name, EntryKind.SKIPPED, 0, 0, 0, 0, 0, int(reason), None)


def blames_file(error: OSError) -> bool:
    """Returns whether an error makes one path unreadable, rather than the capture impossible."""
    return error.errno not in _OURS


def stored_xattrs(sink: ObjectSink, xattrs: Xattrs | None) -> Xattrs | ObjectId | None:
    """Returns extended attributes as an entry holds them: in place, or as a chunk's id.

    Raises OSError for more than an object holds: one path is unreadable then, not the root.
    """
    if xattrs is None or not is_large(xattrs):
        return xattrs
    data = encode_xattrs(xattrs)
    if len(data) > OBJECT_SIZE_MAX or not _are_readable(data):
        raise OSError(errno.E2BIG, "Its extended attributes are too large to store")
    return sink.put(ObjectKind.CHUNK, data)


def _are_readable(data: bytes) -> bool:
    try:
        decode_xattrs(data)
    except Corrupt:
        return False
    return True


def directory_entry(
    name: bytes,
    stat: os.stat_result,
    tree_id: ObjectId,
    xattrs: Xattrs | ObjectId | None,
) -> Entry:
    """Returns the entry of a directory."""
    return Entry(
        name,
        EntryKind.DIRECTORY,
        stat.st_mode & 0o7777,
        stat.st_uid,
        stat.st_gid,
        stat.st_mtime_ns,
        0,
        tree_id,
        xattrs,
    )


def capture(
    fs: FileSystem, sink: ObjectSink, dir_fd: int, name: bytes, mode: int
) -> Captured | None:
    """Captures a name that is no directory; returns None when it is gone.

    ``mode`` is what ``lstat`` said a moment ago. Raises OSError when the name
    cannot be read; :func:`blames_file` tells what that means.
    """
    kind = stat_module.S_IFMT(mode)
    try:
        if kind == stat_module.S_IFREG:
            return _capture_file(fs, sink, dir_fd, name)
        if kind == stat_module.S_IFSOCK:
            return Captured(skipped_entry(name, SkipReason.SOCKET))
        stat = fs.lstat(name, dir_fd=dir_fd)
        if stat_module.S_IFMT(stat.st_mode) != kind:
            raise OSError(errno.ESTALE, "It changed its type while it was captured")
        xattrs = stored_xattrs(sink, read_xattrs(fs, path_of(dir_fd, name)))
        if kind == stat_module.S_IFLNK:
            entry_kind = EntryKind.SYMLINK
            content: object = fs.read_link(name, dir_fd=dir_fd)
        else:
            entry_kind = _NODE_KINDS[kind]
            content = (
                (os.major(stat.st_rdev), os.minor(stat.st_rdev))
                if entry_kind != EntryKind.FIFO
                else None
            )
    except FileNotFoundError:
        return None
    entry = Entry(
        name,
        entry_kind,
        stat.st_mode & 0o7777,
        stat.st_uid,
        stat.st_gid,
        stat.st_mtime_ns,
        0,
        content,
        xattrs,
    )
    return Captured(entry)


def _capture_file(fs: FileSystem, sink: ObjectSink, dir_fd: int, name: bytes) -> Captured:
    fd = open_for_reading(fs, name, _OPEN_FILE, dir_fd=dir_fd)
    try:
        first = fs.fstat(fd)
        if not stat_module.S_ISREG(first.st_mode):
            raise OSError(errno.ESTALE, "It changed its type while it was captured")
        xattrs = stored_xattrs(sink, read_xattrs(fs, fd))
        held = read_content(fs, fd, sink.put, first)
    finally:
        close_after_reading(fs, fd)
    stat = held.stat
    entry = Entry(
        name,
        EntryKind.FILE,
        stat.st_mode & 0o7777,
        stat.st_uid,
        stat.st_gid,
        stat.st_mtime_ns,
        held.size,
        held.content,
        xattrs,
    )
    return Captured(entry, held.read_bytes, held.read_bytes > 0, held.is_stable)
