"""Reading one name of a directory: from ``lstat`` and content to an Entry.

A small file is read and then looked at once. When everything is as the listing of its
directory observed it, it is the same file and did not change meanwhile. Otherwise, and
when it is large, it is read between two looks at the open file. One that changes while
it is read is read again; after three such attempts the last one is kept and reported as
unstable. A sparse file is read extent by extent (SEEK_DATA and SEEK_HOLE, see lseek(2)),
so that holes cost nothing.

What a file holds decides what is recorded, not how it is stored: a whole block of
zeros is recorded as a hole whether it is one or not. A range that was reserved and never
written looks like a hole until a program reads it, and like data from then on.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from treesnap.core.codec.chunklist import INLINE_SIZE_MAX, Put, fold
from treesnap.core.codec.compress import OBJECT_SIZE_MAX
from treesnap.core.codec.message import pack
from treesnap.core.codec.statcache import Observation
from treesnap.core.codec.tree import INLINE_XATTRS_SIZE_MAX, decode_xattrs
from treesnap.core.fs.base import FileSystem, Place
from treesnap.core.fs.record_locks import close_after_reading, open_for_reading
from treesnap.core.model.entries import (
    Entry,
    EntryKind,
    FileContent,
    ObjectId,
    ObjectKind,
    Segment,
    SkipReason,
    Xattrs,
)
from treesnap.core.model.errors import Corrupt
from treesnap.core.model.named_tuple import NamedTuple
from treesnap.core.model.type_names import Protocol
from treesnap.core.worktree.attributes import read_xattrs
from treesnap.core.worktree.scan.chunking import SINGLE_SIZE_MAX, cut

_OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOCTTY", 0)
_OURS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say something about this process or the store, not about the file."""

# Reading a member of an enumeration takes a call of Python code before Python 3.12.
_CHUNK = ObjectKind.CHUNK
_FILE = int(EntryKind.FILE)

_NODE_KINDS = {
    stat_module.S_IFIFO: EntryKind.FIFO,
    stat_module.S_IFCHR: EntryKind.CHARACTER_DEVICE,
    stat_module.S_IFBLK: EntryKind.BLOCK_DEVICE,
}


class ObjectSink(Protocol):
    """Where captured objects go, and where earlier ones come from."""

    def put(self, kind: ObjectKind, data: bytes) -> ObjectId:
        """Takes an object and returns its id."""

    def get(self, kind: ObjectKind, identity: ObjectId) -> bytes:
        """Returns an object; raises Corrupt when it is missing."""


class Captured(NamedTuple):
    """What became of one name."""

    entry: Entry
    read_bytes: int = 0
    is_stable: bool = True


_NEW_ENTRY = partial(tuple.__new__, Entry)
_NEW_CAPTURED = partial(tuple.__new__, Captured)
"""Build these records straight from sequences, because a Python call per file is too slow."""


def skipped_entry(name: bytes, reason: SkipReason) -> Entry:
    """Returns the entry of a name that exists and is not captured."""
    return Entry(name, EntryKind.SKIPPED, 0, 0, 0, 0, 0, int(reason), None)


def blames_file(error: OSError) -> bool:
    """Returns whether an error makes one path unreadable, rather than the capture impossible."""
    return error.errno not in _OURS


def capture_xattrs(fs: FileSystem, sink: ObjectSink, where: Place) -> Xattrs | ObjectId | None:
    """Returns extended attributes as an entry holds them: in place, or as a chunk's id.

    Raises OSError for more than an object holds: one path is unreadable then, not the root.
    """
    return store_xattrs(read_xattrs(fs, where), sink.put)


def store_xattrs(xattrs: Xattrs | None, put: Put) -> Xattrs | ObjectId | None:
    """Returns extended attributes as an entry holds them; raises OSError as above."""
    if xattrs is None or sum(map(len, chain(*xattrs))) <= INLINE_XATTRS_SIZE_MAX:
        return xattrs or None
    data = pack(xattrs)
    if len(data) > OBJECT_SIZE_MAX or not _are_readable(data):
        raise OSError(errno.E2BIG, "Its extended attributes are too large to store")
    return put(ObjectKind.CHUNK, data)


def _are_readable(data: bytes) -> bool:
    try:
        decode_xattrs(data)
    except Corrupt:
        return False
    return True


def entry_without_size(
    name: bytes,
    kind: EntryKind,
    stat: os.stat_result,
    content: object,
    xattrs: Xattrs | ObjectId | None,
) -> Entry:
    """Returns the entry of anything but a regular file."""
    return Entry(
        name,
        kind,
        stat.st_mode & 0o7777,
        stat.st_uid,
        stat.st_gid,
        stat.st_mtime_ns,
        0,
        content,
        xattrs,
    )


def capture(
    fs: FileSystem,
    sink: ObjectSink,
    dir_fd: int,
    observation: Observation,
    count: Callable[[int], None] | None = None,
) -> Captured | None:
    """Captures a name that is not a directory; returns None when it is gone.

    ``observation`` is what ``lstat`` said before. ``count`` is told of the bytes of a large file
    while it is read, holes left out. Raises OSError when the name
    cannot be read; :func:`blames_file` tells what that means.
    """
    name, mode = observation[0], observation[1]
    kind = stat_module.S_IFMT(mode)
    try:
        if kind == stat_module.S_IFREG:
            return _capture_file(fs, sink, dir_fd, observation, count)
        if kind == stat_module.S_IFSOCK:
            return Captured(skipped_entry(name, SkipReason.SOCKET))
        stat = fs.lstat(name, dir_fd=dir_fd)
        if stat_module.S_IFMT(stat.st_mode) != kind:
            raise OSError(errno.ESTALE, "It changed its type while it was captured")
        xattrs = capture_xattrs(fs, sink, (dir_fd, name))
        if kind == stat_module.S_IFLNK:
            entry_kind = EntryKind.SYMLINK
            content: object = fs.read_link(name, dir_fd=dir_fd)
        else:
            entry_kind = _NODE_KINDS[kind]
            content = (
                (os.major(stat.st_rdev), os.minor(stat.st_rdev))
                if entry_kind != EntryKind.FIFO
                else None
            )
    except FileNotFoundError:
        return None
    return Captured(entry_without_size(name, entry_kind, stat, content, xattrs))


def _capture_file(
    fs: FileSystem,
    sink: ObjectSink,
    dir_fd: int,
    observation: Observation,
    count: Callable[[int], None] | None,
) -> Captured:
    name = observation[0]
    fd = open_for_reading(fs, name, _OPEN_FILE, dir_fd=dir_fd)
    try:
        if observation[2] <= SINGLE_SIZE_MAX:
            xattrs = capture_xattrs(fs, sink, fd)
            content, size, read_bytes = _read_once(fs, fd, sink.put, observation[2])
            stat = fs.fstat(fd)
            is_stable = size == stat.st_size and observation[1:] == (
                stat.st_mode,
                stat.st_size,
                stat.st_mtime_ns,
                stat.st_ctime_ns,
                stat.st_ino,
                stat.st_dev,
            )
        else:  # reading it in vain would cost more than a look
            stat, read_bytes, is_stable = fs.fstat(fd), 0, False
        if not is_stable:
            if not stat_module.S_ISREG(stat.st_mode):
                raise OSError(errno.ESTALE, "It changed its type while it was captured")
            xattrs = capture_xattrs(fs, sink, fd)
            put = sink.put if count is None else _counted(sink.put, count)
            again = read_content(fs, fd, put, stat)
            content, size, stat, is_stable = again.content, again.size, again.stat, again.is_stable
            read_bytes += again.read_bytes
    finally:
        close_after_reading(fs, fd)
    mode, uid, gid = stat.st_mode & 0o7777, stat.st_uid, stat.st_gid
    entry = _NEW_ENTRY((name, _FILE, mode, uid, gid, stat.st_mtime_ns, size, content, xattrs))
    return _NEW_CAPTURED((entry, read_bytes, is_stable))


def _counted(put: Put, count: Callable[[int], None]) -> Put:
    def counted(kind: ObjectKind, data: bytes) -> ObjectId:
        identity = put(kind, data)
        count(len(data))
        return identity

    return counted


ATTEMPTS = 3
WINDOW_SIZE = 8 << 20
"""Bytes of a large file in memory at once."""

ZERO_BLOCK = bytes(64 << 10)
"""So many zeros, at a multiple of their size, are a hole. Fewer are data, however stored."""
_BLOCK_SIZE = len(ZERO_BLOCK)


class ReadFile(NamedTuple):
    """What a file held, and its metadata after it was read."""

    content: FileContent
    size: int
    """Bytes that the content covers, holes included."""
    stat: os.stat_result
    read_bytes: int
    is_stable: bool


def read_content(fs: FileSystem, fd: int, put: Put, before: os.stat_result) -> ReadFile:
    """Returns the content of an open regular file, storing its chunks through ``put``.

    ``before`` is its metadata from before. Memory is bounded by WINDOW_SIZE,
    whatever the file's size.
    """
    read_bytes = 0
    for _ in range(ATTEMPTS):
        content, size, data_size = _read_once(fs, fd, put, before.st_size)
        read_bytes += data_size
        after = fs.fstat(fd)
        if (
            size == after.st_size
            and before.st_mtime_ns == after.st_mtime_ns
            and before.st_ctime_ns == after.st_ctime_ns
        ):
            return ReadFile(content, size, after, read_bytes, is_stable=True)
        before = after
    return ReadFile(content, size, after, read_bytes, is_stable=False)


def _read_once(fs: FileSystem, fd: int, put: Put, size: int) -> tuple[FileContent, int, int]:
    """Returns the content, the bytes that it covers, and those that are not holes.

    ``size`` is how many bytes the file had.
    """
    # The blocks that stat counts cannot tell: attributes and reserved space take some too.
    # Less than a block is data in any case; asking first refuses a pipe or a device unread.
    is_dense = size == 0 or fs.next_hole(fd, 0) >= size or size < _BLOCK_SIZE
    if size <= SINGLE_SIZE_MAX and is_dense:
        data = fs.read_at(fd, size + 1, 0)
        held = len(data)
        if held < _BLOCK_SIZE or not _has_zero_block(data):
            return _single(data, put), held, held
    segments = list(_segments(fs, fd, size, put, is_dense=is_dense))
    covered = sum(segment.size for segment in segments)
    data_size = sum(segment.size for segment in segments if segment.id is not None)
    return fold(segments, put), covered, data_size


def _single(data: bytes, put: Put) -> FileContent:
    """Returns content that is not cut: its bytes when they are few, else one chunk."""
    held = len(data)
    if held > INLINE_SIZE_MAX:
        return FileContent((0, put(_CHUNK, data), held))
    return FileContent((data,) if data else (0,))


def _has_zero_block(data: bytes) -> bool:
    return any(_is_zero(data, start) for start in range(0, len(data), _BLOCK_SIZE))


def _is_zero(data: bytes, start: int) -> bool:
    """Returns whether a whole block at a place in the data is zeros. Mostly costs one look."""
    return data[start] == 0 and data.startswith(ZERO_BLOCK, start)


def _segments(fs: FileSystem, fd: int, size: int, put: Put, *, is_dense: bool) -> Iterator[Segment]:
    """Yields the chunks and holes of a file; stops early when the file became shorter."""
    run = _Run(put)
    hole = position = 0
    while position < size:
        end = size
        if not is_dense:
            data_start = fs.next_data(fd, position)
            start = size if data_start is None else min(data_start, size)
            start -= (start - position) % _BLOCK_SIZE
            if start > position:
                yield from run.end()
                hole += start - position
                position = start
            if data_start is None or data_start >= size:
                end = size
            else:
                end = min(size, _rounded_up(fs.next_hole(fd, data_start)))
        piece = (
            fs.read_at(fd, min(WINDOW_SIZE, end - position), position) if end > position else b""
        )
        if not piece:
            break
        position += len(piece)
        for part, is_zero in _parts(piece, ends=position >= size, follows_hole=hole > 0):
            if is_zero:
                yield from run.end()
                hole += len(part)
                continue
            if hole:
                yield Segment(None, hole)
                hole = 0
            yield from run.add(part)
    yield from run.end()
    if hole:
        yield Segment(None, hole)


def _rounded_up(position: int) -> int:
    return -(-position // _BLOCK_SIZE) * _BLOCK_SIZE


def _parts(piece: bytes, *, ends: bool, follows_hole: bool) -> Iterator[tuple[bytes, bool]]:
    """Yields the parts of a piece that begins with a block, and whether they are zeros.

    Zeros at the end of a file that fill no block belong to the hole before them.
    """
    start = 0
    was_zero = follows_hole
    for block in range(0, len(piece), _BLOCK_SIZE):
        rest = len(piece) - block
        is_zero = _is_zero(piece, block) or (
            ends and was_zero and rest < _BLOCK_SIZE and not any(piece[block:])
        )
        if block and is_zero != was_zero and block > start:
            yield piece[start:block], was_zero
            start = block
        was_zero = is_zero
    yield piece[start:] if start else piece, was_zero


class _Run:
    """Cuts data between two holes into chunks, the same ones however it arrives."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._rest = b""
        self._is_cut = False

    def add(self, data: bytes) -> Iterator[Segment]:
        """Takes more data; yields the chunks that are certain."""
        self._rest = self._rest + data if self._rest else data
        if self._is_cut or len(self._rest) > SINGLE_SIZE_MAX:
            self._is_cut = True
            yield from self._chunks(cut(memoryview(self._rest), is_last=False))

    def end(self) -> Iterator[Segment]:
        """Yields the last chunks; the next data begins another run."""
        rest = self._rest
        if rest and not self._is_cut:
            yield Segment(self._put(ObjectKind.CHUNK, rest), len(rest))
        elif rest:
            yield from self._chunks(cut(memoryview(rest), is_last=True))
        self._rest, self._is_cut = b"", False

    def _chunks(self, sizes: Iterator[int]) -> Iterator[Segment]:
        taken = 0
        for size in sizes:
            chunk = self._rest[taken : taken + size]
            yield Segment(self._put(ObjectKind.CHUNK, chunk), size)
            taken += size
        self._rest = self._rest[taken:]


def store_bytes(data: bytes, put: Put) -> FileContent:
    """Returns the content of bytes in memory, cut and stored like a file's, without holes."""
    if len(data) <= INLINE_SIZE_MAX:
        return _single(data, put)
    run = _Run(put)
    return fold([*run.add(data), *run.end()], put)


def store_stream(runs: Iterable[bytes | int], put: Put) -> tuple[FileContent, int]:
    """Returns the content of bytes that come in order, stored through ``put``, and its size.

    A number stands for so many zeros, and costs nothing. The content is the same as that of a
    file with these bytes. Memory is bounded by the size of the pieces and of a chunk.
    """
    windows = _windows(runs)
    first = next(windows, b"")
    second = next(windows, None)
    if (
        second is None
        and isinstance(first, bytes)
        and len(first) <= SINGLE_SIZE_MAX
        and (len(first) < _BLOCK_SIZE or not _has_zero_block(first))
    ):
        return _single(first, put), len(first)
    segments = list(_streamed(chain([first], [] if second is None else [second], windows), put))
    return fold(segments, put), sum(segment.size for segment in segments)


def _windows(runs: Iterable[bytes | int]) -> Iterator[bytes | int]:
    """Yields bytes and numbers of zeros that are whole blocks, but for bytes at the end."""
    rest = bytearray()  # bytes would be copied for each run, of which there may be a million
    for run in runs:
        zeros = 0
        if isinstance(run, int):
            filling = min(run, -len(rest) % _BLOCK_SIZE)
            zeros = run - filling
            rest += bytes(filling)
        else:
            rest += run
        if zeros:
            if rest:
                yield bytes(rest)
            tail = zeros % _BLOCK_SIZE
            if zeros > tail:
                yield zeros - tail
            rest = bytearray(tail)
        elif len(rest) >= WINDOW_SIZE:
            whole = len(rest) - len(rest) % _BLOCK_SIZE
            yield bytes(memoryview(rest)[:whole])
            del rest[:whole]
    if rest:
        yield bytes(rest)


def _streamed(windows: Iterable[bytes | int], put: Put) -> Iterator[Segment]:
    """Yields the chunks and holes of windows, as :func:`_segments` does of a file."""
    run = _Run(put)
    hole = 0
    upcoming = iter(windows)
    window = next(upcoming, None)
    while window is not None:
        following = next(upcoming, None)
        if isinstance(window, int):
            yield from run.end()
            hole += window
        else:
            for part, is_zero in _parts(window, ends=following is None, follows_hole=hole > 0):
                if is_zero:
                    yield from run.end()
                    hole += len(part)
                    continue
                if hole:
                    yield Segment(None, hole)
                    hole = 0
                yield from run.add(part)
        window = following
    yield from run.end()
    if hole:
        yield Segment(None, hole)
