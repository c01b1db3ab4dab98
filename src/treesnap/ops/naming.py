"""Finding the snapshot of a root that has a name, without reading the whole history.

What a record says never changes. So what was read once is noted in the root's *name table*,
up to the number of the newest snapshot that was read; only records behind that are read
again. A snapshot that was deleted since is missed when it is loaded, and the table never
has to be corrected. It may be lost, or older than it should be: then more records are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from treesnap.codec.envelope import FileKind
from treesnap.codec.names import NAMES, NameTable, decode_names
from treesnap.errors import Corrupt, NotFound
from treesnap.model import SnapshotId
from treesnap.store.snapshots import SnapshotName

if TYPE_CHECKING:
    from treesnap.model import Snapshot
    from treesnap.ops.access import Opened
    from treesnap.store.snapshots import Listing

FILE = "names"
UNREAD_MAX = 32
"""When more records than these are behind the table, whoever may write notes them."""


def find_named(pair: Opened, name: str, *, note: bool = False) -> Snapshot | None:
    """Returns the newest readable snapshot of the root with a name, or None.

    Costs a listing, the table, and the records behind it. With ``note`` the caller holds the
    root's lock, and the table is brought up to date when it is far behind.
    """
    listing = pair.store.snapshots.listing(pair.root.id)
    table = _table(pair)
    read: list[Snapshot | None] = []
    for item in _behind(listing, table):
        snapshot = _loaded(pair, item)
        if snapshot is not None and snapshot.name == name:
            return snapshot
        read.append(snapshot)
    readable = [snapshot for snapshot in read if snapshot is not None]
    if note and len(read) > UNREAD_MAX and len(readable) == len(read):
        _note(pair, listing, table, readable)
    for noted, sequence, identity in sorted(table.rows, key=lambda row: row[1], reverse=True):
        if noted == name:
            snapshot = _loaded(pair, SnapshotName(sequence, SnapshotId(identity.hex())))
            if snapshot is not None and snapshot.name == name:
                return snapshot
    return None


def _behind(listing: Listing, table: NameTable) -> Iterator[SnapshotName]:
    """Yields the names of the snapshots that are newer than the table, newest first."""
    for item in listing:
        if item.sequence <= table.through:
            return
        yield item


def _loaded(pair: Opened, name: SnapshotName) -> Snapshot | None:
    try:
        return pair.store.snapshots.load(pair.root.id, name)
    except (Corrupt, NotFound):
        return None


def _table(pair: Opened) -> NameTable:
    """Returns the table; one that is absent, damaged or unreadable knows of nothing."""
    with suppress(Corrupt, OSError):
        payload = pair.root.read(FILE, FileKind.NAMES)
        if payload is not None:
            return decode_names(payload)
    return NameTable()


def _note(pair: Opened, listing: Listing, table: NameTable, read: list[Snapshot]) -> None:
    """Writes the table anew with what was read, without what is gone; not synced."""
    there = {item.id for item in listing}
    rows = [row for row in table.rows if row[2].hex() in there]
    rows += [
        (item.name, item.sequence, bytes.fromhex(item.id)) for item in read if item.name is not None
    ]
    noted = NameTable(max(item.sequence for item in read), tuple(rows))
    with suppress(OSError):
        pair.root.write(FILE, NAMES, noted, durable=False)
