"""A root whose content keeps changing, and a store of its own."""

from __future__ import annotations

from pathlib import Path
from random import Random

import treesnap
from treesnap import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import RecordingFileSystem, UnsyncedFileSystem


class World:
    """A root whose content can be changed, and a store."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.store = directory / "store"
        self.root.mkdir()
        self.fs = UnsyncedFileSystem()
        self.now_ns = 1_700_000_000 * 10**9
        self.handle = treesnap.Handle(
            context_at(
                root=self.root, store_path=str(self.store), clock_ns=lambda: self.now_ns, fs=self.fs
            )
        )
        self._random = Random(1)

    def recorded(self) -> RecordingFileSystem:
        """Makes the handle record its calls from now on, each of which then takes longer."""
        fs = RecordingFileSystem(self.fs)
        self.handle.context = self.handle.context._replace(fs=fs)
        return fs

    def change(self, size_bytes: int, name: str = "file") -> None:
        """Writes content that was never there and cannot be compressed."""
        (self.root / name).write_bytes(self._random.randbytes(size_bytes))

    def create(self, kind: SnapshotKind = SnapshotKind.RUN, **options) -> str:
        return self.handle.create(kind=kind, **options).id

    def ids(self) -> list[str]:
        return [item.id for item in self.handle.list()]

    def disk_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.store.rglob("*") if path.is_file())

    def files(self) -> int:
        return sum(1 for path in self.store.rglob("*") if path.is_file())
