"""The trees that are captured: made once below the work directory, and used again by later runs."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite.edits import ChangedFiles, ChangedRow, Edit, row_content

SOURCE = "source"
MILLION = "files-1000000"
LINUX_ARCHIVE = Path("/usr/src/linux-source-6.1.tar.xz")
NODE_PACKAGES = ("typescript@5.4.5", "webpack@5.91.0", "eslint@8.57.0", "jest@29.7.0")
PYTHON_PACKAGES = ("django==5.1.3", "numpy==2.1.3", "sqlalchemy==2.0.36", "sphinx==8.1.3")
MIB = 1 << 20
FILES_IN_DIRECTORY = 100


class Unavailable(Exception):
    """A tree cannot be made here; the message says why, in one sentence."""


@dataclass(frozen=True)
class Tree:
    """One kind of tree."""

    name: str
    title: str
    make: Callable[[Path], None]
    """Fills a directory that is there and empty; raises Unavailable."""

    needed_bytes: int
    """Disk that the tree and the stores of all tools take, about."""

    edit: Callable[[Path], Edit]


def ten_files(root: Path) -> Edit:
    """Returns the change that most trees get."""
    return ChangedFiles(root, 10)


LINUX_TITLE = "Linux 6.1 source (Debian's package linux-source-6.1)"


def tree_named(name: str, *, source: Path | None = None) -> Tree:
    """Returns a tree by its name, which may hold a number of files or MiB. Raises ValueError."""
    if name.startswith("database"):
        size_mib = int(name.removeprefix("database").removeprefix("-") or 1024)
        return Tree(
            name,
            f"a SQLite file of {size_mib:,} MiB",
            lambda path: make_database(path, size_mib),
            size_mib * 12 * MIB,
            ChangedRow,
        )
    if name.startswith("files-"):
        count = int(name.removeprefix("files-"))
        title = f"{count:,} small files"
        return Tree(name, title, lambda path: make_files(path, count), count * 14_000, ten_files)
    trees = [
        Tree(
            SOURCE,
            "the source tree",
            lambda path: make_source(path, source),
            11_000 * MIB,
            ten_files,
        ),
        Tree("node_modules", "a node_modules", make_node_modules, 2_000 * MIB, ten_files),
        Tree("venv", "a virtual environment of Python", make_venv, 3_000 * MIB, ten_files),
    ]
    for tree in trees:
        if tree.name == name:
            return tree
    raise ValueError(f"no tree is called {name!r}")


def prepare(tree: Tree, place: Path) -> Path:
    """Returns the directory of a tree, which is made if it is not there yet.

    Raises Unavailable, also when the disk has too little room.
    """
    path = place / tree.name
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < tree.needed_bytes:
        needed_gb, free_gb = tree.needed_bytes / 1e9, free_bytes / 1e9
        raise Unavailable(f"needs about {needed_gb:.0f} GB of disk, {free_gb:.0f} GB are free")
    if not path.exists():
        part = place / f"{tree.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        try:
            tree.make(part)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        part.rename(path)
        os.sync()
    return path


def measure(root: Path) -> dict[str, int]:
    """Returns how much is in a tree, hard links counted once: a store's size, too."""
    files = directories = size_bytes = 0
    seen: set[tuple[int, int]] = set()
    pending = [os.fspath(root)]
    while pending:
        directories += 1
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
                files += 1
                key = (status.st_dev, status.st_ino)
                if status.st_nlink == 1 or key not in seen:
                    size_bytes += status.st_size
                if status.st_nlink > 1:
                    seen.add(key)
    return {"files": files, "directories": directories, "size_bytes": size_bytes}


def make_files(path: Path, count: int) -> None:
    """Makes small files, a hundred in each directory, none like another."""
    for begin in range(0, count, FILES_IN_DIRECTORY):
        number = begin // FILES_IN_DIRECTORY
        directory = path / f"{number // 100:04}" / f"{number % 100:02}"
        directory.mkdir(parents=True)
        opened = os.open(directory, os.O_RDONLY)
        for position in range(begin, min(count, begin + FILES_IN_DIRECTORY)):
            name = f"file-{position:07}"
            file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=opened)
            os.write(file, f"content of {name}\n".encode() * (1 + position % 8))
            os.close(file)
        os.close(opened)


def make_source(path: Path, source: Path | None) -> None:
    """Copies a given tree, or unpacks the Linux source of Debian's package."""
    if source is not None:
        subprocess.run(["cp", "-a", f"{source}/.", path], check=True)
    elif LINUX_ARCHIVE.exists():
        command = ["tar", "xf", str(LINUX_ARCHIVE), "-C", str(path), "--strip-components=1"]
        subprocess.run(command, check=True)
    else:
        raise Unavailable("Debian's package linux-source-6.1 is not installed")


def make_node_modules(path: Path) -> None:
    """Lets npm install a few packages of fixed versions."""
    if not shutil.which("npm"):
        raise Unavailable("npm is not installed")
    (path / "package.json").write_text('{"name": "sample", "version": "1.0.0"}\n')
    _install(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *NODE_PACKAGES], path
    )


def make_venv(path: Path) -> None:
    """Makes a virtual environment with a few packages of fixed versions."""
    _install([sys.executable, "-m", "venv", ".venv"], path)
    _install([".venv/bin/python", "-m", "pip", "install", "-q", *PYTHON_PACKAGES], path)


def _install(command: list[str], path: Path) -> None:
    done = subprocess.run(command, cwd=path, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise Unavailable(f"{Path(command[0]).name} could not install what it needs")


def make_database(path: Path, size_mib: int) -> None:
    """Makes a database of one table, in which a row fills a page of 4 KiB."""
    source = random.Random(size_mib)
    rows = ((row_content(source),) for _ in range(size_mib * 256))
    with closing(sqlite3.connect(path / "rows.sqlite")) as database:
        database.execute("PRAGMA page_size = 4096")
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, data BLOB)")
        database.executemany("INSERT INTO rows (data) VALUES (?)", rows)
        database.commit()
