"""The locks that this process holds, which a forked child must not share.

A child inherits the descriptors, and the locks with them. When the parent is killed, its locks
would stay held in a child that another thread forked for a purpose of its own. So each child
starts by replacing these descriptors with ``/dev/null``. Unlocking or closing one in the child
then leaves the parent's lock as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_Identity = tuple[int, int]

_locked: dict[int, _Identity] = {}
"""Device and inode of the file by the descriptor that holds its lock. A descriptor may have been
closed since; if its number is in use again, it is of another file."""
_sharing_threads: set[int] = set()


def note(fd: int) -> None:
    """Records that a descriptor is about to hold a lock."""
    status = os.fstat(fd)
    _locked[fd] = status.st_dev, status.st_ino


def forget(fd: int) -> None:
    """Records that a descriptor holds no lock."""
    _locked.pop(fd, None)


@contextmanager
def shared_with_children() -> Iterator[None]:
    """Lets children that this thread forks in the body keep the locks: they work for it."""
    from _thread import get_ident

    identity = get_ident()
    _sharing_threads.add(identity)
    try:
        yield
    finally:
        _sharing_threads.discard(identity)


def _drop_in_child() -> None:
    if _sharing_threads:
        from _thread import get_ident

        if get_ident() in _sharing_threads:
            return
    null = -1
    for fd, identity in list(_locked.items()):
        with suppress(OSError):
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == identity:
                if null < 0:
                    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                os.dup2(null, fd, inheritable=False)
    if null >= 0:
        os.close(null)
    _locked.clear()
    _sharing_threads.clear()


os.register_at_fork(after_in_child=_drop_in_child)
