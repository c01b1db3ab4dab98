"""``import``: a snapshot of the root from a tar archive, or from another directory.

The live tree is not touched. An archive is read once, from its beginning to its end; its content
goes into the store as it comes, and its directories as they are left. A path in it is only a name
in the snapshot: nothing is created under it. Nothing is published before the end of the archive
was read and found whole, so an archive that is refused leaves nothing but garbage for the
next collection.

A directory is captured as a root is. Either way the root is locked only to publish.
"""

from __future__ import annotations

import io
import os
import stat as stat_module
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from treesnap import treepath
from treesnap.codec import tar
from treesnap.codec.journal import STAGE_PREFIX
from treesnap.codec.reader import TreeReader
from treesnap.codec.tree import is_storable, put_tree
from treesnap.errors import (
    Busy,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    StorageFull,
    quoted,
)
from treesnap.events import Phase
from treesnap.facts import IMPORTED
from treesnap.fs.base import FileSystem
from treesnap.fs.durable import opened_file
from treesnap.fs.os_errors import is_full, reported
from treesnap.model import (
    Entry,
    EntryKind,
    FileContent,
    ObjectId,
    Skipped,
    SnapshotRecord,
    Totals,
)
from treesnap.named_tuple import NamedTuple
from treesnap.ops.access import locked_root, opened
from treesnap.ops.capture import scan_settings
from treesnap.ops.context import Context, Session, check_root
from treesnap.ops.create import CreateRequest, check_name, check_words, metadata_of
from treesnap.ops.maintenance import maintain, settings_or_defaults, with_room
from treesnap.ops.state import totals_of_entry
from treesnap.results import CreateResult, CreateStats
from treesnap.store.writer import Added, EpochChanged, Writer, retry_overtaken
from treesnap.worktree.scan.file_reader import store_stream, store_xattrs
from treesnap.worktree.scan.hard_links import store_groups
from treesnap.worktree.scan.ignore import given
from treesnap.worktree.scan.scanner import DEPTH_MAX, Scanner

if TYPE_CHECKING:
    from treesnap.ops.config import Settings

_WHAT = "the import"
_IMPLIED_MODE = 0o755
"""Of a directory that an archive names only on the way to a path."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
"""How files begin that are no archives of ours, and what reads them."""


class Readable(Protocol):
    """A file that is open for reading bytes, such as standard input."""

    def read(self, size: int, /) -> bytes:
        """Returns so many bytes at most, none at the end."""


class _Imported(NamedTuple):
    """A tree in the store, and what is to be said of it."""

    root: Entry
    links: FileContent | None
    totals: Totals
    files_read: int
    read_bytes: int
    skipped: tuple[Skipped, ...] = ()
    more: Mapping[str, Any] = {}
    """Other fields of the snapshot's record."""


def import_from(context: Context, source: str | Readable, request: CreateRequest) -> CreateResult:
    """Publishes a snapshot of what a source holds; see :meth:`treesnap.Handle.import_from`."""
    source_name = os.path.basename(source.rstrip("/")) if isinstance(source, str) else "a stream"
    if request.label is None:
        request = request._replace(label=f"Imported from {_as_utf8(source_name)}")
    check_words(request)
    request = request._replace(tags={**request.tags, IMPORTED: _as_utf8(source_name)})
    check_root(context, force=True)  # which is not captured
    if not isinstance(source, str):
        return _import(context, request, lambda: nullcontext(source), once=True)
    if not os.path.lexists(source):
        raise NotFound(
            f"There is no file or directory {quoted(source)}",
            code=ErrorCode.PATH_NOT_FOUND,
            path=source,
        )
    if os.path.isdir(source):
        directory = os.path.realpath(source)
        _refuse_directory(context, directory)
        return _import(context, request, directory)
    return _import(context, request, lambda: _opened_file(context.fs, source))


_Opened = Callable[[], Any]


def _import(
    context: Context, request: CreateRequest, source: str | _Opened, *, once: bool = False
) -> CreateResult:
    """Imports, again if collections overtook it or room was made, unless it can be read once."""

    def attempt() -> CreateResult:
        with opened(context, "import", create=True, recover=False) as session:
            session.root.register()
            if request.name is not None:
                check_name(session, request.name)

            def publish(earlier: Mapping[bytes, Added]) -> CreateResult:
                return _attempt(session, request, source, earlier)

            if not once:
                return retry_overtaken(_WHAT, publish)
            try:
                return publish({})
            except EpochChanged:
                raise Busy(f"Garbage collections overtook {_WHAT}") from None

    result = attempt() if once else with_room(context, attempt)
    maintain(context, result.snapshot.sequence)
    return result


def _attempt(
    session: Session,
    request: CreateRequest,
    source: str | _Opened,
    earlier: Mapping[bytes, Added],
) -> CreateResult:
    settings = settings_or_defaults(session)
    limit = settings.store_size_bytes_max if settings is not None else None
    with reported("import"), Writer(session.store, size_bytes_max=limit, earlier=earlier) as writer:
        try:
            session.monitor.begin(Phase.SCAN, None, None)
            if isinstance(source, str):
                found = _captured(session, writer, source, settings)
            else:
                with source() as file:
                    found = _unpacked(session, writer, file)
            return _publish(session, writer, request, found)
        except StorageFull as error:
            error.needed_bytes = writer.needed_bytes
            raise


def _publish(
    session: Session, writer: Writer, request: CreateRequest, found: _Imported
) -> CreateResult:
    store, root = session.store, session.root
    writer.flush()  # before the lock: that may take long
    with locked_root(session, "import"):
        root.note_identity()
        if request.name is not None:
            check_name(session, request.name)
        listing = store.snapshots.listing(root.id)
        newest = listing.newest
        fields = metadata_of(request)
        record = SnapshotRecord(
            root=found.root,
            links=found.links,
            root_path=os.fsencode(session.context.root),
            created_at_ns=session.context.clock_ns(),
            totals=found.totals,
            parent=newest.id if newest is not None else None,
            host=os.uname().nodename,
            **{**fields, **found.more},
        )
        _, name = writer.publish(record, root.id, listing.next_sequence)
        snapshot = store.snapshots.load(root.id, name)
    totals = found.totals
    stats = CreateStats(
        files=totals.files,
        directories=totals.directories,
        others=totals.others,
        size_bytes=totals.size_bytes,
        files_read=found.files_read,
        read_bytes=found.read_bytes,
        objects_added=writer.objects_added,
        added_bytes=writer.added_bytes,
    )
    return CreateResult(snapshot, unchanged=False, skipped=found.skipped, absent=(), stats=stats)


def _refuse_directory(context: Context, directory: str) -> None:
    if directory == context.root:
        raise InvalidArgument(
            f"{quoted(directory)} is the root itself, which 'create' captures", path=directory
        )
    store = os.path.realpath(context.store_path)
    if os.path.commonpath([store, directory]) == store:
        raise Refused(f"The directory {quoted(directory)} is in the store", path=directory)


def _captured(
    session: Session, writer: Writer, directory: str, settings: Settings | None
) -> _Imported:
    """Captures another directory, as a root is captured."""
    rules = given(settings.excluded) if settings is not None else ()
    wanted = scan_settings(session.context, rules=rules, root=directory)
    result = Scanner(session.fs, wanted, writer, session.monitor, None).scan()
    return _Imported(
        result.root,
        result.links,
        result.totals,
        result.files_read,
        result.read_bytes,
        result.skipped,
        {"rules": result.rules, "unstable": result.unstable},
    )


def _unpacked(session: Session, writer: Writer, file: Readable) -> _Imported:
    """Stores the tree that an archive holds; raises InvalidArgument for one that is not whole."""
    tree = _Tree(session, writer)
    reader = tar.TarReader(_decompressed(file))
    try:
        for member in reader:
            tree.add(member, reader)
            session.monitor.advance(1, member.size)
    except (EOFError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"The archive cannot be read: {error}", code=ErrorCode.INVALID_ARCHIVE
        ) from error
    root, totals = tree.finish()
    return _Imported(root, tree.links(), totals, totals.files, totals.size_bytes)


def _decompressed(file: Readable) -> tar.Read:
    """Returns what reads the archive in a file, by how the file begins."""
    buffered = io.BufferedReader(cast(Any, _Raw(file)), tar.PIECE_SIZE)
    start = buffered.peek(8)[:8]
    for magic, program in _OTHERS.items():
        if start.startswith(magic):
            raise InvalidArgument(
                f"The archive is packed by {program}; unpack that first, into a pipe",
                code=ErrorCode.INVALID_ARCHIVE,
            )
    if start.startswith(_ZSTD):
        from treesnap.codec.compress import stream_reader

        return stream_reader(cast(IO[bytes], buffered))
    if start.startswith(_GZIP):
        return _gunzipped(buffered)
    return buffered.read


def _gunzipped(buffered: io.BufferedReader) -> tar.Read:
    import zlib
    from gzip import GzipFile

    unpacked = GzipFile(fileobj=buffered, mode="rb")

    def read(size: int) -> bytes:
        try:
            return unpacked.read(size)
        except (zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"it cannot be decompressed: {error}") from error

    return read


class _Raw(io.RawIOBase):
    """What :class:`io.BufferedReader` reads from."""

    def __init__(self, file: Readable) -> None:
        self._file = file

    def readable(self) -> bool:
        """Returns that it is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer as far as one read goes."""
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _File:
    """A file of this machine that is read through the seam."""

    def __init__(self, fs: FileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd

    def read(self, size: int, /) -> bytes:
        """Returns so many bytes at most, none at the end."""
        return self._fs.read(self._fd, size)


@contextmanager
def _opened_file(fs: FileSystem, path: str) -> Iterator[_File]:
    with opened_file(fs, os.path.realpath(path), os.O_RDONLY) as fd:
        yield _File(fs, fd)


class _Open:
    """A directory of the archive to which names are being added."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.children: dict[bytes, Entry] = {}
        self.totals: dict[bytes, Totals] = {}
        """Of directories below that were left: reading them again would cost more."""


class _Tree:
    """The tree that the members of an archive make, in any order.

    The directories on the way to the newest member are in memory. One that is left is stored; it
    is read again where a later member is in it.
    """

    def __init__(self, session: Session, writer: Writer) -> None:
        self._writer = writer
        self._trees = TreeReader(writer.get)
        self._now_ns = session.context.clock_ns()
        self._path: list[bytes] = []
        self._stack = [_Open(_root_entry(session))]
        self._group_of: dict[bytes, int] = {}
        self._groups: dict[int, set[bytes]] = {}

    def add(self, member: tar.Member, reader: tar.TarReader) -> None:
        """Adds one member; raises InvalidArgument for one that no tree can hold."""
        names = _names(member.path)
        path = b"/".join(names)
        if member.kind is EntryKind.DIRECTORY:
            self._go_to(names, path)
            top = self._stack[-1]
            top.entry = _described(top.entry, member, self._stored_xattrs(member, path))
            self._require_storable(top.entry, path)
            return
        if not names:
            tar.refuse("The archive has the root as something other than a directory", b"")
        self._go_to(names[:-1], path)
        children, name = self._stack[-1].children, names[-1]
        known = children.get(name)
        if known is not None and known.is_directory:
            tar.refuse(
                f"{quoted(path)} is in the archive as a directory and as something else", path
            )
        if member.is_hard_link:
            entry = self._linked(member, path)._replace(name=name)
        else:
            self._leave_group(path)
            entry = self._entry(name, path, member, reader)
        children[name] = entry

    def _entry(self, name: bytes, path: bytes, member: tar.Member, reader: tar.TarReader) -> Entry:
        content: object = None
        size = 0
        if member.kind is EntryKind.FILE:
            content, size = store_stream(reader.content(), self._writer.put)
        elif member.kind is EntryKind.SYMLINK:
            content = member.target
        elif member.kind is not EntryKind.FIFO:
            content = tuple(member.device)
        blank = Entry(name, member.kind, 0, 0, 0, 0, size, content, None)
        entry = _described(blank, member, self._stored_xattrs(member, path))
        self._require_storable(entry, path)
        return entry

    def _stored_xattrs(self, member: tar.Member, path: bytes) -> object:
        try:
            return store_xattrs(member.xattrs, self._writer.put)
        except OSError as error:
            if is_full(error):
                raise
            tar.refuse(f"{quoted(path)} has extended attributes that are too large to store", path)

    def _require_storable(self, entry: Entry, path: bytes) -> None:
        if not is_storable(entry if entry.name else entry._replace(name=b".top")):
            tar.refuse(f"{quoted(path)} has a property that no snapshot can hold", path)

    def _linked(self, member: tar.Member, path: bytes) -> Entry:
        """Returns the entry that a hard link names again, and notes both as one file."""
        target = b"/".join(_names(member.target))
        found = self._find(target)
        if found is None or found.is_directory:
            tar.refuse(
                f"{quoted(path)} is a hard link to {quoted(target)}, which is no file before it "
                "in the archive",
                path,
            )
        if target == path:
            return found
        self._leave_group(path)
        number = self._group_of.setdefault(target, len(self._groups))
        self._groups.setdefault(number, {target}).add(path)
        self._group_of[path] = number
        return found

    def _leave_group(self, path: bytes) -> None:
        number = self._group_of.pop(path, None)
        if number is not None:
            self._groups[number].discard(path)

    def _find(self, path: bytes) -> Entry | None:
        """Returns what was added at a path."""
        names = treepath.components(path)
        depth = 0
        while depth < min(len(names) - 1, len(self._path)) and names[depth] == self._path[depth]:
            depth += 1
        entry: Entry | None = None
        if names:
            entry = self._stack[depth].children.get(names[depth])
        for name in names[depth + 1 :]:
            if entry is None or not entry.is_directory:
                return None
            entry = self._trees.lookup(entry.tree_id, name)
        return entry

    def _go_to(self, names: list[bytes], path: bytes) -> None:
        """Leaves and enters directories until the one of these names is at hand."""
        common = 0
        while common < min(len(names), len(self._path)) and names[common] == self._path[common]:
            common += 1
        while len(self._path) > common:
            self._leave()
        for name in names[common:]:
            top = self._stack[-1]
            known = top.children.get(name)
            if known is None:
                opened_now = _Open(_implied(name, self._now_ns))
            elif known.is_directory:
                opened_now = _Open(known)
                opened_now.children = {
                    entry.name: entry for entry in self._trees.entries(known.tree_id)
                }
            else:
                tar.refuse(f"{quoted(path)} leads through something that is not a directory", path)
            top.children[name] = opened_now.entry
            self._stack.append(opened_now)
            self._path.append(name)

    def _leave(self) -> None:
        """Stores the directory at hand."""
        name = self._path.pop()
        entry, totals = self._stored(self._stack.pop())
        above = self._stack[-1]
        above.children[name] = entry
        above.totals[name] = totals

    def _stored(self, directory: _Open) -> tuple[Entry, Totals]:
        totals = Totals()
        for name, child in directory.children.items():
            known = directory.totals.get(name)
            totals = totals.plus(
                known.plus(Totals(directories=1))
                if known is not None
                else totals_of_entry(child, self._trees)
            )
        entries = [directory.children[name] for name in sorted(directory.children)]
        tree_id: ObjectId = put_tree(entries, totals, self._writer.put, self._trees.keep)
        return directory.entry._replace(content=tree_id), totals

    def finish(self) -> tuple[Entry, Totals]:
        """Stores what is open; returns the root and its sums."""
        while self._path:
            self._leave()
        return self._stored(self._stack[0])

    def links(self) -> FileContent | None:
        """Stores the table of hard links."""
        groups = [group for group in self._groups.values() if len(group) > 1]
        return store_groups(groups, self._writer.put)


def _names(path: bytes) -> list[bytes]:
    """Returns the names of a path in an archive; raises InvalidArgument for one that leads out."""
    if path.startswith(b"/"):
        tar.refuse(f"The archive has the absolute path {quoted(path)}", path)
    names = [name for name in path.split(b"/") if name not in {b"", b"."}]
    if not path or b".." in names or not treepath.are_valid_names(names):
        tar.refuse(f"The archive has the path {quoted(path)}, which no tree can hold", path)
    if any(name.startswith(STAGE_PREFIX) for name in names):
        tar.refuse(f"The archive has the path {quoted(path)}, which is reserved for restores", path)
    if len(names) > DEPTH_MAX:
        tar.refuse(f"The archive has a path of more than {DEPTH_MAX} directories", path)
    return names


def _described(entry: Entry, member: tar.Member, xattrs: object) -> Entry:
    return entry._replace(
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        mtime_ns=member.mtime_ns,
        xattrs=xattrs,
        content=bytes(32) if entry.is_directory else entry.content,
    )


def _implied(name: bytes, now_ns: int) -> Entry:
    kind = EntryKind.DIRECTORY
    uid, gid = os.geteuid(), os.getegid()
    return Entry(name, kind, _IMPLIED_MODE, uid, gid, now_ns, 0, bytes(32), None)


def _root_entry(session: Session) -> Entry:
    """Returns the root as it is now, for archives that do not say what it is."""
    stat = session.fs.lstat(session.context.root)
    mode, mtime_ns = stat_module.S_IMODE(stat.st_mode), stat.st_mtime_ns
    return Entry(
        b"", EntryKind.DIRECTORY, mode, stat.st_uid, stat.st_gid, mtime_ns, 0, bytes(32), None
    )


def _as_utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
