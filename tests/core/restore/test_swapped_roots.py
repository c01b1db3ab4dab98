"""A link swapped in for a root, or for a directory above it, leads into no other directory.

The owner of the directory above a root can do that at any moment. Just before the N-th call that
is about the root, the root or the directory above it becomes a link to a place where a directory of
another user lies under the same name; for every N. Nothing there may change, and nothing of it be
captured or taken for the root's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sampling import sized
from state import tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import Call, WrappedFileSystem

CALLS_MAX = 2000


class Swapping(WrappedFileSystem):
    """Calls a function just before the N-th call about a path or something below it."""

    def __init__(self, at: Path, number: int, swap: Callable[[], None]) -> None:
        super().__init__()
        self._at, self._left, self._swap = str(at), number, swap

    @property
    def was_reached(self) -> bool:
        """Whether there was an N-th call."""
        return self._left <= 0

    def around(self, call: Call) -> Any:
        if call.method != "close" and any(path.startswith(self._at) for path in call.paths):
            self._left -= 1
            if self._left == 0:
                self._swap()
        return super().around(call)


class Place:
    """A root below a directory that another user owns, and a directory like it elsewhere."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.above = base / "above"
        self.root = self.above / "root"
        self.elsewhere = base / "elsewhere"
        self.victim = self.elsewhere / "root"
        (self.root / "d").mkdir(parents=True)
        for name in ("changed", "removed", "untouched"):
            (self.root / "d" / name).write_bytes(name.encode())
        self.handle().create(name="wanted")
        (self.root / "d" / "changed").write_bytes(b"changed since")
        (self.root / "d" / "removed").unlink()
        (self.root / "d" / "added").write_bytes(b"added since")
        (self.victim / "d").mkdir(parents=True)
        for name in ("changed", "added", "untouched", "file"):
            (self.victim / "d" / name).write_bytes(b"precious")
        self.before = tree_state(self.elsewhere)

    def handle(self, fs: WrappedFileSystem | None = None) -> Handle:
        """Returns a handle on the root."""
        return Handle(context_at(root=self.root, store_path=str(self.base / "store"), fs=fs))

    def swap(self, what: str) -> None:
        """Replaces the root, or the directory above it, by a link."""
        path, target = {
            "root": (self.root, self.victim),
            "above": (self.above, self.elsewhere),
        }[what]
        if not path.is_symlink():
            if path.exists():
                path.rename(self.base / "aside")
            path.symlink_to(target)

    def swap_back(self, what: str) -> None:
        """Undoes it, unless the operation has put something there."""
        path, aside = {"root": self.root, "above": self.above}[what], self.base / "aside"
        if path.is_symlink():
            path.unlink()
        if aside.exists() and not path.exists():
            aside.rename(path)


def captured(place: Place) -> list[bytes]:
    """Returns the contents of all files of all snapshots."""
    handle = place.handle()
    return [
        b"".join(handle.cat(snapshot.id, entry.name))
        for snapshot in handle.list()
        for entry in handle.ls(snapshot.id, recursive=True)
        if entry.kind == 1
    ]


def restored_from_nothing(place: Place, fs: WrappedFileSystem) -> None:
    """Restores a root that was removed."""
    shutil.rmtree(place.root)
    place.handle(fs).restore("wanted")


def undone(place: Place, fs: WrappedFileSystem) -> None:
    """Undoes a restore."""
    place.handle().restore("wanted")
    place.handle(fs).undo()


def rolled_back(place: Place, fs: WrappedFileSystem) -> None:
    """Rolls back a block that fails."""
    with suppress(KeyError), place.handle(fs).rollback_on_error("a step"):
        if not (place.above.is_symlink() or place.root.is_symlink()):
            (place.root / "d" / "changed").write_bytes(b"by the step")
        raise KeyError


OPERATIONS: dict[str, Callable[[Place, WrappedFileSystem], object]] = {
    "create": lambda place, fs: place.handle(fs).create(),
    "restore": lambda place, fs: place.handle(fs).restore("wanted"),
    "restore-path": lambda place, fs: place.handle(fs).restore("wanted", [place.root / "d"]),
    "status": lambda place, fs: place.handle(fs).status(),
    "export": lambda place, fs: place.handle(fs).restore("wanted", to=place.above / "root" / "to"),
    "fork": lambda place, fs: place.handle(fs).fork("wanted", [place.base / "fork"]),
    "from-nothing": restored_from_nothing,
    "undo": undone,
    "roll-back": rolled_back,
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("what", ["root", "above"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_else_is_read_or_written(tmp_path, operation, what):
    number, reached = 0, True
    while reached:
        number += sized(7, 1)
        assert number < CALLS_MAX
        place = Place(tmp_path / "place")
        fs = Swapping(place.above, number, partial(place.swap, what))
        with suppress(TreesnapError):
            OPERATIONS[operation](place, fs)
        assert tree_state(place.elsewhere) == place.before, number
        place.swap_back(what)
        with suppress(TreesnapError):
            place.handle().recover()
        assert tree_state(place.elsewhere) == place.before, number
        assert b"precious" not in captured(place), number
        reached = fs.was_reached
        shutil.rmtree(place.base)

    assert number > 5
