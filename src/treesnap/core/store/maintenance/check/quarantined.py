"""Packs that a repair moved to quarantine: what is intact in them is still there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from treesnap.core.codec.pack import (
    HEAD_SIZE,
    MAGIC,
    PACK_SIZE_TARGET,
    IndexEntry,
    OpenBlock,
    decode_table,
    table_size,
)
from treesnap.core.fs.durable import read_readable
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import Corrupt
from treesnap.core.store.store import Store

_NAME = re.compile(r"packs\.([0-9a-f]{32})(\.[0-9]+)?\Z")
_SIZE_MAX = 2 * PACK_SIZE_TARGET
"""Bytes that are looked at of each; a pack is sealed long before it is so large."""


def quarantined_objects(store: Store) -> Iterator[tuple[ObjectKind, bytes]]:
    """Yields every object in quarantined packs whose content matches its id.

    Costs the bytes of these packs. No index covers them, so each place is tried that looks like
    the beginning of a block.
    """
    try:
        names = sorted(store.fs.list_names(store.layout.quarantine))
    except FileNotFoundError:
        return
    for name in names:
        match = _NAME.match(name)
        if match is None:
            continue
        try:
            data = read_readable(store.fs, os.path.join(store.layout.quarantine, name), _SIZE_MAX)
        except OSError:  # one that cannot be opened keeps back no other
            continue
        yield from _intact(data, bytes.fromhex(match[1]))


def _intact(data: bytes, pack_id: bytes) -> Iterator[tuple[ObjectKind, bytes]]:
    offset = data.find(MAGIC)
    while offset >= 0:
        size = table_size(data[offset : offset + HEAD_SIZE])
        table = (
            decode_table(data[offset : offset + size], pack_id, offset)
            if size is not None
            else None
        )
        if table is None or table.end > len(data):
            offset = data.find(MAGIC, offset + 1)
            continue
        block = OpenBlock(table, data[offset : table.end])
        for entry in table.entries:
            content = _content(block, entry)
            if content is not None:
                yield ObjectKind(entry.kind), content
        offset = data.find(MAGIC, table.end)


def _content(block: OpenBlock, entry: IndexEntry) -> bytes | None:
    try:
        return block.find(entry)
    except Corrupt:
        return None
