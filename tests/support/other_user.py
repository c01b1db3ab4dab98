"""Another user, who replaces things in directories of their own while a command of root works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem

OTHER_ID = 61234


@contextmanager
def as_the_other() -> Iterator[None]:
    """Lets this process have only the rights of the other user; ignores what these forbid."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(OTHER_ID)
    os.seteuid(OTHER_ID)
    try:
        with suppress(OSError):
            yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def replace_by(path: Path, aside: Path, put: Callable[[int, str], None]) -> None:
    """Moves away what has a name, if anything, and puts something else there, as the other user.

    ``put`` gets a descriptor of the directory and the name.
    """
    fds = [
        os.open(above, getattr(os, "O_PATH", os.O_RDONLY)) for above in (path.parent, aside.parent)
    ]
    with as_the_other():  # below descriptors: pytest lets no other user into its directories
        with suppress(FileNotFoundError):
            os.rename(path.name, aside.name, src_dir_fd=fds[0], dst_dir_fd=fds[1])
        put(fds[0], path.name)
    for fd in fds:
        os.close(fd)


class Other(WrappedFileSystem):
    """The other user, who acts before the N-th call and before all later ones.

    The function is told whether it has not done yet what it does once, and returns whether it has.
    """

    def __init__(self, number: int, act: Callable[[bool], bool]) -> None:
        super().__init__(UnsyncedFileSystem())
        self.left, self._act, self._has_begun = number, act, False

    def around(self, call: Call) -> Any:
        """Makes the call."""
        self.left -= 1
        if self.left <= 0 and call.method != "close":
            self._has_begun |= self._act(not self._has_begun)
        return call.proceed()
