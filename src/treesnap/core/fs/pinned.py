"""A file system in which one path always means the same directory, wherever its name leads.

Where other users may rename things, a path may lead to their directory, or through their link, at
any moment. A directory that is opened once stays the one it is, so each name below the path is
looked up from there. Callers, and what errors say, keep the path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from treesnap.core.fs.base import FileSystem
from treesnap.core.model.type_names import Any, cast

_BY_NAME = frozenset(
    {
        "open",
        "lstat",
        "is_protected",
        "read_link",
        "make_directory",
        "remove_directory",
        "unlink",
        "change_owner",
        "change_times",
    }
)
"""What takes a name and the descriptor of the directory it is in."""
_BY_DIRECTORY = frozenset({"list_names", "file_system_id", "birth_time_ns"})
"""What takes a path or its descriptor, but no name in a directory."""
_BY_NAMES = frozenset({"rename", "link"})
"""What takes two names, and a descriptor for each."""


def pinned(fs: FileSystem, path: str, fd: int) -> FileSystem:
    """Returns a file system for which a path, and all below it, is in an open directory.

    Costs no further call, but an open for each listing. Extended attributes take no part.
    """
    return cast("FileSystem", _Pinned(fs, path, fd))


class _Pinned:
    def __init__(self, fs: FileSystem, path: str, fd: int) -> None:
        self._fs, self._path, self._fd = fs, path, fd

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._fs, method)
        if method in _BY_NAME:
            call = partial(self._by_name, call)
        elif method in _BY_DIRECTORY:
            call = partial(self._by_directory, call)
        elif method in _BY_NAMES:
            call = partial(self._by_names, call)
        setattr(self, method, call)
        return call

    @contextmanager
    def scan(self, directory: Any) -> Iterator[Any]:
        if (name := self._below(directory)) is None:
            with self._fs.scan(directory) as entries:
                yield entries
            return
        with self._opened(name) as fd, self._fs.scan(fd) as entries:
            yield entries

    def _below(self, name: Any) -> str | None:
        """Returns a name from the directory on, or None for what is elsewhere."""
        if isinstance(name, str):
            if name == self._path:
                return "."
            if name.startswith(self._path + os.sep):
                return name[len(self._path) + 1 :]
        return None

    def _by_name(self, call: Callable[..., Any], name: Any, *values: Any, **options: Any) -> Any:
        below = self._below(name) if options.get("dir_fd") is None else None
        if below is None:
            return call(name, *values, **options)
        with _named(name):
            return call(below, *values, **{**options, "dir_fd": self._fd})

    def _by_directory(self, call: Callable[..., Any], directory: Any) -> Any:
        name = self._below(directory)
        if name is None:
            return call(directory)
        with _named(directory), self._opened(name) as fd:
            return call(fd)

    def _by_names(self, call: Callable[..., Any], source: Any, target: Any, **options: Any) -> Any:
        names = {"source": source, "target": target}
        for which, name in names.items():
            below = self._below(name)
            if below is not None and options.get(f"{which}_dir_fd") is None:
                names[which], options[f"{which}_dir_fd"] = below, self._fd
        with _named(source, target):
            return call(names["source"], names["target"], **options)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        fd = self._fs.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._fd)
        try:
            yield fd
        finally:
            self._fs.close(fd)


@contextmanager
def _named(name: Any, other: Any = None) -> Iterator[None]:
    """Lets errors say where a name is."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            error.filename = name
            if other is not None:
                error.filename2 = other
        raise
