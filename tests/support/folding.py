"""A file system that finds names in other spellings, as exfat and APFS do, and keeps one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import Any
from unicodedata import normalize

from treesnap.core.fs.base import Unsupported
from treesnap.testing.doubles import Call, Kind, WrappedFileSystem

_TWO_NAMES = frozenset({"rename", "rename_to_absent", "exchange", "link"})
Fold = Callable[[str], str]


def without_form(name: str) -> str:
    """Returns what a case-sensitive APFS compares."""
    return normalize("NFD", name)


def without_case_or_form(name: str) -> str:
    """Returns what APFS compares as a Mac makes it."""
    return normalize("NFD", normalize("NFD", name).casefold())


class FoldingFileSystem(WrappedFileSystem):
    """Finds a name in any spelling below a directory, and exchanges nothing, unless it is to.

    ``fold`` returns what the spellings of a name have in common: exfat folds its case. What else
    writes there must not make two names that differ in spelling alone.
    """

    def __init__(
        self,
        base: str | os.PathLike[str],
        inner: Any = None,
        *,
        fold: Fold = str.casefold,
        exchanges: bool = False,
    ) -> None:
        super().__init__(inner)
        self.base = os.fspath(base)
        self._fold = fold
        self._exchanges = exchanges

    def around(self, call: Call) -> Any:
        """Makes the call with the names that are there."""
        if not call.path.startswith(self.base):
            return call.proceed()
        if call.method == "exchange" and not self._exchanges:
            raise Unsupported(errno.EINVAL, os.strerror(errno.EINVAL))
        if call.kind == Kind.HANDLE or not call.arguments or isinstance(call.arguments[0], int):
            return call.proceed()
        arguments, options = list(call.arguments), call.options
        if call.method in _TWO_NAMES:
            arguments[0] = self._there(arguments[0], options.get("source_dir_fd"))
            new = self._there(arguments[1], options.get("target_dir_fd"))
            if call.method != "rename" or new != arguments[0]:
                arguments[1] = new
        elif isinstance(arguments[0], tuple):
            dir_fd, name = arguments[0]
            arguments[0] = dir_fd, self._there(name, dir_fd)
        elif call.method == "make_symlink":
            arguments[1] = self._there(arguments[1], options.get("dir_fd"))
        else:
            arguments[0] = self._there(arguments[0], options.get("dir_fd"))
        return partial(getattr(self._inner, call.method), *arguments, **options)()

    def _there(self, name: str | bytes, dir_fd: int | None) -> str | bytes:
        """Returns the name that is there for one in any spelling, or the one given."""
        above, last = os.path.split(os.fsdecode(name))
        where = above if dir_fd is None else f"/proc/self/fd/{dir_fd}/{above}"
        try:
            names = os.listdir(where)
        except OSError:
            return name
        if last in names:
            return name
        own = self._fold(last)
        found = next((other for other in names if self._fold(other) == own), last)
        path = os.path.join(above, found)
        return os.fsencode(path) if isinstance(name, bytes) else path
