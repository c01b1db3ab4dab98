"""A disk in memory: what a directory holds, and what calls change about it.

A :class:`Disk` is read from a directory, changed by one :class:`Effect` after the
other, and written out to the same place again. Effects that are left out are as if
they had never been asked for; the others find what there is then.

Every name is a *link* with a number, which moves with a rename. So a rename whose
forerunner was left out takes its file from where it still is, and nothing is ever
in two places.

Not here: which effects a power cut may leave out (power).
"""

from __future__ import annotations

import os
import shutil
import stat as stat_module
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self

TOP = 0
"""The node of the directory that a disk was read from."""


class Link(NamedTuple):
    """One name of a node."""

    number: int
    """Tells names apart, also after they were renamed."""
    node: int


class DiskPlace(NamedTuple):
    """Where a name is, or is put."""

    directory: int
    """The directory's node."""
    name: bytes


class Facts(NamedTuple):
    """What ``lstat`` and the extended attributes say of a node."""

    mode: int
    """Type and permission bits."""
    uid: int
    gid: int
    mtime_ns: int
    device: int
    """The device that a node stands for; 0 for everything else."""
    xattrs: tuple[tuple[str, bytes], ...]


class Node(NamedTuple):
    """A file, a directory, or anything else that has names."""

    facts: Facts
    content: bytes = b""
    """A file's bytes, a symbolic link's target; empty for everything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """A name that is set, or removed."""

    place: DiskPlace
    link: Link | None
    """What has the name afterwards, wherever it was before; None removes the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Bytes that are written, or a size that is set."""

    node: int
    offset: int
    """Where the bytes go; the new size when there are none."""
    data: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stating:
    """Metadata that changes; None leaves a value as it is."""

    node: int
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    mtime_ns: int | None = None
    xattrs: tuple[tuple[str, bytes], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one call changes, as a unit."""

    label: str
    """The call in words."""
    namings: tuple[Naming, ...] = ()
    writing: Writing | None = None
    statings: tuple[Stating, ...] = ()


class Disk:
    """Nodes and their names. Reading one costs its size; an effect costs little."""

    def __init__(
        self,
        nodes: dict[int, Node] | None = None,
        names: dict[int, dict[bytes, Link]] | None = None,
        places: dict[int, DiskPlace] | None = None,
    ) -> None:
        self.nodes = nodes if nodes is not None else {}
        """Every node there ever was, with names or without."""
        self.names = names if names is not None else {}
        """The names in each directory."""
        self._places = places if places is not None else {}
        """Where each link is, by its number."""

    def copy(self) -> Self:
        """Returns a disk that changes on its own."""
        names = {node: dict(names) for node, names in self.names.items()}
        return type(self)(dict(self.nodes), names, dict(self._places))

    def add(self, node: Node) -> int:
        """Adds a node without a name and returns its number."""
        number = len(self.nodes)
        self.nodes[number] = node
        if stat_module.S_ISDIR(node.facts.mode):
            self.names[number] = {}
        return number

    def link(self, place: DiskPlace) -> Link | None:
        """Returns what has a name, or None."""
        return self.names.get(place.directory, {}).get(place.name)

    def apply(self, effect: Effect) -> None:
        """Changes what an effect changes."""
        for naming in effect.namings:
            self.name(naming.place, naming.link)
        if effect.writing is not None:
            self._write(effect.writing)
        for stating in effect.statings:
            self._state(stating)

    def name(self, place: DiskPlace, link: Link | None) -> None:
        """Sets or removes a name."""
        names = self.names[place.directory]
        replaced = names.pop(place.name, None)
        if replaced is not None:
            self._places.pop(replaced.number, None)
        if link is None:
            return
        before = self._places.get(link.number)
        if before is not None:
            del self.names[before.directory][before.name]
        names[place.name] = link
        self._places[link.number] = place

    def _write(self, writing: Writing) -> None:
        node = self.nodes[writing.node]
        offset, data = writing.offset, writing.data
        content = node.content[:offset].ljust(offset, b"\0")
        if data is not None:
            content += data + node.content[offset + len(data) :]
        self.nodes[writing.node] = Node(node.facts, content)

    def _state(self, stating: Stating) -> None:
        node = self.nodes[stating.node]
        facts = node.facts
        changed = Facts(
            mode=facts.mode if stating.mode is None else stating.mode,
            uid=facts.uid if stating.uid is None else stating.uid,
            gid=facts.gid if stating.gid is None else stating.gid,
            mtime_ns=facts.mtime_ns if stating.mtime_ns is None else stating.mtime_ns,
            device=facts.device,
            xattrs=facts.xattrs if stating.xattrs is None else stating.xattrs,
        )
        self.nodes[stating.node] = Node(changed, node.content)

    def walk(self) -> Iterator[tuple[bytes, int]]:
        """Yields path and node of everything that has a name, parents first, sorted.

        What lies in a directory that was moved into itself is lost.
        """
        pending = [(b"", TOP)]
        while pending:
            path, node = pending.pop()
            yield path, node
            names = self.names.get(node, {})
            prefix = path + b"/" if path else b""
            pending.extend(
                (prefix + name, names[name].node) for name in sorted(names, reverse=True)
            )

    def contents(self) -> dict[bytes, tuple[Node, bytes]]:
        """Returns every path with its node, and the first path of the same node."""
        first: dict[int, bytes] = {}
        return {
            path: (self.nodes[node], first.setdefault(node, path)) for path, node in self.walk()
        }

    def digest(self, untimed: bytes | None = None) -> int:
        """Returns a number that two disks share when they hold the same, in this process.

        ``untimed`` is a directory in which modification times do not count.
        """
        items = []
        for path, (node, first) in self.contents().items():
            facts = node.facts
            is_timed = untimed is None or not (path + b"/").startswith(untimed + b"/")
            mtime_ns = facts.mtime_ns if is_timed else 0
            owner = (facts.mode, facts.uid, facts.gid, facts.device, facts.xattrs)
            items.append((path, node.content, first, mtime_ns, owner))
        return hash(tuple(items))


def load(directory: str) -> Disk:
    """Returns what a directory holds; reads everything below it."""
    disk = Disk()
    top = os.fsencode(directory)
    disk.add(node_at(top))
    known: dict[tuple[int, int], int] = {}
    number = 0
    pending = [(top, TOP)]
    while pending:
        path, parent = pending.pop()
        for name in sorted(os.listdir(path)):
            below = os.path.join(path, name)
            stat = os.lstat(below)
            identity = (stat.st_dev, stat.st_ino)
            if identity not in known:
                known[identity] = disk.add(node_at(below))
            number += 1
            disk.name(DiskPlace(parent, name), Link(number, known[identity]))
            if stat_module.S_ISDIR(stat.st_mode):
                pending.append((below, known[identity]))
    return disk


def node_at(path: bytes) -> Node:
    """Returns what is at a path, without its names."""
    facts = facts_at(path)
    content = b""
    if stat_module.S_ISREG(facts.mode):
        with open(path, "rb") as file:
            content = file.read()
    elif stat_module.S_ISLNK(facts.mode):
        content = os.readlink(path)
    return Node(facts=facts, content=content)


def facts_at(path: bytes) -> Facts:
    """Returns the metadata of a path."""
    stat = os.lstat(path)
    names = sorted(os.listxattr(path, follow_symlinks=False))
    return Facts(
        mode=stat.st_mode,
        uid=stat.st_uid,
        gid=stat.st_gid,
        mtime_ns=stat.st_mtime_ns,
        device=stat.st_rdev,
        xattrs=tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names),
    )


def materialise(disk: Disk, directory: str) -> None:
    """Makes a directory hold what a disk holds, and nothing else.

    Everything gets a new inode. The directory itself stays.
    """
    top = os.fsencode(directory)
    _clear(top)
    made: dict[int, bytes] = {}
    for path, number in disk.walk():
        full = os.path.join(top, path) if path else top
        if number == TOP:
            made[number] = top
        elif number in made:
            os.link(made[number], full, follow_symlinks=False)
        else:
            made[number] = full
            _make(full, disk.nodes[number])
    for number in reversed(made):
        _give(made[number], disk.nodes[number].facts)


def _clear(directory: bytes) -> None:
    """Removes everything in a directory, read-only directories included."""
    for path, names, _ in os.walk(directory):
        for name in names:
            below = os.path.join(path, name)
            if not os.path.islink(below):
                os.chmod(below, 0o700)
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _make(path: bytes, node: Node) -> None:
    mode = node.facts.mode
    if stat_module.S_ISDIR(mode):
        os.mkdir(path, 0o700)
    elif stat_module.S_ISLNK(mode):
        os.symlink(node.content, path)
    elif stat_module.S_ISREG(mode):
        with open(path, "xb") as file:
            file.write(node.content)
    else:
        os.mknod(path, mode, node.facts.device)


def _give(path: bytes, facts: Facts) -> None:
    os.chown(path, facts.uid, facts.gid, follow_symlinks=False)
    for name in os.listxattr(path, follow_symlinks=False):
        if name not in dict(facts.xattrs):
            with suppress(OSError):  # what the system gives, it may insist on
                os.removexattr(path, name, follow_symlinks=False)
    for name, value in facts.xattrs:
        os.setxattr(path, name, value, follow_symlinks=False)
    if not stat_module.S_ISLNK(facts.mode):
        os.chmod(path, stat_module.S_IMODE(facts.mode))
    os.utime(path, ns=(facts.mtime_ns, facts.mtime_ns), follow_symlinks=False)
