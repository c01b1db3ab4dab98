"""``archive``: a snapshot as a tar archive, in pieces or as a file.

The archive holds what the snapshot does: names of any bytes, times in nanoseconds, attributes,
hard links, and holes as sparse files. What the snapshot knows of and does not hold is not in it.
Equal snapshots give equal bytes. Content is verified while it is read; memory does not grow with
the tree, but for its hard links and the runs of one sparse file.

A file is written under another name beside its own, locked, and renamed once it is durable. What
a killed process left there, the next archive in that directory removes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from stat import S_ISDIR

from treesnap.core.codec import tar
from treesnap.core.codec.journal import is_reserved_path
from treesnap.core.codec.reader import Get, TreeReader, read_content, read_segments
from treesnap.core.fs.durable import Temporary, sweep_temporary, write_all
from treesnap.core.fs.os_errors import translating_os_errors
from treesnap.core.model import treepath
from treesnap.core.model.entries import Device, Entry, EntryKind, FileContent, ObjectKind
from treesnap.core.model.errors import ErrorCode, InvalidArgument, Refused, quoted
from treesnap.core.model.events import Phase
from treesnap.core.model.results import ArchiveResult
from treesnap.core.model.snapshots import Snapshot
from treesnap.core.model.type_names import TYPE_CHECKING
from treesnap.core.ops.access import opened
from treesnap.core.ops.context import Context, Session
from treesnap.core.ops.history.browse import walk
from treesnap.core.ops.output_file import OutputPlace, opened_place
from treesnap.core.ops.references import reading, resolve_in
from treesnap.core.ops.tree_state import entry_at, subset_groups
from treesnap.core.ops.trust import real_target
from treesnap.core.worktree.scan.hard_links import Groups, load_groups

if TYPE_CHECKING:
    from treesnap.core.codec.compress import StreamCompressor

_PREFIX = ".treesnap-archive-"
"""Begins the name of an archive that is being written."""
_GZIP_LEVEL = 6


class ArchiveCompression(StrEnum):
    """How an archive is compressed; the value is what the library is told."""

    NONE = "none"
    ZSTD = "zstd"
    GZIP = "gzip"


_SUFFIXES = {
    ".tar": ArchiveCompression.NONE,
    ".tar.zst": ArchiveCompression.ZSTD,
    ".tzst": ArchiveCompression.ZSTD,
    ".tar.gz": ArchiveCompression.GZIP,
    ".tgz": ArchiveCompression.GZIP,
}


def compression_of(name: str) -> ArchiveCompression:
    """Returns how a file of this name is compressed; raises InvalidArgument for other names."""
    for suffix, compression in _SUFFIXES.items():
        if name.endswith(suffix):
            return compression
    raise InvalidArgument(
        f"The archive {quoted(name)} must end in {', '.join(list(_SUFFIXES)[:-1])} or "
        f"{list(_SUFFIXES)[-1]}",
        path=name,
    )


def archive(context: Context, ref: str, path: bytes, target: str, *, force: bool) -> ArchiveResult:
    """Writes a snapshot, or a path of it, to a file that is absent, or with ``force`` replaced.

    Durable after return. See :meth:`treesnap.Handle.archive`.
    """
    compression = compression_of(os.path.basename(target))
    _refuse_inside_store(context, target)
    with translating_os_errors("write the archive"), opened_place(context.fs, target) as place:
        fs = place.fs
        sweep_temporary(fs, place.directory, prefix=_PREFIX)
        status = place.look()
        if status is not None and not force:
            raise _exists(target)
        if status is not None and S_ISDIR(status.st_mode):
            raise Refused(
                f"{quoted(target)} is a directory", code=ErrorCode.FILE_EXISTS, path=target
            )
        made = _Archive(context, ref, path)
        file = Temporary(fs, place.directory, prefix=_PREFIX, mode=0o666)
        try:
            size = 0
            for piece in made.pieces(compression):
                write_all(fs, file.fd, piece)
                size += len(piece)
            fs.sync_data(file.fd)
            _publish(file, place, target, force=force)
        except BaseException:
            file.discard()
            raise
        file.close()
        fs.sync(place.fd)
    return made.result(target, size)


def _exists(target: str) -> Refused:
    return Refused(f"{quoted(target)} exists", code=ErrorCode.FILE_EXISTS, path=target)


def _publish(file: Temporary, place: OutputPlace, target: str, *, force: bool) -> None:
    """Gives the file its name; never replaces another one without ``force``."""
    if force:
        place.fs.rename(file.path, place.path)
        return
    source, fd = os.path.basename(file.path), place.fd
    try:
        place.fs.rename_to_absent(source, place.name, source_dir_fd=fd, target_dir_fd=fd)
    except FileExistsError:
        raise _exists(target) from None


def pieces(
    context: Context, ref: str, path: bytes, compression: ArchiveCompression
) -> Iterator[bytes]:
    """Yields the bytes of an archive; errors in the arguments are raised at once."""
    return _Archive(context, ref, path).pieces(compression)


def _refuse_inside_store(context: Context, target: str) -> None:
    store = os.path.realpath(context.store_path)
    if os.path.commonpath([store, real_target(target)]) == store:
        raise Refused(f"The target {quoted(target)} is inside the store", path=target)


class _Archive:
    """A snapshot, or a path of it, that becomes an archive once."""

    def __init__(self, context: Context, ref: str, path: bytes) -> None:
        self._context = context
        self._path = path
        self._members = 0
        self._skipped = 0
        self._content_bytes = 0
        with opened(context, "read a snapshot") as session:
            self._snapshot = resolve_in(session, ref, paths=(path,), anywhere=True)
            with reading(session, self._snapshot):
                entry_at(session.store.trees(), self._snapshot, path)

    def result(self, target: str, size: int) -> ArchiveResult:
        """Returns what was written."""
        return ArchiveResult(
            snapshot=self._snapshot,
            target=os.fsencode(target),
            path=self._path,
            members=self._members,
            skipped=self._skipped,
            content_bytes=self._content_bytes,
            size_bytes=size,
        )

    def pieces(self, compression: ArchiveCompression) -> Iterator[bytes]:
        """Yields the bytes of the archive."""
        if compression is ArchiveCompression.ZSTD:
            from treesnap.core.codec.compress import stream_compressor

            return _compressed(self._plain(), stream_compressor())
        if compression is ArchiveCompression.GZIP:
            return _gzipped(self._plain())
        return self._plain()

    def _plain(self) -> Iterator[bytes]:
        size = 0
        context = self._context
        totals = self._snapshot.record.totals
        context.monitor.begin(Phase.ARCHIVE, totals.files + totals.others, totals.size_bytes)
        with (
            opened(context, "read a snapshot", recover=False) as session,
            reading(session, self._snapshot),
        ):
            for piece in self._members_of(session):
                size += len(piece)
                yield piece
        yield tar.end(size)

    def _members_of(self, session: Session) -> Iterator[bytes]:
        get = session.store.get
        trees = session.store.trees()
        top = entry_at(trees, self._snapshot, self._path)
        first_names: dict[tuple[bytes, ...], bytes] = {}
        groups = _groups_below(self._snapshot, self._path, get)
        for path, entry in self._entries(trees, top):
            if entry.is_skipped:
                self._skipped += 1
                continue
            if is_reserved_path(path):
                raise Refused(
                    f"The snapshot has the path {quoted(path)}, which is reserved for restores, so "
                    "no import would take the archive",
                    path=path,
                )
            self._members += 1
            group = groups.get(path)
            first = first_names.setdefault(group, path) if group is not None else path
            member = _member(path, entry, trees, get, first)
            yield tar.header(member)
            if entry.kind == EntryKind.FILE and first == path:
                yield from self._content(entry.file_content, member, get)
            if not entry.is_directory:
                session.monitor.advance(1, entry.size)

    def _entries(self, trees: TreeReader, top: Entry) -> Iterator[tuple[bytes, Entry]]:
        yield self._path, top
        if top.is_directory:
            trees.walk().begin(top.tree_id, is_whole=True)
            yield from walk(trees, top, self._path)

    def _content(self, content: FileContent, member: tar.Member, get: Get) -> Iterator[bytes]:
        size = 0
        if member.runs is None:
            for piece in read_content(content, get):
                size += len(piece)
                yield piece
        else:
            for segment in read_segments(content, get):
                if segment.id is not None:
                    size += segment.size
                    yield get(ObjectKind.CHUNK, segment.id)
        self._content_bytes += member.size
        yield tar.padding(size)


def _groups_below(snapshot: Snapshot, path: bytes, get: Get) -> Groups:
    groups = load_groups(snapshot.record.links, get)
    return subset_groups(groups, lambda name: treepath.is_within(name, path)) if path else groups


def _member(path: bytes, entry: Entry, trees: TreeReader, get: Get, first: bytes) -> tar.Member:
    kind = EntryKind(entry.kind)
    is_hard_link = first != path
    target = entry.target if kind is EntryKind.SYMLINK else b""
    is_device = kind in {EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE}
    return tar.Member(
        path=b"./" + path,
        kind=kind,
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        mtime_ns=entry.mtime_ns,
        size=entry.size,
        target=b"./" + first if is_hard_link else target,
        is_hard_link=is_hard_link,
        device=entry.device if is_device else Device(0, 0),
        xattrs=() if is_hard_link else trees.xattrs(entry),
        runs=None if is_hard_link or kind is not EntryKind.FILE else _runs(entry, get),
    )


def _runs(entry: Entry, get: Get) -> tar.Runs | None:
    """Returns where a sparse file has data; None for one without holes, or with too many."""
    content = entry.file_content
    if content.data is not None or (content.level == 0 and None not in content[1::2]):
        return None
    runs: list[tuple[int, int]] = []
    position = 0
    has_holes = False
    for segment in read_segments(content, get):
        if segment.id is None:
            has_holes = True
        elif runs and sum(runs[-1]) == position:
            runs[-1] = (runs[-1][0], runs[-1][1] + segment.size)
        else:
            runs.append((position, segment.size))
        position += segment.size
        if len(runs) >= tar.RUNS_MAX:
            return None
    if not has_holes:
        return None
    if not runs or sum(runs[-1]) < position:
        runs.append((position, 0))  # how GNU tar says where a file ends
    return tuple(runs)


def _compressed(parts: Iterator[bytes], compressor: StreamCompressor) -> Iterator[bytes]:
    for part in parts:
        if ready := compressor.compress(part):
            yield ready
    yield compressor.flush()


class _Sink:
    """Buffers what a compressor writes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        """Takes bytes."""
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Has nothing to do."""

    def taken(self) -> bytes:
        """Returns what was written since the last call."""
        data, self._parts = b"".join(self._parts), []
        return data


def _gzipped(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the bytes in the format of gzip, with no name and no time in it."""
    from gzip import GzipFile

    sink = _Sink()
    with GzipFile("", "wb", _GZIP_LEVEL, sink, mtime=0) as file:
        for part in parts:
            file.write(part)
            if ready := sink.taken():
                yield ready
    yield sink.taken()
