"""Staging: building files and whole directories aside, complete and verified.

What is staged has its final content and metadata, except that directories keep
write permission for their owner until they are in place, because a directory
without it cannot be moved. Nothing in the tree itself is touched.

Objects are read through a function that verifies them, so no byte gets here unchecked.

A *staging directory* lies in the root, because only there it is certainly on the root's file
system. Captures never include it, and it exists only during a restore. What a restore removes
or replaces is kept in it until the end. Nothing can be renamed from one btrfs subvolume to
another, so each subvolume in which a path changes has a staging directory of the same name at
its top.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.codec.reader import Get, TreeReader, read_segments
from treesnap.core.fs.base import FileSystem, Place, Unsupported
from treesnap.core.fs.durable import opened_file, sync_directory, write_all_at
from treesnap.core.fs.forked import Work, helper_count, share_out
from treesnap.core.fs.real_path import OPEN_DIRECTORY
from treesnap.core.model import treepath
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, ObjectKind, Totals
from treesnap.core.model.errors import (
    Conflict,
    Corrupt,
    ErrorCode,
    NewerVersion,
    OperationFailed,
    quoted,
)
from treesnap.core.model.events import ADVANCE_SIZE, LargeFileProgress, Monitor, NullMonitor
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import Any, Protocol
from treesnap.core.worktree.apply.preconditions import conflict
from treesnap.core.worktree.apply.removal import remove_below
from treesnap.core.worktree.attributes import (
    INHERITED,
    apply_by_name,
    apply_owner,
    apply_xattrs,
    read_xattrs,
    unlent_mode,
)
from treesnap.core.worktree.directory import DirectoryChain, is_left_by_others
from treesnap.core.worktree.scan.hard_links import Groups
from treesnap.core.worktree.spellings import collision, spelled

HELPED_FILES_MIN = 4096
"""A directory of fewer files is built by one process: starting another takes milliseconds."""
HELPED_PUTS_MIN = 256
"""Fewer files that are built one by one are built by one process.

Where they lie scattered over a tree, reading each costs 0.3 ms, because its block holds others.
"""
_PARTS_EACH = 8
_RUN_COUNT = 64
"""How many files that are built one by one make one part of the work."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_SET_IDS = stat_module.S_ISUID | stat_module.S_ISGID
"""Opens a FIFO or a device without an effect on it."""
_NODES = {
    EntryKind.FIFO: stat_module.S_IFIFO,
    EntryKind.CHARACTER_DEVICE: stat_module.S_IFCHR,
    EntryKind.BLOCK_DEVICE: stat_module.S_IFBLK,
}
_PLAIN = frozenset({EntryKind.SYMLINK, EntryKind.FIFO})
_PRIVILEGED_MAX = 10_000
"""How many are remembered, by each process: bounds the memory for a hostile tree."""
_PAGE_SIZE = 4096
_ZERO_PAGE = bytes(_PAGE_SIZE)


class Item(NamedTuple):
    """Something to build: a file, or a directory with all that is below it."""

    entry: Entry
    path: bytes
    """Where it will be in the tree."""
    names: tuple[bytes, ...]
    """The way to it from the staging directory."""


_Learned = tuple[list[bytes], list[tuple[bytes, tuple[Any, ...]]], Any]
_Part = Sequence[Item]
"""What a helper builds whole, or not: some files, or one directory that was made and is empty."""


class Participant(Protocol):
    """Takes part in building a whole tree, in each of the processes that build it."""

    def fill(self, fd: int, place: Place, entry: Entry, path: bytes) -> bool:
        """Gives a new empty file its content; False leaves it empty, to be built from objects."""

    def finished(self, fd: int, directory: Entry, path: bytes) -> None:
        """Learns that a directory has all its entries, and these their metadata."""

    def degraded(self, path: bytes) -> None:
        """Learns that a path lacks metadata, before its directory is finished."""

    def restart(self) -> None:
        """Forgets everything, because a helper begins another part."""

    def report(self) -> Any:
        """Returns what was learned since, for :meth:`take` in the parent of the helper."""

    def take(self, report: Any) -> None:
        """Takes what a helper learned."""


class TreeSource(NamedTuple):
    """What entries are built from."""

    get: Get
    """Reads objects, and verifies them."""
    trees: TreeReader
    groups: Groups
    whole_id: ObjectId | None = None
    """The directory of which all is built, unless a plan that came to all its paths was made."""


class Stager:
    """Builds entries below one staging directory.

    ``root_fd`` is the staging directory; it belongs to the caller. ``degraded`` lists the paths
    that lack metadata for want of privileges.
    """

    def __init__(
        self,
        fs: FileSystem,
        root_fd: int,
        source: TreeSource,
        monitor: Monitor,
        *,
        touch: bool,
        participant: Participant | None = None,
    ) -> None:
        self._fs = fs
        self._root_fd = root_fd
        self._participant = participant
        self._source = source
        self._get, self._trees, self._groups, self._whole_id = source
        self._progress = LargeFileProgress(monitor)
        self._touch = touch
        self._chain = DirectoryChain(fs, root_fd)
        self._links: dict[bytes, bytes] = {}
        """For each hard-link group of which a file was built, a name in the staging directory."""
        self.degraded: list[bytes] = []
        self.privileged: list[tuple[bytes, Entry]] = []
        """Some of what was built with set-user-ID bits, attributes, or as a device."""

    def close(self) -> None:
        """Removes the names that only served to make hard links."""
        self._chain.forget()
        for name in self._links.values():
            self._fs.unlink(name, dir_fd=self._root_fd)
        self._links = {}

    def put_all(self, items: Sequence[Item]) -> None:
        """Builds items under names of their own in the staging directory, each whole."""
        if self._whole_id is not None:
            directories = [item for item in items if item.entry.is_directory]
            self._refuse_more(self._whole_id, sum(self._weight([item]) for item in directories))
        files: list[Item] = []
        for item in items:
            if item.entry.is_directory:
                self._put_directory(item)
            elif item.path in self._groups:
                self._build([item])
            else:
                files.append(item)
        runs = [files[start : start + _RUN_COUNT] for start in range(0, len(files), _RUN_COUNT)]
        helpers = helper_count() if len(files) >= HELPED_PUTS_MIN else 0
        self._share_out(runs, helpers)

    def _put_directory(self, item: Item) -> None:
        """Builds a directory; several processes build a large one, each some parts of it."""
        self._fs.make_directory(item.names[0], 0o700, dir_fd=self._root_fd)
        files = 0 if self._groups else self._trees.totals(item.entry.tree_id).files
        helpers = helper_count() if files >= HELPED_FILES_MIN else 0
        if not helpers:
            self._put_below(item)
            return
        opened, parts = self._open_up(item, files // (_PARTS_EACH * (helpers + 1)))
        self._refuse_more(item.entry.tree_id, sum(map(self._weight, parts)))
        self._share_out(parts, helpers)
        for directory in reversed(opened):
            self._finish(directory)

    def _put_below(self, item: Item) -> None:
        """Builds what is below a directory that was made, then gives it its metadata."""
        walk = self._trees.walk(self._whole_id)
        stack = [(item.entry, walk.entries(item.entry.tree_id))]
        descent = treepath.Descent(item.path)
        names = list(item.names)
        while stack:
            directory, entries = stack[-1]
            here = Item(directory, descent.path, tuple(names))
            below = self._put_children(here, entries)
            if below is None:
                stack.pop()
                self._finish(here)
                descent.leave()
                names.pop()
            else:
                stack.append((below, walk.entries(below.tree_id)))
                descent.enter(treepath.join(descent.path, below.name))
                names.append(below.name)

    def _refuse_more(self, top_id: ObjectId, count: int) -> None:
        """Raises OperationFailed if a directory has more paths than it may have.

        As far as the sums below it, ``count``, show that: each process walks parts of it alone.
        """
        walk = self._trees.walk(self._whole_id)
        walk.begin(top_id)
        walk.expect(count)

    def _open_up(self, top: Item, files_max: int) -> tuple[list[Item], list[_Part]]:
        """Builds the files of a directory and makes its subdirectories.

        Continues with large subdirectories, unless most of their files are their own. Returns
        the directories that this was done with, and those that are still empty.
        """
        opened: list[Item] = []
        parts: list[_Part] = []
        pending = [top]
        while pending:
            item = pending.pop()
            opened.append(item)
            entries = self._trees.entries(item.entry.tree_id)
            while (made := self._put_children(item, entries)) is not None:
                path = treepath.join(item.path, made.name)
                below = Item(made, path, (*item.names, made.name))
                if self._weight([below]) > files_max >= self._own_count(below):
                    pending.append(below)
                else:
                    parts.append([below])
        return opened, parts

    def _weight(self, part: _Part) -> int:
        totals = self._totals(part)
        return totals.files + totals.directories + totals.others

    def _totals(self, part: _Part) -> Totals:
        if part[0].entry.is_directory:
            return self._trees.totals(part[0].entry.tree_id)
        return Totals(files=len(part), size_bytes=sum(item.entry.size for item in part))

    def _own_count(self, directory: Item) -> int:
        tree = self._trees.tree(directory.entry.tree_id)
        return len(tree.entries) + sum(page.entry_count for page in tree.pages)

    def _share_out(self, parts: Sequence[_Part], helpers: int) -> None:
        """Builds some parts in this process and in helpers."""
        apart = Stager(
            self._fs,
            self._root_fd,
            self._source,
            NullMonitor(),
            touch=self._touch,
            participant=self._participant,
        )
        share_out(
            parts,
            self._weight,
            helpers,
            Work(
                here=self._build,
                there=apart._build_as_helper,
                take=self._take,
                again=self._build_again,
            ),
        )

    def _build(self, part: _Part) -> None:
        if part[0].entry.is_directory:
            self._put_below(part[0])
            return
        # The last first: their block is then decompressed once, up to the last that is asked for.
        for entry, path, names in reversed(part):
            try:
                self._put_leaf(self._root_fd, entry._replace(name=names[0]), path)
            except OSError as error:
                _name(error, path)
                raise
        self._progress.advance(len(part), sum(item.entry.size for item in part))

    def _build_as_helper(self, part: _Part) -> _Learned:
        """Builds a part; returns its degraded paths, and what a participant learned."""
        self.degraded, self.privileged = [], []
        if self._participant is not None:
            self._participant.restart()
        self._build(part)
        report = self._participant.report() if self._participant is not None else None
        return self.degraded, [(path, tuple(entry)) for path, entry in self.privileged], report

    def _take(self, part: _Part, learned: _Learned) -> None:
        """Counts a part that a helper built."""
        degraded, privileged, report = learned
        self.degraded += degraded
        self.privileged += [(path, Entry(*fields)) for path, fields in privileged]
        if self._participant is not None:
            self._participant.take(report)
        totals = self._totals(part)
        self._progress.advance(totals.files + totals.others, totals.size_bytes)

    def _build_again(self, part: _Part) -> None:
        """Builds a part that a helper may have left unfinished."""
        if part[0].entry.is_directory:
            remove_below(self._fs, self._chain.open_names(part[0].names))
        else:
            for item in part:
                with suppress(FileNotFoundError):
                    self._fs.unlink(item.names[0], dir_fd=self._root_fd)
        self._build(part)

    def _put_children(self, parent: Item, entries: Iterator[Entry]) -> Entry | None:
        """Builds entries up to and including the first directory, which is empty; returns that."""
        files = size_bytes = 0
        fd = self._chain.open_names(parent.names)
        try:
            for entry in entries:
                name = entry.name
                path = treepath.join(parent.path, name)
                if entry.is_directory:
                    self._fs.make_directory(name, 0o700, dir_fd=fd)
                    return entry
                if not entry.is_skipped:
                    self._put_leaf(fd, entry, path)
                    files += 1
                    size_bytes += entry.size
            return None
        except FileExistsError:
            other = spelled(self._fs, fd, name)
            if other is None:
                raise
            raise collision(treepath.join(parent.path, other), path) from None
        except OSError as error:
            _name(error, path)
            raise
        finally:
            self._progress.advance(files, size_bytes)

    def _put_leaf(self, dir_fd: int, entry: Entry, path: bytes) -> None:
        group = self._groups.get(path)
        if group is None:
            self._make_leaf(dir_fd, entry, path)
            return
        first_name = self._links.get(group[0])
        if first_name is None:
            first_name = b"l%d" % len(self._links)
            self._make_leaf(self._root_fd, entry._replace(name=first_name), path)
            self._links[group[0]] = first_name
        self._fs.link(first_name, entry.name, source_dir_fd=self._root_fd, target_dir_fd=dir_fd)

    def _make_leaf(self, dir_fd: int, entry: Entry, path: bytes) -> None:
        if entry.kind == EntryKind.FILE:
            self._make_file(dir_fd, entry, path)
            return
        if entry.kind not in _PLAIN or entry.mode & _SET_IDS or entry.xattrs is not None:
            self._note_privileged(path, entry)
        if entry.kind == EntryKind.SYMLINK:
            permitted = self._make_symlink(dir_fd, entry)
        else:
            permitted = self._make_node(dir_fd, entry, path)
        if not permitted:
            self._note_degraded(path)

    def _make_symlink(self, dir_fd: int, entry: Entry) -> bool:
        """Makes a symbolic link; returns whether all its metadata was permitted.

        Its name is enough to set them: none of these calls follows it.
        """
        fs, name = self._fs, entry.name
        fs.make_symlink(entry.target, name, dir_fd=dir_fd)
        xattrs = self._trees.xattrs(entry) if entry.xattrs is not None else None
        return apply_by_name(fs, (dir_fd, name), entry, xattrs, touch=self._touch)

    def _make_node(self, dir_fd: int, entry: Entry, path: bytes) -> bool:
        """Makes a FIFO or a device; returns whether all its metadata was permitted."""
        fs, kind = self._fs, _NODES[EntryKind(entry.kind)]
        device = 0 if entry.kind == EntryKind.FIFO else os.makedev(*entry.device)
        try:
            fs.make_node(entry.name, kind | 0o600, device, dir_fd=dir_fd)
        except PermissionError as error:
            if entry.kind == EntryKind.FIFO:
                raise
            raise OperationFailed(
                f"{quoted(path)} is a device, which only the superuser may make: {error.strerror}",
                code=ErrorCode.NOT_PERMITTED,
                path=path,
                errno=error.errno,
            ) from error
        xattrs = self._trees.xattrs(entry) if entry.xattrs is not None else None
        try:
            fd = fs.open_any(entry.name, dir_fd=dir_fd)
        except Unsupported:  # a device, to which only its name leads
            return apply_by_name(fs, (dir_fd, entry.name), entry, xattrs, touch=self._touch)
        try:
            made = fs.fstat(fd)
            if (stat_module.S_IFMT(made.st_mode), made.st_rdev) != (kind, device):
                raise conflict(path)
            permitted = apply_owner(fs, fd, entry.uid, entry.gid)
            fs.change_mode(fd, entry.mode)
            if xattrs is not None:
                permitted &= apply_xattrs(fs, fd, xattrs)
            if not self._touch:
                fs.change_times(fd, entry.mtime_ns)
        finally:
            fs.close(fd)
        return permitted

    def _note_degraded(self, path: bytes) -> None:
        self.degraded.append(path)
        if self._participant is not None:
            self._participant.degraded(path)

    def _note_privileged(self, path: bytes, entry: Entry) -> None:
        if len(self.privileged) < _PRIVILEGED_MAX:
            self.privileged.append((path, entry))

    def _make_file(self, dir_fd: int, entry: Entry, path: bytes) -> None:
        fd = self._fs.open(entry.name, _CREATE, entry.mode & 0o777, dir_fd=dir_fd)
        try:
            place = dir_fd, entry.name
            if self._participant is None or not self._participant.fill(fd, place, entry, path):
                self._write_content(fd, entry)
            self._give_metadata(fd, entry, path)
        except NewerVersion:
            raise
        except Corrupt as error:
            message = f"{quoted(path)} cannot be restored: {error.message}"
            raise Corrupt(message, code=error.code, path=path) from error
        finally:
            self._fs.close(fd)

    def _give_metadata(self, fd: int, entry: Entry, path: bytes) -> None:
        """Sets what a new file or directory does not have already.

        A change of the owner clears permission bits, so they are set again.
        """
        if entry.mode & _SET_IDS or entry.xattrs is not None:
            self._note_privileged(path, entry)
        born = self._fs.fstat(fd)
        is_own = (born.st_uid, born.st_gid) == (entry.uid, entry.gid)
        permitted = is_own or apply_owner(self._fs, fd, entry.uid, entry.gid)
        mode = entry.mode if permitted else unlent_mode(entry, self._fs.fstat(fd))
        if not is_own or stat_module.S_IMODE(born.st_mode) != mode:
            self._fs.change_mode(fd, mode)
        if entry.xattrs is not None:
            permitted &= apply_xattrs(self._fs, fd, self._trees.xattrs(entry))
        if not self._touch:
            self._fs.change_times(fd, entry.mtime_ns)
        if not permitted:
            self._note_degraded(path)

    def _write_content(self, fd: int, entry: Entry) -> None:
        content = entry.file_content
        end = self._write_data(fd, content.data, 0) if content.data is not None else 0
        position = 0
        for segment in read_segments(content, self._get):
            if segment.id is not None:
                data = self._get(ObjectKind.CHUNK, segment.id)
                if len(data) != segment.size:
                    raise Corrupt(f"Object {segment.id.hex()} does not have the size stated")
                end = self._write_data(fd, data, position) or end
            position += segment.size
            if entry.size >= ADVANCE_SIZE:
                self._progress.count(segment.size)
        if end < entry.size:
            self._fs.truncate(fd, entry.size)

    def _write_data(self, fd: int, data: bytes, position: int) -> int:
        """Writes data of a file; returns where the last data ends, or 0 if all is a hole."""
        end = 0
        for start, part in _without_zero_pages(data, position):
            write_all_at(self._fs, fd, part, start)
            end = start + len(part)
        return end

    def _finish(self, directory: Item) -> None:
        """Gives a directory its metadata, but keeps one writable that has still to be moved."""
        entry, path, names = directory
        if len(names) == 1:
            entry = entry._replace(mode=entry.mode | 0o700)
        fd = self._chain.open_names(names)
        self._give_metadata(fd, entry, path)
        if self._participant is not None:
            self._participant.finished(fd, entry, path)


def _name(error: OSError, path: bytes) -> None:
    """Makes an error about a file that is built name the path that it is built for."""
    if error.filename is not None:  # a name in its directory, or the target of a link
        error.filename, error.filename2 = path, None


def _without_zero_pages(data: bytes, position: int) -> Iterator[tuple[int, bytes | memoryview]]:
    """Yields the parts of a chunk to write, with their positions: pages of zeros become holes.

    So a file that had holes smaller than a block takes no more space than before. The chunk may
    hold only the beginning or the end of a page: zeros there are left out too, and the page
    becomes a hole unless the next chunk or the one before writes to it. Usually costs one look
    at the first bytes of all pages together: one by one they took 60 us for each MiB.
    """
    if 0 not in data[:1] + data[-position % _PAGE_SIZE :: _PAGE_SIZE]:
        yield position, data
        return
    size = len(data)
    start = page = 0
    next_page = min(size, _PAGE_SIZE - position % _PAGE_SIZE)
    while page < size:
        if data[page] == 0 and data.startswith(_ZERO_PAGE[: next_page - page], page):
            if page > start:
                yield position + start, memoryview(data)[start:page]
            start = next_page
        page, next_page = next_page, min(size, next_page + _PAGE_SIZE)
    if start < size:
        yield position + start, memoryview(data)[start:] if start else data


BUILDING = b"building"
"""A file that exists while new files are built, as long as no old one is kept aside."""
RESERVE = b"reserve"
"""A file that reserves space until the commit point."""


def new_stage_name(prefix: bytes = STAGE_PREFIX) -> bytes:
    """Returns a new random name for a staging directory."""
    return prefix + os.urandom(8).hex().encode()


class StagePlaces:
    """Which directory holds the staging directory for each path of a restore.

    ``tops`` maps directories to the topmost directory of their subvolume; directories that are
    not in it belong to the root.
    """

    def __init__(self, tops: Mapping[bytes, bytes]) -> None:
        self._tops = tops
        self.subvolumes: tuple[bytes, ...] = tuple(sorted(set(tops.values())))
        """Directories other than the root that hold a staging directory, in order."""

    def of(self, path: bytes) -> bytes:
        """Returns the directory that holds the staging directory for a path."""
        return self._tops.get(treepath.split(path)[0], treepath.ROOT)


def stage_places(fs: FileSystem, root_fd: int, paths: Iterable[bytes]) -> StagePlaces:
    """Returns where to stage the new content of some paths. Costs a look at each parent directory.

    A directory that is gone counts as the root's; applying the restore finds out.
    """
    root_device = fs.fstat(root_fd).st_dev
    tops: dict[bytes, bytes] = {}
    with DirectoryChain(fs, root_fd) as chain:

        def device(directory: bytes) -> int:
            fd = chain.find(directory)
            return fs.fstat(fd).st_dev if fd is not None else root_device

        for directory in sorted({treepath.split(path)[0] for path in paths}):
            own = device(directory)
            if own == root_device:
                continue
            top = directory
            while (above := treepath.split(top)[0]) and device(above) == own:
                top = above
            tops[directory] = top
    return StagePlaces(tops)


@contextmanager
def open_stages(
    fs: FileSystem, root_fd: int, name: bytes, places: StagePlaces
) -> Iterator[dict[bytes, int]]:
    """Makes all staging directories; yields a descriptor of each by the directory that holds it."""
    stages: dict[bytes, int] = {}
    try:
        stages[treepath.ROOT] = make_stage(fs, root_fd, name)
        with DirectoryChain(fs, root_fd) as chain:
            for top in places.subvolumes:
                stages[top] = make_stage(fs, chain.open(top), name)
        yield stages
    finally:
        for fd in stages.values():
            fs.close(fd)


def remove_stages(fs: FileSystem, root_fd: int, name: bytes, subvolumes: Iterable[bytes]) -> None:
    """Removes the staging directories of subvolumes, then the root's own.

    The root's goes last, because it shows that this is the tree of the journal.
    """
    remove_subvolume_stages(fs, root_fd, name, subvolumes)
    remove_stage(fs, root_fd, name)


def remove_subvolume_stages(
    fs: FileSystem, root_fd: int, name: bytes, subvolumes: Iterable[bytes]
) -> None:
    """Removes the staging directories of subvolumes that are still there."""
    with DirectoryChain(fs, root_fd) as chain:
        for top in subvolumes:
            fd = chain.find(top)
            if fd is not None:
                remove_stage(fs, fd, name)


def make_stage(fs: FileSystem, root_fd: int, name: bytes) -> int:
    """Makes the staging directory, unless recovery left an empty one; returns a descriptor.

    A root without write permission gets it for its owner; the journal holds the root's own
    metadata, which is restored at the end. Inherited ACLs are removed, so that staged files do
    not inherit them.
    """
    try:
        with suppress(FileExistsError):
            fs.make_directory(name, 0o700, dir_fd=root_fd)
    except PermissionError as refused:
        own = fs.fstat(root_fd)
        try:
            fs.change_mode(root_fd, stat_module.S_IMODE(own.st_mode) | 0o700)
        except PermissionError:
            raise _foreign(fs, root_fd, refused) from None
        fs.make_directory(name, 0o700, dir_fd=root_fd)
    return _opened_private(fs, root_fd, name)


def make_private_directory(fs: FileSystem, parent_fd: int, name: bytes) -> int:
    """Makes a staging directory in a directory whose permissions must not be changed."""
    try:
        fs.make_directory(name, 0o700, dir_fd=parent_fd)
    except PermissionError as refused:
        raise _foreign(fs, parent_fd, refused) from None
    return _opened_private(fs, parent_fd, name)


def _foreign(fs: FileSystem, fd: int, refused: PermissionError) -> PermissionError:
    """Returns an error that names the directory that cannot be written to, not the new name.

    It reports the first error, because the attempt to get around it may fail for another reason.
    """
    reason = "the directory belongs to another user, and cannot be written to"
    if fs.fstat(fd).st_uid == os.geteuid():
        reason = os.strerror(refused.errno or 0)
    return PermissionError(refused.errno, reason, fs.current_path(fd))


def _opened_private(fs: FileSystem, parent_fd: int, name: bytes) -> int:
    """Returns a descriptor of a new directory, which no other user can enter from then on.

    Users who may rename things in its parent could have put another directory in its place since it
    was made. Raises Conflict for one of another user, and for one that is not empty once no other
    user can make names in it.
    """
    fd = fs.open(name, OPEN_DIRECTORY, dir_fd=parent_fd)
    try:
        if not _is_made_by_us(fs, fd):
            raise _replaced(fs, parent_fd, name)
        for attribute, _ in read_xattrs(fs, fd) or ():
            if attribute.startswith(INHERITED):
                fs.remove_xattr(fd, os.fsdecode(attribute))
        fs.change_mode(fd, 0o700)
        if fs.list_names(fd):
            raise _replaced(fs, parent_fd, name)
    except BaseException:
        fs.close(fd)
        raise
    return fd


def _is_made_by_us(fs: FileSystem, fd: int) -> bool:
    """Returns whether an open directory can have been made by this process.

    On some file systems (FAT, a share, one exported without root) all that a process makes belongs
    to another user: then this shows by a file that is made for that.
    """
    owner_id = fs.fstat(fd).st_uid
    if owner_id == os.geteuid():
        return True
    name = new_stage_name()
    with opened_file(fs, name, _CREATE, fd) as probe_fd:
        made = fs.fstat(probe_fd)
    fs.unlink(name, dir_fd=fd)
    return made.st_uid == owner_id


def _replaced(fs: FileSystem, parent_fd: int, name: bytes) -> Conflict:
    path = os.path.join(fs.current_path(parent_fd) or "", os.fsdecode(name))
    return Conflict(f"Another process replaced {quoted(path)}, which was just made", path=path)


def begin_building(fs: FileSystem, stage_fd: int) -> None:
    """Marks the directory: new files are being built, and no old one is kept aside."""
    fs.close(fs.open(BUILDING, _CREATE, dir_fd=stage_fd))


def end_building(fs: FileSystem, stage_fd: int) -> None:
    """Removes the mark: all new files are complete, and old files may be kept aside."""
    fs.unlink(BUILDING, dir_fd=stage_fd)


def is_building(fs: FileSystem, stage_fd: int) -> bool:
    """Returns whether no old file was kept aside yet."""
    try:
        fs.lstat(BUILDING, dir_fd=stage_fd)
    except FileNotFoundError:
        return False
    return True


def reserve(fs: FileSystem, stage_fd: int, size_bytes: int) -> None:
    """Reserves space until :func:`release`; raises OSError when there is not enough."""
    with opened_file(fs, RESERVE, _CREATE, stage_fd) as fd:
        try:
            fs.allocate(fd, size_bytes)
        except OSError as error:
            if error.errno != errno.EFBIG:  # a limit of the process, not of the disk
                raise


def release(fs: FileSystem, stage_fd: int) -> None:
    """Frees the reserved space; if that fails, it is freed with the directory."""
    with suppress(OSError):
        fs.unlink(RESERVE, dir_fd=stage_fd)


def open_stage(fs: FileSystem, root_fd: int, name: bytes) -> int | None:
    """Returns a descriptor of the staging directory, or None when there is none.

    One that another user made under the same name in a directory like ``/tmp`` is none.
    """
    try:
        fd = fs.open(name, OPEN_DIRECTORY, dir_fd=root_fd)
    except FileNotFoundError:
        return None
    if is_left_by_others(fs, root_fd, fs.fstat(fd)):
        fs.close(fd)
        return None
    return fd


def remove_stage(fs: FileSystem, root_fd: int, name: bytes) -> None:
    """Removes the staging directory and everything in it; does nothing when it is gone."""
    fd = open_stage(fs, root_fd, name)
    if fd is None:
        return
    try:
        remove_below(fs, fd)
    finally:
        fs.close(fd)
    fs.remove_directory(name, dir_fd=root_fd)


def move_stage(fs: FileSystem, root_fd: int, name: bytes, target: str) -> bool:
    """Moves the staging directory, with everything in it, elsewhere; returns whether it did.

    Nothing has changed where it cannot: to another file system, or where there is no room for
    a name. Durable after return, except for the root's time. Costs one sync.
    """
    try:
        fs.rename(name, os.fsencode(target), source_dir_fd=root_fd)
    except OSError:
        return False
    sync_directory(fs, os.path.dirname(target))
    return True


def clear_stage(fs: FileSystem, root_fd: int, name: bytes) -> None:
    """Empties the staging directory; it stays, to show that this is the tree of the journal."""
    fd = open_stage(fs, root_fd, name)
    if fd is None:
        fd = make_stage(fs, root_fd, name)
    try:
        remove_below(fs, fd)
    finally:
        fs.close(fd)
