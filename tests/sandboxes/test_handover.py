"""The files of a sandbox's remote come to the host: what is new, and nothing that a stranger likes.

The sandbox is a store of its own here, so these tests need no provider.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import treesnap
from treesnap.core.model.errors import Corrupt, InvalidArgument, Refused, RemoteFailed
from treesnap.remote import Remotes
from treesnap.sandboxes import handover
from treesnap.sandboxes.handover import HandedOut, Receiver

pytestmark = pytest.mark.sampled(12)


class Scene:
    def __init__(self, directory: Path) -> None:
        self.root = directory / "box" / "project"
        self.root.mkdir(parents=True)
        self.there = treesnap.open(self.root, directory / "box" / "store")
        self.remote = directory / "box" / "remote"
        self.remotes = Remotes(self.there)
        self.remotes.add("handed-out", str(self.remote))
        (directory / "host").mkdir()
        self.handle = treesnap.open(directory / "host", directory / "store")
        self.directory = directory / "histories" / "task-1"
        self.reads: list[str] = []

    def push(self, name: str) -> str:
        (self.root / name).write_text(name * 1000)
        self.there.create()
        return self.remotes.push("handed-out").history_id

    def names(self) -> list[str]:
        return [str(path.relative_to(self.remote)) for path in self.remote.rglob("*")]

    def read(self, name: str) -> Iterator[bytes]:
        self.reads.append(name)
        data = (self.remote / name).read_bytes()
        yield data[:100]
        yield data[100:]

    def receive(self, history_id: str, names: Iterable[str] | None = None) -> HandedOut:
        receiver = Receiver(self.handle, self.directory)
        pushed = [self.there.list()[0].id]
        names = self.names() if names is None else names
        return receiver.receive(history_id, pushed, names, self.read)

    def ids_here(self) -> list[str]:
        place = self.directory.parent / "clone"
        other = treesnap.open(place, self.directory.parent / "other")
        Remotes(other).clone(str(self.directory))
        return [snapshot.id for snapshot in other.list()]


def damaged(data: bytes) -> bytes:
    """Returns the bytes with every second one changed, whatever of them is padding."""
    return bytes(byte ^ (number & 1) for number, byte in enumerate(data))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_copy_of_a_sandbox_hands_out_a_history_beside_the_other(scene):
    """A copy has the ids of its history as well, and so has a stranger that knows them."""
    first = scene.receive(scene.push("roses"))

    scene.directory = scene.directory.with_name("task-2")
    copied = scene.receive(scene.push("tulips"))

    held = {ref: scene.handle.show(ref).id for ref in ("task-1/project", "task-2/project")}
    assert held == {"task-1/project": first.newest_id, "task-2/project": copied.newest_id}
    assert scene.handle.show(copied.ref).id == copied.newest_id
    assert (first.snapshots, copied.snapshots) == (1, 2)


def test_a_file_comes_once(scene):
    first = scene.receive(scene.push("roses"))
    assert (first.snapshots, first.files) == (1, len(scene.reads))
    scene.reads.clear()

    second = scene.receive(scene.push("tulips"))

    assert (second.snapshots, second.files) == (1, 2)
    assert sorted(name.partition("/")[0] for name in scene.reads) == ["commits", "format", "packs"]
    assert scene.ids_here()[-2:] == [snapshot.id for snapshot in scene.there.list()]


def test_what_is_cut_off_anywhere_goes_on(scene):
    scene.push("roses")
    history_id = scene.push("tulips")
    whole = scene.read
    counts = []
    for allowed in range(20):
        scene.reads.clear()

        def read(name: str, allowed: int = allowed) -> Iterator[bytes]:
            if len(scene.reads) > allowed:
                yield b"half"
                raise OSError("the sandbox is gone")
            yield from whole(name)

        scene.read = read
        try:
            scene.receive(history_id)
        except OSError:
            counts.append(len(scene.reads))
            if (scene.directory / "format").exists():
                raise AssertionError("what is not whole looks like a remote") from None
        else:
            break

    assert len(counts) >= 2
    assert scene.ids_here()[-2:] == [snapshot.id for snapshot in scene.there.list()]


def test_names_that_lead_elsewhere_are_left_out(scene, tmp_path):
    history_id = scene.push("roses")
    hostile = [
        "../evil",
        "/etc/passwd",
        "packs/../../evil",
        "packs/..",
        "packs/.unfinished-00",
        "keys/00",
        "probe/00",
        "packs/00\n",
        "",
        ".",
    ]

    scene.receive(history_id, [*hostile, *scene.names()])

    assert not set(hostile) & set(scene.reads)
    assert {path.name for path in scene.directory.iterdir()} == {
        *("commits", "format", "members", "packs", "reserve", "state")
    } | ({"probe"} if (scene.directory / "probe").exists() else set())
    assert not (tmp_path / "evil").exists()


def test_a_pack_that_was_changed_brings_no_snapshot(scene):
    history_id = scene.push("roses")
    (file,) = (scene.remote / "packs").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damaged(whole))

    with pytest.raises((Corrupt, treesnap.NotFound)):
        scene.receive(history_id)

    with pytest.raises(treesnap.TreesnapError):
        scene.handle.show("task-1/project")
    file.write_bytes(whole)
    scene.receive(history_id)
    assert scene.ids_here()[-1] == scene.there.list()[0].id


def test_a_pack_that_was_changed_on_its_way_leaves_what_is_here(scene):
    scene.receive(scene.push("roses"))
    first = scene.there.list()[0].id
    before = {path.name for path in (scene.remote / "packs").iterdir()}
    history_id = scene.push("tulips")
    (file,) = (path for path in (scene.remote / "packs").iterdir() if path.name not in before)
    whole = file.read_bytes()
    file.write_bytes(damaged(whole))

    with pytest.raises(Corrupt):
        scene.receive(history_id)

    assert scene.ids_here()[-1] == first
    file.write_bytes(whole)
    assert scene.receive(history_id).newest_id == scene.there.list()[0].id


@pytest.mark.parametrize("kind", ["commits", "state"])
def test_what_packs_say_as_well_may_be_damaged(scene, kind):
    history_id = scene.push("roses")
    for file in (scene.remote / kind).iterdir():
        file.write_bytes(damaged(file.read_bytes()))

    received = scene.receive(history_id)

    newest = scene.there.list()[0].id
    assert (received.newest_id, scene.handle.show("task-1/project").id) == (newest, newest)
    assert scene.ids_here()[-1] == newest


def test_another_content_for_a_snapshot_is_refused(scene):
    """The pack of another sandbox is whole, but holds other objects."""
    history_id = scene.push("roses")
    (pack,) = (scene.remote / "packs").iterdir()
    other = Scene(scene.directory.parent.parent / "second")
    other.push("tulips")
    (strange,) = (other.remote / "packs").iterdir()
    pack.write_bytes(strange.read_bytes())

    with pytest.raises(Corrupt):
        scene.receive(history_id)


def test_a_sandbox_that_deletes_its_history_takes_nothing_back(scene):
    scene.receive(scene.push("roses"))
    history_id = scene.push("tulips")
    scene.remotes.delete("handed-out", history_id)
    scene.receive(history_id)

    ids = [snapshot.id for snapshot in scene.there.list()]
    assert scene.ids_here()[-2:] == ids


def test_a_sandbox_that_collects_garbage_is_told_and_takes_nothing_back(scene):
    scene.receive(scene.push("roses"))
    first = scene.there.list()[0].id
    history_id = scene.push("tulips")
    scene.remotes.delete("handed-out", history_id)
    scene.remotes.collect("handed-out")
    scene.push("lilies")

    with pytest.raises(Refused, match="Garbage was collected"):
        scene.receive(history_id)

    assert scene.ids_here()[-1] == first
    scene.directory = scene.directory.parent / "task-2"
    scene.receive(scene.remotes.push("handed-out").history_id)


def test_a_file_that_never_ends_is_refused(scene, monkeypatch):
    monkeypatch.setattr(handover, "BLOB_SIZE_MAX", 1 << 20)
    history_id = scene.push("roses")
    read = 0

    def endless(name: str) -> Iterator[bytes]:
        nonlocal read
        while name != "format":
            read += 1 << 16
            yield bytes(1 << 16)
        yield from Scene.read(scene, name)

    scene.read = endless
    with pytest.raises(RemoteFailed):
        scene.receive(history_id)

    assert read < 2 << 20


def test_a_program_with_rights_of_its_owner_comes_without_them(scene):
    program = scene.root / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o4755)
    snap = [sys.executable, "-m", "treesnap", "-C", scene.root, "--store", scene.there.store_path]
    subprocess.run([*snap, "create", "-q"], check=True)  # what this process captured is its own
    history_id = scene.push("roses")

    ref = scene.receive(history_id).ref
    scene.handle.create()
    result = scene.handle.restore(f"{ref.partition('@')[0]}@{scene.there.list()[1].id}")

    restored = Path(scene.handle.root) / "program"
    assert restored.stat().st_mode & 0o7777 == 0o755
    assert (result.privileges.left_out, result.privileges.given) == (1, 0)


def test_the_history_of_another_sandbox_is_refused(scene, tmp_path):
    scene.receive(scene.push("roses"))
    other = Scene(tmp_path / "second")
    other.directory, other.handle = scene.directory, scene.handle
    history_id = other.push("tulips")

    with pytest.raises(Refused, match="holds the history of another sandbox"):
        other.receive(history_id)


@pytest.mark.parametrize("name", ["a b", "-x"])
def test_the_directory_has_the_name_of_a_remote(scene, name):
    with pytest.raises(InvalidArgument):
        Receiver(scene.handle, scene.directory.parent / name)


def test_a_name_that_the_store_has_for_another_place_is_refused(scene, tmp_path):
    Remotes(scene.handle).add("task-1", str(tmp_path / "disk"))
    history_id = scene.push("roses")

    with pytest.raises(Refused, match="task-1"):
        scene.receive(history_id)
