"""Metadata of one file: reading what a capture needs, and putting it back.

The order in which metadata is put back matters: changing the owner clears the
set-user-ID bits and capabilities, so the owner comes first, then the mode, then
extended attributes (an ACL's mask and the mode's group bits are the same bits,
and both were captured together), then the time.

Owner and privileged attributes need privileges. Where they are refused, the rest
is put back all the same and the path is reported.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from contextlib import suppress

from treesnap.core.fs.base import FileSystem, NoAttribute, Place, Unsupported
from treesnap.core.model.entries import Entry, EntryKind, Xattrs

_ROOM_BYTES = 1 << 20
"""A disk on which so much is free has room for an attribute, which has 64 KiB at most."""
PRIVILEGED = (b"security.", b"trusted.", b"system.", b"treesnap.darwin.acl")
"""What the names of attributes begin with that privileged programs set, or that name users."""
INHERITED = (b"system.posix_acl_", b"treesnap.darwin.acl")
"""What the names of attributes begin with that a new file has from its directory."""
_OF_SYSTEMS = (*PRIVILEGED, b"com.apple.")
"""What the names of attributes begin with that a system may keep to itself."""


def read_xattrs(fs: FileSystem, where: Place) -> Xattrs | None:
    """Returns all extended attributes that may be read, sorted by name, or None.

    Costs one call for a file without any.
    """
    try:
        names = fs.list_xattrs(where)
    except Unsupported:
        return None
    if not names:
        return None
    pairs = []
    for name in names:
        with suppress(NoAttribute, Unsupported):
            pairs.append((os.fsencode(name), fs.get_xattr(where, name)))
    return tuple(sorted(pairs)) or None


def apply_xattrs(fs: FileSystem, where: Place, attributes: Xattrs | None) -> bool:
    """Makes the extended attributes as wanted; returns whether all were permitted."""
    current = dict(read_xattrs(fs, where) or ())
    target = dict(attributes or ())
    permitted = True
    for name in current.keys() - target.keys():
        permitted &= _attempt(fs, where, name, None)
    for name, value in target.items():
        if current.get(name) != value:
            permitted &= _attempt(fs, where, name, value)
    return permitted


def _attempt(fs: FileSystem, where: Place, name: bytes, value: bytes | None) -> bool:
    """Sets one attribute, or removes it; returns whether that was permitted."""
    text = os.fsdecode(name)
    try:
        try:
            _change(fs, where, text, value)
        except PermissionError:
            if name.startswith(PRIVILEGED) or not isinstance(where, int):
                raise
            _change_writable(fs, where, text, value)
    except NoAttribute:
        return True
    except Unsupported:
        return False
    except OSError as error:
        if _is_never_there(fs, where, name, error) or _is_too_large(fs, where, error):
            return False
        raise
    return True


def _is_never_there(fs: FileSystem, where: Place, name: bytes, error: OSError) -> bool:
    """Returns whether this user, or the system, never sets an attribute of this name there.

    EINVAL is the answer to a name or a list that the system does not know, as an archive from
    another one may have. Links, pipes and devices have no attributes of ``user.`` on Linux,
    which is EPERM for root, too.
    """
    if error.errno not in (errno.EPERM, errno.EACCES):
        return error.errno == errno.EINVAL
    if name.startswith(_OF_SYSTEMS):
        return True
    status = fs.fstat(where) if isinstance(where, int) else fs.lstat(where[1], dir_fd=where[0])
    mode = status.st_mode
    return not (stat_module.S_ISREG(mode) or stat_module.S_ISDIR(mode))


def _is_too_large(fs: FileSystem, where: Place, error: OSError) -> bool:
    """Returns whether no attribute of this size can be there: setxattr(2) has two errors for that.

    One of them is also that of a full disk. Ext4 keeps the attributes of a file in one block.
    """
    if error.errno != errno.ENOSPC:
        return error.errno == errno.E2BIG
    return isinstance(where, int) and fs.free_bytes(where) > _ROOM_BYTES


def _change(fs: FileSystem, where: Place, name: str, value: bytes | None) -> None:
    if value is None:
        fs.remove_xattr(where, name)
    else:
        fs.set_xattr(where, name, value)


def _change_writable(fs: FileSystem, where: int, name: str, value: bytes | None) -> None:
    """Changes an attribute of a read-only file, for which its owner has to make it writable."""
    mode = stat_module.S_IMODE(fs.fstat(where).st_mode)
    fs.change_mode(where, mode | stat_module.S_IWUSR)
    try:
        _change(fs, where, name, value)
    finally:
        fs.change_mode(where, mode)


def apply_owner(
    fs: FileSystem, name: bytes | int, uid: int, gid: int, *, dir_fd: int | None = None
) -> bool:
    """Sets owner and group; returns whether that was permitted.

    In a user namespace, users that have no number there are never permitted.
    """
    try:
        fs.change_owner(name, uid, gid, dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EINVAL):
            raise
        return False
    return True


def unlent_mode(entry: Entry, stat: os.stat_result) -> int:
    """Returns an entry's mode without bits that would lend the rights of another owner or group.

    ``stat`` says who has the file: its set-user-ID bit was meant for the owner in the entry.
    """
    mode = entry.mode
    if entry.kind == EntryKind.FILE:
        if stat.st_uid != entry.uid:
            mode &= ~stat_module.S_ISUID
        if stat.st_gid != entry.gid:
            mode &= ~stat_module.S_ISGID
    return mode


def apply_by_name(
    fs: FileSystem,
    place: tuple[int, bytes],
    entry: Entry,
    xattrs: Xattrs | None,
    *,
    touch: bool = False,
) -> bool:
    """Like :func:`apply_metadata`, for a link, and for what cannot be opened.

    None of these calls follows a link. Attributes that are None stay.
    """
    dir_fd, name = place
    permitted = apply_owner(fs, name, entry.uid, entry.gid, dir_fd=dir_fd)
    if entry.kind != EntryKind.SYMLINK:
        mode = entry.mode if permitted else unlent_mode(entry, fs.lstat(name, dir_fd=dir_fd))
        try:
            fs.change_mode(place, mode)
        except Unsupported:
            permitted &= stat_module.S_IMODE(fs.lstat(name, dir_fd=dir_fd).st_mode) == mode
    if xattrs is not None:
        permitted &= apply_xattrs(fs, place, xattrs)
    if not touch:
        fs.change_times(name, entry.mtime_ns, dir_fd=dir_fd)
    return permitted


def apply_metadata(
    fs: FileSystem, where: int, entry: Entry, xattrs: Xattrs, *, touch: bool = False
) -> bool:
    """Gives an open file or directory the metadata of an entry; returns whether all was permitted.

    What is right already is not set again, so that putting back what never changed
    works where changes are not permitted: on immutable files, and on those of others.
    """
    permitted = True
    stat = fs.fstat(where)
    if (stat.st_uid, stat.st_gid) != (entry.uid, entry.gid):
        permitted = apply_owner(fs, where, entry.uid, entry.gid)
        stat = fs.fstat(where)
    mode = entry.mode if permitted else unlent_mode(entry, stat)
    if stat_module.S_IMODE(stat.st_mode) != mode:
        fs.change_mode(where, mode)
    permitted &= apply_xattrs(fs, where, xattrs)
    if not touch and fs.fstat(where).st_mtime_ns != entry.mtime_ns:
        fs.change_times(where, entry.mtime_ns)
    return permitted
