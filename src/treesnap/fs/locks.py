"""Locks are of the process that took them: a forked child has none of its parent's.

A child inherits the descriptors, and through them the locks: when the parent is killed, its
locks would live on in a child that another thread forked, which knows nothing of them. So a
child begins by putting ``/dev/null`` in the place of each. Giving such a lock back in the child,
or closing it, then does nothing to the parent's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_Identity = tuple[int, int]

_locked: dict[int, _Identity] = {}
"""Descriptors that hold a lock, and device and inode of their files. One that was closed may
be among them; if its number is in use again, the file is another."""
_sharing_threads: set[int] = set()


def note(fd: int) -> None:
    """Notes that a descriptor is about to hold a lock."""
    status = os.fstat(fd)
    _locked[fd] = status.st_dev, status.st_ino


def forget(fd: int) -> None:
    """Notes that a descriptor holds no lock."""
    _locked.pop(fd, None)


@contextmanager
def shared_with_children() -> Iterator[None]:
    """Lets what this thread forks in the body keep the locks: it works for this process."""
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
