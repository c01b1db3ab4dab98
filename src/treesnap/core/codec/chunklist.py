"""The content of a file: its bytes, or chunks and holes, folded into lists when it is long.

Up to 128 bytes are in the entry itself: an object would take more than they do, in the pack and
in the index. Otherwise up to 16 segments are, at level 0. More are folded: runs of
segments become chunk lists, objects of their own, and the entry has the lists,
at level 1; and so on. Where a run ends is decided by the ids in it, so that an
edit in the middle of a large file writes one list again, not all.

A chunk list is the msgpack array ``[level, id, size, id, size, ...]``, where
level 0 lists chunks and holes (id nil), and level N lists of level N - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from treesnap.core.codec.message import pack_object, refused, require, unpack
from treesnap.core.model.entries import FileContent, ObjectId, ObjectKind, Segment
from treesnap.core.model.errors import InvalidArgument
from treesnap.core.model.ids import ID_SIZE
from treesnap.core.model.type_names import Any

INLINE_SIZE_MAX = 128
"""Content of so many bytes has no chunk."""
INLINE_SEGMENTS_MAX = 16
LIST_SEGMENTS_MIN = 64
LIST_SEGMENTS_MAX = 1024
LEVEL_MAX = 8
LIST_SIZE_MAX = 64 << 10
"""Encoded bytes of one chunk list."""
FILE_SIZE_MAX = (1 << 63) - 1

Put = Callable[[ObjectKind, bytes], ObjectId]


def fold(segments: Iterable[Segment], put: Put) -> FileContent:
    """Returns the content of segments, storing chunk lists through ``put`` where needed.

    Equal segments always give equal content. Raises InvalidArgument for segments that no
    content can hold. Memory is one list of segments; a
    file of 1 TiB has about eight million.
    """
    level = 0
    current = list(segments)
    while len(current) > INLINE_SEGMENTS_MAX:
        lists: list[Segment] = []
        run: list[Segment] = []
        for segment in current:
            _check_segment(segment)
            run.append(segment)
            if _ends_run(run):
                lists.append(_put_list(level, run, put))
                run = []
        if run:
            lists.append(_put_list(level, run, put))
        current = lists
        level += 1
    return _content_of(level, current)


def _content_of(level: int, segments: Iterable[Segment]) -> FileContent:
    return FileContent((level, *chain.from_iterable(segments)))


def _check_segment(segment: Segment) -> None:
    """Raises InvalidArgument for a segment that no content can hold, before it is folded."""
    is_good = (
        type(segment) is Segment
        and type(segment.size) is int
        and (segment.id is None or (type(segment.id) is bytes and len(segment.id) == ID_SIZE))
    )
    if not is_good:
        raise InvalidArgument(f"A chunk list cannot hold this: {segment!r:.80}")


def _ends_run(run: list[Segment]) -> bool:
    last = run[-1].id
    return len(run) >= LIST_SEGMENTS_MAX or (
        len(run) >= LIST_SEGMENTS_MIN and last is not None and last[0] == 0
    )


def _put_list(level: int, run: list[Segment], put: Put) -> Segment:
    content = _content_of(level, run)
    data = pack_object(content, "chunk list")
    return Segment(put(ObjectKind.CHUNK_LIST, data), content.size_bytes)


def decode_list(data: bytes) -> FileContent:
    """Returns the content of a stored chunk list, or raises Corrupt."""
    require(len(data) <= LIST_SIZE_MAX, "chunk list", "it is too large")
    content = unpack(data, "chunk list", maps=False)
    check_content(content, 2 * LIST_SEGMENTS_MAX + 1)
    require(type(content[0]) is int, "chunk list", "it has no level")
    return FileContent(content)


def check_content(content: Any, length_max: int = 2 * INLINE_SEGMENTS_MAX + 1) -> int:
    """Returns the bytes that a content covers; raises Corrupt unless it is well formed."""
    if type(content) is tuple and len(content) == 3:
        level, object_id, size = content  # of one chunk, as most are
        if (
            type(level) is type(size) is int
            and level == 0
            and type(object_id) is bytes
            and len(object_id) == 32
            and 0 < size <= FILE_SIZE_MAX
        ):
            return size
    if type(content) is not tuple or not 0 < len(content) <= length_max or len(content) % 2 == 0:
        raise refused("content", "it is not a list of segments")
    level = content[0]
    if type(level) is bytes:
        if len(content) > 1 or not 0 < len(level) <= INLINE_SIZE_MAX:
            raise refused("content", "its bytes are not possible")
        return len(level)
    if type(level) is not int or not 0 <= level <= LEVEL_MAX:
        raise refused("content", "its level is unknown")
    total = 0
    for object_id, size in zip(content[1::2], content[2::2], strict=True):
        if object_id is None:
            require(level == 0, "content", "a list has no id")
        elif type(object_id) is not bytes or len(object_id) != 32:
            raise refused("content", "bad id")
        if type(size) is not int or not 0 < size <= FILE_SIZE_MAX:
            raise refused("content", "bad size")
        total += size
    if total > FILE_SIZE_MAX:
        raise refused("content", "it is too large")
    return total
