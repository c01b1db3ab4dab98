"""What ``verify`` calls partial is what cannot be restored, path by path, and nothing else."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import oracle
from blocks import damaging
from treesnap.core.codec.pack import IndexEntry
from treesnap.core.fs.local import LocalFileSystem
from treesnap.core.handle import Handle
from treesnap.core.model.entries import ObjectKind
from treesnap.core.model.errors import TreesnapError
from treesnap.core.model.results import PartialSnapshot
from treesnap.core.ops.context import context_at
from treesnap.core.store.store import Store
from treesnap.testing.doubles import UnsyncedFileSystem

EXTENT = 1 << 16


class Shelf:
    """A root with lists and attributes of their own, and two snapshots of it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        (self.root / "a" / "b" / "c").mkdir(parents=True)
        (self.root / "other").mkdir()
        with (self.root / "long").open("wb") as file:
            for number in range(20):  # more than fit without a list
                file.seek(2 * number * EXTENT)
                file.write(os.urandom(100))
        (self.root / "a" / "b" / "c" / "leaf").write_bytes(b"a leaf")
        (self.root / "other" / "same").write_bytes(b"a leaf")
        os.link(self.root / "other" / "same", self.root / "linked")
        give_large_attributes(self.root / "a" / "b")
        give_large_attributes(self.root)
        self.kept: dict[str, oracle.Record] = {}
        self.take()
        (self.root / "a" / "b" / "c" / "leaf").write_bytes(b"another leaf")
        (self.root / "added").write_bytes(b"added")
        self.take()
        (base / "store").rename(base / "whole")

    def handle(self) -> Handle:
        return Handle(
            context_at(root=self.root, store_path=str(self.base / "store"), fs=UnsyncedFileSystem())
        )

    def take(self) -> None:
        identity = self.handle().create().id
        self.kept[identity] = oracle.record(self.root)

    def objects(self) -> list[list[IndexEntry]]:
        """Returns every object that is needed, but few of the chunks of the long file.

        Each by all places at which it lies.
        """
        with Store.open(LocalFileSystem(), str(self.base / "whole")) as store:
            (pack_id,) = store.packs.sizes()
            entries = store.inventory(pack_id).entries
        chunks = [item for item in entries if item.kind == ObjectKind.CHUNK]
        sizes = [item.raw_size for item in chunks]
        usual = max(sizes, key=sizes.count)
        alike = [item for item in chunks if item.raw_size == usual]
        assert len(alike) > 16
        places: dict[bytes, list[IndexEntry]] = {}
        for item in entries:
            if item not in alike[1:-1]:
                places.setdefault(item.id, []).append(item)
        return list(places.values())

    def lose(self, places: list[IndexEntry]) -> None:
        """Puts the store back and flips a bit of one object wherever it lies."""
        shutil.rmtree(self.base / "store", ignore_errors=True)
        shutil.copytree(self.base / "whole", self.base / "store")
        for entry in places:
            path = self.base / "store" / "packs" / entry.pack_id.hex()
            data = bytearray(path.read_bytes())
            data[damaging(path, entry, 4)] ^= 4
            path.write_bytes(data)

    def comes_back(self, identity: str, path: bytes) -> bool:
        """Returns whether a path alone can be restored, exactly."""
        target = self.base / "target"
        try:
            self.handle().restore(identity, [os.fsdecode(path)] if path else None, to=target)
        except TreesnapError:
            return False
        expected = {
            name: facts
            for name, facts in self.kept[identity].items()
            if is_within(name, path) and not facts.links
        }
        found = {
            name: facts
            for name, facts in oracle.record(target).items()
            if is_within(name, path) and name not in self.linked(identity)
        }
        shutil.rmtree(target)
        assert not oracle.difference(expected, found)
        return True

    def linked(self, identity: str) -> set[bytes]:
        """Returns the paths that have others beside them; those are not restored with one."""
        return {name for name, facts in self.kept[identity].items() if facts.links}


def give_large_attributes(path: Path) -> None:
    """Gives a directory more attributes than fit into an entry: as much as ext4 takes."""
    with suppress(OSError):
        os.setxattr(path, "user.a", os.urandom(60))
        os.setxattr(path, "user.b", os.urandom(4040))


def is_within(path: bytes, above: bytes) -> bool:
    return not above or path == above or path.startswith(above + b"/")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Shelf:
    """A store in which each object has a block of its own, so that it can be lost alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treesnap.core.codec.pack.BLOCK_SIZE_TARGET", 1)
        return Shelf(tmp_path_factory.mktemp("shelf"))


def check(shelf: Shelf, identity: str, partial: PartialSnapshot | None) -> None:
    """Compares what is named with what can be restored."""
    named = set(partial.paths) if partial is not None else set()
    if partial is not None:
        assert partial.path_count == len(partial.paths) > 0
    for path in named:
        assert not shelf.comes_back(identity, path), path
    for path in shelf.kept[identity]:
        if not any(is_within(path, other) or is_within(other, path) for other in named):
            assert shelf.comes_back(identity, path), path


def test_each_object_costs_the_paths_that_are_named_and_no_other(shelf):
    objects = shelf.objects()
    kinds = {places[0].kind for places in objects}
    assert kinds == {ObjectKind.CHUNK, ObjectKind.TREE, ObjectKind.CHUNK_LIST}
    for places in objects:
        shelf.lose(places)
        entry = places[0]

        result = shelf.handle().verify(read_data=True)

        assert not result.ok
        partials = {item.snapshot_id: item for item in result.partial}
        assert partials, entry
        for identity in shelf.kept:
            check(shelf, identity, partials.get(identity))
        (problem,) = [item for item in result.problems if item.code == "damaged-object"]
        assert problem.where == entry.id.hex()
        assert set(problem.snapshot_ids) == partials.keys()
        assert set(problem.paths) == {path for item in result.partial for path in item.paths}
