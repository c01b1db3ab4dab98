"""``stats``: sizes of a store and of a root's history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treesnap.codec.pack import RECORD_HEADER_SIZE
from treesnap.errors import StoreMissing
from treesnap.fs.base import FileSystem
from treesnap.ops.access import opened
from treesnap.ops.history import snapshots_of
from treesnap.results import StatsResult

if TYPE_CHECKING:
    from treesnap.ops.handle import Handle

_EMPTY = StatsResult(
    roots=0,
    snapshots=0,
    root_snapshots=0,
    logical_bytes=0,
    objects=0,
    raw_bytes=0,
    stored_bytes=0,
    disk_bytes=0,
    packs=0,
    files=0,
)


def stats(handle: Handle) -> StatsResult:
    """Returns the sizes; see :meth:`treesnap.Handle.stats`."""
    try:
        with opened(handle, "measure the store") as pair:
            store = pair.store
            objects: dict[bytes, tuple[int, int]] = {}
            for pack_id in store.packs.sizes():
                for record in store.packs.scan(pack_id)[0]:
                    objects[record.id] = (record.raw_size, record.stored_size + RECORD_HEADER_SIZE)
            own = list(snapshots_of(pair))
            files, disk_bytes = _disk_use(handle.fs, store.path)
            return StatsResult(
                roots=len(store.snapshots.root_ids()),
                snapshots=sum(1 for _ in store.snapshots.all_names()),
                root_snapshots=len(own),
                logical_bytes=sum(item.record.totals.size_bytes for item in own),
                objects=len(objects),
                raw_bytes=sum(raw for raw, _ in objects.values()),
                stored_bytes=sum(stored for _, stored in objects.values()),
                disk_bytes=disk_bytes,
                packs=len(store.packs.sizes()),
                files=files,
            )
    except StoreMissing:
        return _EMPTY


def _disk_use(fs: FileSystem, path: str) -> tuple[int, int]:
    """Returns how many files lie below a directory, and their bytes."""
    files = size_bytes = 0
    pending = [path]
    while pending:
        with fs.scan(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    files += 1
                    size_bytes += entry.stat(follow_symlinks=False).st_size
    return files, size_bytes
