"""A directory that another user makes where the superuser found nothing is not used.

In a directory such as ``/tmp`` every user may make what is absent. Just before the N-th system
call of an operation, for every N, another user's directory, link or store appears in the place of
the new store or root, or of a directory above it; or it is there, goes away, and comes back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import treesnap
from privileges import NOBODY_ID
from sampling import seeded, sized
from state import differences, tree_state
from system_calls import before_calls
from treesnap.core.model.errors import TreesnapError
from treesnap.remote import Remotes

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser makes files of other users"),
    pytest.mark.sampled(12),
]

CALLS_MAX = 5000
SECRET = b"only for the superuser\n" * 500


@pytest.fixture(autouse=True)
def no_safe_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names no directory as safe, as most users do."""
    monkeypatch.delenv("SNAP_SAFE_DIRECTORIES", raising=False)


class Place:
    """A root, a private directory, and a directory in which every user may make something."""

    def __init__(self, base: Path, plant: str) -> None:
        self.base, self._plant = base, plant
        self.private = base / "private"
        self.open = base / "open"
        self.root = base / "root"
        self.target = self.open / ("above/new" if plant == "above" else "new")
        self.hidden = self.open / "of-another"
        self._planted = self.open / self.target.relative_to(self.open).parts[0]
        for name in ("packs", "temporary", "snapshots", "roots"):
            (self.private / name).mkdir(parents=True)
        (self.private / "file").write_text("precious")
        self.root.mkdir()
        (self.root / "file").write_bytes(SECRET)
        self.open.mkdir()
        self.open.chmod(0o1777)
        self._make_hidden()
        self.before = tree_state(self.private), tree_state(self.hidden)

    def _make_hidden(self) -> None:
        if self._plant == "link":
            self.hidden.symlink_to(self.private)
        elif self._plant == "store":
            (self.base / "other").mkdir()
            (self.base / "other" / "forged").write_text("forged")
            treesnap.open(self.base / "other", self.hidden).create(name="forged")
        else:
            self.hidden.mkdir()
            (self.hidden / "packs").symlink_to(self.private / "packs")
            if self._plant == "above":
                (self.hidden / "new").mkdir()
        for path in (self.hidden, *self.hidden.rglob("*")):
            if not (self._plant == "link" and path != self.hidden):
                os.chown(path, NOBODY_ID, NOBODY_ID, follow_symlinks=False)
        if self._plant != "link":
            self.hidden.chmod(0o777)

    def appear(self) -> None:
        """Puts what is the other user's in the place of the target, if that is free."""
        if os.path.lexists(self.hidden) and not os.path.lexists(self._planted):
            self.hidden.rename(self._planted)

    def vanish(self) -> None:
        """Takes it away again."""
        if os.path.lexists(self._planted) and self._planted.lstat().st_uid == NOBODY_ID:
            self._planted.rename(self.hidden)

    def problems(self) -> list[str]:
        """Returns what was changed of the other user's or in the private directory, or given."""
        self.vanish()
        private, hidden = self.before
        found = differences(tree_state(self.private), private)
        found += differences(tree_state(self.hidden), hidden)
        found += [
            f"{path} was given away"
            for path in self.open.rglob("*")
            if path.lstat().st_uid == NOBODY_ID and self.hidden not in (path, *path.parents)
        ]
        return found


def created(place: Place) -> None:
    """Makes a store by a first snapshot."""
    treesnap.open(place.root, place.target).create()


def listed(place: Place) -> None:
    """Looks at a store that is absent."""
    assert list(treesnap.open(place.root, place.target).list()) == []


def restored(place: Place) -> None:
    """Restores a root that is absent, and undoes that."""
    handle = treesnap.open(place.target, place.base / "store")
    handle.restore("wanted")
    handle.undo()


def begin_restored(place: Place) -> None:
    """Makes the history of the root that is absent."""
    place.target.mkdir(parents=True)
    (place.target / "file").write_bytes(SECRET)
    treesnap.open(place.target, place.base / "store").create(name="wanted")
    shutil.rmtree(place.open / place.target.relative_to(place.open).parts[0])


def begin_cloned(place: Place) -> None:
    """Pushes the history of a root."""
    handle = treesnap.open(place.root, place.base / "store")
    handle.create()
    remotes = Remotes(handle)
    remotes.add("disk", str(place.base / "disk"), encrypted=False)
    remotes.push()


def cloned(place: Place) -> None:
    """Makes a root of a remote."""
    Remotes(treesnap.open(place.target, place.base / "new-store")).clone(str(place.base / "disk"))


OPERATIONS: dict[str, tuple[Callable[[Place], None], Callable[[Place], None], str]] = {
    "create": (lambda place: None, created, "store link above directory"),
    "list": (lambda place: None, listed, "store"),
    "restore": (begin_restored, restored, "directory link above"),
    "clone": (begin_cloned, cloned, "directory"),
}
CASES = [(name, plant) for name, (*_, plants) in OPERATIONS.items() for plant in plants.split()]
PAUSES = sized((4,), seeded((0, 1, 2, 3, 5, 8, 13, 21, 34), 3))
"""How many calls later it comes back where it was there at first; 0 where it was not."""


@pytest.mark.parametrize(("operation", "plant"), CASES)
def test_what_another_user_makes_meanwhile_is_not_used(tmp_path, operation, plant):
    begin, run, _ = OPERATIONS[operation]
    for pause in PAUSES:
        number, count = 1, CALLS_MAX
        while number <= count:
            assert number < CALLS_MAX
            place = Place(tmp_path / "place", plant)
            begin(place)
            actions = {number + pause: place.appear}
            if pause:
                place.appear()
                actions[number] = place.vanish
            with before_calls(actions) as calls, suppress(TreesnapError):
                run(place)
            count = calls.count
            assert place.problems() == [], (number, pause)
            shutil.rmtree(place.base)
            number += sized(11 if number < 80 else 61, 1)
