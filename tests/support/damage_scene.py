"""A store with every kind of file in it, what it must restore to, and ways to damage it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import oracle
from treesnap.core.codec.envelope import FileKind, seal
from treesnap.core.codec.message import pack
from treesnap.core.codec.root_files import EXPORT, EXPORT_STAGE_PREFIX, ExportRecord
from treesnap.core.handle import Handle
from treesnap.core.model.errors import TreesnapError
from treesnap.core.ops.context import context_at
from treesnap.core.store import packs, writer
from treesnap.testing.doubles import UnsyncedFileSystem

KINDS = {
    "format": "format",
    "pack": "packs/*",
    "index part": "index/*[0-9a-f]",
    "snapshot": "snapshots/*/*",
    "state": "states/*",
    "slot": "slots/*",
    "pending": "pending/*",
    "collector state": "collector/state",
    "collected size": "collector/size",
    "root record": "roots/*/root",
    "root pointer": "roots/inode-*",
    "stat cache": "roots/*/cache",
    "history": "roots/*/history",
    "export record": "roots/*/export-*",
    "store settings": "config.toml",
    "root settings": "roots/*/config.toml",
    "lock": "**/lock",
}
"""Every kind of file that a store at rest has, but for journals, the collector's reserve, and
the proof that it is its owner's, without which it is only trusted less."""
THROWAWAYS = {
    "index part",
    "slot",
    "pending",
    "stat cache",
    "export record",
    "collected size",
    "store settings",
    "root settings",
    "lock",
}
"""Kinds of which every file can be lost without a snapshot noticing."""


@dataclass(frozen=True, order=True)
class Damage:
    """One file, and what happens to it."""

    kind: str
    path: str
    """In the store."""
    how: str
    """flip, cut, zeros, missing, swap, older or longer."""
    position: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.path} {self.how} {self.position}"


@dataclass
class Scene:
    """Two roots with a history in one store, as it is and as it was earlier."""

    base: Path
    kept: dict[tuple[str, str], oracle.Record] = field(default_factory=dict)
    """What each snapshot is, by root and id."""
    contents: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    """What its files hold."""
    known: dict[bytes, set[tuple[str, str]]] = field(default_factory=dict)
    """What could be read, by what the files of the store held."""
    looks: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    """How each name in the store looked when it was put back."""

    @property
    def store(self) -> Path:
        """The store that is damaged and used; put back by :meth:`reset`."""
        return self.base / "store"

    def handle(self, root: str = "one", store: Path | None = None) -> Handle:
        """Returns a handle on one of the roots."""
        return Handle(
            context_at(
                root=self.base / root,
                store_path=str(store or self.store),
                fs=UnsyncedFileSystem(),
                wait_s=0.0,
            )
        )

    def take(self, root: str, **options: object) -> str:
        """Takes a snapshot and notes what it is."""
        top = self.base / root
        made = self.handle(root).create(**options).id
        self.kept[root, made] = oracle.record(top)
        self.contents[root, made] = contents_of(top)
        return made

    def reset(self) -> None:
        """Puts the whole store back: what is not as after the last time, else everything."""
        for name in ("copy", "target"):
            shutil.rmtree(self.base / name, ignore_errors=True)
        now = looks_of(self.store)
        changed = [name for name, look in now.items() if look != self.looks.get(name)]
        if (
            self.looks
            and now.keys() == self.looks.keys()
            and not any(now[name] is None for name in changed)
        ):
            for name in changed:
                shutil.copy2(self.base / "whole" / name, self.store / name)
                self.looks[name] = look_of(self.store / name)
            return
        for path in self.store.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self.base / "whole", self.store, dirs_exist_ok=True)
        self.looks = looks_of(self.store)

    def readable(self, store: Path | None = None) -> set[tuple[str, str]]:
        """Returns the snapshots that restore exactly; any other must fail cleanly.

        A store that is byte for byte one that was tried before is not tried again: half of them
        are, because most repairs and collections change nothing that a restore looks at.
        """
        digest = digest_of(store or self.store)
        if digest not in self.known:
            self.known[digest] = self._readable(store)
        return self.known[digest]

    def _readable(self, store: Path | None) -> set[tuple[str, str]]:
        return {
            (root, identity)
            for root, identity in self.kept
            if self.is_readable(root, identity, store)
        }

    def is_readable(self, root: str, identity: str, store: Path | None = None) -> bool:
        """Returns whether a snapshot restores exactly; else it must fail cleanly."""
        target = self.base / "target"
        try:
            self.handle(root, store).restore(identity, to=target)
        except TreesnapError:
            assert not target.exists()
            return False
        restored = oracle.record(target)
        assert not oracle.difference(self.kept[root, identity], restored), (root, identity)
        shutil.rmtree(target)
        return True

    def unreadable_files(self, root: str, identity: str) -> set[bytes]:
        """Returns the files of a snapshot that cannot be read one by one."""
        lost = set()
        for name, content in self.contents[root, identity].items():
            try:
                found = b"".join(self.handle(root).cat(identity, name))
            except TreesnapError:
                lost.add(os.fsencode(name))
            else:
                assert found == content, (root, identity, name)
        return lost


def looks_of(directory: Path) -> dict[str, tuple[int, ...] | None]:
    """Returns how each name below a directory looks."""
    found = {}
    for above, directories, files in os.walk(directory):
        inside = above.removeprefix(str(directory)).lstrip("/")
        for name in directories:
            found[f"{inside}/{name}"] = None
        for name in files:
            found[f"{inside}/{name}".lstrip("/")] = look_of(Path(above, name))
    return found


def look_of(path: Path) -> tuple[int, ...]:
    """Returns what changes when a file is written, replaced, or given another mode.

    What is put back has the times of its model, and what is written has those of the present.
    """
    found = path.lstat()
    return found.st_mode, found.st_ino, found.st_size, found.st_mtime_ns


def digest_of(store: Path) -> bytes:
    """Returns a digest of every file, but for what only a collection or a person reads."""
    digest = hashlib.sha256()
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store)
        if path.is_file() and name.parts[0] not in {"collector", "quarantine"}:
            content = path.read_bytes()
            digest.update(b"%s\0%d\0%s" % (os.fsencode(name), len(content), content))
    return digest.digest()


def contents_of(top: Path) -> dict[str, bytes]:
    """Returns the content of every file below a directory."""
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def build(base: Path, patch: Callable[[object, str, int], None]) -> Scene:
    """Makes the scene. ``patch`` makes packs small for as long as that takes."""
    for module in (packs, writer):
        if hasattr(module, "PACK_SIZE_TARGET"):
            patch(module, "PACK_SIZE_TARGET", 1200)
    scene = Scene(base)
    one, two = base / "one", base / "two"
    (one / "deep" / "er").mkdir(parents=True)
    two.mkdir()
    (one / "shared").write_bytes(b"in both roots " * 9)
    (two / "shared").write_bytes(b"in both roots " * 9)
    (one / "deep" / "er" / "leaf").write_bytes(bytes(range(200)))
    (one / "deep" / "twin").write_bytes(bytes(range(200)))
    (one / "text").write_bytes(b"first text " * 20)
    os.symlink("text", one / "link")
    os.link(one / "text", one / "deep" / "linked")
    with suppress(OSError):  # not every file system has attributes
        os.setxattr(one / "text", "user.note", bytes(range(256)) * 3)
    first = scene.take("one", name="first")
    scene.take("two", name="early")
    handle = scene.handle()
    handle.pin(first)
    (one / "text").write_bytes(b"second text " * 20)
    (one / "waste").write_bytes(os.urandom(3000))
    handle.delete(scene.handle().create().id)
    (one / "waste").unlink()
    handle.gc()
    shutil.copytree(scene.store, base / "earlier")
    (one / "more").write_bytes(bytes(reversed(range(180))))
    second = scene.take("one", name="second")
    scene.kept["one", handle.restore(first).safety_id] = scene.kept["one", second]
    scene.contents["one", handle.list()[0].id] = scene.contents["one", second]
    handle.undo()
    for snapshot in handle.list():
        key = ("one", snapshot.id)
        scene.kept.setdefault(key, scene.kept["one", first])
        scene.contents.setdefault(key, scene.contents["one", first])
    (two / "only here").write_bytes(b"nowhere else " * 30)
    last = scene.take("two", name="last")
    scene.handle("two").pin(last)
    scene.handle("two").restore("early")
    for snapshot in scene.handle("two").list():
        if ("two", snapshot.id) not in scene.kept:
            scene.handle("two").delete(snapshot.id)
    (one / "waste").write_bytes(os.urandom(3000))
    handle.delete(handle.create().id)
    (one / "waste").unlink()
    handle.gc()
    _leave_behind(scene)
    scene.handle().ls(second)
    scene.store.rename(base / "whole")
    scene.store.mkdir()
    scene.reset()
    return scene


def _leave_behind(scene: Scene) -> None:
    """Leaves what killed commands leave, and what only larger stores have."""
    handle = scene.handle()
    handle.config("automatic", "false")
    handle.config("keep.last", "77")
    for root in ("one", "two"):
        scene.handle(root).config("keep.daily", "33", for_root=True)
    size = seal(FileKind.COLLECTED_SIZE, pack({"size_bytes": 5000}))
    (scene.store / "collector" / "size").write_bytes(size)
    snapshot = next(scene.store.glob("snapshots/*/*"))
    slot = next(scene.store.glob("slots/*"))
    shutil.copy(snapshot, scene.store / "pending" / slot.name)
    record = next(scene.store.glob("roots/*/root"))
    stage = os.fsencode(scene.base / os.fsdecode(EXPORT_STAGE_PREFIX + b"0123456789abcdef"))
    export = seal(FileKind.EXPORT, EXPORT.encode(ExportRecord(stage)))
    record.with_name("export-0123456789abcdef").write_bytes(export)


def all_damages(scene: Scene) -> Iterator[Damage]:
    """Yields every way in which every file can be damaged."""
    for kind, pattern in KINDS.items():
        paths = sorted(scene.store.glob(pattern))
        assert paths, kind
        names = [str(path.relative_to(scene.store)) for path in paths]
        for path, name in zip(paths, names, strict=True):
            size = path.stat().st_size
            yield from (Damage(kind, name, "flip", position) for position in range(size))
            yield from (Damage(kind, name, "cut", length) for length in range(size))
            yield Damage(kind, name, "zeros")
            yield Damage(kind, name, "missing")
            if kind == "lock":  # it has no bytes that could change
                yield Damage(kind, name, "longer")
            for position, other in enumerate(names):
                if other != name:
                    yield Damage(kind, name, "swap", position)
            earlier = scene.base / "earlier" / name
            if earlier.exists() and earlier.read_bytes() != path.read_bytes():
                yield Damage(kind, name, "older")


def spread(damages: list[Damage], each: int) -> list[Damage]:
    """Returns some of many: of each kind and way about as many, evenly chosen; most are flips."""
    groups: dict[tuple[str, str], list[Damage]] = {}
    for damage in damages:
        groups.setdefault((damage.kind, damage.how), []).append(damage)
    chosen = []
    for (_, how), group in groups.items():
        count = each if how == "flip" else (each + 1) // 2
        places = {(2 * number + 1) * len(group) // (2 * count) for number in range(count)}
        chosen += [group[place] for place in sorted(places)]
    return chosen


def inflict(scene: Scene, damage: Damage) -> None:
    """Does the damage."""
    path = scene.store / damage.path
    data = bytearray(path.read_bytes())
    if damage.how == "missing":
        path.unlink()
        return
    if damage.how == "swap":
        other = sorted(scene.store.glob(KINDS[damage.kind]))[damage.position]
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
        return
    if damage.how == "older":
        data = bytearray((scene.base / "earlier" / damage.path).read_bytes())
    elif damage.how == "longer":
        data += b"nonsense"
    elif damage.how == "zeros":
        data = bytearray(len(data))
    elif damage.how == "cut":
        del data[damage.position :]
    else:
        data[damage.position] ^= 1 << (damage.position * 7 + 3) % 8
    path.write_bytes(data)
