"""Stores made by hand: whatever a hostile hand could write, with the right identities.

A forgery is honest about bytes (hashes, checksums, lengths) and lies only where the
test says so. It is made of the codec alone; no capture takes part.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from blocks import block_of
from treesnap.core.codec.envelope import FileKind, header, seal
from treesnap.core.codec.index import encode_index
from treesnap.core.codec.message import pack
from treesnap.core.codec.pack import Block, IndexEntry
from treesnap.core.codec.snapshot import encode_snapshot, snapshot_id
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import Entry, EntryKind, ObjectId, ObjectKind, Totals
from treesnap.core.model.ids import object_id, root_id
from treesnap.core.model.snapshots import SnapshotRecord
from treesnap.core.ops.context import context_at
from treesnap.core.store.store import Store

MTIME_NS = 1_600_000_000_000_000_000


class Forge:
    """Writes objects, snapshots and files into a store of its own."""

    def __init__(self, store: Path, root: Path) -> None:
        Store.open(LocalFileSystem(), str(store), create=True)
        self.store = store
        self.root = root
        self.root_id = root_id(os.fsencode(os.path.realpath(root)))
        self._objects: list[tuple[int, bytes, ObjectId]] = []
        self._sequence = 0
        payload = pack({"version": 1, "path": os.fsencode(root)})
        self.write_root_file("root", seal(FileKind.ROOT, payload))

    def handle(self) -> Handle:
        """Returns a handle on the root."""
        return Handle(context_at(root=self.root, store_path=str(self.store)))

    def put(self, kind: ObjectKind, data: bytes, identity: ObjectId | None = None) -> ObjectId:
        """Adds an object, under its own id or under another one."""
        found = identity or object_id(kind, data)
        self._objects.append((kind, data, found))
        return found

    def tree(self, *entries: Any, totals: Any = None, level: int = 0) -> ObjectId:
        """Adds a directory with the given rows, in the given order, whatever they are."""
        return self.put(ObjectKind.TREE, pack((1, totals or Totals(), level, entries)))

    def file(self, name: bytes, content: bytes = b"forged\n") -> Entry:
        """Returns the entry of a file whose content is added."""
        chunk = self.put(ObjectKind.CHUNK, content)
        fields = (0o644, os.getuid(), os.getgid(), MTIME_NS, len(content))
        return Entry(name, EntryKind.FILE, *fields, (0, chunk, len(content)), None)

    def directory(self, name: bytes, tree_id: ObjectId) -> Entry:
        """Returns the entry of a directory."""
        return Entry(
            name, EntryKind.DIRECTORY, 0o755, os.getuid(), os.getgid(), MTIME_NS, 0, tree_id, None
        )

    def symlink(self, name: bytes, target: bytes) -> Entry:
        """Returns the entry of a symbolic link."""
        return Entry(
            name, EntryKind.SYMLINK, 0o777, os.getuid(), os.getgid(), MTIME_NS, 0, target, None
        )

    def snapshot(self, tree_id: ObjectId, **fields: Any) -> str:
        """Publishes a snapshot of a root tree and everything added so far; returns its id."""
        self.write_pack()
        record = SnapshotRecord(
            root=self.directory(b"", tree_id),
            links=fields.pop("links", None),
            root_path=os.fsencode(self.root),
            created_at_ns=1,
            totals=Totals(),
            **fields,
        )
        return self.publish(encode_snapshot(record))

    def publish(self, payload: bytes, sequence: int | None = None) -> str:
        """Writes a snapshot's file."""
        self._sequence += 1
        number = self._sequence if sequence is None else sequence
        directory = self.store / "snapshots" / self.root_id
        directory.mkdir(exist_ok=True)
        identity = snapshot_id(payload)
        (directory / f"{number:016x}-{identity}").write_bytes(seal(FileKind.SNAPSHOT, payload))
        return identity

    def write_pack(self, *, with_index: bool = True) -> Path:
        """Writes everything added since the last time into a pack, a block for each object."""
        pack_id = os.urandom(16)
        data = header(FileKind.PACK)
        entries = []
        for kind, content, identity in self._objects:
            block = block_of([(kind, identity, content)])
            place = Block(pack_id, len(data), len(block), 1 + len(content))
            entries.append(IndexEntry(identity, place, 0, len(content), int(kind)))
            data += block
        self._objects = []
        path = self.store / "packs" / pack_id.hex()
        path.write_bytes(data)
        if with_index:
            self.write_index(entries, {pack_id: len(data)})
        return path

    def write_index(self, entries: list[IndexEntry], covered: dict[bytes, int]) -> Path:
        """Writes an index part that says whatever it is told."""
        path = self.store / "index" / os.urandom(16).hex()
        path.write_bytes(encode_index(sorted(entries), covered))
        return path

    def write_root_file(self, name: str, data: bytes) -> Path:
        """Writes one of the files that belong to the root."""
        directory = self.store / "roots" / self.root_id
        directory.mkdir(exist_ok=True)
        (directory / name).write_bytes(data)
        return directory / name
