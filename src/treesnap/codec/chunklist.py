"""The content of a file as chunks and holes, folded into lists when it is long.

A content is the tuple ``(level, id, size, id, size, ...)`` of an Entry. Up to
16 segments stand in the entry itself, at level 0. More are folded: runs of
segments become chunk lists, objects of their own, and the lists stand in the
entry at level 1; and so on. Where a run ends is decided by the ids in it, so
that an edit in the middle of a large file makes one list anew, not all.

A chunk list is the msgpack array ``[level, id, size, id, size, ...]``, where
level 0 lists chunks and holes (id nil), and level N lists of level N - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from treesnap.codec.message import pack_object, refused, require, unpack
from treesnap.errors import InvalidArgument
from treesnap.hashing import ID_SIZE
from treesnap.model import ObjectId, ObjectKind, Segment

INLINE_SEGMENTS_MAX = 16
LIST_SEGMENTS_MIN = 64
LIST_SEGMENTS_MAX = 1024
LEVEL_MAX = 8
LIST_SIZE_MAX = 64 << 10
"""Encoded bytes of one chunk list."""
FILE_SIZE_MAX = (1 << 63) - 1

Put = Callable[[ObjectKind, bytes], ObjectId]


def fold(segments: Iterable[Segment], put: Put) -> tuple[Any, ...]:
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
    return (level, *(field for segment in current for field in segment))


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
    content = (level, *(field for segment in run for field in segment))
    data = pack_object(content, "chunk list")
    return Segment(put(ObjectKind.CHUNK_LIST, data), sum(segment.size for segment in run))


def decode_list(data: bytes) -> tuple[Any, ...]:
    """Returns the content tuple of a stored chunk list, or raises Corrupt."""
    require(len(data) <= LIST_SIZE_MAX, "chunk list", "it is too large")
    content = unpack(data, "chunk list", maps=False)
    check_content(content, 2 * LIST_SEGMENTS_MAX + 1)
    return content  # type: ignore[no-any-return]  # checked above


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
        raise refused("content", "it is no list of segments")
    level = content[0]
    if type(level) is not int or not 0 <= level <= LEVEL_MAX:
        raise refused("content", "its level is unknown")
    total = 0
    for position in range(1, len(content), 2):
        object_id, size = content[position], content[position + 1]
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
