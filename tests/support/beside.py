"""A store with something for every command to do, and what was promised of it.

A scene is built anew for each run: a copy of a store has other inodes, so that slots forget the
packs that they would resume.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from garbage import pack_files, use_new_pack
from treesnap.core.handle import Handle
from treesnap.core.model.errors import Busy, Corrupt, NotFound, Refused, TreesnapError
from treesnap.core.model.snapshots import SnapshotKind
from treesnap.core.ops.context import context_at
from treesnap.core.store.maintenance.retention import Policy
from treesnap.plans import Milestones, Planner, Step
from treesnap.testing.doubles import (
    Call,
    Fault,
    FaultyFileSystem,
    UnsyncedFileSystem,
    WrappedFileSystem,
)

DECLINED = (Busy, NotFound, Refused)
"""What a command may answer beside another: then it has promised nothing."""
NOTHING = Milestones(enabled=False)


class AtCall(WrappedFileSystem):
    """Does something once, before the n-th call."""

    def __init__(self, inner: WrappedFileSystem, number: int, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self.left, self.action = number, action

    def around(self, call: Call) -> Any:
        """Makes the call."""
        self.left -= 1
        if self.left == 0:
            self.action()
        return call.proceed()


class Scene:
    """Four roots with one store: what of it was acknowledged is in the ledgers."""

    def __init__(self, base: Path) -> None:
        self.base, self.store = base, base / "store"
        self.kept: dict[tuple[str, str], set[bytes]] = {}
        """What the file of each snapshot may hold, by root and id."""
        self.met: dict[str, set[bytes]] = {}
        """What the other command left in the file of a root: the first may have captured it."""
        self.settings: dict[str, str] = {}
        self.pinned: set[tuple[str, str]] = set()
        self.held: dict[tuple[str, str], set[bytes]] = {}
        self.damage: set[str] = set()
        """What is lost already: nothing is promised of these snapshots."""
        self.is_damaged = False
        self._holds = ExitStack()
        self._names = 0
        self._build()

    def handle(self, root: str, fs: WrappedFileSystem | None = None) -> Handle:
        """Returns a handle that never waits."""
        (self.base / root).mkdir(exist_ok=True)
        fs = fs or UnsyncedFileSystem()
        return Handle(context_at(self.base / root, str(self.store), fs=fs, wait_s=0.0))

    def write(self, root: str, content: bytes) -> None:
        """Writes the one file of a root."""
        (self.base / root).mkdir(exist_ok=True)
        (self.base / root / "file").write_bytes(content)

    def capture(
        self, root: str, content: bytes, fs: WrappedFileSystem | None = None, **options: Any
    ) -> str:
        """Takes a snapshot that has to stay from then on."""
        self._names += 1
        self.write(root, content)
        name = options.pop("name", f"name-{self._names}")
        made = self.handle(root, fs).create(name=name, **options).id
        self.kept[root, made] = {content} | self.met.get(root, set())
        # A repair finds content in live trees; what a snapshot holds must not depend on that.
        self.write(root, b"something else")
        return made

    def _build(self) -> None:
        for number in range(3):
            self.write("third", b"third %d " % number * 200)
            self.handle("third").create(kind=SnapshotKind.AUTOMATIC)
        use_new_pack(self.store)
        self.spare = self.capture("first", b"deleted " * 300)
        del self.kept["first", self.spare]
        self.donor = self.capture("first", b"donor " * 500)
        del self.kept["first", self.donor]
        self.handle("first").delete(self.donor)
        use_new_pack(self.store)
        self.lost = self.capture("second", b"lost " * 100)
        self.old = self.capture("first", b"first " * 200)
        self.second = self.capture("second", b"second " * 200)
        self.set_value("keep.last", "41")
        self.handle("second").restore(self.second)

    def damage_pack(self) -> None:
        """Changes a byte of the pack that the next writer resumes."""
        packs = [self.store / "packs" / name for name in pack_files(self.store)]
        newest = max(packs, key=lambda path: path.stat().st_mtime_ns)
        data = bytearray(newest.read_bytes())
        data[data.index(b"TSBK") + 40] ^= 1
        newest.write_bytes(data)
        self.damage.add(self.lost)

    def damage_snapshot(self) -> None:
        """Changes a byte of a snapshot's file."""
        (path,) = self.store.glob(f"snapshots/*/*{self.lost}*")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        self.damage.add(self.lost)

    def damage_history(self) -> None:
        """Changes a byte of each history of a root."""
        for path in self.store.glob("roots/*/history"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

    def set_value(self, key: str, value: str, fs: WrappedFileSystem | None = None) -> None:
        """Sets what holds from then on."""
        self.handle("first", fs).config(key, value)
        self.settings[key] = value

    def pin(self, fs: WrappedFileSystem | None = None) -> None:
        """Pins a snapshot."""
        self.handle("first", fs).pin(self.old)
        self.pinned.add(("first", self.old))

    def hold(self, fs: WrappedFileSystem | None = None) -> None:
        """Holds a checkpoint until the scene is over."""
        self.write("second", b"held " * 100)
        handle = self.handle("second", fs)
        made = self._holds.enter_context(handle.rollback_on_error())
        self.held["second", made.id] = {b"held " * 100} | self.met.get("second", set())

    def plan(self, fs: WrappedFileSystem | None = None) -> None:
        """Runs a plan of one step."""
        planner = Planner(self.handle("planned", fs))
        planner.run("plan", [Step(name="one", run="echo one > file")], NOTHING)

    def meet(self) -> None:
        """Notes what is in all roots while a command goes on."""
        for path in self.base.glob("*/file"):
            self.met.setdefault(path.parent.name, set()).add(path.read_bytes())

    def copy(self, fs: WrappedFileSystem | None) -> None:
        """Copies the store to a place of its own."""
        self._names += 1
        self.handle("first", fs).store_copy(self.base / f"copy-{self._names}")

    def move(self, fs: WrappedFileSystem | None) -> None:
        """Moves the store to a place of its own."""
        self._names += 1
        self.handle("first", fs).store_move(self.base / f"elsewhere-{self._names}")

    def problems(self) -> Iterator[str]:
        """Yields what was promised and does not hold; ends what is held."""
        target = self.base / "back"
        for number, ((root, made), contents) in enumerate([*self.kept.items(), *self.held.items()]):
            if made in self.damage:
                continue
            try:
                self.handle(root).restore(made, to=target / str(number))
            except TreesnapError as error:
                yield f"{root} {made[:8]} is lost: {error}"
                continue
            if (target / str(number) / "file").read_bytes() not in contents:
                yield f"{root} {made[:8]} holds something else"
        for key, value in self.settings.items():
            found = self.handle("first").config(key).settings[0].value
            if found != value:
                yield f"{key} is {found}, not {value}"
        for root, made in self.pinned:
            if not self.handle(root).resolve(made).pinned:
                yield f"{root} {made[:8]} is not pinned"
        try:
            self._holds.close()
            self.capture("after", b"after " * 100)
        except TreesnapError as error:
            yield f"the store is of no use afterwards: {error}"
        if not self.damage:
            for problem in self.handle("first").verify(read_data=True).problems:
                yield f"verify: {problem}"


Act = Callable[[Scene, WrappedFileSystem | None], object]


def far(fs: WrappedFileSystem | None) -> WrappedFileSystem:
    """Returns a file system on which an exchange is one between two file systems, once."""
    fault = Fault(errno=errno.EXDEV, methods=frozenset({"exchange"}))
    return FaultyFileSystem(fault, inner=fs or UnsyncedFileSystem())


def _deleted_content(scene: Scene, fs: WrappedFileSystem | None) -> None:
    scene.capture("fourth", b"donor " * 500, fs)


def _forget(scene: Scene, fs: WrappedFileSystem | None) -> None:
    scene.handle("first", fs).root_forget(scene.base / "third", force=True)


def _move_root(scene: Scene, fs: WrappedFileSystem | None) -> None:
    (scene.base / "third-moved").mkdir(exist_ok=True)
    scene.handle("first", fs).root_move(scene.base / "third", scene.base / "third-moved")


def _move_far(scene: Scene, fs: WrappedFileSystem | None) -> None:
    """Moves by a copy; a store with damage is declined and stays where it is."""
    try:
        scene.move(far(fs))
    except Corrupt as error:
        if not scene.is_damaged or "was not moved" not in error.message:
            raise
        raise Refused(error.message) from error


def _repair(scene: Scene, fs: WrappedFileSystem | None) -> None:
    scene.handle("first", fs).verify(read_data=True, repair=True)


ACTS: dict[str, Act] = {
    "gc": lambda scene, fs: scene.handle("first", fs).gc(),
    "repair": _repair,
    "move": lambda scene, fs: scene.move(fs),
    "move far": _move_far,
    "copy": lambda scene, fs: scene.copy(fs),
    "prune": lambda scene, fs: scene.handle("third", fs).prune(Policy(keep_last=1)),
    "quota": lambda scene, fs: scene.handle("third", fs).prune(max_size_bytes=10),
    "delete": lambda scene, fs: scene.handle("first", fs).delete(scene.spare),
    "forget": _forget,
    "root move": _move_root,
    "config": lambda scene, fs: scene.set_value("keep.daily", "17", fs),
    "new root": lambda scene, fs: scene.capture("fresh", os.urandom(2000), fs),
    "known root": lambda scene, fs: scene.capture("second", os.urandom(2000), fs),
    "deleted content": _deleted_content,
    "restore": lambda scene, fs: scene.handle("first", fs).restore(scene.old),
    "undo": lambda scene, fs: scene.handle("second", fs).undo(),
    "pin": lambda scene, fs: scene.pin(fs),
    "other config": lambda scene, fs: scene.set_value("keep.weekly", "23", fs),
    "hold": lambda scene, fs: scene.hold(fs),
    "plan": lambda scene, fs: scene.plan(fs),
    "doctor": lambda scene, fs: scene.handle("first", fs).doctor(forget=True),
}
DAMAGES: dict[str, Callable[[Scene], None]] = {
    "pack": Scene.damage_pack,
    "snapshot": Scene.damage_snapshot,
    "history": Scene.damage_history,
}


class Outcome(NamedTuple):
    """What came of two commands."""

    problems: list[str]
    both: bool
    """Whether both did what they were asked to do."""


def lost(base: Path, command: str, other: str, damage: str | None, number: int) -> Outcome | None:
    """Runs a command, and another whole at its n-th call; returns what does not hold then.

    None says that the command makes fewer calls.
    """
    base.mkdir()
    scene = Scene(base)
    if damage is not None:
        DAMAGES[damage](scene)
        scene.is_damaged = True
    done = []

    def act(name: str, fs: WrappedFileSystem | None) -> None:
        with suppress(*DECLINED):
            ACTS[name](scene, fs)
            done.append(name)

    def beside() -> None:
        act(other, None)
        scene.meet()

    fs = AtCall(UnsyncedFileSystem(), number, beside)
    act(command, fs)
    found = list(scene.problems())
    return Outcome(found, len(done) == 2) if fs.left <= 0 else None
