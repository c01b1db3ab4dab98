"""Whose a store is: what proves that the present user, on this machine, made it where it lies.

A store of another user may say anything about itself. So nothing that a copy keeps counts: the
file ``made-here`` is a hash over the machine, and the inode and change time of the format file. No
user can choose a change time, so no archive, copy or download has the right one; a store that was
moved on its file system has. A file system from elsewhere, such as that of a stick, lacks the id
of this machine. And the store's directory and its format file have to belong to the user or to
root, and no other user may write to it.

The file system does not count: its id (``f_fsid``) is made of the number of its device on XFS, and
of nothing that lasts on others, so a store would be a stranger's after a restart. Another file
system that has the inode with the same change time was made for that, and has any id.

What is not proven is not trusted: nothing of such a store is run, and what is restored from it
gets no privileges unless the user asks for that.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib import import_module

from treesnap.core.fs.base import FileSystem, ReadingFileSystem
from treesnap.core.fs.durable import read_file, replace_file
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.store.layout import Layout

if TYPE_CHECKING:
    from hashlib import _Hash


def _lean_sha256() -> Callable[[bytes], _Hash]:
    """Returns the hash as ``random`` takes one: without OpenSSL, which takes 4 ms to load."""
    name = "_sha2" if sys.version_info >= (3, 12) else "_sha256"
    try:
        module = import_module(name)
    except ImportError:  # another Python
        module = import_module("hashlib")
    algorithm: Callable[[bytes], _Hash] = module.sha256
    return algorithm


_SHA256 = _lean_sha256()
_MACHINE_ID = "/etc/machine-id"
_SIZE_MAX = 256
_ATTEMPTS = 3
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ENTERED_BY_OTHERS = stat.S_IXGRP | stat.S_IXOTH


def is_own(fs: ReadingFileSystem, layout: Layout) -> bool:
    """Returns whether a store is proven to be this user's. Costs two reads and three looks."""
    if not is_controlled(fs, layout):
        return False
    try:
        return read_file(fs, layout.made_here, _SIZE_MAX) == _proof(fs, layout)
    except OSError:
        return False


def is_controlled(fs: ReadingFileSystem, layout: Layout) -> bool:
    """Returns whether no other user owns a store or may write to it. Costs three looks.

    Nor its format file: a user who made it knows what proves it, and it may have been moved here.
    """
    try:
        store, owner_ids = os.path.realpath(layout.path), {0, os.geteuid()}
        top = fs.lstat(store)
        if top.st_uid not in owner_ids or top.st_mode & WRITABLE_BY_OTHERS:
            return False
        if fs.lstat(layout.format).st_uid not in owner_ids:
            return False
        return directory_of_others(store, top, owner_ids) is None
    except OSError:
        return False


def directory_of_others(store: str, top: os.stat_result, owner_ids: Collection[int]) -> str | None:
    """Returns a directory in a store that other users own or may write to, or None.

    ``top`` is the status of the store. Costs nothing where no other user may enter it, else a
    look at each directory directly in it. What cannot be looked at is not the finding here.
    """
    if not top.st_mode & _ENTERED_BY_OTHERS:
        return None
    with suppress(OSError), os.scandir(store) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid not in owner_ids or status.st_mode & WRITABLE_BY_OTHERS:
                    return entry.name
    return None


def note_made_here(fs: FileSystem, layout: Layout) -> None:
    """Writes what proves that a store was made here, after its format file.

    Where the file system cannot keep a name that is there, another process that makes the same
    store at this moment may replace its format file, so what was written is compared. Costs a
    sync.
    """
    for _ in range(_ATTEMPTS):
        proof = _proof(fs, layout)
        replace_file(fs, layout.made_here, proof, temporary=layout.temporary, durable_name=False)
        if proof == _proof(fs, layout):
            return


def _proof(fs: ReadingFileSystem, layout: Layout) -> bytes:
    status = fs.lstat(layout.format)
    try:
        machine = read_file(fs, _MACHINE_ID, _SIZE_MAX)
    except OSError:  # containers often have none
        machine = b""
    facts = (machine.hex(), status.st_ino, status.st_ctime_ns)
    return _SHA256(repr(facts).encode()).hexdigest().encode() + b"\n"
