"""A small tree of all kinds of entries, its history, and copies of both to break."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import volumes
from prepared import trust_stores
from state import TreeState, differences, tree_state
from treesnap.core.fs.base import FileSystem
from treesnap.core.handle import Handle
from treesnap.core.ops.context import context_at
from treesnap.testing.doubles import UnsyncedFileSystem

T0_NS = 1_700_000_000_000_000_000
"""A modification time far in the past, so that no entry is racy."""


@dataclass
class Scene:
    """A root and its store, and copies of both to begin again from."""

    directory: Path
    states: dict[str, TreeState] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return self.directory / "case" / "root"

    @property
    def store(self) -> Path:
        return self.directory / "case" / "store"

    def handle(self, fs: FileSystem | None = None) -> Handle:
        fs = fs or UnsyncedFileSystem()
        return Handle(context_at(root=self.root, store_path=str(self.store), fs=fs, wait_s=0))

    def note(self, name: str) -> None:
        """Remembers what the tree looks like now."""
        self.states[name] = tree_state(self.root)

    def keep(self, name: str) -> None:
        """Makes the present a point to go back to."""
        self._copy("case", name)

    def reset(self, name: str) -> None:
        """Goes back to what was kept."""
        shutil.rmtree(self.directory / "case", ignore_errors=True)
        self._copy(name, "case")

    def _copy(self, source: str, target: str) -> None:
        paths = [self.directory / source, self.directory / target]
        subprocess.run(["cp", "-a", *paths], check=True)
        trust_stores(paths[1])

    def litter(self) -> list[str]:
        """Returns what an operation may leave only while it runs."""
        found = [str(path) for path in self.store.glob("roots/*/journal")]
        if self.root.exists():
            found += [name for name in os.listdir(self.root) if name.startswith(".treesnap")]
        for name in ("temporary", "pending"):
            found += [f"{name}/{item}" for item in os.listdir(self.store / name)]
        return found

    def name_of_state(self, *names: str) -> str:
        """Returns which of the named states the tree has; fails when it has none."""
        found = tree_state(self.root)
        for name in names:
            if found == self.states[name]:
                return name
        against = [
            "\n".join([f"--- against {name}", *differences(found, self.states[name])])
            for name in names
        ]
        pytest.fail("The tree is a mix:\n" + "\n".join(against))

    def recovered(self, *names: str) -> str:
        """Lets the next commands run, and returns which of the states came of it."""
        handle = self.handle()
        handle.status()
        name = self.name_of_state(*names)
        assert not list(self.store.glob("roots/*/journal"))
        assert handle.verify(read_data=True).problems == ()
        handle.create()
        assert self.litter() == []
        assert self.name_of_state(*names) == name
        return name


def populate(root: Path) -> None:
    """Fills a root with a few entries of every kind; few bytes have no chunk, more have."""
    for path in ("stays", "goes/inner", "becomes-file", "touched", "closed"):
        (root / path).mkdir(parents=True)
    for number in range(3):
        (root / f"stays/{number}").write_bytes(b"stays %d" % number)
        (root / f"changes-{number}").write_bytes(b"before %d" % number * 20**number)
        (root / f"becomes-file/{number}").write_bytes(b"below %d" % number)
    (root / "becomes-directory").write_bytes(b"file")
    (root / "vanishes").write_bytes(b"vanishes" * 20)
    (root / "vanishes-too").mkdir()
    (root / "vanishes-too/file").write_bytes(b"below")
    (root / "mode").write_bytes(b"mode")
    (root / "link").symlink_to("changes-0")
    (root / "closed/file").write_bytes(b"read-only")
    (root / "closed").chmod(0o555)
    os.mkfifo(root / "fifo", 0o640)
    (root / os.fsdecode(max(filter(volumes.can_keep, (b"\n", b"\xff\n"))))).write_bytes(b"name")
    for pair in ("linked", "apart"):
        (root / f"{pair}-1").write_bytes(pair.encode())
        os.link(root / f"{pair}-1", root / f"{pair}-2")
    with suppress(OSError):  # not every file system has attributes
        os.setxattr(root / "mode", "user.colour", b"red")
    age(root)


def change(root: Path) -> None:
    """Changes a tree in every way that a restore has to undo."""
    for number in range(3):
        (root / f"changes-{number}").write_bytes(b"after, longer %d" % number * 20**number)
    shutil.rmtree(root / "becomes-file")
    (root / "becomes-file").write_bytes(b"file now")
    (root / "becomes-directory").unlink()
    (root / "becomes-directory").mkdir()
    (root / "becomes-directory/file").write_bytes(b"below now")
    (root / "vanishes").unlink()
    shutil.rmtree(root / "vanishes-too")
    (root / "appears").write_bytes(b"appears" * 20)
    (root / "appears-too/inner").mkdir(parents=True)
    (root / "appears-too/inner/file").write_bytes(b"deep")
    (root / "goes/inner/file").write_bytes(b"in an old directory")
    (root / "mode").chmod(0o751)
    (root / "stays").chmod(0o700)
    (root / "link").unlink()
    (root / "link").symlink_to("elsewhere")
    (root / "fifo").unlink()
    (root / "apart-2").unlink()
    (root / "apart-2").write_bytes(b"apart")
    (root / "closed").chmod(0o755)
    (root / "closed/file").write_bytes(b"was open for a while")
    (root / "closed").chmod(0o555)
    os.utime(root / "touched", ns=(T0_NS, T0_NS - 5))
    age(root)


def age(root: Path) -> None:
    """Gives everything old times of its own, so that every wrong one is seen."""
    for number, path in enumerate(sorted(root.rglob("*"))):
        if not path.is_symlink() and path.lstat().st_mtime_ns > T0_NS + 10**15:
            os.utime(path, ns=(T0_NS, T0_NS + number * volumes.STEP_NS))
    os.utime(root, ns=(T0_NS, T0_NS + 999 * volumes.STEP_NS))


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Kept: "changed" since its snapshot, "restored" to it, "undone", "empty" and more."""
    scene = Scene(tmp_path_factory.mktemp("scene"))
    scene.root.mkdir(parents=True)
    scene.keep("empty")
    populate(scene.root)
    scene.note("before")
    scene.keep("populated")
    scene.handle().create(name="before")
    change(scene.root)
    scene.note("after")
    scene.keep("changed")
    scene.handle().restore("before")
    scene.keep("restored")
    scene.handle().undo()
    scene.keep("undone")
    scene.reset("changed")
    shutil.rmtree(scene.root)
    scene.note("absent")
    scene.keep("removed")
    _keep_garbage(scene)
    return scene


def _keep_garbage(scene: Scene) -> None:
    """Keeps "garbage": packs that nothing needs, and one that is needed in part."""
    scene.reset("changed")
    handle = scene.handle()
    (scene.root / "garbage").write_bytes(os.urandom(20_000))
    handle.create(name="garbage-1")
    (scene.store / "slots" / next(iter(os.listdir(scene.store / "slots")))).unlink()
    (scene.root / "garbage").write_bytes(os.urandom(20_000))
    handle.create(name="garbage-2")
    (scene.root / "garbage").unlink()
    os.utime(scene.root, ns=(T0_NS, scene.states["after"][b""].mtime_ns))
    handle.delete("garbage-1", "garbage-2")
    scene.name_of_state("after")
    scene.keep("garbage")
