"""What is changed in a tree between two captures, and undone afterwards."""

from __future__ import annotations

import hashlib
import os
import random
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

SEED = 6


class Edit(Protocol):
    """A change that can be made again and again, and undone."""

    name: str
    """What a table calls it."""

    def apply(self, number: int) -> None:
        """Makes the change; another number gives other content."""

    def take_back(self) -> None:
        """Makes the content what it was at first."""

    def is_undone(self) -> bool:
        """Returns whether the content is what it was at first."""


class ChangedFiles:
    """A line more in each of some files, which lie anywhere in the tree."""

    def __init__(self, root: Path, count: int, seed: int = SEED) -> None:
        chosen = sample(regular_files(root), count, random.Random(seed))
        self._files = [(path, os.stat(path).st_size, _digest(path)) for path in chosen]
        self.name = "1 file changed" if count == 1 else f"{count:,} files changed"

    def apply(self, number: int) -> None:
        """Makes the change; another number gives other content."""
        for position in range(len(self._files)):
            self._change(position, number)

    def apply_one(self, number: int) -> None:
        """Changes only one of the files, another one for the next number."""
        self._change(number % len(self._files), number)

    def _change(self, position: int, number: int) -> None:
        path, size_bytes, _ = self._files[position]
        with open(path, "r+b") as file:
            file.truncate(size_bytes)
            file.seek(size_bytes)
            file.write(b"\n/* change %d */\n" % number)

    def take_back(self) -> None:
        """Makes the content what it was at first."""
        for path, size_bytes, _ in self._files:
            if os.stat(path).st_size != size_bytes:
                os.truncate(path, size_bytes)

    def is_undone(self) -> bool:
        """Returns whether the content is what it was at first."""
        return all(_digest(path) == digest for path, _, digest in self._files)


class ChangedRow:
    """One row of 4 KiB in the middle of a database that SQLite updates."""

    name = "4 KiB edit"

    def __init__(self, root: Path) -> None:
        self._path = root / "rows.sqlite"
        with closing(sqlite3.connect(self._path)) as database:
            (count,) = database.execute("SELECT max(id) FROM rows").fetchone()
        self._row = count // 2
        self._original = self._read()

    def _read(self) -> bytes:
        with closing(sqlite3.connect(self._path)) as database:
            query = "SELECT data FROM rows WHERE id = ?"
            (data,) = database.execute(query, (self._row,)).fetchone()
        assert isinstance(data, bytes)
        return data

    def _write(self, data: bytes) -> None:
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute("UPDATE rows SET data = ? WHERE id = ?", (data, self._row))

    def apply(self, number: int) -> None:
        """Makes the change; another number gives other content."""
        self._write(row_content(random.Random(-number - 1)))

    def take_back(self) -> None:
        """Makes the content what it was at first."""
        if not self.is_undone():
            self._write(self._original)

    def is_undone(self) -> bool:
        """Returns whether the content is what it was at first."""
        return self._read() == self._original


def row_content(source: random.Random) -> bytes:
    """Returns what fills one page of a database and compresses by half."""
    return source.randbytes(1_990).hex().encode()


def regular_files(root: Path) -> Iterator[str]:
    """Yields all regular files below a directory that are not empty, always in one order."""
    pending = [os.fspath(root)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file(follow_symlinks=False) and entry.stat().st_size:
                    yield entry.path


def sample(paths: Iterable[str], count: int, source: random.Random) -> list[str]:
    """Returns so many paths, each with the same chance, without keeping all of them."""
    chosen: list[str] = []
    for number, path in enumerate(paths):
        if number < count:
            chosen.append(path)
        elif (position := source.randrange(number + 1)) < count:
            chosen[position] = path
    return chosen


def _digest(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()
