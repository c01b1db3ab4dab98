"""The index of a store: index parts on disk, and what this process added.

Looking up costs one bisection per part, so parts are merged as they pile up:
when more than eight lie around, those that are not much larger than the rest
are replaced by one. The process that gets the lock merges; none waits for it.

The index is a hint. Missing entries cost storage, never data: a reader that
misses an object scans the packs that no part covers, and then all packs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from itertools import groupby, islice

from treesnap.core.codec.envelope import CHECKSUM_SIZE
from treesnap.core.codec.index import IndexPart, encode_index, encode_unsorted
from treesnap.core.codec.pack import IndexEntry
from treesnap.core.fs.base import FileSystem
from treesnap.core.fs.durable import (
    open_regular,
    replace_file,
    sync_directory,
    unlink_if_present,
    unreadable,
)
from treesnap.core.fs.os_errors import is_unreadable
from treesnap.core.model.entries import ObjectId, ObjectKind
from treesnap.core.model.errors import Busy, Corrupt, UnsupportedFormat
from treesnap.core.store.layout import Layout, is_hex
from treesnap.core.store.lock import held

PARTS_MAX = 8
VERIFIED_SIZE_MAX = 16 << 10
"""Parts up to this size are checked whole when opened; larger ones were synced.

Opening costs the same then, however much the store holds. A large part that is damaged all
the same does no harm, because what it says of an object is compared with the pack.
"""

_READ_SIZE = 1 << 20


class ObjectIndex:
    """Finds objects. Not safe for use by several threads at once."""

    def __init__(self, fs: FileSystem, layout: Layout) -> None:
        self._fs = fs
        self._layout = layout
        self._parts: dict[str, IndexPart] | None = None
        self.damaged: dict[str, str] = {}
        """Parts that cannot be used, with the reason."""
        self.written_bytes: int = 0
        """The size of all parts that were published through this object."""
        self.reads_first = False
        """Whether all of a part is read before it is mapped: of a mapping that the disk does not
        give back, the process dies. Set it where damage is expected, before the first use."""
        self._scanned: dict[ObjectId, IndexEntry] = {}

    @property
    def parts(self) -> dict[str, IndexPart]:
        """All usable parts by name; read on first use."""
        if self._parts is None:
            self._parts = {}
            self.refresh()
        return self._parts

    def refresh(self) -> None:
        """Lists the parts again."""
        parts = self._parts if self._parts is not None else {}
        names = {name for name in self._fs.list_names(self._layout.index) if is_hex(name, 32)}
        self._parts = {name: part for name, part in parts.items() if name in names}
        for name in sorted(names - set(parts)):
            part = self._open(name)
            if part is not None:
                self._parts[name] = part

    def _open(self, name: str) -> IndexPart | None:
        path = os.path.join(self._layout.index, name)
        try:
            fd = open_regular(self._fs, path)
        except (FileNotFoundError, PermissionError):  # unreadable is not damaged: it stays
            return None
        except Corrupt as error:
            self.damaged[name] = error.message
            return None
        try:
            size = self._fs.fstat(fd).st_size
            if size <= CHECKSUM_SIZE:
                raise Corrupt(f"Index {path} is cut short", path=path)
            if size <= VERIFIED_SIZE_MAX:
                part = IndexPart(memoryview(self._fs.read_at(fd, size, 0)), path)
                part.verify()
                return part
            if self.reads_first:
                for start in range(0, size, _READ_SIZE):
                    self._fs.read_at(fd, _READ_SIZE, start)
            return IndexPart(memoryview(self._fs.map(fd)), path)
        except (Corrupt, UnsupportedFormat) as error:
            self.damaged[name] = error.message
            return None
        except OSError as error:
            if not is_unreadable(error):
                raise
            self.damaged[name] = unreadable(path, error).message
            return None
        finally:
            self._fs.close(fd)

    def find_all(self, object_id: ObjectId) -> Iterator[IndexEntry]:
        """Yields every known place of an object, each looked up when it is asked for."""
        for part in list(self.parts.values()):
            yield from part.find_all(object_id)
        scanned = self._scanned.get(object_id)
        if scanned is not None:
            yield scanned

    def find(self, object_id: ObjectId, avoid: frozenset[bytes] = frozenset()) -> IndexEntry | None:
        """Returns one place of an object outside the packs to avoid, or None."""
        for part in self.parts.values():
            entry = part.find(object_id)
            if entry is not None and entry.pack_id in avoid:
                elsewhere = (item for item in part.find_all(object_id) if item.pack_id not in avoid)
                entry = next(elsewhere, None)
            if entry is not None:
                return entry
        return None

    def stored_bytes(self, entry: IndexEntry) -> int:
        """Returns the bytes of an object in its pack, where trees and lists may lie twice."""
        if entry.kind == ObjectKind.CHUNK:
            return entry.size_bytes
        places = (item for item in self.find_all(entry.id) if item.pack_id == entry.pack_id)
        return sum(item.size_bytes for item in islice(places, 2))

    def covered(self) -> dict[bytes, int]:
        """Returns, for each pack, how many of its bytes the parts know of."""
        return _covered_by(self.parts.values())

    def entries_of(self, pack_id: bytes) -> list[IndexEntry]:
        """Returns what the parts know of one pack. Reads all of them."""
        return [
            entry
            for part in self.parts.values()
            if pack_id in part.covered
            for entry in part
            if entry.pack_id == pack_id
        ]

    def add_scanned(self, entries: Iterable[IndexEntry]) -> None:
        """Remembers objects that were found by scanning packs, for this process only."""
        self._scanned.update((entry.id, entry) for entry in entries)

    def write_part(self, entries: Iterable[IndexEntry], covered: Mapping[bytes, int]) -> str:
        """Publishes a new part and returns its name. The packs were synced before.

        Not synced: a part that is lost or damaged by a power cut is
        recognised, and its packs are scanned instead.
        """
        return self._publish(encode_unsorted(entries, covered), durable=False)

    def write_merged(
        self, sources: Iterable[Iterable[IndexEntry]], covered: Mapping[bytes, int]
    ) -> None:
        """Publishes a part for what several sources say, durably; each rises by id.

        No list of the entries is made.
        """
        import heapq

        entries = (entry for entry, _ in groupby(heapq.merge(*sources)))
        self._publish(encode_index(entries, covered), durable=True)

    def _publish(self, data: memoryview, *, durable: bool) -> str:
        name = os.urandom(16).hex()
        replace_file(
            self._fs,
            os.path.join(self._layout.index, name),
            data,
            temporary=self._layout.temporary,
            durable=durable or len(data) > VERIFIED_SIZE_MAX,
            durable_name=durable,
        )
        self.written_bytes += len(data)
        if self._parts is not None:
            part = self._open(name)
            if part is not None:
                self._parts[name] = part
        return name

    def merge_if_many(self) -> None:
        """Replaces small parts by one when there are many, unless another process is doing so.

        A part is rewritten only together with others of its size or larger, so that
        an entry is rewritten a logarithmic number of times.
        """
        self.refresh()
        if len(self.parts) <= PARTS_MAX:
            return
        with suppress(Busy), self._locked("merge", wait_s=0.0):
            self._merge(self._chosen_for_merge())

    def forget(self, packs: AbstractSet[bytes], wait_s: float) -> None:
        """Rewrites the parts that still know of packs which a collection removed, durably.

        Raises Busy.

        A writer may have merged parts while the collection replaced them, or have indexed a pack
        that it had open. As long as a part names a pack that is not there, captures rely on no
        stat cache and read every file.
        """
        if not packs:
            return
        with self._locked("collection", wait_s):
            affected = [name for name, part in self.parts.items() if part.covered.keys() & packs]
            names = [name for name in affected if self._is_sound(name)]
            parts = [self.parts[name] for name in names]
            covered = {
                pack_id: end for pack_id, end in _covered_by(parts).items() if pack_id not in packs
            }
            if covered:
                self.write_merged([_without(part, packs) for part in parts], covered)
            self.remove_parts(affected)
            sync_directory(self._fs, self._layout.index)  # or a power cut brings an old part back

    @contextmanager
    def _locked(self, operation: str, wait_s: float) -> Iterator[None]:
        """Keeps others from merging parts while the body runs; lists the parts; raises Busy."""
        path = os.path.join(self._layout.index, "lock")
        with held(self._fs, path, operation=operation, what="The index", wait_s=wait_s):
            self.refresh()
            yield

    def _chosen_for_merge(self) -> list[str]:
        by_size = sorted(self.parts.items(), key=lambda item: item[1].count)
        chosen: list[str] = []
        total = 0
        for name, part in by_size:
            if len(chosen) >= 2 and part.count > 2 * total:
                break
            chosen.append(name)
            total += part.count
        return chosen

    def _merge(self, names: list[str]) -> None:
        names = [name for name in names if self._is_sound(name)]
        if len(names) < 2:
            return
        parts = [self.parts[name] for name in names]
        self.write_merged(parts, _covered_by(parts))
        self.remove_parts(names)

    def _is_sound(self, name: str) -> bool:
        """Returns whether a part matches its checksum; otherwise lists it as damaged.

        Checks large parts too: damage must not get into a new part.
        """
        try:
            self.parts[name].verify()
        except Corrupt as error:
            self.damaged[name] = error.message
            del self.parts[name]
            return False
        return True

    def drop_damaged(self) -> None:
        """Removes the parts that cannot be used; a power cut may have torn one.

        What only they knew is found by scanning, indexed by the next writer of the pack, and
        covered again by the next collection. Not synced: a part that comes back is as useless
        as before.
        """
        if self.parts or self.damaged:  # reading the parts is what finds the damaged ones
            self.remove_parts(list(self.damaged))

    def remove_parts(self, names: Iterable[str]) -> None:
        """Removes parts whose entries stand in a newer part."""
        for name in names:
            unlink_if_present(self._fs, os.path.join(self._layout.index, name))
            self.parts.pop(name, None)
            self.damaged.pop(name, None)


def _without(part: IndexPart, packs: AbstractSet[bytes]) -> Iterator[IndexEntry]:
    return (entry for entry in part if entry.pack_id not in packs)


def _covered_by(parts: Iterable[IndexPart]) -> dict[bytes, int]:
    """Returns, for each pack, how many of its bytes some parts know of."""
    covered: dict[bytes, int] = {}
    for part in parts:
        for pack_id, size in part.covered.items():
            covered[pack_id] = max(size, covered.get(pack_id, 0))
    return covered
