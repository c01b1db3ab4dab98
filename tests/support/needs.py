"""What snapshots need, counted by the reader that shares no code with the product."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from formats.independent_reader import (
    CHUNK,
    CHUNK_LIST,
    DIRECTORY,
    FILE,
    TREE,
    Reader,
    blocks_of,
    unpacked,
)

Need = tuple[int, bytes]
"""Kind and id of an object."""


def needs(reader: Reader, record: dict[str, Any]) -> set[Need]:
    """Returns every object that a snapshot needs."""
    found: set[Need] = set()
    pending = [record["root"]]
    while pending:
        row = pending.pop()
        if type(row[8]) is bytes:
            found.add((CHUNK, row[8]))
        if row[1] == FILE:
            found |= set(_content(reader, row[7]))
        elif row[1] == DIRECTORY:
            found |= set(_trees(reader, row[7]))
            pending += reader.entries(row[7])
    if "links" in record:
        found |= set(_content(reader, record["links"]))
    return found


def _trees(reader: Reader, identity: bytes) -> Iterator[Need]:
    yield TREE, identity
    _, _, level, rows = unpacked(reader.get(TREE, identity))
    if level:
        for _, page, _ in rows:
            yield from _trees(reader, page)


def _content(reader: Reader, content: Any) -> Iterator[Need]:
    level, *segments = content
    for identity in segments[::2]:
        if identity is not None:
            yield (CHUNK_LIST if level else CHUNK), identity
            if level:
                yield from _content(reader, unpacked(reader.get(CHUNK_LIST, identity)))


def sizes(reader: Reader, wanted: set[Need]) -> tuple[int, int]:
    """Returns the bytes of objects before compression, and their shares of their blocks.

    The share of a second copy in the same pack counts too.
    """
    places = [reader.objects[need] for need in wanted]
    seconds = [reader.seconds[need] for need in wanted if need in reader.seconds]
    return sum(place.size for place in places), sum(place.share for place in [*places, *seconds])


def all_blocks_bytes(store: Path) -> int:
    """Returns the bytes of all blocks in all packs, second copies of objects too."""
    packs = (store / "packs").iterdir()
    return sum(block.size for pack in packs for block, _ in blocks_of(pack))
