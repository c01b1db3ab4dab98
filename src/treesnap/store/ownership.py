"""Whose a store is: what proves that the present user, on this machine, made it where it lies.

A store of somebody else may say anything about itself. So nothing that a copy keeps counts: the
file ``made-here`` is a hash over the machine, the file system, and the inode and change time of
the format file. Nobody can choose a change time, so no archive, copy or download has the right
one; a store that was moved on its file system has. A file system from elsewhere, such as that of
a stick, lacks the id of this machine. And the store's directory has to belong to the user or to
root, and nobody else may write to it.

What is not proven is not trusted: nothing of such a store is run, and what is restored from it
gets no privileges unless the user asks for that.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256

from treesnap.fs.base import FileSystem
from treesnap.fs.durable import read_file, replace_file
from treesnap.store.layout import Layout

_MACHINE_ID = "/etc/machine-id"
_SIZE_MAX = 256
_ATTEMPTS = 3
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def is_own(fs: FileSystem, layout: Layout) -> bool:
    """Returns whether a store is proven to be this user's. Costs two reads and two looks."""
    try:
        top = fs.lstat(os.path.realpath(layout.path))
        if top.st_uid not in {0, os.geteuid()} or top.st_mode & _WRITABLE_BY_OTHERS:
            return False
        return read_file(fs, layout.made_here, _SIZE_MAX) == _proof(fs, layout)
    except OSError:
        return False


def note_made_here(fs: FileSystem, layout: Layout) -> None:
    """Writes what proves that a store was made here, after its format file.

    Another process may make the same store at this moment and replace its format file, so what
    was written is compared. Costs a sync.
    """
    for _ in range(_ATTEMPTS):
        proof = _proof(fs, layout)
        replace_file(fs, layout.made_here, proof, temporary=layout.temporary, durable_name=False)
        if proof == _proof(fs, layout):
            return


def _proof(fs: FileSystem, layout: Layout) -> bytes:
    found = fs.lstat(layout.format)
    try:
        machine = read_file(fs, _MACHINE_ID, _SIZE_MAX)
    except OSError:  # containers often have none
        machine = b""
    facts = (machine.hex(), fs.file_system_id(layout.path), found.st_ino, found.st_ctime_ns)
    return sha256(repr(facts).encode()).hexdigest().encode() + b"\n"
