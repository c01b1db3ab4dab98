"""Restores on the volumes that a Mac may have, over a double of its C library.

The store lies on the volume too.
"""

from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path

import pytest

from libsystem import VOLUMES, MacFileSystem
from sampling import sized
from state import differences, tree_state
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.testing.children import in_child
from treesnap.testing.doubles import MUTATING, Fault, Kind

pytestmark = pytest.mark.needs("linux")

ACCENTED = "cafe\u0301"
"""In the form that HFS+ stores."""
TIME_NS = 1_600_000_000 * 10**9


class MacPlace:
    """A root on a volume, with a snapshot ``before``, and changed since in every way."""

    def __init__(self, base: Path, volume: str) -> None:
        self.base = base
        self.volume = VOLUMES[volume]
        self.root = base / "root"
        (self.root / "Wide").mkdir(parents=True)
        for name in ("Gate", "Wide/Inner", "other", ACCENTED):
            (self.root / name).write_text(name)
        (self.root / "link").symlink_to("other")
        os.mkfifo(self.root / "pipe")
        self._settle()
        self.handle().create(name="before")
        self.before = tree_state(self.root)
        (self.root / "Gate").rename(self.root / "gate")
        (self.root / "Wide/Inner").unlink()
        (self.root / "Wide/Inner").mkdir()
        (self.root / "Wide/Inner/below").write_text("new")
        (self.root / "other").write_text("changed")
        (self.root / ACCENTED).unlink()
        (self.root / "link").unlink()
        (self.root / "link").write_text("a file now")
        self._settle()
        self.after = tree_state(self.root)

    def _settle(self) -> None:
        """Gives all files times that each volume keeps."""
        for directory, _, files in os.walk(self.root, topdown=False):
            for path in (*(os.path.join(directory, name) for name in files), directory):
                os.utime(path, ns=(TIME_NS, TIME_NS), follow_symlinks=False)

    def handle(self, *faults: Fault) -> Handle:
        fs = MacFileSystem(self.base, self.volume, *faults)
        store = str(self.base / "store")
        return Handle(context_at(root=self.root, store_path=store, fs=fs, wait_s=0))

    def is_before(self) -> bool:
        """Whether the tree is as it was in the snapshot; False as it was found."""
        found = tree_state(self.root)
        is_before = differences(found, self.before) == []
        assert is_before or differences(found, self.after) == []
        return is_before


@pytest.fixture(params=VOLUMES)
def place(tmp_path: Path, request: pytest.FixtureRequest) -> MacPlace:
    return MacPlace(tmp_path, request.param)


def test_a_tree_goes_back_and_forth(place):
    place.handle().restore("before")

    assert place.is_before()
    place.handle().undo()
    assert not place.is_before()
    place.handle().redo()
    assert place.is_before()
    assert place.handle().verify(read_data=True).ok


@pytest.mark.sampled(5)
def test_a_kill_anywhere_leaves_one_of_both_states(place):
    outcomes = []
    for number in count(1, sized(41, 1)):
        fault = Fault(kinds=MUTATING, number=number)
        ended = in_child(lambda fault=fault: place.handle(fault).restore("before", force=True))
        assert ended.error is None
        place.handle().recover()
        outcomes.append(place.is_before())
        if not ended.was_killed:
            break
        if outcomes[-1]:
            place.handle().undo()
            assert not place.is_before()

    assert set(outcomes) == {False, True}
    assert place.handle().verify(read_data=True).ok


@pytest.mark.sampled(5)
def test_an_error_anywhere_leaves_one_of_both_states(place):
    outcomes = []
    for number in count(1, sized(41, 1)):
        fault = Fault(kinds=MUTATING | {Kind.SYNC}, number=number, errno=errno.EIO)
        handle = place.handle(fault)
        try:
            handle.restore("before", force=True)
        except TreesnapError:
            place.handle().recover()
        outcomes.append(place.is_before())
        if not handle.context.fs._inner.hits_of(fault):
            break
        if outcomes[-1]:
            place.handle().undo()
            assert not place.is_before()

    assert set(outcomes) == {False, True}
