"""Staging: building files and whole directories aside, complete and verified.

What is staged has its final content and metadata, except that directories keep
write permission for their owner until they are in place, because a directory
without it cannot be moved. Nothing in the tree proper is touched.

The reading side is a function that returns verified objects, so that no byte
gets here unchecked.
"""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Iterator

from treesnap import treepath
from treesnap.codec.reader import Get, TreeReader, read_segments
from treesnap.errors import Corrupt
from treesnap.events import Monitor
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import write_all_at
from treesnap.model import Entry, EntryKind, ObjectKind
from treesnap.worktree.attributes import apply_owner, apply_xattrs, path_of
from treesnap.worktree.directory import DirectoryChain
from treesnap.worktree.links import Groups

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class Stager:
    """Builds entries below one staging directory.

    ``root_fd`` is the staging directory; it belongs to the caller. ``degraded``
    lists what could not be put back for want of privileges.
    """

    def __init__(
        self,
        fs: FileSystem,
        root_fd: int,
        get: Get,
        groups: Groups,
        monitor: Monitor,
        *,
        trees: TreeReader | None = None,
        touch: bool = False,
    ) -> None:
        self._fs = fs
        self._root_fd = root_fd
        self._get = get
        self._trees = trees or TreeReader(get)
        self._groups = groups
        self._monitor = monitor
        self._touch = touch
        self._chain = DirectoryChain(fs, root_fd)
        self._links: dict[bytes, bytes] = {}
        """For each hard-link group that was begun, a name in the staging directory."""
        self.degraded: list[bytes] = []

    def close(self) -> None:
        """Removes the names that only served to make hard links."""
        self._chain.forget()
        for name in self._links.values():
            self._fs.unlink(name, dir_fd=self._root_fd)
        self._links = {}

    def put(self, entry: Entry, path: bytes, staged: bytes) -> None:
        """Builds what the tree has at ``path`` under the name ``staged``, whole."""
        if not entry.is_directory:
            self._put_leaf(self._root_fd, entry._replace(name=staged), path)
            return
        self._make_directory(self._root_fd, staged)
        stack = [(entry, path, [staged], self._trees.entries(entry.tree_id))]
        while stack:
            directory, directory_path, names, entries = stack[-1]
            below = self._put_children(directory_path, names, entries)
            if below is not None:
                child_path = treepath.join(directory_path, below.name)
                child_names = [*names, below.name]
                stack.append((below, child_path, child_names, self._trees.entries(below.tree_id)))
                continue
            stack.pop()
            fd = self._chain.open_names(names)
            self._finish_directory(fd, directory, directory_path, is_top=len(names) == 1)

    def _put_children(
        self, path: bytes, names: list[bytes], entries: Iterator[Entry]
    ) -> Entry | None:
        """Builds entries up to the first directory, which is made and returned."""
        files = size_bytes = 0
        try:
            fd = self._chain.open_names(names)
            for entry in entries:
                if entry.is_directory:
                    self._make_directory(fd, entry.name)
                    return entry
                if not entry.is_skipped:
                    self._put_leaf(fd, entry, treepath.join(path, entry.name))
                    files += 1
                    size_bytes += entry.size
            return None
        finally:
            self._monitor.advance(files, size_bytes)

    def _make_directory(self, dir_fd: int, name: bytes) -> None:
        self._fs.make_directory(name, 0o700, dir_fd=dir_fd)

    def _put_leaf(self, dir_fd: int, entry: Entry, path: bytes) -> None:
        group = self._groups.get(path)
        if group is None:
            self._make_leaf(dir_fd, entry, path)
            return
        known = self._links.get(group[0])
        if known is None:
            known = b"l%d" % len(self._links)
            self._make_leaf(self._root_fd, entry._replace(name=known), path)
            self._links[group[0]] = known
        self._fs.link(known, entry.name, source_dir_fd=self._root_fd, target_dir_fd=dir_fd)

    def _make_leaf(self, dir_fd: int, entry: Entry, path: bytes) -> None:
        if entry.kind == EntryKind.FILE:
            self._make_file(dir_fd, entry, path)
            return
        if entry.kind == EntryKind.SYMLINK:
            self._fs.make_symlink(entry.content, entry.name, dir_fd=dir_fd)
        elif entry.kind == EntryKind.FIFO:
            self._fs.make_node(entry.name, stat_module.S_IFIFO | 0o600, dir_fd=dir_fd)
        else:
            is_character = entry.kind == EntryKind.CHARACTER_DEVICE
            kind = stat_module.S_IFCHR if is_character else stat_module.S_IFBLK
            device = os.makedev(*entry.content)
            self._fs.make_node(entry.name, kind | 0o600, device, dir_fd=dir_fd)
        permitted = apply_owner(self._fs, entry.name, entry.uid, entry.gid, dir_fd=dir_fd)
        if entry.kind != EntryKind.SYMLINK:
            self._fs.change_mode(entry.name, entry.mode, dir_fd=dir_fd)
        if entry.xattrs is not None:
            permitted &= apply_xattrs(
                self._fs, path_of(dir_fd, entry.name), self._trees.xattrs(entry)
            )
        if not self._touch:
            self._fs.change_times(entry.name, entry.mtime_ns, dir_fd=dir_fd)
        self._note(path, permitted=permitted)

    def _make_file(self, dir_fd: int, entry: Entry, path: bytes) -> None:
        fd = self._fs.open(entry.name, _CREATE, entry.mode & 0o777, dir_fd=dir_fd)
        try:
            self._write_content(fd, entry)
            permitted = self._give_owner_and_mode(fd, entry)
            if entry.xattrs is not None:
                permitted &= apply_xattrs(self._fs, fd, self._trees.xattrs(entry))
            if not self._touch:
                self._fs.change_times(fd, entry.mtime_ns)
        finally:
            self._fs.close(fd)
        self._note(path, permitted=permitted)

    def _give_owner_and_mode(self, fd: int, entry: Entry) -> bool:
        """Sets what a new file does not have by being made; returns whether that was permitted.

        A change of the owner takes permission bits away, so that they are set again.
        """
        born = self._fs.fstat(fd)
        if (born.st_uid, born.st_gid) == (entry.uid, entry.gid):
            permitted = True
            if stat_module.S_IMODE(born.st_mode) == entry.mode:
                return True
        else:
            permitted = apply_owner(self._fs, fd, entry.uid, entry.gid)
        self._fs.change_mode(fd, entry.mode)
        return permitted

    def _write_content(self, fd: int, entry: Entry) -> None:
        position = 0
        ends_in_hole = False
        for segment in read_segments(entry.content, self._get):
            ends_in_hole = segment.id is None
            if segment.id is not None:
                data = self._get(ObjectKind.CHUNK, segment.id)
                if len(data) != segment.size:
                    raise Corrupt(f"Object {segment.id.hex()} does not have the size stated")
                write_all_at(self._fs, fd, data, position)
            position += segment.size
        if ends_in_hole:
            self._fs.truncate(fd, position)

    def _finish_directory(self, fd: int, entry: Entry, path: bytes, *, is_top: bool) -> None:
        permitted = apply_owner(self._fs, fd, entry.uid, entry.gid)
        self._fs.change_mode(fd, entry.mode | (0o700 if is_top else 0))
        if entry.xattrs is not None:
            permitted &= apply_xattrs(self._fs, fd, self._trees.xattrs(entry))
        if not self._touch:
            self._fs.change_times(fd, entry.mtime_ns)
        self._note(path, permitted=permitted)

    def _note(self, path: bytes, *, permitted: bool) -> None:
        if not permitted:
            self.degraded.append(path)
