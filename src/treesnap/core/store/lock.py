"""Locks between processes: ``flock`` on files of the store, with bounded waiting.

A lock counts only while its file is the one at the path: after a move of the store, the old
file would keep no process out. The *gate* of a store is such a lock on its directory. Writers are
inside, any number at once; the mover of the store closes the gate when all have left. So what the
mover sees then is all there is, and a process that waited meanwhile goes where the path leads now.
A mover that waits says so in the file ``moving``; a writer that comes then stays outside for
a moment, or in a busy store there would never be one without writers.

Order, for a process that needs several: the lock of plans, the collector's lock, the gate, the
lock of a root, ``roots/lock`` or ``gaps-lock``, and ``index/lock`` last. None waits for the
collector's lock inside the gate.

A lock ends with its holder, however that ends; there is nothing to clean up and
no clock to trust. The file says who holds it, for messages only. Locks are
released explicitly, because a descriptor may live on in a forked child.
"""

from __future__ import annotations

import errno
import os
import time
from _thread import get_ident  # as in threading, which takes longer to import
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from treesnap.core.fs.base import FileSystem, ReadingFileSystem, Unsupported
from treesnap.core.fs.durable import has_other_names, open_lock, open_regular, read_file
from treesnap.core.interruption import pause
from treesnap.core.model.errors import Busy, Corrupt, OperationFailed
from treesnap.core.store.layout import Layout

MOVE = "move"
"""The operation of a process that has the collector's lock to move the store."""
_MOVES = f": {MOVE}".encode()
_NOTE_SIZE_MAX = 200
_PAUSE_S = 0.02
_LIST_WAIT_MIN_S = 5.0
_MOVED = "The store is being moved by another process"
_AT_WORK = "Other processes are at work in the store"
_AT_WORK_ITSELF = "This process is at work in the store itself, and would wait for its own end"
_listing: list[tuple[int, int, str]] = []
"""Which threads use the list of roots of which store: process, thread and path of the lock."""
_entered: list[tuple[int, int, int, int]] = []
"""Which threads are inside the gate of which store: process, thread, device and inode."""


def _write_note(fs: FileSystem, fd: int, operation: str) -> None:
    """Says who holds the lock. Not emptied before: ext4 needs 2 ms to give a block back."""
    status = fs.fstat(fd)
    if has_other_names(status):
        return
    note = f"process {os.getpid()}: {operation}\n".encode()
    fs.write_at(fd, note, 0)
    if status.st_size > len(note):
        fs.truncate(fd, len(note))


def _holder(fs: ReadingFileSystem, fd: int) -> str:
    text = fs.read_at(fd, _NOTE_SIZE_MAX, 0).decode("utf-8", "replace").strip()
    return text if text.isprintable() and text else "another process"


@contextmanager
def held(
    fs: FileSystem,
    path: str,
    *,
    operation: str,
    what: str,
    wait_s: float,
    open_file: Callable[[FileSystem, str], int] = open_lock,
) -> Iterator[Callable[[], bool]]:
    """Holds an exclusive lock on a file while the body runs.

    Waits at most ``wait_s``, then raises Busy naming the holder. ``what`` is the
    thing that is locked, in words. The file is the one at the path when the body begins; it is
    made if absent, unless ``open_file`` opens it otherwise. Yields a function that
    tells whether the file is still there: after a move of the store it is not.
    """
    deadline = time.monotonic() + wait_s

    while True:
        fd = open_file(fs, path)
        try:
            while not fs.lock(fd, exclusive=True):
                if not time.monotonic() < deadline:  # not a number, so no time either
                    raise Busy(f"{what} is in use by {_holder(fs, fd)}", path=path)
                pause(_PAUSE_S)
            try:
                if _is_at(fs, fs.fstat(fd), path):
                    with suppress(OSError):  # on a full or read-only disk it does not say who
                        _write_note(fs, fd, operation)
                    yield _place_of(fs, fs.fstat(fd), path)
                    return
                # The store was moved while this process waited.
            finally:
                fs.unlock(fd)
        finally:
            fs.close(fd)


def _is_at(fs: ReadingFileSystem, here: os.stat_result, path: str) -> bool:
    """Returns whether a path leads to an open file or directory."""
    try:
        there = fs.lstat(path)
    except FileNotFoundError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def _place_of(fs: ReadingFileSystem, here: os.stat_result, path: str) -> Callable[[], bool]:
    return lambda: _is_at(fs, here, path)


@contextmanager
def inside(fs: FileSystem, store_path: str, wait_s: float) -> Iterator[None]:
    """Keeps the store where it is while the body runs; who is inside may change it.

    Costs seven system calls. Sessions may lie in each other. Raises Busy when the store is being
    moved for longer than ``wait_s``. Where the file system has no locks of directories, it keeps
    nothing; such a store cannot be moved to another file system.
    """
    with _gate(fs, store_path, wait_s, exclusive=False) as is_locked:
        del is_locked
        yield


@contextmanager
def closed_gate(fs: FileSystem, store_path: str, wait_s: float) -> Iterator[None]:
    """Keeps writers out of the store; raises Busy while one is inside.

    At once where that is this very thread, which cannot leave while it waits. The caller holds the
    collector's lock. Raises OperationFailed where the file system has no locks of directories.
    """
    with _gate(fs, store_path, wait_s, exclusive=True) as is_locked:
        if not is_locked:
            raise OperationFailed(
                "The file system of the store has no locks of directories", path=store_path
            )
        yield


@contextmanager
def _gate(fs: FileSystem, store_path: str, wait_s: float, *, exclusive: bool) -> Iterator[bool]:
    """Locks the directory of a store; yields whether that is possible there."""
    path = os.path.join(store_path, ".")
    deadline = time.monotonic() + wait_s
    process_id = os.getpid()
    while True:
        try:
            fd = fs.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except PermissionError:  # who may not read the directory cannot lock it
            yield False
            return
        is_locked = False
        try:
            here = fs.fstat(fd)
            entry = (process_id, get_ident(), here.st_dev, here.st_ino)
            if exclusive and entry in _entered:
                raise Busy(_AT_WORK_ITSELF, path=store_path)
            try:
                while not (is_locked := fs.lock(fd, exclusive=exclusive)):
                    if not time.monotonic() < deadline:
                        raise Busy(_AT_WORK if exclusive else _MOVED, path=store_path)
                    pause(_PAUSE_S)
            except Unsupported:
                pass
            except OSError as error:
                if error.errno != errno.EBADF:  # of a network file system, for a directory
                    raise
            if _is_at(fs, here, path):
                _entered.append(entry)
                try:
                    yield is_locked
                finally:
                    _entered.remove(entry)
                return
        finally:
            # A forked child shares the lock: if it unlocked, so would its parent.
            if is_locked and os.getpid() == process_id:
                fs.unlock(fd)
            fs.close(fd)


@contextmanager
def locked_roots(fs: FileSystem, layout: Layout, wait_s: float = 0.0) -> Iterator[None]:
    """Locks what all roots have in common while the body runs; raises Busy.

    That is the list of roots, the settings of the store, and the states of snapshots, which
    several roots may have. Others hold it for moments, so also what does not wait for other
    operations waits :data:`_LIST_WAIT_MIN_S`; but not for this very thread, which cannot end
    while it waits.
    """
    path = os.path.join(layout.roots, "lock")
    entry = (os.getpid(), get_ident(), path)
    wait_s = 0.0 if entry in _listing else max(wait_s, _LIST_WAIT_MIN_S)
    what = "The list of roots"
    _listing.append(entry)
    try:
        with held(fs, path, operation="roots", what=what, wait_s=wait_s):
            yield
    finally:
        _listing.remove(entry)


def is_nested() -> bool:
    """Returns whether this thread has entered gates more than once, and cannot leave alone."""
    return sum(entry[:2] == (os.getpid(), get_ident()) for entry in _entered) > 1


def is_mover_waiting(fs: ReadingFileSystem, layout: Layout) -> bool:
    """Returns whether a process that is to move the store has the collector's lock."""
    if not is_held(fs, layout.collector_lock):
        return False
    with suppress(OSError):
        return read_file(fs, layout.collector_lock, _NOTE_SIZE_MAX).rstrip().endswith(_MOVES)
    return False


def is_held(fs: ReadingFileSystem, path: str) -> bool:
    """Returns whether a process holds the lock on a file. Never waits."""
    with kept_free(fs, path) as is_free:
        return not is_free


@contextmanager
def kept_free(fs: ReadingFileSystem, path: str) -> Iterator[bool]:
    """Yields whether no process holds the lock on a file; then none does while the body runs.

    Never waits. Where there is no such file, no process has the lock.
    """
    try:
        fd = open_regular(fs, path)
    except (OSError, Corrupt):
        yield True
        return
    try:
        is_free = fs.lock(fd, exclusive=False)
        try:
            yield is_free
        finally:
            if is_free:
                fs.unlock(fd)
    finally:
        fs.close(fd)
