"""A file system around another one: the base of all test doubles of the seam.

Every method of :class:`treesnap.fs.base.FileSystem` becomes a :class:`Call`, which
a subclass sees in :meth:`WrappedFileSystem.around` and lets through, or not. So
doubles stack: a recording of a faulty one, a faulty one of a recording.

Not here: what a call means for durability (fs.base).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from treesnap.fs.base import FileSystem
from treesnap.fs.local import LocalFileSystem


class Kind(StrEnum):
    """What a call does to the disk."""

    READ = "read"
    """Returns file content."""
    LOOK = "look"
    """Returns names or metadata, or a descriptor of something that exists."""
    WRITE = "write"
    """Changes file content."""
    NAME = "name"
    """Makes, changes or removes a name."""
    ATTRIBUTE = "attribute"
    """Changes metadata."""
    SYNC = "sync"
    """Changes nothing but what survives a power cut."""
    HANDLE = "handle"
    """Concerns this process only: descriptors and locks."""


MUTATING = frozenset({Kind.WRITE, Kind.NAME, Kind.ATTRIBUTE})
"""The kinds of calls after which the disk looks different."""

_METHODS = {
    Kind.READ: "read read_at map",
    Kind.LOOK: "open next_data next_hole scan list_names lstat fstat free_bytes is_read_only "
    "is_protected mount_id birth_time_ns read_link list_xattrs get_xattr",
    Kind.WRITE: "write write_at truncate allocate",
    Kind.NAME: "make_directory remove_directory unlink rename rename_to_absent exchange link "
    "make_symlink make_node",
    Kind.ATTRIBUTE: "change_mode change_owner change_times set_xattr remove_xattr",
    Kind.SYNC: "sync sync_data sync_file_system",
    Kind.HANDLE: "close lock unlock",
}
KINDS = {method: kind for kind, methods in _METHODS.items() for method in methods.split()}
"""Every method, with what it does. ``open`` is of kind NAME when it may make a file."""


@dataclass(slots=True)
class Call:
    """One call on its way to the file system below."""

    method: str
    kind: Kind
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    proceed: Callable[[], Any] = field(repr=False)
    """Makes the call below and returns what it returns."""
    locate: Callable[..., tuple[str, ...]] = field(repr=False)
    """Finds the paths of a call; most calls are let through without."""

    @property
    def paths(self) -> tuple[str, ...]:
        """What the call is about, as far as known: one path, or source and target."""
        return self.locate(self.method, self.arguments, self.options)

    @property
    def path(self) -> str:
        """The first of them."""
        return self.paths[0]

    @property
    def data(self) -> bytes:
        """What ``write`` and ``write_at`` were given; empty for everything else."""
        is_data = self.method in {"write", "write_at"}
        return bytes(self.arguments[1]) if is_data else b""


if TYPE_CHECKING:
    _Methods = LocalFileSystem  # for type checkers: the methods exist, see the end of the module
else:
    _Methods = object


class WrappedFileSystem(_Methods):
    """Passes every call on; subclasses override :meth:`around`.

    Knows the path of each descriptor that was opened through it, so that calls on
    descriptors can be told apart. Safe in several threads as far as the wrapped
    one is and the subclass does not care.
    """

    def __init__(self, inner: FileSystem | None = None) -> None:
        self._inner: FileSystem = inner if inner is not None else LocalFileSystem()
        self._paths: dict[int, str] = {}

    def around(self, call: Call) -> Any:
        """Makes one call and returns its result. Called for every call."""
        return call.proceed()

    def _forward(self, method: str, *arguments: Any, **options: Any) -> Any:
        call = Call(
            method,
            _kind_of(method, arguments),
            arguments,
            options,
            partial(getattr(self._inner, method), *arguments, **options),
            self._paths_of,
        )
        result = self.around(call)
        if method == "open":
            self._paths[result] = call.path
        elif method == "close":
            self._paths.pop(arguments[0], None)
        return result

    def _paths_of(
        self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[str, ...]:
        if method == "make_symlink":
            return (self._located(arguments[1], options.get("dir_fd")),)
        if "source_dir_fd" in options or method in {"rename", "link"}:
            return (
                self._located(arguments[0], options.get("source_dir_fd")),
                self._located(arguments[1], options.get("target_dir_fd")),
            )
        return (self._located(arguments[0], options.get("dir_fd")),)

    def _located(self, name: str | bytes | int, dir_fd: int | None) -> str:
        if isinstance(name, int):
            return self._paths.get(name, "")
        directory = self._paths.get(dir_fd, "") if dir_fd is not None else ""
        return os.path.join(directory, os.fsdecode(name))


def _kind_of(method: str, arguments: tuple[Any, ...]) -> Kind:
    makes = method == "open" and arguments[1] & os.O_CREAT
    return Kind.NAME if makes else KINDS[method]


def _method(name: str) -> Callable[..., Any]:
    def forward(self: WrappedFileSystem, *arguments: Any, **options: Any) -> Any:
        return self._forward(name, *arguments, **options)

    forward.__name__ = name
    forward.__doc__ = getattr(FileSystem, name).__doc__
    return cast("Callable[..., Any]", forward)


for _name in KINDS:
    setattr(WrappedFileSystem, _name, _method(_name))
