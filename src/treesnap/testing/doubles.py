"""Doubles of the file system, which stack: a recording of a faulty one, or the other way round.

Every method of :class:`FileSystem` becomes a :class:`Call`, which a subclass of
:class:`WrappedFileSystem` sees in ``around`` and lets through, or not. A :class:`Fault` says which
call fails, how, and whether its effect happens all the same: an error may be reported for
something that was done, and a process may die before, after, and for a write also in the middle
of a call.

Not here: what a call means for durability (fs.base).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from mmap import mmap
from typing import TYPE_CHECKING, Any, cast

from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.local import LocalFileSystem


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
    Kind.LOOK: "open open_any next_data next_hole scan list_names lstat fstat free_bytes "
    "name_size_max file_system_id is_read_only is_protected mount_id birth_time_ns read_link "
    "current_path list_xattrs get_xattr",
    Kind.WRITE: "write write_at truncate allocate punch_hole share_content open_unnamed",
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
    _Methods = LocalFileSystem  # for type checkers: the methods exist, see below the class
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
        if method in {"open", "open_any", "open_unnamed"}:
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

    def _located(self, name: str | bytes | int | tuple[int, bytes], dir_fd: int | None) -> str:
        if isinstance(name, int):
            return self._paths.get(name, "")
        if isinstance(name, tuple):
            dir_fd, name = name
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One call that was made, and how it ended."""

    method: str
    kind: Kind
    paths: tuple[str, ...]
    size_bytes: int
    """Bytes of content read, mapped or written."""
    names: int
    """How many names a listing returned."""
    errno: int | None
    """The error number that it raised, or None."""

    @property
    def path(self) -> str:
        """The first path, or an empty one."""
        return self.paths[0] if self.paths else ""


class RecordingFileSystem(WrappedFileSystem):
    """Keeps every call in ``log``, in order; see :class:`Recorded`."""

    def __init__(self, inner: FileSystem | None = None) -> None:
        super().__init__(inner)
        self.log: list[Recorded] = []

    def around(self, call: Call) -> Any:
        """Makes the call and writes it down, however it ends."""
        result: Any = None
        number = None
        try:
            result = call.proceed()
        except OSError as error:
            number = error.errno
            raise
        finally:
            self.log.append(
                Recorded(
                    method=call.method,
                    kind=call.kind,
                    paths=call.paths,
                    size_bytes=_size_of(call, result),
                    names=len(result) if isinstance(result, list) else 0,
                    errno=number,
                )
            )
        return result

    def clear(self) -> None:
        """Forgets what was written down."""
        self.log.clear()

    def calls(
        self, *methods: str, kinds: Iterable[Kind] = (), below: str | None = None
    ) -> list[Recorded]:
        """Returns the calls of some methods or kinds, all when none is given.

        ``below`` keeps those that are about a path or what lies below it.
        """
        wanted = frozenset(kinds)
        return [
            item
            for item in self.log
            if (item.method in methods or item.kind in wanted or not (methods or wanted))
            and (below is None or any(_is_below(path, below) for path in item.paths))
        ]

    def count(self, *methods: str) -> Counter[str]:
        """Returns how often each method was called, or each of those given."""
        return Counter(item.method for item in self.calls(*methods))

    @property
    def syncs(self) -> list[Recorded]:
        """Calls that make something durable."""
        return self.calls(kinds=[Kind.SYNC])

    @property
    def mutations(self) -> list[Recorded]:
        """Calls that change the disk."""
        return self.calls(kinds=MUTATING)

    def read_bytes(self, below: str | None = None) -> int:
        """Returns how many bytes of content were read, or mapped."""
        return sum(item.size_bytes for item in self.calls(kinds=[Kind.READ], below=below))

    def written_bytes(self, below: str | None = None) -> int:
        """Returns how many bytes of content were written."""
        return sum(item.size_bytes for item in self.calls(kinds=[Kind.WRITE], below=below))


def _size_of(call: Call, result: Any) -> int:
    if isinstance(result, (bytes, mmap)) and call.kind == Kind.READ:
        return len(result)
    if call.kind == Kind.WRITE and isinstance(result, int):
        return result
    return 0


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


class Killed(BaseException):
    """The process was killed, as far as the code under test can tell.

    No ``except Exception`` catches it. Code that catches it all the same finds that every later
    call raises it again.
    """


class FaultMoment(StrEnum):
    """When a call fails, seen from its effect."""

    BEFORE = "before"
    HALFWAY = "halfway"
    """Half of what is written arrives; the same as BEFORE for all other calls."""
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which calls fail, and how."""

    number: int = 1
    """Which of the calls that match fails; 1 is the first."""
    errno: int | None = None
    """The error that is raised; None kills the process."""
    error: type[OSError] = OSError
    """Its class: Unsupported or NoAttribute, where the file system tells them apart."""
    methods: frozenset[str] = frozenset()
    """Methods that are counted; all when this and ``kinds`` are empty."""
    kinds: frozenset[Kind] = frozenset()
    """Kinds of calls that are counted, beside the methods."""
    where: Callable[[Call], bool] | None = None
    """Which of those calls are counted; None counts them all."""
    lasting: bool = False
    """Whether all later calls that match fail too."""
    moment: FaultMoment = FaultMoment.BEFORE

    def matches(self, call: Call) -> bool:
        """Returns whether a call is one of those that are counted."""
        wanted = not (self.methods or self.kinds)
        wanted = wanted or call.method in self.methods or call.kind in self.kinds
        return wanted and (self.where is None or self.where(call))


def kill_at(number: int) -> Fault:
    """Returns the fault that kills the process before its n-th call that changes the disk."""
    return Fault(number=number, kinds=MUTATING)


def kill_halfway(number: int) -> Fault:
    """Returns the fault that kills the process in the middle of its n-th write."""
    return Fault(number=number, kinds=frozenset({Kind.WRITE}), moment=FaultMoment.HALFWAY)


def error_at(number: int, errno: int, *, lasting: bool = False) -> Fault:
    """Returns the fault that makes the n-th call fail that changes or syncs the disk."""
    return Fault(number=number, errno=errno, kinds=MUTATING | {Kind.SYNC}, lasting=lasting)


class FaultyFileSystem(WrappedFileSystem):
    """Lets faults happen.

    ``on_kill`` runs at the moment of death; by default it raises :class:`Killed`.
    After that every call raises Killed again, but descriptors can still be closed
    and locks given back, as the kernel does for the dead. Pass a function that calls
    ``os._exit`` in a forked child to die indeed.
    """

    def __init__(
        self,
        *faults: Fault,
        inner: FileSystem | None = None,
        on_kill: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(inner)
        self._faults = faults
        self._on_kill = on_kill
        self._seen: Counter[int] = Counter()
        self._hits: Counter[int] = Counter()
        self.is_dead: bool = False

    def around(self, call: Call) -> Any:
        """Makes the call, unless it is its turn to fail."""
        if self.is_dead and call.kind != Kind.HANDLE:
            raise Killed
        for position, fault in enumerate(self._faults):
            if not fault.matches(call):
                continue
            self._seen[position] += 1
            seen = self._seen[position]
            if seen == fault.number or (fault.lasting and seen > fault.number):
                self._hits[position] += 1
                return self._fail(fault, call)
        return call.proceed()

    def hits_of(self, fault: Fault) -> int:
        """Returns how many calls a fault has made fail."""
        return self._hits[self._faults.index(fault)]

    def seen_of(self, fault: Fault) -> int:
        """Returns how many calls a fault has counted."""
        return self._seen[self._faults.index(fault)]

    def _fail(self, fault: Fault, call: Call) -> Any:
        if fault.moment == FaultMoment.AFTER:
            with suppress(OSError):  # a call that had no effect fails all the same
                result = call.proceed()
                if call.method in {"open", "open_any", "open_unnamed"}:
                    self._inner.close(result)
        elif fault.moment == FaultMoment.HALFWAY and call.data:
            self._write_half(call)
        if fault.errno is not None:
            raise fault.error(fault.errno, os.strerror(fault.errno), call.path or None)
        self.is_dead = True
        if self._on_kill is not None:
            self._on_kill()
        raise Killed

    def _write_half(self, call: Call) -> None:
        fd, data, *rest = call.arguments
        half = bytes(data)[: len(data) // 2]
        if call.method == "write":
            self._inner.write(fd, half)
        else:
            self._inner.write_at(fd, half, *rest)


class UnreachableFileSystem(WrappedFileSystem):
    """Calls about some paths, and about all below them, fail with an error.

    So it is where a server or a daemon is gone (ENOTCONN, ESTALE, EHOSTDOWN), or a part of a disk
    (EIO): the directory above still lists the name. ``methods`` are those that fail, all when none
    is given; ``look`` stands for the metadata that a listing offers of a name.
    """

    def __init__(
        self,
        errno: int,
        *paths: str | os.PathLike[str],
        methods: Iterable[str] = (),
        inner: FileSystem | None = None,
    ) -> None:
        super().__init__(inner)
        self._errno = errno
        self._unreachable = [os.fspath(path) for path in paths]
        self._methods = frozenset(methods)

    def around(self, call: Call) -> Any:
        """Makes the call, unless it is about what cannot be reached."""
        if call.kind != Kind.HANDLE:
            for path in call.paths:
                self.refuse(call.method, path)
        result = call.proceed()
        return _UnreachableNames(self, call.path, result) if call.method == "scan" else result

    def refuse(self, method: str, path: str) -> None:
        """Raises the error if a call is to fail that is about a path."""
        if (not self._methods or method in self._methods) and any(
            _is_below(path, top) for top in self._unreachable
        ):
            raise OSError(self._errno, os.strerror(self._errno), path)


class _UnreachableNames:
    """A listing of which some names cannot be looked at."""

    def __init__(self, fs: UnreachableFileSystem, directory: str, listing: Any) -> None:
        self._fs = fs
        self._directory = directory
        self._listing = listing

    def __enter__(self) -> Iterator[Any]:
        for entry in self._listing.__enter__():
            yield _UnreachableName(self._fs, self._directory, entry)

    def __exit__(self, *exception: object) -> None:
        self._listing.__exit__(*exception)


class _UnreachableName:
    """An entry of such a listing; its type is known without a look at it."""

    def __init__(self, fs: UnreachableFileSystem, directory: str, entry: os.DirEntry[str]) -> None:
        self._fs = fs
        self._directory = directory
        self._entry = entry
        self.name = entry.name

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._entry.is_dir(follow_symlinks=follow_symlinks)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        self._fs.refuse("look", os.path.join(self._directory, self.name))
        return self._entry.stat(follow_symlinks=follow_symlinks)


class UnsyncedFileSystem(LocalFileSystem):
    """The local file system, where syncs do nothing and succeed.

    Not wrapped, because most tests use it and calls are many.
    """

    def sync(self, fd: int, /) -> None:
        """Does nothing."""

    def sync_data(self, fd: int, /) -> None:
        """Does nothing."""

    def sync_file_system(self, fd: int) -> None:
        """Does nothing."""
