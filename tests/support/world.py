"""A real root with its store, to be damaged one file at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from forge import MTIME_NS
from state import TreeState, tree_state
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnsyncedFileSystem


class World:
    """A root with two snapshots of different content, and their store."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.store = base / "store"
        self.root.mkdir()
        self.states: dict[str, TreeState] = {}
        for name in ("first", "second"):
            (self.root / "common").write_bytes(b"common")
            (self.root / name).write_bytes(name.encode() * 100)
            (self.root / "text").write_bytes(f"text of {name}".encode() * 50)
            os.utime(self.root / "text", ns=(MTIME_NS, MTIME_NS))
            self.handle().create(name=name)
            self.states[name] = tree_state(self.root)
        self.handle().restore("first")

    def handle(self, **options: Any) -> Handle:
        """Returns a handle, as a new process has it."""
        return Handle(
            context_at(
                root=self.root,
                store_path=str(self.store),
                **({"fs": UnsyncedFileSystem()} | options),
            )
        )

    def only(self, pattern: str) -> Path:
        """Returns the one file that fits a pattern."""
        (path,) = self.store.glob(pattern)
        return path

    def restores(self, name: str) -> bool:
        """Restores a snapshot and returns whether the tree is what it was then."""
        self.handle().restore(name)
        return tree_state(self.root) == self.states[name]


def damage(path: Path, how: str) -> None:
    """Damages a file."""
    data = bytearray(path.read_bytes())
    if how == "empty":
        data = bytearray()
    elif how == "cut":
        del data[len(data) // 2 :]
    elif how == "longer":
        data += b"more"
    elif how == "zeros":
        data = bytearray(len(data))
    elif how == "version":
        data[9] = 77
    else:
        data[int(how) % len(data)] ^= 0x10
    path.write_bytes(data)


HOWS = ["empty", "cut", "longer", "zeros", "version", "0", "8", "10", "20", "30", "-1", "-33"]

FORMATS = {
    "empty": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "nested": b"[" * 60_000,
    "no version": b'{"format": 1}',
    "text": b'{"format": "1", "min_reader": 1, "min_writer": 1}',
    "bool": b'{"format": true, "min_reader": true, "min_writer": true}',
    "huge": b'{"format": ' + b"9" * 60_000 + b', "min_reader": 1, "min_writer": 1}',
    "not UTF-8": b"\xff\xfe",
}
"""Contents of a file ``format`` that say nothing."""
