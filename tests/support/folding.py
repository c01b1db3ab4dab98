"""A file system that folds case, as exfat and vfat do: it keeps the case of names only."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import Any

from treesnap.core.fs.base import Unsupported
from treesnap.testing.doubles import Call, Kind, WrappedFileSystem

_TWO_NAMES = frozenset({"rename", "rename_to_absent", "link"})


class FoldingFileSystem(WrappedFileSystem):
    """Finds a name whatever its case below a directory, and exchanges nothing.

    What else writes there must not make two names that differ in case.
    """

    def __init__(self, base: str | os.PathLike[str], inner: Any = None) -> None:
        super().__init__(inner)
        self.base = os.fspath(base)

    def around(self, call: Call) -> Any:
        """Makes the call with the names that are there."""
        if not call.path.startswith(self.base):
            return call.proceed()
        if call.method == "exchange":
            raise Unsupported(errno.EINVAL, os.strerror(errno.EINVAL))
        if call.kind == Kind.HANDLE or not call.arguments or isinstance(call.arguments[0], int):
            return call.proceed()
        arguments, options = list(call.arguments), call.options
        if call.method in _TWO_NAMES:
            arguments[0] = self._there(arguments[0], options.get("source_dir_fd"))
            new = self._there(arguments[1], options.get("target_dir_fd"))
            if call.method != "rename" or new != arguments[0]:
                arguments[1] = new
        elif call.method == "make_symlink":
            arguments[1] = self._there(arguments[1], options.get("dir_fd"))
        else:
            arguments[0] = self._there(arguments[0], options.get("dir_fd"))
        return partial(getattr(self._inner, call.method), *arguments, **options)()

    def _there(self, name: str | bytes, dir_fd: int | None) -> str | bytes:
        """Returns the name that is there for one in any case, or the one given."""
        above, last = os.path.split(os.fsdecode(name))
        where = above if dir_fd is None else f"/proc/self/fd/{dir_fd}/{above}"
        try:
            names = os.listdir(where)
        except OSError:
            return name
        if last in names:
            return name
        found = next((other for other in names if other.casefold() == last.casefold()), last)
        path = os.path.join(above, found)
        return os.fsencode(path) if isinstance(name, bytes) else path
