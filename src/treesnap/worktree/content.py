"""Reading the content of one file as chunks and holes.

A file that changes while it is read is read again; after three attempts the
last one is kept and reported as unstable. A sparse file is read extent by
extent (SEEK_DATA and SEEK_HOLE, see lseek(2)), so that holes cost nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from treesnap.codec.chunklist import Put, fold
from treesnap.fs.base import FileSystem
from treesnap.model import ObjectKind, Segment
from treesnap.worktree.chunking import CHUNK_SIZE_MAX, SINGLE_SIZE_MAX, cut

ATTEMPTS = 3
WINDOW_SIZE = 8 << 20
"""Bytes of a large file in memory at once."""

EMPTY: tuple[Any, ...] = (0,)


class FileContent(NamedTuple):
    """What a file held, and its metadata after it was read."""

    content: tuple[Any, ...]
    size: int
    """Bytes that the content covers, holes included."""
    stat: os.stat_result
    read_bytes: int
    is_stable: bool


def read_content(fs: FileSystem, fd: int, put: Put, before: os.stat_result) -> FileContent:
    """Returns the content of an open regular file, storing its chunks through ``put``.

    ``before`` is its metadata from before. Memory is bounded by WINDOW_SIZE,
    whatever the file's size.
    """
    read_bytes = 0
    for _ in range(ATTEMPTS):
        content, size, data_size = _read_once(fs, fd, put, before)
        read_bytes += data_size
        after = fs.fstat(fd)
        if (
            size == after.st_size
            and before.st_mtime_ns == after.st_mtime_ns
            and before.st_ctime_ns == after.st_ctime_ns
        ):
            return FileContent(content, size, after, read_bytes, is_stable=True)
        before = after
    return FileContent(content, size, after, read_bytes, is_stable=False)


def _read_once(
    fs: FileSystem, fd: int, put: Put, stat: os.stat_result
) -> tuple[tuple[Any, ...], int, int]:
    """Returns the content, the bytes that it covers, and those that are no holes."""
    size = stat.st_size
    # The blocks that stat counts cannot tell: attributes and reserved space take some too.
    is_dense = size == 0 or fs.next_hole(fd, 0) >= size
    if size <= SINGLE_SIZE_MAX and is_dense:
        data = fs.read_at(fd, size + 1, 0)
        held = len(data)
        return (0, put(ObjectKind.CHUNK, data), held) if data else EMPTY, held, held
    segments = list(_data(fs, fd, 0, size, put) if is_dense else _sparse(fs, fd, size, put))
    covered = sum(segment.size for segment in segments)
    data_size = sum(segment.size for segment in segments if segment.id is not None)
    return fold(segments, put), covered, data_size


def _sparse(fs: FileSystem, fd: int, size: int, put: Put) -> Iterator[Segment]:
    """Yields the chunks and holes of a file, extent by extent."""
    position = 0
    while position < size:
        start = fs.next_data(fd, position)
        if start is None or start >= size:
            yield Segment(None, size - position)
            return
        if start > position:
            yield Segment(None, start - position)
        end = min(fs.next_hole(fd, start), size)
        yield from _data(fs, fd, start, end, put)
        position = end


def _data(fs: FileSystem, fd: int, start: int, end: int, put: Put) -> Iterator[Segment]:
    """Yields the chunks of one extent; stops early when the file became shorter."""
    rest = b""
    position = start
    while position < end:
        piece = fs.read_at(fd, min(WINDOW_SIZE, end - position), position)
        if not piece:
            break
        position += len(piece)
        window = rest + piece if rest else piece
        taken = 0
        for size in _cut(window, is_last=position >= end, is_whole=start + len(window) == end):
            chunk = window[taken : taken + size]
            yield Segment(put(ObjectKind.CHUNK, chunk), size)
            taken += size
        rest = window[taken:]
    while rest:
        chunk, rest = rest[:CHUNK_SIZE_MAX], rest[CHUNK_SIZE_MAX:]
        yield Segment(put(ObjectKind.CHUNK, chunk), len(chunk))


def _cut(window: bytes, *, is_last: bool, is_whole: bool) -> Iterator[int]:
    if is_whole and len(window) <= SINGLE_SIZE_MAX:
        yield len(window)
        return
    yield from cut(memoryview(window), is_last=is_last)


def store_bytes(data: bytes, put: Put) -> tuple[Any, ...]:
    """Returns the content of bytes in memory, cut and stored like a file's."""
    segments = []
    taken = 0
    for size in _cut(data, is_last=True, is_whole=True) if data else ():
        chunk = data[taken : taken + size]
        segments.append(Segment(put(ObjectKind.CHUNK, chunk), size))
        taken += size
    return fold(segments, put)
