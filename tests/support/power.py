"""Power cuts: every state of the disk that one may leave, by what was synced.

A :class:`PoweredFileSystem` works on the real disk and writes down what every call
changes and what every sync makes durable; ``cuts`` makes the disks of it that a
power cut may leave. The rules are those of :mod:`treesnap.core.fs.base`, and no kinder:

- Bytes and size of a file are durable after ``sync`` or ``sync_data`` of it, its
  metadata only after ``sync``. A new file without its bytes is empty.
- A name is durable after a sync of its directory. A file may be durable and have no name.
- A rename is one effect, durable with its target's directory; an exchange with both.
- ``sync_file_system`` makes everything before it durable that lies on the same file
  system. Directories can be named that count as file systems of their own.

A time that changes with something else changes and is kept together with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, NamedTuple

from disk import (
    TOP,
    Disk,
    DiskPlace,
    Effect,
    Facts,
    Link,
    Naming,
    Node,
    Stating,
    Writing,
    facts_at,
    load,
)
from treesnap.core.fs.base import FileSystem, Name
from treesnap.testing.doubles import Call, UnsyncedFileSystem, WrappedFileSystem

_PROC = b"/proc/self/fd/"


class PowerPart(Enum):
    """What of a node a sync makes durable."""

    DATA = auto()
    """Bytes and size of a file, names of a directory."""
    FACTS = auto()
    """Everything else about it."""


class Awaited(NamedTuple):
    """What has to be synced for an effect to be durable."""

    node: int
    part: PowerPart
    file_system: bytes
    """The directory that is a file system of its own, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerStep:
    """One effect, and all that has to be synced for it to be durable."""

    effect: Effect
    awaits: frozenset[Awaited]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """One sync, of a node or of its whole file system."""

    method: str
    path: str
    node: int
    file_system: bytes

    def covers(self, awaited: Awaited) -> bool:
        """Returns whether this sync is one that an effect waits for."""
        if self.method == "sync_file_system":
            return self.file_system == awaited.file_system
        is_enough = awaited.part == PowerPart.DATA or self.method == "sync"
        return self.node == awaited.node and is_enough


@dataclass(frozen=True, slots=True)
class Returned:
    """The operation said that it is done."""


Event = PowerStep | Sync | Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What an operation did to a disk, in order."""

    before: Disk
    events: tuple[Event, ...]

    @property
    def syncs(self) -> tuple[Sync, ...]:
        """All syncs, in order."""
        return tuple(event for event in self.events if isinstance(event, Sync))

    def without_sync(self, number: int) -> Recording:
        """Returns the same without its n-th sync, counted from 0."""
        positions = [
            position for position, event in enumerate(self.events) if isinstance(event, Sync)
        ]
        skipped = positions[number]
        return replace(self, events=self.events[:skipped] + self.events[skipped + 1 :])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A call that was made."""

    call: Call
    place: DiskPlace | None
    """Where the name is that it was given, or the first one."""
    target: DiskPlace | None
    """Where the second name is."""
    result: Any


class PoweredFileSystem(WrappedFileSystem):
    """Records what happens below a directory. For one thread.

    Reads the directory when it is made; whatever else changes it later is not seen.
    Syncs need not be real, and by default are not. ``apart`` names directories in it
    that count as file systems of their own.
    """

    def __init__(
        self, directory: str, inner: FileSystem | None = None, *, apart: Iterable[bytes] = ()
    ) -> None:
        super().__init__(inner or UnsyncedFileSystem())
        self._apart = frozenset(apart)
        self._directory = os.fsencode(directory)
        self.disk = load(directory)
        """What is on the disk now, durable or not."""
        self._before = self.disk.copy()
        self._events: list[Event] = []
        self._opened: dict[int, int] = {}
        self._links = 1 << 32

    def note_return(self) -> None:
        """Notes that from here on everything has to be durable."""
        self._events.append(Returned())

    def recording(self) -> Recording:
        """Returns what was recorded so far."""
        return Recording(before=self._before.copy(), events=tuple(self._events))

    def around(self, call: Call) -> Any:
        """Makes the call, then writes down what it changed."""
        record = getattr(self, f"_record_{call.method}", None)
        if record is None:
            return call.proceed()
        place, target = self._places_of(call)
        result = call.proceed()
        record(_Made(call=call, place=place, target=target, result=result))
        return result

    # ------------------------------------------------- finding what a call is about

    def _place(self, name: Name, dir_fd: int | None) -> DiskPlace | None:
        """Returns the place of a name, or None outside of the directory."""
        name, dir_fd = self._from_outside(name, dir_fd)
        path = os.fsencode(name)
        node: int | None = TOP
        if path.startswith(_PROC):
            number, _, path = path.removeprefix(_PROC).partition(b"/")
            node = self._opened.get(int(number))
        elif path.startswith(b"/"):
            if not path.startswith(self._directory + b"/"):
                return None
            path = path[len(self._directory) + 1 :]
        elif dir_fd is not None:
            node = self._opened.get(dir_fd)
        *parents, last = path.split(b"/")
        for parent in parents:
            link = self.disk.link(DiskPlace(node, parent)) if node is not None else None
            node = link.node if link is not None else None
        return DiskPlace(node, last) if node is not None else None

    def _from_outside(self, name: Name, dir_fd: int | None) -> tuple[Name, int | None]:
        """Returns a name as it is; one below a directory outside as an absolute path."""
        if dir_fd is None or dir_fd in self._opened:
            return name, dir_fd
        return self._located(name, dir_fd), None

    def _node(self, name: Name | int, dir_fd: int | None = None) -> int | None:
        """Returns the node of a descriptor or a name, or None outside of the directory."""
        if isinstance(name, int):
            return self._opened.get(name)
        name, dir_fd = self._from_outside(name, dir_fd)
        if os.fsencode(name) == self._directory:
            return TOP
        place = self._place(name, dir_fd)
        if place is None:
            return None
        if not place.name:
            return place.directory
        link = self.disk.link(place)
        return link.node if link is not None else None

    def _places_of(self, call: Call) -> tuple[DiskPlace | None, DiskPlace | None]:
        """Returns the places that a call names, as they are before it."""
        first, *rest = call.arguments
        if call.method == "make_symlink":
            return self._place(rest[0], call.options.get("dir_fd")), None
        if call.method in {"rename", "rename_to_absent", "exchange", "link"}:
            return (
                self._place(first, call.options.get("source_dir_fd")),
                self._place(rest[0], call.options.get("target_dir_fd")),
            )
        if isinstance(first, int):
            return None, None
        if isinstance(first, tuple):
            return self._place(first[1], first[0]), None
        return self._place(first, call.options.get("dir_fd")), None

    def _facts(self, node: int) -> Facts:
        """Returns what the kernel made of a node's metadata."""
        for path, number in self.disk.walk():
            if number == node:
                return facts_at(os.path.join(self._directory, path) if path else self._directory)
        return self.disk.nodes[node].facts

    def _changed(self, nodes: Iterable[int]) -> tuple[Stating, ...]:
        """Returns what is new in the metadata of some nodes."""
        changes = []
        for node in dict.fromkeys(nodes):
            old, new = self.disk.nodes[node].facts, self._facts(node)
            fresh = {
                field: getattr(new, field)
                for field in ("mode", "uid", "gid", "mtime_ns", "xattrs")
                if getattr(new, field) != getattr(old, field)
            }
            if fresh:
                changes.append(Stating(node=node, **fresh))
        return tuple(changes)

    # --------------------------------------------------------- writing it down

    def _named(self, call: Call, namings: Sequence[Naming], awaits: Iterable[int]) -> None:
        """Notes names that changed, with the times of their directories."""
        directories = [naming.place.directory for naming in namings]
        sources = [
            directory
            for directory, names in self.disk.names.items()
            for naming in namings
            if naming.link is not None and naming.link in names.values()
        ]
        effect = Effect(label=self._label(call), namings=tuple(namings))
        self.disk.apply(effect)
        timed = replace(effect, statings=self._changed([*sources, *directories]))
        self._note(timed, ((node, PowerPart.DATA) for node in awaits))

    def _note(self, effect: Effect, awaits: Iterable[tuple[int, PowerPart]]) -> None:
        self.disk.apply(effect)
        awaited = (Awaited(node, part, self._file_system(node)) for node, part in awaits)
        self._events.append(PowerStep(effect=effect, awaits=frozenset(awaited)))

    def _file_system(self, node: int) -> bytes:
        """Returns the top directory that a node lies below if that is a file system, or nothing."""
        top = next((path.partition(b"/")[0] for path in self._path_of(node)), b"")
        return top if top in self._apart else b""

    def _born(self, made: _Made, content: bytes = b"") -> int | None:
        """Notes a new node and its name."""
        place = made.place
        if place is None:
            return None
        path = os.path.join(self._directory, *self._path_of(place.directory), place.name)
        new = Node(facts=facts_at(path), content=content)
        self._before.add(new)  # so that it is there, without a name, whatever is lost
        node = self.disk.add(new)
        self._links += 1
        naming = Naming(place=place, link=Link(self._links, node))
        self._named(made.call, [naming], [place.directory])
        return node

    def _label(self, call: Call) -> str:
        top = os.fsdecode(self._directory) + "/"
        return " ".join([call.method, *(repr(path.removeprefix(top)) for path in call.paths)])

    def _path_of(self, node: int) -> list[bytes]:
        return [path for path, number in self.disk.walk() if number == node and path][:1]

    def _record_open(self, made: _Made) -> None:
        name, flags = made.call.arguments[:2]
        node = self._node(name, made.call.options.get("dir_fd"))
        if node is None and flags & os.O_CREAT:
            node = self._born(made)
        elif node is not None and flags & os.O_TRUNC:
            self._write(made.call, node, Writing(node=node, offset=0, data=None))
        if node is not None:
            self._opened[made.result] = node

    def _record_open_any(self, made: _Made) -> None:
        node = self._node(made.call.arguments[0], made.call.options.get("dir_fd"))
        if node is not None:
            self._opened[made.result] = node

    def _record_close(self, made: _Made) -> None:
        self._opened.pop(made.call.arguments[0], None)

    def _record_make_directory(self, made: _Made) -> None:
        self._born(made)

    _record_make_node = _record_make_directory

    def _record_make_symlink(self, made: _Made) -> None:
        self._born(made, made.call.arguments[0])

    def _record_unlink(self, made: _Made) -> None:
        place = made.place
        if place is not None:
            self._named(made.call, [Naming(place=place, link=None)], [place.directory])

    _record_remove_directory = _record_unlink

    def _record_link(self, made: _Made) -> None:
        source, target = made.place, made.target
        if source is None or target is None:
            return
        known = self.disk.link(source)
        assert known is not None
        self._links += 1
        naming = Naming(place=target, link=Link(self._links, known.node))
        self._named(made.call, [naming], [target.directory])

    def _record_rename(self, made: _Made) -> None:
        source, target = made.place, made.target
        if source is None or target is None:
            assert source is target, "A rename across the border of what is recorded"
            return
        moved, replaced = self.disk.link(source), self.disk.link(target)
        if moved is None or (replaced is not None and replaced.node == moved.node):
            return  # two names of one file: the kernel does nothing
        self._named(made.call, [Naming(place=target, link=moved)], [target.directory])

    _record_rename_to_absent = _record_rename

    def _record_exchange(self, made: _Made) -> None:
        source, target = made.place, made.target
        if source is None or target is None:
            assert source is target, "An exchange across the border of what is recorded"
            return
        namings = [
            Naming(place=source, link=self.disk.link(target)),
            Naming(place=target, link=self.disk.link(source)),
        ]
        self._named(made.call, namings, [source.directory, target.directory])

    def _write(self, call: Call, node: int, writing: Writing) -> None:
        effect = Effect(label=self._label(call), writing=writing, statings=self._changed([node]))
        self._note(effect, [(node, PowerPart.DATA)])

    def _record_write(self, made: _Made) -> None:
        end = os.lseek(made.call.arguments[0], 0, os.SEEK_CUR)
        self._write_bytes(made, end - made.result)

    def _record_write_at(self, made: _Made) -> None:
        self._write_bytes(made, made.call.arguments[2])

    def _write_bytes(self, made: _Made, offset: int) -> None:
        node = self._opened.get(made.call.arguments[0])
        if node is not None:
            data = made.call.data[: made.result]
            self._write(made.call, node, Writing(node=node, offset=offset, data=data))

    def _record_punch_hole(self, made: _Made) -> None:
        fd, offset, size = made.call.arguments
        node = self._opened.get(fd)
        if node is not None:
            self._write(made.call, node, Writing(node=node, offset=offset, data=bytes(size)))

    def _record_share_content(self, made: _Made) -> None:
        fd, source_fd, _ = made.call.arguments
        node = self._opened.get(fd)
        if node is not None:
            data = os.pread(source_fd, os.fstat(source_fd).st_size, 0)
            self._write(made.call, node, Writing(node=node, offset=0, data=data))

    def _record_truncate(self, made: _Made) -> None:
        node = self._opened.get(made.call.arguments[0])
        if node is not None:
            size = made.call.arguments[1]
            self._write(made.call, node, Writing(node=node, offset=size, data=None))

    _record_allocate = _record_truncate  # of a file that is shorter; that is how it is used

    def _record_change_mode(self, made: _Made) -> None:
        name, dir_fd = made.call.arguments[0], made.call.options.get("dir_fd")
        node = self._node(name[1], name[0]) if isinstance(name, tuple) else self._node(name, dir_fd)
        if node is not None:
            effect = Effect(label=self._label(made.call), statings=self._changed([node]))
            self._note(effect, [(node, PowerPart.FACTS)])

    _record_change_owner = _record_change_mode
    _record_change_times = _record_change_mode
    _record_set_xattr = _record_change_mode
    _record_remove_xattr = _record_change_mode

    def _record_sync(self, made: _Made) -> None:
        """Notes what is durable now: what was asked for, or on a Mac what the drive was told."""
        flushed = getattr(self._inner, "flushed", None)
        asked = [(made.call.method, made.call.arguments[0])]
        for method, fd in asked if flushed is None else flushed():
            node = self._opened.get(fd)
            if node is not None:
                sync = Sync(
                    method=method,
                    path=made.call.path.removeprefix(os.fsdecode(self._directory) + "/"),
                    node=node,
                    file_system=self._file_system(node),
                )
                self._events.append(sync)

    _record_sync_data = _record_sync
    _record_sync_file_system = _record_sync
