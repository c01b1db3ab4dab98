"""A link swapped in under our feet leads no restore out of the root.

Just before the N-th call that is about the tree, another process replaces a directory by a
symbolic link to a place outside; for every N, until the operation makes no more
calls. Whatever it then says, nothing outside has changed, and once the directory
is back the tree is the old one or the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sampling import sized
from state import tree_state
from treesnap.core.codec.journal import STAGE_PREFIX
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.events import CollectingMonitor
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import Call, Kind, WrappedFileSystem

CALLS_MAX = 2000


class Swapping(WrappedFileSystem):
    """Calls a function just before the N-th call that names something below a path."""

    def __init__(self, below: Path, number: int, swap: Callable[[], None]) -> None:
        super().__init__()
        self._below = str(below)
        self._left = number
        self._swap = swap

    @property
    def was_reached(self) -> bool:
        """Whether there was an N-th call."""
        return self._left <= 0

    def around(self, call: Call) -> Any:
        counts = call.kind in {Kind.NAME, Kind.ATTRIBUTE, Kind.WRITE} or call.method in {
            "open",
            "scan",
        }
        if counts and any(path.startswith(self._below) for path in call.paths):
            self._left -= 1
            if self._left == 0:
                self._swap()
        return super().around(call)


class Place:
    """A root with a snapshot, in another state since, and a directory outside."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.monitor = CollectingMonitor()
        self.root = base / "root"
        self.outside = base / "outside"
        self.aside = base / "aside"
        (self.root / "d" / "inner").mkdir(parents=True)
        for name in ("changed", "removed", "inner/deep", "untouched"):
            (self.root / "d" / name).write_bytes(name.encode())
        (self.root / "e").mkdir()
        self.handle().create(name="wanted")
        self.wanted = contents(self.root)
        (self.root / "d" / "changed").write_bytes(b"changed since")
        (self.root / "d" / "removed").unlink()
        (self.root / "d" / "added").mkdir()
        (self.root / "d" / "added" / "file").write_bytes(b"added since")
        (self.root / "d" / "untouched").chmod(0o600)
        (self.root / "e").rmdir()
        self.present = contents(self.root)
        self.outside.mkdir()
        for name in ("changed", "removed", "untouched", "added", "file", "deep", "n0", "o0"):
            (self.outside / name).write_bytes(b"precious")
        (self.outside / "inner").mkdir()

    def handle(self, fs: WrappedFileSystem | None = None) -> Handle:
        """Returns a handle on the root."""
        return Handle(
            context_at(
                root=self.root, store_path=str(self.base / "store"), fs=fs, monitor=self.monitor
            )
        )

    def says_what_it_left(self) -> bool:
        """Returns whether a path was left as it was found, and that was said.

        Either it could not be read, and then the safety snapshot is incomplete, or it
        could not be undone, and then there is a remark and the safety snapshot
        has what was there.
        """
        newest = self.handle().list()[0]
        if newest.kind == SnapshotKind.SAFETY and not newest.complete:
            return True
        if not any("was left alone" in warning for warning in self.monitor.warnings):
            return False
        kept = b"".join(self.handle().cat(newest.id, "d/changed"))
        return newest.kind == SnapshotKind.SAFETY and kept == b"changed since"

    def swap(self, name: str) -> None:
        """Replaces a directory of the root by a link to the place outside."""
        if name == "stage":
            names = [found for found in os.listdir(self.root) if is_stage(found)]
            if not names:
                return
            name = names[0]
        if (self.root / name).is_dir() and not (self.root / name).is_symlink():
            (self.root / name).rename(self.aside)
            (self.root / name).symlink_to(self.outside)

    def swap_back(self) -> None:
        """Undoes the swap, as far as the link is still there."""
        if not self.aside.exists():
            return
        links = [path for path in self.root.rglob("*") if path.is_symlink()]
        for link in links:
            link.unlink()
            self.aside.rename(link)


def is_stage(name: str) -> bool:
    """Returns whether a name is that of a staging directory."""
    return name.encode().startswith(STAGE_PREFIX)


def contents(root: Path) -> dict[str, bytes | None]:
    """Returns the names and bytes of a tree, without what a swap changes by itself: times."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["d", "d/inner", "d/added", "stage"])
def test_a_restore_writes_nothing_through_a_swapped_link(tmp_path, name):
    number = 0
    reached = True
    outcomes = set()
    while reached:
        number += sized(5, 1)
        assert number < CALLS_MAX
        place = Place(tmp_path / "place")
        before = tree_state(place.outside)
        fs = Swapping(place.root, number, lambda place=place: place.swap(name))
        outcomes.add(outcome_of(lambda fs=fs, place=place: place.handle(fs).restore("wanted")))
        assert tree_state(place.outside) == before, number
        place.swap_back()
        outcomes.add(outcome_of(place.handle().recover))
        assert tree_state(place.outside) == before, number
        if name != "stage" and not place.says_what_it_left():
            assert contents(place.root) in (place.present, place.wanted), number
        reached = fs.was_reached
        shutil.rmtree(place.base)

    assert "done" in outcomes
    assert outcomes <= {"done", "Conflict", "OperationFailed"}


def outcome_of(action: Callable[[], Any]) -> str:
    """Returns how an operation ended."""
    try:
        action()
    except TreesnapError as error:
        return type(error).__name__
    return "done"


@pytest.mark.parametrize("name", ["d", "d/inner"])
def test_a_capture_reads_nothing_through_a_swapped_link(tmp_path, name):
    number = 0
    reached = True
    while reached:
        number += 1
        assert number < CALLS_MAX
        place = Place(tmp_path / "place")
        fs = Swapping(place.root, number, lambda place=place: place.swap(name))
        try:
            place.handle(fs).create(name="captured")
        except TreesnapError:
            pass
        else:
            entries = place.handle().ls("captured", recursive=True)
            files = [entry for entry in entries if entry.kind == 1]
            read = {b"".join(place.handle().cat("captured", entry.name)) for entry in files}
            assert b"precious" not in read, number
        reached = fs.was_reached
        shutil.rmtree(place.base)

    assert number > 5
