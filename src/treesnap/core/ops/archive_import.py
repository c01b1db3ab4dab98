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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache

from treesnap.core.codec import tar
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import is_there, opened_file
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model.entries import Entry, FileContent, Skipped, Totals
from treesnap.core.model.errors import (
    Busy,
    ErrorCode,
    InvalidArgument,
    NotFound,
    Refused,
    StorageFull,
    quoted,
)
from treesnap.core.model.events import Phase
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.requests import CaptureRequest
from treesnap.core.model.reserved_tags import IMPORTED
from treesnap.core.model.results import CreateResult, CreateStats
from treesnap.core.model.snapshots import SnapshotRecord
from treesnap.core.model.type_names import IO, Any, Protocol, cast
from treesnap.core.ops.access import locked_root, opened
from treesnap.core.ops.capture import scan_settings
from treesnap.core.ops.context import Context, Session, check_root, refuse_dangerous_source
from treesnap.core.ops.create import check_name, check_words, metadata_of
from treesnap.core.ops.history.archive_tree import archive_tree
from treesnap.core.ops.maintenance.space import maintain, with_room, with_settings
from treesnap.core.ops.trust import real_target
from treesnap.core.store.writer import Added, EpochChanged, Writer, retry_overtaken
from treesnap.core.worktree.scan.scanner import Scanner

_WHAT = "the import"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip"}
"""How archives of other formats begin, and what reads them."""


class Readable(Protocol):
    """A file that is open for reading bytes, such as standard input."""

    def read(self, size: int, /) -> bytes:
        """Returns at most that many bytes, none at the end."""


class _Imported(NamedTuple):
    """A tree in the store, and what the result says of it."""

    root: Entry
    links: FileContent | None
    totals: Totals
    files_read: int
    read_bytes: int
    skipped: tuple[Skipped, ...] = ()
    more: Mapping[str, Any] = {}
    """Other fields of the snapshot's record."""


def import_from(context: Context, source: str | Readable, request: CaptureRequest) -> CreateResult:
    """Publishes a snapshot of what a source holds; see :meth:`treesnap.Handle.import_from`."""
    source_name = os.path.basename(source.rstrip("/")) if isinstance(source, str) else "a stream"
    if request.label is None:
        request = request._replace(label=f"Imported from {_as_utf8(source_name)}")
    check_words(request)
    request = request._replace(tags={**request.tags, IMPORTED: _as_utf8(source_name)})
    check_root(context, force=True)  # which is not captured
    if not isinstance(source, str):
        return _import(context, request, lambda: nullcontext(source), once=True)
    with translating_os_errors("import"):
        is_absent = not is_there(context.fs, source)
    if is_absent:
        raise NotFound(
            f"There is no file or directory {quoted(source)}",
            code=ErrorCode.PATH_NOT_FOUND,
            path=source,
        )
    if os.path.isdir(source):
        directory = real_target(source, "source")
        _refuse_directory(context, directory, force=request.force)
        return _import(context, request, directory)
    return _import(context, request, lambda: _opened_file(context.fs, source))


_Opened = Callable[[], Any]


def _import(
    context: Context, request: CaptureRequest, source: str | _Opened, *, once: bool = False
) -> CreateResult:
    """Imports; repeats that after a collection, or after room was made, if the source can be read
    twice.
    """

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
                problem = "The import was interrupted by garbage collection too often"
                raise Busy(problem) from None

    result = attempt() if once else with_room(context, attempt)
    maintain(context, result.snapshot.sequence)
    return result


def _attempt(
    session: Session,
    request: CaptureRequest,
    source: str | _Opened,
    earlier: Mapping[bytes, Added],
) -> CreateResult:
    settings = with_settings(session)
    limit = settings.max_size_bytes
    with (
        translating_os_errors("import"),
        Writer(session.store, size_bytes_max=limit, earlier=earlier) as writer,
    ):
        try:
            session.monitor.begin(Phase.SCAN, None, None)
            if isinstance(source, str):
                gathered = _captured(session, writer, source, settings)
            else:
                with source() as file:
                    gathered = _unpacked(session, writer, file)
            return _publish(session, writer, request, gathered)
        except StorageFull as error:
            error.needed_bytes = writer.needed_bytes
            raise


def _publish(
    session: Session, writer: Writer, request: CaptureRequest, gathered: _Imported
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
            root=gathered.root,
            links=gathered.links,
            root_path=os.fsencode(session.context.root),
            created_at_ns=session.context.clock_ns(),
            totals=gathered.totals,
            parent=newest.id if newest is not None else None,
            host=os.uname().nodename,
            **{**fields, **gathered.more},
        )
        _, name = writer.publish(record, root.id, listing.next_sequence)
        snapshot = store.snapshots.load(root.id, name)
    totals = gathered.totals
    stats = CreateStats(
        files=totals.files,
        directories=totals.directories,
        others=totals.others,
        size_bytes=totals.size_bytes,
        files_read=gathered.files_read,
        read_bytes=gathered.read_bytes,
        objects_added=writer.objects_added,
        added_bytes=writer.added_bytes,
    )
    return CreateResult(snapshot, unchanged=False, skipped=gathered.skipped, absent=(), stats=stats)


def _refuse_directory(context: Context, directory: str, *, force: bool) -> None:
    if directory == context.root:
        raise InvalidArgument(
            f"{quoted(directory)} is the root itself, which 'create' captures", path=directory
        )
    store = os.path.realpath(context.store_path)
    if os.path.commonpath([store, directory]) == store:
        raise Refused(f"The directory {quoted(directory)} is in the store", path=directory)
    if not force:
        refuse_dangerous_source(directory, context.store_path)


def _captured(
    session: Session, writer: Writer, directory: str, request: CaptureRequest
) -> _Imported:
    """Captures another directory, as a root is captured."""
    scan = scan_settings(session.context, request, root=directory)
    result = Scanner(session.fs, scan, writer, session.monitor, None).scan()
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
    reader = tar.TarReader(_decompressed(file), lru_cache(1024)(_number_of))
    with archive_tree(session, writer) as tree:
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


def _number_of(kind: bytes, name: bytes) -> int | None:
    """Returns the id of a user or group on this machine by its name, as tar does."""
    import grp
    import pwd

    text = os.fsdecode(name)
    try:
        return pwd.getpwnam(text).pw_uid if kind == b"user" else grp.getgrnam(text).gr_gid
    except KeyError:
        return None


def _decompressed(file: Readable) -> tar.Read:
    """Returns a reader of an archive; its first bytes say how it is compressed."""
    buffered = io.BufferedReader(cast(Any, _Raw(file)), tar.PIECE_SIZE)
    start = buffered.peek(8)[:8]
    for magic, program in _OTHERS.items():
        if start.startswith(magic):
            raise InvalidArgument(
                f"The archive is packed by {program}; unpack that first, into a pipe",
                code=ErrorCode.INVALID_ARCHIVE,
            )
    if start.startswith(_ZSTD):
        from treesnap.core.codec.compress import stream_reader

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
        """Returns at most that many bytes, none at the end."""
        return self._fs.read(self._fd, size)


@contextmanager
def _opened_file(fs: FileSystem, path: str) -> Iterator[_File]:
    """Yields an archive; errors about it name it."""
    with opened_file(fs, os.path.realpath(path), os.O_RDONLY) as fd:
        try:
            yield _File(fs, fd)
        except InvalidArgument as error:
            if error.code != ErrorCode.INVALID_ARCHIVE:
                raise
            raise InvalidArgument(
                f"Could not import {quoted(path)}: {error.message}",
                code=error.code,
                path=path if error.path is None else error.path,
            ) from error


def _as_utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
